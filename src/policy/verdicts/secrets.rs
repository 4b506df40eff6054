//! Secrets: those that a manifest requests (`secret:NAME`) ∩ the entries of the policy ∩ the names
//! in the cap.

use super::ceiling::{Ceiling, Ceilings};
use super::verdict::{Answers, Narrower, Refusal, RequestKind, Verdict};
use crate::base::files;
use crate::base::layer::Layer;
use crate::base::place::Mounts;
use crate::manifest::Manifest;
use crate::manifest::host::Host;
use crate::policy::grammar::capability::kind;
use crate::policy::grammar::secrets::{HTTP, used};
use crate::policy::grammar::{
    Area, CapabilityKind, Grant, HeaderRule, HostGrant, PlacedArea, SecretGrant, SecretSource,
};
use std::collections::BTreeSet;

/// The grants, sorted by name. `hosts` and `files`: what the tool reaches and opens. The host's cap
/// has no `[secrets]`: it lists each `secret:NAME` in `[capabilities]`.
pub fn grants_of(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    hosts: &[HostGrant],
    files: &[Grant],
    answers: &mut Answers,
) -> Vec<SecretGrant> {
    let mut grants = Vec::new();
    let mut names = BTreeSet::new();
    for word in &manifest.requested.capabilities {
        let CapabilityKind::Secret(name) = kind(word) else {
            continue;
        };
        if !names.insert(name) {
            continue;
        }
        let mut entries = ceilings.policy.secrets.iter();
        let own = entries.find(|entry| entry.grant.name == name);
        let layer = match own.and_then(|entry| entry.grant.header.as_ref()) {
            Some(_) => Layer::Network,
            None => Layer::Environment,
        };
        let (caps, others): (Vec<&Ceiling<'_>>, Vec<_>) = ceilings
            .all
            .iter()
            .partition(|ceiling| ceiling.narrower == Narrower::Host);
        let secret = own.map(|entry| &entry.grant);
        let refusal = others
            .into_iter()
            .chain(caps)
            .find_map(|ceiling| refusal(ceiling, word, secret))
            .or_else(|| conflict(manifest, secret?, hosts, files));
        let verdict = match (refusal, own) {
            (Some(refusal), _) => refusal.verdict(RequestKind::Capability, word, &[layer]),
            (None, Some(entry)) => {
                let grant = &entry.grant;
                grants.push(grant.clone());
                let effective = used(name, grant.header.as_ref());
                let place = ceilings.policy.place(entry.at);
                Verdict::met(RequestKind::Capability, word, effective, &[layer]).because(
                    &grant.rule,
                    &grant.why,
                    place,
                )
            }
            (None, None) => continue,
        };
        answers.verdicts.push(verdict);
    }
    grants.sort_by(|a: &SecretGrant, b| a.name.cmp(&b.name));
    grants
}

/// Why a ceiling does not grant a secret. All must use it in the same way as the policy, `own`.
fn refusal(ceiling: &Ceiling<'_>, word: &str, own: Option<&SecretGrant>) -> Option<Refusal> {
    let policy = ceiling.policy;
    let is_same = |other: &SecretGrant| own.is_some_and(|own| own.is_same_use(other));
    let (table, is_granted) = match ceiling.narrower {
        Narrower::Host => (
            "[capabilities] grant",
            policy.capabilities.iter().any(|entry| entry.name == word),
        ),
        _ => (
            "[secrets] grant",
            policy.secrets.iter().any(|entry| is_same(&entry.grant)),
        ),
    };
    (!is_granted).then(|| ceiling.refusal(table, word))
}

/// Why this tool cannot use a secret that all ceilings grant, with the fix.
fn conflict(
    manifest: &Manifest,
    secret: &SecretGrant,
    hosts: &[HostGrant],
    files: &[Grant],
) -> Option<Refusal> {
    if let Some(grant) = files.iter().find(|grant| opens(grant, secret)) {
        let rule = &grant.rule;
        return Some(Refusal {
            narrower: Narrower::Policy,
            reason: format!("the tool could read its file ({rule}): move that file elsewhere"),
        });
    }
    let requests = |variable: &str| {
        let word = format!("env:{variable}");
        manifest.requested.capabilities.contains(&word)
    };
    let name = &secret.name;
    let reason = match (&secret.header, &secret.from) {
        (None, _) if manifest.execution.env.contains_key(name) || requests(name) => format!(
            "the manifest sets or asks for the variable {name} itself: take that out of the \
            manifest"
        ),
        (Some(_), SecretSource::Env(variable)) if requests(variable) => {
            format!("the manifest asks for the same text as `env:{variable}`: take that out")
        }
        (Some(header), _) => return unreached(manifest, header, hosts),
        (None, _) => return None,
    };
    Some(Refusal {
        narrower: Narrower::BuiltIn,
        reason,
    })
}

/// Whether a tool with this grant could read the secret where it lies. A variable's own file is
/// the tool's to read, but never that of another caller.
fn opens(grant: &Grant, secret: &SecretGrant) -> bool {
    let mounts = Mounts::current();
    let area = PlacedArea::new(&grant.area, &mounts);
    let meets = |all: &Area| area.meets(&PlacedArea::new(all, &mounts));
    if secret.from.all_files().iter().any(meets) {
        return true;
    }
    // Not a command's program: whoever reads that does not read the secret.
    let files = secret.from.named_files();
    let mut files = files.iter().filter(|file| !secret.from.is_program(file));
    secret.header.is_some()
        && files.any(|file| {
            let places = [mounts.place(file), mounts.place(&files::resolved(file))];
            places.iter().any(|place| area.holds(place))
        })
}

/// That no host is granted to which the secret's header could be added.
fn unreached(manifest: &Manifest, header: &HeaderRule, hosts: &[HostGrant]) -> Option<Refusal> {
    let host = Host::Name(header.host.clone());
    if hosts.iter().any(|grant| grant.reaches(&host, HTTP)) {
        return None;
    }
    let mut requests = manifest.requested.hosts.iter();
    let is_requested = requests.any(|it| it.host.covers(&host) && it.ports().contains(&HTTP));
    let reason = format!(
        "its header goes to http://{0}, to which toolhost speaks TLS: the manifest must ask for \
         `{0}:{HTTP}` (allowHosts) and the policy grant it ([network] hosts)",
        header.host
    );
    Some(Refusal {
        narrower: if is_requested {
            Narrower::Policy
        } else {
            Narrower::Manifest
        },
        reason,
    })
}
