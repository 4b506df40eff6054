//! `toolhost ps`: the calls of a running server, and for whom they run.

use super::refusal::Exit;
use super::{remote, words};
use crate::base::text::{head, printable};
use http::Method;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Widest column, characters.
const WIDE: usize = 40;

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
    let calls = answer["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let calls: Vec<&Value> = calls.iter().filter(|call| args.all || call["phase"] != "ended").collect();
    if args.json {
        words::show_json(&json!(calls));
        return Ok(Exit::Ok.into());
    }
    if calls.is_empty() {
        words::say("No call runs.");
        return Ok(Exit::Ok.into());
    }
    let word = |call: &Value, name: &str| printable(&head(call[name].as_str().unwrap_or("-"), WIDE));
    let row = |cells: [String; 5]| {
        let [id, phase, caller, tool, began] = cells;
        format!("{id:36}  {phase:8}  {caller:16}  {tool:32}  {began}")
    };
    words::say(&row(["CALL", "STATE", "CALLER", "TOOL", "BEGAN"].map(str::to_owned)));
    for call in calls {
        let state = if call["phase"] == "ended" { "outcome" } else { "phase" };
        words::say(&row(["id", state, "caller", "tool", "began"].map(|name| word(call, name))));
    }
    Ok(Exit::Ok.into())
}
