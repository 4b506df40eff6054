//! The executor of Python, Node and Bun scripts.

use super::call::{Captured, Finished, ProgramCall, Ready};
use super::pool::{Launchers, fault};
use super::ready::ReadyProcesses;
use super::recorded::{RecordedCall, outcome};
use super::scratch;
use super::session_calls::{CallOfSession, SessionCalls, killed_ending};
use super::sessions::no_sessions;
use super::spec::{RoleNeeds, source_name};
use super::waiting::Waiting;
use crate::base::{lock, millis, text};
use crate::egress::Traffic;
use crate::executor::mcp_server::{McpCall, McpCalls};
use crate::executor::{
    Artifact, Attempt, Call, CallDeadline, Clock, Context, Ending, Executor, Gauge, Outcome,
    Running, Started, ToolAnswer, ToolSender, output,
};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::packages::store::EnvironmentLease;
use crate::policy::{Built, Confinement, PerCall, Runtime, Shape};
use crate::quantity::Limit;
use crate::runtimes;
use crate::sandbox::protocol::{Exited, Killed, Source, ToLauncher};
use crate::sandbox::{CallInput, LauncherError, limits};
use output::Output;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The message for a caller whose sandbox is not ready in time.
const RAISING: &str = "the tool's sandbox is still being set up";
/// The signal by which the kernel ends a tool that writes a file beyond its limit.
const FILE_TOO_LARGE: i32 = nix::libc::SIGXFSZ;
/// Longest run of an empty script, ms. The answer of the call waits for it.
const TIMEOUT_MS: u64 = 3_000;
/// Most interpreters that are remembered.
const MAX_RUNTIMES: usize = 64;

const UNSEEN: &str = "calls that only ask about a file (stat, access, readlink), what /proc \
                      refused, and what Landlock refused inside a granted folder (links, pipes, \
                      devices, moves out of it)";

/// A launcher that ran a call, how that ended, and how long its process had waited before.
type Served = (Ready, Finished, Option<Duration>);
/// A runtime with packages, and what an empty script with them was refused.
type Noise = (Runtime, Option<Built>, Arc<BTreeSet<Attempt>>);

pub struct Scripts {
    launchers: Arc<Launchers>,
    ready: Arc<ReadyProcesses>,
    noise: Mutex<Vec<Noise>>,
}

impl Executor for Scripts {
    fn list_tools<'a>(
        &'a self,
        confinement: &'a Confinement,
        environment: Option<EnvironmentLease>,
        traffic: &'a Mutex<Traffic>,
    ) -> Running<'a> {
        Box::pin(async move {
            let launchers = self.launchers.clone();
            let calls = McpCalls { launchers };
            let listing = calls.list(confinement, environment, traffic);
            let (outcome, recorded) = listing.await?;
            self.with_recorded(outcome, recorded, &confinement.shape)
                .await
        })
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.launchers.gauges()
    }

    fn run<'a>(
        &'a self,
        context: &'a Context,
        mut call: Call,
        events: &'a ToolSender,
    ) -> Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let Some(mut confinement) = call.confinement.take() else {
                return Err(Fault::new(
                    Kind::InternalError,
                    "a script without a confinement",
                ));
            };
            let mut input = match call.input_within(&confinement)? {
                Ok(input) => input,
                Err(ending) => return Ok(outcome(ending, started)),
            };
            let shape = confinement.shape.clone();
            if let Some(line) = &shape.command_line {
                let own = line.input(&call.input).map_err(|why| {
                    Fault::new(Kind::ParameterValidationError, text::printable(&why))
                })?;
                input = own.stdin.into_bytes();
                confinement.per_call.words = own.words;
            }
            let launchers = self.launchers.clone();
            // Boxed: calls of code are polled inside each other.
            let running: Running<'_> = match (call.session, call.manifest.mcp_tool()) {
                (None, None) => Box::pin(async move {
                    let context = Some(context);
                    let running = self.run_once(context, &confinement, &input, started, events);
                    let (outcome, recorded) = running.await?;
                    self.with_recorded(outcome, recorded, &shape).await
                }),
                (None, Some(tool)) => {
                    let call = McpCall {
                        context,
                        tool,
                        input: call.input,
                        confinement: &confinement,
                        environment: call.environment,
                        events,
                    };
                    Box::pin(async move {
                        let (outcome, recorded) = McpCalls { launchers }.run(call).await?;
                        self.with_recorded(outcome, recorded, &shape).await
                    })
                }
                (Some(session), _) => {
                    let turn = session.turn.downcast().map_err(|_| no_sessions())?;
                    let call = CallOfSession {
                        context,
                        turn: *turn,
                        digest: session.digest,
                        environment: call.environment,
                        slot: session.slot,
                        confinement,
                        events,
                    };
                    Box::pin(async move { SessionCalls { launchers }.run(call).await })
                }
            };
            tokio::select! {
                biased;
                // The other branch is dropped, and with it the launcher and the tool.
                () = context.cancel.cancelled() => Ok(outcome(Ending::Cancelled, started)),
                done = running => done,
            }
        })
    }
}

impl Scripts {
    pub fn new(launchers: Arc<Launchers>) -> Scripts {
        Scripts {
            ready: Arc::new(ReadyProcesses::new(launchers.clone())),
            launchers,
            noise: Mutex::default(),
        }
    }

    /// The processes that wait for calls.
    pub fn ready(&self) -> &Arc<ReadyProcesses> {
        &self.ready
    }

    /// Adds to an outcome which refusals were recorded.
    async fn with_recorded(
        &self,
        mut outcome: Outcome,
        recorded: Option<RecordedCall>,
        shape: &Shape,
    ) -> Result<Outcome, Fault> {
        if let Some(mut kept) = recorded {
            if !kept.attempts.is_empty() {
                let noise = self.noise(shape).await;
                kept = kept.without_noise(noise.as_deref(), &shape.folder);
            }
            outcome.attempts = kept.attempts;
            outcome
                .denials
                .not_observed
                .splice(..1, kept.missing.into_iter().chain([UNSEEN.to_owned()]));
        }
        Ok(outcome)
    }

    /// Runs a script once. `context`: `None` for a script of our own.
    pub async fn run_once(
        &self,
        context: Option<&Context>,
        confinement: &Confinement,
        input: &[u8],
        started: Instant,
        events: &ToolSender,
    ) -> Result<(Outcome, Option<RecordedCall>), Fault> {
        let Confinement { shape, per_call } = confinement;
        let mut shape = Arc::clone(shape);
        let text = per_call.source.as_deref();
        // Code that calls tools is started with its call.
        let is_file = shape.ready.is_none() || per_call.offer.is_some();
        let source = text.filter(|_| is_file).map(|text| {
            let name = source_name(shape.runtime.language, text);
            let script = shape.folder.join(name);
            Arc::make_mut(&mut shape).script = Some(script.clone());
            (Source::New(script), text.as_bytes())
        });
        let has_pipes = per_call.offer.iter().any(|it| !it.tools.is_empty());
        let needs = RoleNeeds {
            principal: context.map_or_else(String::new, |context| context.principal.clone()),
            own_source: source.is_some(),
            // The two pipes by which it calls tools.
            inherited: if has_pipes { 2 } else { 0 },
            stubs: per_call.offer.as_ref().map(|offer| offer.stubs.clone()),
            ..RoleNeeds::default()
        };
        let source = source.or_else(|| {
            let read = per_call.script.as_ref()?;
            Some((Source::File(read.file.clone()), read.bytes.as_slice()))
        });
        let framed = runtimes::reads_frame(&shape)
            .then(|| runtimes::frame(text.unwrap_or_default(), &per_call.about, input));
        let variables = per_call.variables();
        let began = context.map_or(started, |context| context.deadline.began);
        let call = ProgramCall {
            brings: CallInput {
                source,
                environment: Some(&variables),
                words: &per_call.words,
                stdin: framed.as_deref().unwrap_or(input),
                files: &per_call.files,
                inherited: &[],
            },
            secrets: &per_call.secrets,
            limits: &shape.limits,
            clock: Clock::new(began, per_call.timeout_ms),
            events,
            tools: per_call.offer.as_ref().map_or(&[], |offer| &offer.tools),
            traffic: &context.map_or_else(Arc::default, |context| Arc::clone(&context.traffic)),
        };
        let served = self.serve_ready(&call, confinement).await?;
        let (ready, mut finished, waited) = match served {
            Some(served) => served,
            None => self.call(&call, &shape, &needs).await?,
        };
        let recorded = finished
            .exited
            .recorder_lost
            .and_then(|lost| Some(RecordedCall::read(finished.staged.pop()?, lost)));
        let refused = finished
            .exited
            .refused
            .iter()
            .chain(recorded.iter().flat_map(|recorded| &recorded.refused));
        refused.for_each(|address| lock(call.traffic).refused_port(*address));
        let deadline = context.map_or_else(
            || CallDeadline::usual("", None),
            |context| context.deadline.clone(),
        );
        let script = ScriptCall {
            shape: &shape,
            limit_ms: per_call.timeout_ms,
            reading: call.clock.reading(&deadline),
            started,
        };
        let used = used(&lock(call.traffic), finished.exited.cpu_ms, &shape);
        let captured = std::mem::take(&mut finished.captured);
        let mut outcome = script.conclude(captured, &finished.exited, used).await?;
        outcome.layers = ready.launcher.layers.clone();
        // Only after a good answer are staged files and the launcher kept.
        if let Ending::Answered(answer) = &outcome.ending {
            let staged = &finished.staged;
            let mut published = ready.publish_and_leave(staged, &shape, events).await?;
            published.extend(gone(ready.output(staged), answer, per_call, input));
            outcome.published(published, &shape.limits);
            // Published files stay published, even if the launcher is gone by now; then it is just
            // not kept.
            if (staged.is_empty() || ready.launcher.send(&ToLauncher::Done, &[]).is_ok())
                && finished.relay_is_fit
            {
                self.launchers.put(ready);
            }
        }
        outcome.usage.wall_ms = millis(started.elapsed());
        outcome.usage.started = waited.map(|_| Started::Ready);
        outcome.usage.waited_ms = waited.map(millis);
        Ok((outcome, recorded))
    }

    /// Has a process that was started for such a call serve it. `None`: there is none, or it ended
    /// before the call came.
    async fn serve_ready(
        &self,
        call: &ProgramCall<'_>,
        confinement: &Confinement,
    ) -> Result<Option<Served>, Fault> {
        let taking = self.ready.take(confinement);
        let taken = call.clock.prepare(RAISING, taking).await.map_err(fault)?;
        let Some(Waiting {
            ready,
            pipes,
            since,
            ..
        }) = taken
        else {
            return Ok(None);
        };
        call.events.opened(&confinement.shape).await?;
        let waited = since.elapsed();
        match ready.call_started(call, pipes).await {
            Err(LauncherError::Gone) => Ok(None),
            finished => Ok(Some((ready, finished.map_err(fault)?, Some(waited)))),
        }
    }

    /// Has a launcher that is idle, or a new one, run the call.
    async fn call(
        &self,
        call: &ProgramCall<'_>,
        shape: &Arc<Shape>,
        needs: &RoleNeeds,
    ) -> Result<Served, Fault> {
        let mut again = true;
        loop {
            let ready = call
                .clock
                .prepare(RAISING, self.launchers.ready(shape, needs))
                .await
                .map_err(fault)?;
            call.events.opened(shape).await?;
            match ready.call(call).await {
                // The launcher was killed while idle, and most likely all idle ones were: try again
                // with a new one.
                Err(LauncherError::Gone) if std::mem::take(&mut again) => self.launchers.close(),
                finished => return Ok((ready, finished.map_err(fault)?, None)),
            }
        }
    }

    /// What an empty script with this runtime and these packages is refused: tried once. `None`:
    /// the script does not run.
    async fn noise(&self, shape: &Shape) -> Option<Arc<BTreeSet<Attempt>>> {
        let Shape { runtime, built, .. } = shape;
        if let Some((.., known)) = lock(&self.noise)
            .iter()
            .find(|(known, with, _): &&Noise| known == runtime && with == built)
        {
            return Some(Arc::clone(known));
        }
        let bare = Shape::bare("toolhost:noise@1.0.0", runtime.clone());
        let shape = Shape {
            observe: true,
            built: built.clone(),
            ..bare
        };
        let source = match runtime.language {
            Language::Python => "print(0)\n",
            Language::Bash => "echo 0\n",
            _ => "console.log(0)\n",
        };
        let per_call = PerCall {
            timeout_ms: TIMEOUT_MS,
            source: Some(source.to_owned()),
            ..PerCall::default()
        };
        let confinement = Confinement {
            shape: shape.into(),
            per_call,
        };
        let ran = self
            .run_once(
                None,
                &confinement,
                b"{}",
                Instant::now(),
                &ToolSender::unheard(),
            )
            .await
            .ok()?;
        let (
            Outcome {
                ending: Ending::Answered(_),
                ..
            },
            kept,
        ) = ran
        else {
            return None;
        };
        let found: Arc<BTreeSet<Attempt>> = Arc::new(kept?.attempts.into_iter().collect());
        let mut known = lock(&self.noise);
        if known.len() < MAX_RUNTIMES {
            known.push((runtime.clone(), built.clone(), Arc::clone(&found)));
        }
        Some(found)
    }
}

/// The files that a call speaks of, and that are gone with its scratch: source text has temporary files
/// of its own.
fn gone(
    output: Option<&OwnedFd>,
    answer: &ToolAnswer,
    per_call: &PerCall,
    input: &[u8],
) -> Vec<Artifact> {
    let is_source = per_call.source.is_some();
    let arguments = String::from_utf8_lossy(if is_source { b"" } else { input });
    let words = per_call.words.join(" ");
    scratch::named(output, &[answer.head(usize::MAX), &arguments, &words])
}

/// What the outcome of a script's call depends on beside what it did.
struct ScriptCall<'a> {
    shape: &'a Shape,
    limit_ms: u64,
    /// The time in which its answer is read.
    reading: CallDeadline,
    started: Instant,
}

impl ScriptCall<'_> {
    /// The outcome, from what the script printed, how it ended, and what it used.
    async fn conclude(
        &self,
        captured: Captured,
        exited: &Exited,
        used: (u64, Option<Limit>),
    ) -> Result<Outcome, Fault> {
        let mut logs = captured.logs;
        logs.extend(exited.killed.and_then(too_many));
        let printed = captured.output;
        let mut lines = output::last_lines(&printed.rest);
        if printed.is_over {
            lines.clear();
        }
        let is_list = printed.is_list();
        let total = printed.total;
        let (cpu_ms, over) = used;
        let ending = match failure(&printed, exited, over, self, &logs) {
            Some(failed) => failed,
            None => {
                // What a function returns is JSON.
                let text_output = self.shape.text_output && self.shape.entry_point.is_none();
                printed.ending(text_output, &self.reading).await?
            }
        };
        address_space_fault(&ending, &logs).map_or(Ok(()), Err)?;
        if matches!(ending, Ending::Answered(_) | Ending::BadOutput { .. }) {
            lines.clear();
        }
        let mut outcome = Outcome {
            logs,
            printed: lines,
            parts: is_list,
            ..outcome(ending, self.started)
        };
        outcome.usage.cpu_ms = Some(cpu_ms);
        outcome.usage.peak_memory_bytes = exited.peak_memory_bytes;
        outcome.usage.output_bytes = total;
        Ok(outcome)
    }
}

/// The CPU time of a call and its relay, and the limit that its traffic or this CPU time exceeded,
/// if any.
pub fn used(traffic: &Traffic, cpu_ms: u64, shape: &Shape) -> (u64, Option<Limit>) {
    let relay_ms = traffic.totals.cpu_ms;
    let passed = relay_ms > 0 && cpu_ms + relay_ms > shape.limits.get(Limit::CpuMs);
    (
        cpu_ms + relay_ms,
        traffic.over.or(passed.then_some(Limit::CpuMs)),
    )
}

/// What a call had too many of, where the limit that is reported has another name.
fn too_many(killed: Killed) -> Option<String> {
    let Killed::TooMany(limit, most) = killed else {
        return None;
    };
    let what = match limit {
        Limit::Processes => "sessions at a time (setsid)",
        _ => "entries in epolls (its share of fs.epoll.max_user_watches)",
    };
    Some(format!(
        "toolhost: more than {most} {what}, the most that a call may have here"
    ))
}

/// The fault of an interpreter that ended itself by SIGILL, SIGTRAP or SIGABRT where the address
/// space is limited.
fn address_space_fault(ending: &Ending, logs: &[String]) -> Option<Fault> {
    let Ending::Signalled { signal: 4..=6 } = ending else {
        return None;
    };
    let person = format!(
        "{}: start it without that limit. {}",
        limits::address_space()?,
        logs.join(" / ")
    );
    let message = "the interpreter gave up, most likely because it had too little address space";
    Some(Fault::new(Kind::CapabilityError, message).person(person))
}

/// How the tool failed, from the launcher's report and the tool's output. `None`: it answered.
fn failure(
    printed: &Output,
    exited: &Exited,
    passed: Option<Limit>,
    call: &ScriptCall<'_>,
    logs: &[String],
) -> Option<Ending> {
    let ScriptCall {
        shape, limit_ms, ..
    } = *call;
    let over = |limit| {
        Some(Ending::OverLimit {
            limit,
            allowed: shape.limits.get(limit),
        })
    };
    if let Some(limit) = printed.is_over.then_some(Limit::OutputBytes).or(passed) {
        return over(limit);
    }
    if printed.bad.is_some() {
        return printed.bad.clone();
    }
    if let Some(killed) = exited.killed {
        return Some(killed_ending(killed, &shape.limits, limit_ms));
    }
    let signal = exited.status & 0x7f;
    let code = (exited.status >> 8) & 0xff;
    if signal != 0 || code != 0 && !shape.answers.contains(&code) {
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
            return Some(Ending::Signalled { signal });
        }
        // The shim that calls an entry point says on stderr what was wrong and how to fix it.
        let reason = shape
            .entry_point
            .as_ref()
            .and_then(|_| runtimes::shim_reason(logs.iter().map(String::as_str)));
        let raised = reason.map(|reason| Ending::Raised {
            message: reason.to_owned(),
        });
        return Some(raised.unwrap_or(Ending::Exited { code }));
    }
    if shape.stderr_is_error {
        output::ending_of_stderr(logs)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::messages;
    use crate::executor::process::examine;
    use crate::executor::process::grants;
    use crate::executor::process::spec::spec;
    use crate::policy::Program;
    use crate::sandbox::{Launcher, Process, identity, nonblocking};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::collections::BTreeMap;
    use std::os::fd::{AsFd, OwnedFd};

    fn shape() -> Shape {
        let runtime = Runtime {
            language: Language::Python,
            program: Program::Path("/usr/bin/python3".into()),
            arguments: Vec::new(),
            roots: Vec::new(),
            version: String::new(),
            found: String::new(),
            environment: None,
        };
        examine::bare(runtime)
    }

    fn fake() -> (Ready, OwnedFd) {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        );
        let (ours, theirs) = pair.expect("a pair");
        nonblocking(&ours).expect("a socket");
        let control = tokio::net::UnixDatagram::from_std(ours.into()).expect("a socket");
        let spec = spec(
            &shape(),
            grants::ResolvedGrants::default(),
            &RoleNeeds::default(),
        );
        (
            Ready {
                launcher: Launcher::new(Process::for_test(control), spec),
                relay: None,
            },
            theirs,
        )
    }

    async fn lost(ready: &Ready, meanwhile: impl Future<Output = ()>) -> LauncherError {
        let (shape, started) = (shape(), Instant::now());
        let clock = Clock::new(started, 20_000);
        let call = ProgramCall {
            brings: CallInput {
                stdin: b"{}",
                ..CallInput::default()
            },
            secrets: &BTreeMap::new(),
            limits: &shape.limits,
            clock,
            events: &ToolSender::unheard(),
            tools: &[],
            traffic: &Mutex::default(),
        };
        let call = ready.call(&call);
        let (finished, ()) = tokio::join!(call, meanwhile);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "it waited for the call's limit"
        );
        finished.expect_err("lost")
    }

    #[tokio::test]
    async fn a_lost_launcher_is_told_at_once_though_the_pipes_stay_open() {
        let (launcher, theirs) = fake();
        let mut kept = Vec::new();
        let dies = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (start, pipes) = messages::receive::<ToLauncher>(theirs.as_fd())
                .expect("a message")
                .expect("one");
            assert!(
                matches!(
                    start,
                    ToLauncher::Start {
                        timeout_ms: Some(15_000..=20_000),
                        ..
                    }
                ),
                "{start:?}"
            );
            kept = pipes;
            drop(theirs);
        };
        let lost = lost(&launcher, dies).await;
        assert!(
            matches!(&lost, LauncherError::Fault(fault) if !fault.retryable && fault.message.contains("lost"))
        );
        assert_eq!(kept.len(), 3);
    }

    #[tokio::test]
    async fn a_launcher_that_was_gone_before_the_call_is_another_matter() {
        let (launcher, theirs) = fake();
        assert!(launcher.waits());
        // The start message was still unread when it died.
        let dies = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(theirs);
        };
        assert!(matches!(lost(&launcher, dies).await, LauncherError::Gone));
        let (launcher, theirs) = fake();
        drop(theirs);
        assert!(!launcher.waits());
        assert!(matches!(
            lost(&launcher, async {}).await,
            LauncherError::Gone
        ));
    }

    /// The caller gets the answer in time, and a launcher that does not see the closed socket is
    /// killed.
    #[tokio::test]
    async fn a_launcher_that_does_not_come_up_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("hangs");
        std::fs::write(&script, "#!/bin/sh\nexec sleep 61.73\n").expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).expect("chmod");
        // Inherited, so that the shell can read it.
        let flags = nix::fcntl::OFlag::O_RDONLY;
        let own = nix::fcntl::open(&script, flags, nix::sys::stat::Mode::empty()).expect("open");
        let scripts = Scripts::new(Arc::new(Launchers::new(own, identity::POOL)));
        let per_call = PerCall {
            timeout_ms: 200,
            ..PerCall::default()
        };
        let confinement = Confinement {
            shape: shape().into(),
            per_call,
        };
        let events = crate::executor::ToolSender::unheard();
        let begins = async || {
            let started = Instant::now();
            let running = scripts.run_once(None, &confinement, b"{}", started, &events);
            (running.await.expect_err("too late"), started)
        };
        let (mut fault, mut started) = begins().await;
        // This machine may have been late.
        for _ in 0..4 {
            let is_late = fault.message.contains("before the tool could be started");
            if is_late || started.elapsed() > Duration::from_millis(1200) {
                (fault, started) = begins().await;
            }
        }
        assert!(
            started.elapsed() < Duration::from_millis(1200),
            "{:?}",
            started.elapsed()
        );
        assert_eq!((fault.kind, fault.retryable), (Kind::TimeoutError, true));
        assert!(
            fault.message.contains("sandbox is still being set up"),
            "{}",
            fault.message
        );
        let hangs = || {
            let all = std::fs::read_dir("/proc").expect("proc").flatten();
            let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
            lines
                .filter(|line| line.starts_with(b"sleep\x0061.73"))
                .count()
        };
        while hangs() > 0 {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "it was not killed"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
