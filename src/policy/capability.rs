//! Capabilities: the words that a manifest may require, and who must agree to each.

use super::confinement::Variable;
use super::grantable::{Ceiling, granted};
use super::machine::{Machine, Need};
use super::verdict::{Narrower, RequestKind, Verdict, layer};
use crate::base::text::{self, printable};
use crate::manifest::reader::Reader;
use crate::manifest::reader::did_you_mean;
use crate::manifest::{At, Handler, Language, Manifest, environment};
use serde::Deserialize;
use std::collections::BTreeMap;

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
    /// Something that the machine has if the host's configuration says so (`capabilities`). It
    /// opens nothing.
    Declared,
    Later,
    Unknown,
}

const KNOWN: [&str; 7] = [
    "subprocess",
    "env:NAME",
    "secret:NAME",
    "ask:elicitation",
    "gpu",
    "long-running",
    "files:input",
];

pub fn kind(word: &str) -> CapabilityKind<'_> {
    match word {
        "subprocess" => CapabilityKind::Free,
        // Nothing in this version provides these, so none of them is granted.
        "long-running" | "files:input" => CapabilityKind::Later,
        "gpu" => CapabilityKind::Declared,
        "ask:elicitation" => CapabilityKind::Ask,
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

/// Needs that the manifest alone shows: features that are not built yet, and unknown capabilities.
pub fn needs_of(manifest: &Manifest) -> Vec<Need> {
    let client = "a client that runs the tool (handler.type definition-only): not built yet";
    let later = matches!(manifest.handler, Handler::DefinitionOnly)
        .then(|| Need::new("/handler/type", client));
    let words = manifest.requested.capabilities.iter().enumerate();
    let unknown = words.filter_map(|(index, word)| {
        Some(Need::mistaken(
            format!("/securityContext/requiredCapabilities/{index}"),
            unknown(word)?,
        ))
    });
    later.into_iter().chain(unknown).collect()
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
        CapabilityKind::Free | CapabilityKind::Env(_) | CapabilityKind::Ask => return Ok(()),
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
pub(super) fn read(document: &mut Reader<'_>, cap: bool) -> Vec<Capability> {
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

/// Why a capability cannot be met on this machine, whatever a policy says.
fn missing(machine: &Machine, manifest: &Manifest, word: &str) -> Option<&'static str> {
    let module = matches!(
        manifest.handler,
        Handler::Script {
            language: Language::Wasm,
            ..
        }
    );
    match kind(word) {
        CapabilityKind::Free if module => Some("a WASI module starts no processes"),
        CapabilityKind::Env(name) if !machine.environment.contains_key(name) => {
            Some("this host does not offer it, or it is not set")
        }
        CapabilityKind::Declared if !machine.declared.contains(word) => {
            Some("`capabilities` in this host's configuration does not declare it")
        }
        CapabilityKind::Later => Some("not built yet"),
        CapabilityKind::Unknown => Some("not a word this host knows"),
        _ => None,
    }
}

/// Judges all capabilities that are not secrets. Returns what this machine lacks for them.
pub(super) fn judge(
    manifest: &Manifest,
    ceilings: &[Ceiling<'_>],
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
) -> Vec<Need> {
    let mut lacks = Vec::new();
    for (index, word) in manifest.requested.capabilities.iter().enumerate() {
        let kind = kind(word);
        if let CapabilityKind::Secret(_) = kind {
            continue;
        }
        let granted = granted(ceilings, "[capabilities] grant", word, |policy| {
            policy.capabilities.iter().find(|entry| entry.name == *word)
        });
        // What policy says comes before what this shell lacks.
        let missing = missing(machine, manifest, word);
        let missing =
            missing.filter(|_| granted.is_ok() || !matches!(kind, CapabilityKind::Env(_)));
        verdicts.push(match (missing, kind, granted) {
            (Some(reason), ..) => {
                // An unknown word is a manifest's mistake, no lack of this host: the registry
                // reports it.
                if kind != CapabilityKind::Unknown {
                    let pointer = format!("/securityContext/requiredCapabilities/{index}");
                    lacks.push(Need::new(
                        pointer,
                        format!("the capability '{}': {reason}", printable(word)),
                    ));
                }
                Verdict::denied(
                    RequestKind::Capability,
                    word,
                    Narrower::Machine,
                    reason,
                    &[],
                )
            }
            (None, CapabilityKind::Free, ..) => {
                Verdict::met(RequestKind::Capability, word, word, &[layer::SECCOMP]).because(
                    "built-in: free",
                    "every tool may start processes inside its own layers and limits",
                    "built-in",
                )
            }
            (None, CapabilityKind::Declared, ..) => {
                let why = "`capabilities` declares it; it opens no file, device or host";
                let met = Verdict::met(RequestKind::Capability, word, word, &[]);
                met.because("this host's configuration", why, "configuration")
            }
            (None, _, Ok((entry, origin))) => {
                let (effective, layers): (_, &[&str]) = match kind {
                    CapabilityKind::Env(name) => (
                        format!("{name}, with the host's own text (never shown)"),
                        &[layer::ENVIRONMENT],
                    ),
                    CapabilityKind::Ask => ("a form at the client that called it".to_owned(), &[]),
                    _ => (word.clone(), &[layer::ENVIRONMENT]),
                };
                let rule = format!("{}: {}", origin.name, entry.name);
                let place = origin.place(entry.at);
                Verdict::met(RequestKind::Capability, word, effective, layers)
                    .because(rule, &entry.why, place)
            }
            (None, _, Err((narrower, reason))) => {
                Verdict::denied(RequestKind::Capability, word, narrower, reason, &[])
            }
        });
    }
    lacks
}

/// Literals, and variables of the host that were granted as capabilities. Names that steer the
/// loader or an interpreter are refused, as they were at load.
pub(super) fn env(
    manifest: &Manifest,
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
) -> BTreeMap<String, Variable> {
    let mut kept = BTreeMap::new();
    for (name, value) in &manifest.execution.env {
        if let Some(reason) = environment::refusal_reason(name, value) {
            verdicts.push(Verdict::denied(
                RequestKind::Env,
                name,
                Narrower::BuiltIn,
                reason,
                &[layer::ENVIRONMENT],
            ));
        } else {
            let verdict = Verdict::met(
                RequestKind::Env,
                name,
                format!("{name}={value}"),
                &[layer::ENVIRONMENT],
            );
            verdicts.push(verdict.because(
                "built-in: env literals",
                "a text the manifest carries itself",
                "built-in",
            ));
            kept.insert(name.clone(), Variable::Literal(value.clone()));
        }
    }
    for verdict in verdicts
        .iter()
        .filter(|v| v.what == RequestKind::Capability && v.allowed)
    {
        if let CapabilityKind::Env(name) = kind(&verdict.asked)
            && let Some(value) = machine.environment.get(name)
        {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    kept
}
