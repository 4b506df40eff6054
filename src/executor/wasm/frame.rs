//! The messages between host and worker, or host and compiler, over two pipes.
//!
//! Their form is that of `executor::frame`.

use crate::base::lock;
use crate::base::mask::Hidden;
pub use crate::executor::frame::{FrameLimits, encode, invalid, read, read_async};
use crate::policy::{self, Limits};
use crate::quantity::{KIB, Limit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Longest head of a frame from a worker or compiler: it holds numbers and one message.
pub const MAX_REPLY_HEAD_BYTES: u64 = 64 * KIB;
/// Longest piece of a guest's log in one frame.
pub const MAX_LOG_PIECE: u64 = 128 * KIB;
/// Size of the pieces in which compiled code is sent, bytes.
pub const PIECE: usize = 256 << 10;
/// Longest message text.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

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
    /// Where the guest may connect, none without a network: the worker's network namespace holds the
    /// stub and the relay of its hosts, and nothing else.
    pub ports: Vec<u16>,
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
    /// The compiler goes on, and has used more CPU time than a usual module takes.
    Slow,
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
    /// A connection to a port that no granted host has: its address.
    Connect,
    Tcp,
    Udp,
    Bind,
    /// A table with more elements than allowed.
    Table,
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

/// A message cut to what a frame may carry.
pub fn short(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}
