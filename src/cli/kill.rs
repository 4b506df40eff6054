//! `toolhost kill CALL`: ends a call of a running server.

use super::refusal::Exit;
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
    args.server.ask(Method::DELETE, &format!("/v1/calls/{}", remote::call_id(&args.call)?), None, "cancelled")?;
    words::say(&format!("{} is being killed", args.call));
    Ok(Exit::Ok.into())
}
