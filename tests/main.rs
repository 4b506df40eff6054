//! All integration tests, in one binary: it links once.
mod arguments;
mod cli_call;
mod common;
mod escapes;
mod lifecycle;
mod manifests;
mod mcp;
mod outputs;
mod policy;
mod policy_files;
mod registry;
mod service;
