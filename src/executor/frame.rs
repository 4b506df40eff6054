//! Frames between this host and a process behind layers, over pipes.
//!
//! One frame is a line of JSON, which holds the message and the length of a raw payload, and that
//! payload. Both are bounded, and no length, number or name of a peer is believed unchecked.

use crate::quantity::KIB;
#[cfg(feature = "wasi")]
use crate::quantity::MIB;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
#[cfg(feature = "wasi")]
use std::io::{BufRead, Read};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Most that is allocated for a payload before it arrives, bytes.
const INITIAL_ALLOCATION: u64 = 8 * KIB;
/// The longest head and payload that are accepted from a peer, bytes.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    pub head: u64,
    pub payload: u64,
}

impl FrameLimits {
    #[cfg(feature = "wasi")]
    /// For a host's messages: the first holds the environment of a manifest, which is at most 1 MiB
    /// of text.
    pub fn from_host(payload: u64) -> FrameLimits {
        FrameLimits {
            head: 4 * MIB,
            payload,
        }
    }
}

/// The line before a payload.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head<M> {
    message: M,
    bytes: u64,
}

/// One frame as bytes.
pub fn encode(message: &impl Serialize, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(256 + payload.len());
    serde_json::to_writer(
        &mut frame,
        &Head {
            message,
            bytes: payload.len() as u64,
        },
    )?;
    frame.push(b'\n');
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// Reads one frame; `None` when the peer closed between frames.
#[cfg(feature = "wasi")]
pub fn read<M: DeserializeOwned>(
    from: &mut impl BufRead,
    most: FrameLimits,
) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut line = Vec::new();
    from.by_ref().take(most.head).read_until(b'\n', &mut line)?;
    let Some((message, bytes)) = begin(&line, most)? else {
        return Ok(None);
    };
    // It grows with what arrives, not with what was announced.
    let mut payload = Vec::with_capacity(bytes.min(INITIAL_ALLOCATION) as usize);
    from.take(bytes).read_to_end(&mut payload)?;
    whole(message, payload, bytes)
}

/// The same, for async code.
pub async fn read_async<M: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    most: FrameLimits,
) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut line = Vec::new();
    (&mut *from)
        .take(most.head)
        .read_until(b'\n', &mut line)
        .await?;
    let Some((message, bytes)) = begin(&line, most)? else {
        return Ok(None);
    };
    let mut payload = Vec::with_capacity(bytes.min(INITIAL_ALLOCATION) as usize);
    from.take(bytes).read_to_end(&mut payload).await?;
    whole(message, payload, bytes)
}

/// The message of a frame, and how long its payload is.
fn begin<M: DeserializeOwned>(line: &[u8], most: FrameLimits) -> io::Result<Option<(M, u64)>> {
    let line = match line {
        [] => return Ok(None),
        [line @ .., b'\n'] => line,
        _ if line.len() as u64 == most.head => return Err(invalid("a frame longer than allowed")),
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let Head { message, bytes } =
        serde_json::from_slice(line).map_err(|_| invalid("a frame with an unknown message"))?;
    if bytes > most.payload {
        return Err(invalid("a frame longer than allowed"));
    }
    Ok(Some((message, bytes)))
}

fn whole<M>(message: M, payload: Vec<u8>, bytes: u64) -> io::Result<Option<(M, Vec<u8>)>> {
    if payload.len() as u64 == bytes {
        Ok(Some((message, payload)))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

pub fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
