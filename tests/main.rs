//! All integration tests, in one binary.
mod cli_call;
mod common;
mod mcp;
mod policy;
mod policy_files;
mod service;
