//! Requirements that only a whole host can show: the real binary, or the real service with the real
//! executors behind the real layers, judged from outside. Each file is one feature.

mod audit_segments;
mod builtin_tools;
mod chain;
mod documents;
mod dropped;
mod error_types;
mod folders_of_others;
mod inherited_signals;
mod languages;
mod last_denials;
mod listing;
mod loads;
pub mod mapped_scripts;
mod mounted;
mod no_shell;
mod one_pipeline;
mod pages;
mod planted;
mod records;
mod reload;
mod script_location;
mod script_ownership;
mod search_path;
mod silent_files;
mod swapped_files;
mod tool_logs;

use crate::prelude::*;

/// A manifest that asks for these files.
pub fn files(read: &[&str], write: &[&str]) -> Value {
    json!({"securityContext": {"fileAccess": {"allowRead": read, "allowWrite": write}}})
}

/// Writes a file of the playground, and makes the folders above it.
pub fn put(playground: &Playground, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
    let path = playground.base.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// What a verb prints holds all of these words.
pub fn says(playground: &Playground, verb: &[&str], words: &[&str]) {
    let told = playground.cli(verb).text();
    assert!(
        words.iter().all(|word| told.contains(word)),
        "{verb:?} as {:?}: {words:?}: {told}",
        playground.who
    );
}
