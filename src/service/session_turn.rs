//! The turn of a call at its session: it waits for that inside its own time, and without a slot.

use super::catalog::Catalog;
use super::quota::Slot;
use super::ready;
use super::target::Decided;
use crate::executor::SessionCall;
use crate::executor::process::{Turn, no_sessions};
use crate::fault::{Fault, Kind};
use crate::policy;
use futures_util::FutureExt;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct SessionTurn {
    turn: Option<Turn>,
    /// How long the call has waited for it.
    pub waited: Duration,
}

impl SessionTurn {
    /// Takes the turn of a call whose code goes on in a session. True: it waited for that, and has
    /// given up its slot.
    pub async fn take(
        &mut self,
        catalog: &Catalog,
        target: &Decided,
        slot: &mut Slot,
    ) -> Result<bool, Fault> {
        let Some(id) = target.session() else {
            return Ok(false);
        };
        self.turn = self.turn.take().filter(|turn| turn.id == id);
        if self.turn.is_some() {
            return Ok(false);
        }
        let processes = catalog.ready_processes().ok_or_else(no_sessions)?;
        let mut waiting = processes.sessions().turn(&id).boxed();
        if let Some(turn) = (&mut waiting).now_or_never() {
            self.turn = Some(turn?);
            return Ok(false);
        }
        slot.step_aside();
        let began = Instant::now();
        let limit = policy::time_ms(&target.decided.decision, target.timeout_ms)?;
        let left = Duration::from_millis(limit).saturating_sub(self.waited);
        let turn = tokio::time::timeout(left, waiting).await;
        self.turn = Some(turn.map_err(|_| busy())??);
        self.waited += began.elapsed();
        Ok(true)
    }

    /// What the call brings for its session.
    pub fn call(&mut self, decided: &Decided, slot: &Slot) -> Option<SessionCall> {
        let turn = self.turn.take()?;
        Some(SessionCall {
            turn: Box::new(turn),
            digest: ready::digest(&decided.found.tool, &decided.decided.decision, None),
            slot: slot.running.clone(),
        })
    }
}

/// The fault of a call whose session served others for all of its time.
fn busy() -> Fault {
    let message = "Another call of this session still runs; try again.";
    Fault::new(Kind::TimeoutError, message).retryable()
}
