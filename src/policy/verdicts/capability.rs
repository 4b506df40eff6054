//! Capabilities: who must agree to each word that a manifest requires, and the variables of a tool.

use super::ceiling::{Ceiling, granted};
use super::machine::{Machine, Need};
use super::shape::Variable;
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::base::text::printable;
use crate::manifest::{Handler, Language, Manifest, environment};
use crate::policy::grammar::capability::{CapabilityKind, kind, unknown};
use std::collections::BTreeMap;

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
pub fn judge(
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
                Verdict::met(RequestKind::Capability, word, word, &[Layer::Seccomp]).because(
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
                let (effective, layers): (_, &[Layer]) = match kind {
                    CapabilityKind::Env(name) => (
                        format!("{name}, with the host's own text (never shown)"),
                        &[Layer::Environment],
                    ),
                    CapabilityKind::Ask => ("a form at the client that called it".to_owned(), &[]),
                    _ => (word.clone(), &[Layer::Environment]),
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
pub fn env(
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
                &[Layer::Environment],
            ));
        } else {
            let verdict = Verdict::met(
                RequestKind::Env,
                name,
                format!("{name}={value}"),
                &[Layer::Environment],
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
