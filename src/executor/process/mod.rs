//! Scripts as processes behind all layers. A script runs with every layer or not at all.

pub(super) mod call;
mod cells;
pub mod examine;
pub mod grants;
pub(super) mod idle_memory;
mod inspect;
pub(super) mod pool;
mod publish;
pub(super) mod ready;
pub(super) mod recorded;
mod relay;
mod scratch;
mod scripts;
mod session;
pub(super) mod session_calls;
pub(super) mod sessions;
pub(super) mod spec;
mod tool_calls;
pub(super) mod waiting;
#[cfg(feature = "wasi")]
pub mod worker;

pub use crate::sandbox::{LauncherError, settle};
pub use pool::Launchers;
#[cfg(feature = "wasi")]
pub(super) use pool::resolve;
pub use ready::ReadyProcesses;
pub use scripts::{Scripts, used};
pub use sessions::{OpenSession, Sessions, Turn, no_sessions};
#[cfg(feature = "wasi")]
pub(super) use spec::RoleNeeds;
pub use spec::shape_lines;
pub use waiting::{EarlyEnd, ReadyProcess};
