//! Hello: the TLS ClientHello (RFC 8446, 4.1.2) of a connection, for the name in it.
//!
//! For: connections at port 443. In: the first bytes of a tool. Out: these bytes, if they name exactly the host of the
//! connection. Never: passes on what it did not understand whole.

use super::call::quoted;
use crate::manifest::host::Host;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest TLS record, bytes.
const RECORD: usize = 16 * 1024;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: usize = 1;
const SERVER_NAME: usize = 0;
const ENCRYPTED_CLIENT_HELLO: usize = 0xFE0D;
/// More extensions than any program sends.
const EXTENSIONS: usize = 256;

/// Reads one record, and nothing after it. The error says what is wrong with it.
pub async fn read(from: &mut (impl AsyncRead + Unpin), host: &Host) -> Result<Vec<u8>, String> {
    let ended = |_| "the connection ended before its ClientHello was there".to_owned();
    let mut bytes = vec![0; 5];
    from.read_exact(&mut bytes).await.map_err(ended)?;
    let [kind, major, _, high, low] = bytes[..] else { return Err(malformed()) };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind != HANDSHAKE || major != 3 {
        return Err("it does not begin with a TLS ClientHello".to_owned());
    }
    if length > RECORD {
        return Err("its ClientHello is longer than a TLS record".to_owned());
    }
    bytes.resize(5 + length, 0);
    from.read_exact(&mut bytes[5..]).await.map_err(ended)?;
    check(&bytes[5..], host)?;
    Ok(bytes)
}

/// Whether this content of a record is one ClientHello for this host.
fn check(record: &[u8], host: &Host) -> Result<(), String> {
    let mut rest = Bytes(record);
    if rest.number(1) != Some(CLIENT_HELLO) {
        return Err("it does not begin with a TLS ClientHello".to_owned());
    }
    let length = rest.number(3).ok_or_else(malformed)?;
    match length.cmp(&rest.0.len()) {
        std::cmp::Ordering::Greater => Err("its ClientHello is split over several TLS records".to_owned()),
        std::cmp::Ordering::Less => Err("its ClientHello is followed by more in the same TLS record".to_owned()),
        std::cmp::Ordering::Equal => matches(server_name(rest)?, host),
    }
}

fn matches(name: Option<&[u8]>, host: &Host) -> Result<(), String> {
    let (wanted, needed) = match host {
        Host::Address(address) => (address.to_string(), false),
        Host::Name(name) => (name.clone(), true),
        Host::Any | Host::Below(_) => return Err(malformed()),
    };
    match name {
        None if needed => Err(format!("its ClientHello names no server (SNI); it must name {wanted}")),
        Some(name) if !name.eq_ignore_ascii_case(wanted.as_bytes()) => {
            Err(format!("its ClientHello names the server {} (SNI), and the connection is to {wanted}", quoted(name)))
        }
        _ => Ok(()),
    }
}

fn malformed() -> String {
    "its ClientHello is malformed".to_owned()
}

/// The one name in the body of a ClientHello.
fn server_name(body: Bytes<'_>) -> Result<Option<&[u8]>, String> {
    let mut name = None;
    let mut seen = Vec::new();
    let mut extensions = extensions(body).ok_or_else(malformed)?;
    while !extensions.0.is_empty() {
        let (kind, content) = extensions.number(2).zip(extensions.vector(2)).ok_or_else(malformed)?;
        if seen.contains(&kind) || seen.len() == EXTENSIONS {
            return Err("its ClientHello has an extension twice, or too many of them".to_owned());
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => name = Some(only_host_name(Bytes(content)).ok_or_else(malformed)?),
            ENCRYPTED_CLIENT_HELLO => {
                return Err("its ClientHello hides the name of the server (Encrypted Client Hello)".to_owned());
            }
            _ => {}
        }
    }
    Ok(name)
}

/// Version, random, session, cipher suites, compression methods; then the extensions up to the end.
fn extensions(mut body: Bytes<'_>) -> Option<Bytes<'_>> {
    body.take(2 + 32)?;
    (body.vector(1)?.len() <= 32).then_some(())?;
    let suites = body.vector(2)?;
    (!suites.is_empty() && suites.len().is_multiple_of(2) && !body.vector(1)?.is_empty()).then_some(())?;
    if body.0.is_empty() {
        return Some(body);
    }
    let extensions = body.vector(2)?;
    body.0.is_empty().then_some(Bytes(extensions))
}

/// A list of one name of the type `host_name` (RFC 6066, 3).
fn only_host_name(mut content: Bytes<'_>) -> Option<&[u8]> {
    let mut list = Bytes(content.vector(2)?);
    let (kind, name) = (list.number(1)?, list.vector(2)?);
    (content.0.is_empty() && list.0.is_empty() && kind == 0 && !name.is_empty()).then_some(name)
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of so many bytes.
    fn number(&mut self, width: usize) -> Option<usize> {
        Some(self.take(width)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Bytes after their count, which has so many bytes.
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = self.number(width)?;
        self.take(count)
    }
}
