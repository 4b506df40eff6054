//! Variable: the text of one environment variable, and where it comes from.
//!
//! For: shapes. In: a text. Out: the same text, for the tool alone. Never: shows a text of a call or of this host in a
//! record, a digest, a report or a debug line: it may be a secret.

use serde::{Serialize, Serializer};
use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub enum Variable {
    /// From the manifest, which everybody may read.
    Literal(String),
    /// The host's own, granted as `env:NAME`.
    Host(String),
}

impl Variable {
    /// What the tool gets.
    pub fn text(&self) -> &str {
        match self {
            Variable::Literal(text) | Variable::Host(text) => text,
        }
    }

    /// The text, if it is the host's own.
    pub fn host(&self) -> Option<&str> {
        match self {
            Variable::Host(text) => Some(text),
            Variable::Literal(_) => None,
        }
    }

    /// The text for reports: only a literal is shown.
    fn shown(&self) -> &str {
        match self {
            Variable::Literal(text) => text,
            Variable::Host(_) => "(the host's own)",
        }
    }
}

impl Serialize for Variable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown())
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shown())
    }
}
