//! Starts the relay of a networked launcher, our own binary behind walls of its own, and keeps it beside that launcher.
//!
//! A relay gets no file, network or secret of another tool.

use super::launcher::{Launcher, LauncherError};
use super::{CallInput, Launchers, RoleNeeds};
use crate::base::Counted;
use crate::egress::{Dialler, Lease, Traffic, protocol};
use crate::fault::{Fault, Kind};
use crate::policy::{self, Runtime, SecretGrant, Shape};
use crate::quantity::{Limit, MIB};
use crate::sandbox::grants::Resolved;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// What a relay needs for itself, and for each connection: two buffers and what the kernel holds for two sockets.
const OWN_MEMORY: u64 = 96 * MIB;
const CONNECTION_MEMORY: u64 = 2 * MIB;
/// Descriptors of its own, and for each connection.
const OWN_FILES: u64 = 128;
const CONNECTION_FILES: u64 = 4;

/// A relay that serves. Dropping it ends its process.
#[derive(Debug)]
pub struct Relay {
    lease: Lease,
    served: protocol::Served,
    _process: Box<Launcher>,
    _counted: Counted,
}

/// How many leases on a network there are.
pub static LEASES: AtomicUsize = AtomicUsize::new(0);

fn broken(error: io::Error) -> Fault {
    Fault::new(Kind::InternalError, "the network relay of this tool failed, so nothing was run")
        .person(format!("relay: {error}"))
        .retryable()
}

/// A started process that waits for what it is to serve.
pub struct StartedRelay {
    process: Launcher,
    control: OwnedFd,
}

/// Starts the process of a relay for this shape.
pub async fn start(launchers: &Arc<Launchers>, shape: &Shape) -> Result<StartedRelay, LauncherError> {
    let connections = shape.limits.get(Limit::Connections);
    let mut bare = Shape::bare("toolhost:relay@1.0.0", Runtime::ourselves(protocol::ROLE));
    bare.require_cgroup = shape.require_cgroup;
    let memory = connections.saturating_mul(CONNECTION_MEMORY).saturating_add(OWN_MEMORY);
    let files = connections.saturating_mul(CONNECTION_FILES).saturating_add(OWN_FILES);
    for (limit, value) in [(Limit::MemoryBytes, memory), (Limit::OpenFiles, files), (Limit::Processes, 4)] {
        bare.limits.set(limit, value);
    }
    let role = Some(protocol::ROLE.to_owned());
    let extra = RoleNeeds { lasting: true, keeps_third: true, role, ..RoleNeeds::default() };
    let process = Box::pin(launchers.ready_for(&bare, Resolved::default(), &extra)).await?;
    let (control, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
            .map_err(|e| broken(e.into()))?;
    let brings = CallInput { third: Some(&theirs), ..CallInput::default() };
    // It reads and prints nothing.
    drop(super::hand_over(&process, bare.limits.get(Limit::TimeoutMs), &brings)?);
    Ok(StartedRelay { process, control })
}

/// What the relay of this shape serves; `None`: the shape names no hosts.
pub fn served(shape: &Shape) -> Result<Option<protocol::Served>, Fault> {
    let grants = shape.network.hosts().to_vec();
    let header = |secret: &SecretGrant| Some((secret.name.clone(), secret.header.clone()?));
    let headers: Vec<_> = shape.secrets.iter().filter_map(header).collect();
    let mut authorities = BTreeMap::new();
    for (rule, file) in headers.iter().filter_map(|(_, rule)| Some((rule, rule.ca.as_ref()?))) {
        // Read for each call: a certificate that is taken out counts no longer.
        let text = policy::certificates(file).map_err(|problem| {
            let message = format!("the certificates for {} cannot be used, so nothing was run", rule.host);
            Fault::new(Kind::CapabilityError, message).person(problem.to_string())
        })?;
        authorities.insert(rule.host.clone(), text);
    }
    let limits = protocol::LIMITS.map(|limit| (limit, shape.limits.get(limit))).into();
    let ports = shape.network.ports();
    Ok((!grants.is_empty()).then_some(protocol::Served { grants, ports, headers, authorities, limits }))
}

impl Relay {
    /// Has it serve these sockets: the stub's two, and one for each port.
    pub async fn serve(
        started: StartedRelay,
        served: protocol::Served,
        sockets: Vec<OwnedFd>,
        tool: String,
        proxy: Option<String>,
    ) -> Result<Relay, Fault> {
        let StartedRelay { process, control } = started;
        let (grants, headers) = (served.grants.clone(), served.headers.clone());
        let dialler = Dialler { payer: [String::new(), tool], grants, headers, proxy };
        let lease = Lease::serve(control, &served, &sockets, dialler).await.map_err(broken)?;
        Ok(Relay { lease, served, _process: Box::new(process), _counted: Counted::by(&LEASES) })
    }

    pub fn served(&self) -> &protocol::Served {
        &self.served
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    pub fn begin(&self, secrets: &BTreeMap<String, String>) -> Result<(), Fault> {
        self.lease.begin(secrets).map_err(broken)
    }

    /// The call's processes are gone. False: the relay must not serve another call.
    pub async fn end(&self, traffic: &Mutex<Traffic>) -> bool {
        self.lease.end(traffic).await.is_ok()
    }
}
