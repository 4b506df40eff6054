//! `toolhost token NAME`: a token for a caller over HTTP, shown once, and the line for the token
//! file.

use super::refusal::{Exit, Refusal};
use super::words;
use crate::transport::http;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The caller's name, as records show it
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Make the caller an operator, who sees audit records, metrics and the calls of others. If
    /// there is a callers.policy.toml, only that file makes callers operators
    #[arg(long)]
    pub operator: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let made = http::make_token(&args.name, args.operator);
    let (token, line) = made.map_err(|why| Refusal::new(Exit::Caller, why))?;
    words::note("The token, which is shown only now, and the line for the token file:");
    words::say(&format!("{token}\n{line}"));
    Ok(Exit::Ok.into())
}
