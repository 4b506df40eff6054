//! Workers: starts those of `executor::wasm`, our own binary behind the same walls, which outlive a call.

use super::launcher::Launcher;
use super::relay::Relay;
use super::{Brings, Extra, Launchers, Unready, capture, pool, publish};
use crate::egress::Lease;
use crate::executor::Ending;
use crate::executor::wasm::{Ended, HANDED, Looking, Publishing, Role, Start, Started, Starting, Worker, Workers};
use crate::fault::{Fault, Kind};
use crate::policy::Shape;
use crate::quantity::Limit;
use crate::sandbox::protocol::Killed;
use std::os::fd::OwnedFd;
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
    fn look<'a>(&'a self, shape: &'a Shape) -> Looking<'a> {
        Box::pin(pool::resolve(shape, true))
    }

    fn start<'a>(&'a self, start: Start<'a>) -> Starting<'a> {
        Box::pin(async move {
            let extra = Extra {
                memory: start.own_memory,
                processes: start.own_threads,
                own_source: false,
                lasting: start.role == Role::Worker,
                keeps_third: true,
                role: Some(start.role.name().to_owned()),
            };
            let launcher = self.launchers.ready_for(start.shape, start.grants, &extra).await?;
            let brings = Brings { third: Some(&start.handed), ..Brings::default() };
            let timeout_ms = start.shape.limits.get(Limit::TimeoutMs);
            let pipes = super::hand_over(&launcher, timeout_ms, &brings).map_err(Unready::from)?;
            let capture::Pipes { input, output, log } = pipes;
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

impl Behind {
    /// How the worker ended, as the walls saw it, with the staged copies.
    async fn exited(&mut self) -> Option<(crate::sandbox::protocol::Exited, Vec<OwnedFd>)> {
        super::ended(&self.launcher).await.ok()
    }
}

impl Worker for Behind {
    fn lease(&self) -> Option<&Lease> {
        self.launcher.relay.as_ref().map(Relay::lease)
    }

    fn ended(&mut self) -> Ended<'_> {
        Box::pin(async move {
            let (exited, _) = self.exited().await?;
            match exited.killed {
                Some(Killed::Memory) => Some(Ending::OverLimit {
                    limit: Limit::MemoryBytes,
                    allowed: self.shape.limits.get(Limit::MemoryBytes),
                }),
                Some(Killed::Cpu) => {
                    Some(Ending::OverLimit { limit: Limit::CpuMs, allowed: self.shape.limits.get(Limit::CpuMs) })
                }
                Some(Killed::Deadline | Killed::Asked | Killed::Sessions | Killed::Written(_)) | None => None,
            }
        })
    }

    fn publish(&mut self) -> Publishing<'_> {
        Box::pin(async move {
            let failed = || Fault::new(Kind::InternalError, "the worker did not end after its answer");
            let ended = tokio::time::timeout(FAREWELL, self.exited()).await.map_err(|_| failed())?;
            let (_, staged) = ended.ok_or_else(failed)?;
            Ok(publish::all(&self.launcher.setup.stages, &staged, &self.shape).await)
        })
    }
}
