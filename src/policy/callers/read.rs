//! The text of `callers.policy.toml`: TOML → `Callers`, or every problem in it with line and column.
//!
//! For: `policy/load.rs`. In: the text. Out: `Callers`. Never: passes over a key, a rule for a tool that its caller does
//! not have, or a second entry for one caller.

use super::callbacks::{self, CallbackRule, CallbackUrl};
use super::{Breaker, CallerRule, Callers, LONGEST_NAME, MOST_CALLS, ParameterRule, Takes, ToolLimit, is_name};
use crate::base::text::printable;
use crate::manifest::host::HostPattern;
use crate::manifest::{Code, Problem};
use crate::policy::SecretSource;
use crate::policy::file::{Selector, selector};
use crate::policy::rules::plain_path;
use crate::policy::source::{At, Reader, Table};
use crate::policy::{hosts, secrets};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use toml::de::DeValue;

/// Numbers beyond are not exact in every JSON reader.
const EXACT: f64 = 9_007_199_254_740_992.0;

const KEYS: [&str; 3] = ["caller", "limit", "breaker"];
#[rustfmt::skip]
const CALLER_KEYS: [&str; 10] = [
    "name", "why", "tools", "parameters", "calls_per_minute", "at_once", "role", "act_as", "callbacks", "callback_secret",
];
const PARAMETER_KEYS: [&str; 8] = ["tool", "name", "why", "values", "prefix", "under", "min", "max"];

/// Reads the file.
pub fn parse(source: &str, file: &Path) -> Result<Callers, Vec<Problem>> {
    let mut reader = Reader::new(source);
    let Some(whole) = reader.parse() else { return Err(reader.problems) };
    let top = Table { pointer: String::new(), at: reader.at(0), entries: whole.get_ref() };
    reader.only(&top, &KEYS);
    let entries = reader.tables(&top, "caller", "[[caller]]");
    if entries.is_empty() && reader.problems.is_empty() {
        let mend = "nobody could call anything: write [[caller]] with name = \"*\" and tools = [\"*\"] for everybody, or take the file away";
        reader.schema("/caller", top.at, mend);
    }
    let mut list: Vec<CallerRule> = Vec::new();
    for entry in &entries {
        let rule = caller(&mut reader, entry, file.parent().unwrap_or(Path::new("")));
        if list.iter().any(|other| other.name == rule.name) && !rule.name.is_empty() {
            let message = format!("the caller `{}` is named twice: write one entry", printable(&rule.name));
            reader.complain(Code::Conflict, entry.pointer_to("name"), rule.at, message);
        }
        list.push(rule);
    }
    let limits = limits(&mut reader, &top);
    let breaker = breaker(&mut reader, &top);
    if !reader.problems.is_empty() {
        reader.problems.sort_by_key(|p| (p.line, p.column));
        return Err(reader.problems);
    }
    Ok(Callers { file: file.to_path_buf(), list, limits, breaker })
}

/// `folder`: of the file, where relative paths start.
fn caller(reader: &mut Reader<'_>, entry: &Table<'_, '_>, folder: &Path) -> CallerRule {
    reader.only(entry, &CALLER_KEYS);
    let name =
        reader.said(entry, "name", "write the name by which the caller authenticates, or \"*\" for everybody else");
    let why = reader.said(entry, "why", "say why this caller may call").map(|why| why.value).unwrap_or_default();
    let (name, at) = name.map_or((String::new(), entry.at), |name| (name.value, name.at));
    good_name(reader, entry.pointer_to("name"), at, &name);
    let tools = tools(reader, entry);
    let parameters = parameters(reader, entry, &tools);
    let mut act_as = Vec::new();
    for (pointer, other) in reader.texts(entry, "act_as") {
        good_name(reader, pointer, other.at, &other.value);
        act_as.push(other.value);
    }
    let role = reader.text(entry, "role");
    if let Some(role) = role.as_ref().filter(|role| role.value != "operator") {
        reader.schema(entry.pointer_to("role"), role.at, "`role` is \"operator\", or is left out");
    }
    let (callbacks, callback_secret) = callbacks(reader, entry, folder);
    CallerRule {
        name,
        why,
        tools,
        parameters,
        calls_per_minute: count(reader, entry, "calls_per_minute"),
        at_once: count(reader, entry, "at_once"),
        operator: role.is_some(),
        act_as,
        callbacks,
        callback_secret,
        at,
    }
}

/// Where the caller may be told of an end, and what that is signed with: both, or neither.
fn callbacks(reader: &mut Reader<'_>, of: &Table<'_, '_>, folder: &Path) -> (Vec<CallbackRule>, Option<SecretSource>) {
    let mut found: Vec<CallbackRule> = Vec::new();
    let tables = reader.tables(of, "callbacks", "{ url = \"https://hooks.example.com/toolhost\", why = \"…\" }");
    if tables.len() > callbacks::MOST {
        let message = format!("more than {} entries: name what they have in common", callbacks::MOST);
        reader.schema(of.pointer_to("callbacks"), of.at, message);
    }
    for table in tables.iter().take(callbacks::MOST) {
        let mends = ["write https://host[:port]/path", "say why this caller is told there"];
        let named = reader.reasoned_with(table, "url", &["ranges"], mends);
        let ranges = hosts::ranges(reader, table);
        let (Some((url, why)), Some(ranges)) = (named, ranges) else { continue };
        let pointer = table.pointer_to("url");
        let read = CallbackUrl::parse(&url.value).and_then(|read| {
            let pattern = HostPattern { host: read.host.clone(), port: Some(read.port) };
            match (&read.query, hosts::unreachable(&pattern, &ranges)) {
                (Some(_), _) => Err("an entry has no query: calls bring theirs".to_owned()),
                (None, Some(message)) => Err(message),
                (None, None) => Ok(read),
            }
        });
        match read {
            Err(why) => reader.schema(pointer, url.at, format!("`{}`: {why}", printable(&url.value))),
            Ok(read) if found.iter().any(|rule| rule.url == read) => {
                reader.complain(Code::Conflict, pointer, url.at, format!("`{read}` is named twice"));
            }
            Ok(url) => found.push(CallbackRule { url, ranges, why }),
        }
    }
    let written = reader.text(of, "callback_secret");
    let at = written.as_ref().map_or(of.at, |written| written.at);
    let secret = written.and_then(|written| {
        let read = secrets::source(&written.value, folder);
        read.map_err(|why| reader.schema(of.pointer_to("callback_secret"), written.at, why)).ok()
    });
    match (of.get("callbacks").is_some(), of.get("callback_secret").is_some()) {
        (true, false) => {
            let mend = "`callback_secret` is missing: say what messages are signed with, \"file:PATH\" (32 random bytes as text, say)";
            reader.schema(&of.pointer, of.at, mend);
        }
        (false, true) => {
            let mend = "`callback_secret` signs nothing: there are no `callbacks`";
            reader.schema(of.pointer_to("callback_secret"), at, mend);
        }
        _ => {}
    }
    (found, secret)
}

fn good_name(reader: &mut Reader<'_>, pointer: String, at: At, name: &str) {
    if !name.is_empty() && !is_name(name) {
        let message = format!(
            "the name of a caller is at most {LONGEST_NAME} plain characters without spaces, as it authenticates (alice, uid:1000); \"*\" stands alone"
        );
        reader.schema(pointer, at, message);
    }
}

fn tools(reader: &mut Reader<'_>, entry: &Table<'_, '_>) -> Vec<Selector> {
    let mut found = Vec::new();
    for (pointer, tool) in reader.texts(entry, "tools") {
        match selector(&tool.value) {
            Ok(selector) => found.push(selector),
            Err(message) => reader.schema(pointer, tool.at, message),
        }
    }
    found
}

fn parameters(reader: &mut Reader<'_>, entry: &Table<'_, '_>, tools: &[Selector]) -> Vec<ParameterRule> {
    let mut found = Vec::new();
    let shape = "{ tool = \"ns:name\", name = \"PARAMETER\", under = \"folder/\", why = \"…\" }";
    for table in reader.tables(entry, "parameters", shape) {
        reader.only(&table, &PARAMETER_KEYS);
        let tool = reader.said(&table, "tool", "name the tool: an exact id, \"ns:*\" or \"*\"");
        let name = reader.said(&table, "name", "name the parameter, as the tool's manifest does");
        let why = reader.said(&table, "why", "say why this value is allowed");
        let takes = takes(reader, &table);
        let (Some(tool), Some(name), Some(why), Some(takes)) = (tool, name, why, takes) else { continue };
        match selector(&tool.value) {
            Err(message) => reader.schema(table.pointer_to("tool"), tool.at, message),
            // A misspelt id would leave the tool that is meant without its rule.
            Ok(selector) if !tools.iter().any(|own| holds(own, &selector)) => {
                let message = format!(
                    "`{}` is none of this caller's `tools`: write the same id there, or mend it here",
                    printable(&tool.value)
                );
                reader.schema(table.pointer_to("tool"), tool.at, message);
            }
            Ok(tool) => found.push(ParameterRule { tool, name: name.value, takes, why: why.value, at: name.at }),
        }
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

fn takes(reader: &mut Reader<'_>, table: &Table<'_, '_>) -> Option<Takes> {
    let kinds = ["values", "prefix", "under"].into_iter().filter(|key| table.get(key).is_some());
    let range = table.get("min").is_some() || table.get("max").is_some();
    if kinds.count() + usize::from(range) != 1 {
        let message = "say what the value may be: one of `values`, `prefix`, `under`, or `min` and `max`";
        reader.schema(&table.pointer, table.at, message);
        return None;
    }
    if range {
        let (min, max) = (number(reader, table, "min"), number(reader, table, "max"));
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            reader.schema(table.pointer_to("min"), table.at, "`min` is above `max`: no number fits");
        }
        return Some(Takes::Range { min, max });
    }
    if let Some(prefix) = reader.text(table, "prefix") {
        return Some(Takes::Prefix(prefix.value));
    }
    if let Some(folder) = reader.text(table, "under") {
        return match plain_path(folder.value.trim_end_matches('/')) {
            Ok(path) => Some(Takes::Under(path.to_string_lossy().into_owned())),
            Err(message) => {
                reader.schema(table.pointer_to("under"), folder.at, message);
                None
            }
        };
    }
    let mut values = Vec::new();
    for (pointer, value) in reader.items(table, "values") {
        match plain_value(value.get_ref()) {
            Some(value) => values.push(value),
            None => {
                let at = reader.at(value.span().start);
                reader.schema(pointer, at, "a value is a text, a number, true or false");
            }
        }
    }
    if values.is_empty() {
        reader.schema(table.pointer_to("values"), table.at, "`values` has no value: nothing could be called");
        return None;
    }
    Some(Takes::Values(values))
}

fn plain_value(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::from(text.as_ref())),
        DeValue::Boolean(truth) => Some(Value::from(*truth)),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from),
        DeValue::Float(number) => number.as_str().parse::<f64>().ok().filter(|n| n.is_finite()).map(Value::from),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn number(reader: &mut Reader<'_>, table: &Table<'_, '_>, key: &str) -> Option<f64> {
    let value = table.get(key)?;
    let number = plain_value(value.get_ref()).and_then(|value| value.as_f64()).filter(|n| n.abs() <= EXACT);
    if number.is_none() {
        let at = reader.at(value.span().start);
        reader.schema(table.pointer_to(key), at, format!("`{key}` is a number of at most 2^53"));
    }
    number
}

/// A whole number of at least 1.
fn count(reader: &mut Reader<'_>, table: &Table<'_, '_>, key: &str) -> Option<u32> {
    let number = reader.number(table, key)?;
    let good = u32::try_from(number.value).ok().filter(|count| (1..=MOST_CALLS).contains(count));
    if good.is_none() {
        let message =
            format!("`{key}` is from 1 to {MOST_CALLS}; leave it out for no limit, and the tools out for none");
        reader.schema(table.pointer_to(key), number.at, message);
    }
    good
}

fn limits(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Vec<ToolLimit> {
    let mut found: Vec<ToolLimit> = Vec::new();
    for table in reader.tables(top, "limit", "[[limit]]") {
        reader.only(&table, &["tools", "why", "calls_per_minute", "at_once"]);
        let why =
            reader.said(&table, "why", "say why these tools are limited").map(|why| why.value).unwrap_or_default();
        let tools = tools(reader, &table);
        let (calls_per_minute, at_once) = (count(reader, &table, "calls_per_minute"), count(reader, &table, "at_once"));
        if tools.is_empty() || calls_per_minute.is_none() && at_once.is_none() {
            let message = "a limit has `tools`, and `calls_per_minute` or `at_once`";
            reader.schema(&table.pointer, table.at, message);
        }
        if let Some(twice) = tools.iter().find(|tool| found.iter().any(|other| other.tools.contains(tool))) {
            let message = format!("`{}` is limited twice: write one entry", printable(&twice.text()));
            reader.complain(Code::Conflict, table.pointer_to("tools"), table.at, message);
        }
        found.push(ToolLimit { tools, why, calls_per_minute, at_once });
    }
    found
}

fn breaker(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Breaker {
    let usual = Breaker::default();
    let Some(table) = reader.table(top, "breaker") else { return usual };
    reader.only(&table, &["failures", "wait_seconds", "why"]);
    reader.said(&table, "why", "say why these numbers");
    Breaker {
        failures: count(reader, &table, "failures").unwrap_or(usual.failures),
        wait: count(reader, &table, "wait_seconds").map_or(usual.wait, |seconds| Duration::from_secs(seconds.into())),
    }
}
