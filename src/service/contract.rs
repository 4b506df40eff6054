//! The tool-service contract: what its `config` says of a call. Brokers and HTTP bring requests of it.

use super::arguments;
use crate::base::{json, text};
use crate::fault::{Fault, Kind};
use serde_json::{Map, Value};

/// A config from its JSON text.
pub fn config(text: &str) -> Result<Map<String, Value>, Fault> {
    arguments::object("config", text)
}

/// The time limit that a config sets. What a config holds besides is others' to read, but not a time limit by another name.
pub fn timeout_ms(config: &Map<String, Value>) -> Result<Option<u64>, Fault> {
    let meant =
        |name: &&String| ["timeout", "timeoutms"].contains(&name.replace(['_', '-'], "").to_lowercase().as_str());
    if let Some(name) = config.keys().filter(|name| *name != "timeoutMs").find(meant) {
        let words = format!("The config's '{}' is not known. Did you mean 'timeoutMs'?", text::printable(name));
        return Err(Fault::new(Kind::ParameterValidationError, words));
    }
    match config.get("timeoutMs") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => json::whole(value).map(Some).ok_or_else(|| {
            Fault::new(Kind::ParameterValidationError, "The config's 'timeoutMs' must be a whole number.")
        }),
    }
}
