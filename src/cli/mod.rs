//! The command line: one file per verb.
//! (wired by the lead)
pub mod check;
pub mod list;
pub mod new;
pub mod schema;
