//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address that is not globally reachable is for (IANA IPv4 and IPv6 Special-Purpose
/// Address Registries); `None`: it is public. An IPv4 address inside an IPv6 one is judged as IPv4.
pub fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

/// The IPv4 address inside an IPv6 one: mapped, translated (RFC 6052), or of 6to4 (RFC 3056).
pub fn inner_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let pair = match v6.segments() {
        [0, 0, 0, 0, 0, 0xFFFF, high, low]
        | [0x64, 0xFF9B, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => [high, low],
        _ => return None,
    };
    let [[a, b], [c, d]] = pair.map(u16::to_be_bytes);
    Some(Ipv4Addr::new(a, b, c, d))
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = address.octets();
    match (a, b, c) {
        // A public number, but in Azure each machine reaches its own cloud services there (Azure's
        // documentation).
        (168, 63, 129) if d == 16 => Some("where a cloud keeps its metadata (168.63.129.16)"),
        (0, ..) => Some("unspecified (0.0.0.0/8)"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("private (RFC 1918)"),
        (100, 64..=127, _) => Some("shared by a provider (100.64.0.0/10)"),
        (127, ..) => Some("loopback"),
        (169, 254, _) => Some("link-local, where clouds keep their metadata"),
        (192, 0, 0) => Some("reserved for protocols (192.0.0.0/24)"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("documentation"),
        (192, 88, 99) => Some("a 6to4 relay"),
        (198, 18..=19, _) => Some("benchmarking (198.18.0.0/15)"),
        (224..=239, ..) => Some("multicast"),
        (240.., ..) => Some("reserved (240.0.0.0/4)"),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = inner_v4(address.into()) {
        return special_v4(inner);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0, ..] => Some("an IPv4 address in an old form (::/96)"),
        [0x64, 0xFF9B, 1, ..] => Some("local translation (64:ff9b:1::/48)"),
        [0x2001, 0, ..] => Some("Teredo"),
        [0x2001, 0xDB8, ..] | [0x3FFF, 0..=0xFFF, ..] => Some("documentation"),
        [0x2001, 0..=0x1FF, ..] => Some("reserved for protocols (2001::/23)"),
        [0xFE80..=0xFEBF, ..] => Some("link-local"),
        [0xFEC0..=0xFEFF, ..] => Some("site-local"),
        [0xFC00..=0xFDFF, ..] => Some("private (fc00::/7)"),
        [0xFF00..=0xFFFF, ..] => Some("multicast"),
        [0x2000..=0x3FFF, ..] => None,
        _ => Some("not globally reachable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_globally_reachable_addresses_are_public() {
        #[rustfmt::skip]
        let special_ones = [
            "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255",
            "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1",
            "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
            "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1",
            "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b:1::1",
            "100::1", "2001::1", "2001:db8::1", "2001:10::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "fc00::1",
            "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1", "ff02::1", "4000::1", "5f00::1",
        ];
        for text in special_ones {
            assert!(
                special(text.parse().expect("an address")).is_some(),
                "{text}"
            );
        }
        #[rustfmt::skip]
        let public = [
            "1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.1", "168.63.129.15", "172.15.0.1",
            "172.32.0.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
            "2002:808:808::1", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00::1",
        ];
        for text in public {
            assert_eq!(special(text.parse().expect("an address")), None, "{text}");
        }
    }
}
