//! A wall that could not be raised, and how a wall stood: plain data, also between launcher and host.

use super::sys;
use nix::errno::Errno;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// A wall that could not be raised. `what` and `errno` are for the person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    pub wall: Cow<'static, str>,
    pub what: String,
    #[serde(serialize_with = "errno_to_number", deserialize_with = "errno_from_number")]
    pub errno: Errno,
}

fn errno_to_number<S: Serializer>(errno: &Errno, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i32(*errno as i32)
}

fn errno_from_number<'de, D: Deserializer<'de>>(from: D) -> Result<Errno, D::Error> {
    i32::deserialize(from).map(Errno::from_raw)
}

/// What a refusal is about: a missing wall is only one of the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    Wall,
    /// The source or the staged files of the call do not fit its scratch.
    Scratch,
    /// A granted path is no longer what it was a moment ago.
    Changed,
    /// The tool was started, and how it ended cannot be told.
    Ran,
}

/// The `wall` of a problem that arose after the tool was started: none is at fault.
const RAN: &str = "none";

impl Problem {
    /// For `map_err`: what was tried, and the wall it belongs to.
    pub fn of<E: Into<std::io::Error>>(wall: &'static str, what: impl ToString) -> impl FnOnce(E) -> Problem {
        let what = what.to_string();
        move |error| Problem { wall: wall.into(), what, errno: sys::errno(&error.into()) }
    }

    /// This problem, marked as one that arose after the tool was started.
    pub(super) fn while_it_ran(self) -> Problem {
        Problem { wall: RAN.into(), what: format!("{}: {}", self.wall, self.what), ..self }
    }

    /// `view` and `scratch` use ESTALE only for a changed path; `scratch` uses EDQUOT only for what does not fit.
    pub fn about(&self) -> ProblemKind {
        match (&*self.wall, self.errno) {
            (RAN, _) => ProblemKind::Ran,
            (_, Errno::ESTALE) => ProblemKind::Changed,
            ("scratch", Errno::EDQUOT) => ProblemKind::Scratch,
            _ => ProblemKind::Wall,
        }
    }
}

/// Turns the errors of a path that vanished or became something else since its grant was resolved into ESTALE.
pub(super) fn moved(errno: Errno) -> Errno {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => Errno::ESTALE,
        other => other,
    }
}

/// One wall as it stood during a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallState {
    pub name: String,
    /// `stood`, or for `cgroup` how it counts: `cgroup` or `sampled`.
    pub state: String,
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_while_the_tool_runs_is_no_refusal() {
        for (wall, errno) in [("launcher", Errno::ECHILD), ("scratch", Errno::EDQUOT), ("view", Errno::ESTALE)] {
            let problem = Problem { wall: wall.into(), what: "wait4(2)".into(), errno };
            assert_ne!(problem.about(), ProblemKind::Ran, "before it runs");
            assert_eq!(problem.while_it_ran().about(), ProblemKind::Ran, "{wall}");
        }
    }
}
