//! `toolhost trustgraph export`: the descriptors by which TrustGraph's agents call a tool of this
//! host.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::text;
use crate::broker::Topic;
use crate::transport::broker::{self, Descriptors};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub what: TrustgraphCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum TrustgraphCommand {
    /// Print the descriptors of a tool, and how to load them
    Export(Export),
}

#[derive(Debug, clap::Args)]
pub struct Export {
    /// The tool's id
    pub tool: String,
    /// Name of the service; required if no [[broker]] serves the tool
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(
    settings: &Settings,
    Args {
        what: TrustgraphCommand::Export(args),
    }: Args,
) -> anyhow::Result<ExitCode> {
    let host = host::Tools::load(settings)?;
    let tool = host
        .snapshot
        .find(&args.tool)
        .map_err(|fault| Refusal::new(Exit::Caller, fault.message))?;
    let entry = settings
        .brokers
        .iter()
        .map(|broker| &broker.entry)
        .find(|entry| {
            entry
                .tools
                .iter()
                .any(|it| it.split('@').next() == Some(&tool.manifest.id))
        });
    let (request, response) = match (&args.service, entry) {
        (Some(name), _) => {
            Topic::of_service(name).map_err(|why| Refusal::new(Exit::Caller, why))?
        }
        (None, Some(entry)) => (entry.request.clone(), entry.response.clone()),
        (None, None) => {
            let words = "no [[broker]] of the config file serves this tool: add it to `tools` \
                there, or give --service NAME";
            return Err(Refusal::new(Exit::Caller, words).into());
        }
    };
    let key = args
        .service
        .clone()
        .unwrap_or_else(|| format!("toolhost-{}", request.name()));
    let told = broker::descriptors(&tool.manifest, &key, &request, &response);
    let report = json!({
        "tool-service": { "key": told.service_key, "value": told.service },
        "tool": { "key": told.tool_key, "value": told.tool },
    });
    words::answer(&report, args.json, || render(&told));
    Ok(Exit::Ok.into())
}

/// Shell commands that load the descriptors, each with its document.
fn render(told: &Descriptors) -> String {
    let mut out = String::from(
        "# TrustGraph 2.7.13 is the newest release whose agents call tool services. Restart them \
         after both steps, or put both\n# in one change: an agent that reads the tool before its \
         service ignores the tool.\n",
    );
    for (kind, key, value) in [
        ("tool-service", &told.service_key, &told.service),
        ("tool", &told.tool_key, &told.tool),
    ] {
        let document = text::json(value, true);
        out.push_str(&format!(
            "tg-put-config-item --type {kind} --key {key} --stdin <<'EOF'\n{document}\nEOF\n"
        ));
    }
    out
}
