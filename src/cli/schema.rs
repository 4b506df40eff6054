//! `schema`: the JSON Schema of a manifest, a policy or the file of callers, with every default.

use super::refusal::Exit;
use super::words;
use crate::{manifest, policy};
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which file's schema
    #[arg(value_enum)]
    pub what: SchemaKind,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaKind {
    Manifest,
    Policy,
    Callers,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let schema = match args.what {
        SchemaKind::Manifest => &manifest::SCHEMA,
        SchemaKind::Policy => policy::schema(),
        SchemaKind::Callers => policy::callers::schema(),
    };
    words::show(format!("{schema:#}\n").as_bytes());
    Ok(Exit::Ok.into())
}
