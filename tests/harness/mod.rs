//! What the tests stand on, once: hosts of their own that are run and judged from outside, a
//! running server, and the service with a pretended executor.

mod certificates;
#[cfg(feature = "wasi")]
pub mod components;
pub mod fake;
mod host;
mod listeners;
mod manifest;
mod playground;
mod program;
mod server;
mod service;
mod stopwatch;
mod who;

pub use certificates::certificates;
pub use host::{Host, host};
pub use listeners::Listeners;
pub use manifest::{made_of, manifest, script};
pub use playground::Playground;
pub use program::{
    Ended, Hosted, binary, copy_program, finish, fits, free_port, groups_of, in_time_once,
    lines_of_check, parent_of, processes_of, signal, signal_all, until, wait_for, within,
};
pub use server::{Server, holds_at_rest, kind, words};
pub use service::service;
pub use stopwatch::Stopwatch;
pub use who::{Who, as_everyone, as_ours_with, found, has, is_root, missing, skipped};

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The interpreters of both sides.
pub const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
pub const PYTHON: &str = "/usr/bin/python3";
/// A WASI module that prints 1.
pub const PRINTS_ONE: &str = include_str!("components/one.wat");
/// Nothing here takes this long: an answer that has not come by then never comes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Copies a folder of the repository.
pub fn copy(from: &Path, to: &Path) {
    for entry in walkdir::WalkDir::new(from) {
        let entry = entry.unwrap();
        let target = to.join(entry.path().strip_prefix(from).unwrap());
        match entry.file_type().is_dir() {
            true => std::fs::create_dir_all(&target).unwrap(),
            false => drop(std::fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

pub fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every page of docs/, also those of its folders.
pub fn pages_of_docs() -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(repository("docs")).sort_by_file_name();
    entries
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

/// What stands below a heading of a page, up to the next one of that level.
pub fn section_of(page: &str, heading: &str) -> String {
    let text = std::fs::read_to_string(repository(page)).unwrap();
    let (_, rest) = text
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("{page} has no section {heading:?}"));
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The processor time of this thread so far: what work takes, however busy the machine is.
pub fn processor_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD).unwrap();
    let times = [usage.user_time(), usage.system_time()];
    times
        .map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000))
        .iter()
        .sum()
}
