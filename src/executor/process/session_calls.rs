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
use crate::executor::{
    Clock, Context, Ending, LeftFile, Outcome, SessionCall, ToolAnswer, ToolSender,
};
use crate::fault::{Fault, Kind};
use crate::policy::{Confinement, Limits};
use crate::quantity::{Limit, OVERDUE};
use crate::sandbox::protocol::{Exited, Killed};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The message for a caller whose session is not free, or not started, in time.
const BUSY: &str = "another call of this session still runs";
const STARTING: &str = "the session is still being started";

/// Serves the calls of sessions.
pub struct SessionCalls {
    pub launchers: Arc<Launchers>,
}

/// One call of a session.
pub struct CallOfSession<'a> {
    pub context: &'a Context,
    pub session: &'a SessionCall,
    pub confinement: &'a Confinement,
    pub events: &'a ToolSender,
}

impl SessionCalls {
    pub async fn run(&self, call: &CallOfSession<'_>) -> Result<Outcome, Fault> {
        let began = Instant::now();
        let Confinement { shape, per_call } = call.confinement;
        let clock = Clock::new(call.context.deadline.began, per_call.timeout_ms);
        let waiting = self.launchers.sessions.turn(&call.session.id);
        let mut turn = clock.prepare(BUSY, waiting).await?;
        let started = self.start(call, clock, &mut turn).await?;
        // Decided again, now that nothing more is waited for.
        call.events.opened(shape).await?;
        let taken = turn.take(started, &call.session.id.name);
        let Some((mut session, state)) = taken else {
            return Err(Fault::new(Kind::InternalError, "a turn without a session"));
        };
        let cpu_before = session.ready.launcher.cpu_ms();
        let cell = Cell {
            source: per_call.source.as_deref().unwrap_or_default(),
            files: &per_call.files,
            secrets: &per_call.secrets,
            limits: &shape.limits,
            clock,
            limit_ms: per_call.timeout_ms,
            traffic: &call.context.traffic,
            signals: turn.signals(),
        };
        let (end, printed) = session.run(&cell).await.map_err(fault)?;
        let cpu_now = session.ready.launcher.cpu_ms();
        let layers = session.ready.launcher.layers.clone();
        let ended = match end {
            CellEnd::Shown(shown, folder) => {
                let left = folder.map(|folder| publish::left(&folder, shape));
                let LeftFiles { files, refused } = left.unwrap_or_default();
                let cell = CellShown {
                    cell: session.cells,
                    shown,
                    printed,
                    state,
                    files: session.new_files(files),
                };
                turn.put(session);
                let outcome = cell.outcome(call.events, shape.limits.get(Limit::ArtifactFiles));
                outcome.await.map(|outcome| Outcome {
                    artifacts: refused,
                    ..outcome
                })
            }
            end => {
                let ending = ending_of(end, &shape.limits, per_call.timeout_ms);
                turn.ended(&ending);
                Ok(Outcome::new(ending, 0))
            }
        };
        let mut outcome = ended?;
        outcome.layers = layers;
        outcome.usage.wall_ms = millis(began.elapsed());
        outcome.usage.cpu_ms = cpu_now.zip(cpu_before).map(|(now, before)| now - before);
        Ok(outcome)
    }

    /// A new session, unless the one that waits is as it must be.
    async fn start(
        &self,
        call: &CallOfSession<'_>,
        clock: Clock,
        turn: &mut Turn,
    ) -> Result<Option<Session>, Fault> {
        let shape = &call.confinement.shape;
        let needs = RoleNeeds {
            principal: call.context.principal.clone(),
            cells: true,
            // Its orders, and what it sends.
            inherited: 2,
            ..RoleNeeds::default()
        };
        let key = ready::key(call.confinement, &call.session.digest, &needs);
        let key = clock.prepare(STARTING, key).await.map_err(fault)?;
        let (Some(key), Some(grant)) = (key, &shape.sessions) else {
            let message = "This tool can have no sessions: its files cannot be compared.";
            return Err(Fault::new(Kind::CapabilityError, message));
        };
        if turn.compare(&key) {
            return Ok(None);
        }
        let sessions = &self.launchers.sessions;
        sessions.check_room(&call.session.id, grant)?;
        let ready = self.launchers.ready(shape, &needs);
        let ready = clock.prepare(STARTING, ready).await.map_err(fault)?;
        let started = Session::start(ready, key, call.session.environment.clone());
        started.map(Some).map_err(fault)
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
        CellEnd::Ended => Ending::Cancelled,
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
