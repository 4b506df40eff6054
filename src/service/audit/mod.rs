//! The audit log beside which this host keeps what it must know of earlier calls.

mod begun;
pub mod last;
pub(in crate::service) mod log;
pub mod segments;

pub use begun::BEGUN;
pub use log::{CONFINEMENTS, Log, PastCall, RecordPermit};
pub use segments::{MAX_RECORD_BYTES, Retention, ascii};
