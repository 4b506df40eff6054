//! `toolhost mcp refresh`: starts an MCP server once, behind its layers, and records what it says of
//! its tools.

use crate::base::text::{self, printable};
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::cli::{host, words};
use crate::manifest::mcp;
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
    new: Vec<String>,
    changed: Vec<String>,
    gone: Vec<String>,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
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
    let tools = service.ready.tools_of_server(&tool).await?;
    let before = server.listed.iter().flat_map(|listed| listed.iter());
    let mut before: BTreeMap<&str, &str> = before
        .map(|(name, tool)| (name.as_str(), tool.digest.as_str()))
        .collect();
    let mut listed = Listed {
        path,
        text: mcp::list_text(&tools),
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
            "new": self.new, "changed": self.changed, "gone": self.gone,
        })
    }

    pub fn lines(&self, server: &str) -> String {
        let mut lines = format!("{}: {} tools\n", text::path(&self.path), self.count);
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
