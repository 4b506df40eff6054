//! `toolhost kill CALL`: ends a call of a running server.

use super::refusal::{Exit, Refusal};
use super::{remote, words};
use http::Method;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The call's id, as `toolhost ps` shows it
    #[arg(value_name = "CALL")]
    pub call: String,
    #[command(flatten)]
    pub server: remote::Server,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // An id is part of a path.
    if uuid::Uuid::try_parse(&args.call).is_err() {
        return Err(Refusal::new(Exit::Caller, "a call's id looks as `toolhost ps` shows it").into());
    }
    args.server.ask(Method::DELETE, &format!("/v1/calls/{}", args.call))?;
    words::say(&format!("{} is being killed", args.call));
    Ok(Exit::Ok.into())
}
