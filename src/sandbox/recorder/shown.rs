//! Shown: whether the view of a call shows a path, and what the call may do there (part of the recorder).
//!
//! The launcher's own view is the call's but for its scratch, and holds nothing of the host that was not granted; links
//! are followed there as the kernel would follow them.

use crate::policy::Access;
use crate::policy::base_view::{DEVICE_LINKS, EMPTY_FOLDERS, MADE_ETC, OURS, PROC, SCRATCH, devices};
use crate::sandbox::protocol::{Operation, Setup};
use crate::sandbox::view;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The rule of a file that is not granted.
const NOT_SHOWN: &str = "view: not granted";
const READ_ONLY: &str = "view: read-only";
/// The rule of a program that the tool can write, which no policy lifts.
pub const WRITABLE: &str = "view: what the tool can write is not run";
const DEV: &str = "/dev";
/// Most links that are followed in one path, as by the kernel (path_resolution(7)), and most parts.
const LINKS: usize = 40;
const PARTS: usize = 1000;

/// How a system call takes the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// A link there is followed.
    Followed,
    /// A link there is itself meant.
    Itself,
    /// As `Itself`, and the call fails where there is something.
    New,
}

pub struct Shown<'a> {
    pub setup: &'a Setup,
}

impl Shown<'_> {
    /// Where a path leads, and the rule by which this operation is refused. `None`: no rule refuses it, or it leads to
    /// a place that each process has of its own. `folder`: the working folder of the process.
    pub fn refuses(
        &self,
        path: &Path,
        operation: Operation,
        last: Last,
        folder: impl Fn() -> Option<PathBuf>,
    ) -> Option<(PathBuf, &'static str)> {
        let path = followed(path, last, folder)?;
        if path.starts_with(PROC) {
            return None;
        }
        let grants = self.setup.mounts.iter().filter(|mount| path.starts_with(&mount.path));
        let grant = grants.max_by_key(|mount| mount.path.as_os_str().len());
        let staged = || self.setup.stages.iter().any(|stage| path.starts_with(&stage.folder));
        let scratch = || SCRATCH.iter().any(|scratch| path.starts_with(scratch));
        let writable = match grant {
            Some(grant) => grant.access == Access::Write || staged(),
            None => staged() || scratch() || path.starts_with(DEV),
        };
        let rule = match operation {
            _ if !self.shows(&path) => NOT_SHOWN,
            // It fails for what is there already.
            Operation::Write if last == Last::New && path.symlink_metadata().is_ok() => return None,
            Operation::Write if !writable => READ_ONLY,
            Operation::Run if writable => WRITABLE,
            _ => return None,
        };
        Some((path, rule))
    }

    /// True for what the view shows, and for the folders above.
    fn shows(&self, path: &Path) -> bool {
        let setup = self.setup;
        let links = DEVICE_LINKS.iter().map(|(link, _)| *link);
        let made = MADE_ETC.into_iter().chain(SCRATCH).chain([OURS]).chain(devices(setup.sampled())).chain(links);
        let granted = setup.mounts.iter().map(|mount| mount.path.as_path());
        let staged = setup.stages.iter().map(|stage| stage.folder.as_path());
        let mut given = granted.chain(staged).chain(setup.roots.iter().map(PathBuf::as_path));
        let covers = |shown: &Path| path.starts_with(shown) || shown.starts_with(path);
        given.any(covers)
            || made.chain(view::system()).map(Path::new).any(covers)
            || EMPTY_FOLDERS.iter().any(|empty| Path::new(empty).starts_with(path))
    }
}

/// The path with its links followed as far as the view has them; what is not there stays as it is written. `None` where
/// that leads through another process, or takes too long.
fn followed(path: &Path, last: Last, folder: impl Fn() -> Option<PathBuf>) -> Option<PathBuf> {
    let mut left: Vec<PathBuf> = parts(path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    for _ in 0..PARTS {
        let Some(part) = left.pop() else { return Some(at) };
        match part.components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(name)) => {
                let next = at.join(name);
                let of_process = at.parent() == Some(Path::new(PROC));
                if of_process && name == "root" {
                    // All processes of a call have one view.
                    at = PathBuf::from("/");
                } else if of_process && name == "cwd" {
                    at = folder().filter(|_| at.ends_with("self") || at.ends_with("thread-self"))?;
                } else if next.starts_with(PROC) || next.starts_with(DEV) || (left.is_empty() && last != Last::Followed)
                {
                    at = next;
                } else {
                    match fs::read_link(&next) {
                        Ok(target) if links < LINKS => {
                            links += 1;
                            left.extend(parts(&target));
                        }
                        _ => at = next,
                    }
                }
            }
            _ => {}
        }
    }
    None
}

/// The components, last first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}
