//! `toolhost mcp refresh`: starts an MCP server once, behind its layers, and records what it says of
//! its tools.

use crate::base::text::{self, printable};
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::cli::{host, words};
use crate::manifest::mcp;
use crate::policy::ApprovalState;
use crate::registry;
use crate::service::Service;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Longest list that is read, bytes.
const MAX_LIST_BYTES: usize = 1 << 20;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The server: its id, as memory:server
    #[arg(value_name = "ID")]
    server: String,
    /// Show the difference, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Start it as it is, although nobody approved that
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How what a server says of its tools differs from its list.
pub struct Listed {
    path: PathBuf,
    /// The list as it would be written.
    text: String,
    count: usize,
    /// The tools that no client gets, and why.
    pub not_offered: Vec<String>,
    new: Vec<String>,
    changed: Vec<String>,
    gone: Vec<String>,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let known = host::Tools::load(settings)?;
    let tool = known.snapshot.find(&args.server).map_err(Refusal::from)?;
    let approval = known.decide(&tool).approval;
    let state = approval.map(|it| it.state).filter(|_| !args.yes);
    if let Some(other) = state.filter(|it| !matches!(it, ApprovalState::Approved { .. })) {
        let id = &tool.manifest.id;
        let why = other.words();
        return Err(Refusal::new(
            Exit::Policy,
            format!("{why}: `toolhost approve {id} --why TEXT`, or --yes starts it as it is"),
        )
        .into());
    }
    let done = host::with_service(
        settings,
        Some(words::note),
        async |service: &Arc<Service>| listed(service, &args.server).await,
    )?;
    let listed = match done {
        Ok(listed) => listed?,
        Err(signal) => return Ok(signal),
    };
    if !args.dry_run {
        listed.write()?;
    }
    words::answer(&listed.json(), args.json, || listed.lines(&args.server));
    Ok(Exit::Ok.into())
}

/// Starts the server with this id, and compares what it says with its list.
pub async fn listed(service: &Service, id: &str) -> Result<Listed, Refusal> {
    let tool = service.catalog.registry.snapshot().find(id)?;
    let (Some(server), Some(path)) = (
        tool.manifest
            .mcp_server()
            .filter(|_| tool.manifest.mcp_tool().is_none()),
        registry::list_path(&tool.site.manifest),
    ) else {
        let why = "is not an MCP server: name the id of its own manifest, as memory:server";
        return Err(Refusal::new(
            Exit::Caller,
            format!("{} {why}", printable(id)),
        ));
    };
    let user = host::login();
    let tools = service.ready.tools_of_server(&tool, &user).await?;
    let text = mcp::list_text(&tools);
    let mut offered = server.clone();
    let problems = offered.take_list(text.as_bytes(), tool.manifest.namespace());
    let not_offered = problems
        .iter()
        .map(|it| format!("{}: {}", it.pointer, it.message));
    // The file has those that are not offered, too.
    let file = std::fs::read(&path).unwrap_or_default();
    let file: Value = serde_json::from_slice(&file).unwrap_or_default();
    let before = file["tools"].as_array().into_iter().flatten();
    let mut before: BTreeMap<&str, String> = before
        .map(|tool| (tool["name"].as_str().unwrap_or_default(), mcp::digest(tool)))
        .collect();
    let mut listed = Listed {
        path,
        not_offered: not_offered.collect(),
        text,
        count: tools.len(),
        new: Vec::new(),
        changed: Vec::new(),
        gone: Vec::new(),
    };
    for tool in &tools {
        let name = tool["name"].as_str().unwrap_or_default();
        match before.remove(name) {
            None => listed.new.push(name.to_owned()),
            Some(digest) if digest != mcp::digest(tool) => listed.changed.push(name.to_owned()),
            Some(_) => {}
        }
    }
    listed
        .gone
        .extend(before.keys().map(|name| (*name).to_owned()));
    if listed.text.len() > MAX_LIST_BYTES {
        let why = format!("its list of tools has more than {MAX_LIST_BYTES} bytes");
        return Err(Refusal::new(Exit::Tool, why));
    }
    Ok(listed)
}

impl Listed {
    /// Writes the list, whole or not at all.
    pub fn write(&self) -> Result<(), Refusal> {
        let written = words::write_file(&self.path, &self.text, true);
        written.map_err(|e| Refusal::new(Exit::Host, format!("{}: {e}", text::path(&self.path))))
    }

    fn json(&self) -> Value {
        json!({
            "list": self.path, "tools": self.count,
            "notOffered": self.not_offered, "new": self.new, "changed": self.changed, "gone": self.gone,
        })
    }

    pub fn lines(&self, server: &str) -> String {
        let mut lines = format!("{}: {} tools\n", text::path(&self.path), self.count);
        for line in &self.not_offered {
            words::line(&mut lines, "left out", line);
        }
        let parts = [
            ("new", &self.new),
            ("changed", &self.changed),
            ("gone", &self.gone),
        ];
        for (name, tools) in parts {
            if !tools.is_empty() {
                words::line(&mut lines, name, &tools.join(", "));
            }
        }
        if parts.iter().any(|(_, tools)| !tools.is_empty()) {
            lines += &format!("Read it, then: toolhost approve {server} --why TEXT");
        }
        lines
    }
}
