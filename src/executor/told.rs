//! Told: a line of stderr by which a tool tells how far it is, or something for its client's log.
//!
//! For: the log of a call. In: a line. Out: progress, or a message with its level; `None`: a line like any other. Never: a
//! line that the kept log would lack where it is not told.

use serde::{Deserialize, Serialize};

/// What such a line begins with; one JSON object follows.
const MARK: &str = "@toolhost ";
/// Longest line that is read as one, bytes.
const LONGEST: usize = 16 * 1024;

/// How far a tool is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub progress: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How grave a message is, by RFC 5424.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Progress(Progress),
    Message(Level, String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    log: Level,
    message: String,
}

/// Reads a line.
pub fn read(line: &str) -> Option<Told> {
    let json = line.strip_prefix(MARK).filter(|json| json.len() <= LONGEST)?;
    if let Ok(progress) = serde_json::from_str::<Progress>(json) {
        return Some(Told::Progress(progress));
    }
    let Message { log, message } = serde_json::from_str(json).ok()?;
    Some(Told::Message(log, message))
}

/// A line as it stands in the kept log: a message without its mark; progress not at all.
pub fn kept(line: String) -> Option<String> {
    match read(&line) {
        None => Some(line),
        Some(Told::Progress(_)) => None,
        Some(Told::Message(_, message)) => Some(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_the_two_forms_are_told() {
        let progress = Progress { progress: 1.0, total: Some(3.0), message: Some("one".into()) };
        let line = "@toolhost {\"progress\": 1, \"total\": 3, \"message\": \"one\"}";
        assert_eq!(read(line), Some(Told::Progress(progress)));
        let line = "@toolhost {\"log\": \"warning\", \"message\": \"low\"}";
        assert_eq!(read(line), Some(Told::Message(Level::Warning, "low".into())));
        assert_eq!(kept(line.into()).as_deref(), Some("low"));
        for plain in [
            "toolhost: {\"progress\": 1}",
            "@toolhost {\"progress\": \"1\"}",
            "@toolhost {\"progress\": 1, \"x\": 2}",
            "@toolhost {\"log\": \"loud\", \"message\": \"x\"}",
            "@toolhost {\"progress\": 1e999}",
            " @toolhost {\"progress\": 1}",
        ] {
            assert_eq!(read(plain), None, "{plain}");
            assert_eq!(kept(plain.into()).as_deref(), Some(plain));
        }
    }
}
