//! A build without the cargo feature `wasi`: its WASI tools load, are told apart, and do not run.

use crate::prelude::*;
#[test]
fn a_wasi_tool_says_that_this_build_cannot_run_it() {
    let playground = Playground::with(Who::ours(), &[("module", "wasm", "(module)", json!({}))]);
    let ended = playground.call("esc:module", "{}");
    assert_eq!(ended.error().0, "CapabilityError");
    assert!(
        ended
            .error()
            .1
            .contains("this toolhost was built without WASI"),
        "{ended:?}"
    );
}
