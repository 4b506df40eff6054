//! The text of one environment variable, and who brought it.
//!
//! For: shapes. In: a text. Out: the same text, for the tool alone. Never: shows what a call or this host
//! brought, which may be a secret: not in a record, a digest, a report or a debug line.

use serde::{Serialize, Serializer};
use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub enum Variable {
    /// Written in the manifest, for everybody to read.
    Literal(String),
    /// Brought by a call.
    Call(String),
    /// The host's own, granted as `env:NAME`.
    Host(String),
}

impl Variable {
    /// What the tool gets.
    pub fn text(&self) -> &str {
        match self {
            Variable::Literal(text) | Variable::Call(text) | Variable::Host(text) => text,
        }
    }

    /// The text, if it is the host's own.
    pub fn host(&self) -> Option<&str> {
        match self {
            Variable::Host(text) => Some(text),
            Variable::Literal(_) | Variable::Call(_) => None,
        }
    }

    /// What is shown of it.
    fn shown(&self) -> &str {
        match self {
            Variable::Literal(text) => text,
            Variable::Call(_) => "(set by the call)",
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
