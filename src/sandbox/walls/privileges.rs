//! Wall: privileges. No capability in any set, and none to be had from a set-id file.

use crate::sandbox::plan::{Plan, Step};
pub use crate::sandbox::sys::last_capability;

/// Before Landlock and seccomp, which may be raised without capabilities only under it.
pub fn no_new(plan: &mut Plan) {
    plan.add("privileges", Step::NoNewPrivileges);
}

/// After the last step that needs a capability.
pub fn drop_all(plan: &mut Plan, last: u32) {
    plan.add("privileges", Step::DropBounding(last));
    plan.add("privileges", Step::DropCapabilities);
}
