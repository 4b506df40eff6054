//! Who runs a host, and what this machine lets the tests try.

use super::SEARCH_PATH;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Ordinary users that own nothing else.
const ORDINARY: u32 = 12345;
const APART: u32 = 12346;

/// Who runs the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    User,
    /// A user of whom only one test is: what the kernel counts for each uid meets no other test
    /// there.
    Apart,
    /// Root of a user namespace: an ordinary user in disguise.
    MappedRoot,
}

impl Who {
    /// Who runs the tests.
    pub fn ours() -> Who {
        if is_root() { Who::Root } else { Who::User }
    }

    /// Root, where that is possible, and an ordinary user.
    pub fn both() -> impl Iterator<Item = Who> {
        [Who::Root, Who::User]
            .into_iter()
            .filter(|who| who.possible())
    }

    /// The same and root of a user namespace, which only root can play.
    pub fn all() -> impl Iterator<Item = Who> {
        Who::both().chain(is_root().then_some(Who::MappedRoot))
    }

    /// The test names who it needs; without real root only the user who runs the tests is there.
    pub fn possible(self) -> bool {
        matches!(self, Who::User | Who::Apart) || is_root()
    }

    pub fn name(self) -> &'static str {
        match self {
            Who::Root => "root",
            Who::User => "user",
            Who::Apart => "apart",
            Who::MappedRoot => "mapped",
        }
    }

    pub fn uid(self) -> Option<u32> {
        match self {
            _ if !is_root() => None,
            Who::Root => None,
            Who::Apart => Some(APART),
            Who::User | Who::MappedRoot => Some(ORDINARY),
        }
    }
}

pub fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    fs::metadata("/proc/self").unwrap().uid() == 0
        && map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Runs a test as root, where that is possible, and as an ordinary user.
pub fn as_everyone(what: &str, test: impl Fn(Who)) {
    if !is_root() {
        skipped(1, &format!("{what} as root needs root"));
    }
    Who::both().for_each(test);
}

/// Runs a test that needs a language as whoever runs this: where the test is not about who owns
/// what.
pub fn as_ours_with(language: &str, test: impl Fn(Who)) {
    if has(language, 1) {
        test(Who::ours());
    }
}

/// Names what could not be run here, and how much it was.
pub fn skipped(count: usize, why: &str) {
    // Past the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "SKIPPED {count}: {why}");
}

/// The same for a missing program: CI installs all of them, so there it is a failure.
pub fn missing(count: usize, program: &str) {
    assert!(
        std::env::var_os("TOOLHOST_CI").is_none(),
        "CI must have it: {program}"
    );
    skipped(count, &format!("no {program} on this machine"));
}

/// A program of this machine, below the folders both sides use.
pub fn found(program: &str) -> Option<PathBuf> {
    std::env::split_paths(SEARCH_PATH)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// Whether this machine can run the language; if not, that is said, and in CI it fails.
pub fn has(language: &str, count: usize) -> bool {
    let program = match language {
        "python" => "python3",
        "nodejs" => "node",
        "wasm" => return cfg!(feature = "wasi"),
        other => other,
    };
    let here = found(program).is_some();
    if !here {
        missing(count, program);
    }
    here
}
