//! `new --from`: what a script says of its arguments, or the document of an API of an operation. An
//! interpreter reads it behind the layers, and nothing of it runs.

use crate::base::text::{self, printable, printable_block};
use crate::cli::settings::Settings;
use crate::cli::{host, process, words};
use crate::executor::process::examine;
use crate::manifest::Language;
use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

/// Largest script that is read, bytes.
const MAX_READ_BYTES: usize = 4 << 20;

/// What was read beside the manifest.
#[derive(Default)]
pub struct Draft {
    /// The script that makes the request of an operation.
    pub script: Option<String>,
    /// What could not be taken over.
    notes: String,
    /// What its policy grants.
    grants: String,
}

impl Draft {
    /// What is left to do, and what the operator approves.
    pub fn say(&self, id: &str, out: &mut dyn Write) -> std::io::Result<()> {
        if !self.notes.is_empty() {
            writeln!(out, "Not taken over: {}.", self.notes)?;
        }
        if !self.grants.is_empty() {
            let audit = words::command(&format!("audit {id} --suggest-policy"));
            writeln!(out, "What the operator approves: {audit}\n{}", self.grants)?;
        }
        Ok(())
    }
}

/// A request of an API. It has texts alone, so that its JSON is Python of the same value.
#[derive(Serialize, Deserialize)]
struct Operation {
    method: String,
    url: String,
    /// Each argument's place in the request, and its name there.
    places: BTreeMap<String, [String; 2]>,
}

/// Adds what a script, or an API of an operation (`is_api`), says of itself to its manifest.
pub fn add(
    settings: &Settings,
    source: &[u8],
    is_api: bool,
    entry: Option<&str>,
    document: &mut Value,
) -> anyhow::Result<Draft> {
    let word = document["handler"]["language"].as_str();
    let language = Language::from_word(word.unwrap_or_default()).unwrap_or(Language::Wasm);
    let reader = match language {
        _ if is_api => include_str!("draft_api.py"),
        Language::Python => include_str!("draft.py"),
        Language::Nodejs | Language::Bun => include_str!("draft.cjs"),
        Language::Wasm | Language::Bash => {
            bail!("a module does not name its arguments: use --script")
        }
    };
    if source.len() > MAX_READ_BYTES {
        bail!("it is larger than {MAX_READ_BYTES} bytes: use --script");
    }
    let text = text::decode(source).map_err(|why| anyhow!("it is {why}"))?;
    let found = host::discovered(settings).runtimes;
    let runtime = found.get(&language).with_context(|| {
        format!(
            "this machine has no {} to read it: use --script",
            language.name()
        )
    })?;
    let launchers = Arc::new(host::launchers(settings)?);
    let input = json!({ "text": text, "entry": entry }).to_string();
    let reading = examine::run_source(&launchers, runtime, reader, input.as_bytes());
    let answer = process::single_threaded_runtime()?.block_on(reading);
    let answer = answer.map_err(|why| anyhow!("it could not be read: {}", printable(&why)))?;
    let mut draft: Value = serde_json::from_str(&answer).map_err(|why| {
        anyhow!("it has too much, or no text that can be kept ({why}): use --script")
    })?;
    if let Some(why) = draft["refused"].as_str() {
        bail!("no manifest can be drafted: {}", printable_block(why));
    }
    for name in [
        "description",
        "parameters",
        "execution",
        "output",
        "securityContext",
    ] {
        if !words::is_empty(&draft[name]) {
            document[name] = draft[name].take();
        }
    }
    if draft["entryPoint"].is_string() {
        document["handler"]["entryPoint"] = draft["entryPoint"].take();
    }
    let operation: Option<Operation> = serde_json::from_value(draft["operation"].take())?;
    let script = operation.map(|operation| {
        let constant = format!("OPERATION = {:#}", json!(operation));
        include_str!("request.py").replacen("OPERATION = {}", &constant, 1)
    });
    let [notes, grants] = ["notes", "grants"].map(|name| {
        let texts = draft[name].as_array().into_iter().flatten();
        let texts: Vec<String> = texts.filter_map(Value::as_str).map(printable).collect();
        texts.join("; ")
    });
    Ok(Draft {
        script,
        notes,
        grants,
    })
}
