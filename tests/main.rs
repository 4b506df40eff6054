//! All integration tests, in one binary: it links once. Every file is one subject.
mod action;
mod advice;
mod alerts;
mod approvals;
mod arguments;
mod artifacts;
mod background;
#[cfg(feature = "rabbitmq")]
mod brokers;
mod callers;
mod causes;
mod cli;
mod client_tools;
mod cut_secrets;
mod disable;
mod doctor;
mod dressed_secrets;
mod embedding;
mod engines;
mod escapes;
mod explain;
mod faulty_policies;
mod files;
mod golden;
mod harness;
mod http;
mod lifecycle;
mod logs;
mod manifests;
mod masks;
mod mcp;
mod mcp_servers;
#[cfg(feature = "wasi")]
mod modules;
mod nested;
mod network;
mod ordinary;
mod outputs;
mod packages;
mod policy;
mod prelude;
mod readme;
mod ready;
mod registry;
mod requirements;
mod responses;
mod runtimes;
mod service;
mod session_limits;
mod sessions;
mod shims;
mod shipped;
mod staging;
mod streaming;
mod streams;
mod stubs;
mod tidy;
#[cfg(feature = "rabbitmq")]
mod tool_services;
mod traces;
mod tutorial;
mod verbose;
#[cfg(feature = "wasi")]
mod wasm;
mod watch;
#[cfg(not(feature = "wasi"))]
mod without_wasi;
