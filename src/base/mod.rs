//! Base: small pieces that every room may use.
//!
//! For: every room. In: nothing of any other room. Out: small pieces. Never: knows what a tool, a policy or a call is.

pub mod files;
pub mod hidden;
pub mod links;
pub mod places;
pub mod shared;
