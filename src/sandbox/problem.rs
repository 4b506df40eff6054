//! A layer that could not be set up, and how a layer stood: plain data, also between launcher and host.

use super::sys;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io;

/// Why a call was refused or its result is lost. `what` and `errno` are for the person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    pub kind: ProblemKind,
    pub wall: Cow<'static, str>,
    pub what: String,
    pub errno: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProblemKind {
    /// A layer could not be set up.
    Wall,
    /// The source or the staged files of the call do not fit its scratch.
    Scratch,
    /// A granted path is no longer what it was a moment ago.
    Changed,
    /// The tool was started, and how it ended cannot be told.
    Ran,
}

impl Problem {
    pub fn new(kind: ProblemKind, wall: &'static str, what: impl ToString, errno: Errno) -> Problem {
        Problem { kind, wall: wall.into(), what: what.to_string(), errno: errno as i32 }
    }

    /// For `map_err`: what was tried, and the layer it belongs to.
    pub fn of<E: Into<io::Error>>(wall: &'static str, what: impl ToString) -> impl FnOnce(E) -> Problem {
        move |error| Problem::new(ProblemKind::Wall, wall, what, sys::errno(&error.into()))
    }

    /// For `map_err` of opening a granted path, which may have vanished or become something else.
    pub fn of_path(wall: &'static str, what: impl ToString) -> impl FnOnce(Errno) -> Problem {
        move |errno| {
            let moved = matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP);
            Problem::new(if moved { ProblemKind::Changed } else { ProblemKind::Wall }, wall, what, errno)
        }
    }

    /// This problem, marked as one that arose after the tool was started.
    pub(super) fn while_it_ran(self) -> Problem {
        Problem { kind: ProblemKind::Ran, what: format!("{}: {}", self.wall, self.what), ..self }
    }

    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

/// One layer as it stood during a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallState {
    pub name: String,
    /// `stood`, or for `cgroup` how it counts: `cgroup` or `sampled`.
    pub state: String,
    pub why: String,
}
