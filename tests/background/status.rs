//! The tool by which an agent asks for its calls: their states, their results, their ends after a restart.

use super::{Scene, UNKNOWN, begin, ended, place, state, waits};
use crate::http::mcp::Client;
use crate::http::{Web, adder, open_gate};
use crate::prelude::*;

const TOOL: &str = "core:task-status";

/// What the tool answers about the call at this place.
pub fn asked(web: &Web, caller: &str, place: &str) -> Value {
    let reply = web.call(TOOL, &json!({"arguments": {"id": place.rsplit('/').next()}}), &[caller]);
    assert_eq!(reply.status == 200, reply.json()["success"] == true, "{reply:?}");
    reply.json()
}

#[test]
fn an_agent_asks_for_its_own_calls() {
    let (scene, web) = Scene::served("");
    let alice = scene.alice.as_str();
    let nap = waits(&web, alice, "go");
    wait_for("it runs", || state(&web, alice, &nap)["phase"] == "running");
    let told = &asked(&web, alice, &nap)["outputData"];
    assert_eq!([&told["status"], &told["tool"]], ["running", "esc:gate@1.0.0"], "{told}");
    assert_eq!((told.get("ended"), told.get("result")), (None, None), "{told}");
    open_gate(&scene.playground, "go");
    ended(&web, alice, &nap);
    let told = asked(&web, alice, &nap)["outputData"].clone();
    assert_eq!([&told["status"], &told["result"]["outputData"]], ["done", "through"], "{told}");
    assert_eq!(told["result"], state(&web, alice, &nap)["result"]);
    // To others it is not there, as if there were no such id.
    let never = asked(&web, alice, UNKNOWN)["error"].clone();
    assert_eq!(never["type"], "ParameterValidationError", "{never}");
    for other in [&scene.bob, &scene.ops] {
        assert_eq!(asked(&web, other, &nap)["error"], never);
    }
    // What would be longer than the tool's own answer may be is left out, and is there over HTTP.
    let large = place(&begin(&web, alice, "esc:large", &json!({}), json!({})));
    let whole = ended(&web, alice, &large);
    assert_eq!(whole["result"]["outputData"].as_str().unwrap().len(), 1_048_500, "control");
    let told = asked(&web, alice, &large)["outputData"].clone();
    assert_eq!((&told["status"], &told["resultLeftOut"]), (&json!("done"), &json!(true)), "{told}");
    assert_eq!(told.get("result"), None);
    // An operator's own tool of this method has the parameter under another name.
    let id = nap.rsplit('/').next();
    let told = web.call("own:status", &json!({"arguments": {"call": id}}), &[alice]).json();
    assert_eq!(told["outputData"]["status"], "done", "{told}");
    // An MCP client of the same server has the tool, and is told that it changes nothing.
    let mut client = Client::new(&web, true, &[alice]);
    let listed = client.asked("tools/list", json!({}))["result"]["tools"].clone();
    let tool = listed.as_array().unwrap().iter().find(|tool| tool["name"] == "core__task-status").unwrap();
    assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
    let (answer, _) = client.call("core__task-status", json!({ "id": id }));
    assert_eq!(answer["result"]["structuredContent"]["status"], "done", "{answer}");
}

/// Whoever keeps no calls shows agents no such tool, and says who does.
#[test]
fn a_process_that_keeps_no_calls_says_so() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    playground.expect(TOOL, r#"{"id":"x"}"#, "ServiceError: This process keeps no calls in the background.");
    let names = Server::start(&playground).names();
    assert!(names.contains(&"esc__add".to_owned()) && !names.contains(&"core__task-status".to_owned()), "{names:?}");
}
