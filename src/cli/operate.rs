//! `ps`, `kill`, `approvals` and `status`: an operator's view of a running server.

use super::refusal::Exit;
use super::{remote, words};
use crate::base::text::printable;
use crate::service::Question;
use http::Method;
use serde_json::{Value, json};
use std::process::ExitCode;

const COLUMNS: [&str; 6] = ["id", "phase", "outcome", "caller", "tool", "began"];
const READY_COLUMNS: [&str; 5] = ["phase", "tool", "began", "waitedMs", "memoryBytes"];
const SESSION_COLUMNS: [&str; 6] = ["id", "session", "language", "caller", "tool", "waitedMs"];

#[derive(Debug, clap::Args)]
pub struct PsArgs {
    /// Show calls that ended recently, too
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub server: remote::Server,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// The id of a call or session, as `toolhost ps` shows it, or its beginning
    #[arg(value_name = "CALL")]
    pub call: String,
    /// Interrupt what the session runs; the session goes on
    #[arg(long)]
    pub interrupt: bool,
    #[command(flatten)]
    pub server: remote::Server,
}

#[derive(Debug, clap::Args)]
pub struct ApprovalsArgs {
    /// The call to answer, by its id or the beginning of it
    #[arg(value_name = "CALL", requires = "answer")]
    pub call: Option<String>,
    /// Let the call run
    #[arg(long, group = "answer", requires = "call")]
    pub yes: bool,
    /// Refuse the call
    #[arg(long, group = "answer", requires = "call")]
    pub no: bool,
    #[command(flatten)]
    pub server: remote::Server,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub server: remote::Server,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints an answer: JSON for a program, else its text.
fn show(answer: &Value, json: bool, text: impl FnOnce() -> String) -> anyhow::Result<ExitCode> {
    words::answer(answer, json, text);
    Ok(Exit::Ok.into())
}

pub fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let answer = args.server.ask(Method::GET, "/v1/calls", None, "calls")?;
    let mut calls = answer["calls"].as_array().cloned().unwrap_or_default();
    calls.retain(|call| args.all || call["phase"] != "ended");
    let mut ready = answer["ready"].as_array().cloned().unwrap_or_default();
    let sessions = answer["sessions"].as_array().cloned().unwrap_or_default();
    show(
        &json!([calls.as_slice(), &sessions, &ready].concat()),
        args.json,
        || {
            for row in calls.iter_mut().chain(&mut ready) {
                row["began"] = json!(words::age(&words::flat(&row["began"])));
            }
            let mut text = if calls.is_empty() {
                "No call runs.".to_owned()
            } else {
                words::table(&calls, &COLUMNS, &[])
            };
            let tables = [
                (&sessions, &SESSION_COLUMNS[..]),
                (&ready, &READY_COLUMNS[..]),
            ];
            for (rows, columns) in tables {
                if !rows.is_empty() {
                    text += &format!("\n{}", words::table(rows, columns, &[]));
                }
            }
            for (tool, why) in answer["cold"].as_object().into_iter().flatten() {
                text += &format!("\n{tool}: {}", printable(&words::flat(why)));
            }
            text
        },
    )
}

pub fn kill(args: &KillArgs) -> anyhow::Result<ExitCode> {
    let call = args.server.call_id(&args.call)?;
    let path = format!("/v1/calls/{call}");
    if args.interrupt {
        let path = format!("{path}/interrupt");
        let answer = args.server.ask(Method::POST, &path, None, "interrupted")?;
        return show(&answer, false, || format!("{call} is being interrupted"));
    }
    let answer = args.server.ask(Method::DELETE, &path, None, "cancelled")?;
    show(&answer, false, || format!("{call} is being killed"))
}

pub fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let status = args
        .server
        .ask(Method::GET, "/v1/status", None, "running")?;
    show(&status, args.json, || words::render(&status, &[]))
}

pub fn approvals(args: &ApprovalsArgs) -> anyhow::Result<ExitCode> {
    if let Some(call) = &args.call {
        let call = args.server.call_id(call)?;
        let path = format!("/v1/approvals/{call}");
        let answer = args.server.ask(
            Method::POST,
            &path,
            Some(&json!({ "approve": args.yes })),
            "approved",
        )?;
        let state = if args.yes { "runs" } else { "does not run" };
        return show(&answer, args.json, || format!("call {call} {state}"));
    }
    let answer = args
        .server
        .ask(Method::GET, "/v1/approvals", None, "approvals")?;
    let open: Vec<Question> = serde_json::from_value(answer["approvals"].clone())?;
    show(&answer["approvals"], args.json, || {
        if open.is_empty() {
            "No call waits for an answer.".to_owned()
        } else {
            open.iter().map(|question: &Question| {
        let until = &question.until;
 let call = &question.call;
        let words = question.text(true);
        format!(
            "{words}\n  until      {until}\n  answer     toolhost approvals {call} --yes (or \
            --no)\n"
        )
    }).collect()
        }
    })
}
