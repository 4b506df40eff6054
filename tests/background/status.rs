//! The tool by which an agent asks for its calls: their states, their results, their ends after a
//! restart.

use crate::http::{Web, adder};
use crate::prelude::*;

const TOOL: &str = "core:task-status";

/// What the tool answers about the call at this place.
pub fn asked(web: &Web, caller: &str, place: &str) -> Value {
    let reply = web.call(
        TOOL,
        &json!({"arguments": {"id": place.rsplit('/').next()}}),
        &[caller],
    );
    assert_eq!(
        reply.status == 200,
        reply.json()["success"] == true,
        "{reply:?}"
    );
    reply.json()
}

/// Whoever keeps no calls shows agents no such tool, and says who does.
#[test]
fn a_process_that_keeps_no_calls_says_so() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    playground.expect(
        TOOL,
        r#"{"id":"x"}"#,
        "ServiceError: This process keeps no calls in the background.",
    );
    let names = Server::start(&playground).names();
    assert!(
        names.contains(&"esc__add".to_owned()) && !names.contains(&"core__task-status".to_owned()),
        "{names:?}"
    );
}
