//! The calls in the background that are kept, within bounds. A job that runs, or whose callback is
//! pending, is never removed; a principal with many jobs loses its own first.

use crate::base::semaphore::{self, Permit};
use crate::base::shares::{Charge, IN_USE, Shares};
use crate::fault::{Fault, Kind};
use crate::service::quota::Limiter;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// One call in the background, as it is kept. Its arguments are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    pub id: String,
    /// Who the call counts as.
    pub caller: String,
    /// Who authenticated, if not `caller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// `id@version` as it was when the receipt was made.
    pub tool: String,
    pub began: Timestamp,
    pub ended: Option<Timestamp>,
    /// `success`, or the type of the error, once it ended.
    pub outcome: Option<String>,
    /// Size of the result, bytes.
    pub bytes: usize,
    pub callback: Option<Callback>,
    /// Whether the caller has the observation of its end. `None`: it gets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<Delivery>,
    /// The trace that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// A callback, which reports the end of a call to its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Callback {
    #[serde(flatten)]
    pub shown: CallbackState,
    /// When it is sent next.
    pub next: Timestamp,
}

/// The state of a callback, as its caller reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackState {
    pub url: String,
    /// The id of the message, the same at each attempt.
    pub event: String,
    pub state: Delivery,
    pub attempts: u32,
    /// What went wrong the last time, for the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// The call runs, or the callback is still to be sent.
    Pending,
    Delivered,
    /// No more attempts are made.
    Failed,
}

impl Job {
    /// Who authenticated.
    pub fn through(&self) -> &str {
        self.through.as_ref().unwrap_or(&self.caller)
    }

    /// The job runs, or its callback is pending.
    fn is_owed(&self) -> bool {
        self.ended.is_none() || self.has_pending_callback()
    }

    /// The call ended, and its callback is still to be delivered.
    pub fn has_pending_callback(&self) -> bool {
        self.ended.is_some()
            && self
                .callback
                .as_ref()
                .is_some_and(|callback| callback.shown.state == Delivery::Pending)
    }
}

/// Bytes of all kept calls, and of those of one principal. A call counts as its result and
/// `CALL_BYTES` more.
const MAX_STORED_BYTES: [usize; 2] = [256 << 20, 64 << 20];
const CALL_BYTES: usize = 64 << 10;
/// Largest result that is kept, bytes.
const MAX_RESULT_BYTES: usize = MAX_STORED_BYTES[1] / 4;
/// How long a result is kept.
const RESULT_TTL_HOURS: i64 = 24;

/// A job in memory.
#[derive(Debug)]
pub(super) struct Open {
    pub job: Job,
    /// Cancels the call.
    pub cancel: CancellationToken,
    /// The result, if it could not be stored.
    pub unkept: Option<String>,
    /// Held until the call ended and no callback is pending.
    place: Option<Permit>,
}

#[derive(Debug)]
pub(super) struct Jobs {
    limiter: Arc<Limiter>,
    /// By id, which is the order of time.
    all: Shares<String, Open>,
}

impl Jobs {
    pub fn new(limiter: Arc<Limiter>) -> Jobs {
        Jobs {
            limiter,
            all: Shares::default(),
        }
    }

    pub fn get(&self, id: &str) -> Option<&Open> {
        self.all.get(&id.to_owned())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Open> {
        self.all.iter().map(|(_, open)| open)
    }

    /// Changes a job. One that ended and has no pending callback can then be removed for others.
    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Open)) {
        let id = id.to_owned();
        let Some(open) = self.all.get_mut(&id) else {
            return;
        };
        change(open);
        if !open.job.is_owed() {
            open.place = None;
            self.all.keep(&id, Duration::ZERO);
        }
    }

    pub fn remove(&mut self, id: &str) {
        self.all.remove(&id.to_owned());
    }

    /// Adds a new job. Returns the ids of the jobs that were removed to make room.
    pub fn admit(&mut self, job: Job) -> Result<(Vec<String>, CancellationToken), Fault> {
        let place = self
            .limiter
            .background
            .try_enter(job.through(), 1)
            .ok_or_else(full)?;
        self.put(job, Some(place))
    }

    /// Adds a job that was read from the store.
    pub fn load(&mut self, job: Job) {
        let place = job
            .is_owed()
            .then(|| self.limiter.background.try_enter(job.through(), 1))
            .flatten();
        // Without room the job stays in the store until that is opened again.
        let _ = self.put(job, place);
    }

    fn put(
        &mut self,
        job: Job,
        place: Option<Permit>,
    ) -> Result<(Vec<String>, CancellationToken), Fault> {
        let cancel = CancellationToken::new();
        let id = job.id.clone();
        let charge = charge(job.through(), job.bytes);
        let until = if job.is_owed() {
            IN_USE
        } else {
            Duration::ZERO
        };
        let open = Open {
            job,
            cancel: cancel.clone(),
            unkept: None,
            place,
        };
        let (gone, put) = self.making_room(|all| all.put(id, charge, until, open));
        if put { Ok((gone, cancel)) } else { Err(full()) }
    }

    /// Makes room for a result of this size. Returns the ids of the jobs that were removed for it,
    /// and whether there is room.
    pub fn room(&mut self, job: &Job, bytes: usize) -> (Vec<String>, bool) {
        if bytes > MAX_RESULT_BYTES {
            return (Vec::new(), false);
        }
        self.making_room(|all| all.charge(&job.id, charge(job.through(), bytes)))
    }

    fn making_room<T>(
        &mut self,
        change: impl FnOnce(&mut Shares<String, Open>) -> T,
    ) -> (Vec<String>, T) {
        let mut gone: Vec<String> = self.all.iter().map(|(id, _)| id.clone()).collect();
        let changed = change(&mut self.all);
        gone.retain(|id| self.all.get(id).is_none());
        (gone, changed)
    }

    /// Removes expired jobs. Returns their ids.
    pub fn expire(&mut self, now: Timestamp) -> Vec<String> {
        let kept = SignedDuration::from_hours(RESULT_TTL_HOURS);
        let gone: Vec<String> = self
            .iter()
            .filter(|open| {
                !open.job.is_owed()
                    && open
                        .job
                        .ended
                        .is_some_and(|ended| now.duration_since(ended) > kept)
            })
            .map(|open| open.job.id.clone())
            .collect();
        gone.iter().for_each(|id| self.remove(id));
        gone
    }
}

/// What is charged to a principal for something that is kept.
pub(super) fn charge(principal: &str, bytes: usize) -> Charge {
    Charge {
        claim: semaphore::claim(
            MAX_STORED_BYTES[0],
            [(principal.to_owned(), MAX_STORED_BYTES[1])],
        ),
        size: CALL_BYTES + bytes,
    }
}

fn full() -> Fault {
    let message = "Too many background calls are running or awaiting their callback.";
    Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: usize, caller: &str) -> Job {
        Job {
            id: format!("{id:04}"),
            caller: caller.to_owned(),
            ..Job::default()
        }
    }

    fn end(jobs: &mut Jobs, id: usize, bytes: usize) -> bool {
        let id = format!("{id:04}");
        let (_, fits) = jobs.room(&jobs.get(&id).expect("there").job.clone(), bytes);
        jobs.change(&id, |open| open.job.ended = Some(Timestamp::UNIX_EPOCH));
        fits
    }

    #[test]
    fn a_principal_has_its_share_of_open_and_of_ended_calls() {
        let mut jobs = Jobs::new(Arc::new(Limiter::new(1, 1)));
        let named = |id: usize| Job {
            through: Some("gateway".to_owned()),
            ..job(id, &format!("label {id}"))
        };
        (0..128).for_each(|id| drop(jobs.admit(named(id)).expect("room")));
        assert_eq!(
            jobs.admit(named(128)).expect_err("its share").kind,
            Kind::RateLimitError
        );
        jobs.admit(job(128, "b")).expect("others have room");
        assert!(end(&mut jobs, 128, 1) && end(&mut jobs, 0, 1));
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
        jobs.change("0001", |open| {
            (open.job.ended, open.job.callback) = (Some(Timestamp::UNIX_EPOCH), Some(callback));
        });
        jobs.admit(named(129)).expect("room of the one that ended");
        assert!(jobs.admit(named(130)).is_err());
        assert!(
            !end(&mut jobs, 2, MAX_RESULT_BYTES + 1),
            "too large to be kept"
        );
        for id in 3..100 {
            assert!(
                end(&mut jobs, id, 1 << 20),
                "its own older ones go for it: {id}"
            );
        }
        let left = |jobs: &Jobs, caller: &str| {
            jobs.iter()
                .filter(|open| open.job.through() == caller)
                .count()
        };
        assert!(
            left(&jobs, "b") == 1 && left(&jobs, "gateway") < 100 && jobs.get("0001").is_some()
        );
        let late = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(RESULT_TTL_HOURS + 1);
        assert!(jobs.expire(late).contains(&"0128".to_owned()) && jobs.get("0001").is_some());
    }
}
