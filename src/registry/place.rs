//! Places: lines and columns in a manifest's file, for messages to a person.
//!
//! For: check, the service's messages on a failure. In: a manifest file, JSON pointers. Out: line and column.
//! Never: reads anything but a regular file of at most a manifest's size; fails: an unknown place is (0, 0).

use crate::base::files;
use crate::base::json;
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::fcntl::OFlag;
use std::path::Path;

/// The text of one manifest, as it is now.
pub struct Places(Vec<u8>);

impl Places {
    /// Of a file that cannot be read, no place is known.
    pub fn of(manifest: &Path) -> Places {
        let bytes = files::open(manifest, OFlag::O_NOFOLLOW).and_then(|file| files::whole(file, MAX_DEFINITION_BYTES));
        Places(bytes.ok().flatten().unwrap_or_default())
    }

    /// Line and column of each value, looked up in one reading; (0, 0) = not there.
    pub fn find(&self, pointers: &[&str]) -> Vec<(usize, usize)> {
        match json::parse(&self.0, json::Dialect::Commented) {
            Ok(document) => pointers.iter().map(|pointer| document.place(pointer)).collect(),
            Err(_) => vec![(0, 0); pointers.len()],
        }
    }

    pub fn one(&self, pointer: &str) -> (usize, usize) {
        self.find(&[pointer]).pop().unwrap_or_default()
    }
}
