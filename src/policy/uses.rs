//! Uses: the secrets that a manifest asks for (`secret:NAME`) ∩ the policy's entries ∩ the host's cap.
//!
//! For: `decide`, the reports. In: a manifest, two policies, what else was granted. Out: verdicts and grants. Never: reads a
//! secret; lets a tool use one in two ways, or have what only the relay may add.

use super::area::Area;
use super::capability::{self, Kind};
use super::file::Policy;
use super::secrets::{SecretRule, used};
use super::verdict::{Narrower, Verdict, What, wall};
use super::{Grant, HostGrant, SecretGrant, SecretSource};
use crate::base::text;
use crate::manifest::Manifest;
use crate::manifest::host::Host;
use std::collections::BTreeSet;

/// The port at which the relay adds headers.
const HTTP: u16 = 80;

/// The grants, in order of name; `hosts` and `files`: what the tool reaches and opens.
pub(super) fn judge(
    manifest: &Manifest,
    policy: &Policy,
    cap: Option<&Policy>,
    hosts: &[HostGrant],
    files: &[Grant],
    verdicts: &mut Vec<Verdict>,
) -> Vec<SecretGrant> {
    let (mut grants, mut seen): (Vec<SecretGrant>, BTreeSet<&str>) = Default::default();
    for word in &manifest.asks.capabilities {
        let Kind::Secret(name) = capability::kind(word) else { continue };
        if !seen.insert(name) {
            continue;
        }
        let listed = policy.secrets.iter().find(|rule| rule.name == name);
        let wall = if listed.is_some_and(|rule| rule.header.is_some()) { wall::NETWORK } else { wall::ENVIRONMENT };
        let nowhere = || format!("no entry of [secrets] grant in policy {} names it", policy.called());
        let judged = listed.ok_or_else(|| (Narrower::Policy, nowhere())).and_then(|rule| {
            capped(word, cap).or_else(|| conflict(manifest, rule, hosts, files)).map_or(Ok(rule), Err)
        });
        verdicts.push(match judged {
            Ok(rule) => {
                let grant = grant(policy, rule);
                let verdict = Verdict::met(What::Capability, word, used(name, rule.header.as_ref()), &[wall]);
                let verdict = verdict.because(&grant.rule, &rule.why, policy.place(rule.at));
                grants.push(grant);
                verdict
            }
            Err((narrower, reason)) => Verdict::denied(What::Capability, word, narrower, reason, &[wall]),
        });
    }
    grants.sort_by(|a, b| a.name.cmp(&b.name));
    grants
}

/// Every entry of the policy that the cap allows.
pub(super) fn allowed(policy: &Policy, cap: Option<&Policy>) -> Vec<SecretGrant> {
    let kept = policy.secrets.iter().filter(|rule| capped(&format!("secret:{}", rule.name), cap).is_none());
    kept.map(|rule| grant(policy, rule)).collect()
}

fn grant(policy: &Policy, rule: &SecretRule) -> SecretGrant {
    SecretGrant {
        name: rule.name.clone(),
        from: rule.from.clone(),
        header: rule.header.clone(),
        rule: format!("{}: {}", policy.name, rule.name),
        why: rule.why.clone(),
    }
}

fn capped(word: &str, cap: Option<&Policy>) -> Option<(Narrower, String)> {
    let cap = cap.filter(|cap| !cap.capabilities.iter().any(|capability| capability.name == word))?;
    let reason = format!("no entry of [capabilities] grant in policy {} names {word}", cap.called());
    Some((Narrower::Host, reason))
}

/// Why a secret that both allow cannot be used by this tool, with the mend.
fn conflict(
    manifest: &Manifest,
    rule: &SecretRule,
    hosts: &[HostGrant],
    files: &[Grant],
) -> Option<(Narrower, String)> {
    let name = &rule.name;
    if let Some(all) = rule.from.all_files()
        && let Some(open) = files.iter().find(|grant| Area::of(&grant.opening).overlap(&all).is_some())
    {
        let reason = format!(
            "the secrets of all callers lie in {}, and the tool could read them there ({}): put them elsewhere",
            text::path(all.folder()),
            open.rule
        );
        return Some((Narrower::Policy, reason));
    }
    let Some(header) = &rule.header else {
        let other = match manifest.execution.env.contains_key(name) {
            true => "sets a variable of that name itself (execution.env)".to_owned(),
            false => {
                let asked = manifest.asks.capabilities.iter().find(|word| **word == format!("env:{name}"))?;
                format!("asks for `{asked}`, too")
            }
        };
        let reason =
            format!("the secret is the variable {name}, and the manifest {other}: take that out of the manifest");
        return Some((Narrower::House, reason));
    };
    if let SecretSource::File(file) = &rule.from
        && let spellings = [Some(file.clone()), file.canonicalize().ok()]
        && let Some(open) =
            files.iter().find(|grant| spellings.iter().flatten().any(|file| Area::of(&grant.opening).holds(file)))
    {
        let reason = format!(
            "toolhost adds it so that the tool never has it, and the tool could read the file where it lies ({}): put that file elsewhere",
            open.rule
        );
        return Some((Narrower::Policy, reason));
    }
    if let SecretSource::Env(variable) = &rule.from
        && manifest.asks.capabilities.contains(&format!("env:{variable}"))
    {
        let reason = format!(
            "toolhost adds it so that the tool never has it, and the manifest asks for the same text as `env:{variable}`: take that out"
        );
        return Some((Narrower::House, reason));
    }
    let host = Host::Name(header.host.clone());
    if hosts.iter().any(|grant| grant.reaches(&host, HTTP)) {
        return None;
    }
    let asks = manifest.asks.hosts.iter().any(|ask| ask.host.covers(&host) && ask.ports().contains(&HTTP));
    let narrower = if asks { Narrower::Policy } else { Narrower::Manifest };
    let at = format!("{}:{HTTP}", header.host);
    let reason = format!(
        "its header goes to http://{0}, which this tool does not reach: the manifest must ask for `{at}` (allowHosts) and the policy grant it ([network] hosts); the tool speaks http://{0}, and toolhost speaks TLS to the host",
        header.host
    );
    Some((narrower, reason))
}
