//! One file for each layer. `sandbox::raise` has their order, `sandbox::LAYERS` what each stops.

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
