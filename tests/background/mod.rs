//! Calls in the background: receipts, results, ends that are told, and what a host that is killed says afterwards.

mod callbacks;
mod calls;
mod restart;
mod status;

use crate::harness::{Playground, Who, within};
use crate::http::{Reply, Web, bearer, private, token};
use serde_json::{Value, json};
use std::time::Duration;

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

const BOTH: &str = "[[caller]]\nname = \"bob\"\nwhy = \"w\"\ntools = [\"*\"]\n\
                    [[caller]]\nname = \"ops\"\nwhy = \"w\"\ntools = [\"*\"]\nrole = \"operator\"\n";

impl Scene {
    /// `alice`: her entry in the file of callers, below its name and tools.
    fn new(who: Who, alice: &str) -> Scene {
        let playground = Playground::new(who, "/var/tmp");
        crate::http::adder(&playground);
        // A process and its child.
        let script = "import os, sys, time\nos.fork()\ntime.sleep(40)\nprint(1)\n";
        playground.tool("sleep", "python", script, json!({}));
        let script = "import json, sys, time\ntime.sleep(json.load(sys.stdin)['s'])\nprint('\"slept\"')\n";
        let seconds = json!({"type": "object", "properties": {"s": {"type": "number", "description": "d"}}});
        playground.tool("nap", "python", script, json!({"parameters": seconds}));
        playground.tool("large", "python", "print('\"' + 'x' * 1048500 + '\"')\n", json!({}));
        let own = json!({
            "toolId": "own:status", "displayName": "Status", "description": "d", "version": "1.0.0",
            "handler": {"type": "service-method", "serviceName": "BackgroundCallService", "methodName": "status",
                        "parameterMap": {"call": "id"}},
            "parameters": {"type": "object", "properties": {"call": {"type": "string", "description": "d"}}}
        });
        std::fs::create_dir_all(playground.path("tool-defs/own")).unwrap();
        std::fs::write(playground.path("tool-defs/own/status.tool.json"), own.to_string()).unwrap();
        let text = format!("[[caller]]\nname = \"alice\"\nwhy = \"w\"\ntools = [\"*\"]\n{alice}\n{BOTH}");
        std::fs::write(playground.path("sandbox-policies/callers.policy.toml"), text).unwrap();
        playground.settle();
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
