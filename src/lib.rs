//! toolhost: drop a script and its manifest into a folder and an agent can call it; the kernel
//! holds it to what the operator approved; anyone can read, and prove, exactly what it may touch.
//!
//! Each module imports only from lower floors (its number), and `policy` also from `manifest`:
//! `tests/tidy.rs`. Below them all lie the crates `toolhost-base`,
//! `toolhost-sandbox` and `toolhost-schemas`.

pub use toolhost_base as base;
pub use toolhost_base::{fault, quantity};
pub use toolhost_sandbox as sandbox;
pub use toolhost_schemas as schemas;

pub mod broker; // 2  messages to and from RabbitMQ and Pulsar
pub mod cli; // 6  the command line, one file per verb
pub mod egress; // 2  the hosts that a call may reach: DNS stub, relay, dialling
pub mod executor; // 3  call → outcome
pub mod manifest; // 1  manifest files
pub mod packages; // 2  what scripts require of package indexes, and the store of what was built
pub mod policy; // 1  policy files; manifest ∩ policy = confinement
pub mod registry; // 2  manifests on disk → a snapshot of tools
pub mod runtimes; // 2  interpreters of this machine
pub mod service; // 4  request, pipeline, quotas, format, audit
pub mod transport; // 5  MCP over stdio, HTTP
