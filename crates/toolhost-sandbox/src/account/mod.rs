//! What a call used: memory and CPU where no cgroup counts, descriptors, and files that were
//! written live.

pub mod held;
pub mod processes;
pub mod sampler;
pub mod totals;
pub mod walk;
pub mod written;
