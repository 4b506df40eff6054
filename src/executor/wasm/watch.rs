//! Counts what a call adds to the folders that it may write live: before, while and after it runs. The host counts, since
//! a worker serves several calls, which only the host tells apart.

use super::session::SessionError;
use crate::fault::{Fault, Kind};
use crate::policy::Limits;
use crate::quantity::SAMPLE_MS;
use crate::sandbox::Totals;
use crate::sandbox::protocol::Mount;
use crate::sandbox::written::WriteWatch;
use std::io;
use std::time::Duration;

pub async fn held<T>(
    (mounts, before): (&[Mount], Totals),
    limits: &Limits,
    call: impl Future<Output = Result<T, SessionError>>,
) -> Result<Result<T, SessionError>, Fault> {
    let Some(written) = WriteWatch::begin(mounts, before).map_err(|errno| uncounted(&errno.into()))? else {
        return Ok(call.await);
    };
    let mut written = written.from_outside();
    tokio::pin!(call);
    loop {
        let ended = tokio::time::timeout(Duration::from_millis(SAMPLE_MS), &mut call).await.ok();
        let (last, limits) = (ended.is_some(), limits.clone());
        let look = move || {
            let over = if last { written.at_last(&limits) } else { written.look(&limits) };
            (written, over)
        };
        let (back, over) = tokio::task::spawn_blocking(look).await.map_err(|e| uncounted(&io::Error::other(e)))?;
        written = back;
        match (over.map_err(|errno| uncounted(&errno.into()))?, ended) {
            (Some(limit), _) => {
                return Ok(Err(SessionError::Died(Some(limit))));
            }
            (None, Some(ended)) => return Ok(ended),
            (None, None) => {}
        }
    }
}

fn uncounted(error: &io::Error) -> Fault {
    Fault::new(Kind::InternalError, "what the call wrote could not be counted, so it was ended")
        .person(format!("counting its live write grants: {error}"))
}
