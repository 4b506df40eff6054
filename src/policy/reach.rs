//! Reach: the hosts that a manifest asks for ∩ the policy's entries ∩ the host's cap, exactly.
//!
//! For: `decide`, the reports. In: asks, two policies. Out: verdicts and grants. Never: joins two entries into a wider
//! one; gives an address that is not public to a host whose own entry does not list it.

use super::HostGrant;
use super::file::Policy;
use super::hosts::{self, HostRule, list};
use super::verdict::{Narrower, Verdict, What, wall};
use crate::manifest::host::{Host, HostPattern};
use ipnet::IpNet;

/// What holds a tool to its hosts: a network namespace with our stub and relay only, ports, kinds of sockets.
pub(super) const WALLS: [&str; 3] = [wall::NETWORK, wall::LANDLOCK, wall::SECCOMP];

/// The answer to each ask, and the grants of all.
pub(super) fn judge(asks: &[HostPattern], policy: &Policy, cap: Option<&Policy>) -> (Vec<Verdict>, Vec<HostGrant>) {
    let allowed = allowed(policy, cap);
    let (mut verdicts, mut grants) = (Vec::new(), Vec::new());
    for (index, ask) in asks.iter().enumerate() {
        if asks[..index].contains(ask) {
            continue;
        }
        let granted = |entry: &HostGrant| Some(HostGrant { asked: ask.to_string(), ..part(entry, ask, None)? });
        let pieces = least(allowed.iter().filter_map(granted).collect());
        verdicts.push(verdict(ask, &pieces, policy, cap));
        grants.extend(pieces);
    }
    (verdicts, least(grants))
}

/// Every entry of the policy, as far as one of the cap holds it too.
pub(super) fn allowed(policy: &Policy, cap: Option<&Policy>) -> Vec<HostGrant> {
    let grant = |rule: &HostRule| HostGrant {
        pattern: rule.pattern.clone(),
        ranges: rule.ranges.clone(),
        asked: String::new(),
        rule: named(policy, rule),
        why: rule.why.clone(),
    };
    let grants = policy.hosts.iter().map(grant);
    match cap {
        None => grants.collect(),
        Some(cap) => grants
            .flat_map(|grant| cap.hosts.iter().filter_map(move |most| part(&grant, &most.pattern, Some(&most.ranges))))
            .collect(),
    }
}

fn named(policy: &Policy, rule: &HostRule) -> String {
    format!("{}: {}", policy.name, rule.pattern)
}

/// The part of a grant that these hosts are, and of its ranges what lies in `most`.
pub(super) fn part(grant: &HostGrant, of: &HostPattern, most: Option<&[IpNet]>) -> Option<HostGrant> {
    let pattern = grant.pattern.overlap(of)?;
    let mut ranges = match most {
        Some(most) => common(&grant.ranges, most),
        None => grant.ranges.clone(),
    };
    if let Host::Address(address) = &pattern.host {
        ranges.retain(|range| range.contains(address));
    }
    hosts::unreachable(&pattern, &ranges).is_none().then(|| HostGrant { pattern, ranges, ..grant.clone() })
}

/// The addresses that are in both.
fn common(ours: &[IpNet], theirs: &[IpNet]) -> Vec<IpNet> {
    let mut both = Vec::new();
    for (our, their) in ours.iter().flat_map(|our| theirs.iter().map(move |their| (our, their))) {
        let inner = if our.contains(their) { their } else { our };
        if (our.contains(their) || their.contains(our)) && !both.contains(inner) {
            both.push(*inner);
        }
    }
    both
}

/// True if these grants reach all that `grant` does: each port, and at each the addresses of its ranges.
pub(super) fn reached(by: &[HostGrant], grant: &HostGrant) -> bool {
    grant.pattern.ports().into_iter().all(|port| {
        let mut at = by.iter().filter(|other| other.reaches(&grant.pattern.host, port)).peekable();
        let ranges: Vec<&IpNet> = at.clone().flat_map(|other| &other.ranges).collect();
        at.peek().is_some() && grant.ranges.iter().all(|range| ranges.iter().any(|other| other.contains(range)))
    })
}

/// Grants without those that another grant already holds.
pub(super) fn least(grants: Vec<HostGrant>) -> Vec<HostGrant> {
    let mut kept: Vec<HostGrant> = Vec::new();
    for grant in grants {
        if !kept.iter().any(|wide| reached(std::slice::from_ref(wide), &grant)) {
            kept.retain(|narrow| !reached(std::slice::from_ref(&grant), narrow));
            kept.push(grant);
        }
    }
    kept
}

fn verdict(ask: &HostPattern, pieces: &[HostGrant], policy: &Policy, cap: Option<&Policy>) -> Verdict {
    let (narrower, refuses) = match cap {
        Some(cap) if missing(ask, policy).is_empty() => (Narrower::Host, cap),
        _ => (Narrower::Policy, policy),
    };
    let reason = || reason(ask, refuses);
    let Some(first) = pieces.first() else {
        return Verdict::denied(What::Host, ask.to_string(), narrower, reason(), &WALLS);
    };
    let each = |field: fn(&HostGrant) -> &String| {
        let mut texts: Vec<&str> = pieces.iter().map(|piece| field(piece).as_str()).collect();
        texts.dedup();
        texts.join("; ")
    };
    let place = policy.hosts.iter().find(|rule| named(policy, rule) == first.rule).map(|rule| policy.place(rule.at));
    let effective: Vec<String> = pieces.iter().map(text).collect();
    let mut verdict = Verdict::met(What::Host, ask.to_string(), effective.join("; "), &WALLS).because(
        each(|piece| &piece.rule),
        each(|piece| &piece.why),
        place.unwrap_or_default(),
    );
    let whole = ask.ports().into_iter().all(|port| pieces.iter().any(|piece| piece.reaches(&ask.host, port)));
    if !whole {
        verdict.allowed = false;
        verdict.narrower = Some(narrower);
        verdict.reason = Some(format!("only a part is allowed: {}", reason()));
    }
    verdict
}

/// The ports of an ask at which no entry of the policy holds all its hosts.
fn missing(ask: &HostPattern, policy: &Policy) -> Vec<u16> {
    let held = |port: &u16| {
        policy.hosts.iter().any(|rule| rule.pattern.host.covers(&ask.host) && rule.pattern.ports().contains(port))
    };
    ask.ports().into_iter().filter(|port| !held(port)).collect()
}

/// Why a policy does not hold an ask, and which of its entries comes near.
fn reason(ask: &HostPattern, policy: &Policy) -> String {
    let hosts = || policy.hosts.iter().map(|rule| &rule.pattern);
    let parent_of =
        |pattern: &HostPattern| matches!((&pattern.host, &ask.host), (Host::Below(a), Host::Name(b)) if a == b);
    let near = if let Some(near) = hosts().find(|pattern| pattern.host.covers(&ask.host)) {
        format!("; its `{near}` is for {}", ports(&near.ports()))
    } else if let Some(near) = hosts().find(|pattern| parent_of(pattern)) {
        format!("; its `{near}` is for names below it, and not for the name itself")
    } else if matches!(ask.host, Host::Address(_)) && hosts().any(|pattern| pattern.host == Host::Any) {
        "; its `*` is for names, and an address needs an entry of its own".to_owned()
    } else if ask.host == Host::Any {
        "; only an entry `*` does".to_owned()
    } else {
        String::new()
    };
    let at = ports(&missing(ask, policy));
    format!("no entry of [network] hosts in policy {} holds {} at {at}{near}", policy.called(), host(ask))
}

/// A grant for people.
pub(super) fn text(grant: &HostGrant) -> String {
    let also = match grant.pattern.host {
        Host::Address(_) => String::new(),
        _ if grant.ranges.is_empty() => String::new(),
        _ => format!(", also where its address lies in {}", list(&grant.ranges)),
    };
    format!("{} at {}{also}", host(&grant.pattern), ports(&grant.pattern.ports()))
}

fn host(pattern: &HostPattern) -> String {
    HostPattern { port: None, ..pattern.clone() }.to_string()
}

fn ports(ports: &[u16]) -> String {
    format!("port{} {}", if ports.len() == 1 { "" } else { "s" }, list(ports))
}
