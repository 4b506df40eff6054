//! Hosts: `[network]` of a policy: which hosts, and which addresses that are not public they may have.
//!
//! For: `policy/file.rs`, which reads policies, and the reports that name what is risky. In: a TOML table. Out:
//! `HostRule`s. Never: accepts a range that opens nothing, or a host that no range lets anybody reach; resolves a name.

use super::source::{At, Reader, Table};
use crate::base::address::special;
use crate::base::text;
use crate::manifest::Code;
use crate::manifest::host::{self, Host, HostPattern};
use crate::quantity::{MAX_HOSTS, MAX_RANGES};
use ipnet::IpNet;
use std::net::IpAddr;

/// One entry of `[network] hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    pub pattern: HostPattern,
    /// Addresses that are not public, and that the hosts of this entry may have all the same.
    pub ranges: Vec<IpNet>,
    pub why: String,
    pub at: At,
}

pub(super) fn read(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Vec<HostRule> {
    let mut found: Vec<HostRule> = Vec::new();
    let Some(table) = reader.table(top, "network") else { return found };
    reader.only(&table, &["hosts"]);
    let entries = reader.tables(&table, "hosts", "{ host = \"api.example.com\", why = \"…\" }");
    if entries.len() > MAX_HOSTS {
        let message = format!("more than {MAX_HOSTS} hosts: name what they have in common (`*.example.com`)");
        reader.schema(table.pointer_to("hosts"), table.at, message);
    }
    for entry in entries.into_iter().take(MAX_HOSTS) {
        let mends = ["write a name, `*.name` or an address, each with an optional `:port`", "say why it is reached"];
        let named = reader.reasoned_with(&entry, "host", &["ranges"], mends);
        let ranges = ranges(reader, &entry);
        let (Some((host, why)), Some(ranges)) = (named, ranges) else { continue };
        let pointer = entry.pointer_to("host");
        match host::pattern(&host.value) {
            Err(message) => reader.schema(pointer, host.at, message),
            Ok(pattern) if found.iter().any(|rule| rule.pattern == pattern) => {
                let message = format!("`{pattern}` is named twice: keep one entry, with the ranges of both");
                reader.complain(Code::Conflict, pointer, host.at, message);
            }
            Ok(pattern) => match unreachable(&pattern, &ranges) {
                Some(message) => reader.schema(pointer, host.at, message),
                None => found.push(HostRule { pattern, ranges, why, at: host.at }),
            },
        }
    }
    found
}

/// `None` where one of them was complained of.
pub(super) fn ranges(reader: &mut Reader<'_>, entry: &Table<'_, '_>) -> Option<Vec<IpNet>> {
    let before = reader.problems.len();
    let written = reader.texts(entry, "ranges");
    if written.len() > MAX_RANGES {
        reader.schema(entry.pointer_to("ranges"), entry.at, format!("more than {MAX_RANGES} ranges: name wider ones"));
    }
    let mut found = Vec::new();
    for (pointer, written) in written.into_iter().take(MAX_RANGES) {
        match range(&written.value) {
            Ok(range) if found.contains(&range) => {
                reader.complain(Code::Conflict, pointer, written.at, format!("`{range}` is named twice"));
            }
            Ok(range) => found.push(range),
            Err(message) => reader.schema(pointer, written.at, message),
        }
    }
    (reader.problems.len() == before).then_some(found)
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
