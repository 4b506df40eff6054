//! `new --from`: what a script says of its arguments. An interpreter reads it behind the layers, and
//! nothing of it runs.

use crate::base::text::{self, printable};
use crate::cli::settings::Settings;
use crate::cli::{host, process, words};
use crate::executor::process::examine;
use crate::manifest::Language;
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use std::sync::Arc;

/// Largest script that is read, bytes.
const MAX_READ_BYTES: usize = 4 << 20;

/// Adds what a script says of itself to its manifest. Returns what could not be taken over.
pub fn add(
    settings: &Settings,
    source: &[u8],
    entry: Option<&str>,
    document: &mut Value,
) -> anyhow::Result<String> {
    let word = document["handler"]["language"].as_str();
    let language = Language::from_word(word.unwrap_or_default()).unwrap_or(Language::Wasm);
    let reader = match language {
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
    let mut draft: Value = serde_json::from_str(&answer)?;
    if let Some(why) = draft["refused"].as_str() {
        bail!("no manifest can be drafted: {}", printable(why));
    }
    for name in ["description", "parameters", "execution", "output"] {
        if !words::is_empty(&draft[name]) {
            document[name] = draft[name].take();
        }
    }
    if draft["entryPoint"].is_string() {
        document["handler"]["entryPoint"] = draft["entryPoint"].take();
    }
    let notes = draft["notes"].as_array().into_iter().flatten();
    let notes: Vec<String> = notes.filter_map(Value::as_str).map(printable).collect();
    Ok(notes.join("; "))
}
