//! Calls in the background: receipts, results, ends that are told, and what a host that is killed
//! says afterwards.

use crate::prelude::*;
mod callbacks;
mod calls;
mod observations;
mod restart;
mod status;

use crate::http::{Reply, Web, caller, tokens, write_callers};

/// How long a call of a tool may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// A process and its child.
const SLEEPER: &str = crate::http::mcp::SLEEPER;
const UNKNOWN: &str = "/v1/calls/00000000-0000-7000-8000-000000000000";
const STREAM: &str = "Accept: text/event-stream";

/// A host with tokens for alice, bob and an operator.
struct Scene {
    playground: Playground,
    /// The file of tokens.
    file: String,
    alice: String,
    bob: String,
    ops: String,
}

/// The file of callers, with this in alice's entry.
fn callers(alice: &str) -> String {
    caller("alice", alice) + "\n" + &caller("bob", "") + &caller("ops", "role = \"operator\"\n")
}

impl Scene {
    /// `alice`: her entry in the file of callers, below its name and tools.
    fn new(who: Who, alice: &str) -> Scene {
        let playground = Playground::new(who, "/var/tmp");
        let rest = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                    [limits]\ntimeout_ms = 110_000\n";
        playground.policy("default", "*", rest);
        crate::http::adder(&playground);
        playground.tool(
            "sleep",
            "python",
            "import os, time\nos.fork()\ntime.sleep(100)\nprint(1)\n",
            json!({}),
        );
        crate::http::gated(&playground);
        playground.tool(
            "large",
            "python",
            "print('\"' + 'x' * 1048500 + '\"')\n",
            json!({}),
        );
        playground.tool(
            "late",
            "python",
            "print(7)\n",
            json!({"execution": {"mode": "async"}}),
        );
        let method = json!({"type": "service-method", "serviceName": "BackgroundCallService",
                            "methodName": "status", "parameterMap": {"call": "id"}});
        let call = json!({"type": "object", "properties": {"call": {"type": "string", "description": "d"}}});
        let own = manifest("own:status", method, json!({"parameters": call}));
        fs::write(
            playground.path("tool-defs/status.tool.json"),
            own.to_string(),
        )
        .unwrap();
        write_callers(&playground, &callers(alice));
        let (file, [alice, bob, ops]) = tokens(&playground, ["alice", "bob", "ops"]);
        Scene {
            playground,
            file,
            alice,
            bob,
            ops,
        }
    }

    /// The same with its server.
    fn served(alice: &str) -> (Scene, Web) {
        let scene = Scene::new(Who::ours(), alice);
        let web = scene.serve();
        (scene, web)
    }

    fn serve(&self) -> Web {
        Web::start(&self.playground, &["--token-file", &self.file])
    }
}

/// A call in the background.
fn begin(web: &Web, caller: &str, tool: &str, arguments: &Value, more: Value) -> Reply {
    let mut body = json!({"mode": "async", "arguments": arguments});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    web.call(tool, &body, &[caller])
}

/// One that goes on once the gate of this name is open.
fn waits(web: &Web, caller: &str, gate: &str) -> String {
    place(&begin(
        web,
        caller,
        "esc:gate",
        &json!({ "file": gate }),
        json!({}),
    ))
}

/// One that is over only when it is ended.
fn sleeps(web: &Web, caller: &str, more: Value) -> String {
    place(&begin(web, caller, "esc:sleep", &json!({}), more))
}

/// One that adds one and two.
fn adds(web: &Web, caller: &str, more: Value) -> Reply {
    begin(web, caller, "esc:add", &json!({"a": 1, "b": 2}), more)
}

/// The path of the call that a receipt is for.
fn place(receipt: &Reply) -> String {
    assert_eq!(receipt.status, 202, "{receipt:?}");
    let place = receipt.header("location").unwrap().to_owned();
    assert_eq!(
        place,
        format!("/v1/calls/{}", receipt.json()["id"].as_str().unwrap())
    );
    place
}

fn state(web: &Web, caller: &str, place: &str) -> Value {
    let reply = web.get(place, &[caller]);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// The call once it ended.
fn ended(web: &Web, caller: &str, place: &str) -> Value {
    within(SOON, "the call ends", || {
        state(web, caller, place)["phase"] == "ended"
    });
    state(web, caller, place)
}
