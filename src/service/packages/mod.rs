//! Package environments, built once for all calls that need the same.

mod build;
mod deps;
mod installer;

pub use build::{BuildSettings, Packages, Ready, ResolvedLock, use_environment};
pub use deps::{PackageState, PackageStatus, value};
pub use installer::Need;
