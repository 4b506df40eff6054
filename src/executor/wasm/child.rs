//! Our own binary in a role of this module, started behind the walls of a shape. Dropping it ends it.

use super::frame::{self, FrameLimits, Order, Report};
use crate::executor::Artifact;
use crate::executor::process::{CallInput, Launchers, Ready, RoleNeeds};
use crate::fault::{Fault, Kind};
use crate::policy::Shape;
use crate::quantity::Limit;
use crate::sandbox::grants::Resolved;
use crate::sandbox::protocol::Killed;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Longest wait for the end of a child, or for what the walls say of it.
const FAREWELL: Duration = Duration::from_millis(400);

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

pub struct Child {
    pub ready: Ready,
    /// Its descriptors 0 and 1. (Its stderr is not read: a guest's log comes in frames.)
    to: Option<Sender>,
    pub from: BufReader<Receiver>,
}

impl Child {
    /// `handed`: compiled code for a worker, a module for the compiler, open for reading. `own`: memory and threads
    /// that the role needs beyond the limits of the shape.
    pub async fn start(
        launchers: &Launchers,
        (shape, grants): (&Shape, Resolved),
        role: Role,
        handed: OwnedFd,
        own: (u64, u64),
    ) -> Result<Child, Fault> {
        let extra = RoleNeeds {
            memory: own.0,
            processes: own.1,
            own_source: false,
            lasting: role == Role::Worker,
            keeps_third: true,
            role: Some(role.name()),
        };
        let ready = launchers.ready_for(shape, grants, &extra).await?;
        let brings = CallInput { third: Some(&handed), ..CallInput::default() };
        let pipes = ready.launcher.start(shape.limits.get(Limit::TimeoutMs), &brings)?;
        Ok(Child { ready, to: Some(pipes.input), from: BufReader::new(pipes.output) })
    }

    pub async fn say(&mut self, order: &Order, payload: &[u8]) -> io::Result<()> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        to.write_all(&frame::encode(order, payload)?).await
    }

    pub async fn hear(&mut self, most: FrameLimits) -> io::Result<Option<(Report, Vec<u8>)>> {
        frame::read_async(&mut self.from, most).await
    }

    /// After its pipes closed: the limit that the walls saw it pass.
    pub async fn limit(&self) -> Option<Limit> {
        let (exited, _) = tokio::time::timeout(FAREWELL, self.ready.launcher.ended()).await.ok()?.ok()?;
        match exited.killed? {
            Killed::Memory => Some(Limit::MemoryBytes),
            Killed::Cpu => Some(Limit::CpuMs),
            Killed::Deadline | Killed::Requested | Killed::Sessions | Killed::Written(_) => None,
        }
    }

    /// Ends it after a good answer, and publishes its staged files.
    pub async fn publish(&mut self, shape: &Shape) -> Result<Vec<Artifact>, Fault> {
        // A worker that may serve another call waits for its next order.
        drop(self.to.take());
        let failed = || Fault::new(Kind::InternalError, "the worker did not end after its answer");
        let ended = tokio::time::timeout(FAREWELL, self.ready.launcher.ended()).await.map_err(|_| failed())?;
        let (_, staged) = ended.map_err(|_| failed())?;
        Ok(self.ready.publish(&staged, shape).await)
    }
}
