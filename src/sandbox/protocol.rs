//! What host and launcher say to each other: one JSON text a message, descriptors beside it (SCM_RIGHTS).
//!
//! Both ends are this binary, started by one another, so there are no versions. The tool never holds this
//! socket: descriptors from 3 on are closed when it is executed.

use super::written::Totals;
use super::{About, Stood};
use crate::policy::{Access, Limits, name_matches, writable};
use crate::quantity::Limit;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Longest message; what may be longer travels in a memory file beside it.
const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors beside one message, and so the most staged folders: their copies come back beside the last one.
pub const MAX_DESCRIPTORS: usize = 32;

/// How the tool is told apart from everybody else on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The kernel's uid and gid of the tool, as seen from the host process.
    pub id: u32,
    /// Taken from the pool, since the host is real root.
    pub pooled: bool,
}

/// One existing file or folder that is shown at its own path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub path: PathBuf,
    pub access: Access,
    pub folder: bool,
    /// What the path was when the grant was resolved; the launcher refuses anything else.
    pub device: u64,
    pub inode: u64,
    /// Whose files they are: mapped to the tool's id where the host is real root.
    pub uid: u32,
    pub gid: u32,
}

/// One folder of which the call gets a private copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    pub folder: PathBuf,
    pub names: Vec<String>,
    pub device: u64,
    pub inode: u64,
    /// The folder is readable besides, so what is not copied stays visible.
    pub show_rest: bool,
    /// Names under which other tools could publish there: of those, what is neither code nor data is not copied, unless
    /// `names` spells it.
    pub others: Vec<String>,
}

impl Stage {
    /// Is a file of this name copied?
    pub fn copies(&self, name: &str) -> bool {
        let spelt = self.names.iter().any(|names| writable::spells_name(names, name));
        self.names.iter().any(|names| name_matches(names, name))
            && (spelt || !writable::unknown(name) || !self.others.iter().any(|names| name_matches(names, name)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Executable {
    Path(PathBuf),
    /// The first descriptor beside `Setup`.
    Ourselves,
}

/// Everything a launcher must know before its first call. Also what keys it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Setup {
    pub identity: Identity,
    pub roots: Vec<PathBuf>,
    pub mounts: Vec<Mount>,
    pub stages: Vec<Stage>,
    /// Files and folders that an empty one covers.
    pub masks: Vec<PathBuf>,
    /// Files of our own, shown below /.toolhost: name and text.
    pub files: Vec<(String, String)>,
    pub folder: PathBuf,
    pub program: Executable,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub limits: Limits,
    /// Group files stand beside `Setup` after the executable.
    pub cgroup: Option<super::cgroup::Version>,
    /// The tool keeps descriptor 3 (the worker's compiled code).
    pub keeps_third: bool,
    /// A worker outlives calls and counts their time and CPU itself.
    pub lasting: bool,
}

impl Setup {
    /// Memory is what the processes of a script show; what none of them would show must not come to be.
    /// (A worker runs our own code.)
    pub fn sampled(&self) -> bool {
        self.cgroup.is_none() && !self.lasting
    }

    /// Some folder is written at once, not by a copy that is published.
    pub fn writes_live(&self) -> bool {
        self.mounts.iter().any(|mount| mount.folder && mount.access == Access::Write)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToLauncher {
    /// Beside it: a memory file with `Setup`, the executable, the group's files.
    Setup,
    /// Beside it: stdin, stdout, stderr, then the source (when named) and descriptor 3 (when kept).
    Start {
        timeout_ms: u64,
        source: Option<String>,
        /// What lies in the folders that the call may write live.
        before: Totals,
    },
    Kill,
    /// The staged folders were read; the scratch may go.
    Done,
}

/// Why the launcher ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Killed {
    Asked,
    Deadline,
    Memory,
    Cpu,
    /// More sessions at a time than a call may hold where no group shares out the CPU.
    Sessions,
    /// `writtenBytes` or `writtenFiles`.
    Written(Limit),
}

/// How the tool ended, as the walls saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exited {
    /// As wait(2) gives it.
    pub status: i32,
    pub killed: Option<Killed>,
    pub cpu_ms: u64,
    pub peak_memory_bytes: Option<u64>,
    /// Its scratch was full, bytes or files.
    pub scratch_full: bool,
    /// The kernel refused it a process or thread.
    pub processes_refused: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FromLauncher {
    Ready {
        walls: Vec<Stood>,
    },
    /// Nothing runs. `what` and `errno` are for the person, `about` and `wall` for anybody.
    Refused {
        about: About,
        wall: String,
        what: String,
        errno: i32,
    },
    /// Beside it: one folder descriptor for each stage.
    Exited(Exited),
}

/// Sends one message.
pub fn send<T: Serialize>(socket: BorrowedFd, message: &T, descriptors: &[BorrowedFd]) -> std::io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message; `None` when the other end is gone.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd) -> std::io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let mut space = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let (length, descriptors) = {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let got = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for control in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                descriptors.extend(raw.into_iter().map(super::sys::adopt));
            }
        }
        if got.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
            return Err(Errno::EMSGSIZE.into());
        }
        (got.bytes, descriptors)
    };
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&buffer[..length])?, descriptors)))
}

/// A memory file with this content, to stand beside a message.
pub fn memory_file(content: &[u8]) -> std::io::Result<OwnedFd> {
    let fd = nix::sys::memfd::memfd_create(c"toolhost", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads such a file, at most `limit` bytes.
pub fn read_memory_file(fd: OwnedFd, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::from(fd).take(limit).read_to_end(&mut content)?;
    Ok(content)
}
