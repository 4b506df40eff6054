//! The launchers, kept while they are idle. A launcher runs one call at a time, so simultaneous
//! calls use several.

use super::call::Ready;
use super::grants;
use super::idle_memory;
use super::relay::{self, Companion, Relay};
use super::sessions::Sessions;
use super::spec::{RoleNeeds, spec};
use super::waiting::WaitingPool;
use crate::base::semaphore::FairSemaphore;
use crate::base::text;
use crate::egress::protocol::Served;
use crate::executor::Gauge;
use crate::executor::idle::IdlePool;
use crate::executor::mcp_server::servers::Servers;
use crate::fault::{Fault, Kind};
use crate::policy::{Access, Area, Grant, Shape};
use crate::quantity::Limit;
use crate::sandbox::{self, Beside, CallInput, Launcher, LauncherError, Sandbox, Spec, cgroup};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

/// What a failure of the sandbox means for the caller of a tool, and for the person who can fix it.
pub fn fault(error: LauncherError) -> Fault {
    match error {
        LauncherError::Missing(program) => {
            let message = "the interpreter of this tool no longer exists, so nothing was run";
            Fault::new(Kind::DependencyError, message).person(format!(
                "{} is gone: restore it, or make a server reload (SIGHUP)",
                text::path(&program)
            ))
        }
        LauncherError::Layer(_) => {
            let mut fault = Fault::from(error);
            if let Some(person) = &mut fault.person {
                *person += "; `toolhost doctor` shows what this machine can enforce and the \
                    command that fixes it";
            }
            fault
        }
        LauncherError::Gone | LauncherError::Fault(_) => error.into(),
    }
}

/// Most idle launchers.
const MAX_IDLE: usize = 32;

/// Makes and keeps launchers.
#[derive(Debug)]
pub struct Launchers {
    pub sandbox: Sandbox,
    idle: Arc<IdlePool<(Spec, Option<Served>), Ready>>,
    /// `host:port` of the operator's proxy, by which the hosts of tools are reached.
    pub proxy: Option<String>,
    /// Processes that were started before their calls.
    pub waiting: WaitingPool,
    pub sessions: Sessions,
    pub servers: Servers,
}

impl Launchers {
    /// `own`: this binary, open. `ids`: what tools run as where the host is real root.
    pub fn new(own: OwnedFd, ids: std::ops::Range<u32>) -> Launchers {
        Launchers {
            sandbox: Sandbox::new(own, ids),
            idle: Arc::new(IdlePool::new(MAX_IDLE)),
            proxy: None,
            waiting: WaitingPool::default(),
            sessions: Sessions::default(),
            servers: Servers::default(),
        }
    }

    /// A launcher for this shape as its grants are now: an idle one, or a new one. A layer that
    /// cannot be raised is `LauncherError::Layer`.
    pub async fn ready(&self, shape: &Shape, extra: &RoleNeeds) -> Result<Ready, LauncherError> {
        let resolved = resolve(shape, !extra.own_source).await?;
        self.ready_for(shape, resolved, extra).await
    }

    /// As `ready`, with grants that are resolved already.
    pub async fn ready_for(
        &self,
        shape: &Shape,
        resolved: grants::ResolvedGrants,
        extra: &RoleNeeds,
    ) -> Result<Ready, LauncherError> {
        if shape.require_cgroup && !self.sandbox.counted() {
            let message = "the policy requires exact accounting, which this machine cannot give";
            let person = "the policy requires `cgroup`, and no cgroup can be made here; `toolhost \
                doctor` says why";
            return Err(Fault::new(Kind::CapabilityError, message)
                .person(person)
                .into());
        }
        cgroup::remove_left();
        let before = resolved.before;
        let mut key = (spec(shape, resolved, extra), relay::served(shape)?);
        while let Some(mut ready) = self.idle.take(|idle| *idle == key) {
            // A launcher that was killed meanwhile is skipped.
            if ready.waits() {
                (ready.launcher.before, ready.launcher.was_idle) = (before, true);
                return Ok(ready);
            }
        }
        let served = key.1.take();
        let starting = self.start(key.0, served.is_some());
        let (mut launcher, relay) = match served {
            None => (starting.await?, None),
            Some(served) => {
                let (mut launcher, relay) =
                    tokio::try_join!(starting, self.start_relay(shape, extra))?;
                let sockets = std::mem::take(&mut launcher.sockets);
                let relay = Relay::serve(
                    relay,
                    served,
                    sockets,
                    shape.tool.clone(),
                    self.proxy.clone(),
                )
                .await?;
                (launcher, Some(relay))
            }
        };
        launcher.before = before;
        Ok(Ready { launcher, relay })
    }

    async fn start(&self, spec: Spec, has_sockets: bool) -> Result<Launcher, LauncherError> {
        let beside = Beside {
            has_sockets,
            waiting: self.sessions.most_waiting(),
        };
        self.sandbox.start(spec, beside, || self.close()).await
    }

    /// The process of a relay for this shape, and the socket to it.
    async fn start_relay(
        &self,
        shape: &Shape,
        tool: &RoleNeeds,
    ) -> Result<Companion, LauncherError> {
        let (bare, relay) = relay::confinement(shape);
        let extra = RoleNeeds {
            principal: tool.principal.clone(),
            ..relay
        };
        let spec = spec(&bare, grants::ResolvedGrants::default(), &extra);
        let process = self.start(spec, true).await?;
        let (control, theirs) = relay::control()?;
        let brings = CallInput {
            inherited: &[theirs],
            ..CallInput::default()
        };
        // The relay uses no standard stream.
        drop(process.start(bare.limits.get(Limit::TimeoutMs), &brings)?);
        Ok(Companion { process, control })
    }

    /// Keeps a launcher for the next call of the same shape.
    pub fn put(&self, ready: Ready) {
        if ready.launcher.last {
            return;
        }
        let spec = ready.launcher.spec.clone();
        let served = ready.relay.as_ref().map(|relay| relay.served.clone());
        self.idle.put((spec, served), ready);
    }

    pub(super) fn gauges(&self) -> Vec<Gauge> {
        fn gauge(name: &'static str, what: &'static str, value: usize) -> Gauge {
            Gauge { name, what, value }
        }
        let alive = "Launchers, also those of relays and of workers for WASI tools.";
        vec![
            gauge(
                "toolhost_launchers",
                alive,
                sandbox::ALIVE.load(Ordering::Relaxed),
            ),
            gauge(
                "toolhost_launchers_idle",
                "Launchers that wait for a call.",
                self.idle.len(),
            ),
            gauge(
                "toolhost_network_leases",
                "Relays, each with a network for one tool.",
                relay::LEASES.load(Ordering::Relaxed),
            ),
        ]
    }

    /// Ends sessions that waited long enough, and of these and of the MCP servers what waits longest
    /// where all together have too much memory.
    pub fn sweep(&self) {
        let mut waits = self.sessions.end_overdue();
        waits.extend(self.servers.idle());
        let gone = idle_memory::too_much(waits, self.sessions.max_bytes);
        for place in gone {
            self.sessions.end_idle(&place);
            self.servers.end(&place);
        }
    }

    /// Ends all idle launchers, and the processes that wait.
    pub fn close(&self) {
        self.idle.clear();
        self.waiting.clear();
    }
}

/// How many threads resolve the grants of one tool and folder at a time: a file system that does
/// not answer blocks that many threads, and no more.
const MAX_RESOLVERS: usize = 4;
static LOOKING: LazyLock<Arc<FairSemaphore>> =
    LazyLock::new(|| FairSemaphore::new(usize::MAX, MAX_RESOLVERS));

/// Resolves the grants as they are now. Grants that may walk or list large folders, or that lie
/// outside the tool's folder and so perhaps on a file system that does not answer, are resolved on
/// a blocking thread. For others a few system calls are enough, which is quicker than changing
/// threads.
pub async fn resolve(shape: &Shape, script: bool) -> Result<grants::ResolvedGrants, Fault> {
    fn elsewhere(path: &Path, folder: &Path) -> bool {
        !path.starts_with(folder)
    }
    if !shape.grants.iter().any(|grant: &Grant| match &grant.area {
        _ if grant.access == Access::Write => true,
        Area::Tree(path) => elsewhere(path, &shape.folder) || crate::sandbox::is_late(path),
        Area::File(file) => elsewhere(file, &shape.folder),
        Area::Names { .. } => true,
    }) {
        return grants::resolve(shape, script);
    }
    let place = LOOKING
        .enter(&format!("{} {}", shape.tool, shape.folder.display()))
        .await;
    let shape = shape.clone();
    let resolved =
        tokio::task::spawn_blocking(move || (grants::resolve(&shape, script), place).0).await;
    resolved.map_err(|e| {
        Fault::new(Kind::InternalError, "the tool's grants could not be read").person(e.to_string())
    })?
}
