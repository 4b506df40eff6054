//! The relay of a networked launcher: our own binary behind layers of its own. It gets no file,
//! network or secret of another tool.

use super::spec::RoleNeeds;
use crate::base::Counted;
use crate::egress::{Dialler, Lease, protocol};
use crate::fault::{Fault, Kind};
use crate::policy::{self, Runtime, SecretGrant, Shape};
use crate::quantity::{Limit, MIB};
use crate::sandbox::Launcher;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;

/// What a relay needs for itself, and for each connection: two buffers and what the kernel holds
/// for two sockets.
const OWN_MEMORY: u64 = 96 * MIB;
const CONNECTION_MEMORY: u64 = 2 * MIB;
/// Descriptors of its own, and for each connection.
const OWN_FILES: u64 = 128;
const CONNECTION_FILES: u64 = 4;

/// How many relays serve.
pub static LEASES: AtomicUsize = AtomicUsize::new(0);

/// A relay that serves. Dropping it ends its process.
#[derive(Debug)]
pub struct Relay {
    pub lease: Lease,
    pub served: protocol::Served,
    pub process: Launcher,
    _counted: Counted,
}

pub fn broken(error: io::Error) -> Fault {
    Fault::new(
        Kind::InternalError,
        "the network relay of this tool failed, so nothing was run",
    )
    .person(format!("relay: {error}"))
    .retryable()
}

/// What the process of a relay for this shape may touch.
pub fn confinement(shape: &Shape) -> (Shape, RoleNeeds) {
    let connections = shape.limits.get(Limit::Connections);
    let mut bare = Shape::bare("toolhost:relay@1.0.0", Runtime::ourselves(protocol::ROLE));
    bare.require_cgroup = shape.require_cgroup;
    let memory = connections
        .saturating_mul(CONNECTION_MEMORY)
        .saturating_add(OWN_MEMORY);
    let files = connections
        .saturating_mul(CONNECTION_FILES)
        .saturating_add(OWN_FILES);
    for (limit, value) in [
        (Limit::MemoryBytes, memory),
        (Limit::OpenFiles, files),
        (Limit::Processes, 4),
    ] {
        bare.limits.set(limit, value);
    }
    let role = Some(protocol::ROLE);
    (
        bare,
        RoleNeeds {
            outlives_calls: true,
            inherited: 1,
            role,
            ..RoleNeeds::default()
        },
    )
}

/// The two ends of the socket between host and relay.
pub fn control() -> Result<(OwnedFd, OwnedFd), Fault> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).map_err(|e| broken(e.into()))
}

/// What the relay of this shape serves; `None`: the shape has no network.
pub fn served(shape: &Shape) -> Result<Option<protocol::Served>, Fault> {
    if !shape.network.is_relayed() {
        return Ok(None);
    }
    let grants = shape.network.hosts().to_vec();
    let headers: Vec<_> = shape
        .secrets
        .iter()
        .filter_map(|secret: &SecretGrant| Some((secret.name.clone(), secret.header.clone()?)))
        .collect();
    let mut authorities = BTreeMap::new();
    for (rule, file) in headers
        .iter()
        .filter_map(|(_, rule)| Some((rule, rule.ca.as_ref()?)))
    {
        // Read for each call, so that a removed certificate loses its trust.
        let text = policy::certificates(file).map_err(|problem| {
            let message = format!(
                "the certificates for {} cannot be used, so nothing was run",
                rule.host
            );
            Fault::new(Kind::CapabilityError, message).person(problem.to_string())
        })?;
        authorities.insert(rule.host.clone(), text);
    }
    let limits = protocol::LIMITS
        .map(|limit| (limit, shape.limits.get(limit)))
        .into();
    Ok(Some(protocol::Served {
        grants,
        ports: shape.network.ports(),
        headers,
        authorities,
        limits,
    }))
}

/// The process of a relay that does not serve yet.
pub struct Companion {
    pub process: Launcher,
    /// The socket to it.
    pub control: OwnedFd,
}

impl Relay {
    /// Makes the relay serve these sockets: the stub's two, and one for each port.
    pub async fn serve(
        companion: Companion,
        served: protocol::Served,
        sockets: Vec<OwnedFd>,
        tool: String,
        proxy: Option<String>,
    ) -> Result<Relay, Fault> {
        let grants = served.grants.clone();
        let headers = served.headers.clone();
        let dialler = Dialler {
            payer: [String::new(), tool],
            grants,
            headers,
            proxy,
        };
        let lease = Lease::serve(companion.control, &served, &sockets, dialler)
            .await
            .map_err(broken)?;
        Ok(Relay {
            lease,
            served,
            process: companion.process,
            _counted: Counted::by(&LEASES),
        })
    }
}
