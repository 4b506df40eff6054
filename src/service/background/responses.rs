//! The responses that clients had stored, in memory and on the disk. Each is for its owner alone.

use super::calls::Background;
use super::response::{EventRows, RESERVED_BYTES, StoredResponse, size};
use super::runs::{unkept, whole};
use super::store::Change;
use super::table::Kept;
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::Arc;

/// A response is charged in steps of so many bytes: events are many and small.
const STEP_BYTES: usize = 64 * 1024;

/// The next events of a response.
pub struct NewEvents {
    /// As its owner reads them.
    pub told: Vec<Bytes>,
    /// `None`: an item is open, whose secrets may not be known yet.
    pub stored: Option<EventTexts>,
    pub is_end: bool,
}

/// Events as they are stored, secrets hidden.
pub struct EventTexts {
    /// The number of the first. All that follow are here.
    pub from: usize,
    pub events: Vec<Bytes>,
    /// What the model heard before the response, where more of it is hidden now.
    pub items: Option<String>,
}

impl Background {
    /// Takes a response that begins: its place and its bytes are charged, then it is stored.
    /// `items`: those before it, secrets hidden.
    pub async fn begin_response(
        &self,
        response: Arc<StoredResponse>,
        items: String,
    ) -> Result<(), Fault> {
        let id = response.head.id.clone();
        let gone = lock(&self.kept).put(&id, Kept::Response(response.clone()))?;
        let rows = EventRows {
            head: response.head.clone(),
            from: 0,
            events: response.events_from(0),
        };
        let change = Change {
            response: Some(rows),
            result: Some((id.clone(), items)),
            gone,
            ..Change::default()
        };
        let stored = self.write(change).await.map_err(unkept);
        stored.inspect_err(|_| lock(&self.kept).remove(&id))?;
        let mut told = lock(&response.told);
        told.written = told.events.len();
        Ok(())
    }

    /// Tells a response its next events: they are charged, stored where that is due, and then shown.
    /// An error means that they were not.
    pub async fn tell_response(
        &self,
        response: &StoredResponse,
        new: NewEvents,
    ) -> Result<(), Fault> {
        let id = &response.head.id;
        let more = size(&new.told);
        let is_reserved = new.is_end && more <= RESERVED_BYTES;
        let bytes = response.bytes() + more;
        if bytes > lock(&response.told).charged && !is_reserved {
            let charged = bytes.next_multiple_of(STEP_BYTES);
            let (gone, fits) = lock(&self.kept).charge(id, charged);
            self.forget_kept(gone).await;
            if !fits {
                let words = "This stored response has no room left.";
                return Err(Fault::new(Kind::ResourceLimitError, words));
            }
            lock(&response.told).charged = charged;
        }
        let ended = new.is_end.then(Timestamp::now);
        let is_due = new.stored.is_some();
        if let Some(EventTexts {
            from,
            events,
            items,
        }) = new.stored
        {
            let mut head = response.head.clone();
            head.ended = ended;
            let rows = EventRows { head, from, events };
            let change = Change {
                response: Some(rows),
                result: items.map(|items| (id.clone(), items)),
                ..Change::default()
            };
            match self.write(change).await {
                Err(why) if new.is_end => tracing::error!(target: "toolhost::host", "the end of \
                    response {id} is not stored: {why}"),
                written => written.map_err(unkept)?,
            }
        }
        {
            let mut told = lock(&response.told);
            told.add(new.told);
            told.ended = ended;
            if is_due {
                told.written = told.events.len();
            }
        }
        lock(&self.kept).settle(id);
        response.changed.send_replace(());
        Ok(())
    }

    /// A response of this owner. `None`: the owner has no such one.
    pub async fn response_of(
        &self,
        owner: &Owner,
        id: &str,
    ) -> Result<Option<Arc<StoredResponse>>, Fault> {
        if !lock(&self.kept).has(id) {
            self.store().await.map_err(unkept)?;
        }
        let gone = lock(&self.kept).expire(Timestamp::now());
        self.forget_kept(gone).await;
        Ok(lock(&self.kept).response(owner, id).cloned())
    }

    /// Removes a response that has ended.
    pub async fn delete_response(self: &Arc<Self>, id: String) -> Result<(), Fault> {
        let background = self.clone();
        whole(async move { background.remove(id, true).await }).await
    }
}
