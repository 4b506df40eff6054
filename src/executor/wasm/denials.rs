//! The refusals of a guest by the host functions, on their way from the worker to the outcome.
//!
//! The worker reports only what its guest asked for. The host checks the number and the lengths of
//! its reports.
//!
//! The worker is not trusted: known words only, fifty texts of 512 bytes, escaped. A module that
//! broke out of wasmtime could report refusals that never were, or hide some.

use super::frame::{DenialKind, Refused, ToHost, WorkerMessage, invalid};
use crate::base::{lock, text};
use crate::egress::Traffic;
use crate::egress::protocol::{RefusalReason, TrafficKind};
use crate::executor::{Attempt, Denial, Operation, WITHIN};
use crate::policy::{Access, Area};
use std::io;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The guest's scratch.
pub const SCRATCH: &str = "/tmp";
/// Most refusals that are reported of one call; the rest is counted.
const MAX_REPORTED: usize = 50;
const MAX_TEXT_BYTES: usize = 512;
const UNASKED: &str = "a path outside the opened folders, which the module's own library refuses \
                       without asking a host function; a write to a handle that was opened for \
                       reading";

/// Reports to the host what the host functions of one call refused: each thing once. Clones report
/// to the same place.
#[derive(Clone)]
pub struct Watch(Arc<Mutex<Reported>>);

struct Reported {
    to: ToHost,
    refused: Vec<Refused>,
    more: u64,
}

impl Watch {
    pub fn new(to: ToHost) -> Watch {
        Watch(Arc::new(Mutex::new(Reported {
            to,
            refused: Vec::new(),
            more: 0,
        })))
    }

    pub fn saw(&self, what: DenialKind, mut target: String) {
        target.truncate(target.floor_char_boundary(MAX_TEXT_BYTES));
        let refused = Refused { what, target };
        let reported = &mut *lock(&self.0);
        if reported.refused.contains(&refused) {
            return;
        }
        if reported.refused.len() == MAX_REPORTED {
            reported.more += 1;
            return;
        }
        // Ignored: if the host is gone, sending the next important message fails.
        let _ = reported
            .to
            .send(&WorkerMessage::Denied(refused.clone()), &[]);
        reported.refused.push(refused);
    }

    /// How many refusals were not reported one by one.
    pub fn more(&self) -> u64 {
        lock(&self.0).more
    }
}

/// The refusals of one call that the host received from its worker.
#[derive(Default)]
pub struct WorkerDenials {
    pub attempts: Vec<Attempt>,
    pub denials: Vec<Denial>,
    /// Connections to ports that are not granted. What names they have, the relay has reported when
    /// the call is over.
    pub ports: Vec<SocketAddr>,
    count: usize,
}

impl WorkerDenials {
    /// Takes one report of a worker, which is not trusted. `folder`: where the guest's relative
    /// paths start.
    pub fn take(
        &mut self,
        refused: Refused,
        folder: &Path,
        traffic: &Mutex<Traffic>,
    ) -> io::Result<()> {
        let Refused { what, target } = refused;
        self.count += 1;
        if self.count > MAX_REPORTED || target.len() > MAX_TEXT_BYTES {
            return Err(invalid("more was refused than a worker may report"));
        }
        let mut file = |operation, rule: &str| {
            let path = Some(absolute(folder, &target).to_string_lossy().into_owned());
            self.attempts.push(Attempt {
                operation,
                target: text::printable(&target),
                path,
                rule: rule.to_owned(),
            });
        };
        let network =
            |what: TrafficKind, target: &str, refusal| lock(traffic).refused(what, target, refusal);
        fn bound(why: &str) -> RefusalReason {
            RefusalReason::Bound {
                why: why.to_owned(),
            }
        }
        match what {
            DenialKind::Read => file(Operation::Read, "wasm: not granted"),
            DenialKind::Write => file(Operation::Write, "wasm: not granted"),
            DenialKind::ReadOnly => file(Operation::Write, "wasm: read-only"),
            DenialKind::ReadWithin => file(Operation::Read, WITHIN),
            DenialKind::WriteWithin => file(Operation::Write, WITHIN),
            DenialKind::Lookup => network(TrafficKind::Lookup, &target, RefusalReason::NotGranted),
            DenialKind::Request => {
                network(TrafficKind::Request, &target, RefusalReason::NotGranted)
            }
            DenialKind::Connect => {
                let address = target.parse().map_err(|_| invalid("not an address"))?;
                self.ports.push(address);
            }
            // The host is not known, so no line that would request it can be named.
            DenialKind::Tcp => network(
                TrafficKind::Connection,
                "by a TCP socket",
                RefusalReason::NotGranted,
            ),
            DenialKind::Udp => network(
                TrafficKind::Connection,
                "by a UDP socket",
                bound("no tool has UDP, but for names"),
            ),
            DenialKind::Bind => network(
                TrafficKind::Listener,
                &target,
                bound("no tool takes connections"),
            ),
            DenialKind::Table => self.denials.push(Denial {
                operation: "grow".to_owned(),
                target: "a table of the module".to_owned(),
                rule: "wasm: more elements than a module may have".to_owned(),
                narrower: "built-in".to_owned(),
                ..Denial::default()
            }),
        }
        Ok(())
    }
}

/// What is granted, by the path alone.
pub struct Granted {
    folder: PathBuf,
    areas: Vec<(Access, Area)>,
    /// Whether some folder is granted in part only: only files of some names are in view.
    in_part: bool,
}

impl Granted {
    pub fn new(folder: &Path, granted: &[(Access, Area)]) -> Granted {
        Granted {
            folder: folder.to_owned(),
            areas: granted.to_vec(),
            in_part: granted
                .iter()
                .any(|(_, area)| !matches!(area, Area::Tree(_))),
        }
    }

    /// The path of a folder relative to the tool's: callers need not know where the tool's folder
    /// is.
    pub fn relative(&self, name: &str) -> Option<String> {
        let inside = Path::new(name).strip_prefix(&self.folder).ok()?.to_str()?;
        Some(if inside.is_empty() {
            ".".to_owned()
        } else {
            inside.to_owned()
        })
    }

    /// Whether a grant, or scratch, holds the path.
    pub fn holds(&self, path: &str, writes: bool) -> bool {
        self.any(path, |area, whole, access| {
            area.holds(whole) && (access == Access::Write || !writes)
        })
    }

    /// Whether the path was out of view, whether or not it exists.
    pub fn hides(&self, path: &str) -> bool {
        self.in_part && !self.any(path, |area, whole, _| area.touches(whole))
    }

    fn any(&self, path: &str, found: impl Fn(&Area, &Path, Access) -> bool) -> bool {
        let whole = absolute(&self.folder, path);
        // A relative path is the tool's own, also where its folder lies below the host's /tmp.
        let in_scratch = path.starts_with('/') && whole.starts_with(SCRATCH);
        in_scratch
            || self
                .areas
                .iter()
                .any(|(access, area)| found(area, &whole, *access))
    }
}

/// The absolute path, computed from the components alone: no link is followed.
fn absolute(folder: &Path, path: &str) -> PathBuf {
    let mut whole = folder.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::RootDir => whole = PathBuf::from("/"),
            Component::ParentDir => drop(whole.pop()),
            Component::Normal(name) => whole.push(name),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    whole
}

/// A path below an opened folder, as the guest names it.
pub fn below(folder: &str, path: &str) -> String {
    if path.starts_with('/') || folder.is_empty() || folder == "." {
        return path.to_owned();
    }
    // A guest may open `.` again and again in an opened folder: the kept name stays short.
    let folder = &folder[..folder.floor_char_boundary(MAX_TEXT_BYTES)];
    match path {
        "." | "" => folder.to_owned(),
        path => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}

/// Refusals that no host function sees.
pub fn not_observed(more: u64) -> Vec<String> {
    let more = (more > 0).then(|| {
        format!("{more} more refusals of the host functions, past the first {MAX_REPORTED}")
    });
    [UNASKED.to_owned()].into_iter().chain(more).collect()
}
