//! The open connections. When all places are taken, the oldest connection without a whole request
//! is closed for one more.

use crate::base::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct ConnectionLimiter {
    most: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    last: u64,
    by_id: BTreeMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    /// A whole request was received.
    is_whole: bool,
    close: CancellationToken,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    crowd: Arc<ConnectionLimiter>,
    id: u64,
    /// Cancelled once the connection must go.
    pub close: CancellationToken,
}

impl ConnectionLimiter {
    pub fn new(most: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            most,
            open: Mutex::default(),
        })
    }

    /// `None`: all places are taken by connections with whole requests, or as many connections as
    /// there are places are still being closed.
    pub fn enter(self: &Arc<ConnectionLimiter>) -> Option<ConnectionSlot> {
        let mut open = lock(&self.open);
        let mut staying = open
            .by_id
            .values()
            .filter(|connection| !connection.close.is_cancelled());
        if staying.clone().count() >= self.most {
            let oldest = staying.find(|connection| !connection.is_whole)?;
            if open.by_id.len() >= 2 * self.most {
                return None;
            }
            oldest.close.cancel();
        }
        open.last += 1;
        let id = open.last;
        let close = CancellationToken::new();
        open.by_id.insert(
            id,
            OpenConnection {
                is_whole: false,
                close: close.clone(),
            },
        );
        Some(ConnectionSlot {
            crowd: self.clone(),
            id,
            close,
        })
    }
}

impl ConnectionSlot {
    /// Sets whether a whole request was received. False: a body is still to come.
    pub fn set_whole(&self, is_whole: bool) {
        if let Some(connection) = lock(&self.crowd.open).by_id.get_mut(&self.id) {
            connection.is_whole = is_whole;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.crowd.open).by_id.remove(&self.id);
    }
}
