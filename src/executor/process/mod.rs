//! Scripts as processes behind all walls.
//!
//! For: service; wasm (whose workers are started here too). In: a call with its confinement. Out: outcome or fault.
//! Never: runs a script with a wall missing, or reads more of what it says than its limits allow.

mod capture;
pub mod examine;
mod launcher;
mod pool;
mod publish;
mod setup;
mod workers;

pub use launcher::{Unready, refused, settle};
pub use pool::{Extra, Launchers};
pub use workers::WasmWorkers;

use super::{Call, Context, Denials, Ending, Event, Events, Executor, Outcome, Running, Usage, answer};
use crate::fault::{Fault, Kind};
use crate::policy::{Confinement, Shape};
use crate::quantity::Limit;
use crate::sandbox::protocol::{Exited, FromLauncher, Killed, ToLauncher};
use capture::{Captured, Pipes};
use launcher::Launcher;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The launcher ends a call at its limit; should it not answer by this long after, it is ended itself.
const OVERDUE: Duration = Duration::from_millis(800);

/// The executor of Python, Node and Bun scripts.
pub struct Scripts {
    launchers: Arc<Launchers>,
}

impl Scripts {
    pub fn new(launchers: Arc<Launchers>) -> Scripts {
        Scripts { launchers }
    }
}

impl Executor for Scripts {
    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a Events) -> Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let Some(confinement) = &call.confinement else {
                return Err(Fault::new(Kind::InternalError, "a script without a confinement"));
            };
            let input = serde_json::to_vec(&call.input)
                .map_err(|e| Fault::new(Kind::InternalError, "the input cannot be written").person(e.to_string()))?;
            let allowed = confinement.shape.limits.get(Limit::InputBytes);
            let source = confinement.per_call.source.as_ref().map_or(0, String::len);
            if input.len().max(source) as u64 > allowed {
                let ending = Ending::OverLimit { limit: Limit::InputBytes, allowed };
                return Ok(outcome(ending, &confinement.shape, started));
            }
            tokio::select! {
                biased;
                // The other branch is dropped, and with it the launcher and the tool.
                () = context.cancel.cancelled() => Ok(outcome(Ending::Cancelled, &confinement.shape, started)),
                done = self.one(confinement, input, started, events) => done,
            }
        })
    }
}

impl Scripts {
    async fn one(
        &self,
        confinement: &Confinement,
        input: Vec<u8>,
        started: Instant,
        events: &Events,
    ) -> Result<Outcome, Fault> {
        let Confinement { shape, per_call } = confinement;
        let mut shape = Arc::clone(shape);
        let source = per_call.source.as_deref().map(|text| {
            let name = setup::source_name(shape.runtime.language, text);
            let script = shape.folder.join(name);
            Arc::make_mut(&mut shape).script = Some(script);
            (name, text)
        });
        let launcher = self.launchers.take(&shape, &Extra { own_source: source.is_some(), ..Extra::default() }).await?;
        let (pipes, theirs) = capture::pipes().map_err(|e| no_pipe(&e))?;
        let text = source.map(|(_, text)| crate::sandbox::protocol::memory_file(text.as_bytes())).transpose();
        let text = text.map_err(|e| no_pipe(&e))?;
        let mut files: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        files.extend(text.iter().map(AsFd::as_fd));
        let start =
            ToLauncher::Start { timeout_ms: per_call.timeout_ms, source: source.map(|(name, _)| name.to_owned()) };
        launcher.say(&start, &files)?;
        drop(files);
        drop(theirs);
        let (captured, exited, staged) = follow(&launcher, pipes, input, &shape, per_call.timeout_ms).await?;
        let logs = answer::lines(&captured.log);
        for line in &logs {
            // Nobody may be listening.
            let _ = events.send(Event::Log(line.clone()));
        }
        let ending = judge(&captured, &exited, &shape, per_call.timeout_ms, &logs);
        let mut outcome = outcome(ending, &shape, started);
        outcome.logs = logs;
        outcome.usage.cpu_ms = Some(exited.cpu_ms);
        outcome.usage.peak_memory_bytes = exited.peak_memory_bytes;
        outcome.usage.output_bytes = captured.output_bytes;
        outcome.walls = launcher.walls.clone();
        if matches!(outcome.ending, Ending::Answered(_)) && !staged.is_empty() {
            outcome.artifacts = publish::all(&launcher.setup.stages, &staged, &shape).await?;
        }
        if !staged.is_empty() {
            launcher.say(&ToLauncher::Done, &[])?;
        }
        // After anything but a good answer nothing of the call is kept, its launcher neither.
        if matches!(outcome.ending, Ending::Answered(_)) {
            self.launchers.put(launcher);
        }
        outcome.usage.wall_ms = millis(started);
        Ok(outcome)
    }
}

fn no_pipe(error: &std::io::Error) -> Fault {
    Fault::new(Kind::InternalError, "no descriptors left for a call").person(error.to_string()).retryable()
}

fn millis(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Feeds, reads and waits at once, so that none can hold up another.
async fn follow(
    launcher: &Launcher,
    pipes: Pipes,
    input: Vec<u8>,
    shape: &Shape,
    timeout_ms: u64,
) -> Result<(Captured, Exited, Vec<OwnedFd>), Fault> {
    let output = shape.limits.get(Limit::OutputBytes);
    let log = shape.limits.get(Limit::LogBytes);
    let over = tokio::sync::Notify::new();
    let reading = capture::run(pipes, input, output, log, &over);
    let waiting = async {
        let mut flooded = false;
        loop {
            tokio::select! {
                heard = launcher.hear() => match heard {
                    Ok((FromLauncher::Exited(exited), staged)) => return Ok((exited, staged)),
                    Ok((FromLauncher::Refused { wall, what, errno }, _)) => return Err(refused(&wall, &what, errno)),
                    Ok(_) => {}
                    Err(e) => {
                        let person = format!("launcher: {e}");
                        return Err(Fault::new(Kind::InternalError, "the launcher of this tool was lost").person(person).retryable());
                    }
                },
                () = over.notified(), if !flooded => {
                    flooded = true;
                    launcher.say(&ToLauncher::Kill, &[])?;
                }
            }
        }
    };
    let longest = Duration::from_millis(timeout_ms).saturating_add(OVERDUE);
    let both = async {
        let (captured, waited) = tokio::join!(reading, waiting);
        waited.map(|(exited, staged)| (captured, exited, staged))
    };
    tokio::time::timeout(longest, both).await.unwrap_or_else(|_| {
        let killed = Exited {
            status: 9,
            killed: Some(Killed::Deadline),
            cpu_ms: 0,
            peak_memory_bytes: None,
            scratch_full: false,
            processes_refused: false,
        };
        Ok((Captured::default(), killed, Vec::new()))
    })
}

/// How the tool ended, from what the walls saw and what it said.
fn judge(captured: &Captured, exited: &Exited, shape: &Shape, limit_ms: u64, logs: &[String]) -> Ending {
    let over = |limit| Ending::OverLimit { limit, allowed: shape.limits.get(limit) };
    if captured.flooded {
        return over(Limit::OutputBytes);
    }
    match exited.killed {
        Some(Killed::Deadline) => return Ending::TimedOut { limit_ms },
        Some(Killed::Memory) => return over(Limit::MemoryBytes),
        Some(Killed::Cpu) => return over(Limit::CpuMs),
        Some(Killed::Asked) => return Ending::Cancelled,
        None => {}
    }
    let signal = exited.status & 0x7f;
    let code = (exited.status >> 8) & 0xff;
    if signal != 0 || code != 0 {
        // It failed, and a limit had refused it something: the limit is the news.
        if exited.scratch_full {
            return over(Limit::ScratchBytes);
        }
        if exited.processes_refused {
            return over(Limit::Processes);
        }
        return if signal != 0 { Ending::Signalled { signal } } else { Ending::Exited { code } };
    }
    if shape.stderr_is_error
        && let Some(complaint) = answer::judge_stderr(logs)
    {
        return complaint;
    }
    answer::judge_output(&captured.output, false)
}

fn outcome(ending: Ending, shape: &Shape, started: Instant) -> Outcome {
    let mut not_observed = vec![
        "which paths, sockets and system calls the kernel refused: the tool saw the error number, nobody kept it"
            .to_owned(),
    ];
    if shape.limits.get(Limit::Processes) > 0 {
        not_observed.push("descriptors and file sizes that were refused (openFiles, fileBytes)".to_owned());
    }
    Outcome {
        ending,
        logs: Vec::new(),
        usage: Usage { wall_ms: millis(started), ..Usage::default() },
        walls: super::Walls::default(),
        denials: Denials { observed: Vec::new(), not_observed },
        artifacts: Vec::new(),
    }
}
