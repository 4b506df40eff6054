//! `export`: the tools as knowledge units for an index elsewhere, one on each line.

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, list, words};
use crate::manifest::Manifest;
use crate::manifest::schema::Schema;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The tools of this caller (default: your login name), as callers.policy.toml allows
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let host = host::Tools::load(settings)?;
    let mut tools = host.tools();
    list::retain_callable(&host, args.caller.as_deref(), &mut tools);
    for tool in tools {
        words::say_json(&unit(&tool.manifest));
    }
    Ok(Exit::Ok.into())
}

/// One tool. It depends on its manifest alone.
fn unit(manifest: &Manifest) -> Value {
    let schemas = [&manifest.parameters, &manifest.output];
    let described = schemas.into_iter().flatten().flat_map(descriptions);
    let head = [&manifest.display_name, &manifest.description].map(String::clone);
    let text: Vec<String> = head.into_iter().chain(described).collect();
    json!({
        "id": format!("{}@{}", manifest.id, manifest.version),
        "text": text.join("\n"),
        "tags": manifest.tags,
        "extension": {
            "toolId": manifest.id,
            "handler": manifest.raw["handler"],
            "parameters": manifest.parameters.as_ref().map(|schema| &schema.raw),
            "output": manifest.output.as_ref().map(|schema| &schema.raw),
        },
    })
}

/// What a schema says of itself and of its members, a line each.
fn descriptions(schema: &Schema) -> Vec<String> {
    let own = schema.raw["description"].as_str().map(str::to_owned);
    let members = schema.raw["properties"].as_object();
    let members = members.into_iter().flatten().filter_map(|(name, member)| {
        let words = member["description"].as_str()?;
        Some(format!("{name}: {words}"))
    });
    own.into_iter().chain(members).collect()
}
