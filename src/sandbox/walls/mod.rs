//! Walls: one file for each. `sandbox::raise` has their order, `sandbox::WALLS` what each stops.
//!
//! For: this room. In: a set-up, or a plan to add steps to. Out: a wall that stands, or the step that failed.
//! Never: raises a part of a wall.

pub mod cgroup;
pub mod descriptors;
pub mod environment;
pub mod identity;
pub mod landlock;
pub mod limits;
pub mod namespaces;
pub mod network;
pub mod privileges;
pub mod scratch;
pub mod seccomp;
pub mod session;
pub mod view;
