//! The host's end: a `Sandbox` starts launchers, and has them start programs.

pub mod launcher;
pub mod run;
pub mod sandbox;
