//! The entries of `[network] hosts`, and grants of hosts.
//!
//! Two entries are never joined into a wider one. An address that is not public is reached only
//! where an entry of its own lists the range.

use super::document::PolicyEntry;
use super::grantable::Grantable;
use super::secrets::{HeaderRule, SecretGrant};
use crate::base::address::special;
use crate::base::text;
use crate::manifest::host::{self, Host, HostPattern};
use crate::manifest::reader::Reader;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// What a call reaches over a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing: an empty network namespace and no sockets.
    #[default]
    None,
    /// These hosts, through the stub and relay of `egress`, which are all that its network
    /// namespace holds. Without hosts each is refused and noted.
    Hosts(Vec<HostGrant>),
}

impl Network {
    pub fn hosts(&self) -> &[HostGrant] {
        match self {
            Network::None => &[],
            Network::Hosts(hosts) => hosts,
        }
    }

    /// Whether it may ask for hosts at all.
    pub fn is_relayed(&self) -> bool {
        *self != Network::None
    }

    pub fn ports(&self) -> Vec<u16> {
        let ports: BTreeSet<u16> = self
            .hosts()
            .iter()
            .flat_map(|grant| grant.pattern.ports())
            .collect();
        ports.into_iter().collect()
    }
}

/// Hosts that a call may reach, and the rule that grants them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostGrant {
    #[serde(flatten)]
    pub pattern: HostPattern,
    /// The non-public addresses that these hosts may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<IpNet>,
    pub asked: String,
    pub rule: String,
    pub why: String,
}

impl HostGrant {
    /// Whether a host of this exact name or address is granted at this port.
    pub fn reaches(&self, host: &Host, port: u16) -> bool {
        self.pattern.host.covers(host) && self.pattern.ports().contains(&port)
    }
}

impl HostGrant {
    /// What both grant, by the rule of the first that has one.
    pub fn intersection(&self, other: &HostGrant) -> Option<HostGrant> {
        let pattern = self.pattern.overlap(&other.pattern)?;
        let mut ranges = common(&self.ranges, &other.ranges);
        if let Host::Address(address) = &pattern.host {
            ranges.retain(|range| range.contains(address));
        }
        let by = if self.rule.is_empty() { other } else { self };
        let asked = self.asked.clone();
        let rule = by.rule.clone();
        let why = by.why.clone();
        unreachable(&pattern, &ranges)
            .is_none()
            .then_some(HostGrant {
                pattern,
                ranges,
                asked,
                rule,
                why,
            })
    }
}

fn common(ours: &[IpNet], theirs: &[IpNet]) -> Vec<IpNet> {
    let mut both = Vec::new();
    for (our, their) in ours
        .iter()
        .flat_map(|our| theirs.iter().map(move |their| (our, their)))
    {
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
        format!(
            "{} at {}{also}",
            host(&self.pattern),
            ports(&self.pattern.ports())
        )
    }
    fn covers(&self, other: &HostGrant) -> bool {
        HostGrant::are_covering(std::slice::from_ref(self), other)
    }
    /// Compares port by port, and at each port the ranges.
    fn are_covering(wide: &[HostGrant], narrow: &HostGrant) -> bool {
        narrow.pattern.ports().into_iter().all(|port| {
            let mut at = wide
                .iter()
                .filter(|other| other.reaches(&narrow.pattern.host, port))
                .peekable();
            let ranges: Vec<&IpNet> = at.clone().flat_map(|other| &other.ranges).collect();
            at.peek().is_some()
                && narrow
                    .ranges
                    .iter()
                    .all(|range| ranges.iter().any(|other| other.contains(range)))
        })
    }
    fn is_near(&self, other: &HostGrant) -> bool {
        self.pattern.overlap(&other.pattern).is_some()
    }
}

pub fn host(pattern: &HostPattern) -> String {
    HostPattern {
        port: None,
        ..pattern.clone()
    }
    .to_string()
}

pub fn ports(ports: &[u16]) -> String {
    format!(
        "port{} {}",
        if ports.len() == 1 { "" } else { "s" },
        list(ports)
    )
}

#[derive(Deserialize)]
struct HostLine {
    host: String,
    why: String,
}

/// The CA certificates by which a tool trusts hosts, beside those of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAuthority {
    pub pattern: HostPattern,
    pub file: PathBuf,
}

/// The CA certificates of an entry.
#[derive(Deserialize)]
struct Authority {
    host: String,
    ca: Option<PathBuf>,
}

/// The entries of `[network] hosts`; `policy`: the policy's name.
pub fn read(document: &mut Reader<'_>, policy: &str) -> Vec<PolicyEntry<HostGrant>> {
    let mut found: Vec<PolicyEntry<HostGrant>> = Vec::new();
    for (entry, HostLine { host, why }) in document.list("/network/hosts") {
        let ranges = ranges(document, &entry);
        let pointer = format!("{entry}/host");
        let Some(pattern) = document.parsed(&pointer, host::parse_pattern(&host)) else {
            continue;
        };
        if found.iter().any(|entry| entry.grant.pattern == pattern) {
            document.conflict(
                &pointer,
                format!("`{pattern}` is named twice: keep one entry, with the ranges of both"),
            );
        } else if !document.is_faulty(&entry)
            && let Some(message) = unreachable(&pattern, &ranges)
        {
            document.fault(&pointer, message);
        }
        let rule = format!("{policy}: {pattern}");
        let grant = HostGrant {
            pattern,
            ranges,
            asked: String::new(),
            rule,
            why,
        };
        found.push(PolicyEntry {
            grant,
            at: document.at(&pointer),
        });
    }
    found
}

/// Sets the `ca` of each header from its host's entry, and returns those of the entries that hold
/// the host of no header. `folder`: the policy file's, where relative paths start.
pub fn set_authorities(
    document: &mut Reader<'_>,
    secrets: &mut [PolicyEntry<SecretGrant>],
    folder: &Path,
) -> Vec<HostAuthority> {
    let mut others = Vec::new();
    for (_, Authority { host, ca }) in document.list("/network/hosts") {
        let (Some(ca), Ok(pattern)) = (ca, host::parse_pattern(&host)) else {
            continue;
        };
        let ca = folder.join(ca);
        let mut headers = secrets
            .iter_mut()
            .filter_map(|entry| entry.grant.header.as_mut())
            .filter(|header: &&mut HeaderRule| {
                pattern.host.covers(&Host::Name(header.host.clone()))
            })
            .peekable();
        let unused = headers.peek().is_none();
        let other = headers.any(|header| {
            header
                .ca
                .replace(ca.clone())
                .is_some_and(|other| other != ca)
        });
        if unused {
            others.push(HostAuthority { pattern, file: ca });
        } else if other {
            let message = "another entry with this host has another `ca`: write the same one";
            document.fault("/network/hosts", format!("`{pattern}`: {message}"));
        }
    }
    others
}

pub fn ranges(document: &mut Reader<'_>, entry: &str) -> Vec<IpNet> {
    let mut found = Vec::new();
    for (pointer, written) in document.list::<String>(&format!("{entry}/ranges")) {
        let Some(range) = document.parsed(&pointer, range(&written)) else {
            continue;
        };
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
    let range = written
        .parse::<IpNet>()
        .or_else(|_| written.parse::<IpAddr>().map(IpNet::from));
    let range = range
        .map_err(|_| format!("`{shown}` is not a range of addresses, such as `10.1.0.0/16`"))?;
    let v4 = range
        .prefix_len()
        .checked_sub(96)
        .zip(range.addr().is_ipv6().then(|| range.addr().to_canonical()));
    let plain = match v4 {
        Some((length, IpAddr::V4(inner))) => format!("{inner}/{length}"),
        _ => range.trunc().to_string(),
    };
    if range.to_string() != plain
        || (range.addr().is_ipv4() && plain != written)
        || !written.contains('/')
    {
        return Err(format!(
            "`{shown}` is not in its usual form: write `{plain}`"
        ));
    }
    match special(range.addr()) {
        Some(_) => Ok(range),
        None => Err(format!(
            "`{shown}` is public already: a range names only addresses that are not public"
        )),
    }
}

/// Why this host can never be reached: its address is not public, and in none of the ranges.
pub fn unreachable(pattern: &HostPattern, ranges: &[IpNet]) -> Option<String> {
    let Host::Address(address) = pattern.host else {
        return None;
    };
    let what = special(address).filter(|_| !ranges.iter().any(|range| range.contains(&address)))?;
    let range = IpNet::from(address);
    Some(format!(
        "`{address}` is not public ({what}): add ranges = [\"{range}\"] to the entry if it is meant"
    ))
}

/// The risks of reaching these hosts, a sentence each.
pub fn risks(pattern: &HostPattern, ranges: &[IpNet]) -> Vec<String> {
    let mut found = Vec::new();
    match &pattern.host {
        Host::Any => found
            .push("it is every public name: the tool can send what it reads to anybody".to_owned()),
        Host::Below(name) if !name.contains('.') => {
            found.push(format!(
                "`{name}` is a whole top-level domain: others have names below it, too"
            ));
        }
        _ => {}
    }
    if matches!(pattern.host, Host::Any | Host::Below(_)) && !ranges.is_empty() {
        found.push(
            "it has ranges: whoever answers for a name below it chooses which address is reached"
                .to_owned(),
        );
    }
    let machine = ranges.iter().filter(|range| {
        THIS_MACHINE.iter().any(|net| {
            net.parse()
                .is_ok_and(|net: IpNet| net.contains(*range) || range.contains(&net))
        })
    });
    found.extend(machine.map(|range| {
        format!("its range {range} holds this machine, or its cloud's metadata service")
    }));
    found
}

/// Addresses of this machine, its link, or services that reveal its secrets.
#[rustfmt::skip]
const THIS_MACHINE: [&str; 9] = [
    "0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128", "169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32",
    "fd00:ec2::254/128", "fe80::/10",
];

fn list<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
