//! The launchers, kept while they are idle. A launcher runs one call at a time, so simultaneous
//! calls use several.

use super::call::Ready;
use super::launcher::{self, CallInput, Launcher, LauncherError, Process, RoleNeeds, set_up};
use super::relay::{self, Relay};
use crate::base::lock;
use crate::base::semaphore::FairSemaphore;
use crate::egress::protocol::Served;
use crate::executor::Gauge;
use crate::executor::idle::IdlePool;
use crate::fault::{Fault, Kind};
use crate::policy::{Access, Area, Grant, Shape};
use crate::quantity::Limit;
use crate::sandbox::protocol::Setup;
use crate::sandbox::{Problem, cgroup, grants, identity};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Most idle launchers.
const MAX_IDLE: usize = 32;

/// Makes and keeps launchers.
#[derive(Debug)]
pub struct Launchers {
    /// This binary, opened when the host started.
    own: OwnedFd,
    pool: std::ops::Range<u32>,
    groups: Option<cgroup::Cgroups>,
    idle: Arc<IdlePool<(Setup, Option<Served>), Ready>>,
    /// A process that was started ahead, in a host that makes one call.
    ahead: Mutex<Option<(Process, identity::Lease)>>,
    one_call: bool,
    /// `host:port` of the operator's proxy, by which the hosts of tools are reached.
    pub proxy: Option<String>,
    /// How many calls this host runs at a time.
    pub slots: usize,
}

impl Launchers {
    pub fn new(own: OwnedFd, pool: std::ops::Range<u32>) -> Launchers {
        Launchers {
            own,
            pool,
            groups: cgroup::Cgroups::find(),
            idle: Arc::new(IdlePool::new(MAX_IDLE)),
            ahead: Mutex::default(),
            one_call: false,
            proxy: None,
            slots: 1,
        }
    }

    /// Opens the running binary. `pool`: the ids that tools get where the host is real root.
    pub fn of_this_binary(pool: std::ops::Range<u32>) -> std::io::Result<Launchers> {
        Ok(Launchers::new(
            std::fs::File::open("/proc/self/exe")?.into(),
            pool,
        ))
    }

    pub fn pool(&self) -> std::ops::Range<u32> {
        self.pool.clone()
    }

    /// Whether calls are counted by a cgroup on this machine.
    pub fn counted(&self) -> bool {
        self.groups.is_some()
    }

    /// Starts a process ahead, for a host that makes one call, while the rest of the host is set
    /// up. If that fails, the call starts one and reports the reason. `owner`: uid and gid that
    /// granted files probably have.
    pub fn begin(&mut self, owner: Option<(u32, u32)>) {
        self.one_call = true;
        let Ok(Some(lease)) = identity::lease(self.pool.clone()) else {
            return;
        };
        let started = Process::start(&self.own, &lease, owner);
        *lock(&self.ahead) = started.ok().map(|process| (process, lease));
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
        if shape.require_cgroup && self.groups.is_none() {
            let message = "the policy requires exact accounting, which this machine cannot give";
            let person = "the policy requires `cgroup`, and no cgroup can be made here; `toolhost \
                doctor` says why";
            return Err(Fault::new(Kind::CapabilityError, message)
                .person(person)
                .into());
        }
        cgroup::remove_left();
        let before = resolved.before;
        let setup = self.set_up(shape, resolved, extra);
        let mut wanted = (setup, relay::served(shape)?);
        while let Some(mut ready) = self.idle.take(|key| *key == wanted) {
            // A launcher that was killed meanwhile is skipped.
            if ready.waits() {
                (ready.launcher.before, ready.launcher.was_idle) = (before, true);
                return Ok(ready);
            }
        }
        let served = wanted.1.take();
        let starting = self.start(wanted.0, served.is_some());
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

    fn set_up(&self, shape: &Shape, resolved: grants::ResolvedGrants, extra: &RoleNeeds) -> Setup {
        set_up(
            shape,
            resolved,
            extra,
            self.groups.as_ref().map(cgroup::Cgroups::version),
            self.slots as u64,
        )
    }

    /// A new launcher for this set-up. `has_sockets`: the tool or relay in it holds sockets of a
    /// networked call.
    async fn start(&self, mut setup: Setup, has_sockets: bool) -> Result<Launcher, LauncherError> {
        let ahead = lock(&self.ahead).take();
        let (process, lease) = match ahead {
            Some(begun) => begun,
            None => {
                let lease = self.lease().await?;
                (Process::start(&self.own, &lease, None)?, lease)
            }
        };
        setup.identity = lease.identity;
        let memory = setup.limits.get(Limit::MemoryBytes);
        let processes = setup.limits.get(Limit::Processes);
        fn no_group(e: std::io::Error) -> LauncherError {
            LauncherError::layer(Problem::from_layer("cgroup", "making a group")(e))
        }
        let group = self
            .groups
            .as_ref()
            .map(|groups| groups.make(&setup.principal, memory, processes))
            .transpose()
            .map_err(no_group)?;
        if let (Some(group), true) = (&group, has_sockets) {
            group.charge_sockets(memory).map_err(no_group)?;
        }
        let last = self.one_call && !setup.lasting;
        let mut launcher = Launcher::prepare(process, &self.own, setup, group).await?;
        launcher.last = last;
        // From here on the launcher and its keeper hold the id's lock.
        drop(lease);
        Ok(launcher)
    }

    /// The process of a relay for this shape, and the socket to it.
    async fn start_relay(
        &self,
        shape: &Shape,
        tool: &RoleNeeds,
    ) -> Result<(Launcher, OwnedFd), LauncherError> {
        let (bare, relay) = relay::confinement(shape);
        let extra = RoleNeeds {
            principal: tool.principal.clone(),
            ..relay
        };
        let setup = self.set_up(&bare, grants::ResolvedGrants::default(), &extra);
        let process = self.start(setup, true).await?;
        let (control, theirs) = relay::control()?;
        let brings = CallInput {
            fd3: Some(&theirs),
            ..CallInput::default()
        };
        // The relay uses no standard stream.
        drop(process.start(bare.limits.get(Limit::TimeoutMs), &brings)?);
        Ok((process, control))
    }

    /// An id for a new launcher; idle launchers give theirs back before the pool counts as
    /// exhausted.
    async fn lease(&self) -> Result<identity::Lease, Fault> {
        fn failed(e: std::io::Error) -> Fault {
            let what = "taking an id for the tool (root locks one below /run/toolhost)";
            launcher::failure_of_host(what, &e).unwrap_or_else(|| {
                let message =
                    "the layer `identity` cannot be raised on this machine, so nothing was run";
                Fault::new(Kind::CapabilityError, message).person(format!("{what}: {e}"))
            })
        }
        if let Some(lease) = identity::lease(self.pool.clone()).map_err(failed)? {
            return Ok(lease);
        }
        self.close();
        let pool = self.pool.clone();
        // This waits, so it does not run on the threads of other calls.
        let waited = tokio::task::spawn_blocking(move || {
            launcher::settle(Duration::from_secs(1));
            identity::lease(pool)
        });
        let lease = waited
            .await
            .map_err(std::io::Error::other)
            .and_then(|lease| lease)
            .map_err(failed)?;
        lease.ok_or_else(|| {
            Fault::new(
                Kind::InternalError,
                "all ids for tools are in use; try again",
            )
            .retryable()
        })
    }

    /// Keeps a launcher for the next call of the same shape.
    pub fn put(&self, ready: Ready) {
        if ready.launcher.last {
            return;
        }
        let setup = Setup {
            identity: launcher::ANY_IDENTITY,
            ..ready.launcher.setup.clone()
        };
        let served = ready.relay.as_ref().map(|relay| relay.served.clone());
        self.idle.put((setup, served), ready);
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
                launcher::ALIVE.load(Ordering::Relaxed),
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

    /// Ends all idle launchers.
    pub fn close(&self) {
        self.idle.clear();
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
    fn elsewhere(path: &Path, shape_folder: &std::path::Path) -> bool {
        !path.starts_with(shape_folder)
    }
    if !shape.grants.iter().any(|grant: &Grant| match &grant.area {
        _ if grant.access == Access::Write => true,
        Area::Tree(path) => {
            let masked = path.starts_with("/tmp") || path.starts_with("/dev/shm");
            elsewhere(path, &shape.folder) || masked
        }
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
