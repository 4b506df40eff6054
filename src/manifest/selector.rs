//! Names of tools in policies and manifests: one, those of a namespace, or all.

use serde::{Deserialize, Serialize};

/// Which tools an entry names. A narrower selector is greater in this order, and wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Selector {
    /// `*`
    Any,
    /// `ns:*`
    Namespace(String),
    /// `ns:name`
    Exact(String),
}

impl TryFrom<String> for Selector {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Selector, &'static str> {
        fn is_plain(t: &str) -> bool {
            !t.is_empty()
                && !t.contains('*')
                && !t.chars().any(|c| c.is_whitespace() || c.is_control())
        }
        match text.strip_suffix(":*") {
            _ if text == "*" => Ok(Selector::Any),
            Some(ns) if is_plain(ns) && !ns.contains(':') => Ok(Selector::Namespace(ns.to_owned())),
            None if is_plain(&text) => Ok(Selector::Exact(text)),
            _ => Err("not an exact id, \"ns:*\" or \"*\""),
        }
    }
}

/// Serialized as a policy writes it.
impl Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.text())
    }
}

impl Selector {
    pub fn matches(&self, id: &str) -> bool {
        match self {
            Selector::Any => true,
            Selector::Namespace(ns) => id.split_once(':').is_some_and(|(n, _)| n == ns),
            Selector::Exact(exact) => exact == id,
        }
    }

    /// Whether both selectors can name the same tool.
    pub fn meets(&self, other: &Selector) -> bool {
        match (self, other) {
            (Selector::Any, _) | (_, Selector::Any) => true,
            (Selector::Namespace(a), Selector::Namespace(b)) => a == b,
            (Selector::Exact(id), selector) | (selector, Selector::Exact(id)) => {
                selector.matches(id)
            }
        }
    }

    pub fn text(&self) -> String {
        match self {
            Selector::Any => "*".into(),
            Selector::Namespace(ns) => format!("{ns}:*"),
            Selector::Exact(id) => id.clone(),
        }
    }
}
