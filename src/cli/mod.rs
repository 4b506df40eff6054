//! (to be built)

pub mod audit;
pub mod diff;
