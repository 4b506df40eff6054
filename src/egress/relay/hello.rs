//! The TLS ClientHello of a connection (RFC 8446, 4.1.2): it must name exactly the host of the
//! connection, and so must the second one, after a HelloRetryRequest.

use super::stream::{MeteredStream, quoted};
use crate::egress::protocol::RefusalReason;
use crate::manifest::host::{Host, HostPattern};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Longest content of a TLS record, and what encryption may add to it, bytes (RFC 8446, 5.1, 5.2).
const RECORD: usize = 16 * 1024;
const ENCRYPTION: usize = 256;
const HEADER: usize = 5;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: usize = 1;
const SERVER_HELLO: u8 = 2;
/// The place of a ServerHello's random in its record, after type, length and version.
const RANDOM: std::ops::Range<usize> = HEADER + 6..HEADER + 38;
/// The random that makes a ServerHello a HelloRetryRequest (RFC 8446, 4.1.3).
pub const RETRY: [u8; 32] = [
    0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
    0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
];
const SERVER_NAME: usize = 0;
const ENCRYPTED_CLIENT_HELLO: usize = 0xFE0D;
/// Most extensions in one ClientHello; programs send fewer.
const EXTENSIONS: usize = 256;

/// Reads the record with the ClientHello, and checks it. An error says what is wrong.
pub async fn read(from: &mut (impl AsyncRead + Unpin), hosts: &[Host]) -> Result<Vec<u8>, String> {
    let bytes = record(from, "ClientHello").await?;
    if bytes[0] != HANDSHAKE {
        return Err("it does not begin with a TLS ClientHello".to_owned());
    }
    check(&bytes[HEADER..], hosts)?;
    Ok(bytes)
}

async fn record(from: &mut (impl AsyncRead + Unpin), awaited: &str) -> Result<Vec<u8>, String> {
    let ended = |_| format!("the connection ended before its {awaited} arrived");
    let mut bytes = vec![0; HEADER];
    from.read_exact(&mut bytes).await.map_err(ended)?;
    if bytes[1] != 3 {
        return Err(format!("it does not begin with a TLS {awaited}"));
    }
    let length = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
    if length > RECORD + if bytes[0] == HANDSHAKE { 0 } else { ENCRYPTION } {
        return Err(format!("its {awaited} is longer than a TLS record"));
    }
    bytes.resize(HEADER + length, 0);
    from.read_exact(&mut bytes[HEADER..]).await.map_err(ended)?;
    Ok(bytes)
}

/// Forwards the records of the host up to its ServerHello. If that is a HelloRetryRequest, the
/// records of the tool are forwarded up to the next ClientHello, which must name the host; then the
/// host is watched again. A `Tls` error is the host's, a `Content` error the tool's.
pub async fn watch(
    tool: &mut MeteredStream,
    upstream: &mut MeteredStream,
    hosts: &[Host],
) -> Result<(), RefusalReason> {
    fn of_host(why: String) -> RefusalReason {
        RefusalReason::Tls { why }
    }
    while asks_again(tool, upstream).await.map_err(of_host)? {
        loop {
            let next = record(tool, "second ClientHello").await.map_err(content)?;
            let is_hello = next[0] == HANDSHAKE;
            if is_hello {
                check(&next[HEADER..], hosts).map_err(content)?;
            }
            upstream
                .write_all(&next)
                .await
                .map_err(|e| of_host(e.to_string()))?;
            if is_hello {
                break;
            }
        }
    }
    Ok(())
}

pub fn content(why: String) -> RefusalReason {
    RefusalReason::Content { why }
}

/// Forwards records of the host up to its ServerHello. True: it is a HelloRetryRequest.
async fn asks_again(
    tool: &mut MeteredStream,
    upstream: &mut MeteredStream,
) -> Result<bool, String> {
    loop {
        tokio::select! {
            _ = upstream.ended() => {}
            // The tool has closed its half, and cannot send another ClientHello.
            true = tool.ended() => return Ok(false),
        }
        let answer = record(upstream, "ServerHello").await?;
        match (answer[0], answer.get(HEADER), answer.get(RANDOM)) {
            (HANDSHAKE, Some(&SERVER_HELLO), None) => {
                return Err("its ServerHello is split over records".to_owned());
            }
            (HANDSHAKE, Some(&SERVER_HELLO), _) | (CHANGE_CIPHER_SPEC | ALERT, ..) => {}
            _ => return Err("it does not answer with a TLS ServerHello".to_owned()),
        }
        tool.write_all(&answer).await.map_err(|e| e.to_string())?;
        if answer[0] == HANDSHAKE {
            return Ok(answer[RANDOM] == RETRY);
        }
    }
}

/// Checks that the record holds exactly one ClientHello, for one of these hosts.
fn check(record: &[u8], hosts: &[Host]) -> Result<(), String> {
    let mut rest = Bytes(record);
    if rest.number(1) != Some(CLIENT_HELLO) {
        return Err("it does not begin with a TLS ClientHello".to_owned());
    }
    let length = rest.number(3).ok_or_else(malformed)?;
    match length.cmp(&rest.0.len()) {
        std::cmp::Ordering::Greater => {
            Err("its ClientHello is split over several TLS records".to_owned())
        }
        std::cmp::Ordering::Less => {
            Err("its ClientHello is followed by more in the same TLS record".to_owned())
        }
        std::cmp::Ordering::Equal => matches(server_name(rest)?, hosts),
    }
}

fn matches(name: Option<&[u8]>, hosts: &[Host]) -> Result<(), String> {
    fn text(host: &Host) -> String {
        match host {
            Host::Address(address) => address.to_string(),
            host => HostPattern {
                host: host.clone(),
                port: None,
            }
            .to_string(),
        }
    }
    let wanted = text(&hosts[0]);
    match name {
        None if matches!(hosts[0], Host::Name(_)) => Err(format!(
            "its ClientHello names no server (SNI); it must name {wanted}"
        )),
        Some(name)
            if !hosts
                .iter()
                .any(|host| name.eq_ignore_ascii_case(text(host).as_bytes())) =>
        {
            Err(format!(
                "its ClientHello names the server {} (SNI), and the connection is to {wanted}",
                quoted(name)
            ))
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
        let (kind, content) = extensions
            .number(2)
            .zip(extensions.vector(2))
            .ok_or_else(malformed)?;
        if seen.contains(&kind) || seen.len() == EXTENSIONS {
            return Err("its ClientHello has an extension twice, or too many of them".to_owned());
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => name = Some(only_host_name(Bytes(content)).ok_or_else(malformed)?),
            ENCRYPTED_CLIENT_HELLO => {
                return Err(
                    "its ClientHello hides the name of the server (Encrypted Client Hello)"
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    Ok(name)
}

/// Skips version, random, session, cipher suites and compression methods; returns the extensions.
fn extensions(mut body: Bytes<'_>) -> Option<Bytes<'_>> {
    body.take(2 + 32)?;
    (body.vector(1)?.len() <= 32).then_some(())?;
    let suites = body.vector(2)?;
    (!suites.is_empty() && suites.len().is_multiple_of(2) && !body.vector(1)?.is_empty())
        .then_some(())?;
    if body.0.is_empty() {
        return Some(body);
    }
    let extensions = body.vector(2)?;
    body.0.is_empty().then_some(Bytes(extensions))
}

/// A list of one name of the type `host_name` (RFC 6066, 3).
fn only_host_name(mut content: Bytes<'_>) -> Option<&[u8]> {
    let mut list = Bytes(content.vector(2)?);
    let kind = list.number(1)?;
    let name = list.vector(2)?;
    (content.0.is_empty() && list.0.is_empty() && kind == 0 && !name.is_empty()).then_some(name)
}

/// The bytes that are left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of `width` bytes.
    fn number(&mut self, width: usize) -> Option<usize> {
        Some(
            self.take(width)?
                .iter()
                .fold(0, |number, byte| number << 8 | usize::from(*byte)),
        )
    }

    /// Bytes after their count of `width` bytes.
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = self.number(width)?;
        self.take(count)
    }
}
