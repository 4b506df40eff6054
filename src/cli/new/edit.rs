//! `new --edit`: walks through the fields of a manifest and checks each as it is given. The file is
//! written once, when all were answered.

use super::ids;
use crate::base::json::{self, Dialect, escape_segment};
use crate::base::text;
use crate::cli::settings::Settings;
use crate::cli::words;
use crate::manifest::{self, Manifest};
use crate::registry::{self, Tool};
use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value, json};
use std::io::{BufRead, Read};

/// Longest answer, bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

pub fn run(settings: &Settings, tool: &Tool) -> anyhow::Result<()> {
    let path = &tool.site.manifest;
    let before = std::fs::read_to_string(path)?;
    let document = json::parse(before.as_bytes(), Dialect::Strict)
        .map_err(|_| anyhow!("its comments would be lost: edit it by hand"))?;
    let mut value = document.value.clone();
    for (_, schema) in parameters(&mut value) {
        schema.entry("description").or_insert(json!(""));
    }
    let mut pointers = Vec::new();
    fields(&value, String::new(), &mut pointers);
    for pointer in pointers {
        ask(settings, tool, &mut value, &pointer)?;
    }
    // What was added to be asked for, and was not answered, is taken out.
    for (name, schema) in parameters(&mut value) {
        let old = &document.value["parameters"]["properties"][name]["description"];
        if old.is_null() && schema["description"] == "" {
            schema.shift_remove("description");
        }
    }
    if value == document.value {
        words::say("Nothing was changed, so nothing was written.");
        return Ok(());
    }
    if std::fs::read_to_string(path)? != before {
        bail!("it was changed meanwhile, so nothing was written");
    }
    words::write_file(path, &format!("{value:#}\n"), true)?;
    words::say("Written.");
    Ok(())
}

/// The parameters whose schemas are objects.
fn parameters(manifest: &mut Value) -> impl Iterator<Item = (&String, &mut Map<String, Value>)> {
    let all = manifest.pointer_mut("/parameters/properties");
    let all = all.and_then(Value::as_object_mut).into_iter().flatten();
    all.filter_map(|(name, schema)| Some((name, schema.as_object_mut()?)))
}

/// The pointers of all values that hold no others by name.
fn fields(value: &Value, at: String, pointers: &mut Vec<String>) {
    match value.as_object().filter(|members| !members.is_empty()) {
        Some(members) => members.iter().for_each(|(name, member)| {
            fields(member, format!("{at}/{}", escape_segment(name)), pointers);
        }),
        None => pointers.push(at),
    }
}

/// Refuses a value by which this manifest, or another one, would not be loaded.
fn check(
    settings: &Settings,
    tool: &Tool,
    pointer: &str,
    manifest: &Manifest,
) -> anyhow::Result<()> {
    let path = &tool.site.manifest;
    match (pointer, manifest.handler.script()) {
        ("/toolId" | "/version", _) => {
            let mut others = ids::tools_with(settings, &manifest.id)?;
            // Versions of one tool lie beside each other.
            others.retain(|other| {
                let place = &other.site.manifest;
                let is_beside = place.parent() == path.parent();
                place != path && (!is_beside || other.manifest.version == manifest.version)
            });
            ids::check_free(&manifest.id, &others)
        }
        // A linked folder has scripts of its own.
        ("/handler/scriptPath", Some(script)) if tool.site.links.is_empty() => {
            registry::scripts::resolve(&settings.scripts, path.parent(), &script.path)
                .map(drop)
                .map_err(|fault| anyhow!(fault.person.unwrap_or(fault.message)))
        }
        _ => Ok(()),
    }
}

/// Asks for one field until its answer fits.
fn ask(
    settings: &Settings,
    tool: &Tool,
    manifest: &mut Value,
    pointer: &str,
) -> anyhow::Result<()> {
    loop {
        let old = manifest.pointer(pointer).context("a field")?;
        let question = format!("{pointer}: {old} (Enter keeps it)");
        words::say(&text::printable(&question));
        let mut answer = String::new();
        let mut input = std::io::stdin().lock().take(MAX_ANSWER_BYTES);
        input.read_line(&mut answer)?;
        if !answer.ends_with('\n') {
            bail!("the answers ended at {pointer}, so nothing was written");
        }
        let answer = answer.trim();
        if answer.is_empty() {
            return Ok(());
        }
        // What is not a text is given as JSON.
        let read = serde_json::from_str(answer).ok();
        let new = read.filter(|_| !old.is_string()).unwrap_or(json!(answer));
        let mut changed = manifest.clone();
        *changed.pointer_mut(pointer).context("a field")? = new;
        let read = manifest::read(changed.to_string().as_bytes());
        let checked = read.map_err(|problems| anyhow!(problems[0].message.clone()));
        match checked.and_then(|(manifest, _)| check(settings, tool, pointer, &manifest)) {
            Ok(()) => {
                *manifest = changed;
                return Ok(());
            }
            Err(why) => words::note(&text::printable(&why.to_string())),
        }
    }
}
