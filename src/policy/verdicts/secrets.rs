//! Secrets: those that a manifest requests (`secret:NAME`) ∩ the entries of the policy ∩ the names
//! in the cap.

use super::ceiling::{Ceiling, granted};
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::files;
use crate::base::layer::Layer;
use crate::base::place::Mounts;
use crate::manifest::Manifest;
use crate::manifest::host::Host;
use crate::policy::grammar::area::Area;
use crate::policy::grammar::capability::{CapabilityKind, kind};
use crate::policy::grammar::document::PolicyEntry;
use crate::policy::grammar::files::Grant;
use crate::policy::grammar::hosts::HostGrant;
use crate::policy::grammar::places::PlacedArea;
use crate::policy::grammar::secrets::{HTTP, SecretGrant, SecretSource, used};
use std::collections::BTreeSet;

/// The grants, sorted by name. `hosts` and `files`: what the tool reaches and opens. The host's cap
/// has no `[secrets]`: it lists each `secret:NAME` in `[capabilities]`.
pub fn judge(
    manifest: &Manifest,
    ceilings: &[Ceiling<'_>],
    hosts: &[HostGrant],
    files: &[Grant],
    verdicts: &mut Vec<Verdict>,
) -> Vec<SecretGrant> {
    let mut grants = Vec::new();
    let mut seen = BTreeSet::new();
    let Some(policy) = ceilings.first().map(|ceiling| ceiling.policy) else {
        return grants;
    };
    let (caps, others): (Vec<Ceiling<'_>>, Vec<_>) = ceilings
        .iter()
        .partition(|ceiling| ceiling.narrower == Narrower::Host);
    for word in &manifest.requested.capabilities {
        let CapabilityKind::Secret(name) = kind(word) else {
            continue;
        };
        if !seen.insert(name) {
            continue;
        }
        let own = policy.secrets.iter().find(|entry| entry.grant.name == name);
        let is_added = own.is_some_and(|entry| entry.grant.header.is_some());
        let layer = [if is_added {
            Layer::Network
        } else {
            Layer::Environment
        }];
        // All ceilings must use the secret in the same way.
        let entry = granted(&others, "[secrets] grant", word, |policy| {
            policy
                .secrets
                .iter()
                .find(|entry: &&PolicyEntry<SecretGrant>| {
                    own.is_some_and(|own| own.grant.is_same_use(&entry.grant))
                })
        });
        let capped = caps.iter().find(|cap| {
            !cap.policy
                .capabilities
                .iter()
                .any(|capability| capability.name == *word)
        });
        let capped =
            capped.map(|cap| (cap.narrower, cap.lacks_entry("[capabilities] grant", word)));
        let entry = entry.and_then(|(entry, _)| {
            capped
                .or_else(|| conflict(manifest, &entry.grant, hosts, files))
                .map_or(Ok(entry), Err)
        });
        verdicts.push(match entry {
            Ok(PolicyEntry { grant, at }) => {
                grants.push(grant.clone());
                let verdict = Verdict::met(
                    RequestKind::Capability,
                    word,
                    used(name, grant.header.as_ref()),
                    &layer,
                );
                verdict.because(&grant.rule, &grant.why, policy.place(*at))
            }
            Err((narrower, reason)) => {
                Verdict::denied(RequestKind::Capability, word, narrower, reason, &layer)
            }
        });
    }
    grants.sort_by(|a: &SecretGrant, b| a.name.cmp(&b.name));
    grants
}

/// Why this tool cannot use a secret that all ceilings grant, with the fix.
fn conflict(
    manifest: &Manifest,
    secret: &SecretGrant,
    hosts: &[HostGrant],
    granted: &[Grant],
) -> Option<(Narrower, String)> {
    fn requests(word: String, manifest_requested_capabilities: &[String]) -> bool {
        manifest_requested_capabilities.contains(&word)
    }
    let name = &secret.name;
    fn is_open(grant: &Grant) -> (Narrower, String) {
        let reason = format!(
            "the tool could read its file ({}): move that file elsewhere",
            grant.rule
        );
        (Narrower::Policy, reason)
    }
    let mounts = Mounts::current();
    let placed = |area: &Area| PlacedArea::new(area, &mounts);
    let area_of = |grant: &Grant| placed(&grant.area);
    let all_files: Vec<_> = secret.from.all_files().iter().map(placed).collect();
    if let Some(grant) = granted
        .iter()
        .find(|grant: &&Grant| all_files.iter().any(|all| area_of(grant).meets(all)))
    {
        return Some(is_open(grant));
    }
    let Some(header) = &secret.header else {
        let is_set = manifest.execution.env.contains_key(name)
            || requests(format!("env:{name}"), &manifest.requested.capabilities);
        let reason = format!(
            "the manifest sets or asks for the variable {name} itself: take that out of the \
            manifest"
        );
        return is_set.then_some((Narrower::BuiltIn, reason));
    };
    // Not a command's program: whoever reads that does not read the secret.
    let named = secret
        .from
        .named_files()
        .into_iter()
        .filter(|file| !secret.from.is_program(file));
    let places: Vec<_> = named
        .flat_map(|file| [mounts.place(file), mounts.place(&files::resolved(file))])
        .collect();
    if let Some(grant) = granted
        .iter()
        .find(|grant: &&Grant| places.iter().any(|file| area_of(grant).holds(file)))
    {
        return Some(is_open(grant));
    }
    if let SecretSource::Env(variable) = &secret.from
        && requests(format!("env:{variable}"), &manifest.requested.capabilities)
    {
        let reason =
            format!("the manifest asks for the same text as `env:{variable}`: take that out");
        return Some((Narrower::BuiltIn, reason));
    }
    let host = Host::Name(header.host.clone());
    if hosts.iter().any(|grant| grant.reaches(&host, HTTP)) {
        return None;
    }
    let is_requested = manifest
        .requested
        .hosts
        .iter()
        .any(|it| it.host.covers(&host) && it.ports().contains(&HTTP));
    let narrower = if is_requested {
        Narrower::Policy
    } else {
        Narrower::Manifest
    };
    let reason = format!(
        "its header goes to http://{0}, to which toolhost speaks TLS: the manifest must ask for \
         `{0}:{HTTP}` (allowHosts) and the policy grant it ([network] hosts)",
        header.host
    );
    Some((narrower, reason))
}
