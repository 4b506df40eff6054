//! The calls in the background that are kept, within their bounds. A job that runs, or whose callback is pending, is never
//! forgotten; a principal that has many loses its own first.

use crate::fault::{Fault, Kind};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// One call in the background, as it is kept. Its arguments are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    pub id: String,
    /// Who it counts as.
    pub caller: String,
    /// Who authenticated, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// `id@version` as it was when the receipt was made.
    pub tool: String,
    pub began: Timestamp,
    pub ended: Option<Timestamp>,
    /// `success`, or the type of the error, once it ended.
    pub outcome: Option<String>,
    /// Of its result, bytes.
    pub bytes: usize,
    pub callback: Option<Callback>,
    /// The trace that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// What is owed to a caller that wants to be told of the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Callback {
    pub url: String,
    /// Its id, the same each time it is sent.
    pub event: String,
    pub state: Delivery,
    pub attempts: u32,
    /// When it is sent next.
    pub next: Timestamp,
    /// What went wrong the last time, for the caller.
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// The call runs, or it is sent again.
    Pending,
    Delivered,
    /// It is not sent any more.
    Failed,
}

impl Job {
    /// Who authenticated.
    pub fn through(&self) -> &str {
        self.through.as_ref().unwrap_or(&self.caller)
    }

    /// It runs, or its caller is still to be told of its end.
    fn is_owed(&self) -> bool {
        self.ended.is_none() || self.has_pending_callback()
    }

    /// Its end is told, again where that failed.
    pub fn has_pending_callback(&self) -> bool {
        self.ended.is_some() && self.callback.as_ref().is_some_and(|callback| callback.state == Delivery::Pending)
    }
}

/// How much is kept: in all, and of one principal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Jobs that did not end, or whose caller is still to be told.
    pub owed: [usize; 2],
    pub jobs: [usize; 2],
    /// Bytes of results; a single one has at most a quarter of one caller's.
    pub bytes: [usize; 2],
    /// How long a result is kept.
    pub time: Duration,
}

const MIB: usize = 1024 * 1024;

impl Bounds {
    pub const USUAL: Bounds = Bounds {
        owed: [512, 128],
        jobs: [4096, 1024],
        bytes: [256 * MIB, 64 * MIB],
        time: Duration::from_secs(24 * 3600),
    };
}

/// A job in memory.
#[derive(Debug)]
pub(super) struct Open {
    pub job: Job,
    /// Ends it.
    pub cancel: CancellationToken,
    /// Its result, where the disk did not take it.
    pub unkept: Option<String>,
}

#[derive(Debug)]
pub(super) struct Jobs {
    bounds: Bounds,
    /// By id, which is the order of time.
    all: BTreeMap<String, Open>,
}

impl Jobs {
    pub fn new(bounds: Bounds) -> Jobs {
        Jobs { bounds, all: BTreeMap::new() }
    }

    pub fn get(&self, id: &str) -> Option<&Open> {
        self.all.get(id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Open> {
        self.all.get_mut(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Open> {
        self.all.values()
    }

    pub fn put(&mut self, job: Job) -> CancellationToken {
        let cancel = CancellationToken::new();
        let open = Open { cancel: cancel.clone(), unkept: None, job };
        self.all.insert(open.job.id.clone(), open);
        cancel
    }

    pub fn remove(&mut self, id: &str) {
        self.all.remove(id);
    }

    /// Takes in a job that begins. Gives the ids of those that are forgotten for it.
    pub fn admit(&mut self, job: Job) -> Result<(Vec<String>, CancellationToken), Fault> {
        let mut gone = Vec::new();
        let principal = Some(job.through());
        for (at, of) in [(1, principal), (0, None)] {
            if self.sum(of, |job| usize::from(job.is_owed())) >= self.bounds.owed[at] {
                return Err(full());
            }
        }
        for (at, of) in [(1, principal), (0, None)] {
            while self.sum(of, |_| 1) >= self.bounds.jobs[at] {
                gone.push(self.forget(of, |_| 1).ok_or_else(full)?);
            }
        }
        Ok((gone, self.put(job)))
    }

    /// Makes room for a result of this size. `Err`: there is none.
    pub fn room(&mut self, job: &Job, bytes: usize) -> (Vec<String>, Result<(), ()>) {
        let mut gone = Vec::new();
        if bytes > self.bounds.bytes[1] / 4 {
            return (gone, Err(()));
        }
        for (at, of) in [(1, Some(job.through())), (0, None)] {
            while self.sum(of, |job| job.bytes) + bytes > self.bounds.bytes[at] {
                match self.forget(of, |job| job.bytes) {
                    Some(id) => gone.push(id),
                    None => return (gone, Err(())),
                }
            }
        }
        (gone, Ok(()))
    }

    /// Forgets what was kept for its time.
    pub fn expire(&mut self, now: Timestamp) -> Vec<String> {
        let kept = SignedDuration::try_from(self.bounds.time).unwrap_or(SignedDuration::MAX);
        let old = |job: &Job| !job.is_owed() && job.ended.is_some_and(|ended| now.duration_since(ended) > kept);
        let gone: Vec<String> = self.iter().filter(|open| old(&open.job)).map(|open| open.job.id.clone()).collect();
        gone.iter().for_each(|id| self.remove(id));
        gone
    }

    /// Of a principal, or of all.
    fn sum(&self, principal: Option<&str>, size: impl Fn(&Job) -> usize) -> usize {
        self.iter().filter(|open| is_of(principal, &open.job)).map(|open| size(&open.job)).sum()
    }

    /// Forgets the oldest job that is over: of this principal, or of the one that has the most.
    fn forget(&mut self, principal: Option<&str>, size: impl Fn(&Job) -> usize + Copy) -> Option<String> {
        let over = |open: &&Open| !open.job.is_owed() && size(&open.job) > 0;
        let all: BTreeSet<&str> = self.iter().filter(over).map(|open| open.job.through()).collect();
        let largest = || all.into_iter().max_by_key(|name| self.sum(Some(name), size));
        let principal = principal.or_else(largest)?;
        let oldest = self.iter().filter(over).find(|open| is_of(Some(principal), &open.job))?.job.id.clone();
        self.remove(&oldest);
        Some(oldest)
    }
}

fn is_of(principal: Option<&str>, job: &Job) -> bool {
    principal.is_none_or(|name| job.through() == name)
}

fn full() -> Fault {
    let message = "Too many calls in the background are not over, or their callers are still to be told of their end.";
    Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bounds = Bounds { owed: [6, 3], jobs: [10, 4], bytes: [100, 60], time: Duration::from_secs(60) };

    fn job(id: usize, caller: &str) -> Job {
        Job { id: format!("{id:04}"), caller: caller.to_owned(), ..Job::default() }
    }

    fn ids(jobs: &Jobs, caller: &str) -> Vec<String> {
        jobs.iter().filter(|open| open.job.caller == caller).map(|open| open.job.id.clone()).collect()
    }

    fn end(jobs: &mut Jobs, id: usize, bytes: usize) -> Result<(), ()> {
        let job = jobs.get(&format!("{id:04}")).expect("there").job.clone();
        let (_, room) = jobs.room(&job, bytes);
        let job = &mut jobs.get_mut(&format!("{id:04}")).expect("there").job;
        job.ended = Some(Timestamp::UNIX_EPOCH);
        job.bytes = if room.is_ok() { bytes } else { 1 };
        room
    }

    #[test]
    fn what_is_open_is_kept_and_its_caller_refused_at_its_share() {
        let mut jobs = Jobs::new(SMALL);
        (0..3).for_each(|id| drop(jobs.admit(job(id, "a")).expect("room")));
        assert_eq!(jobs.admit(job(3, "a")).expect_err("full").kind, Kind::RateLimitError);
        (4..7).for_each(|id| drop(jobs.admit(job(id, "b")).expect("others have room")));
        assert!(jobs.admit(job(7, "c")).is_err(), "all are taken");
        end(&mut jobs, 0, 1).expect("room");
        assert!(jobs.admit(job(8, "c")).is_ok());
        let owed = Callback {
            url: String::new(),
            event: String::new(),
            state: Delivery::Pending,
            attempts: 1,
            next: Timestamp::UNIX_EPOCH,
            error: None,
        };
        end(&mut jobs, 1, 1).expect("room");
        jobs.get_mut("0001").expect("there").job.callback = Some(owed);
        let late = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(61);
        assert_eq!(jobs.expire(late), ["0000"], "whoever is to be told is not forgotten");
    }

    #[test]
    fn a_principal_has_its_share_under_whatever_names() {
        let mut jobs = Jobs::new(SMALL);
        let named = |id: usize| Job { through: Some("gateway".to_owned()), ..job(id, &format!("label {id}")) };
        jobs.admit(job(0, "a")).expect("room");
        end(&mut jobs, 0, 10).expect("room");
        (1..4).for_each(|id| drop(jobs.admit(named(id)).expect("room")));
        assert_eq!(jobs.admit(named(4)).expect_err("its share").kind, Kind::RateLimitError);
        assert!(jobs.admit(job(5, "b")).is_ok(), "others have room");
        for id in 1..4 {
            end(&mut jobs, id, 10).expect("room");
        }
        for id in 6..30 {
            jobs.admit(named(id)).expect("room");
            end(&mut jobs, id, 10).expect("room");
        }
        assert_eq!(ids(&jobs, "a"), ["0000"], "and keep what they have");
    }

    #[test]
    fn the_oldest_go_first_each_callers_own() {
        let mut jobs = Jobs::new(SMALL);
        for id in 0..20 {
            jobs.admit(job(id, "a")).expect("room");
            end(&mut jobs, id, 1).expect("room");
        }
        assert_eq!(ids(&jobs, "a"), ["0016", "0017", "0018", "0019"]);
        for (id, caller) in (20..).zip(["b", "b", "c", "c", "d", "d", "e", "e"]) {
            jobs.admit(job(id, caller)).expect("room");
            end(&mut jobs, id, 1).expect("room");
        }
        assert_eq!(ids(&jobs, "a"), ["0018", "0019"], "who has the most loses first");
    }

    #[test]
    fn results_are_bounded_in_bytes() {
        let mut jobs = Jobs::new(SMALL);
        for id in 0..4 {
            jobs.admit(job(id, "a")).expect("room");
            assert_eq!(end(&mut jobs, id, 15), Ok(()));
        }
        jobs.admit(job(4, "a")).expect("room");
        assert_eq!(end(&mut jobs, 4, 16), Err(()), "more than a quarter");
        jobs.admit(job(5, "a")).expect("room");
        assert_eq!(end(&mut jobs, 5, 15), Ok(()));
        let sum = |jobs: &Jobs| jobs.iter().map(|open| open.job.bytes).sum::<usize>();
        assert!(sum(&jobs) <= 60, "{}", sum(&jobs));
        for (id, caller) in (6..).zip(["b", "c", "d", "e", "f"]) {
            jobs.admit(job(id, caller)).expect("room");
            assert_eq!(end(&mut jobs, id, 15), Ok(()));
        }
        assert!(sum(&jobs) <= 100, "{}", sum(&jobs));
    }
}
