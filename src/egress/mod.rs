//! Egress: how a call reaches the hosts that it may reach, and nothing else.
//!
//! The *relay* is this binary again, behind the same layers as a tool and without any network of its
//! own: it reads what the tool sends (names, TLS hellos, HTTP) and copies bytes. The host *dials*
//! for it: it matches the name again, resolves it once, checks each address, connects to the one
//! that was checked and hands over the socket.
//!
//! Names are compared as canonical labels (lower case, A-labels, no final dot); `*.x` is neither
//! `x` nor `ax`. An address is reached only where it is granted as an address. Other names do not
//! exist (NXDOMAIN at once), and no query leaves the machine: the stub answers with made-up
//! addresses.
//!
//! - Port 80: every request is parsed and written again, and names the host of its connection.
//!   After a switch to WebSocket bytes are copied unread; a host that gets a secret never switches.
//!   A request that gets a secret, or has a body, is the only one of its connection to the host.
//!   Only POST, PUT, PATCH, PROPFIND, REPORT and QUERY may have a body. A secret in the host's
//!   answer is overwritten at equal length.
//! - Port 443: a TLS hello names the host, whole in one record and without an encrypted hello, and
//!   so does the second hello that a host may ask for. What the tool asks inside its TLS is not
//!   seen. Other ports are opaque.

mod dial;
mod lease;
pub mod protocol;
pub mod relay;
mod resolver;
pub mod tls;

pub use dial::{Dialler, PostError, Posted, post};
pub use lease::{Lease, Traffic};
