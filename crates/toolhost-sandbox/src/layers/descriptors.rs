//! Layer: descriptors. Only 0, 1 and 2 (and 3 for our own worker) are open in a tool.

use crate::plan::{Plan, Step};
use std::os::fd::RawFd;

/// Makes `stdio` 0, 1, 2 (and `third` 3). All others close when the tool is executed, not before,
/// since later layers still need their descriptors.
pub fn raise(plan: &mut Plan, stdio: [RawFd; 3], third: Option<RawFd>) {
    for (to, from) in stdio.into_iter().enumerate() {
        plan.add_tool(
            "descriptors",
            Step::Duplicate {
                from,
                to: to as RawFd,
            },
        );
    }
    if let Some(from) = third {
        plan.add_tool("descriptors", Step::Duplicate { from, to: 3 });
    }
    plan.add_tool(
        "descriptors",
        Step::CloseOnExecFrom(if third.is_some() { 4 } else { 3 }),
    );
}
