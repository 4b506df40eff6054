//! Capabilities: the words that a manifest may require and a policy may grant.

use crate::base::text::{self, printable};
use crate::manifest::reader::{Reader, did_you_mean};
use crate::manifest::{At, environment};
use serde::Deserialize;

/// How a capability is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityKind<'a> {
    /// Every tool has it, within its limits and layers.
    Free,
    /// `env:NAME`: this host must offer that variable, and a policy must grant it.
    Env(&'a str),
    /// `secret:NAME`: a policy must say in `[secrets]` where it lies and how it is used.
    Secret(&'a str),
    /// `ask:elicitation`: a policy must grant that the tool asks the person at its client.
    Ask,
    /// `local-sockets`: a policy must grant that the tool has sockets of its own, on loopback and
    /// in its scratch.
    LocalSockets,
    /// Something that the machine has if the host's configuration says so (`capabilities`). It
    /// opens nothing.
    Declared,
    Later,
    Unknown,
}

const KNOWN: [&str; 8] = [
    "subprocess",
    "env:NAME",
    "secret:NAME",
    "ask:elicitation",
    "local-sockets",
    "gpu",
    "long-running",
    "files:input",
];

pub fn kind(word: &str) -> CapabilityKind<'_> {
    match word {
        "subprocess" | "files:input" => CapabilityKind::Free,
        // Nothing in this version provides this, so it is not granted.
        "long-running" => CapabilityKind::Later,
        "gpu" => CapabilityKind::Declared,
        "ask:elicitation" => CapabilityKind::Ask,
        "local-sockets" => CapabilityKind::LocalSockets,
        _ => match word.split_once(':') {
            Some(("env", name)) if environment::refusal_reason(name, "").is_none() => {
                CapabilityKind::Env(name)
            }
            Some(("secret", name)) if environment::refusal_reason(name, "").is_none() => {
                CapabilityKind::Secret(name)
            }
            _ => CapabilityKind::Unknown,
        },
    }
}

/// Why no host could ever meet this word; `None` = some host may.
pub fn unknown(word: &str) -> Option<String> {
    if kind(word) != CapabilityKind::Unknown {
        return None;
    }
    let shown = printable(&text::head(word, 60));
    let variable = word.strip_prefix("env:").or(word.strip_prefix("secret:"));
    Some(
        match variable.and_then(|name| environment::refusal_reason(name, "")) {
            Some(why) => format!("capability '{shown}': {why}"),
            None => format!(
                "unknown capability '{shown}'{}; known: {}",
                did_you_mean(word, &KNOWN),
                KNOWN.join(", ")
            ),
        },
    )
}

pub fn offerable(word: &str) -> Result<(), String> {
    if kind(word) == CapabilityKind::Declared {
        Ok(())
    } else {
        grantable(word)
    }
}

pub fn grantable(word: &str) -> Result<(), String> {
    let why = match kind(word) {
        CapabilityKind::Free
        | CapabilityKind::Env(_)
        | CapabilityKind::Ask
        | CapabilityKind::LocalSockets => return Ok(()),
        CapabilityKind::Secret(_) => {
            "is granted by an entry of [secrets] grant in the tool's policy, which says where it \
            lies"
        }
        CapabilityKind::Declared => {
            "needs no grant: `capabilities` in the host's configuration declares it"
        }
        CapabilityKind::Later => "is not built yet: remove it",
        CapabilityKind::Unknown => return Err(unknown(word).unwrap_or_default()),
    };
    Err(format!("`{}` {why}", printable(word)))
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Capability {
    pub name: String,
    pub why: String,
    #[serde(skip)]
    pub at: At,
}

/// `cap`: the file is a cap, which names the secrets that policies may grant.
pub fn read(document: &mut Reader<'_>, cap: bool) -> Vec<Capability> {
    let mut found = Vec::new();
    for (pointer, granted) in document.list::<Capability>("/capabilities/grant") {
        let pointer = format!("{pointer}/name");
        let is_secret = cap && matches!(kind(&granted.name), CapabilityKind::Secret(_));
        if !is_secret {
            document.parsed(&pointer, grantable(&granted.name));
        }
        found.push(Capability {
            at: document.at(&pointer),
            ..granted
        });
    }
    found
}
