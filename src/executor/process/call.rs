//! One call of a launcher that is ready: fed, read, dialled for and waited for at once, so that none holds up another.

use super::launcher::{CallInput, Launcher, LauncherError, Pipes, lost};
use super::relay::Relay;
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::output::{Log, Output, OutputReader};
use crate::executor::{Artifact, Clock, Events};
use crate::policy::{Limits, Shape};
use crate::quantity::{Limit, SAMPLE_MS};
use crate::sandbox::protocol::{Exited, Killed, ToLauncher};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// A launcher that waits for a call, with the relay of its network.
#[derive(Debug)]
pub struct Ready {
    pub launcher: Launcher,
    pub relay: Option<Relay>,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Captured {
    pub output: Output,
    /// The kept lines of stderr.
    pub logs: Vec<String>,
}

/// What became of a call that ran.
#[derive(Debug)]
pub struct Finished {
    pub captured: Captured,
    pub exited: Exited,
    pub staged: Vec<OwnedFd>,
    /// The relay, if the call had one, may serve another.
    pub relay_is_fit: bool,
}

impl Ready {
    /// Whether it still waits for a call.
    pub fn waits(&self) -> bool {
        self.launcher.waits() && self.relay.as_ref().is_none_or(|relay| relay.lease.serves())
    }

    /// Tells the relay, if there is one, that a call begins. `secrets`: values for its headers.
    pub fn begin(&self, secrets: &BTreeMap<String, String>) -> Result<(), LauncherError> {
        let begun = self.relay.as_ref().map_or(Ok(()), |relay| relay.lease.begin(secrets));
        begun.map_err(|_| LauncherError::Gone)
    }

    /// Dials for the call for as long as it is polled; returns only where the call passed a limit of its network, or
    /// together with its relay `cpu_limit`.
    pub async fn attend(&self, traffic: &Mutex<Traffic>, cpu_limit: u64) {
        let Some(relay) = &self.relay else { return std::future::pending().await };
        tokio::select! {
            () = relay.lease.attend(traffic) => {}
            () = self.over_cpu(relay, cpu_limit) => lock(traffic).over = Some(Limit::CpuMs),
        }
    }

    /// Where no groups count, each of the two is held to the limit by itself, and both at the end of the call.
    async fn over_cpu(&self, relay: &Relay, limit: u64) {
        let used = || Some(self.launcher.cpu_ms()? + relay.process.cpu_ms()?);
        let Some(before) = used() else { return std::future::pending().await };
        while used().is_none_or(|now| now.saturating_sub(before) <= limit) {
            tokio::time::sleep(Duration::from_millis(SAMPLE_MS)).await;
        }
    }

    /// The call's processes are gone. False: the relay must not serve another call.
    pub async fn end(&self, traffic: &Mutex<Traffic>) -> bool {
        match &self.relay {
            Some(relay) => relay.lease.end(traffic).await.is_ok(),
            None => true,
        }
    }

    /// Publishes the staged files of a good answer.
    pub async fn publish(&self, staged: &[OwnedFd], shape: &Shape) -> Vec<Artifact> {
        super::publish::all(&self.launcher.setup.stages, staged, shape).await
    }

    /// Runs one call to its end.
    pub async fn call(
        &self,
        brings: &CallInput<'_>,
        (input, secrets): (&[u8], &BTreeMap<String, String>),
        limits: &Limits,
        clock: Clock,
        events: &Events,
        traffic: &Mutex<Traffic>,
    ) -> Result<Finished, LauncherError> {
        self.begin(secrets)?;
        let left = u64::try_from(clock.left().as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let pipes = self.launcher.start(left, brings)?;
        let stdout = OutputReader::new(limits.get(Limit::OutputBytes), events);
        let log = Log::new(limits.get(Limit::LogBytes), events);
        let over = Notify::new();
        let reading = async { Ok(capture(pipes, input, stdout, log, &over).await) };
        // A lost launcher ends the wait at once, though the tool's pipes may stay open for a while.
        let both = async { tokio::try_join!(reading, self.wait(&over, traffic, limits.get(Limit::CpuMs))) };
        let ended = tokio::time::timeout(clock.overdue(), both).await;
        let (captured, (exited, staged)) = ended.unwrap_or_else(|_| {
            let killed = Exited { status: 9, killed: Some(Killed::Deadline), ..Exited::default() };
            Ok((Captured::default(), (killed, Vec::new())))
        })?;
        Ok(Finished { captured, exited, staged, relay_is_fit: self.end(traffic).await })
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
        tokio::pin!(over);
        loop {
            tokio::select! {
                ended = self.launcher.ended() => return match ended {
                    // The message that was not read can be the second one.
                    Err(LauncherError::Gone) if killed => Err(lost("while it ended a call").into()),
                    ended => ended,
                },
                () = &mut over, if !killed => killed = true,
            }
            // A launcher that is gone by now has said how the call ended, or its closed socket says that it was lost.
            let _ = self.launcher.say(&ToLauncher::Kill, &[]);
        }
    }
}

/// Feeds and reads until all pipes are closed. `over` is notified when stdout passed its limit, or brought a line that
/// cannot be read. A part of a stream that finds no room is waited for, and the tool, whose pipe is full then, waits.
pub async fn capture(
    pipes: Pipes,
    input: &[u8],
    mut stdout: OutputReader<'_>,
    mut log: Log<'_>,
    over: &Notify,
) -> Captured {
    let Pipes { input: mut to, output: mut from, log: mut log_from } = pipes;
    let feed = async move {
        // A tool need not read its input: EPIPE is not a fault.
        let _ = to.write_all(input).await;
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
    // The feeder may hang for ever on a tool that neither reads nor closes its input; the readers end with the tool.
    let output = tokio::select! {
        biased;
        (output, ()) = async { tokio::join!(read, read_log) } => output,
        output = async { feed.await; std::future::pending().await } => output,
    };
    Captured { output, logs: log.finish() }
}
