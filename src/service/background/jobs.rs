//! One call in the background: what is kept of it, and the callback that reports its end.

use crate::fault::Fault;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

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
    pub fn is_owed(&self) -> bool {
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

/// A job in memory.
#[derive(Debug)]
pub(super) struct Open {
    pub job: Job,
    /// Cancels a call that has not entered the pipeline yet.
    pub cancel: Option<oneshot::Sender<Fault>>,
    /// The result, if it could not be stored.
    pub unkept: Option<String>,
}

impl Open {
    pub fn new(job: Job) -> Open {
        Open {
            job,
            cancel: None,
            unkept: None,
        }
    }
}
