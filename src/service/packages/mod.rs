//! Package environments, built once for all calls that need the same.

mod build;
mod deps;
mod installer;
mod need;

pub use build::{BuildSettings, Packages, Ready, ResolvedLock, use_environment};
pub use deps::{PackageState, PackageStatus, need_named, needs, needs_unlocked, value};
pub use need::Need;
