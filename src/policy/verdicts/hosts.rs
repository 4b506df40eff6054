//! Hosts: those that a manifest requests ∩ the entries of the policy ∩ those of the cap, exactly.

use super::ceiling::{Ceiling, narrowed};
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::manifest::host::HostPattern;
use crate::policy::grammar::document::PolicyEntry;
use crate::policy::grammar::grantable::{Grantable, least};
use crate::policy::grammar::hosts::{self, HostGrant};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The layers that limit a tool to its hosts: a network namespace with our stub and relay only,
/// ports, socket types.
const LAYERS: [Layer; 3] = [Layer::Network, Layer::Landlock, Layer::Seccomp];

/// The answer to each request, and the grants of all.
pub fn judge(
    requests: &[HostPattern],
    ceilings: &[Ceiling<'_>],
    verdicts: &mut Vec<Verdict>,
) -> Vec<HostGrant> {
    let mut grants = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        if requests[..index].contains(request) {
            continue;
        }
        let ranges = vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        let rule = String::new();
        let why = String::new();
        let whole = HostGrant {
            pattern: request.clone(),
            ranges,
            asked: request.to_string(),
            rule,
            why,
        };
        let parts = narrowed(
            whole,
            ceilings,
            |policy| &policy.hosts,
            |part: &HostGrant, entry: &PolicyEntry<HostGrant>| part.intersection(&entry.grant),
            HostGrant::covers,
        );
        verdicts.push(verdict(request, &parts, ceilings));
        grants.extend(parts);
    }
    least(grants)
}

fn verdict(request: &HostPattern, parts: &[HostGrant], ceilings: &[Ceiling<'_>]) -> Verdict {
    fn missing(ceiling: &Ceiling<'_>, request: &HostPattern) -> Vec<u16> {
        request
            .ports()
            .into_iter()
            .filter(|port| {
                !ceiling
                    .policy
                    .hosts
                    .iter()
                    .any(|entry| entry.grant.reaches(&request.host, *port))
            })
            .collect()
    }
    let refusing = ceilings
        .iter()
        .find(|ceiling| !missing(ceiling, request).is_empty())
        .or(ceilings.first());
    let (narrower, reason) = refusing.map_or((Narrower::Policy, String::new()), |ceiling| {
        let what = format!(
            "{} at {}",
            hosts::host(request),
            hosts::ports(&missing(ceiling, request))
        );
        (
            ceiling.narrower,
            ceiling.lacks_entry("[network] hosts", &what),
        )
    });
    let (Some(first), Some(Ceiling { policy, .. })) = (parts.first(), ceilings.first()) else {
        return Verdict::denied(
            RequestKind::Host,
            request.to_string(),
            narrower,
            reason,
            &LAYERS,
        );
    };
    fn each(field: fn(&HostGrant) -> &String, parts: &[HostGrant]) -> String {
        let mut texts: Vec<&str> = parts.iter().map(|part| field(part).as_str()).collect();
        texts.dedup();
        texts.join("; ")
    }
    let entry = policy
        .hosts
        .iter()
        .find(|entry| entry.grant.rule == first.rule);
    let place = entry.map_or_else(String::new, |entry| policy.place(entry.at));
    let effective: Vec<String> = parts.iter().map(HostGrant::text).collect();
    let verdict = Verdict::met(
        RequestKind::Host,
        request.to_string(),
        effective.join("; "),
        &LAYERS,
    );
    let verdict = verdict.because(
        each(|part| &part.rule, parts),
        each(|part| &part.why, parts),
        place,
    );
    let is_whole = request
        .ports()
        .into_iter()
        .all(|port| parts.iter().any(|part| part.reaches(&request.host, port)));
    if is_whole {
        verdict
    } else {
        verdict.only_in_part(narrower, &reason)
    }
}
