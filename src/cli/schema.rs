//! `schema`: the JSON Schema of a manifest, a policy or the file of callers, with every default.

use super::refusal::Exit;
use super::words;
use crate::schemas;
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
        SchemaKind::Manifest => &schemas::MANIFEST,
        SchemaKind::Policy => &schemas::POLICY,
        SchemaKind::Callers => &schemas::CALLERS,
    };
    words::show(format!("{:#}\n", *schema.json).as_bytes());
    Ok(Exit::Ok.into())
}
