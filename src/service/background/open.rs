//! Opens the calls in the background of a host.

use super::calls::Background;
use super::{callback, task};
use crate::service::entry::Service;
use std::sync::Arc;

/// Opens the store beside the audit log, adds an end to the calls of a dead host, and starts
/// sending callbacks. `Err` says why calls in the background are refused until that is fixed.
/// `proxy`: the proxy for callbacks.
pub async fn open(
    service: Arc<Service>,
    proxy: Option<String>,
) -> (Arc<Background>, Result<(), String>) {
    let background = Background::new(service, proxy);
    let opened = background.open_store().await;
    tokio::spawn(callback::keep(
        Arc::downgrade(&background),
        background.changed.subscribe(),
    ));
    task::register(&background);
    (background, opened)
}
