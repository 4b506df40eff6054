//! The messages between host and worker, or host and compiler, over two pipes.
//!
//! One frame is a line of JSON, which holds the message and the length of a raw payload, and that
//! payload. Both are bounded, and no length, number or name of a peer is believed unchecked.

use crate::base::lock;
use crate::base::mask::Hidden;
use crate::policy::{self, Limits};
use crate::quantity::{KIB, Limit, MIB};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Longest head of a frame from a worker or compiler: it holds numbers and one message.
pub const MAX_REPLY_HEAD_BYTES: u64 = 64 * KIB;
/// Longest piece of a guest's log in one frame.
pub const MAX_LOG_PIECE: u64 = 128 * KIB;
/// Size of the pieces in which compiled code is sent, bytes.
pub const PIECE: usize = 256 << 10;
/// Most that is allocated for a payload before it arrives, bytes.
const INITIAL_ALLOCATION: u64 = 8 * KIB;
/// Longest message text.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

/// The longest head and payload that are accepted from a peer, bytes.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    pub head: u64,
    pub payload: u64,
}

impl FrameLimits {
    /// For a host's messages: the first holds the environment of a manifest, which is at most 1 MiB
    /// of text.
    pub fn from_host(payload: u64) -> FrameLimits {
        FrameLimits {
            head: 4 * MIB,
            payload,
        }
    }
}

/// Host → worker or compiler.
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
    Compile {
        /// The module, `.wasm` or `.wat`, and the SHA-256 that it must have.
        module: FilePart,
        digest: String,
        entry_point: Option<String>,
    },
}

/// A part of the file that a process inherits.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePart {
    pub offset: u64,
    pub bytes: u64,
}

/// What a worker needs to know once, for all its calls.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Init {
    /// Compiled code.
    pub code: FilePart,
    pub entry_point: Option<String>,
    pub limits: Limits,
    pub openings: Vec<Opening>,
    /// Environment of the guest in every call.
    pub env: Hidden<BTreeMap<String, String>>,
    /// The guest's first argument.
    pub program: String,
    /// The folder of this worker that is the guest's `/tmp`.
    pub scratch: PathBuf,
    /// Where the guest's relative paths start, and what it is granted: to explain what it was
    /// refused.
    pub folder: PathBuf,
    pub granted: Vec<(policy::Access, policy::Area)>,
    /// The guest may connect: the worker's network namespace holds the stub and the relay of its
    /// hosts, and nothing else.
    pub networked: bool,
}

/// A folder the guest finds opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// In the worker's view.
    pub at: PathBuf,
    /// As the guest sees it: the same path, or one relative to the tool's folder.
    pub name: String,
    pub write: bool,
}

/// A message of a worker or compiler to the host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum WorkerMessage {
    /// The worker can take calls.
    Ready,
    /// Why this host cannot run the module.
    Refused { message: String },
    /// Why no module runs here.
    Unable { message: String },
    /// Payload: what the guest wrote to its log, as it comes.
    Log,
    /// Payload: what the guest wrote to its output, as it comes.
    Output,
    /// Something that the call under way was refused.
    Denied(Refused),
    /// Payload: the text that a typed export returned.
    Answer(CallSummary),
    /// Payload: the next piece of compiled code.
    Code,
    /// All compiled code was sent.
    Compiled,
    /// Why the module cannot be read.
    Unreadable { message: String },
}

/// How one call of a worker ended, and what it used.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CallSummary {
    pub id: u64,
    pub end: End,
    pub cpu_ms: u64,
    pub peak_memory: u64,
    /// Scratch is empty again.
    pub clean: bool,
    /// Number of refusals that were not reported one by one.
    pub more_denied: u64,
}

impl CallSummary {
    /// Whether the worker may serve another call.
    pub fn is_fit(&self) -> bool {
        self.clean && matches!(self.end, End::Exit { .. } | End::Returned | End::Raised)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum End {
    /// The guest called WASI's exit function.
    Exit { code: i32 },
    /// `ok` of a typed export.
    Returned,
    /// `err` of a typed export.
    Raised,
    /// What stopped it, in wasmtime's words.
    Trapped { message: String },
    /// The call's time was over.
    TimedOut,
    /// A limit that the worker itself enforces.
    OverLimit { limit: Limit },
}

/// One thing that a guest asked for and was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    pub what: DenialKind,
    /// The guest's path (the name of the opened folder, relative to the tool's folder where it lies
    /// there, and what was asked for in it), a name, or an address.
    pub target: String,
}

/// What the guest was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DenialKind {
    /// The file lies in no grant.
    Read,
    Write,
    /// The file is granted for reading alone.
    ReadOnly,
    /// The file is granted; see `executor::WITHIN`.
    ReadWithin,
    WriteWithin,
    Lookup,
    Request,
    Tcp,
    Udp,
    Bind,
    /// A table with more elements than allowed.
    Table,
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

/// The pipe of a worker to its host.
#[derive(Clone)]
pub struct ToHost(Arc<Mutex<dyn Write + Send>>);

impl ToHost {
    pub fn new(to: impl Write + Send + 'static) -> ToHost {
        ToHost(Arc::new(Mutex::new(to)))
    }

    pub fn send(&self, report: &WorkerMessage, payload: &[u8]) -> io::Result<()> {
        lock(&self.0).write_all(&encode(report, payload)?)
    }
}

/// Reads one frame; `None` when the peer closed between frames.
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

/// A message cut to what a frame may carry.
pub fn short(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}
