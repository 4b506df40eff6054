//! All integration tests, in one binary: it links once.
mod arguments;
mod cli_call;
mod common;
mod manifests;
mod mcp;
mod policy;
mod policy_files;
mod registry;
mod service;
