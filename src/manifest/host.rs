//! Host patterns: the entries of `allowHosts`. Syntax only; whether a host may be reached is for policy to say.
//!
//! For: the manifest reader. In: one pattern. Out: its canonical spelling. Never: resolves a name.

use crate::base::text;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `name`, `*.name`, `*`, an IPv4 or IPv6 address, each with an optional `:port` (IPv6 then in brackets).
pub fn canonical(written: &str) -> Result<String, String> {
    parse(written).map_err(|why| format!("'{}' {why}", text::printable(&text::head(written, 120))))
}

fn parse(written: &str) -> Result<String, String> {
    if written.contains("://") || written.contains('/') {
        return Err("is a URL or holds a '/': write only the host name".to_owned());
    }
    if written.contains(['@', '%', '\\']) || !text::is_printable(written) || written.contains(char::is_whitespace) {
        return Err("holds a character that no host name has".to_owned());
    }
    if !written.is_ascii() {
        return Err("is not ASCII: write the name in its xn-- form".to_owned());
    }
    if let Ok(address) = written.parse::<Ipv6Addr>() {
        return Ok(format!("[{address}]"));
    }
    let (host, port) = match written.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']').ok_or("has no closing ']'")?;
            let address: Ipv6Addr = inside.parse().map_err(|_| "is not an IPv6 address".to_owned())?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err("has text after ']'".to_owned()),
            };
            (format!("[{address}]"), port)
        }
        None => {
            let (name, port) = match written.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (written, None),
            };
            (name_or_v4(name)?, port)
        }
    };
    match port {
        None => Ok(host),
        Some(port) => {
            let good = !port.starts_with(['0', '+']);
            let number = port.parse::<u16>().ok().filter(|_| good);
            let number = number.ok_or("has a port that is not a number from 1 to 65535")?;
            Ok(format!("{host}:{number}"))
        }
    }
}

fn name_or_v4(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    if name == "*" {
        return Ok(name);
    }
    let bare = name.strip_prefix("*.").unwrap_or(&name);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    if bare.is_empty() || bare.len() > 253 {
        return Err("is empty or longer than a host name may be".to_owned());
    }
    if bare.contains('*') {
        return Err("has '*' in the middle: only '*.name' is possible".to_owned());
    }
    let good_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if !bare.split('.').all(good_label) {
        return Err("is not a host name: letters, digits and '-' between dots".to_owned());
    }
    // `127.1`, `0x7f.1`, `010.0.0.1`: forms that different programs read as different addresses.
    let last = bare.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    if numeric {
        let address: Ipv4Addr =
            bare.parse().map_err(|_| "is not an IPv4 address of four decimal numbers".to_owned())?;
        if name.starts_with("*.") {
            return Err("has '*' before an address".to_owned());
        }
        return Ok(IpAddr::V4(address).to_string());
    }
    Ok(if name.starts_with("*.") { format!("*.{bare}") } else { bare.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_spellings() {
        let good = [
            ("API.Example.COM", "api.example.com"),
            ("example.com.", "example.com"),
            ("*.example.com", "*.example.com"),
            ("*", "*"),
            ("example.com:443", "example.com:443"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("::1", "[::1]"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
            ("localhost", "localhost"),
        ];
        for (written, canon) in good {
            assert_eq!(canonical(written).as_deref(), Ok(canon));
        }
        #[rustfmt::skip]
        let bad = [
            "", "http://x.com", "x.com/path", "a.*.com", "*a.com", "a*.com", "user@x.com", "x.com:0", "x.com:65536",
            "x.com:+1", "x.com:", "127.1", "0x7f.1", "010.0.0.1", "1.2.3.4.5", "-a.com", "a-.com", "a..b", "bücher.de",
            "a b", "a%b", "[::1", "[::1]x", "fe80::1%eth0", "x\0.com", "*.", "*.1.2.3.4", ".",
        ];
        for written in bad {
            assert!(canonical(written).is_err(), "{written:?}");
        }
    }
}
