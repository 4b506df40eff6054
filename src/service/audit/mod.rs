//! The audit log beside which this host keeps what it must know of earlier calls.
//!
//! - Begin and end: a call has a begin record (`begun`) and an end record (a line of the log),
//!   joined by its id. The end is complete by itself. A call whose begin cannot be written does not
//!   run. Where an end cannot be written the caller gets its answer, the end stays in memory and is
//!   the first record written, and no further call starts until then. A begin without an end is a
//!   running call while its host holds its lock; afterwards the next host that opens the log adds
//!   an `InternalError`.
//! - Files: hosts of one user share a log and tear no line. Closing a file never drops the begin of
//!   a running call. A record is written under a lock (flock(2)), in which its writer reads what
//!   others wrote since. If a process keeps the lock for 5 s (a stopped one, say), calls are
//!   refused as where the log cannot be written.
//! - Chain: each record holds the digest of the one before, so a record that was edited, removed,
//!   moved, repeated or added is found, unless all later ones were made again. The chain has no
//!   key, so it proves nothing against those who may write the log on purpose (the user of the
//!   host, root of the machine), and a log that was cut off at its end is a valid, shorter chain.
//!   That shows only by heads that they could not change (`[log] head_to`), up to the newest one.
//!   Records from before the chain are not covered. Tools cannot write the log or the heads at all.
//! - Power: a machine that loses its power can lose the last records, and so can a file system
//!   without flock(2) or atomic appends (network file systems) where several machines write one
//!   log.

mod begun;
mod chain;
pub mod last;
pub(in crate::service) mod log;
mod past;
pub mod segments;
mod usage;
mod verify;

pub use begun::BEGUN;
pub use chain::Walk;
pub use log::{CONFINEMENTS, Log, PastCall, RecordPermit};
pub use past::{CallFilter, Follower, PastCalls, number};
pub use segments::{MAX_RECORD_BYTES, Retention, ascii};
pub use usage::{ToolUsage, Usage, UsageByTool};
