//! All layers (enforcement mechanisms), and the order in which they are raised. An auditor reads
//! this file first.
//!
//! A `protocol::Setup` becomes a tool behind all layers, or the name of the layer that could not be
//! raised; then nothing runs. No switch skips a layer, not even for tests.

use crate::child::init;
use crate::layers::{
    cgroup, descriptors, identity, landlock, limits, namespaces, privileges, seccomp, session, view,
};
use crate::protocol::{self, LayerState};
use crate::{plan, spec};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use toolhost_base::layer::Layer;
use toolhost_base::quantity::Limit;

/// What one layer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRow {
    pub layer: Layer,
    pub stops: &'static str,
    /// What the layer needs of the kernel.
    pub needs: &'static str,
}

/// All layers; `raise` has their exact order. Every one is required; sampling may replace `cgroup`
/// (state `sampled`).
pub const LAYERS: [LayerRow; 13] = [
    row(
        Layer::Network,
        "packets, datagrams and DNS, in and out, except to the relay at granted ports",
        "network namespaces; for named hosts policy routing (Linux 4.17)",
    ),
    row(
        Layer::View,
        "seeing or changing any file that was not granted",
        "mount namespaces, Linux 5.13",
    ),
    row(
        Layer::Scratch,
        "temporary files that outlive a call or fill the disk",
        "tmpfs",
    ),
    row(
        Layer::Cgroup,
        "more memory, CPU or processes than allowed, as a whole",
        "a writable cgroup; else sampled",
    ),
    row(
        Layer::Namespaces,
        "seeing or signalling other processes, IPC, mounts, host name",
        "user namespaces (or real root)",
    ),
    row(
        Layer::Identity,
        "acting as root or as another call",
        "user namespaces (or real root)",
    ),
    row(
        Layer::Session,
        "reading or typing into a terminal",
        "nothing",
    ),
    row(
        Layer::Descriptors,
        "using files the host had open",
        "Linux 5.11",
    ),
    row(
        Layer::Environment,
        "reading the host's variables",
        "nothing",
    ),
    row(
        Layer::Limits,
        "too many or too large files, core dumps",
        "nothing",
    ),
    row(
        Layer::Privileges,
        "capabilities, set-id programs",
        "nothing",
    ),
    row(
        Layer::Landlock,
        "writing, making or running files beyond the grants (a second check)",
        "Landlock, Linux 5.13",
    ),
    row(
        Layer::Seccomp,
        "system calls no tool needs",
        "seccomp filters, x86_64; for recorded calls Linux 5.19",
    ),
];

const fn row(layer: Layer, stops: &'static str, needs: &'static str) -> LayerRow {
    LayerRow {
        layer,
        stops,
        needs,
    }
}

/// What `raise` needs for the layers of one call.
pub(crate) struct Raising<'a> {
    pub setup: &'a protocol::Setup,
    pub counters: Option<&'a cgroup::Counters>,
    pub ruleset: &'a OwnedFd,
    pub filter: &'a [nix::libc::sock_filter],
    /// Where the recorder of the call, or the launcher, waits for the filter's listener.
    pub listener: Option<RawFd>,
    pub last_capability: u32,
    pub executable: &'a OwnedFd,
    /// The tool's descriptors from 0 on.
    pub files: Vec<RawFd>,
    /// The largest file that the tool may write, bytes (RLIMIT_FSIZE).
    pub file_bytes: u64,
    pub init: &'a OwnedFd,
    pub status: RawFd,
    pub environment: &'a [String],
    /// argv, the name included.
    pub arguments: &'a [String],
}

/// Raises the layers of one call, in order. The launcher has raised network, view and scratch
/// already, and the call starts inside them. Any step that fails refuses the call.
pub(crate) fn raise(r: &Raising) -> plan::Plan {
    let (setup, mut plan) = (r.setup, plan::Plan::default());
    namespaces::raise(&mut plan); // with clone(2) itself: nothing of the call runs outside them
    if let Some(counters) = r.counters {
        counters.raise(&mut plan); // first, so that all that follows is charged
    }
    identity::raise(&mut plan, setup.identity.id); // before any step that checks the process's user
    limits::rank(&mut plan); // before /proc becomes read-only
    // after joining the group, whose name the call then does not see
    namespaces::own_cgroup(&mut plan);
    namespaces::mount_proc(&mut plan); // needs the mapped user namespace
    view::enter(&mut plan, &setup.spec.program.folder); // the working folder
    session::raise(&mut plan); // performed by the tool, not by the init
    // likewise; only marked: they close at execve(2)
    descriptors::raise(&mut plan, &r.files);
    privileges::no_new(&mut plan); // Landlock and seccomp require it
    landlock::raise(&mut plan, r.ruleset); // after all mounts, since it forbids mounting
    let usage = limits::Usage {
        counted: r.counters.is_some(),
        serves: setup.spec.program.serves,
    };
    let mut own = setup.spec.limits.clone();
    // The recorder becomes the tool's user, too.
    let recorders = u64::from(setup.spec.recorded);
    let processes = own.get(Limit::Processes).saturating_add(recorders);
    own.set(Limit::Processes, processes);
    limits::raise(&mut plan, &own, r.file_bytes, usage, setup.calls); // after opening files
    privileges::drop_all(&mut plan, r.last_capability); // after the last step that needs one
    init::hide(&mut plan); // before the filter, which ignores PR_SET_DUMPABLE
    let killable = setup.spec.recorded;
    seccomp::raise(&mut plan, r.filter, r.listener, killable); // last: nothing after it needs a refused call
    init::raise(&mut plan, r.init, r.status); // the tool is a child of pid 1, behind the same layers
    let program = match &setup.spec.program.executable {
        spec::Executable::Path(path) => plan::Program::Path(view::text(path)),
        spec::Executable::Ourselves => plan::Program::Descriptor(r.executable.as_raw_fd()),
    };
    // the environment layer: these variables and no others
    plan.execute(program, r.arguments, r.environment);
    plan
}

/// The state of each layer on this machine once a launcher is ready.
pub(crate) fn layer_states(landlock_abi: i32, counted: bool, spec: &spec::Spec) -> Vec<LayerState> {
    let ports = spec.network.as_deref();
    let state = |row: &LayerRow| match row.layer {
        Layer::Cgroup if counted => ("cgroup", "counted by a control group".to_owned()),
        Layer::Cgroup => (
            "sampled",
            format!(
                "no writable cgroup: memory and CPU are summed every {} ms",
                toolhost_base::quantity::SAMPLE_MS
            ),
        ),
        Layer::Network if ports.is_some() || spec.local_sockets => {
            let own = spec
                .local_sockets
                .then(|| "the call's own sockets".to_owned());
            let relay =
                ports.map(|ports| format!("the name server and the relay, at ports {ports:?}"));
            let all: Vec<String> = own.into_iter().chain(relay).collect();
            ("active", format!("only {} can be reached", all.join(", ")))
        }
        Layer::Landlock => {
            let lacks = landlock::missing_features(landlock_abi);
            let ports = if spec.local_sockets {
                "; TCP is left to the network namespace and the relay"
            } else {
                ""
            };
            let rest = if lacks.is_empty() {
                ports.to_owned()
            } else {
                format!("{ports}; not covered: {}", lacks.join(", "))
            };
            ("active", format!("ABI {landlock_abi}{rest}"))
        }
        Layer::Network
        | Layer::View
        | Layer::Scratch
        | Layer::Namespaces
        | Layer::Identity
        | Layer::Session
        | Layer::Descriptors
        | Layer::Environment
        | Layer::Limits
        | Layer::Privileges
        | Layer::Seccomp => ("active", row.stops.to_owned()),
    };
    LAYERS
        .iter()
        .map(|row| {
            let (state, why) = state(row);
            LayerState {
                name: row.layer.name().to_owned(),
                state: state.to_owned(),
                why,
            }
        })
        .collect()
}
