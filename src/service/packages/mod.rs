//! The built environment of a call, made once for everybody who needs the same.

mod build;
mod deps;
mod installer;
mod rules;

pub use build::{FindNpm, Packages, Parts, Ready, furnish};
pub use deps::{PackageState, PackageStatus, value};
pub use installer::Need;
pub use rules::Resolved;
