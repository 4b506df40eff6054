//! Scripts as processes behind all walls. A script runs with every wall or not at all.

mod attempts;
mod capture;
pub mod examine;
mod launcher;
mod pool;
mod publish;
mod relay;
mod setup;
#[cfg(feature = "wasi")]
mod workers;

pub use launcher::{LauncherError, settle};
pub use pool::Launchers;
pub use setup::RoleNeeds;
#[cfg(feature = "wasi")]
pub use workers::WasmWorkers;

use super::clock::Clock;
use super::output::{self, Log, OutputReader};
use super::{Call, Context, Denials, Ending, Events, Executor, Outcome, Running};
use crate::base::{lock, messages};
use crate::egress::Traffic;
use crate::fault::{Fault, Kind};
use crate::policy::{Confinement, Shape};
use crate::quantity::Limit;
use crate::runtimes::shims;
use crate::sandbox::protocol::{Exited, FromLauncher, Killed, ToLauncher};
use crate::sandbox::{SESSIONS, limits};
use attempts::RecordedCall;
use capture::{Captured, Pipes};
use launcher::{Launcher, lost};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The message for a caller whose launcher is not ready in time.
const RAISING: &str = "the walls of the tool are still being raised";
/// The signal by which the kernel ends a tool that writes a file beyond its limit.
const FILE_TOO_LARGE: i32 = nix::libc::SIGXFSZ;

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
    fn gauges(&self) -> Vec<super::Gauge> {
        self.launchers.gauges()
    }

    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a Events) -> Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let Some(confinement) = &call.confinement else {
                return Err(Fault::new(Kind::InternalError, "a script without a confinement"));
            };
            let input = match call.input_within(confinement)? {
                Ok(input) => input,
                Err(ending) => return Ok(outcome(ending, started)),
            };
            tokio::select! {
                biased;
                // The other branch is dropped, and with it the launcher and the tool.
                () = context.cancel.cancelled() => Ok(outcome(Ending::Cancelled, started)),
                done = self.run_recorded(context, confinement, &input, started, events) => done,
            }
        })
    }
}

impl Scripts {
    /// One call, and what it was refused, where that is recorded.
    async fn run_recorded(
        &self,
        context: &Context,
        confinement: &Confinement,
        input: &[u8],
        started: Instant,
        events: &Events,
    ) -> Result<Outcome, Fault> {
        let (mut outcome, kept) = self.run_once(Some(context), confinement, input, started, events).await?;
        if let Some(kept) = kept {
            let RecordedCall { attempts, missing } = kept.without_noise(&self.launchers, &confinement.shape).await;
            outcome.attempts = attempts;
            outcome.denials.not_observed.splice(..1, missing.into_iter().chain([UNSEEN.to_owned()]));
        }
        Ok(outcome)
    }

    /// `context`: `None` for what `examine` runs.
    async fn run_once(
        &self,
        context: Option<&Context>,
        confinement: &Confinement,
        input: &[u8],
        started: Instant,
        events: &Events,
    ) -> Result<(Outcome, Option<RecordedCall>), Fault> {
        let Confinement { shape, per_call } = confinement;
        let mut shape = Arc::clone(shape);
        let source = per_call.source.as_deref().map(|text| {
            let name = setup::source_name(shape.runtime.language, text);
            let script = shape.folder.join(name);
            Arc::make_mut(&mut shape).script = Some(script);
            (name, text)
        });
        let clock = Clock::new(context.map_or(started, |context| context.came), per_call.timeout_ms);
        let traffic = &context.map(|context| Arc::clone(&context.traffic)).unwrap_or_default();
        let extra = RoleNeeds { own_source: source.is_some(), ..RoleNeeds::default() };
        let ready = async || {
            let launcher = clock.prepare(RAISING, self.launchers.ready(&shape, &extra)).await?;
            let Some(context) = context else { return Ok::<_, LauncherError>(launcher) };
            context.opens(&shape).await?;
            Ok(launcher)
        };
        let mut launcher = ready().await?;
        let brings =
            CallInput { source, environment: Some(&per_call.env), secrets: Some(&per_call.secrets), third: None };
        let mut followed = follow(&launcher, &brings, input, &shape, clock, events, traffic).await;
        if let Err(LauncherError::Gone) = followed {
            // It was killed while it was idle, and most likely all idle ones were: start again with a new one.
            self.launchers.close();
            launcher = ready().await?;
            followed = follow(&launcher, &brings, input, &shape, clock, events, traffic).await;
        }
        let Finished { mut captured, exited, mut staged, relayed } = followed?;
        let kept = exited.recorder_lost.and_then(|lost| Some(RecordedCall::read(staged.pop()?, lost)));
        let mut logs = std::mem::take(&mut captured.logs);
        if exited.killed == Some(Killed::Sessions) {
            logs.push(format!(
                "toolhost: more than {SESSIONS} sessions at a time (setsid), which is all a call may hold here"
            ));
        }
        let (cpu_ms, over) = used(&lock(traffic), exited.cpu_ms, &shape);
        let ending = judge(&captured, &exited, over, &shape, per_call.timeout_ms, &logs);
        starved(&ending, &logs).map_or(Ok(()), Err)?;
        let mut outcome = Outcome { logs, ..outcome(ending, started) };
        let printed = captured.output;
        if !matches!(outcome.ending, Ending::Answered(_) | Ending::BadOutput { .. }) && !printed.is_over {
            outcome.printed = output::last_lines(&printed.rest);
        }
        outcome.parts = printed.is_list();
        outcome.usage.cpu_ms = Some(cpu_ms);
        outcome.usage.peak_memory_bytes = exited.peak_memory_bytes;
        outcome.usage.output_bytes = printed.total;
        outcome.walls = launcher.walls.clone();
        // Only after a good answer are staged files and the launcher kept.
        if matches!(outcome.ending, Ending::Answered(_)) {
            if !staged.is_empty() {
                let artifacts = publish::all(&launcher.setup.stages, &staged, &shape).await;
                outcome.published(artifacts, &shape.limits);
            }
            // What is published stays published, even if the launcher is gone by now; it is only not kept then.
            if (staged.is_empty() || launcher.say(&ToLauncher::Done, &[]).is_ok()) && relayed {
                self.launchers.put(launcher);
            }
        }
        outcome.usage.wall_ms = millis(started);
        Ok((outcome, kept))
    }
}

/// The CPU time of a call with that of its relay, and the limit that its traffic or both passed.
fn used(traffic: &Traffic, cpu_ms: u64, shape: &Shape) -> (u64, Option<Limit>) {
    let relay_ms = traffic.totals.cpu_ms;
    let passed = relay_ms > 0 && cpu_ms + relay_ms > shape.limits.get(Limit::CpuMs);
    (cpu_ms + relay_ms, traffic.over.or(passed.then_some(Limit::CpuMs)))
}

/// The fault of an interpreter that ended itself by SIGILL, SIGTRAP or SIGABRT where the address space is limited.
fn starved(ending: &Ending, logs: &[String]) -> Option<Fault> {
    let Ending::Signalled { signal: 4..=6 } = ending else { return None };
    let person = format!("{}: start it without that limit. {}", limits::address_space()?, logs.join(" / "));
    let message = "the interpreter gave up, most likely for want of address space";
    Some(Fault::new(Kind::CapabilityError, message).person(person))
}

fn no_pipe(error: &std::io::Error) -> Fault {
    Fault::new(Kind::InternalError, "no descriptors left for a call").person(error.to_string()).retryable()
}

fn millis(started: Instant) -> u64 {
    crate::base::millis(started.elapsed())
}

/// What a call gives its launcher beside the pipes.
#[derive(Default)]
struct CallInput<'a> {
    /// Name and text of the source.
    source: Option<(&'a str, &'a str)>,
    /// Variables that the call sets.
    environment: Option<&'a BTreeMap<String, String>>,
    /// Values of secrets, for the relay.
    secrets: Option<&'a BTreeMap<String, String>>,
    /// Descriptor 3 of the tool.
    third: Option<&'a OwnedFd>,
}

/// Has the launcher start a call.
fn hand_over(launcher: &Launcher, timeout_ms: u64, brings: &CallInput) -> Result<Pipes, LauncherError> {
    let (pipes, theirs) = capture::pipes().map_err(|e| no_pipe(&e))?;
    let file = |text: &[u8]| messages::memory_file(text).map_err(|e| no_pipe(&e));
    let source = brings.source.map(|(_, text)| file(text.as_bytes())).transpose()?;
    let environment = brings.environment.filter(|own| !own.is_empty()).map(serde_json::to_vec).transpose();
    let environment = environment.map_err(|e| no_pipe(&e.into()))?.map(|text| file(&text)).transpose()?;
    let files: Vec<_> = theirs.iter().chain(&source).chain(&environment).chain(brings.third).map(AsFd::as_fd).collect();
    let start = ToLauncher::Start {
        timeout_ms,
        source: brings.source.map(|(name, _)| name.to_owned()),
        environment: environment.is_some(),
        before: launcher.before,
        last: launcher.last,
    };
    launcher.say(&start, &files).map_err(|_| LauncherError::Gone)?;
    Ok(pipes)
}

/// Waits for the end of the call. Cancel-safe.
async fn ended(launcher: &Launcher) -> Result<(Exited, Vec<OwnedFd>), LauncherError> {
    loop {
        match launcher.hear().await {
            Ok((FromLauncher::Exited(exited), staged)) => return Ok((exited, staged)),
            Ok((FromLauncher::Refused(refused), _)) => return Err(launcher.refusal(refused)),
            Ok((FromLauncher::Ready { .. }, _)) => {}
            // The other end was closed with a message of ours unread (unix(7)): the start.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Err(LauncherError::Gone),
            Err(e) => return Err(lost(&e.to_string()).into()),
        }
    }
}

/// What became of a call that ran.
#[derive(Debug)]
struct Finished {
    captured: Captured,
    exited: Exited,
    staged: Vec<OwnedFd>,
    /// The relay, if the call had one, may serve another.
    relayed: bool,
}

/// Feeds, reads, dials and waits at once, so that none can hold up another.
async fn follow(
    launcher: &Launcher,
    brings: &CallInput<'_>,
    input: &[u8],
    shape: &Shape,
    clock: Clock,
    events: &Events,
    traffic: &Mutex<Traffic>,
) -> Result<Finished, LauncherError> {
    if let Some(relay) = &launcher.relay {
        relay.begin(brings.secrets.unwrap_or(&BTreeMap::new())).map_err(|_| LauncherError::Gone)?;
    }
    let left = u64::try_from(clock.left().as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    let pipes = hand_over(launcher, left, brings)?;
    let stdout = OutputReader::new(shape.limits.get(Limit::OutputBytes), events);
    let log = Log::new(shape.limits.get(Limit::LogBytes), events);
    let over = tokio::sync::Notify::new();
    let reading = async { Ok(capture::run(pipes, input, stdout, log, &over).await) };
    let passed_a_limit = async {
        match &launcher.relay {
            Some(relay) => relay.lease().attend(traffic).await,
            None => std::future::pending().await,
        }
    };
    let waiting = async {
        let mut killed = false;
        tokio::pin!(passed_a_limit);
        loop {
            tokio::select! {
                ended = ended(launcher) => return match ended {
                    // The message that was not read can be the second one.
                    Err(LauncherError::Gone) if killed => Err(lost("while it ended a call").into()),
                    ended => ended,
                },
                () = over.notified(), if !killed => {}
                () = &mut passed_a_limit, if !killed => {}
            }
            killed = true;
            // A launcher that is gone by now has said how the call ended, or its closed socket says that it was lost.
            let _ = launcher.say(&ToLauncher::Kill, &[]);
        }
    };
    // A lost launcher ends the wait at once, though the tool's pipes may stay open for a while.
    let both = async { tokio::try_join!(reading, waiting) };
    let ended = tokio::time::timeout(clock.overdue(), both).await;
    let (captured, (exited, staged)) = ended.unwrap_or_else(|_| {
        let killed = Exited { status: 9, killed: Some(Killed::Deadline), ..Exited::default() };
        Ok((Captured::default(), (killed, Vec::new())))
    })?;
    let Some(relay) = &launcher.relay else {
        return Ok(Finished { captured, exited, staged, relayed: true });
    };
    let relayed = relay.end(traffic).await;
    Ok(Finished { captured, exited, staged, relayed })
}

/// How the tool ended, from what the walls saw and what it said.
fn judge(
    captured: &Captured,
    exited: &Exited,
    passed: Option<Limit>,
    shape: &Shape,
    limit_ms: u64,
    logs: &[String],
) -> Ending {
    let over = |limit| Ending::OverLimit { limit, allowed: shape.limits.get(limit) };
    if let Some(limit) = captured.output.is_over.then_some(Limit::OutputBytes).or(passed) {
        return over(limit);
    }
    if let Some(bad) = &captured.output.bad {
        return bad.clone();
    }
    match exited.killed {
        Some(Killed::Deadline) => return Ending::TimedOut { limit_ms },
        Some(Killed::Memory) => return over(Limit::MemoryBytes),
        Some(Killed::Cpu) => return over(Limit::CpuMs),
        Some(Killed::Sessions) => return Ending::OverLimit { limit: Limit::Processes, allowed: SESSIONS },
        Some(Killed::Written(limit)) => return over(limit),
        Some(Killed::Requested) => return Ending::Cancelled,
        None => {}
    }
    let signal = exited.status & 0x7f;
    let code = (exited.status >> 8) & 0xff;
    if signal != 0 || code != 0 {
        // The tool failed after a limit had refused it something: the limit is reported.
        if exited.scratch_full {
            return over(Limit::ScratchBytes);
        }
        if exited.processes_refused {
            return over(Limit::Processes);
        }
        if signal == FILE_TOO_LARGE {
            return over(Limit::FileBytes);
        }
        if signal != 0 {
            return Ending::Signalled { signal };
        }
        // The shim that calls an entry point says on stderr what was wrong and how to mend it.
        let reason = shape.entry_point.as_ref().and_then(|_| shims::reason(logs.iter().map(String::as_str)));
        return reason.map_or(Ending::Exited { code }, |reason| Ending::Raised { message: reason.to_owned() });
    }
    if shape.stderr_is_error
        && let Some(complaint) = output::judge_stderr(logs)
    {
        return complaint;
    }
    captured.output.ending(shape.text_output)
}

/// What a recorder does not see.
const UNSEEN: &str = "questions about files that open none (stat, access, readlink), what /proc refused, and what Landlock refused inside a \
                      granted folder (links, pipes, devices, moves out of it)";
/// What nobody saw of a call that is not recorded: first this.
const NOT_RECORDED: &str = "which files and system calls the kernel refused: the tool saw the error number, nobody kept it (`toolhost call TOOL \
                            --explain`, or `observe = true` in the policy, keeps them)";
const NEVER_SEEN: &str = "descriptors and file sizes that were refused (openFiles, fileBytes)";

fn outcome(ending: Ending, started: Instant) -> Outcome {
    let not_observed = [NOT_RECORDED, NEVER_SEEN].map(str::to_owned).to_vec();
    let denials = Denials { observed: Vec::new(), not_observed };
    Outcome { denials, ..Outcome::of(ending, millis(started)) }
}

#[cfg(test)]
mod tests;
