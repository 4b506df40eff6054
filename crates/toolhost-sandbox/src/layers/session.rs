//! Layer: session. No terminal: nothing to read a password from, nothing to push characters into.

use crate::plan::{Plan, Step};

pub fn raise(plan: &mut Plan) {
    plan.add_tool("session", Step::Setsid);
}
