//! One call of a ready launcher. Writing its input, reading its output, dialling and waiting run
//! concurrently.

use super::publish::{self, LeftFiles};
use super::relay::Relay;
use super::tool_calls::ToolPipes;
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::output::{Log, Output, OutputReader};
use crate::executor::{Artifact, Clock, Pauses, ToolSender};
use crate::fault::Fault;
use crate::policy::{Limits, Shape};
use crate::quantity::{Limit, SAMPLE_MS};
use crate::sandbox::protocol::{Exited, Killed, ToLauncher};
use crate::sandbox::{
    ACCEPTING, CallInput, Launcher, LauncherError, Pipes, lost, no_pipe, untaken_bytes,
};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;
use tokio::sync::Notify;

/// A launcher that waits for a call, with the relay of its network.
#[derive(Debug)]
pub struct Ready {
    pub launcher: Launcher,
    pub relay: Option<Relay>,
}

/// One call of a program that reads its input and prints its answer.
pub struct ProgramCall<'a> {
    pub brings: CallInput<'a>,
    /// Values for the headers that its relay adds.
    pub secrets: &'a BTreeMap<String, String>,
    pub limits: &'a Limits,
    pub clock: Clock,
    pub events: &'a ToolSender,
    /// What its code may call.
    pub tools: &'a [String],
    pub traffic: &'a Mutex<Traffic>,
}

/// What a call wrote to stdout and stderr.
#[derive(Debug, Default)]
pub struct Captured {
    pub output: Output,
    /// The kept lines of stderr.
    pub logs: Vec<String>,
    /// How much of the input was written to its pipe, bytes.
    pub fed: usize,
}

/// The result of a call that ran.
#[derive(Debug)]
pub struct Finished {
    pub captured: Captured,
    pub exited: Exited,
    pub staged: Vec<OwnedFd>,
    /// Whether the relay, if the call had one, may serve another call.
    pub relay_is_fit: bool,
}

impl Ready {
    /// Whether launcher and relay still wait for a call.
    pub fn waits(&self) -> bool {
        self.launcher.waits() && self.relay.as_ref().is_none_or(|relay| relay.lease.serves())
    }

    /// Tells the relay, if there is one, that a call begins. `secrets`: values for its headers.
    pub fn begin(&self, secrets: &BTreeMap<String, String>) -> Result<(), LauncherError> {
        let begun = self
            .relay
            .as_ref()
            .map_or(Ok(()), |relay| relay.lease.begin(secrets));
        begun.map_err(|_| LauncherError::Gone)
    }

    /// Dials for the call while polled. Returns only if the call exceeds a limit of its network, or
    /// together with its relay exceeds `cpu_limit`.
    pub async fn attend(&self, traffic: &Mutex<Traffic>, cpu_limit: u64) {
        tokio::select! {
            () = self.dial(traffic) => {}
            () = self.exceeded_cpu(cpu_limit) => lock(traffic).over = Some(Limit::CpuMs),
        }
    }

    /// As `attend`, without a look at CPU time.
    pub async fn dial(&self, traffic: &Mutex<Traffic>) {
        match &self.relay {
            Some(relay) => relay.lease.attend(traffic).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when call and relay together exceed the limit from now on. Without cgroups the sum is
    /// only checked after the call.
    pub async fn exceeded_cpu(&self, limit: u64) {
        let used = || {
            let relay = self.relay.as_ref()?;
            Some(self.launcher.cpu_ms()? + relay.process.cpu_ms()?)
        };
        let Some(before) = used() else {
            return std::future::pending().await;
        };
        while used().is_none_or(|now| now.saturating_sub(before) <= limit) {
            tokio::time::sleep(Duration::from_millis(SAMPLE_MS)).await;
        }
    }

    /// Ends the call at its relay, once its processes are gone. False: the relay must not serve
    /// another call.
    pub async fn end(&self, traffic: &Mutex<Traffic>) -> bool {
        match &self.relay {
            Some(relay) => relay.lease.end(traffic).await.is_ok(),
            None => true,
        }
    }

    /// Publishes the staged files of a good answer.
    pub async fn publish(&self, staged: &[OwnedFd], shape: &Shape) -> Vec<Artifact> {
        let stages: Vec<_> = self.launcher.spec.staged_folders().cloned().collect();
        publish::all(&stages, staged, shape).await
    }

    /// The output folder of the call.
    pub fn output<'s>(&self, staged: &'s [OwnedFd]) -> Option<&'s OwnedFd> {
        let has_output = self.launcher.spec.has_call_folder();
        staged.last().filter(|_| has_output)
    }

    /// As `publish`, and hands on what lies in the output folder of the call: all, or nothing.
    pub async fn publish_and_leave(
        &self,
        staged: &[OwnedFd],
        shape: &Shape,
        events: &ToolSender,
    ) -> Result<Vec<Artifact>, Fault> {
        let output = self.output(staged);
        let LeftFiles { files, refused } =
            output.map_or_else(LeftFiles::default, |output| publish::left(output, shape));
        if refused.iter().any(|artifact| artifact.over.is_some()) {
            return Ok(refused);
        }
        let mut artifacts = self.publish(staged, shape).await;
        if !files.is_empty() && artifacts.iter().all(|artifact| artifact.over.is_none()) {
            events.left(files).await?;
        }
        artifacts.extend(refused);
        artifacts.extend(
            output
                .into_iter()
                .flat_map(|it| publish::outside(it, shape)),
        );
        Ok(artifacts)
    }

    /// Runs one call to its end.
    pub async fn call(&self, call: &ProgramCall<'_>) -> Result<Finished, LauncherError> {
        self.begin(call.secrets)?;
        let (tool_calls, theirs) = if call.tools.is_empty() {
            (None, Vec::new())
        } else {
            let (pipes, theirs) = ToolPipes::new().map_err(|e| no_pipe(&e))?;
            (Some(pipes), theirs)
        };
        let brings = CallInput {
            inherited: &theirs,
            ..call.brings.clone()
        };
        let pipes = self.launcher.start(call.clock.left_ms(), &brings)?;
        drop(theirs);
        self.attend_to_end(call, pipes, tool_calls).await
    }

    /// Runs one call in a program that was started before it, to its end.
    pub async fn call_started(
        &self,
        call: &ProgramCall<'_>,
        pipes: Pipes,
    ) -> Result<Finished, LauncherError> {
        self.begin(call.secrets)?;
        let read_end = other_end(&pipes.input).map_err(|e| no_pipe(&e))?;
        let begun = self.launcher.begin(call.clock.left_ms(), call.brings.files);
        let begun = tokio::time::timeout(call.clock.overdue(Duration::ZERO), begun).await;
        begun.map_err(|_| LauncherError::Gone)??;
        let finished = match self.attend_to_end(call, pipes, None).await {
            // The process has its input, so its call may have done its work.
            Err(LauncherError::Gone) => {
                let fault = lost("it was gone while its ready process served a call");
                return Err(LauncherError::Fault(fault));
            }
            finished => finished?,
        };
        // One that fails without a look at its input failed at its start, so the call is yet to run.
        let unread = untaken_bytes(read_end.as_fd(), nix::libc::FIONREAD);
        let Exited { status, killed, .. } = &finished.exited;
        let failed = *status != 0 && killed.is_none();
        let is_unread = usize::try_from(unread).is_ok_and(|it| it == finished.captured.fed);
        if finished.exited.before_call || failed && is_unread {
            return Err(LauncherError::Gone);
        }
        Ok(finished)
    }

    async fn attend_to_end(
        &self,
        call: &ProgramCall<'_>,
        pipes: Pipes,
        tool_calls: Option<ToolPipes>,
    ) -> Result<Finished, LauncherError> {
        let ProgramCall {
            limits,
            clock,
            events,
            traffic,
            ..
        } = *call;
        let stdout = OutputReader::new(limits.get(Limit::OutputBytes), events);
        let log = Log::new(limits.get(Limit::LogBytes), events);
        let over = Notify::new();
        let most = limits.get(Limit::OutputBytes);
        let reading = async {
            let capturing = capture(pipes, call.brings.stdin, stdout, log, &over);
            let Some(tool_calls) = tool_calls else {
                return Ok(capturing.await);
            };
            tokio::pin!(capturing);
            let ending = tokio::select! {
                biased;
                captured = &mut capturing => return Ok(captured),
                ending = tool_calls.serve(call.tools, most, events) => ending,
            };
            over.notify_one();
            let mut captured = capturing.await;
            captured.output.bad = Some(ending);
            Ok(captured)
        };
        // A lost launcher ends the wait at once, though the tool's pipes may stay open for a while.
        let both = async {
            let waiting = self.wait(&over, traffic, limits.get(Limit::CpuMs));
            tokio::try_join!(reading, waiting)
        };
        let pauses = &events.deadline.pauses;
        let ended = tokio::select! {
            biased;
            ended = both => ended,
            () = pass(clock, pauses) => {
                let killed = Exited {
                    status: 9,
                    killed: Some(Killed::Deadline),
                    ..Exited::default()
                };
                Ok((Captured::default(), (killed, Vec::new())))
            }
            never = self.follow(pauses) => match never {},
        };
        let (captured, (exited, staged)) = ended?;
        Ok(Finished {
            captured,
            exited,
            staged,
            relay_is_fit: self.end(traffic).await,
        })
    }

    /// Stops the tool while its call stands still.
    pub async fn follow(&self, pauses: &Pauses) -> Infallible {
        let mut standing = pauses.standing();
        while standing.changed().await.is_ok() {
            let stands = *standing.borrow_and_update();
            // A launcher that is gone by now is seen by whoever waits for it.
            let _ = if stands {
                self.launcher.pause()
            } else {
                self.launcher.resume()
            };
        }
        std::future::pending().await
    }

    /// Waits for the end of the call, and ends it where its output or its network passes a limit.
    async fn wait(
        &self,
        over: &Notify,
        traffic: &Mutex<Traffic>,
        cpu_limit: u64,
    ) -> Result<(Exited, Vec<OwnedFd>), LauncherError> {
        let mut killed = false;
        let over = async {
            tokio::select! { () = over.notified() => {}, () = self.attend(traffic, cpu_limit) => {} }
        };
        let accepting = tokio::time::sleep(ACCEPTING);
        tokio::pin!(over, accepting);
        loop {
            tokio::select! {
                () = &mut accepting, if self.launcher.was_idle && !accepting.is_elapsed() => {
                    if !killed && self.launcher.is_behind() {
                        return Err(LauncherError::Gone);
                    }
                    continue;
                }
                ended = self.launcher.wait() => return match ended {
                    // The unread message may be `Kill`, not `Start`, so the tool may have run.
                    Err(LauncherError::Gone) if killed => Err(lost("while it ended a call").into()),
                    ended => ended,
                },
                () = &mut over, if !killed => killed = true,
            }
            // If the launcher is gone by now, it has reported how the call ended, or its closed
            // socket shows the loss.
            let _ = self.launcher.send(&ToLauncher::Kill, &[]);
        }
    }
}

/// The end to read from of a pipe to a tool. While it is open, what the tool left unread stays.
fn other_end(pipe: &Sender) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", pipe.as_raw_fd()))
}

/// Waits until the host gives up on a call.
async fn pass(clock: Clock, pauses: &Pauses) {
    loop {
        let left = clock.overdue(pauses.lasted());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// Feeds and reads until all pipes are closed. `over` is notified when stdout exceeds its limit, or
/// has a line that cannot be read. Without room for a part of a stream, nothing is read, so the
/// tool waits at a full pipe.
pub async fn capture(
    pipes: Pipes,
    input: &[u8],
    mut stdout: OutputReader<'_>,
    mut log: Log<'_>,
    over: &Notify,
) -> Captured {
    let Pipes {
        input: mut to,
        mut fed,
        output: mut from,
        log: mut log_from,
    } = pipes;
    let feed = async {
        // A tool need not read its input: EPIPE is not a fault.
        while let Ok(written @ 1..) = to.write(&input[fed..]).await {
            fed += written;
        }
        drop(to);
    };
    let read = async {
        let mut buffer = Vec::with_capacity(64 * 1024);
        let mut notified = false;
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            if stdout.push(&buffer).await && !std::mem::replace(&mut notified, true) {
                over.notify_one();
            }
            buffer.clear();
        }
        stdout.close().await;
        stdout.finish()
    };
    let read_log = async {
        let mut buffer = Vec::with_capacity(16 * 1024);
        while let Ok(1..) = log_from.read_buf(&mut buffer).await {
            log.push(&buffer);
            buffer.clear();
        }
    };
    // The feeder may hang for ever on a tool that neither reads nor closes its input; the readers
    // end with the tool.
    let output = tokio::select! {
        biased;
        (output, ()) = async { tokio::join!(read, read_log) } => output,
        output = async { feed.await; std::future::pending().await } => output,
    };
    Captured {
        output,
        logs: log.finish(),
        fed,
    }
}
