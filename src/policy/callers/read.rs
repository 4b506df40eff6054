//! The text of `callers.policy.toml`: TOML → `Callers`, or every problem in it with line and column.

use super::callbacks::{CallbackRule, CallbackUrl};
use super::{AllowedValue, Breaker, CallerRule, Callers, LONGEST_NAME, ParameterRule, ToolLimit, is_name};
use crate::base::text::printable;
use crate::manifest::Problem;
use crate::manifest::host::HostPattern;
use crate::policy::document::{Document, Schema};
use crate::policy::file::{Selector, selector};
use crate::policy::files::plain_path;
use crate::policy::{hosts, secrets};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

/// JSON Schema (2020-12) of the file, read as TOML.
pub fn schema() -> &'static Value {
    static PUBLISHED: LazyLock<Value> =
        LazyLock::new(|| serde_json::from_str(include_str!("../callers.schema.json")).expect("the schema is JSON"));
    &PUBLISHED
}

#[jsonschema::validator(path = "src/policy/callers.schema.json", methods = { is_valid = false, validate = false })]
struct Shape;

#[derive(Deserialize)]
struct ParameterEntry {
    tool: String,
    name: String,
    why: String,
    values: Option<Vec<Value>>,
    prefix: Option<String>,
    under: Option<String>,
    min: Option<f64>,
    max: Option<f64>,
}

#[derive(Deserialize)]
struct CallbackEntry {
    url: String,
    why: String,
}

/// Reads the file.
pub fn parse(source: &str, file: &Path) -> Result<Callers, Vec<Problem>> {
    let mut document =
        Document::parse(source, &Schema { published: schema, errors: |value| Shape::iter_errors(value) })?;
    let it = &mut document;
    let mut list: Vec<CallerRule> = Vec::new();
    for (pointer, entry) in it.list("/caller") {
        let rule = caller(it, &pointer, entry, file.parent().unwrap_or(Path::new("")));
        if list.iter().any(|other| other.name == rule.name) {
            let message = format!("the caller `{}` is named twice: write one entry", printable(&rule.name));
            it.conflict(&format!("{pointer}/name"), message);
        }
        list.push(rule);
    }
    let limits = limits(it);
    let usual = Breaker::default();
    let breaker = Breaker {
        failures: it.get("/breaker/failures").unwrap_or(usual.failures),
        wait: it.get("/breaker/wait_seconds").map_or(usual.wait, Duration::from_secs),
    };
    let source = std::mem::take(&mut it.value);
    let problems = document.finish();
    match problems.is_empty() {
        true => Ok(Callers { file: file.to_path_buf(), list, limits, breaker, source }),
        false => Err(problems),
    }
}

/// `folder`: of the file, where relative paths start.
fn caller(document: &mut Document<'_>, pointer: &str, rule: CallerRule, folder: &Path) -> CallerRule {
    let at = |key: &str| format!("{pointer}/{key}");
    let names = rule.act_as.iter().enumerate().map(|(index, name)| (format!("{}/{index}", at("act_as")), name));
    for (pointer, name) in names.chain([(at("name"), &rule.name)]) {
        if !is_name(name) {
            let message = format!(
                "the name of a caller is at most {LONGEST_NAME} plain characters without spaces, as it authenticates (alice, uid:1000); \"*\" stands alone"
            );
            document.fault(&pointer, message);
        }
    }
    let tools = tools(document, &at("tools"));
    let parameters = parameters(document, &at("parameters"), &tools);
    let callbacks = callbacks(document, &at("callbacks"));
    let secret = document.get(&at("callback_secret")).map(|secret: String| secrets::source(&secret, folder));
    let callback_secret = secret.and_then(|secret| document.parsed(&at("callback_secret"), secret));
    let operator = document.value.pointer(&at("role")).is_some();
    CallerRule { tools, parameters, callbacks, callback_secret, operator, at: document.at(&at("name")), ..rule }
}

/// Where the caller may be told of an end.
fn callbacks(document: &mut Document<'_>, list: &str) -> Vec<CallbackRule> {
    let mut found: Vec<CallbackRule> = Vec::new();
    for (entry, CallbackEntry { url, why }) in document.list(list) {
        let ranges = hosts::ranges(document, &entry);
        let pointer = format!("{entry}/url");
        let read = CallbackUrl::parse(&url).and_then(|read| {
            let pattern = HostPattern { host: read.host.clone(), port: Some(read.port) };
            match (&read.query, hosts::unreachable(&pattern, &ranges)) {
                (Some(_), _) => Err("an entry has no query: calls bring theirs".to_owned()),
                (None, Some(message)) => Err(message),
                (None, None) => Ok(read),
            }
        });
        let read = read.map_err(|why| format!("`{}`: {why}", printable(&url)));
        let Some(url) = document.parsed(&pointer, read) else { continue };
        if found.iter().any(|rule| rule.url == url) {
            document.conflict(&pointer, format!("`{url}` is named twice"));
        }
        found.push(CallbackRule { url, ranges, why });
    }
    found
}

fn tools(document: &mut Document<'_>, list: &str) -> Vec<Selector> {
    let written = document.list::<String>(list).into_iter();
    written.filter_map(|(pointer, tool)| document.parsed(&pointer, selector(&tool))).collect()
}

fn parameters(document: &mut Document<'_>, list: &str, tools: &[Selector]) -> Vec<ParameterRule> {
    let mut found = Vec::new();
    for (pointer, entry) in document.list::<ParameterEntry>(list) {
        let place = format!("{pointer}/tool");
        let tool = document.parsed(&place, selector(&entry.tool));
        // A misspelt id would leave the tool that is meant without its rule.
        if tool.as_ref().is_some_and(|tool| !tools.iter().any(|own| holds(own, tool))) {
            let shown = printable(&entry.tool);
            let message =
                format!("`{shown}` is none of this caller's `tools`: write the same id there, or mend it here");
            document.fault(&place, message);
        }
        let (name, why) = (entry.name.clone(), entry.why.clone());
        let (Some(tool), Some(takes)) = (tool, takes(document, &pointer, entry)) else { continue };
        found.push(ParameterRule { tool, name, takes, why, at: document.at(&format!("{pointer}/name")) });
    }
    found
}

/// Whether some tool that `other` names is one of `own`.
fn holds(own: &Selector, other: &Selector) -> bool {
    match (own, other) {
        (Selector::Any, _) | (_, Selector::Any) => true,
        (Selector::Namespace(a), Selector::Namespace(b)) => a == b,
        (Selector::Exact(id), selector) | (selector, Selector::Exact(id)) => selector.matches(id),
    }
}

fn takes(document: &mut Document<'_>, pointer: &str, entry: ParameterEntry) -> Option<AllowedValue> {
    match entry {
        ParameterEntry { values: Some(values), .. } => Some(AllowedValue::Values(values)),
        ParameterEntry { prefix: Some(prefix), .. } => Some(AllowedValue::Prefix(prefix)),
        ParameterEntry { under: Some(folder), .. } => {
            let path = document.parsed(&format!("{pointer}/under"), plain_path(folder.trim_end_matches('/')))?;
            Some(AllowedValue::Under(path.to_string_lossy().into_owned()))
        }
        ParameterEntry { min, max, .. } => {
            if min.zip(max).is_some_and(|(min, max)| min > max) {
                document.fault(&format!("{pointer}/min"), "`min` is above `max`: no number fits");
            }
            Some(AllowedValue::Range { min, max })
        }
    }
}

fn limits(document: &mut Document<'_>) -> Vec<ToolLimit> {
    let mut found: Vec<ToolLimit> = Vec::new();
    for (pointer, limit) in document.list::<ToolLimit>("/limit") {
        let place = format!("{pointer}/tools");
        let tools = tools(document, &place);
        if let Some(twice) = tools.iter().find(|tool| found.iter().any(|other| other.tools.contains(tool))) {
            document.conflict(&place, format!("`{}` is limited twice: write one entry", printable(&twice.text())));
        }
        found.push(ToolLimit { tools, ..limit });
    }
    found
}
