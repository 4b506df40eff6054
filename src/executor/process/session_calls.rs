//! One call of a session, and how its answer is made.

use super::cells::{AnswerMaker, Printed, SessionState, Shown};
use super::pool::{Launchers, fault};
use super::publish::{self, LeftFiles};
use super::ready;
use super::session::{Cell, CellEnd, INTERRUPTED, Session};
use super::sessions::Turn;
use super::spec::RoleNeeds;
use crate::base::json::Text;
use crate::base::millis;
use crate::executor::{Clock, Context, Ending, LeftFile, Outcome, ToolAnswer, ToolSender};
use crate::fault::{Fault, Kind};
use crate::packages::store::EnvironmentLease;
use crate::policy::{Confinement, Limits};
use crate::quantity::{Limit, OVERDUE};
use crate::sandbox::protocol::{Exited, Killed};
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// The message for a caller whose session is not started in time.
const STARTING: &str = "the session is still being started";
const STOPS: &str = "This host is shutting down.";

/// Serves the calls of sessions.
pub struct SessionCalls {
    pub launchers: Arc<Launchers>,
}

/// One call of a session.
pub struct CallOfSession<'a> {
    pub context: &'a Context,
    pub turn: Turn,
    /// The digest of tool and policies.
    pub digest: String,
    pub environment: Option<EnvironmentLease>,
    /// In use until its cell has ended.
    pub slot: Arc<dyn Any + Send + Sync>,
    pub confinement: Confinement,
    pub events: &'a ToolSender,
}

impl SessionCalls {
    /// Where this is dropped, the cell is interrupted, and its session goes on.
    pub async fn run(&self, mut call: CallOfSession<'_>) -> Result<Outcome, Fault> {
        let began = Instant::now();
        let context = call.context;
        let clock = Clock::new(context.deadline.began, call.confinement.per_call.timeout_ms);
        let started = self.start(&mut call, clock).await?;
        // Decided again, now that nothing more is waited for.
        call.events.opened(&call.confinement.shape).await?;
        let Some((session, state)) = call.turn.take(started) else {
            return Err(Fault::new(Kind::InternalError, "a turn without a session"));
        };
        let gone = CancellationToken::new();
        let _interrupts = gone.clone().drop_guard();
        let running = RunningCell {
            turn: call.turn,
            session,
            state,
            cell: Cell {
                confinement: call.confinement,
                clock,
                traffic: context.traffic.clone(),
                events: call.events.clone(),
                gone,
            },
            _slot: call.slot,
        };
        let mut outcome = match tokio::spawn(running.run()).await {
            Ok(ran) => ran?,
            Err(lost) => match lost.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Err(Fault::new(Kind::InternalError, STOPS).retryable()),
            },
        };
        outcome.usage.wall_ms = millis(began.elapsed());
        Ok(outcome)
    }

    /// A new session, unless the one that waits is as it must be.
    async fn start(
        &self,
        call: &mut CallOfSession<'_>,
        clock: Clock,
    ) -> Result<Option<Session>, Fault> {
        let shape = &call.confinement.shape;
        let needs = RoleNeeds {
            principal: call.context.principal.clone(),
            cells: true,
            // Its orders, and what it sends.
            inherited: 2,
            ..RoleNeeds::default()
        };
        let key = ready::key(&call.confinement, &call.digest, &needs);
        let key = clock.prepare(STARTING, key).await.map_err(fault)?;
        let (Some(key), Some(grant)) = (key, &shape.sessions) else {
            let message = "This tool can have no sessions: its files cannot be compared.";
            return Err(Fault::new(Kind::CapabilityError, message));
        };
        if call.turn.compare(&key) {
            return Ok(None);
        }
        let sessions = &self.launchers.sessions;
        sessions.check_room(&call.turn.id, grant)?;
        let ready = self.launchers.ready(shape, &needs);
        let ready = clock.prepare(STARTING, ready).await.map_err(fault)?;
        let started = Session::start(ready, key, call.environment.take());
        started.map(Some).map_err(fault)
    }
}

/// A call of a session, from the start of its cell to its end.
struct RunningCell {
    turn: Turn,
    session: Session,
    state: SessionState,
    cell: Cell,
    _slot: Arc<dyn Any + Send + Sync>,
}

impl RunningCell {
    async fn run(self) -> Result<Outcome, Fault> {
        let RunningCell {
            mut turn,
            mut session,
            state,
            cell,
            ..
        } = self;
        let Confinement { shape, per_call } = &cell.confinement;
        let cpu_before = session.ready.launcher.cpu_ms();
        let ran = session.run(&cell, turn.signals()).await;
        let (end, printed) = ran.map_err(fault)?;
        let cpu_now = session.ready.launcher.cpu_ms();
        let layers = session.ready.launcher.layers.clone();
        let mut outcome = match end {
            CellEnd::Shown(shown, folder) => {
                let left = folder.map(|folder| publish::left(&folder, shape));
                let LeftFiles { files, refused } = left.unwrap_or_default();
                // Where nobody takes them, they are still new to the next call.
                let files = if cell.gone.is_cancelled() {
                    Vec::new()
                } else {
                    session.new_files(files)
                };
                let shown = CellShown {
                    cell: session.cells,
                    shown,
                    printed,
                    state,
                    files,
                };
                turn.put(session);
                let most_files = shape.limits.get(Limit::ArtifactFiles);
                let outcome = shown.outcome(&cell.events, most_files).await?;
                Outcome {
                    artifacts: refused,
                    ..outcome
                }
            }
            end => {
                let is_abandoned = matches!(end, CellEnd::Abandoned);
                let ending = ending_of(end, &shape.limits, per_call.timeout_ms);
                if !is_abandoned {
                    turn.ended(&ending);
                }
                Outcome::new(ending, 0)
            }
        };
        outcome.layers = layers;
        outcome.usage.cpu_ms = cpu_now.zip(cpu_before).map(|(now, before)| now - before);
        Ok(outcome)
    }
}

/// What a cell came to.
struct CellShown {
    cell: u64,
    shown: Shown,
    printed: [Printed; 2],
    state: SessionState,
    files: Vec<LeftFile>,
}

impl CellShown {
    /// The outcome, once its files are handed on, which nobody changes meanwhile.
    async fn outcome(self, events: &ToolSender, most_files: u64) -> Result<Outcome, Fault> {
        // A cell that was interrupted answers late.
        let mut deadline = events.deadline.clone();
        deadline.limit += INTERRUPTED + OVERDUE;
        let made = deadline.run(true, move || self.made()).await?;
        let (text, mut files) = made.map_err(|e| {
            let message = "The answer of the session could not be written.";
            Fault::new(Kind::InternalError, message).person(e.to_string())
        })?;
        files.truncate(usize::try_from(most_files).unwrap_or(usize::MAX));
        if !files.is_empty() {
            events.left(files).await?;
        }
        let answer = ToolAnswer::new(text, &deadline);
        Ok(Outcome::new(Ending::Answered(answer), 0))
    }

    fn made(self) -> io::Result<(Text, Vec<LeftFile>)> {
        let mut maker = AnswerMaker::new(self.cell);
        let text = maker.answer(self.shown, self.printed, self.state)?;
        maker.files.extend(self.files);
        Ok((text, maker.files))
    }
}

/// The ending of a call that ended its session.
fn ending_of(end: CellEnd, limits: &Limits, limit_ms: u64) -> Ending {
    let raised = |message: String| Ending::Raised { message };
    match end {
        CellEnd::Exited(Exited {
            killed: Some(killed),
            ..
        }) => killed_ending(killed, limits, limit_ms),
        CellEnd::Exited(Exited { status: 0, .. }) | CellEnd::Shown(..) => {
            raised("the code ended the interpreter of its session".to_owned())
        }
        CellEnd::Exited(Exited { status, .. }) if status & 0x7f != 0 => Ending::Signalled {
            signal: status & 0x7f,
        },
        CellEnd::Exited(Exited { status, .. }) => Ending::Exited {
            code: (status >> 8) & 0xff,
        },
        CellEnd::Over(limit) => Ending::OverLimit {
            limit,
            allowed: limits.get(limit),
        },
        CellEnd::TimedOut => Ending::TimedOut { limit_ms },
        CellEnd::Ended | CellEnd::Abandoned => Ending::Cancelled,
        CellEnd::Invalid(why) => raised(format!("what its session sent cannot be read: {why}")),
    }
}

/// The ending of a call that its launcher ended.
pub fn killed_ending(killed: Killed, limits: &Limits, limit_ms: u64) -> Ending {
    let over = |limit| Ending::OverLimit {
        limit,
        allowed: limits.get(limit),
    };
    match killed {
        Killed::Deadline => Ending::TimedOut { limit_ms },
        Killed::Memory => over(Limit::MemoryBytes),
        Killed::Cpu => over(Limit::CpuMs),
        Killed::TooMany(limit, allowed) => Ending::OverLimit { limit, allowed },
        Killed::Written(limit) => over(limit),
        Killed::Requested => Ending::Cancelled,
    }
}
