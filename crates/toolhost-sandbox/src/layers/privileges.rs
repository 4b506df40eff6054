//! Layer: privileges. No capability in any set, and a set-id file grants none.

use crate::plan::{Plan, Step};
pub use crate::sys::last_capability;

/// Comes before Landlock and seccomp, which a process without capabilities may raise only after
/// this step.
pub fn no_new(plan: &mut Plan) {
    plan.add("privileges", Step::NoNewPrivileges);
}

/// After the last step that needs a capability.
pub fn drop_all(plan: &mut Plan, last: u32) {
    plan.add("privileges", Step::DropBounding(last));
    plan.add("privileges", Step::DropCapabilities);
}
