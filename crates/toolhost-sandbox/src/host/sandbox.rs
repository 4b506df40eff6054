//! Sandbox: starts launchers, which start programs behind all layers.

use super::launcher::{self, Launcher, LauncherError, Process};
use crate::layers::{cgroup, identity};
use crate::protocol::{Problem, Setup};
use crate::spec::{Serves, Spec};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;
use toolhost_base::fault::{Fault, Kind};
use toolhost_base::lock;
use toolhost_base::quantity::Limit;

/// What a program is started beside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// It holds sockets of a networked call.
    pub has_sockets: bool,
    /// How many sessions and processes that wait there are at most, beside the calls that run.
    pub waiting: usize,
}

/// Starts programs behind all layers.
#[derive(Debug)]
pub struct Sandbox {
    /// This binary, opened when the host started.
    own: OwnedFd,
    ids: Range<u32>,
    groups: Option<cgroup::Cgroups>,
    /// A process that was started ahead, in a host that makes one call.
    ahead: Mutex<Option<(Process, identity::Lease)>>,
    one_call: bool,
    /// How many calls this host runs at a time.
    pub slots: usize,
}

impl Sandbox {
    /// `own`: the program, open, whose `main` begins with `reenter`. `ids`: what programs run as
    /// where the host is real root.
    pub fn new(own: OwnedFd, ids: Range<u32>) -> Sandbox {
        Sandbox {
            own,
            ids,
            groups: cgroup::Cgroups::find(),
            ahead: Mutex::default(),
            one_call: false,
            slots: 1,
        }
    }

    /// Opens the running binary.
    pub fn of_this_binary(ids: Range<u32>) -> io::Result<Sandbox> {
        let own = std::fs::File::open("/proc/self/exe")?;
        Ok(Sandbox::new(own.into(), ids))
    }

    pub fn ids(&self) -> Range<u32> {
        self.ids.clone()
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
        let Ok(Some(lease)) = identity::lease(self.ids.clone()) else {
            return;
        };
        let started = Process::start(&self.own, &lease, owner);
        *lock(&self.ahead) = started.ok().map(|process| (process, lease));
    }

    /// A launcher that is ready to start this program. `give_back`: ends launchers that wait, where
    /// all ids are in use.
    pub async fn start(
        &self,
        spec: Spec,
        beside: Beside,
        give_back: impl FnOnce(),
    ) -> Result<Launcher, LauncherError> {
        let ahead = lock(&self.ahead).take();
        let (process, lease) = match ahead {
            Some(begun) => begun,
            None => {
                let lease = self.lease(give_back).await?;
                (Process::start(&self.own, &lease, None)?, lease)
            }
        };
        let memory = spec.limits.get(Limit::MemoryBytes);
        let processes = spec.limits.get(Limit::Processes);
        fn no_group(e: io::Error) -> LauncherError {
            LauncherError::layer(Problem::from_layer("cgroup", "making a group")(e))
        }
        let group = self
            .groups
            .as_ref()
            .map(|groups| groups.make(&spec.principal, memory, processes))
            .transpose()
            .map_err(no_group)?;
        if let (Some(group), true) = (&group, beside.has_sockets) {
            group.charge_sockets(memory).map_err(no_group)?;
        }
        let last = self.one_call && spec.program.serves == Serves::Call;
        let setup = Setup {
            spec,
            identity: lease.identity,
            cgroup: self.groups.as_ref().map(cgroup::Cgroups::version),
            calls: (self.slots + beside.waiting) as u64,
        };
        let mut launcher = Launcher::prepare(process, &self.own, setup, group).await?;
        launcher.last = last;
        // From here on the launcher and its keeper hold the id's lock.
        drop(lease);
        Ok(launcher)
    }

    /// An id for a new launcher; those that wait give theirs back before the pool counts as
    /// exhausted.
    async fn lease(&self, give_back: impl FnOnce()) -> Result<identity::Lease, Fault> {
        fn failed(e: io::Error) -> Fault {
            let what = "taking an id for the tool (root locks one below /run/toolhost)";
            launcher::failure_of_host(what, &e).unwrap_or_else(|| {
                let message =
                    "the layer `identity` cannot be raised on this machine, so nothing was run";
                Fault::new(Kind::CapabilityError, message).person(format!("{what}: {e}"))
            })
        }
        if let Some(lease) = identity::lease(self.ids.clone()).map_err(failed)? {
            return Ok(lease);
        }
        give_back();
        let ids = self.ids.clone();
        // This waits, so it does not run on the threads of other calls.
        let waited = tokio::task::spawn_blocking(move || {
            launcher::settle(Duration::from_secs(1));
            identity::lease(ids)
        });
        let lease = waited
            .await
            .map_err(io::Error::other)
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
}
