//! All integration tests, in one binary: it links once. Every file is one subject.
mod arguments;
mod cli_call;
mod common;
mod doctor;
mod golden;
mod manifests;
mod mcp;
mod policy;
mod readme;
mod registry;
mod runtimes;
mod service;
mod shims;
mod wasm;
