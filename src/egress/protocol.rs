//! What host and relay send each other. The relay parses untrusted data, so the host checks all
//! that it sends.

use crate::manifest::host::Host;
use crate::policy::{HeaderRule, HostGrant};
use crate::quantity::Limit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The role of the relay: argv[0] without the prefix `toolhost-`.
pub const ROLE: &str = "relay";
/// Events of one call that are reported one by one, of those served and of those refused; later
/// ones are only counted.
pub const EVENTS: usize = 25;
/// The limits of a call's network.
pub const LIMITS: [Limit; 4] = [
    Limit::Connections,
    Limit::SentBytes,
    Limit::ReceivedBytes,
    Limit::CpuMs,
];
/// Longest text in an event, bytes.
pub const TEXT: usize = 300;

/// What a relay serves, for as long as it lives: the first message's memory file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    pub grants: Vec<HostGrant>,
    /// The port of each listening socket, in their order.
    pub ports: Vec<u16>,
    /// The headers that the relay adds, each with the name of its secret.
    pub headers: Vec<(String, HeaderRule)>,
    /// For hosts that get a header: the certificates of their authority, in PEM, if it is not one
    /// of the machine's.
    pub authorities: BTreeMap<String, String>,
    /// `LIMITS`, of one call.
    pub limits: BTreeMap<Limit, u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToRelay {
    /// The first message. Beside it: a memory file with the `Served`, the stub's sockets for UDP
    /// and TCP, the listening sockets.
    Serve,
    /// A call begins. Nothing of an earlier one is left. Beside it, where the lease has headers: a
    /// memory file with the values of their secrets, a JSON object by name.
    Begin,
    /// An answer to `Dial`. Beside it: a connected, non-blocking socket.
    Dialled { id: u64 },
    /// An answer to `Dial`: the tool's connection is reset.
    Undialled { id: u64 },
    /// The call's processes are gone: all connections and names are dropped, and `Ended` is the
    /// answer.
    End,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FromRelay {
    /// The relay serves.
    Ready,
    /// A connection of the tool needs its other end.
    Dial { id: u64, host: Host, port: u16 },
    /// Something that the call did: one of the first `EVENTS`. The host reports failed dials, and
    /// of requests only refused ones are reported.
    Saw(TrafficEvent),
    /// The call exceeded this limit; its connections are reset.
    Over { limit: Limit },
    /// The call is over, and nothing of it is left.
    Ended(Totals),
}

/// What a tool did with its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficEvent {
    pub what: TrafficKind,
    /// The name as asked for (not yet escaped), `name:port`, or `address:port`.
    pub target: String,
    /// Why it was refused; `None`: it was served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusalReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TrafficKind {
    /// A name was looked up.
    Lookup,
    /// A connection was made or refused.
    Connection,
    /// An HTTP request, on port 80.
    Request,
    /// A socket was to be bound, for others to connect to.
    Listener,
    /// A header of the tool's request was replaced by the one that the relay adds, or was left out
    /// because the answer could not be searched for the secret: `name:port header`. Never refused.
    Replaced,
}

/// Why the relay did not serve what a tool did with its network. The message is for everybody, and
/// names no address of this machine or its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", tag = "rule")]
pub enum RefusalReason {
    /// No grant reaches the name or address, at this port.
    #[error("not granted")]
    NotGranted,
    #[error("the address belongs to no name that this call asked for")]
    NoName,
    #[error("the name does not resolve")]
    Unresolved { why: String },
    /// All its addresses are refused: each with the reason.
    #[error("it resolves only to addresses that are not public or of this machine")]
    Address { why: String },
    #[error("it could not be reached")]
    Unreached { why: String },
    /// The certificate is not valid for the name, or TLS fails.
    #[error("no trusted TLS with it")]
    Tls { why: String },
    /// A request, or TLS of the tool's own, outside of what a secret's rule allows.
    #[error("{why}")]
    Secret { why: String },
    /// The data at a port whose protocol is checked is not of that protocol.
    #[error("{why}")]
    Content { why: String },
    #[error("the limit {} is reached", limit.name())]
    Limit { limit: Limit },
    /// Another bound, as text.
    #[error("{why}")]
    Bound { why: String },
    #[error("the relay of this call ended")]
    RelayEnded,
}

impl RefusalReason {
    /// The same, with its text changed.
    pub fn with_text(mut self, change: impl FnOnce(&str) -> String) -> RefusalReason {
        use RefusalReason::{Address, Bound, Content, Secret, Tls, Unreached, Unresolved};
        if let Unresolved { why }
        | Address { why }
        | Unreached { why }
        | Content { why }
        | Bound { why }
        | Tls { why }
        | Secret { why } = &mut self
        {
            *why = change(why);
        }
        self
    }

    /// Details for operators only.
    pub fn detail(&self) -> Option<&str> {
        use RefusalReason::{Address, Tls, Unreached, Unresolved};
        match self {
            Unresolved { why } | Address { why } | Unreached { why } | Tls { why } => Some(why),
            _ => None,
        }
    }

    /// Whether a relay can report this reason.
    pub fn is_of_the_relay(&self) -> bool {
        match self {
            RefusalReason::Limit { limit } => LIMITS.contains(limit),
            RefusalReason::Unresolved { .. }
            | RefusalReason::Address { .. }
            | RefusalReason::Unreached { .. } => false,
            other => *other != RefusalReason::RelayEnded,
        }
    }

    /// Whether a rule of this host refused, rather than the other end.
    pub fn is_a_rule(&self) -> bool {
        let other_end = matches!(
            self,
            RefusalReason::Unresolved { .. }
                | RefusalReason::Unreached { .. }
                | RefusalReason::Tls { .. }
        );
        !other_end && *self != RefusalReason::RelayEnded
    }
}

/// The totals of one call: all that was requested, and how much of it was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    pub lookups: u64,
    pub lookups_refused: u64,
    pub connections: u64,
    /// Also those that the host did not dial.
    pub connections_refused: u64,
    pub requests: u64,
    pub requests_refused: u64,
    /// Bytes from the tool to hosts, and from hosts to the tool.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// CPU time of the relay, which counts as the call's.
    pub cpu_ms: u64,
}

impl Totals {
    /// Counts a refusal.
    pub fn refuse(&mut self, what: TrafficKind) {
        *match what {
            TrafficKind::Lookup => &mut self.lookups_refused,
            TrafficKind::Connection | TrafficKind::Listener => &mut self.connections_refused,
            TrafficKind::Request | TrafficKind::Replaced => &mut self.requests_refused,
        } += 1;
    }
}
