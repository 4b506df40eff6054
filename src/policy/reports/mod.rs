//! Reports: what a decision, a policy or two of them say, for a person and for a program.
//!
//! For: the cli. In: decisions, policies. Out: text and JSON. Never: decides anything, or says more than what decides.

pub mod audit;
pub mod diff;
mod packages;
pub mod suggest;
pub mod who_can;
