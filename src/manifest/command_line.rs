//! Command lines: how the arguments of a call become the words after its script, for a script that
//! reads its command line and no JSON.

use super::reader::Reader;
use super::schema::Schema;
use crate::base::problem::Code;
use crate::base::text;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Longest word, bytes: MAX_ARG_STRLEN of Linux without the NUL.
const MAX_WORD_BYTES: usize = 128 * 1024 - 1;
/// Longest command line, bytes: half of what Linux gives a process whose stack has 8 MiB.
const MAX_LINE_BYTES: usize = 1 << 20;
/// What each word takes beside its text: a NUL and a pointer.
const WORD_COST: usize = 9;

/// `execution.input: "argv"`. Every parameter is in exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommandLine {
    /// Parameters and their flags (`--name`, `-n`).
    pub flags: BTreeMap<String, String>,
    /// Parameters whose values stand alone, in this order.
    pub positional: Vec<String>,
    /// The parameter whose text is read from stdin.
    pub stdin: Option<String>,
    /// Parameters that are true or false alone: their flags stand without a value.
    pub switches: BTreeSet<String>,
}

/// What the program of one call gets.
#[derive(Debug, Default)]
pub struct CommandInput {
    pub words: Vec<String>,
    pub stdin: String,
}

impl CommandLine {
    /// `has_line`: whether the tool runs a script that can have a command line.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        has_line: bool,
        parameters: Option<&Schema>,
    ) -> Option<CommandLine> {
        if reader.value["execution"]["input"] != "argv" {
            return None;
        }
        if !has_line {
            let message = "only a script in Python, Node.js or Bun without `entryPoint` has a \
                command line: leave this out";
            reader.error(Code::Schema, "/execution/input", message);
        }
        if parameters.is_some_and(|schema| schema.may_hide) {
            let message = "other users of this machine can read command lines, so no parameter of \
                such a tool may be secret (x-secret, writeOnly): let the script read it as JSON, \
                or grant a secret by policy";
            reader.error(Code::Security, "/execution/input", message);
        }
        let mut line = CommandLine {
            flags: reader.get("/execution/flags").unwrap_or_default(),
            positional: reader.get("/execution/positional").unwrap_or_default(),
            stdin: reader.get("/execution/stdin"),
            switches: BTreeSet::new(),
        };
        let declared = parameters.and_then(|schema| schema.raw["properties"].as_object());
        let switches = declared.into_iter().flatten().filter(|it| is_switch(it.1));
        line.switches = switches.map(|it| it.0.clone()).collect();
        let mut left: BTreeSet<String> = declared
            .into_iter()
            .flat_map(|it| it.keys().cloned())
            .collect();
        for name in line.names() {
            if !left.remove(name) {
                let message = format!(
                    "'{}' is not a parameter, or has two places: declare it, and name it once",
                    text::head(name, 80)
                );
                reader.error(Code::Schema, "/execution", message);
            }
        }
        line.add_usual_flags(reader, left);
        Some(line)
    }

    /// Gives each parameter without a place its usual flag. A flag that is not one would make its
    /// value a flag: a parameter "" would become `--VALUE`.
    fn add_usual_flags(&mut self, reader: &mut Reader<'_>, names: BTreeSet<String>) {
        let mut problems = Vec::new();
        for name in names {
            if !is_flag_name(&name) {
                let words = "is not the name of a flag (letters and digits, and after the first \
                    of these '.', '_' and '-'): give it a flag in `flags`";
                problems.push(format!("'{}' {words}", text::head(&name, 80)));
            }
            let flag = format!("--{name}");
            self.flags.insert(name, flag);
        }
        let mut known = BTreeSet::new();
        let shared = self.flags.iter().filter(|it| !known.insert(it.1));
        problems.extend(shared.map(|(name, _)| {
            let name = text::head(name, 80);
            format!("'{name}' has the flag of another parameter: give it its own in `flags`")
        }));
        for problem in problems {
            reader.error(Code::Schema, "/execution", problem);
        }
    }

    /// The parameters that have a place.
    fn names(&self) -> impl Iterator<Item = &String> {
        let alone = self.positional.iter().chain(&self.stdin);
        self.flags.keys().chain(alone)
    }

    /// The words and the stdin of one call. A value is never read as a flag: it stands in the word
    /// of its flag, or after `--`.
    pub fn input(&self, arguments: &Value) -> Result<CommandInput, String> {
        let placed = self.names().filter(|name| arguments.get(*name).is_some());
        if placed.count() < arguments.as_object().map_or(0, Map::len) {
            return Err("an argument has no place on the command line: leave it out".to_owned());
        }
        let mut words = Vec::new();
        for (name, flag) in &self.flags {
            match &arguments[name] {
                Value::Bool(false) => {}
                Value::Bool(true) if self.switches.contains(name) => words.push(flag.clone()),
                value => {
                    let joint = if flag.len() > 2 { "=" } else { "" };
                    let texts = texts(value);
                    let mut all = texts.iter();
                    if joint.is_empty() && all.any(|it| it.is_empty() || it.starts_with('=')) {
                        return Err(format!(
                            "'{name}' is empty, or begins with '=', which no value of {flag} can: \
                            give it another, or leave it out"
                        ));
                    }
                    words.extend(texts.iter().map(|text| format!("{flag}{joint}{text}")));
                }
            }
        }
        // An empty list is given: it has its place, and no words.
        let positional = self.positional.iter();
        let mut rest = positional.skip_while(|name| !arguments[*name].is_null());
        if rest.any(|name| !texts(&arguments[name]).is_empty()) {
            let names = self.positional.join(", ");
            return Err(format!(
                "these stand in this order: give those in front, too: {names}"
            ));
        }
        let alone: Vec<String> = self
            .positional
            .iter()
            .flat_map(|name| texts(&arguments[name]))
            .collect();
        if alone.iter().any(|word| word.starts_with('-')) {
            words.push("--".to_owned());
        }
        words.extend(alone);
        check(&words)?;
        let stdin = self.stdin.iter().flat_map(|name| texts(&arguments[name]));
        Ok(CommandInput {
            words,
            stdin: stdin.collect(),
        })
    }
}

/// Whether `--` and this name have the form that the schema asks of `flags`.
fn is_flag_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|it| it.is_ascii_alphanumeric())
        && bytes.all(|it| it.is_ascii_alphanumeric() || b"._-".contains(&it))
}

/// The texts of a value: one for each entry of a list. What is not a text is written as JSON.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(plain).collect(),
        value => vec![plain(value)],
    }
}

fn plain(value: &Value) -> String {
    // `5.0` and `1e16` are integers of a schema, and no program's.
    let real = value.as_f64().filter(|_| value.is_f64());
    match real.filter(|it| it.fract() == 0.0) {
        Some(whole) => format!("{whole:.0}"),
        None => value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// Whether a parameter can only be true, false or null.
fn is_switch(schema: &Value) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().all(|it| it == "boolean" || it == "null"),
        one => one == "boolean",
    }
}

fn check(words: &[String]) -> Result<(), String> {
    let is_long = |word: &String| word.len() > MAX_WORD_BYTES;
    let all: usize = words.iter().map(|word| word.len() + WORD_COST).sum();
    if all > MAX_LINE_BYTES
        || words
            .iter()
            .any(|word| is_long(word) || word.contains('\0'))
    {
        return Err(format!(
            "the arguments are too long for a command line, or hold a NUL: each may have \
            {MAX_WORD_BYTES} bytes with its flag, and all together {MAX_LINE_BYTES}"
        ));
    }
    Ok(())
}
