//! The arguments of a script as the person names them: `text`, `n:integer`, `on:boolean?`.
//!
//! For: `new --script`. In: words of the command line. Out: a JSON Schema, and arguments for a first try.
//! Never: a guess: a word that says no type is a text, as it is on a command line.

use crate::base::{suggest, text};
use anyhow::bail;
use serde_json::{Map, Value, json};

const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    name: String,
    kind: &'static str,
    required: bool,
}

impl Parameter {
    pub fn read(words: &[String]) -> anyhow::Result<Vec<Parameter>> {
        let mut found: Vec<Parameter> = Vec::new();
        for word in words {
            let shown = text::printable(&text::head(word, 80));
            let (rest, required) = word.strip_suffix('?').map_or((word.as_str(), true), |rest| (rest, false));
            let (name, kind) = rest.split_once(':').unwrap_or((rest, "string"));
            let Some(kind) = TYPES.into_iter().find(|known| *known == kind) else {
                let (near, kind) = (suggest::hint(kind, TYPES), text::printable(kind));
                bail!("--parameter {shown}: '{kind}' is not a type{near}; known: {}", TYPES.join(", "));
            };
            if name.is_empty() || name.contains(['=', '?']) || !text::is_printable(name) {
                bail!("--parameter {shown}: write NAME, NAME:integer or NAME:integer?");
            }
            if found.iter().any(|known| known.name == name) {
                bail!("--parameter {shown}: that name is given twice");
            }
            found.push(Parameter { name: name.to_owned(), kind, required });
        }
        Ok(found)
    }

    /// An argument for a first try, as a word of a shell.
    fn example(&self) -> String {
        let value = match self.kind {
            "integer" | "number" => "1",
            "boolean" => "true",
            "array" => "[]",
            "object" => "{}",
            _ => "text",
        };
        crate::cli::words::quoted(&format!("{}={value}", self.name))
    }
}

/// The schema of the arguments. Where none are named any are taken.
pub fn schema(parameters: &[Parameter]) -> Value {
    if parameters.is_empty() {
        return json!({ "type": "object", "properties": {}, "additionalProperties": true });
    }
    let about = |p: &Parameter| {
        let description = format!("Say here, for a model, what {} is.", p.name);
        (p.name.clone(), json!({ "type": p.kind, "description": description }))
    };
    let required: Vec<&String> = parameters.iter().filter(|p| p.required).map(|p| &p.name).collect();
    let properties: Map<String, Value> = parameters.iter().map(about).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Words of a shell for a first try: an argument for each required parameter.
pub fn example(parameters: &[Parameter]) -> String {
    let pairs: Vec<String> = parameters.iter().filter(|p| p.required).map(Parameter::example).collect();
    if pairs.is_empty() { "--input '{}'".to_owned() } else { pairs.join(" ") }
}
