//! The built environment of a call, made once for everybody who needs the same.

mod build;
mod deps;
mod installer;

pub use build::{BuildSettings, Packages, Ready, ResolvedLock, furnish};
pub use deps::{PackageState, PackageStatus, value};
pub use installer::Need;
