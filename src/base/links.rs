//! The steps that a path really takes: the links on the way, and the path at their end, there or not. No file is
//! opened.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Most links that are followed from one path, as in the kernel (path_resolution(7)).
const MOST: usize = 40;

/// The links that the kernel would follow to open `path`, in order, each as a path whose folder holds no link; and the
/// path at their end, whether or not it is there.
pub fn way(path: &Path) -> (Vec<PathBuf>, PathBuf) {
    let mut met = Vec::new();
    let mut done = PathBuf::from("/");
    let mut todo: Vec<OsString> = names(path);
    while let Some(name) = todo.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&name);
        match next.read_link() {
            Ok(_) if met.len() >= MOST => return (met, done),
            Ok(target) => {
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                todo.extend(names(&target));
                met.push(next);
            }
            Err(_) => done = next,
        }
    }
    (met, done)
}

/// The path itself, the path at its end, and the links between them.
pub fn steps(path: &Path) -> Vec<PathBuf> {
    // A relative path starts at the current folder.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (links, end) = way(&path);
    [path, end].into_iter().chain(links).collect()
}

/// The names of a path, last first.
pub(super) fn names(path: &Path) -> Vec<OsString> {
    let kept = path.components().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    kept.map(|c| c.as_os_str().to_owned()).rev().collect()
}

/// The path without links; of one that is not there yet, without links in the part that is.
pub fn resolved(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there.and_then(|(above, real)| Some((real, path.strip_prefix(above).ok()?))) {
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path.to_path_buf(),
    }
}
