//! Capabilities: who must agree to each word that a manifest requires, and the variables of a tool.

use super::ceiling::Ceilings;
use super::machine::Machine;
use super::shape::Variable;
use super::verdict::{Answers, Narrower, Need, Refusal, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::base::text::printable;
use crate::manifest::{Language, Manifest, environment};
use crate::policy::grammar::capability::{kind, unknown};
use crate::policy::grammar::{Capability, CapabilityKind, Grant, Policy};
use std::collections::BTreeMap;
use std::path::Path;

/// Needs that the manifest alone shows: unknown capabilities, and the list of a server's tools.
pub fn needs_of(manifest: &Manifest) -> Vec<Need> {
    let words = manifest.requested.capabilities.iter().enumerate();
    let unknown = words.filter_map(|(index, word)| {
        Some(Need::mistaken(
            format!("/securityContext/requiredCapabilities/{index}"),
            unknown(word)?,
        ))
    });
    let server = manifest.mcp_server();
    let unlisted = server.filter(|server| server.listed.is_none()).map(|_| {
        let words = format!(
            "the list of its tools, which `toolhost mcp refresh {}` writes",
            manifest.id
        );
        Need::new("/handler/type", words)
    });
    unknown.chain(unlisted).collect()
}

/// The files that a tool is granted, and its own folder.
pub struct GrantedFiles<'a> {
    pub grants: &'a [Grant],
    pub folder: &'a Path,
}

/// Why a capability cannot be met on this machine, whatever a policy says.
fn missing(machine: &Machine, manifest: &Manifest, word: &str) -> Option<&'static str> {
    let module = manifest.handler.language() == Some(Language::Wasm);
    match kind(word) {
        CapabilityKind::Free if module => Some("a WASI module starts no processes"),
        CapabilityKind::LocalSockets if module => Some("a WASI module has no sockets of its own"),
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

/// A program outside may listen at a socket file that a grant shows: a read-only mount does not stop
/// connect(2), nor does Landlock. The own folder is looked at when a call starts.
fn sockets_refusal(files: &GrantedFiles<'_>) -> Option<Refusal> {
    let outside = files
        .grants
        .iter()
        .find(|grant| !grant.area.folder().starts_with(files.folder))?;
    let reason = format!(
        "{} lies outside the script's own folder, and programs of this machine may listen at a \
         socket file there: grant one of the two",
        outside.asked
    );
    Some(Refusal {
        narrower: Narrower::BuiltIn,
        reason,
    })
}

/// Answers all capabilities that are not secrets. `files`: what the tool is granted.
pub fn answer(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    machine: &Machine,
    files: &GrantedFiles<'_>,
    answers: &mut Answers,
) {
    for (index, word) in manifest.requested.capabilities.iter().enumerate() {
        let kind = kind(word);
        if let CapabilityKind::Secret(_) = kind {
            continue;
        }
        let granted = ceilings.granted("[capabilities] grant", word, |policy| {
            policy.capabilities.iter().find(|entry| entry.name == *word)
        });
        // What policy says comes before what this shell lacks.
        let missing = missing(machine, manifest, word)
            .filter(|_| granted.is_ok() || !matches!(kind, CapabilityKind::Env(_)));
        // An unknown word is a manifest's mistake, no lack of this host: the registry reports it.
        if let Some(reason) = missing
            && kind != CapabilityKind::Unknown
        {
            let pointer = format!("/securityContext/requiredCapabilities/{index}");
            let words = format!("the capability '{}': {reason}", printable(word));
            answers.lacks.push(Need::new(pointer, words));
        }
        let granted = match missing {
            Some(reason) => Err(Refusal {
                narrower: Narrower::Machine,
                reason: reason.to_owned(),
            }),
            None if matches!(kind, CapabilityKind::Free | CapabilityKind::Declared) => Ok(None),
            None => granted.map(Some),
        };
        let refusal = (kind == CapabilityKind::LocalSockets)
            .then(|| sockets_refusal(files))
            .flatten();
        let granted = match refusal {
            Some(refusal) if granted.is_ok() => Err(refusal),
            _ => granted,
        };
        answers.verdicts.push(match granted {
            Ok(entry) => met(word, kind, entry, ceilings.policy),
            Err(refusal) => refusal.verdict(RequestKind::Capability, word, &[]),
        });
    }
}

/// The verdict on a word that is granted, by this entry of the policy if it needs one.
fn met(
    word: &str,
    kind: CapabilityKind<'_>,
    entry: Option<&Capability>,
    policy: &Policy,
) -> Verdict {
    let layers: &[Layer] = match kind {
        CapabilityKind::Free => &[Layer::Seccomp],
        CapabilityKind::Env(_) => &[Layer::Environment],
        CapabilityKind::LocalSockets => &[Layer::Network, Layer::Landlock, Layer::Seccomp],
        _ => &[],
    };
    let effective = match kind {
        CapabilityKind::Env(name) => format!("{name}, with the host's own text (never shown)"),
        CapabilityKind::Ask => "a form at the client that called it".to_owned(),
        CapabilityKind::LocalSockets => {
            "servers and socket files that only its own call reaches".to_owned()
        }
        _ => word.to_owned(),
    };
    let verdict = Verdict::met(RequestKind::Capability, word, effective, layers);
    match (entry, kind) {
        (Some(entry), _) => {
            let rule = format!("{}: {}", policy.name, entry.name);
            verdict.because(rule, &entry.why, policy.place(entry.at))
        }
        (None, CapabilityKind::Free) => verdict.because(
            "built-in: free",
            "every tool may start processes inside its own layers and limits",
            "built-in",
        ),
        (None, _) => verdict.because(
            "this host's configuration",
            "`capabilities` declares it; it opens no file, device or host",
            "configuration",
        ),
    }
}

/// Literals, and variables of the host that were granted as capabilities. Names that steer the
/// loader or an interpreter are refused, as they were at load.
pub fn variables_of(
    manifest: &Manifest,
    machine: &Machine,
    answers: &mut Answers,
) -> BTreeMap<String, Variable> {
    let layers = [Layer::Environment];
    let mut variables = BTreeMap::new();
    for (name, value) in &manifest.execution.env {
        if let Some(reason) = environment::refusal_reason(name, value) {
            let narrower = Narrower::BuiltIn;
            let verdict = Verdict::denied(RequestKind::Env, name, narrower, reason, &layers);
            answers.verdicts.push(verdict);
            continue;
        }
        let verdict = Verdict::met(RequestKind::Env, name, format!("{name}={value}"), &layers);
        answers.verdicts.push(verdict.because(
            "built-in: env literals",
            "a text the manifest carries itself",
            "built-in",
        ));
        variables.insert(name.clone(), Variable::Literal(value.clone()));
    }
    for verdict in &answers.verdicts {
        if verdict.what == RequestKind::Capability
            && verdict.allowed
            && let CapabilityKind::Env(name) = kind(&verdict.asked)
            && let Some(value) = machine.environment.get(name)
        {
            variables.insert(name.to_owned(), value.clone());
        }
    }
    variables
}
