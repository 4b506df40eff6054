//! What this host tells of itself: how it logs, and where spans of calls go.
//!
//! For: settings. In: words of a flag, the `[traces]` table, the standard variables of OpenTelemetry. Out: a level and a form,
//! an address. Never: an address that a tool, a policy or a caller named.

use super::super::refusal::{Exit, Refusal};
use super::Variables;
use crate::service::runlog::Level;
use serde::Deserialize;

/// `[traces]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    endpoint: Option<String>,
}

/// Where spans are sent: as the standard variables say, else as the config file does. `None`: nowhere.
pub fn collector(config: Traces, variable: Variables<'_>) -> Option<String> {
    let said = |name: &str| variable(name).and_then(|text| text.into_string().ok());
    let is = |name: &str, wanted: &str| said(name).is_some_and(|text| text.eq_ignore_ascii_case(wanted));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return None;
    }
    let whole = said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let base = || said("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| format!("{}/v1/traces", base.trim_end_matches('/')));
    whole.or_else(base).or(config.endpoint)
}

/// `debug`, `json`, `debug,json`.
pub fn log_words(words: &str) -> anyhow::Result<(Level, bool)> {
    let mut level = Level::Info;
    let mut json = false;
    for word in words.split(',').map(str::trim) {
        match word {
            "json" => json = true,
            "text" => json = false,
            _ => {
                level = Level::named(word).ok_or_else(|| {
                    let message =
                        "log level must be off, error, warn, info, debug or trace (with \",json\" for JSON lines)";
                    Refusal::new(Exit::Caller, format!("'{}': {message}", word.escape_debug()))
                })?;
            }
        }
    }
    Ok((level, json))
}
