//! Scripts as processes behind all layers. A script runs with every layer or not at all.

mod call;
mod cells;
pub mod examine;
pub mod grants;
mod idle_memory;
mod inspect;
mod pool;
mod publish;
mod ready;
mod relay;
mod scripts;
mod session;
mod session_calls;
mod sessions;
mod spec;
mod tool_calls;
mod waiting;
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
