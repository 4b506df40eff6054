//! Scripts as processes behind all layers. A script runs with every layer or not at all.

mod call;
pub mod examine;
pub mod grants;
mod inspect;
mod pool;
mod publish;
mod relay;
mod scripts;
mod spec;
#[cfg(feature = "wasi")]
pub mod worker;

pub use crate::sandbox::{LauncherError, settle};
pub use pool::Launchers;
#[cfg(feature = "wasi")]
pub(super) use pool::resolve;
pub use scripts::{Scripts, used};
#[cfg(feature = "wasi")]
pub(super) use spec::RoleNeeds;
pub use spec::shape_lines;
