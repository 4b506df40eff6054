//! Components as text, with what they are to do written into them.

use serde_json::Value;
use std::net::Ipv4Addr;

/// A component that asks for this by `wasi:http` and says what came, in digits.
pub fn request(authority: &str) -> String {
    let length = authority.len().to_string();
    include_str!("components/request.wat")
        .replace("AUTHORITY", authority)
        .replace("LENGTH", &length)
}

/// A component that tries what a probe asks for (`tests/engines/probe.py`), whatever its input is:
/// `connect`, `listen` or `datagram`, to `path`, at port `n`; with `exit` its answer is an error.
/// `None`: no deed of sockets.
pub fn sockets(probe: &Value) -> Option<String> {
    let name = probe["path"].as_str().unwrap_or_default();
    let address = name.parse::<Ipv4Addr>().ok();
    let what = match (probe["do"].as_str()?, address) {
        ("connect", Some(_)) => 0,
        ("connect", None) => 1,
        ("listen", _) => 2,
        ("datagram", _) => 3,
        _ => return None,
    };
    let address = address.map_or(0, |address| u32::from_le_bytes(address.octets()));
    let port = probe["n"].as_u64().unwrap_or_default();
    let numbers = [
        ("i32.const DO)", what.to_string()),
        ("i32.const PORT)", port.to_string()),
        ("i32.const ADDRESS)", address.to_string()),
        ("i32.const LENGTH)", name.len().to_string()),
        (
            "i32.const FAILS)",
            u8::from(!probe["exit"].is_null()).to_string(),
        ),
    ];
    let text = include_str!("components/sockets.wat").replace("\"NAME\"", &format!("\"{name}\""));
    let fill = |text: String, (place, value): &(&str, String)| {
        text.replace(place, &format!("i32.const {value})"))
    };
    Some(numbers.iter().fold(text, fill))
}
