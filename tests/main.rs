//! One test binary: every file here is one subject.

mod readme;
mod runtimes;
mod shims;
