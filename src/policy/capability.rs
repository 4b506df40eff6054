//! Capabilities (Q9): the words a manifest may require, and who must say yes to each.
//!
//! For: policy files (which words may be granted) and `decide` (which asks are met).
//! In: a word. Out: a verdict in words. Never: a word that means nothing passes in silence.

use super::source::did_you_mean;

/// How a capability comes to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every tool has it; limits and walls hold it.
    Free,
    /// A policy must allow it; any machine can.
    Allowed,
    /// A policy must allow it and the machine must have it.
    Offered,
    /// Known, not built yet.
    Later,
    Unknown,
}

const KNOWN: [&str; 6] = ["subprocess", "long-running", "gpu", "env:NAME", "secret:NAME", "files:input"];

pub fn kind(word: &str) -> Kind {
    match word {
        "subprocess" => Kind::Free,
        "long-running" => Kind::Allowed,
        "gpu" => Kind::Offered,
        "files:input" => Kind::Later,
        _ => match word.split_once(':') {
            Some(("env", name)) if is_env_name(name) => Kind::Offered,
            Some(("secret", name)) if !name.is_empty() => Kind::Later,
            _ => Kind::Unknown,
        },
    }
}

/// May a policy grant this word?
pub(super) fn grantable(word: &str) -> Result<(), String> {
    let shown = crate::manifest::text::printable(word);
    match kind(word) {
        Kind::Free | Kind::Allowed | Kind::Offered => Ok(()),
        Kind::Later => Err(format!("`{shown}` comes with a later version; remove it")),
        Kind::Unknown => {
            Err(format!("unknown capability `{shown}`{}; known: {}", did_you_mean(word, &KNOWN), KNOWN.join(", ")))
        }
    }
}

fn is_env_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Names that change how the loader or an interpreter behaves: no manifest sets them (DESIGN §5).
pub fn env_is_refused(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    name.is_empty()
        || name.contains(['=', '\0'])
        || ["LD_", "PYTHON", "NODE_", "BUN_"].iter().any(|p| upper.starts_with(p))
}
