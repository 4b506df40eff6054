//! Starts the workers of `executor::wasm`: our own binary behind the same walls. They outlive a call.

use super::launcher::Launcher;
use super::relay::Relay;
use super::{CallInput, Launchers, RoleNeeds, capture, pool, publish};
use crate::egress::Lease;
use crate::executor::wasm::{HANDED, Role, Start, Started, Worker, Workers};
use crate::executor::{Artifact, Ending};
use crate::fault::{Fault, Kind};
use crate::policy::Shape;
use crate::quantity::Limit;
use crate::sandbox::grants::Resolved;
use crate::sandbox::protocol::Killed;
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the end of a worker whose input was closed.
const FAREWELL: Duration = Duration::from_millis(400);

pub struct WasmWorkers {
    launchers: Arc<Launchers>,
}

impl WasmWorkers {
    pub fn new(launchers: Arc<Launchers>) -> WasmWorkers {
        WasmWorkers { launchers }
    }
}

impl Workers for WasmWorkers {
    fn look<'a>(&'a self, shape: &'a Shape) -> BoxFuture<'a, Result<Resolved, Fault>> {
        Box::pin(pool::resolve(shape, true))
    }

    fn start<'a>(&'a self, start: Start<'a>) -> BoxFuture<'a, Result<Started, Fault>> {
        Box::pin(async move {
            let extra = RoleNeeds {
                memory: start.own_memory,
                processes: start.own_threads,
                own_source: false,
                lasting: start.role == Role::Worker,
                keeps_third: true,
                role: Some(start.role.name().to_owned()),
            };
            let launcher = self.launchers.ready_for(start.shape, start.grants, &extra).await?;
            let brings = CallInput { third: Some(&start.handed), ..CallInput::default() };
            let timeout_ms = start.shape.limits.get(Limit::TimeoutMs);
            let capture::Pipes { input, output, log } = super::hand_over(&launcher, timeout_ms, &brings)?;
            // A worker's stderr is not read: the guest's log comes in frames.
            drop(log);
            Ok(Started {
                to: Box::new(input),
                from: Box::new(output),
                handed: HANDED,
                scratch: scratch(start.shape),
                walls: launcher.walls.clone(),
                worker: Box::new(Behind { launcher, shape: start.shape.clone() }),
            })
        })
    }
}

/// With a grant below /tmp, that folder is never empty, so what a call left there could not be told: /dev/shm then.
fn scratch(shape: &Shape) -> PathBuf {
    let below = |folder| shape.grants.iter().any(|grant| grant.opening.folder().starts_with(folder));
    if below("/tmp") { "/dev/shm".into() } else { "/tmp".into() }
}

/// Dropping the launcher ends the worker.
struct Behind {
    launcher: Launcher,
    shape: Shape,
}

impl Worker for Behind {
    fn lease(&self) -> Option<&Lease> {
        self.launcher.relay.as_ref().map(Relay::lease)
    }

    fn ended(&mut self) -> BoxFuture<'_, Option<Ending>> {
        Box::pin(async move {
            let (exited, _) = super::ended(&self.launcher).await.ok()?;
            let limit = match exited.killed? {
                Killed::Memory => Limit::MemoryBytes,
                Killed::Cpu => Limit::CpuMs,
                Killed::Deadline | Killed::Requested | Killed::Sessions | Killed::Written(_) => return None,
            };
            Some(Ending::OverLimit { limit, allowed: self.shape.limits.get(limit) })
        })
    }

    fn publish(&mut self) -> BoxFuture<'_, Result<Vec<Artifact>, Fault>> {
        Box::pin(async move {
            let failed = || Fault::new(Kind::InternalError, "the worker did not end after its answer");
            let ended = tokio::time::timeout(FAREWELL, super::ended(&self.launcher)).await.map_err(|_| failed())?;
            let (_, staged) = ended.map_err(|_| failed())?;
            Ok(publish::all(&self.launcher.setup.stages, &staged, &self.shape).await)
        })
    }
}
