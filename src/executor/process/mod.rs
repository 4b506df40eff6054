//! Scripts as processes behind all layers. A script runs with every layer or not at all.

mod call;
pub mod examine;
mod launcher;
mod pool;
mod publish;
mod relay;
mod scripts;

#[cfg(feature = "wasi")]
pub(super) use call::Ready;
#[cfg(feature = "wasi")]
pub(super) use launcher::{ACCEPTING, CallInput, RoleNeeds};
pub use launcher::{LauncherError, settle};
pub use pool::Launchers;
#[cfg(feature = "wasi")]
pub(super) use pool::resolve;
pub use scripts::{Scripts, used};
