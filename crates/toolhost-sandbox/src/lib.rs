//! Runs a program behind layers of the kernel: between "run this" and the kernel, and nothing else.
//! `raise` has the table of layers and their order, and is the file to read first.
//!
//! Host → launcher (serves one shape, inside the prebuilt read-only view) → init (pid 1 of fresh
//! namespaces) → tool.

mod account;
pub mod base_view;
mod child;
mod host;
mod layers;
mod plan;
pub mod probe;
pub mod protocol;
mod raise;
mod recorder;
mod reenter;
mod spawn;
mod spec;
mod sys;
#[cfg(test)]
mod tests;

pub use account::totals::{Totals, below, is_closed};
pub use account::written;
pub use base_view::{CALL_FOLDER, CALL_INPUT, CALL_OUTPUT};
pub use child::launcher;
pub use host::launcher::{
    ACCEPTING, ALIVE, CallInput, InputFile, Launcher, LauncherError, LauncherNews, Layers, Pipes,
    Process, SessionFolders, lost, no_pipe, nonblocking, pipe, settle,
};
pub use host::run::{Outcome, Running, notes};
pub use host::sandbox::{Beside, Sandbox};
pub use layers::view::{is_late, is_system};
pub use layers::{cgroup, environment, identity, limits};
pub use protocol::{LayerState, Problem, ProblemKind, ReadFile};
pub use raise::{LAYERS, LayerRow};
pub use recorder::{MAX_EVENT_BYTES as MAX_RECORDED_BYTES, UNRESOLVED, WRITABLE};
pub use reenter::{Role, reenter, role_name};
pub use spec::{Access, Executable, Mount, Originals, Program, Serves, Spec, Stage, StagedFolder};
pub use sys::{
    ACCESS_LIST, copy_access_list, errno, fstat, ignore_sigxfsz, landlock_abi, lstat,
    output_was_closed, pidfd_open, reset_sigchld, terminal_columns, untaken_bytes,
};
