//! Egress: how a call reaches the hosts that it may reach, and nothing else.
//!
//! The *relay* is this binary again, behind the same layers as a tool and without any network of its
//! own: it reads what the tool sends (names, TLS hellos, HTTP) and copies bytes. The host *dials*
//! for it: it matches the name again, resolves it once, checks each address, connects to the one
//! that was checked and hands over the socket.

mod dial;
mod lease;
pub mod protocol;
pub mod relay;
mod resolver;
pub mod tls;

pub use dial::{Dialler, PostError, Posted, post};
pub use lease::{Lease, Traffic};
