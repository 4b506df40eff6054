//! `schema`: the JSON Schema of a manifest or a policy, with every default, for editors.
//!
//! For: the command line. In: which one; the policy room's schema as data. Out: JSON.
//! Never: differs from what the readers accept (their tests compare).

use crate::manifest;
use serde_json::Value;
use std::io::{self, Write};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which file's schema
    #[arg(value_enum)]
    pub what: What,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Manifest,
    Policy,
}

pub fn run(args: &Args, policy_schema: impl FnOnce() -> Value, out: &mut dyn Write) -> io::Result<()> {
    let schema = match args.what {
        What::Manifest => manifest::published::schema(),
        What::Policy => policy_schema(),
    };
    writeln!(out, "{schema:#}")
}
