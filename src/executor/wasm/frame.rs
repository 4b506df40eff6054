//! Frame: the messages between host and worker, or host and compiler, over two pipes.
//!
//! For: both ends. In: bytes from an untrusted peer. Out: a header and a payload, both bounded.
//! Never: allocates what a peer merely announces; trusts a length, a number or a name it did not check.
//!
//! One frame is two little-endian u32 lengths, a JSON header and a raw payload.

use crate::base::hidden::Hidden;
use crate::quantity::{KIB, Limit, MIB};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest header: it carries the environment literals of a manifest, which is at most 1 MiB of text.
pub const MAX_HEADER_BYTES: u64 = 4 * MIB;
/// Longest header that comes back from a worker: numbers and one message.
pub const MAX_REPLY_HEADER_BYTES: u64 = 64 * KIB;
/// Most that is allocated for a frame before it arrives, bytes.
const AT_ONCE: usize = 8 * 1024;
/// Longest message text inside a header.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

/// Host → worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum Order {
    Init(Init),
    /// Payload: the input, JSON.
    Call {
        id: u64,
        timeout_ms: u64,
        /// Variables of this call alone.
        env: Hidden<BTreeMap<String, String>>,
    },
}

/// What one worker serves for its whole life.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Init {
    /// The inherited descriptor of compiled code, and where in that file the code starts.
    pub code_descriptor: i32,
    pub code_offset: u64,
    pub code_bytes: u64,
    pub entry_point: Option<String>,
    pub limits: BTreeMap<Limit, u64>,
    pub openings: Vec<Opening>,
    /// Environment of the guest in every call.
    pub env: Hidden<BTreeMap<String, String>>,
    /// The guest's first argument.
    pub program: String,
    /// The folder of this worker that is the guest's `/tmp`.
    pub scratch: PathBuf,
}

impl Init {
    pub fn limit(&self, limit: Limit) -> u64 {
        self.limits.get(&limit).copied().unwrap_or_else(|| limit.house_default())
    }
}

/// A folder the guest finds opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// In the worker's view.
    pub at: PathBuf,
    /// For the guest: the same absolute path, or a path relative to the tool's folder.
    pub name: String,
    pub write: bool,
}

/// Worker → host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum Report {
    Ready,
    /// This host cannot run the module; for people.
    Refused {
        message: String,
    },
    /// No module runs here; for people.
    Unable {
        message: String,
    },
    /// Payload: `output` bytes of output, the rest is log.
    Answer {
        id: u64,
        end: End,
        output: u64,
        cpu_ms: u64,
        peak_memory: u64,
        /// Scratch is empty again, so that the next call may use this worker.
        clean: bool,
    },
}

/// How the guest ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum End {
    Exit {
        code: i32,
    },
    /// `ok` of a typed export; the output is its text.
    Returned,
    /// `err` of a typed export; the output is its text.
    Raised,
    Trapped {
        message: String,
    },
    TimedOut,
    OverLimit {
        limit: Limit,
    },
}

/// Host → compiler. Payload: the module, `.wasm` or `.wat`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CompileOrder {
    pub entry_point: Option<String>,
}

/// Compiler → host. Payload: compiled code.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum CompileReport {
    Compiled,
    Refused { message: String },
}

/// The beginning of a frame whose payload of so many bytes is sent after it.
pub fn encode_head(header: &impl Serialize, payload: u64) -> io::Result<Vec<u8>> {
    let mut frame = encode(header, &[])?;
    let length = u32::try_from(payload).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "frame too long"))?;
    frame.get_mut(4..8).unwrap_or_default().copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// One frame as bytes. Lengths beyond u32 are the caller's fault and refused.
pub fn encode(header: &impl Serialize, payload: &[&[u8]]) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "frame too long");
    let header = serde_json::to_vec(header)?;
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(8 + header.len() + length);
    frame.extend_from_slice(&u32::try_from(header.len()).map_err(too_long)?.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(length).map_err(too_long)?.to_le_bytes());
    frame.extend_from_slice(&header);
    for part in payload {
        frame.extend_from_slice(part);
    }
    Ok(frame)
}

/// Reads one frame; `None` when the peer closed between frames.
pub fn read<H: DeserializeOwned>(from: &mut impl Read, most: Most) -> io::Result<Option<(H, Vec<u8>)>> {
    let mut lengths = [0; 8];
    let mut have = 0;
    while have < lengths.len() {
        match from.read(lengths.get_mut(have..).unwrap_or_default()) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let (header, payload) = most.check(lengths)?;
    // Beyond `AT_ONCE` it grows with what arrives, not with what was announced.
    let mut body = Vec::with_capacity(at_once(header + payload));
    from.by_ref().take(header + payload).read_to_end(&mut body)?;
    split(body, header, payload).map(Some)
}

/// The same, for async code.
pub async fn read_async<H: DeserializeOwned>(
    from: &mut (dyn AsyncRead + Send + Unpin),
    most: Most,
) -> io::Result<Option<(H, Vec<u8>)>> {
    let Some((header, payload)) = lengths(from, most).await? else { return Ok(None) };
    let mut body = Vec::with_capacity(at_once(header + payload));
    from.take(header + payload).read_to_end(&mut body).await?;
    split(body, header, payload).map(Some)
}

/// The header alone, and how long the payload is that comes after it.
pub async fn read_head_async<H: DeserializeOwned>(
    from: &mut (dyn AsyncRead + Send + Unpin),
    most: Most,
) -> io::Result<Option<(H, u64)>> {
    let Some((header, payload)) = lengths(from, most).await? else { return Ok(None) };
    let mut body = Vec::with_capacity(at_once(header));
    from.take(header).read_to_end(&mut body).await?;
    split(body, header, 0).map(|(header, _)| Some((header, payload)))
}

async fn lengths(from: &mut (dyn AsyncRead + Send + Unpin), most: Most) -> io::Result<Option<(u64, u64)>> {
    let mut lengths = [0; 8];
    let mut have = 0;
    while have < lengths.len() {
        match from.read(lengths.get_mut(have..).unwrap_or_default()).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
    }
    most.check(lengths).map(Some)
}

/// The longest parts that are accepted from a peer.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub header: u64,
    pub payload: u64,
}

impl Most {
    fn check(self, lengths: [u8; 8]) -> io::Result<(u64, u64)> {
        let [a, b, c, d, e, f, g, h] = lengths;
        let header = u64::from(u32::from_le_bytes([a, b, c, d]));
        let payload = u64::from(u32::from_le_bytes([e, f, g, h]));
        if header > self.header || payload > self.payload {
            return Err(invalid("a frame longer than allowed"));
        }
        Ok((header, payload))
    }
}

/// Bytes allocated before anything arrives; one more than announced, so that the end is seen without growing.
fn at_once(announced: u64) -> usize {
    usize::try_from(announced).unwrap_or(usize::MAX).min(AT_ONCE) + 1
}

fn split<H: DeserializeOwned>(mut body: Vec<u8>, header: u64, payload: u64) -> io::Result<(H, Vec<u8>)> {
    if body.len() as u64 != header + payload {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rest = body.split_off(usize::try_from(header).map_err(|_| invalid("a frame longer than allowed"))?);
    let header = serde_json::from_slice(&body).map_err(|_| invalid("a frame with an unknown header"))?;
    Ok((header, rest))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A message cut to what a header may carry.
pub fn short(message: &str) -> String {
    let mut message = message.to_owned();
    let mut end = MAX_MESSAGE_BYTES.min(message.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { header: 1000, payload: 1000 };

    #[test]
    fn a_frame_survives_the_pipe() {
        let bytes =
            encode(&Order::Call { id: 7, timeout_ms: 100, env: Hidden::default() }, &[b"{}", b"x"]).expect("short");
        let (order, payload) = read::<Order>(&mut bytes.as_slice(), MOST).expect("valid").expect("one");
        assert!(matches!(order, Order::Call { id: 7, timeout_ms: 100, .. }));
        assert_eq!(payload, b"{}x");
        assert!(read::<Order>(&mut [].as_slice(), MOST).expect("closed").is_none());
    }

    #[test]
    fn announced_lengths_are_not_believed() {
        let huge = [0xff; 8];
        assert_eq!(read::<Order>(&mut huge.as_slice(), MOST).expect_err("huge").kind(), io::ErrorKind::InvalidData);
        let short = [100, 0, 0, 0, 0, 0, 0, 0, b'{'];
        assert_eq!(read::<Order>(&mut short.as_slice(), MOST).expect_err("cut").kind(), io::ErrorKind::UnexpectedEof);
        let garbage = [2, 0, 0, 0, 0, 0, 0, 0, b'{', b'x'];
        assert_eq!(read::<Order>(&mut garbage.as_slice(), MOST).expect_err("bad").kind(), io::ErrorKind::InvalidData);
    }
}
