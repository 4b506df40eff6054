//! Calls in the background: their states, their store, and callbacks at their ends.

mod callback;
mod calls;
mod jobs;
mod store;
mod task;

pub use calls::{Background, JobCounts, Receipt};
pub use jobs::{CallbackState, Delivery};
pub use store::FILE;

use super::Service;
use std::sync::Arc;

/// Opens the store beside the audit log, ends the calls of a host that is gone, and has callbacks sent. `Err` says why
/// calls in the background are refused until that is repaired. `proxy`: by which callbacks are sent.
pub async fn open(service: Arc<Service>, proxy: Option<String>) -> (Arc<Background>, Result<(), String>) {
    let (background, opened) = Background::open(service, proxy).await;
    tokio::spawn(callback::keep(Arc::downgrade(&background), background.changed.subscribe()));
    task::register(&background);
    (background, opened)
}
