//! The file of the folders that an operator adds to running servers, beside the audit log.

use super::state_file::{LOOK_INTERVAL, StateFile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const FILE: &str = "sources.json";

/// What an operator said to the servers of one root that ran at this time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceOrder {
    pub root: PathBuf,
    /// A folder to add. `None`: all is to be read again.
    pub folder: Option<PathBuf>,
    pub at: Timestamp,
}

impl SourceOrder {
    pub fn is_about_same(&self, other: &SourceOrder) -> bool {
        self.root == other.root && self.folder == other.folder
    }
}

/// The orders as one running server obeys them: none from before its start.
pub struct ObeyedOrders {
    file: StateFile<Vec<SourceOrder>>,
    since: Timestamp,
    known: Arc<Vec<SourceOrder>>,
}

impl ObeyedOrders {
    pub fn begin(log: &Path) -> ObeyedOrders {
        let file = StateFile::new(log, FILE);
        ObeyedOrders {
            known: file.read().unwrap_or_default(),
            file,
            since: Timestamp::now(),
        }
    }

    /// Waits for another order. What cannot be read changes nothing.
    pub async fn changed(&mut self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            looks.tick().await;
            if let Ok(now) = self.file.read()
                && now != self.known
            {
                self.known = now;
                return;
            }
        }
    }

    /// The folders that are added to the servers of a root.
    pub fn folders(&self, root: &Path) -> impl Iterator<Item = &PathBuf> {
        let own = self.known.iter();
        let own = own.filter(move |it| it.root == root && it.at > self.since);
        own.filter_map(|it| it.folder.as_ref())
    }
}
