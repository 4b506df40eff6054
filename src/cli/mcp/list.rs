//! `toolhost mcp list`: the MCP servers of this host, and what each may touch.

use crate::cli::refusal::Exit;
use crate::cli::settings::Settings;
use crate::cli::{host, words};
use crate::policy::audit::touches;
use crate::registry::Tool;
use serde_json::{Value, json};
use std::process::ExitCode;

const TABLE: words::Table = (
    "servers",
    &["server", "package", "version", "approval", "tools"],
    &["mayTouch"],
);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let known = host::Tools::load(settings)?;
    let tools = known.tools();
    let servers = tools
        .iter()
        .filter(|tool| tool.manifest.mcp_tool().is_none());
    let rows: Vec<Value> = servers.filter_map(|tool| row(&known, tool)).collect();
    if rows.is_empty() {
        words::note("No MCP server: `toolhost mcp import` takes over those that clients have.");
    }
    let report = json!({ "servers": rows });
    words::answer(&report, args.json, || words::render(&report, &[TABLE]));
    Ok(Exit::Ok.into())
}

/// `None`: the tool is not a server.
fn row(known: &host::Tools, tool: &Tool) -> Option<Value> {
    let server = tool.manifest.mcp_server()?;
    let decision = known.decide(tool);
    let required = decision.packages.required.iter();
    let packages: Vec<&str> = required
        .flat_map(|required| &required.requires)
        .map(|required| required.name.as_str())
        .collect();
    let approval = decision.approval.as_ref();
    let listed = server.listed.as_ref().map(|listed| listed.len());
    Some(json!({
        "server": tool.manifest.id,
        "package": packages.join(" "),
        "version": tool.manifest.version,
        "approval": approval.map_or("not required", |it| it.state.name()),
        "tools": listed.map_or_else(|| json!("not listed yet"), |count| json!(count)),
        "mayTouch": touches(&decision),
    }))
}
