//! A fault of a file, with its location, in the form in which all readers of files report it.

use serde::Serialize;

/// A fault of a file, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    pub code: Code,
    /// JSON pointer (RFC 6901), or the TOML key path written the same way; "" is the whole
    /// document.
    pub pointer: String,
    /// 1-based; 0 = not known.
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// 1-based line and column of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    pub line: usize,
    pub column: usize,
}

impl Problem {
    /// Whether the problem is about the value at `pointer`, or about a part of that value.
    pub fn is_below(&self, pointer: &str) -> bool {
        self.pointer
            .strip_prefix(pointer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// A problem whose line and column are not known yet.
    pub fn new(
        severity: Severity,
        code: Code,
        pointer: impl Into<String>,
        message: impl Into<String>,
    ) -> Problem {
        Problem {
            severity,
            code,
            pointer: pointer.into(),
            line: 0,
            column: 0,
            message: message.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A remark; an error under `check --strict` only for comments and trailing commas.
    Note,
    Warning,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    Encoding,
    Syntax,
    Schema,
    Security,
    Conflict,
    Dependency,
    Unreadable,
}
