//! Arguments as callers send them: a value, JSON text, or texts by name. Text is one strict JSON
//! document: a duplicate key or NaN is refused. `manifest::arguments` checks them against the
//! schema.

use crate::base::{json, text};
use crate::quantity::{LARGE_TEXT_BYTES, MAX_TREE_BYTES};
use crate::{fault, manifest};
use fault::{Fault, Kind};
use manifest::arguments::ArgumentSyntax;
use manifest::{Alias, Handler};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, PartialEq)]
pub enum Arguments {
    Value(Value),
    /// One JSON document; empty text is an empty object.
    Text(String),
    /// `name=value` pairs: texts, converted to what the schema says.
    Strings(BTreeMap<String, String>),
    /// The inputs of an ACTION block: an object whose texts, at any depth, are converted as the
    /// schema requires.
    Inputs {
        texts: Value,
        duplicates: Vec<String>,
    },
}

/// The arguments of a call as they arrived.
pub(super) struct ReceivedArguments {
    pub arguments: Arc<Arguments>,
    /// Reading them takes so long that it is done on another thread.
    pub are_long: bool,
}

impl From<Arguments> for ReceivedArguments {
    fn from(arguments: Arguments) -> ReceivedArguments {
        ReceivedArguments {
            are_long: matches!(&arguments, Arguments::Text(text) if text.len() > LARGE_TEXT_BYTES),
            arguments: Arc::new(arguments),
        }
    }
}

/// Shows nothing: arguments can hold secrets.
impl fmt::Debug for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::Text(String::new())
    }
}

impl Arguments {
    /// A text by which arguments are compared. Only short JSON text is normalized.
    pub fn canonical_text(&self) -> Cow<'_, str> {
        match self {
            Arguments::Text(text) if text.len() <= LARGE_TEXT_BYTES => {
                json::compact(text.as_bytes())
                    .map_or(text.into(), |same| same.as_str().to_owned().into())
            }
            Arguments::Text(text) => text.into(),
            Arguments::Value(value) => value.to_string().into(),
            Arguments::Strings(pairs) => format!("{pairs:?}").into(),
            Arguments::Inputs { texts, .. } => texts.to_string().into(),
        }
    }

    /// The value, and how it was written.
    pub fn decode(&self) -> Result<(Value, ArgumentSyntax), Fault> {
        match self {
            Arguments::Value(value) => Ok((value.clone(), ArgumentSyntax::Json)),
            Arguments::Text(text) if text.trim().is_empty() => {
                Ok((Value::Object(Map::new()), ArgumentSyntax::Json))
            }
            Arguments::Text(text) => Ok((document("Input", text)?, ArgumentSyntax::Json)),
            Arguments::Strings(pairs) => {
                let texts = pairs
                    .iter()
                    .map(|(name, text)| (name.clone(), Value::String(text.clone())));
                Ok((Value::Object(texts.collect()), ArgumentSyntax::Pairs))
            }
            Arguments::Inputs { texts, duplicates } => Ok((
                texts.clone(),
                ArgumentSyntax::Inputs {
                    duplicates: duplicates.clone(),
                },
            )),
        }
    }
}

/// Adds the arguments that an alias fixes. A caller cannot set them.
pub(super) fn fix(alias: &Alias, given: &mut Value) -> Result<(), Fault> {
    let Value::Object(given) = given else {
        return Ok(());
    };
    for (name, value) in &alias.arguments {
        if given.insert(name.clone(), value.clone()).is_some() {
            let name = text::printable(&text::head(name, 80));
            let message = format!("Input parameter '{name}' is not a known parameter.");
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
    }
    Ok(())
}

/// The one JSON document of a text, unless its values would take too much memory.
pub(super) fn document(what: &str, text: &str) -> Result<Value, Fault> {
    match json::compact(text.as_bytes()) {
        Ok(compact) => compact.tree(MAX_TREE_BYTES).map_err(|json::TooMuch| {
            let most = MAX_TREE_BYTES >> 20;
            let words = format!(
                "{what} must hold fewer values: in memory they would take more than {most} MiB."
            );
            Fault::new(Kind::ParameterValidationError, words)
        }),
        Err(problem) => Err(Fault::new(
            Kind::ParameterValidationError,
            format!("{what} is not one JSON document."),
        )
        .details(format!(
            "Line {}, column {}: {}",
            problem.line, problem.column, problem.message
        ))),
    }
}

/// The `config` of the tool-service contract: JSON text of an object; empty text is an empty one.
pub fn config(text: &str) -> Result<Map<String, Value>, Fault> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match document("config", text)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(Fault::new(
            Kind::ParameterValidationError,
            "config must be a JSON object.",
        )),
    }
}

/// The time limit that a config sets. Its other members are ignored here, except a misspelt name of
/// the time limit, which is refused.
pub fn timeout_ms(config: &Map<String, Value>) -> Result<Option<u64>, Fault> {
    if let Some(name) = config
        .keys()
        .filter(|name| *name != "timeoutMs")
        .find(|name: &&String| {
            ["timeout", "timeoutms"].contains(&name.replace(['_', '-'], "").to_lowercase().as_str())
        })
    {
        let words = format!(
            "The config's '{}' is not known. Did you mean 'timeoutMs'?",
            text::printable(name)
        );
        return Err(Fault::new(Kind::ParameterValidationError, words));
    }
    match config.get("timeoutMs") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => json::whole(value).map(Some).ok_or_else(|| {
            Fault::new(
                Kind::ParameterValidationError,
                "The config's 'timeoutMs' must be a whole number.",
            )
        }),
    }
}

/// Hands the call's own time limit to a method that declares `timeoutMs`, unless the arguments have
/// a smaller one.
pub(super) fn with_timeout(
    manifest: &manifest::Manifest,
    mut given: Value,
    asked_ms: Option<u64>,
) -> Value {
    let (Some(asked), Handler::ServiceMethod { .. }) = (asked_ms, &manifest.handler) else {
        return given;
    };
    let declared = manifest
        .parameters
        .as_ref()
        .is_some_and(|schema| schema.raw["properties"]["timeoutMs"].is_object());
    if declared && let Value::Object(fields) = &mut given {
        let own = fields.get("timeoutMs").and_then(|own| {
            let written = own
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok());
            json::whole(written.as_ref().unwrap_or(own))
        });
        if own.is_none_or(|own| asked < own)
            && fields.get("timeoutMs").is_none_or(|_| own.is_some())
        {
            fields.insert("timeoutMs".into(), Value::from(asked));
        }
    }
    given
}
