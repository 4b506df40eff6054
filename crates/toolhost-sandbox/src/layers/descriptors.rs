//! Layer: descriptors. Only 0, 1 and 2 are open in a tool, and from 3 on what its call brings: the
//! code of our own worker, or the two pipes of a script that calls tools.

use crate::plan::{Plan, Step};
use std::os::fd::RawFd;

/// Makes `files` the descriptors from 0 on. All others close when the tool is executed, not before,
/// since later layers still need their descriptors.
pub fn raise(plan: &mut Plan, files: &[RawFd]) {
    for (to, from) in files.iter().copied().enumerate() {
        plan.add_tool(
            "descriptors",
            Step::Duplicate {
                from,
                to: to as RawFd,
            },
        );
    }
    plan.add_tool("descriptors", Step::CloseOnExecFrom(files.len() as _));
}
