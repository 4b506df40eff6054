//! Batches: several calls in one request, at once, and told one after the other.

use super::calls::events;
use super::{Reply, Web, adder, caller, heard, sleeper, write_callers};
use crate::prelude::*;

fn ask(web: &Web, body: &Value) -> Reply {
    web.ask("POST", "/v1/calls", &[], &body.to_string())
}

/// Whose event it is: the call that it names, or of an end the outcome's.
fn whose(told: &(String, Value)) -> &str {
    told.1["call"].as_str().or(told.1["id"].as_str()).unwrap_or_default()
}

/// The calls' ids in their order, and the events between `batch` and `done`: each call's in one piece, with one end.
fn pieces(reply: &Reply) -> (Vec<String>, Vec<(String, Value)>) {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{reply:?}");
    let mut told = events(&reply.body);
    let (first, last) = (told.remove(0), told.pop().unwrap());
    assert_eq!((first.0.as_str(), last.0.as_str()), ("batch", "done"));
    let ids = first.1["calls"].as_array().unwrap().iter().map(|call| call["call"].as_str().unwrap().to_owned());
    let ids: Vec<String> = ids.collect();
    let mut order: Vec<&str> = told.iter().map(whose).collect();
    order.dedup();
    let (mut once, mut all) = (order.clone(), ids.clone());
    once.sort_unstable();
    all.sort_unstable();
    assert_eq!(once, all, "each in one piece: {order:?}");
    for id in &ids {
        let own: Vec<&str> = told.iter().filter(|told| whose(told) == id).map(|(name, _)| name.as_str()).collect();
        assert_eq!(own.iter().filter(|name| **name == "end").count(), 1);
        assert_eq!(own.last(), Some(&"end"));
        assert!(own.len() == 1 || own[0] == "start", "{own:?}");
    }
    (ids, told)
}

fn of<'t>(told: &'t [(String, Value)], id: &str, name: &str) -> Vec<&'t Value> {
    told.iter().filter(|event| event.0 == name && whose(event) == id).map(|(_, data)| data).collect()
}

#[test]
fn calls_of_a_batch_run_at_once_and_speak_in_turn() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let chunks = "import json, sys, time\nmine = json.load(sys.stdin)['name']\nfor n in range(100):\n    \
                      print('@toolhost ' + json.dumps({'chunk': f'{mine} {n}'}), flush=True)\n    time.sleep(0.01)\n\
                      print('@toolhost {\"end\": true}')\n";
    playground.tool("chunks", "python", chunks, json!({}));
    let dies = "import os\nprint('@toolhost {\"chunk\": 1}', flush=True)\nos.kill(os.getpid(), 9)\n";
    playground.tool("dies", "python", dies, json!({}));
    playground.tool("quiet", "python", chunks, json!({"presentation": {"hidden": true}}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let chunks = |name: &str| json!({"tool": "esc:chunks", "arguments": {"name": name}});
    let three = json!({"calls": [chunks("a"), chunks("b"), chunks("c")]});
    let (ids, told) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| pieces(&ask(&web, &three)));
        playground.runs("user_scripts/chunks/main.py", 3);
        asked.join().unwrap()
    });
    for (id, name) in ids.iter().zip(["a", "b", "c"]) {
        let texts: Vec<&Value> = of(&told, id, "chunk").iter().map(|data| &data["text"]).collect();
        let all: Vec<Value> = (0..100).map(|n| json!(format!("{name} {n}"))).collect();
        assert_eq!(texts, all.iter().collect::<Vec<_>>(), "in order, and nothing lost");
        assert_eq!(of(&told, id, "end")[0]["outputData"], json!(all));
    }
    // One that dies after its first part, one that is refused, one that is not there, two that are hidden.
    let calls = json!([
        {"tool": "esc:dies"},
        chunks("a"),
        {"tool": "esc:add", "arguments": {"a": "x"}},
        {"tool": "esc:none"},
        {"tool": "esc:quiet", "arguments": {"name": "q"}},
        {"tool": "esc:add", "arguments": "{\"a\": 1, \"b\": 2}", "hidden": true},
        {"tool": "esc:add", "arguments": {"a": 1, "b": 3}},
    ]);
    let before = playground.records().len();
    let (ids, told) = pieces(&ask(&web, &json!({"calls": calls, "user": "bob"})));
    let end = |at: usize| of(&told, &ids[at], "end")[0];
    let kinds: Vec<&str> = (0..7).map(|at| end(at)["error"]["type"].as_str().unwrap_or("none")).collect();
    let wanted = ["ScriptError", "none", "ParameterValidationError", "ToolNotFoundError", "none", "none", "none"];
    assert_eq!(kinds, wanted);
    assert_eq!((of(&told, &ids[0], "chunk").len(), of(&told, &ids[1], "chunk").len()), (1, 100));
    for hidden in [4, 5] {
        assert_eq!(told.iter().filter(|event| whose(event) == ids[hidden]).count(), 1, "its end alone");
    }
    assert_eq!(end(4)["outputData"].as_array().map(Vec::len), Some(100));
    assert_eq!((&end(5)["outputData"], &end(6)["outputData"]), (&json!({"sum": 3}), &json!({"sum": 4})));
    assert_eq!(end(6)["user"], "bob");
    let mut recorded: Vec<String> =
        playground.records()[before..].iter().map(|record| record["call"].as_str().unwrap().to_owned()).collect();
    let mut ids = ids;
    recorded.sort();
    ids.sort();
    assert_eq!(recorded, ids, "each leaves its record");
}

#[test]
fn a_client_that_leaves_ends_all_calls_of_its_batch() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    sleeper(&playground);
    let web = Web::start(&playground, &[]);
    let calls = json!({"calls": vec![json!({"tool": "esc:sleep"}); 5], "atOnce": 3});
    let mut stream = web.send("POST", "/v1/calls", &["Connection: keep-alive"], &calls.to_string());
    playground.runs("user_scripts/sleep/main.py", 3);
    // One of them is cancelled by its id: it has its end, and the next one begins.
    let told = heard(&mut stream, "asleep");
    let id = told.split("\"call\":\"").last().unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(web.ask("DELETE", &format!("/v1/calls/{id}"), &[], "").status, 202);
    wait_for("its end", || playground.records().iter().any(|record| record["call"] == id.as_str()));
    playground.runs("user_scripts/sleep/main.py", 3);
    let before = playground.records().len();
    drop(stream);
    within(Duration::from_secs(15), "all end", || playground.records().len() >= before + 3);
    playground.runs("user_scripts/sleep/main.py", 0);
    assert!(playground.records().iter().all(|record| record["outcome"] == "CancelledError"));
}

#[test]
fn a_batch_is_held_to_what_each_call_is_held_to() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    playground.tool("other", "python", "print(1)\n", json!({}));
    let callers = caller("bob", "") + &caller("alice", "at_once = 1\ncalls_per_minute = 6\n");
    write_callers(&playground, &callers.replace('*', "esc:add"));
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let ask = |body: &str, more: &[&str]| web.ask("POST", "/v1/calls", &[&[alice.as_str()], more].concat(), body);
    let add = json!({"tool": "esc:add", "arguments": {"a": 1, "b": 2}});
    let (ids, told) = pieces(&ask(&json!({"calls": [add, {"tool": "esc:other"}, add, add]}).to_string(), &[]));
    let kinds = |ids: &[String], told: &[(String, Value)]| -> Vec<String> {
        let end = |id: &String| of(told, id, "end")[0]["error"]["type"].as_str().unwrap_or("none").to_owned();
        ids.iter().map(end).collect()
    };
    assert_eq!(kinds(&ids, &told), ["none", "ToolNotFoundError", "none", "none"], "one at a time, and no hang");
    let (ids, told) = pieces(&ask(&json!({"calls": [add, add, add, add]}).to_string(), &[]));
    let refused = kinds(&ids, &told).iter().filter(|kind| *kind == "RateLimitError").count();
    assert_eq!(refused, 2, "each counts");
    // A body that cannot be read counts as well, so another asks.
    assert_eq!(ask("[]", &[]).status, 429);
    let ask = |body: &str, more: &[&str]| web.ask("POST", "/v1/calls", &[&[bob.as_str()], more].concat(), body);
    for (body, more, words) in [
        ("{\"calls\": []}", &[][..], "1 to 64 calls"),
        ("{\"calls\": [{\"tool\": \"esc:add\", \"tool\": \"esc:other\"}]}", &[], "not one JSON document"),
        ("{\"calls\": [{\"tool\": \"esc:add\", \"sudo\": 1}]}", &[], "unknown field `sudo`"),
        ("{\"calls\": [{\"tool\": \"esc:add\"}], \"atOnce\": 0}", &[], "atOnce must be 1 to 64"),
        ("[]", &[], "The body is {"),
        ("[[{\"tool\": \"esc:add\"}], null, null]", &[], "expected an object"),
        ("{\"calls\": [[\"esc:add\", {\"a\": 1, \"b\": 2}, null, false]]}", &[], "expected an object"),
        ("{\"calls\": [{\"tool\": \"esc:add\"}]}", &["Idempotency-Key: k"], "stands for one call"),
    ] {
        let reply = ask(body, more);
        assert!(reply.status == 400 && reply.body.contains(words), "{body}: {reply:?}");
    }
    let act = |body: &str| web.ask("POST", "/v1/actions", &[&bob], body).status;
    assert_eq!([act("[\"no action\", null]"), act("{\"text\": \"no action\"}")], [400, 200]);
    let reply = web.ask("POST", "/v1/calls", &[], "{}");
    assert_eq!(reply.status, 401);
}

/// Each call has copies of whose it is: 64 of a long one would take the host's memory.
#[test]
fn whose_a_request_is_has_a_bound() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let web = Web::start(&playground, &[]);
    for (length, long) in [(1000, false), (1001, true)] {
        let user = "\u{e4}".repeat(length);
        for (path, body) in [
            ("/v1/calls", json!({"user": user, "calls": [{"tool": "esc:none"}]})),
            ("/v1/actions", json!({"user": user, "text": "no action"})),
            ("/v1/tools/esc:none/calls", json!({"user": user, "arguments": {}})),
        ] {
            let reply = web.ask("POST", path, &[], &body.to_string());
            let refused = (reply.status == 400, reply.body.contains("user must be at most 1000 characters"));
            assert_eq!(refused, (long, long), "{path} {length}: {}", reply.status);
        }
    }
}

/// What a tool says of itself counts for whoever may be taken for its caller, too.
#[test]
fn who_acts_as_another_is_shown_what_that_one_is() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let chatty = "import sys\nprint('a line', file=sys.stderr, flush=True)\nprint(1)\n";
    playground.tool("quiet", "python", chatty, json!({"presentation": {"hidden": true}}));
    playground.tool("chatty", "python", chatty, json!({}));
    playground.tool("later", "python", chatty, json!({"execution": {"mode": "async"}}));
    let gate = "[[caller]]\nname = \"gate\"\nwhy = \"w\"\nact_as = [\"alice\"]\n".to_owned();
    write_callers(&playground, &(gate + &caller("alice", "")));
    let (web, [gate, alice]) = &Web::for_callers(&playground, ["gate", "alice"]);
    let listed = |who: &str, query: &str| {
        let reply = web.get(&format!("/v1/tools{query}"), &[who]);
        (reply.status, reply.json()["tools"].as_array().map_or(0, |tools| tools.len()))
    };
    assert_eq!((listed(gate, ""), listed(alice, "")), ((200, 0), (200, listed(gate, "?as=alice").1)));
    assert!(listed(gate, "?as=alice").1 > 0, "those of the caller that it may act as");
    assert_eq!([listed(gate, "?as=bob").0, listed(alice, "?as=gate").0, listed(alice, "?as=alice").0], [403, 403, 200]);
    for who in [gate, alice] {
        let lines = |tool: &str| {
            let body = json!({"user": "alice", "calls": [{"tool": tool}]}).to_string();
            let reply = web.ask("POST", "/v1/calls", &[who], &body);
            let told = events(&reply.body);
            assert_eq!(told[told.len() - 2].1["success"], true, "{reply:?}");
            told.iter().filter(|(name, _)| name == "log").count()
        };
        assert_eq!((lines("esc:quiet"), lines("esc:chatty")), (0, 1), "and the control");
        let called = |tool: &str| web.call(tool, &json!({"user": "alice", "arguments": {}}), &[who]).status;
        assert_eq!([called("esc:later"), called("esc:chatty")], [202, 200]);
    }
}
