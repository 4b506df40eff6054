//! `toolhost ps`: the calls of a running server, and for whom they run.

use super::refusal::Exit;
use super::{remote, words};
use http::Method;
use serde_json::json;
use std::process::ExitCode;

const COLUMNS: [&str; 6] = ["id", "phase", "outcome", "caller", "tool", "began"];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also the calls that ended lately
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub server: remote::Server,
    /// For a program
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let answer = args.server.ask(Method::GET, "/v1/calls", None, "calls")?;
    let mut calls = answer["calls"].as_array().cloned().unwrap_or_default();
    calls.retain(|call| args.all || call["phase"] != "ended");
    match (args.json, calls.is_empty()) {
        (true, _) => words::show_json(&json!(calls)),
        (false, true) => words::say("No call runs."),
        (false, false) => words::show(words::table(&calls, &COLUMNS, &[]).as_bytes()),
    }
    Ok(Exit::Ok.into())
}
