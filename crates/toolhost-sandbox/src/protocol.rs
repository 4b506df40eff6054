//! Protocol: the messages between host and launcher. Each is one JSON text, with descriptors beside
//! it (SCM_RIGHTS).
//!
//! Both ends are the same binary, so messages have no version. The tool never holds this socket:
//! the `descriptors` layer closes it when the tool is executed.

use crate::account::totals::Totals;
use crate::spec::{Serves, Spec};
use crate::sys;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use toolhost_base::files::Stamp;
use toolhost_base::messages::MAX_DESCRIPTORS;
use toolhost_base::quantity::{Limit, MAX_PORTS, MIB};

/// Most bytes of a `Setup`, whose grants and arguments have limits of their own, and of a call's
/// variables.
pub const MAX_SETUP: u64 = 16 * MIB;

// One message carries the listening sockets of all ports, those of the stub, and a file.
const _: () = assert!(MAX_PORTS + 4 <= MAX_DESCRIPTORS);

/// The id that a tool runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The kernel's uid and gid of the tool, as seen from the host process.
    pub id: u32,
    /// Taken from the pool, since the host is real root.
    pub pooled: bool,
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    pub path: PathBuf,
    /// SHA-256 of its bytes, in hex.
    pub digest: String,
    pub mode: u32,
    pub stamp: Stamp,
}

/// What a call runs: its text comes beside `ToLauncher::Start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// Placed at this path of scratch.
    New(PathBuf),
    /// Shown in the place of the file, which may have other bytes by now.
    File(ReadFile),
}

/// What a call sets of its program, beside `ToLauncher::Start`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CallTexts<'a> {
    pub variables: Cow<'a, BTreeMap<String, String>>,
    /// Words of its command line, after the program's own.
    pub words: Cow<'a, [String]>,
}

/// A file in `CALL_INPUT`: which part of the descriptor beside the message it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPart {
    pub name: String,
    pub offset: u64,
    pub bytes: u64,
}

/// The version of control groups that counts calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    V1,
    V2,
}

/// Everything a launcher must know before its first call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Setup {
    pub spec: Spec,
    pub identity: Identity,
    /// Set if a cgroup counts the call; the group's files then come last beside
    /// `ToLauncher::Setup`.
    pub cgroup: Option<Version>,
    /// How many calls there are at a time, sessions and processes that wait included.
    pub calls: u64,
}

impl Setup {
    /// Whether memory is sampled from a script's processes. Then system calls that make memory
    /// which no process shows are refused. (Not for a worker, which runs our own code.)
    pub fn sampled(&self) -> bool {
        self.cgroup.is_none() && self.spec.program.serves != Serves::Calls
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToLauncher {
    /// The first message. The launcher then prepares what every call needs, before the set-up is
    /// known. `owner`: uid and gid that files of the call probably have. Beside it: the lock of a
    /// pooled id.
    Enter {
        identity: Identity,
        owner: Option<(u32, u32)>,
    },
    /// Beside it: a memory file with `Setup`, the executable, the group's files.
    Setup,
    /// Beside it: stdin, stdout, stderr, then a memory file with the source (when named), one with
    /// `CallTexts` (when there are any), the files, and descriptor 3 (when kept).
    Start {
        /// `None`: its input comes later, and its time counts from `Begin`.
        timeout_ms: Option<u64>,
        source: Option<Source>,
        /// The call sets some of its program: `CallTexts`, which may be longer than a message.
        texts: bool,
        /// The files of `CALL_INPUT`.
        files: Vec<NamedPart>,
        /// The size of the folders that the call may write live, before the call.
        before: Totals,
        /// No other call follows: the launcher ends with this one.
        last: bool,
    },
    /// The input of a program that was started before its call comes now. Beside it: the files of
    /// the call.
    Begin {
        timeout_ms: u64,
        files: Vec<NamedPart>,
    },
    /// Stops every process of the call. Its time and its limit of CPU time stand still.
    Pause,
    Resume,
    /// Shows the folder of the results of a session, which is paused.
    Results,
    /// Says which ports the call was refused so far.
    Refused,
    Kill,
    /// The host has read the staged folders; the launcher may free the scratch.
    Done,
}

/// Why the launcher ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Killed {
    Requested,
    Deadline,
    Memory,
    Cpu,
    /// More than this number of sessions at a time (`Processes`), where no cgroup distributes the
    /// CPU, or of entries of epolls (`OpenFiles`).
    TooMany(Limit, u64),
    /// `writtenBytes` or `writtenFiles`.
    Written(Limit),
}

/// What a refused call would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    Read,
    Write,
    /// Makes a folder.
    MakeFolder,
    Run,
    /// A system call that no tool needs.
    Call,
}

/// One thing that a recorded call asked for and was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    pub operation: Operation,
    /// The path as the tool gave it, or the name of the system call.
    pub target: String,
    /// The absolute path with links followed, if it differs from `target`.
    pub path: Option<String>,
    pub rule: String,
}

/// A line of a recorder's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Note {
    Attempt(Attempt),
    /// A connection to a port that the call may not reach.
    Refused(SocketAddr),
    /// There was no room for more.
    Full,
    /// Some paths lay in memory that could not be read, or that changed meanwhile.
    Unread,
}

/// How the tool ended, as the launcher observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exited {
    /// As wait(2) gives it.
    pub status: i32,
    /// The program ended before its call began.
    pub before_call: bool,
    pub killed: Option<Killed>,
    pub cpu_ms: u64,
    pub peak_memory_bytes: Option<u64>,
    /// Its scratch was full, in bytes or in files.
    pub scratch_full: bool,
    /// The kernel refused it a process or thread.
    pub processes_refused: bool,
    /// Of a recorded call: whether its recorder was lost.
    pub recorder_lost: Option<bool>,
    /// Of other calls: addresses that it tried to connect to, and whose ports it may not reach.
    pub refused: Vec<SocketAddr>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FromLauncher {
    /// Beside it, where `Spec::network` is set: the stub's sockets for UDP and TCP, and a listening
    /// socket for each port.
    Ready { layers: Vec<LayerState> },
    /// The files of a program that was started before its call are in their place.
    Begun,
    /// Beside it: the memory of the files of a session, and the folder of its results. Every process
    /// of it is stopped.
    Results,
    /// The addresses of `Exited::refused`, so far.
    RefusedPorts(Vec<SocketAddr>),
    /// The launcher ends without a result. The tool was started only if the kind of the problem is
    /// `Ran`.
    Refused(Problem),
    /// Beside it, unless the call was killed: one folder descriptor for each stage; then, of a
    /// recorded call, a memory file with lines of JSON, each a `Note`.
    Exited(Exited),
}

/// Why a call was refused or its result is lost. `what` and `errno` are for the person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    pub kind: ProblemKind,
    pub layer: Cow<'static, str>,
    pub what: String,
    pub errno: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProblemKind {
    /// A layer could not be set up.
    Layer,
    /// The source or the files of the call do not fit its scratch, or the memory for its files.
    Scratch,
    /// A granted path changed after it was checked.
    Changed,
    /// The tool was started, and how it ended is not known.
    Ran,
}

impl Problem {
    pub fn new(
        kind: ProblemKind,
        layer: &'static str,
        what: impl ToString,
        errno: Errno,
    ) -> Problem {
        Problem {
            kind,
            layer: layer.into(),
            what: what.to_string(),
            errno: errno as i32,
        }
    }

    /// For `map_err`: what was tried, and the layer it belongs to.
    pub fn from_layer<E: Into<io::Error>>(
        layer: &'static str,
        what: impl ToString,
    ) -> impl FnOnce(E) -> Problem {
        move |error| Problem::new(ProblemKind::Layer, layer, what, sys::errno(&error.into()))
    }

    /// For `map_err` of opening a granted path, which may be gone or replaced by now.
    pub fn of_path(layer: &'static str, what: impl ToString) -> impl FnOnce(Errno) -> Problem {
        move |errno| {
            let moved = matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP);
            Problem::new(
                if moved {
                    ProblemKind::Changed
                } else {
                    ProblemKind::Layer
                },
                layer,
                what,
                errno,
            )
        }
    }

    /// This problem, marked as one that arose after the tool was started. Files without room are
    /// those of a call that it still waits for.
    pub(super) fn while_it_ran(self) -> Problem {
        Problem {
            kind: match self.kind {
                ProblemKind::Scratch => self.kind,
                _ => ProblemKind::Ran,
            },
            what: format!("{}: {}", self.layer, self.what),
            ..self
        }
    }

    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

/// The state of one layer during a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerState {
    pub name: String,
    /// `active`, or for `cgroup` how it counts: `cgroup` or `sampled`.
    pub state: String,
    pub why: String,
}
