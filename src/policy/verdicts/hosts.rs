//! Hosts: those that a manifest requests ∩ the entries of the policy ∩ those of the cap, exactly.

use super::ceiling::{Ceiling, Ceilings};
use super::verdict::{Answers, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::manifest::host::HostPattern;
use crate::policy::grammar::grantable::least;
use crate::policy::grammar::{Grantable, HostGrant, PolicyEntry, hosts};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The layers that limit a tool to its hosts: a network namespace with our stub and relay only,
/// ports, socket types.
const LAYERS: [Layer; 3] = [Layer::Network, Layer::Landlock, Layer::Seccomp];

pub fn grants_of(
    requests: &[HostPattern],
    ceilings: &Ceilings<'_>,
    answers: &mut Answers,
) -> Vec<HostGrant> {
    let mut grants = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        if requests[..index].contains(request) {
            continue;
        }
        let whole = HostGrant {
            pattern: request.clone(),
            ranges: vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())],
            asked: request.to_string(),
            rule: String::new(),
            why: String::new(),
        };
        let parts = ceilings.narrowed(
            whole,
            |policy| &policy.hosts,
            |part: &HostGrant, entry: &PolicyEntry<HostGrant>| part.intersection(&entry.grant),
            HostGrant::covers,
        );
        answers.verdicts.push(verdict(request, &parts, ceilings));
        grants.extend(parts);
    }
    least(grants)
}

fn verdict(request: &HostPattern, parts: &[HostGrant], ceilings: &Ceilings<'_>) -> Verdict {
    let ceiling = ceilings.refusing(|ceiling| missing(ceiling, request).is_empty());
    let ports = hosts::ports(&missing(&ceiling, request));
    let what = format!("{} at {ports}", hosts::host(request));
    let refusal = ceiling.refusal("[network] hosts", &what);
    let asked = request.to_string();
    let Some(first) = parts.first() else {
        return refusal.verdict(RequestKind::Host, asked, &LAYERS);
    };
    let mut entries = ceilings.policy.hosts.iter();
    let place = entries
        .find(|entry| entry.grant.rule == first.rule)
        .map_or_else(String::new, |entry| ceilings.policy.place(entry.at));
    let effective: Vec<String> = parts.iter().map(HostGrant::text).collect();
    let verdict = Verdict::met(RequestKind::Host, asked, effective.join("; "), &LAYERS).because(
        joined(parts.iter().map(|part| part.rule.as_str())),
        joined(parts.iter().map(|part| part.why.as_str())),
        place,
    );
    let reaches = |port| parts.iter().any(|part| part.reaches(&request.host, port));
    if request.ports().into_iter().all(reaches) {
        verdict
    } else {
        verdict.only_in_part(refusal)
    }
}

/// The requested ports that no entry of a ceiling grants.
fn missing(ceiling: &Ceiling<'_>, request: &HostPattern) -> Vec<u16> {
    let mut ports = request.ports();
    let entries = &ceiling.policy.hosts;
    ports.retain(|port| {
        !entries
            .iter()
            .any(|entry| entry.grant.reaches(&request.host, *port))
    });
    ports
}

fn joined<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let mut texts: Vec<&str> = texts.collect();
    texts.dedup();
    texts.join("; ")
}
