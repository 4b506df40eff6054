//! What the host functions refused a guest, from the worker to the outcome, in closed words.
//!
//! The worker reports only what its guest asked for. The host believes neither its count nor its lengths.

use super::folders::SCRATCH;
use super::frame::{Report, invalid};
use super::sinks::ToHost;
use crate::base::lock;
use crate::base::text;
use crate::egress::Traffic;
use crate::egress::protocol::{Refusal, TrafficKind};
use crate::executor::{Attempt, Denial, LINK_LEADS_OUT, MAKES_LINKS, Operation, ROUNDABOUT};
use crate::policy::{Access, Area, Opening};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Most that is reported of one call; the rest is counted.
const MAX_REPORTED: usize = 50;
const MAX_TEXT_BYTES: usize = 512;

/// One thing that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum Refused {
    File {
        write: bool,
        /// The guest's path: the name of the opened folder (relative to the tool's folder where it lies there), and what
        /// was asked for in it.
        path: String,
        why: DenialReason,
    },
    Name {
        name: String,
    },
    Request {
        to: String,
    },
    Tcp,
    Udp,
    Bind {
        at: String,
    },
    /// More elements of a table.
    Table,
}

/// Why a file was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DenialReason {
    /// Its folder is opened for reading alone.
    ReadOnly,
    /// It lies in no grant.
    NotGranted,
    /// It lies in a grant, and the path to it leaves the folder that it starts from.
    Roundabout,
    /// A link on the way leads out.
    Link,
    MakesLinks,
}

/// Reports to the host what the host functions of one call refused: each thing once. Clones report to the same place.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Reported>>);

#[derive(Default)]
struct Reported {
    to: Option<ToHost>,
    refused: Vec<Refused>,
    more: u64,
}

impl Watch {
    pub fn new(to: ToHost) -> Watch {
        Watch(Arc::new(Mutex::new(Reported { to: Some(to), ..Reported::default() })))
    }

    pub fn saw(&self, refused: Refused) {
        let reported = &mut *lock(&self.0);
        let refused = refused.short();
        if reported.refused.contains(&refused) {
            return;
        }
        if reported.refused.len() == MAX_REPORTED {
            reported.more += 1;
            return;
        }
        if let Some(to) = &reported.to {
            // A host that is gone shows with the next report that matters.
            let _ = to.send(&Report::Denied(refused.clone()), &[]);
        }
        reported.refused.push(refused);
    }

    /// How much was not reported one by one.
    pub fn more(&self) -> u64 {
        lock(&self.0).more
    }
}

impl Refused {
    fn text(&mut self) -> Option<&mut String> {
        match self {
            Refused::File { path: text, .. } | Refused::Name { name: text } => Some(text),
            Refused::Request { to: text } | Refused::Bind { at: text } => Some(text),
            Refused::Tcp | Refused::Udp | Refused::Table => None,
        }
    }

    fn short(mut self) -> Refused {
        if let Some(text) = self.text()
            && text.len() > MAX_TEXT_BYTES
        {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        }
        self
    }
}

/// What the worker of one call told, at the host.
#[derive(Default)]
pub struct WorkerDenials {
    pub attempts: Vec<Attempt>,
    pub denials: Vec<Denial>,
    count: usize,
}

impl WorkerDenials {
    /// Takes one report of a worker, which may be anything. `folder`: where the guest's relative paths start.
    pub fn take(&mut self, mut refused: Refused, folder: &Path, traffic: &Mutex<Traffic>) -> io::Result<()> {
        self.count += 1;
        if self.count > MAX_REPORTED || refused.text().is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
            return Err(invalid("more was refused than a worker may tell"));
        }
        let network = |what: TrafficKind, target: &str, refusal: Refusal| lock(traffic).refused(what, target, refusal);
        let bound = |why: &str| Refusal::Bound { why: why.to_owned() };
        match refused {
            Refused::File { write, path, why } => {
                let whole = absolute(folder, &path).to_string_lossy().into_owned();
                let target = text::printable(&path);
                let operation = if write { Operation::Write } else { Operation::Read };
                self.attempts.push(Attempt { operation, target, path: Some(whole), rule: why.rule().to_owned() });
            }
            Refused::Name { name } => network(TrafficKind::Lookup, &name, Refusal::NotGranted),
            Refused::Request { to } => network(TrafficKind::Request, &to, Refusal::NotGranted),
            // Which host it was for is not known, and so not what would ask for it.
            Refused::Tcp => network(TrafficKind::Connection, "by a TCP socket", Refusal::NotGranted),
            Refused::Udp => {
                network(TrafficKind::Connection, "by a UDP socket", bound("no tool has UDP, but for names"))
            }
            Refused::Bind { at } => network(TrafficKind::Listener, &at, bound("no tool takes connections")),
            Refused::Table => self.denials.push(Denial {
                operation: "grow".to_owned(),
                target: "a table of the module".to_owned(),
                rule: "wasm: more elements than a module may have".to_owned(),
                narrower: "house".to_owned(),
                ..Denial::default()
            }),
        }
        Ok(())
    }
}

impl DenialReason {
    fn rule(self) -> &'static str {
        match self {
            DenialReason::ReadOnly => "wasm: read-only",
            DenialReason::NotGranted => "wasm: not granted",
            DenialReason::Roundabout => ROUNDABOUT,
            DenialReason::Link => LINK_LEADS_OUT,
            DenialReason::MakesLinks => MAKES_LINKS,
        }
    }
}

/// What is granted, by the path alone.
pub struct Granted {
    folder: PathBuf,
    /// Each with whether it may be written.
    areas: Vec<(Area, bool)>,
    /// Of some folder only files of some names are in view.
    pub in_part: bool,
}

impl Granted {
    pub fn of(folder: &Path, granted: &[(Access, Opening)]) -> Granted {
        let in_part = granted.iter().any(|(_, opening)| matches!(opening, Opening::Snapshot { .. }));
        let area = |(access, opening): &(Access, Opening)| match opening {
            // Other names than the staged ones can be made there, and are dropped afterwards.
            Opening::Staged { folder, .. } => (Area::Tree(folder.clone()), true),
            other => (Area::of(other), *access == Access::Write),
        };
        Granted { folder: folder.to_owned(), areas: granted.iter().map(area).collect(), in_part }
    }

    /// The name of a folder in the tool's own: whoever calls need not know where that lies.
    pub fn relative(&self, name: &str) -> Option<String> {
        let inside = Path::new(name).strip_prefix(&self.folder).ok()?.to_str()?;
        Some(if inside.is_empty() { ".".to_owned() } else { inside.to_owned() })
    }

    /// Whether a grant, or scratch, holds the path.
    pub fn holds(&self, path: &str, writes: bool) -> bool {
        self.any(path, |area, whole, written| area.holds(whole) && (written || !writes))
    }

    /// Whether it, or a folder above or below it, is granted.
    pub fn touches(&self, path: &str) -> bool {
        self.any(path, |area, whole, _| area.touches(whole))
    }

    fn any(&self, path: &str, found: impl Fn(&Area, &Path, bool) -> bool) -> bool {
        let whole = absolute(&self.folder, path);
        // A relative path is the tool's own, also where its folder lies below the host's /tmp.
        let in_scratch = path.starts_with('/') && whole.starts_with(SCRATCH);
        in_scratch || self.areas.iter().any(|(area, written)| found(area, &whole, *written))
    }
}

/// The path that is meant, by its components alone.
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

/// Whether a path, by its components alone, leads out of the folder that it starts from.
pub fn leads_out(path: &str) -> bool {
    let depth = Path::new(path).components().try_fold(0_usize, |depth, component| match component {
        Component::Normal(_) => Some(depth + 1),
        Component::CurDir => Some(depth),
        Component::ParentDir => depth.checked_sub(1),
        Component::RootDir | Component::Prefix(_) => None,
    });
    depth.is_none()
}

/// A path below an opened folder, as the guest names it.
pub fn below(folder: &str, path: &str) -> String {
    if path.starts_with('/') || folder.is_empty() || folder == "." {
        return path.to_owned();
    }
    // A guest may go on opening `.` in what it opened: what is kept of it stays short.
    let folder = &folder[..folder.floor_char_boundary(MAX_TEXT_BYTES)];
    match path {
        "." | "" => folder.to_owned(),
        path => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}

/// What no host function sees.
pub fn not_observed(more: u64) -> Vec<String> {
    let unasked = "a path that lies in none of the opened folders, where the module's own library answers and asks no host function";
    let more = (more > 0).then(|| format!("{more} more refusals of the host functions, past the first {MAX_REPORTED}"));
    [unasked.to_owned()].into_iter().chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_out_by_its_components_alone() {
        for (path, out) in [
            ("a", false),
            ("a/..", false),
            ("./a/../b/..", false),
            ("..", true),
            ("a/../..", true),
            ("a/../../a", true),
            ("/a", true),
            ("", false),
        ] {
            assert_eq!(leads_out(path), out, "{path}");
        }
        assert_eq!(absolute(Path::new("/t"), "data/../private"), Path::new("/t/private"));
        assert_eq!(absolute(Path::new("/t"), "../../../x"), Path::new("/x"));
        assert_eq!(absolute(Path::new("/t"), "/srv/./x"), Path::new("/srv/x"));
        for (folder, path, whole) in
            [(".", "a", "a"), ("/tmp", "a", "/tmp/a"), ("out", ".", "out"), ("out", "/x", "/x")]
        {
            assert_eq!(below(folder, path), whole);
        }
        let long = (0..100).fold("out".to_owned(), |folder, _| below(&folder, &"x".repeat(200)));
        assert!(long.len() < 2 * MAX_TEXT_BYTES, "{}", long.len());
    }

    #[test]
    fn a_guest_is_reported_once_and_in_short() {
        let watch = Watch::default();
        for n in 0..3 * MAX_REPORTED {
            watch.saw(Refused::Name { name: format!("{}{}", n / 2, "é".repeat(MAX_TEXT_BYTES)) });
        }
        assert_eq!(watch.more(), MAX_REPORTED as u64);
        let reported = &lock(&watch.0).refused;
        assert_eq!(reported.len(), MAX_REPORTED);
        assert!(
            reported.iter().all(|refused| matches!(refused, Refused::Name { name } if name.len() <= MAX_TEXT_BYTES))
        );
    }

    #[test]
    fn grants_hold_paths_and_the_folders_above_them() {
        let granted = Granted::of(
            Path::new("/t"),
            &[
                (Access::Read, Opening::Live { path: "/t/data".into() }),
                (Access::Read, Opening::Snapshot { folder: "/t/deep".into(), names: "*.csv".into() }),
                (Access::Write, Opening::Staged { folder: "/t/out".into(), names: "*.csv".into() }),
            ],
        );
        for (path, read, written, touched) in [
            ("data/x", true, false, true),
            ("data/../data/x", true, false, true),
            ("data/../x", false, false, false),
            ("deep/a.csv", true, false, true),
            ("deep/a.txt", false, false, false),
            ("deep", false, false, true),
            (".", false, false, true),
            ("out/a.txt", true, true, true),
            ("/tmp/x", true, true, true),
            ("/etc/passwd", false, false, false),
        ] {
            let found = (granted.holds(path, false), granted.holds(path, true), granted.touches(path));
            assert_eq!(found, (read, written, touched), "{path}");
        }
    }
}
