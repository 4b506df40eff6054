//! Calls in the background: receipts, results, ends that are told, and what a host that is killed says afterwards.

use crate::prelude::*;
mod callbacks;
mod calls;
mod restart;
mod status;

use crate::http::{Reply, Web, bearer, caller, private, token, write_callers};

/// How long a call of a tool may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A host with tokens for alice, bob and an operator; `callers` is the file of callers, if any.
struct Scene {
    playground: Playground,
    file: String,
    alice: String,
    bob: String,
    ops: String,
    /// The operator's token.
    token: String,
}

/// The file of callers, with this in alice's entry.
fn callers(alice: &str) -> String {
    caller("alice", alice) + "\n" + &caller("bob", "") + &caller("ops", "role = \"operator\"\n")
}

impl Scene {
    /// `alice`: her entry in the file of callers, below its name and tools.
    fn new(who: Who, alice: &str) -> Scene {
        let playground = Playground::new(who, "/var/tmp");
        crate::http::adder(&playground);
        // A process and its child.
        let script = "import os, sys, time\nos.fork()\ntime.sleep(40)\nprint(1)\n";
        playground.tool("sleep", "python", script, json!({}));
        crate::http::gated(&playground);
        playground.tool("large", "python", "print('\"' + 'x' * 1048500 + '\"')\n", json!({}));
        let method = json!({"type": "service-method", "serviceName": "BackgroundCallService",
                            "methodName": "status", "parameterMap": {"call": "id"}});
        let call = json!({"type": "object", "properties": {"call": {"type": "string", "description": "d"}}});
        let own = manifest("own:status", method, json!({"parameters": call}));
        std::fs::write(playground.path("tool-defs/status.tool.json"), own.to_string()).unwrap();
        write_callers(&playground, &callers(alice));
        let made = ["alice", "bob", "ops"].map(|name| token(&playground, name, &[]));
        let lines: String = made.iter().map(|(_, line)| format!("{line}\n")).collect();
        let file = private(&playground, "state/tokens", &lines);
        let [alice, bob, ops] = made.each_ref().map(|(token, _)| bearer(token));
        let token = made[2].0.clone();
        Scene { playground, file, alice, bob, ops, token }
    }

    fn serve(&self) -> Web {
        Web::start(&self.playground, &["--token-file", &self.file])
    }
}

/// A call in the background that goes on once the gate of this name is open.
fn waits(web: &Web, caller: &str, gate: &str) -> String {
    place(&begin(web, caller, "esc:gate", &json!({ "file": gate }), json!({})))
}

/// A call in the background.
fn begin(web: &Web, caller: &str, tool: &str, arguments: &Value, more: Value) -> Reply {
    let mut body = json!({"mode": "async", "arguments": arguments});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    web.call(tool, &body, &[caller])
}

/// The path of the call that a receipt is for.
fn place(receipt: &Reply) -> String {
    assert_eq!(receipt.status, 202, "{receipt:?}");
    let place = receipt.header("location").unwrap().to_owned();
    assert_eq!(place, format!("/v1/calls/{}", receipt.json()["id"].as_str().unwrap()));
    place
}

fn state(web: &Web, caller: &str, place: &str) -> Value {
    let reply = web.get(place, &[caller]);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// The call once it ended.
fn ended(web: &Web, caller: &str, place: &str) -> Value {
    let mut last = Value::Null;
    within(SOON, "the call ends", || {
        last = state(web, caller, place);
        last["phase"] == "ended"
    });
    last
}
