//! Probe: our own program, run inside a tool's confinement to find out what it can and cannot do
//! there.
//!
//! `main.rs` enters `main` behind all layers, like any tool. The probe reads one JSON document on
//! stdin, tries its paths and everything in `fixed`, and prints one JSON document. It changes
//! nothing that stays.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;

/// argv[0] by which `main.rs` knows the probe, without the prefix `toolhost-`.
pub const ROLE: &str = "probe";

/// A path to try.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathProbe {
    pub path: PathBuf,
    pub write: bool,
    /// Whether the confinement grants it.
    pub granted: bool,
    /// The file's owner and mode, if they deny the tool a path that is granted.
    pub closed: Option<String>,
}

/// Everything to try.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Probes {
    pub paths: Vec<PathProbe>,
    /// The confinement grants hosts, and with them sockets.
    pub hosts: bool,
}

/// The result of one attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeResult {
    pub what: String,
    /// The confinement grants this.
    pub granted: bool,
    pub could: bool,
    /// The name of the errno where the attempt failed.
    pub answer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

impl ProbeResult {
    /// Whether the attempt succeeded if it is granted, and failed if it is not.
    pub fn is_as_expected(&self) -> bool {
        self.granted == self.could
    }

    /// The attempt failed although it is granted, and the file's owner and mode explain why.
    pub fn is_explained(&self) -> bool {
        self.granted && !self.could && self.closed.is_some()
    }
}

pub fn main() -> ExitCode {
    let tries: Probes = serde_json::from_reader(std::io::stdin().lock()).unwrap_or_default();
    let mut out: Vec<ProbeResult> = tries.paths.iter().map(path).collect();
    out.extend(fixed(tries.hosts));
    match serde_json::to_writer(std::io::stdout().lock(), &out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn tried(what: impl Into<String>, granted: bool, result: Result<(), Errno>) -> ProbeResult {
    let answer = match result {
        Ok(()) => "done".to_owned(),
        Err(errno) => format!("{errno:?}"),
    };
    ProbeResult {
        what: what.into(),
        granted,
        could: result.is_ok(),
        answer,
        closed: None,
    }
}

fn path(wanted: &PathProbe) -> ProbeResult {
    let open = |flags| {
        nix::fcntl::open(
            &wanted.path,
            flags | OFlag::O_CLOEXEC,
            Mode::from_bits_truncate(0o600),
        )
        .map(drop)
    };
    let folder = wanted.path.is_dir();
    let (verb, result) = match (wanted.write, folder) {
        // A file without a name shows the right to make files, and leaves nothing behind.
        (true, true) => ("make a file in", open(OFlag::O_TMPFILE | OFlag::O_WRONLY)),
        (true, false) => ("write", open(OFlag::O_WRONLY)),
        (false, true) => ("list", open(OFlag::O_RDONLY | OFlag::O_DIRECTORY)),
        (false, false) => ("read", open(OFlag::O_RDONLY)),
    };
    let what = format!("{verb} {}", wanted.path.display());
    ProbeResult {
        closed: wanted.closed.clone(),
        ..tried(what, wanted.granted, result)
    }
}

/// What /proc says of this process.
pub struct OwnStatus(String);

impl OwnStatus {
    pub fn read() -> OwnStatus {
        OwnStatus(std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// The value after this name; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().trim()
    }
}

/// Attempts that no confinement grants, one in scratch, which each call has, and sockets, which
/// need granted `hosts`.
fn fixed(hosts: bool) -> Vec<ProbeResult> {
    fn socket(family: AddressFamily) -> Result<(), Errno> {
        nix::sys::socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map(drop)
    }
    let bound = nix::sys::socket::socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .and_then(|made| nix::sys::socket::bind(made.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)));
    let memory = nix::fcntl::open(
        "/proc/1/mem",
        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .map(drop);
    let temporary = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let scratch = nix::fcntl::open("/tmp", temporary, Mode::from_bits_truncate(0o600)).map(drop);
    let bind = nix::mount::mount(
        Some("/"),
        "/tmp",
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    );
    let status = OwnStatus::read();
    let capable = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
        .iter()
        .any(|c| !status.field(c).bytes().all(|b| b == b'0'));
    // Pid 1 is the init of the call.
    let own = std::process::id();
    let others = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = others
        .filter(|e| {
            e.file_name()
                .to_str()
                .is_some_and(|n| n.parse::<u32>().is_ok_and(|p| ![1, own].contains(&p)))
        })
        .count();
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    fn yes(could: bool) -> Result<(), Errno> {
        if could { Ok(()) } else { Err(Errno::EPERM) }
    }
    vec![
        tried("make a file in /tmp (scratch)", true, scratch),
        tried("make an IPv4 socket", hosts, socket(AddressFamily::Inet)),
        tried("make an IPv6 socket", hosts, socket(AddressFamily::Inet6)),
        tried("bind a socket to an address", false, bound),
        tried("make a unix socket", false, socket(AddressFamily::Unix)),
        tried(
            "make a netlink socket",
            false,
            socket(AddressFamily::Netlink),
        ),
        tried(
            "make a user namespace",
            false,
            nix::sched::unshare(CloneFlags::CLONE_NEWUSER),
        ),
        tried("mount", false, bind),
        tried(
            "signal another process",
            false,
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), Signal::SIGCONT),
        ),
        tried("see another process", false, yes(others > 0)),
        tried("read the memory of the init", false, memory),
        tried("hold a capability", false, yes(capable)),
        tried(
            "gain privileges by executing",
            false,
            yes(status.field("NoNewPrivs:") != "1"),
        ),
        tried(
            "make any system call (no filter)",
            false,
            yes(status.field("Seccomp:") != "2"),
        ),
        // 0, 1, 2 and the descriptor of the listing itself.
        tried("use a descriptor of the host", false, yes(open > 4)),
    ]
}
