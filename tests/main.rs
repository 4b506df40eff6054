//! All integration tests, in one binary.
mod cli_call;
mod common;
mod mcp;
mod service;
