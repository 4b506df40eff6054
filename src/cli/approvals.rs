//! `toolhost approvals [CALL --yes|--no]`: the calls of a running server that wait for a person, and the person's
//! answer.

use super::refusal::Exit;
use super::{remote, words};
use http::Method;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Answer this call
    #[arg(value_name = "CALL", requires = "answer")]
    pub call: Option<String>,
    /// It may run
    #[arg(long, group = "answer", requires = "call")]
    pub yes: bool,
    /// It may not
    #[arg(long, group = "answer", requires = "call")]
    pub no: bool,
    #[command(flatten)]
    pub server: remote::Server,
    /// For a program
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(call) = &args.call {
        let path = format!("/v1/approvals/{}", remote::call_id(call)?);
        let told = args.server.ask(Method::POST, &path, Some(&json!({ "approve": args.yes })), "approved")?;
        match args.json {
            true => words::show_json(&told),
            false => words::say(&format!("{call}: {}", if args.yes { "it runs" } else { "it does not run" })),
        }
        return Ok(Exit::Ok.into());
    }
    let answer = args.server.ask(Method::GET, "/v1/approvals", None, "approvals")?;
    if args.json {
        words::show_json(&answer["approvals"]);
        return Ok(Exit::Ok.into());
    }
    let open = answer["approvals"].as_array().map(Vec::as_slice).unwrap_or_default();
    if open.is_empty() {
        words::say("No call waits for an answer.");
    }
    for question in open {
        words::say(&shown(question)?);
    }
    Ok(Exit::Ok.into())
}

fn shown(question: &Value) -> anyhow::Result<String> {
    let asked: crate::service::Question = serde_json::from_value(question.clone())?;
    Ok(format!(
        "{}\n  until      {}\n  answer     toolhost approvals {} --yes (or --no)",
        asked.told(true),
        asked.until,
        asked.call
    ))
}
