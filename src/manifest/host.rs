//! Host patterns: the entries of `allowHosts`, and of a policy's `[network] hosts`, in canonical
//! form. Syntax only: policy decides whether a host may be reached.

use crate::base::text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The ports of a pattern that names none: those of http and https.
pub const WEB_PORTS: [u16; 2] = [80, 443];

/// The port of name servers (RFC 1035, section 4.2).
const DNS: u16 = 53;

/// Which hosts a pattern stands for. Names are canonical: lower case, A-labels, no final dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Host {
    /// `*`: every name, and no address.
    Any,
    Name(String),
    /// `*.name`: one or more labels before this name, and not the name itself.
    Below(String),
    /// An address, which a tool must name as an address.
    Address(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPattern {
    pub host: Host,
    /// `None`: `WEB_PORTS`.
    pub port: Option<u16>,
}

impl Host {
    /// Whether this pattern matches every host that `other` matches.
    pub fn covers(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::Any, Host::Address(_)) => false,
            (Host::Any, _) => true,
            (Host::Below(own), Host::Name(name) | Host::Below(name)) => {
                is_below(name, own) || *other == *self
            }
            _ => self == other,
        }
    }
}

/// Whether a canonical name has one or more labels before `parent`.
pub fn is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent)
        .is_some_and(|rest| rest.ends_with('.'))
}

impl HostPattern {
    pub fn ports(&self) -> Vec<u16> {
        self.port.map_or(WEB_PORTS.to_vec(), |port| vec![port])
    }

    /// The pattern of what both match. `None`: they have nothing in common.
    pub fn overlap(&self, other: &HostPattern) -> Option<HostPattern> {
        let host = match (&self.host, &other.host) {
            (own, theirs) if own.covers(theirs) => theirs,
            (own, theirs) if theirs.covers(own) => own,
            _ => return None,
        };
        let port = match (self.port, other.port) {
            (None, None) => None,
            (Some(port), Some(other)) if port == other => Some(port),
            (Some(port), None) | (None, Some(port)) if WEB_PORTS.contains(&port) => Some(port),
            _ => return None,
        };
        Some(HostPattern {
            host: host.clone(),
            port,
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Any => f.write_str("*")?,
            Host::Name(name) => f.write_str(name)?,
            Host::Below(name) => write!(f, "*.{name}")?,
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Host::Address(address) => write!(f, "{address}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// `name`, `*.name`, `*`, an IPv4 or IPv6 address, each with an optional `:port` (IPv6 then in
/// brackets).
pub fn parse_pattern(written: &str) -> Result<HostPattern, String> {
    let why = match parse(written) {
        Some(HostPattern {
            port: Some(DNS), ..
        }) => "has port 53 (name servers): a tool reaches only the name server of its call",
        Some(pattern) => return Ok(pattern),
        None => {
            "is not a host: write a name (letters, digits and '-' between dots; in its xn-- form \
             where it is not ASCII), *.name (no '*' in the middle), * or a whole address, with or \
             without :PORT, no other URL part"
        }
    };
    Err(format!(
        "'{}' {why}",
        text::printable(&text::head(written, 120))
    ))
}

/// The canonical form of a host name as a program wrote it: labels of letters, digits, `-` and `_`,
/// in lower case, without final dot. `None` for anything else, addresses in all their spellings
/// included.
pub fn canonical_name(written: &str) -> Option<String> {
    let name = written
        .strip_suffix('.')
        .unwrap_or(written)
        .to_ascii_lowercase();
    (plain(&name, true) && !looks_like_address(&name)).then_some(name)
}

/// Whether this is a name of 1 to 253 bytes in labels of 1 to 63 (RFC 1035, 2.3.4). `underscore`:
/// allows `_`, as in names that are looked up (`_sip._tcp`).
fn plain(name: &str, underscore: bool) -> bool {
    name.len() <= 253
        && name.split('.').all(|label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| {
                    b.is_ascii_lowercase()
                        || b.is_ascii_digit()
                        || b == b'-'
                        || (underscore && b == b'_')
                })
        })
}

/// Whether some program reads this name as an address: `127.1`, `0x7f.1`, `010.0.0.1`.
fn looks_like_address(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|b| b.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn parse(written: &str) -> Option<HostPattern> {
    if let Ok(address) = written.parse::<Ipv6Addr>() {
        return Some(HostPattern {
            host: address_of(address),
            port: None,
        });
    }
    let (host, after) = match written.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            (address_of(inside.parse().ok()?), after)
        }
        None => {
            let (name, after) = written.split_at(written.find(':').unwrap_or(written.len()));
            (name_or_v4(name)?, after)
        }
    };
    let port = match after {
        "" => None,
        after => Some(
            after
                .strip_prefix(':')
                .filter(|port| !port.starts_with(['0', '+']))?
                .parse()
                .ok()?,
        ),
    };
    Some(HostPattern { host, port })
}

/// An IPv4-mapped IPv6 address becomes an IPv4 address.
fn address_of(address: Ipv6Addr) -> Host {
    Host::Address(IpAddr::V6(address).to_canonical())
}

fn name_or_v4(written: &str) -> Option<Host> {
    let name = written.to_ascii_lowercase();
    if name == "*" {
        return Some(Host::Any);
    }
    let below = name.strip_prefix("*.");
    let bare = below.unwrap_or(&name);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    match (below, looks_like_address(bare)) {
        _ if !plain(bare, false) => None,
        (None, true) => bare
            .parse()
            .ok()
            .map(|address: Ipv4Addr| Host::Address(address.into())),
        (Some(_), true) => None,
        (None, false) => Some(Host::Name(bare.to_owned())),
        (Some(_), false) => Some(Host::Below(bare.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_spellings() {
        #[rustfmt::skip]
        let good = [
            ("API.Example.COM", "api.example.com"), ("example.com.", "example.com"), ("*.example.com", "*.example.com"),
            ("*", "*"), ("example.com:443", "example.com:443"), ("127.0.0.1:8080", "127.0.0.1:8080"), ("::1", "[::1]"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"), ("localhost", "localhost"),
        ];
        for (written, canon) in good {
            assert_eq!(
                parse_pattern(written).map(|p| p.to_string()).as_deref(),
                Ok(canon)
            );
        }
        #[rustfmt::skip]
        let bad = [
            "", "http://x.com", "x.com/path", "a.*.com", "*a.com", "a*.com", "user@x.com", "x.com:0", "x.com:65536",
            "x.com:+1", "x.com:", "127.1", "0x7f.1", "010.0.0.1", "1.2.3.4.5", "-a.com", "a-.com", "a..b", "bücher.de",
            "a b", "a%b", "[::1", "[::1]x", "fe80::1%eth0", "x\0.com", "*.", "*.1.2.3.4", ".",
        ];
        for written in bad {
            assert!(parse_pattern(written).is_err(), "{written:?}");
        }
    }

    #[test]
    fn names_of_programs_become_canonical_or_nothing() {
        assert_eq!(
            canonical_name("API.Example.com.").as_deref(),
            Some("api.example.com")
        );
        assert_eq!(
            canonical_name("_sip.example.com").as_deref(),
            Some("_sip.example.com")
        );
        #[rustfmt::skip]
        let bad = [
            "", ".", "a..b", "a.com..", "1.2.3.4", "127.1", "0x7f.0x1", "a b", "a\0.com", "a%b", "-a.com",
            "b\u{fc}cher.de",
        ];
        for bad in bad {
            assert_eq!(canonical_name(bad), None, "{bad:?}");
        }
    }
}
