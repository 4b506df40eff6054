//! The trace that a call is part of, and its spans for a collector.

mod collector;
pub mod context;
pub(super) mod spans;

pub use collector::Collector;
