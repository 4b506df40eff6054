//! `toolhost status`: how a running server is: what runs and waits, breakers, sources.

use super::refusal::Exit;
use super::{remote, words};
use http::Method;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub server: remote::Server,
    /// For a program
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = args.server.ask(Method::GET, "/v1/status", None, "running")?;
    match args.json {
        true => words::show_json(&status),
        false => words::show(words::render(&status, &[]).as_bytes()),
    }
    Ok(Exit::Ok.into())
}
