//! One integration test binary: it links once.
mod arguments;
mod manifests;
mod registry;
