//! The calls in the background of a host, with or without a file.

use super::calls::Background;
use super::store::JobStore;
use super::{callback, task};
use crate::service::entry::Service;
use std::sync::Arc;

/// The calls in the background of a host that stores them beside the audit log, and starts sending
/// callbacks. `proxy`: the proxy for callbacks.
pub fn stored(service: Arc<Service>, proxy: Option<String>) -> Arc<Background> {
    let background = Background::new(service, proxy, None);
    begin(&background);
    background
}

/// The calls in the background of a host that keeps them as long as it runs.
pub fn in_memory(service: Arc<Service>) -> Result<Arc<Background>, String> {
    let background = Background::new(service, None, Some(JobStore::in_memory()?));
    begin(&background);
    Ok(background)
}

fn begin(background: &Arc<Background>) {
    tokio::spawn(callback::keep(
        Arc::downgrade(background),
        background.changed.subscribe(),
    ));
    task::register(background);
}
