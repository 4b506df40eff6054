//! The audit log beside which this host keeps what it must know of earlier calls.

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
pub use past::Follower;
pub use segments::{MAX_RECORD_BYTES, Retention, ascii};
pub use usage::{ToolUsage, Usage, UsageByTool};
