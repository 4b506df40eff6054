//! What a caller is told of its call in the background, as plain data. Errors of a callback tell nothing of this host's
//! network.

use super::jobs::{Delivery, Job};
use crate::service::{CallState, Phase};
use serde::Serialize;

/// A call in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    #[serde(flatten)]
    pub call: CallState,
    /// `async`
    pub mode: &'static str,
    /// RFC 3339
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<Told>,
}

/// How far the caller was told of the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub url: String,
    pub event: String,
    pub state: Delivery,
    pub attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Receipt {
    /// `open`: the call, as long as it is not over.
    pub(super) fn of(job: &Job, open: Option<CallState>) -> Receipt {
        let phase = match (job.ended, open) {
            (Some(_), _) => Phase::Ended,
            (None, Some(open)) if open.phase == Phase::Running => Phase::Running,
            (None, _) => Phase::Waiting,
        };
        let call = CallState {
            id: job.id.clone(),
            caller: job.caller.clone(),
            tool: job.tool.clone(),
            began: job.began.to_string(),
            phase,
            outcome: job.outcome.clone(),
            through: job.through().to_owned(),
            ran: false,
        };
        let callback = job.callback.as_ref().map(|callback| Told {
            url: callback.url.clone(),
            event: callback.event.clone(),
            state: callback.state,
            attempts: callback.attempts,
            error: callback.error.clone(),
        });
        Receipt { call, mode: "async", ended: job.ended.map(|ended| ended.to_string()), callback }
    }
}
