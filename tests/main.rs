//! One test binary: every file here is one subject.

mod runtimes;
mod shims;
