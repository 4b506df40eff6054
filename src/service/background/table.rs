//! All that a host keeps for its callers: calls in the background, runs and responses. They have one
//! bound together, and each principal has its share. What runs, or is still to be reported, is never
//! removed; a principal with much loses its own first.

use super::jobs::Open;
use super::response::StoredResponse;
use super::run::Run;
use crate::base::mask::Mask;
use crate::base::semaphore::{self, Permit};
use crate::base::shares::{Charge, IN_USE, Shares};
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::quota::Limiter;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Bytes of all that is kept, and of what one principal has. Each counts as its texts and
/// `OWN_BYTES` more.
const MAX_KEPT_BYTES: [usize; 2] = [256 << 20, 64 << 20];
const OWN_BYTES: usize = 64 << 10;
/// The largest result or response that is kept, bytes.
const MAX_ONE_BYTES: usize = MAX_KEPT_BYTES[1] / 4;
/// How long something is kept after its end.
const TTL_HOURS: i64 = 24;

pub(super) enum Kept {
    Job(Open),
    Run(OpenRun),
    Response(Arc<StoredResponse>),
}

/// A run in memory.
#[derive(Clone)]
pub(super) struct OpenRun {
    pub run: Run,
    /// Hides the secrets of its calls. Nobody knows them after a restart.
    pub hides: Mask,
    /// Cancels its calls.
    pub cancel: CancellationToken,
}

impl OpenRun {
    pub fn new(run: Run) -> OpenRun {
        OpenRun {
            run,
            hides: Mask::default(),
            cancel: CancellationToken::new(),
        }
    }
}

impl Kept {
    fn id(&self) -> &str {
        match self {
            Kept::Job(open) => &open.job.id,
            Kept::Run(open) => &open.run.id,
            Kept::Response(response) => &response.head.id,
        }
    }

    fn principal(&self) -> &str {
        match self {
            Kept::Job(open) => open.job.through(),
            Kept::Run(open) => open.run.owner.principal(),
            Kept::Response(response) => response.head.owner.principal(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Kept::Job(open) => open.job.bytes,
            Kept::Run(open) => open.run.bytes(),
            Kept::Response(response) => response.bytes(),
        }
    }

    /// When it ended. `None`: it has not, or its end is still to be reported.
    fn over(&self) -> Option<Timestamp> {
        match self {
            Kept::Job(open) => open.job.ended.filter(|_| !open.job.is_owed()),
            Kept::Run(open) => open.run.ended,
            Kept::Response(response) => response.ended(),
        }
    }

    fn is_stored(&self) -> bool {
        !matches!(self, Kept::Run(OpenRun { run, .. }) if !run.store)
    }
}

struct Entry {
    kept: Kept,
    /// Held until it is over.
    place: Option<Permit>,
}

pub(super) struct KeptTable {
    limiter: Arc<Limiter>,
    /// By id; those of calls are in the order of time.
    all: Shares<String, Entry>,
}

impl KeptTable {
    pub fn new(limiter: Arc<Limiter>) -> KeptTable {
        KeptTable {
            limiter,
            all: Shares::default(),
        }
    }

    pub fn has(&self, id: &str) -> bool {
        self.all.get(&id.to_owned()).is_some()
    }

    fn kept(&self) -> impl Iterator<Item = &Kept> {
        self.all.iter().map(|(_, entry)| &entry.kept)
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Open> {
        self.kept().filter_map(|kept| match kept {
            Kept::Job(open) => Some(open),
            _ => None,
        })
    }

    pub fn job(&self, id: &str) -> Option<&Open> {
        match &self.all.get(&id.to_owned())?.kept {
            Kept::Job(open) => Some(open),
            _ => None,
        }
    }

    pub fn runs(&self) -> impl Iterator<Item = &OpenRun> {
        self.kept().filter_map(|kept| match kept {
            Kept::Run(open) => Some(open),
            _ => None,
        })
    }

    /// A run of this owner.
    pub fn run(&self, owner: &Owner, id: &str) -> Option<&OpenRun> {
        match &self.all.get(&id.to_owned())?.kept {
            Kept::Run(open) if open.run.owner == *owner => Some(open),
            _ => None,
        }
    }

    /// A run that is kept.
    pub fn run_mut(&mut self, id: &str) -> Option<&mut OpenRun> {
        match &mut self.all.get_mut(&id.to_owned())?.kept {
            Kept::Run(open) => Some(open),
            _ => None,
        }
    }

    /// A response of this owner.
    pub fn response(&self, owner: &Owner, id: &str) -> Option<&Arc<StoredResponse>> {
        match &self.all.get(&id.to_owned())?.kept {
            Kept::Response(response) if response.head.owner == *owner => Some(response),
            _ => None,
        }
    }

    fn ids(&self) -> Vec<String> {
        self.all.iter().map(|(id, _)| id.clone()).collect()
    }

    /// Puts it in the place of its earlier state. Returns the ids of what was removed to make room.
    pub fn put(&mut self, id: &str, kept: Kept) -> Result<Vec<String>, Fault> {
        let id = id.to_owned();
        let mut gone = self.ids();
        let before = self.all.remove(&id);
        let mut place = before.and_then(|entry| entry.into_value().place);
        let until = if kept.over().is_some() {
            place = None;
            Duration::ZERO
        } else {
            let limiter = &self.limiter.background;
            place = place.or_else(|| limiter.try_enter(kept.principal(), 1));
            place.as_ref().ok_or_else(full)?;
            IN_USE
        };
        let charge = charge(kept.principal(), kept.bytes());
        if !self.all.put(id, charge, until, Entry { kept, place }) {
            return Err(full());
        }
        gone.retain(|id| !self.has(id));
        Ok(gone)
    }

    /// Takes in what the store has. `is_known`: it was taken in before, so that what is not here was
    /// removed since. Returns the ids of what is not to be stored.
    pub fn load(&mut self, stored: impl Iterator<Item = Kept>, is_known: bool) -> Vec<String> {
        let mut gone = Vec::new();
        for kept in stored {
            let id = kept.id().to_owned();
            if self.has(&id) {
                continue;
            }
            if is_known {
                gone.push(id);
            } else if let Ok(more) = self.put(&id, kept) {
                gone.extend(more);
            }
            // Without room it stays in the store until that is opened again.
        }
        gone
    }

    /// Changes a job. One that is over can then be removed for others.
    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Open)) {
        let entry = self.all.get_mut(&id.to_owned());
        if let Some(Kept::Job(open)) = entry.map(|entry| &mut entry.kept) {
            change(open);
        }
        self.settle(id);
    }

    /// Lets it be removed for others, if it is over.
    pub fn settle(&mut self, id: &str) {
        let id = id.to_owned();
        let entry = self.all.get_mut(&id);
        if let Some(entry) = entry.filter(|entry| entry.kept.over().is_some()) {
            entry.place = None;
            self.all.keep(&id, Duration::ZERO);
        }
    }

    pub fn remove(&mut self, id: &str) {
        self.all.remove(&id.to_owned());
    }

    /// Charges so many bytes for it. Returns the ids of what was removed to make room, and whether
    /// there is room.
    pub fn charge(&mut self, id: &str, bytes: usize) -> (Vec<String>, bool) {
        let id = id.to_owned();
        let Some(entry) = self.all.get(&id).filter(|_| bytes <= MAX_ONE_BYTES) else {
            return (Vec::new(), false);
        };
        let charge = charge(entry.kept.principal(), bytes);
        let mut gone = self.ids();
        let fits = self.all.charge(&id, charge);
        gone.retain(|id| !self.has(id));
        (gone, fits)
    }

    /// Ends runs that no client answered, and removes what is kept no longer. Returns their ids.
    pub fn expire(&mut self, now: Timestamp) -> Vec<String> {
        let late = self.runs().map(|open| &open.run);
        let late = late.filter(|run| run.expires.is_some_and(|until| until <= now));
        let late: Vec<String> = late.map(|run| run.id.clone()).collect();
        for id in late {
            let entry = self.all.get_mut(&id);
            if let Some(Kept::Run(open)) = entry.map(|entry| &mut entry.kept) {
                open.run.expire(now);
            }
            self.settle(&id);
        }
        let ttl = SignedDuration::from_hours(TTL_HOURS);
        let gone = self.all.iter().filter(|(_, Entry { kept, .. })| {
            let over = kept.over();
            over.is_some_and(|ended| !kept.is_stored() || now.duration_since(ended) > ttl)
        });
        let gone: Vec<String> = gone.map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|id| self.remove(id));
        gone
    }
}

/// What is charged to a principal for something that is kept.
fn charge(principal: &str, bytes: usize) -> Charge {
    let share = (principal.to_owned(), MAX_KEPT_BYTES[1]);
    Charge {
        claim: semaphore::claim(MAX_KEPT_BYTES[0], [share]),
        size: OWN_BYTES + bytes,
    }
}

fn full() -> Fault {
    let message = "Too many runs, stored responses and background calls are open.";
    Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::super::jobs::{Callback, CallbackState, Delivery, Job};
    use super::*;

    fn job(id: usize, caller: &str) -> Job {
        Job {
            id: format!("{id:04}"),
            caller: caller.to_owned(),
            ..Job::default()
        }
    }

    fn admit(table: &mut KeptTable, job: Job) -> Result<Vec<String>, Fault> {
        let id = job.id.clone();
        table.put(&id, Kept::Job(Open::new(job)))
    }

    fn end(table: &mut KeptTable, id: usize, bytes: usize) -> bool {
        let id = format!("{id:04}");
        let (_, fits) = table.charge(&id, bytes);
        table.change(&id, |open| open.job.ended = Some(Timestamp::UNIX_EPOCH));
        fits
    }

    #[test]
    fn a_principal_has_its_share_of_all_that_is_open_and_of_all_that_has_ended() {
        let mut table = KeptTable::new(Arc::new(Limiter::new(1, 1)));
        let named = |id: usize| Job {
            through: Some("gateway".to_owned()),
            ..job(id, &format!("label {id}"))
        };
        (0..128).for_each(|id| drop(admit(&mut table, named(id)).expect("room")));
        assert_eq!(
            admit(&mut table, named(128)).expect_err("its share").kind,
            Kind::RateLimitError
        );
        admit(&mut table, job(128, "b")).expect("others have room");
        assert!(end(&mut table, 128, 1) && end(&mut table, 0, 1));
        // One whose callback is pending is not forgotten, and keeps its place.
        let (url, event) = (String::new(), String::new());
        let shown = CallbackState {
            url,
            event,
            state: Delivery::Pending,
            attempts: 1,
            error: None,
        };
        let callback = Callback {
            shown,
            next: Timestamp::UNIX_EPOCH,
        };
        table.change("0001", |open| {
            (open.job.ended, open.job.callback) = (Some(Timestamp::UNIX_EPOCH), Some(callback));
        });
        admit(&mut table, named(129)).expect("room of the one that ended");
        assert!(admit(&mut table, named(130)).is_err());
        assert!(
            !end(&mut table, 2, MAX_ONE_BYTES + 1),
            "too large to be kept"
        );
        for id in 3..100 {
            assert!(
                end(&mut table, id, 1 << 20),
                "its own older ones go for it: {id}"
            );
        }
        let left = |table: &KeptTable, caller: &str| {
            table
                .jobs()
                .filter(|open| open.job.through() == caller)
                .count()
        };
        assert!(
            left(&table, "b") == 1 && left(&table, "gateway") < 100 && table.job("0001").is_some()
        );
        let late = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(TTL_HOURS + 1);
        assert!(table.expire(late).contains(&"0128".to_owned()) && table.job("0001").is_some());
    }
}
