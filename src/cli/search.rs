//! `search`: the tools that fit a task best.

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, list, process, words};
use crate::base::text::{head, json as json_text};
use crate::service::search::{Found, MAX_HITS, SearchIndex, USUAL_HITS};
use crate::transport::export;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// What the tool is to do, in a few words: "resize a picture"
    #[arg(required = true, value_name = "QUERY")]
    query: Vec<String>,
    /// Most tools to show
    #[arg(long, value_name = "N", default_value_t = USUAL_HITS as u64, value_parser = clap::value_parser!(u64).range(1..=MAX_HITS as u64))]
    limit: u64,
    /// Among the tools of this caller (default: your login name)
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Print JSON: with scores, parameters and an example of the arguments
    #[arg(long)]
    json: bool,
    /// Print what a client of a model API loads: anthropic (tool_reference), openai-responses
    /// (tool_search_output), or whole definitions: openai, gemini, prompt
    #[arg(long, value_name = "F", value_parser = export::Format::parse, conflicts_with = "json")]
    format: Option<export::Format>,
}

/// Widest description in the table, characters.
const MAX_DESCRIPTION_CHARS: usize = 80;

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let host = host::Tools::load(settings)?;
    let offered = list::offered_to(&host, args.caller.as_deref());
    let names = export::names(&offered);
    let index = SearchIndex::new(offered);
    let used = host::audit_log(settings).ok();
    let used = used.and_then(|log| log.usage().ok()).unwrap_or_default();
    let caller = args.caller.clone().unwrap_or_else(host::login);
    let used = used.of(index.tools(), Some(&caller));
    let runtime = process::runtime()?;
    let embedder = host::embedder(settings, runtime.handle())?;
    let question = args.query.join(" ");
    let limit = args.limit as usize;
    let embedder = embedder.as_ref();
    let hits = Found::of(&index, embedder, &caller, &question, limit, &used, |_| true);
    hits.note
        .iter()
        .for_each(|note| words::note(&format!("toolhost: {note}")));
    if args.json || args.format.is_some() {
        let text = match export::found(&hits, &names, args.format) {
            Value::String(text) => text,
            value => json_text(&value, true) + "\n",
        };
        words::show(text.as_bytes());
        return Ok(Exit::Ok.into());
    }
    if hits.hits.is_empty() {
        words::say("No tool fits these words.");
        host::say_nothing_found(settings, &host.snapshot);
        return Ok(Exit::Ok.into());
    }
    let rows: Vec<Value> = hits
        .hits
        .iter()
        .map(|hit| {
            let manifest = &hit.tool.manifest;
            let first = manifest.description.lines().next().unwrap_or_default();
            json!({
                "score": format!("{:.2}", hit.score),
                "tool": manifest.id,
                "description": head(first, MAX_DESCRIPTION_CHARS),
            })
        })
        .collect();
    words::show(words::table(&rows, &["score", "tool", "description"], &[]).as_bytes());
    Ok(Exit::Ok.into())
}
