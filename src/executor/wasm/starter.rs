//! What the executor has started behind the walls, and how it hears of its end.
//!
//! `process::WasmWorkers` starts the processes; tests put hostile ones in their place.

use crate::egress::Lease;
use crate::executor::{Artifact, Ending, Walls};
use crate::fault::Fault;
use crate::policy;
use crate::sandbox::grants::Resolved;
use futures_util::future::BoxFuture;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Where a process finds the file that it was handed, unless its starter says otherwise.
pub const HANDED: i32 = 3;
/// Longest wait for the walls to say how a worker ended.
const ENDED: Duration = Duration::from_millis(400);

/// The roles in which our own binary is executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs calls. Reserves 70 GiB of address space (so no RLIMIT_AS) and needs `memfd_create`, or an ENOSYS
    /// for it. It counts time and CPU for each call itself, so the walls set no limit over its life; the host
    /// ends it when a call's time is over.
    Worker,
    /// Compiles one module. Needs as many threads as there are CPUs.
    Compile,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Worker => "wasm-worker",
            Role::Compile => "wasm-compile",
        }
    }
}

/// What is to be started, behind the walls of `shape`.
pub struct Start<'a> {
    pub shape: &'a policy::Shape,
    /// Its grants as `Workers::look` found them.
    pub grants: Resolved,
    pub role: Role,
    /// Compiled code for a worker, a module for the compiler; inherited, open for reading.
    pub handed: OwnedFd,
    /// What the role itself needs beyond the shape's `memoryBytes` and `processes`.
    pub own_memory: u64,
    pub own_threads: u64,
}

/// Starts our own binary in a role (`process::WasmWorkers`).
pub trait Workers: Send + Sync {
    /// The grants of a shape as they are now: a worker that was started for other files must not serve the call.
    fn look<'a>(&'a self, shape: &'a policy::Shape) -> BoxFuture<'a, Result<Resolved, Fault>>;
    fn start<'a>(&'a self, start: Start<'a>) -> BoxFuture<'a, Result<Started, Fault>>;
}

pub struct Started {
    pub worker: Box<dyn Worker>,
    /// Its descriptors 0 and 1.
    pub to: Box<dyn AsyncWrite + Send + Unpin>,
    pub from: Box<dyn AsyncRead + Send + Unpin>,
    /// The number of the handed file in it.
    pub handed: i32,
    /// The folder of its view that is the guest's `/tmp`.
    pub scratch: PathBuf,
    /// The walls as they stand around it.
    pub walls: Walls,
}

/// Dropping it ends and reaps it.
pub trait Worker: Send + Sync {
    /// Of a tool that may reach hosts.
    fn lease(&self) -> Option<&Lease> {
        None
    }
    /// After its pipes closed: what the walls saw, such as a memory limit.
    fn ended(&mut self) -> BoxFuture<'_, Option<Ending>>;
    /// Ends the worker and publishes its staged files. Called only after a good answer.
    fn publish(&mut self) -> BoxFuture<'_, Result<Vec<Artifact>, Fault>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// What the walls saw of a worker whose pipes closed.
pub async fn how_it_ended(worker: &mut dyn Worker) -> Option<Ending> {
    tokio::time::timeout(ENDED, worker.ended()).await.ok().flatten()
}
