//! The runs in memory, within bounds. One that has not ended is never removed for others.

use super::jobs;
use super::run::Run;
use crate::base::semaphore::Permit;
use crate::base::shares::{Entry, IN_USE, Shares};
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::quota::Limiter;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// How long a stored run is kept after its end.
const RUN_TTL_HOURS: i64 = 24;

/// The runs in memory.
#[derive(Debug)]
pub(super) struct Runs {
    limiter: Arc<Limiter>,
    pub all: Shares<String, OpenRun>,
    /// Those on the disk are among them.
    pub loaded: bool,
}

#[derive(Debug)]
pub(super) struct OpenRun {
    pub run: Run,
    /// Held until it ends.
    _place: Option<Permit>,
}

impl Runs {
    pub fn new(limiter: Arc<Limiter>) -> Runs {
        Runs {
            limiter,
            all: Shares::default(),
            loaded: false,
        }
    }

    pub fn get(&self, owner: &Owner, id: &str) -> Option<&Run> {
        let open = self.all.get(&id.to_owned())?;
        Some(&open.run).filter(|run| run.owner == *owner)
    }

    fn ids(&self) -> Vec<String> {
        self.all.iter().map(|(id, _)| id.clone()).collect()
    }

    /// Puts a run in the place of its earlier state. Returns the ids of the runs that were removed
    /// to make room.
    pub fn put(&mut self, run: Run) -> Result<Vec<String>, Fault> {
        let id = run.id.clone();
        let mut gone = self.ids();
        let place = self
            .all
            .remove(&id)
            .and_then(|entry| entry.into_value()._place);
        let (place, until) = if run.status.is_final() {
            (None, Duration::ZERO)
        } else {
            let limiter = &self.limiter.background;
            let place = place.or_else(|| limiter.try_enter(run.owner.principal(), 1));
            (Some(place.ok_or_else(full)?), IN_USE)
        };
        let charge = jobs::charge(run.owner.principal(), run.bytes());
        let open = OpenRun { run, _place: place };
        if !self.all.put(id, charge, until, open) {
            return Err(full());
        }
        let left = self.ids();
        gone.retain(|id| !left.contains(id));
        Ok(gone)
    }

    /// Ends runs that no client answered, and removes those that are kept no longer. Returns the
    /// ids of those that were stored.
    pub fn forget(&mut self, now: Timestamp) -> Vec<String> {
        let kept = SignedDuration::from_hours(RUN_TTL_HOURS);
        let mut gone = Vec::new();
        let runs = self.all.iter().map(|(_, open)| &open.run);
        let over = runs.filter(|run| {
            let age = run.ended.map(|ended| now.duration_since(ended));
            run.expires.is_some_and(|until| until <= now) || age.is_some_and(|age| age > kept)
        });
        let over: Vec<String> = over.map(|run| run.id.clone()).collect();
        for id in over {
            let Some(OpenRun { mut run, .. }) = self.all.remove(&id).map(Entry::into_value) else {
                continue;
            };
            run.expire(now);
            if !run.store {
                continue;
            }
            let age = run.ended.map(|ended| now.duration_since(ended));
            if age.is_some_and(|age| age > kept) {
                gone.push(id);
            } else {
                // An ended run fits where it was.
                let _ = self.put(run);
            }
        }
        gone
    }
}

fn full() -> Fault {
    let message = "Too many runs wait for their clients.";
    Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(10))
}
