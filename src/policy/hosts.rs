//! Hosts: those that a manifest asks for ∩ the entries of the policy ∩ those of the cap, exactly.
//!
//! Two entries are never joined into a wider one. An address that is not public is reached only where an entry of its own
//! lists the range.

use super::document::Document;
use super::file::Policy;
use super::grantable::{Entry, Grantable, Narrowing, least, narrowed};
use super::verdict::{Narrower, RequestKind, Verdict, wall};
use super::{HeaderRule, HostGrant, SecretGrant};
use crate::base::address::special;
use crate::base::text;
use crate::manifest::host::{self, Host, HostPattern};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct HostLine {
    host: String,
    why: String,
}

/// The certificates of who vouches for those hosts of an entry that get a header.
#[derive(Deserialize)]
struct Authority {
    host: String,
    ca: Option<PathBuf>,
}

/// The entries of `[network] hosts`; `policy`: the policy's name.
pub(super) fn read(document: &mut Document<'_>, policy: &str) -> Vec<Entry<HostGrant>> {
    let mut found: Vec<Entry<HostGrant>> = Vec::new();
    for (entry, HostLine { host, why }) in document.list("/network/hosts") {
        let ranges = ranges(document, &entry);
        let pointer = format!("{entry}/host");
        let Some(pattern) = document.parsed(&pointer, host::pattern(&host)) else { continue };
        if found.iter().any(|entry| entry.grant.pattern == pattern) {
            document.conflict(&pointer, format!("`{pattern}` is named twice: keep one entry, with the ranges of both"));
        } else if !document.is_faulty(&entry)
            && let Some(message) = unreachable(&pattern, &ranges)
        {
            document.fault(&pointer, message);
        }
        let rule = format!("{policy}: {pattern}");
        let grant = HostGrant { pattern, ranges, asked: String::new(), rule, why };
        found.push(Entry { grant, at: document.at(&pointer) });
    }
    found
}

/// Gives the headers the authorities of their hosts. `folder`: of the policy file, where relative paths start.
pub(super) fn vouch(document: &mut Document<'_>, secrets: &mut [Entry<SecretGrant>], folder: &Path) {
    for (_, Authority { host, ca }) in document.list("/network/hosts") {
        let (Some(ca), Ok(pattern)) = (ca, host::pattern(&host)) else { continue };
        let ca = folder.join(ca);
        let held = |header: &&mut HeaderRule| pattern.host.covers(&Host::Name(header.host.clone()));
        let mut headers = secrets.iter_mut().filter_map(|entry| entry.grant.header.as_mut()).filter(held).peekable();
        let unused = headers.peek().is_none();
        let other = headers.any(|header| header.ca.replace(ca.clone()).is_some_and(|other| other != ca));
        let message = match () {
            () if unused => "its `ca` has no effect: no [secrets] header goes to it, and other TLS is the tool's own",
            () if other => "another entry with this host has another `ca`: write one",
            () => continue,
        };
        document.fault("/network/hosts", format!("`{pattern}`: {message}"));
    }
}

/// The `ranges` of an entry.
pub(super) fn ranges(document: &mut Document<'_>, entry: &str) -> Vec<IpNet> {
    let mut found = Vec::new();
    for (pointer, written) in document.list::<String>(&format!("{entry}/ranges")) {
        let Some(range) = document.parsed(&pointer, range(&written)) else { continue };
        if found.contains(&range) {
            document.conflict(&pointer, format!("`{range}` is named twice"));
        }
        found.push(range);
    }
    found
}

/// A range of addresses that are not public.
pub fn range(written: &str) -> Result<IpNet, String> {
    let shown = text::printable(&text::head(written, 60));
    if let Ok(address) = written.parse::<IpAddr>() {
        return Err(format!("`{shown}` is one address: write `{}`", IpNet::from(address)));
    }
    let range: IpNet =
        written.parse().map_err(|_| format!("`{shown}` is no range of addresses: write for example `10.1.0.0/16`"))?;
    let plain = range.trunc();
    if plain != range || (plain.addr().is_ipv4() && plain.to_string() != written) {
        return Err(format!("`{shown}` has bits beyond its length, or zeros before a number: write `{plain}`"));
    }
    if let (IpNet::V6(six), IpAddr::V4(four)) = (range, range.addr().to_canonical())
        && let Some(length) = six.prefix_len().checked_sub(96)
    {
        return Err(format!("`{shown}` is IPv4 inside IPv6: write `{four}/{length}`"));
    }
    match special(range.addr()) {
        Some(_) => Ok(range),
        None => Err(format!(
            "`{shown}`: {} is public already and needs no range; name only addresses that are not public",
            range.addr()
        )),
    }
}

/// Why nobody reaches this host: an address that is not public, in none of the ranges.
pub(super) fn unreachable(pattern: &HostPattern, ranges: &[IpNet]) -> Option<String> {
    let Host::Address(address) = pattern.host else { return None };
    let what = special(address).filter(|_| !ranges.iter().any(|range| range.contains(&address)))?;
    let range = IpNet::from(address);
    Some(format!("`{address}` is not public ({what}): add ranges = [\"{range}\"] to the entry if it is meant"))
}

/// Where anybody can have a name.
#[rustfmt::skip]
const SHARED: [&str; 24] = [
    "amazonaws.com", "appspot.com", "azureedge.net", "azurewebsites.net", "blogspot.com", "cloudapp.net",
    "cloudfront.net", "digitaloceanspaces.com", "firebaseapp.com", "fly.dev", "github.io", "gitlab.io", "googleapis.com",
    "herokuapp.com", "netlify.app", "ngrok.io", "onrender.com", "pages.dev", "r2.dev", "run.app", "vercel.app", "web.app",
    "windows.net", "workers.dev",
];

/// Addresses that are this host, or that tell whoever asks a machine's secrets.
const OWN: [(&str, &str); 9] = [
    ("0.0.0.0/8", "this host itself"),
    ("127.0.0.0/8", "this host itself"),
    ("::/128", "this host itself"),
    ("::1/128", "this host itself"),
    ("169.254.0.0/16", "the metadata service of a cloud"),
    ("168.63.129.16/32", "the metadata service of a cloud"),
    ("100.100.100.200/32", "the metadata service of a cloud"),
    ("fd00:ec2::254/128", "the metadata service of a cloud"),
    ("fe80::/10", "whatever else is on this host's link"),
];

/// What is risky about reaching these hosts, a sentence each.
pub(super) fn risks(pattern: &HostPattern, ranges: &[IpNet]) -> Vec<String> {
    let mut found = Vec::new();
    match &pattern.host {
        Host::Any => found.push("it is every public name, so what the tool reads can go to anybody".to_owned()),
        Host::Below(name) if !name.contains('.') => {
            found.push(format!("`{name}` is a whole top-level domain: others have names below it, too"));
        }
        Host::Below(name) => {
            let shared = SHARED.iter().find(|shared| name == *shared || host::is_below(name, shared));
            found.extend(shared.map(|shared| format!("anybody can have a name below `{shared}`")));
        }
        Host::Name(_) | Host::Address(_) => {}
    }
    if matches!(pattern.host, Host::Any | Host::Below(_)) && !ranges.is_empty() {
        let ranges = list(ranges);
        found.push(format!(
            "it has ranges ({ranges}): whoever answers for a name below it chooses which address is reached"
        ));
    }
    for range in ranges {
        let own = OWN
            .iter()
            .filter(|(own, _)| own.parse().is_ok_and(|own: IpNet| own.contains(range) || range.contains(&own)));
        let mut what: Vec<&str> = own.map(|(_, what)| *what).collect();
        what.dedup();
        if !what.is_empty() {
            found.push(format!("its range {range} holds {}", what.join(", ")));
        }
    }
    found
}

/// Ranges, or ports, with commas between.
pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What holds a tool to its hosts: a network namespace with our stub and relay only, ports, kinds of sockets.
pub(super) const WALLS: [&str; 3] = [wall::NETWORK, wall::LANDLOCK, wall::SECCOMP];

/// The answer to each request, and the grants of all.
pub(super) fn judge(asks: &[HostPattern], policy: &Policy, cap: Option<&Policy>) -> (Vec<Verdict>, Vec<HostGrant>) {
    let entries =
        |policy: &Policy| -> Vec<HostGrant> { policy.hosts.iter().map(|entry| entry.grant.clone()).collect() };
    let allowed = cap.into_iter().fold(entries(policy), |allowed, cap| narrowed(&allowed, &entries(cap)));
    let (mut verdicts, mut grants) = (Vec::new(), Vec::new());
    for (index, ask) in asks.iter().enumerate() {
        if asks[..index].contains(ask) {
            continue;
        }
        let pieces = least(narrowed(&allowed, &[request(ask)]));
        verdicts.push(verdict(ask, &pieces, policy, cap));
        grants.extend(pieces);
    }
    (verdicts, least(grants))
}

/// A request as a grant: whatever addresses its hosts have.
fn request(ask: &HostPattern) -> HostGrant {
    let ranges = vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    HostGrant { pattern: ask.clone(), ranges, asked: ask.to_string(), rule: String::new(), why: String::new() }
}

impl Narrowing for HostGrant {
    fn intersection(&self, other: &HostGrant) -> Option<HostGrant> {
        let pattern = self.pattern.overlap(&other.pattern)?;
        let mut ranges = common(&self.ranges, &other.ranges);
        if let Host::Address(address) = &pattern.host {
            ranges.retain(|range| range.contains(address));
        }
        let asked = if self.asked.is_empty() { other.asked.clone() } else { self.asked.clone() };
        unreachable(&pattern, &ranges).is_none().then(|| HostGrant { pattern, ranges, asked, ..self.clone() })
    }
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

impl Grantable for HostGrant {
    fn kind(&self) -> &'static str {
        "reach"
    }
    fn text(&self) -> String {
        let also = match self.pattern.host {
            Host::Address(_) => String::new(),
            _ if self.ranges.is_empty() => String::new(),
            _ => format!(", also where its address lies in {}", list(&self.ranges)),
        };
        format!("{} at {}{also}", host(&self.pattern), ports(&self.pattern.ports()))
    }
    fn covers(&self, other: &HostGrant) -> bool {
        HostGrant::are_covering(std::slice::from_ref(self), other)
    }
    /// Each port, and at each the addresses of its ranges.
    fn are_covering(wide: &[HostGrant], narrow: &HostGrant) -> bool {
        narrow.pattern.ports().into_iter().all(|port| {
            let mut at = wide.iter().filter(|other| other.reaches(&narrow.pattern.host, port)).peekable();
            let ranges: Vec<&IpNet> = at.clone().flat_map(|other| &other.ranges).collect();
            at.peek().is_some() && narrow.ranges.iter().all(|range| ranges.iter().any(|other| other.contains(range)))
        })
    }
    fn is_near(&self, other: &HostGrant) -> bool {
        self.pattern.overlap(&other.pattern).is_some()
    }
}

fn verdict(ask: &HostPattern, pieces: &[HostGrant], policy: &Policy, cap: Option<&Policy>) -> Verdict {
    let (narrower, refuses) = match cap {
        Some(cap) if missing(ask, policy).is_empty() => (Narrower::Host, cap),
        _ => (Narrower::Policy, policy),
    };
    let reason = || reason(ask, refuses);
    let Some(first) = pieces.first() else {
        return Verdict::denied(RequestKind::Host, ask.to_string(), narrower, reason(), &WALLS);
    };
    let each = |field: fn(&HostGrant) -> &String| {
        let mut texts: Vec<&str> = pieces.iter().map(|piece| field(piece).as_str()).collect();
        texts.dedup();
        texts.join("; ")
    };
    let place = policy.hosts.iter().find(|entry| entry.grant.rule == first.rule).map(|entry| policy.place(entry.at));
    let effective: Vec<String> = pieces.iter().map(HostGrant::text).collect();
    let verdict = Verdict::met(RequestKind::Host, ask.to_string(), effective.join("; "), &WALLS).because(
        each(|piece| &piece.rule),
        each(|piece| &piece.why),
        place.unwrap_or_default(),
    );
    let whole = ask.ports().into_iter().all(|port| pieces.iter().any(|piece| piece.reaches(&ask.host, port)));
    if whole { verdict } else { verdict.only_in_part(narrower, &reason()) }
}

/// The ports of an ask at which no entry of the policy holds all its hosts.
fn missing(ask: &HostPattern, policy: &Policy) -> Vec<u16> {
    let held = |port: &u16| policy.hosts.iter().any(|entry| entry.grant.reaches(&ask.host, *port));
    ask.ports().into_iter().filter(|port| !held(port)).collect()
}

/// Why a policy does not hold an ask, and which of its entries comes near.
fn reason(ask: &HostPattern, policy: &Policy) -> String {
    let hosts = || policy.hosts.iter().map(|entry| &entry.grant.pattern);
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

fn host(pattern: &HostPattern) -> String {
    HostPattern { port: None, ..pattern.clone() }.to_string()
}

fn ports(ports: &[u16]) -> String {
    format!("port{} {}", if ports.len() == 1 { "" } else { "s" }, list(ports))
}
