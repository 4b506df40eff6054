//! The file of the folders that an operator adds to running servers, beside the audit log.

use super::state_file::StateFile;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const FILE: &str = "sources.json";
/// Most folders in it.
const MAX_FOLDERS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceOrders {
    pub folders: Vec<AddedFolder>,
    /// When an operator last had everything read again.
    pub refreshed: Option<Timestamp>,
}

/// A folder for the servers of one root that run at this time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddedFolder {
    pub root: PathBuf,
    pub path: PathBuf,
    pub by: String,
    pub at: Timestamp,
}

impl SourceOrders {
    pub fn file(log: &Path) -> StateFile<SourceOrders> {
        StateFile::new(log, FILE)
    }

    /// The oldest orders make room.
    pub fn add(&mut self, folder: AddedFolder) {
        self.remove(&folder.root, &folder.path);
        self.folders.push(folder);
        let room = self.folders.len().saturating_sub(MAX_FOLDERS);
        self.folders.drain(..room);
    }

    /// False: there was none.
    pub fn remove(&mut self, root: &Path, path: &Path) -> bool {
        let before = self.folders.len();
        self.folders.retain(|it| it.root != root || it.path != path);
        self.folders.len() < before
    }
}

/// The orders as one running server obeys them: none from before its start.
pub struct ObeyedOrders {
    file: StateFile<SourceOrders>,
    /// What it said at the start, or when it could first be read.
    before: Option<Arc<SourceOrders>>,
    known: Arc<SourceOrders>,
}

impl ObeyedOrders {
    pub fn begin(log: &Path) -> ObeyedOrders {
        let file = SourceOrders::file(log);
        let before = file.read().ok();
        ObeyedOrders {
            file,
            known: before.clone().unwrap_or_default(),
            before,
        }
    }

    /// Waits for another order. What cannot be read changes nothing.
    pub async fn changed(&mut self) {
        let mut looks = tokio::time::interval(super::state_file::LOOK_INTERVAL);
        loop {
            looks.tick().await;
            if let Ok(now) = self.file.read()
                && now != self.known
            {
                self.before.get_or_insert_with(|| now.clone());
                self.known = now;
                return;
            }
        }
    }

    /// The folders that are added to the servers of a root.
    pub fn folders(&self, root: &Path) -> impl Iterator<Item = &PathBuf> {
        let before = self.before.iter().flat_map(|before| &before.folders);
        let own = self.known.folders.iter().filter(move |it| it.root == root);
        let new = own.filter(move |it| !before.clone().any(|old| old == *it));
        new.map(|it| &it.path)
    }
}
