//! toolhost: drop a script and its manifest into a folder and an agent can call it; the kernel
//! holds it to what the operator approved; anyone can read, and prove, exactly what it may touch.
//!
//! The rooms, upstairs first. A room imports only downstairs (`tests/tidy.rs` checks).

pub mod base; // 0  what all may use and nobody owns
pub mod cli; // 6  one file per verb
pub mod executor; // 3  call → outcome
pub mod fault; // 0  how we refuse
pub mod manifest; // 1  manifest files
pub mod policy; // 1  policy files; manifest ∩ policy = confinement
pub mod quantity; // 0  every limit of the house
pub mod registry; // 2  manifests on disk → a snapshot of tools
pub mod runtimes; // 2  interpreters of this machine
pub mod sandbox; // 2  the walls
pub mod service; // 4  request, reply, guard, format, audit
pub mod transport; // 5  mcp
