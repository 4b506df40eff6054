//! Worker: a process behind the layers that serves requests. It is started for a shape, called with
//! a frame and a deadline, ended, and killed when it is dropped.
//!
//! What a frame is, and what answers it, is its user's affair. Today's users are the WASI worker
//! (many calls) and its compiler (one). A script that is started before its call is a worker of one
//! request, whose answer is all of its output until it ends; an interpreter session is one of many
//! requests, whose state is kept; and of an MCP server the pipes themselves are used.

use super::call::Ready;
use super::grants::ResolvedGrants;
use super::pool::{Launchers, fault};
use super::spec::RoleNeeds;
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::Artifact;
use crate::fault::{Fault, Kind};
use crate::policy::Shape;
use crate::quantity::Limit;
use crate::sandbox::protocol::{Exited, Killed};
use crate::sandbox::{ACCEPTING, CallInput, untaken_bytes};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest wait for the end of a worker, or for the launcher's report of it, on a busy machine.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that serves requests. Dropping this kills it.
pub struct Worker {
    pub ready: Ready,
    /// Its descriptors 0 and 1. (Its stderr is not read.)
    to: Option<Sender>,
    pub from: BufReader<Receiver>,
    /// How many requests it was sent.
    pub calls: u64,
    /// False once its network can no longer be used: then it serves no further call.
    pub is_reusable: bool,
}

/// One request to a worker.
pub struct Request<'a> {
    pub frame: &'a [u8],
    pub deadline: Instant,
    /// Values for the headers that its relay adds.
    pub secrets: &'a BTreeMap<String, String>,
    pub traffic: &'a Mutex<Traffic>,
    /// The CPU time of the worker and its relay for this request.
    pub cpu_limit: u64,
}

/// Why a request has no answer. The worker must then be dropped.
#[derive(Debug)]
pub enum WorkerError {
    /// The request could not be sent: the worker was gone before.
    NotStarted,
    /// The deadline passed without an answer.
    TimedOut,
    /// The worker ended or was killed: the exceeded limit, if known.
    Died(Option<Limit>),
    /// The worker sent something other than an answer.
    InvalidMessage(io::Error),
}

impl Worker {
    /// `handed`: what the process finds as descriptor 3.
    pub async fn start(
        launchers: &Launchers,
        shape: &Shape,
        grants: ResolvedGrants,
        needs: &RoleNeeds,
        handed: &OwnedFd,
    ) -> Result<Worker, Fault> {
        let ready = launchers
            .ready_for(shape, grants, needs)
            .await
            .map_err(fault)?;
        let brings = CallInput {
            inherited: std::slice::from_ref(handed),
            ..CallInput::default()
        };
        let pipes = ready
            .launcher
            .start(shape.limits.get(Limit::TimeoutMs), &brings)
            .map_err(fault)?;
        Ok(Worker {
            ready,
            to: Some(pipes.input),
            from: BufReader::new(pipes.output),
            calls: 0,
            is_reusable: true,
        })
    }

    /// Sends a frame outside of any call.
    pub async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        to.write_all(frame).await
    }

    /// Serves one request: sends its frame, and reads what `answer` reads.
    pub async fn call<'w, T, F: Future<Output = io::Result<T>>>(
        &'w mut self,
        request: Request<'_>,
        answer: impl FnOnce(&'w mut BufReader<Receiver>) -> F,
    ) -> Result<T, WorkerError> {
        let Request {
            deadline, traffic, ..
        } = request;
        self.calls += 1;
        if self.ready.begin(request.secrets).is_err() {
            return Err(WorkerError::NotStarted);
        }
        match timeout_at(deadline, self.send(request.frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(WorkerError::NotStarted),
            Err(_) => return Err(WorkerError::TimedOut),
        }
        let Worker {
            ready, from, to, ..
        } = self;
        let answered = async {
            tokio::select! {
                // The worker still has not read the request, so it was stopped while it was idle.
                () = is_stopped(to.as_ref()), if self.calls > 1 => Err(io::ErrorKind::NotConnected.into()),
                answered = answer(from) => answered,
                () = ready.attend(traffic, request.cpu_limit) => Err(io::ErrorKind::QuotaExceeded.into()),
            }
        };
        let answered = timeout_at(deadline, answered).await;
        self.is_reusable &= ready.end(traffic).await;
        if let Some(limit) = lock(traffic).over {
            return Err(WorkerError::Died(Some(limit)));
        }
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(match e.kind() {
                io::ErrorKind::NotConnected => WorkerError::NotStarted,
                io::ErrorKind::UnexpectedEof => WorkerError::Died(limit(ready).await),
                _ => WorkerError::InvalidMessage(e),
            }),
            Err(_) => Err(WorkerError::TimedOut),
        }
    }

    /// After its pipes closed: the limit that the worker exceeded, as the launcher reports it.
    pub async fn limit(&self) -> Option<Limit> {
        limit(&self.ready).await
    }

    /// Ends the worker after success, and publishes its staged files.
    pub async fn end(&mut self, shape: &Shape) -> Result<Vec<Artifact>, Fault> {
        // A worker that may serve another call waits for its next request.
        drop(self.to.take());
        match ended(&self.ready).await {
            Some((exited, staged)) if exited.killed.is_none() => {
                Ok(self.ready.publish(&staged, shape).await)
            }
            // The files of a worker that was killed are lost.
            _ => {
                let message = "The worker did not end well after its answer.";
                Err(Fault::new(Kind::InternalError, message).retryable())
            }
        }
    }
}

async fn ended(ready: &Ready) -> Option<(Exited, Vec<OwnedFd>)> {
    let ended = timeout(SHUTDOWN_TIMEOUT, ready.launcher.wait()).await;
    ended.ok()?.ok()
}

async fn limit(ready: &Ready) -> Option<Limit> {
    match ended(ready).await?.0.killed? {
        Killed::Memory => Some(Limit::MemoryBytes),
        Killed::Cpu => Some(Limit::CpuMs),
        Killed::Deadline | Killed::Requested | Killed::TooMany(..) | Killed::Written(_) => None,
    }
}

/// Returns if the worker did not read a request in time; else never.
async fn is_stopped(to: Option<&Sender>) {
    tokio::time::sleep(ACCEPTING).await;
    if to.is_none_or(|to| untaken_bytes(to.as_fd(), nix::libc::FIONREAD) <= 0) {
        std::future::pending().await
    }
}
