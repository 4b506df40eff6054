//! Batches: several calls in one request, at once, and told one after the other.

use super::calls::events;
use super::mcp::SLEEPER;
use super::{Reply, adder, caller, rest, served, served_to, sleeper, write_callers};
use crate::prelude::*;

/// Whose event it is: the call that it names, or of an end the outcome's.
fn whose(told: &(String, Value)) -> &str {
    told.1["call"]
        .as_str()
        .or(told.1["id"].as_str())
        .unwrap_or_default()
}

/// The calls' ids in their order, and the events between `batch` and `done`: each call's in one
/// piece, with one end.
fn pieces(reply: &Reply) -> (Vec<String>, Vec<(String, Value)>) {
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/event-stream")),
        "{reply:?}"
    );
    let mut told = events(&reply.body);
    let (first, last) = (told.remove(0), told.pop().unwrap());
    assert_eq!((&*first.0, &*last.0), ("batch", "done"));
    let ids = first.1["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["call"].as_str().unwrap().to_owned());
    let ids: Vec<String> = ids.collect();
    let mut order: Vec<&str> = told.iter().map(whose).collect();
    order.dedup();
    assert_eq!(order.len(), ids.len(), "each in one piece: {order:?}");
    for id in &ids {
        let own: Vec<&str> = told
            .iter()
            .filter(|told| whose(told) == id)
            .map(|(name, _)| name.as_str())
            .collect();
        let ends = own.iter().filter(|name| **name == "end").count();
        assert_eq!((ends, own.last()), (1, Some(&"end")));
        assert!(own.len() == 1 || own[0] == "start", "{own:?}");
    }
    (ids, told)
}

fn of<'t>(told: &'t [(String, Value)], id: &str, name: &str) -> Vec<&'t Value> {
    told.iter()
        .filter(|event| event.0 == name && whose(event) == id)
        .map(|(_, data)| data)
        .collect()
}

/// The types of the calls' errors, or `none`.
fn kinds((ids, told): &(Vec<String>, Vec<(String, Value)>)) -> Vec<String> {
    let kind = |id: &String| {
        of(told, id, "end")[0]["error"]["type"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    };
    ids.iter().map(kind).collect()
}

#[test]
fn calls_of_a_batch_run_at_once_speak_in_turn_and_whose_they_are_has_a_bound() {
    let (playground, web) = served(|it| {
        adder(it);
        let chunks = "import json, os, sys, time\nmine = json.load(sys.stdin)['name']\nwhile not \
                      os.path.exists(os.path.dirname(__file__) + '/go'): time.sleep(0.01)\nfor n in \
                      range(100):\n    print('@toolhost ' + json.dumps({'chunk': f'{mine} {n}'}), \
                      flush=True)\n    time.sleep(0.01)\nprint('@toolhost {\"end\": true}')\n";
        it.tool("chunks", "python", chunks, json!({}));
        let dies =
            "import os\nprint('@toolhost {\"chunk\": 1}', flush=True)\nos.kill(os.getpid(), 9)\n";
        it.tool("dies", "python", dies, json!({}));
        it.tool(
            "quiet",
            "python",
            chunks,
            json!({"presentation": {"hidden": true}}),
        );
        fs::write(it.path("user_scripts/quiet/go"), "").unwrap();
        it.policy("chunks", "esc:chunks", "[limits]\ntimeout_ms = 120_000\n");
    });
    let ask = |body: Value| pieces(&web.ask("POST", "/v1/calls", &[], &body.to_string()));
    let chunks = |name: &str| json!({"tool": "esc:chunks", "arguments": {"name": name}});
    let (ids, told) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(json!({"calls": [chunks("a"), chunks("b"), chunks("c")]})));
        playground.runs("user_scripts/chunks/main.py", 3);
        fs::write(playground.path("user_scripts/chunks/go"), "").unwrap();
        asked.join().unwrap()
    });
    for (id, name) in ids.iter().zip(["a", "b", "c"]) {
        let texts: Value = of(&told, id, "chunk")
            .iter()
            .map(|data| data["text"].clone())
            .collect();
        let all: Value = (0..100).map(|n| json!(format!("{name} {n}"))).collect();
        assert_eq!(
            (&texts, &of(&told, id, "end")[0]["outputData"]),
            (&all, &all),
            "in order, and nothing lost"
        );
    }
    // One that dies after its first part, one that is refused, one that is not there, two that are
    // hidden.
    let before = playground.records().len();
    let both = ask(json!({"user": "bob", "calls": [
        {"tool": "esc:dies"},
        chunks("a"),
        {"tool": "esc:add", "arguments": {"a": "x"}},
        {"tool": "esc:none"},
        {"tool": "esc:quiet", "arguments": {"name": "q"}},
        {"tool": "esc:add", "arguments": "{\"a\": 1, \"b\": 2}", "hidden": true},
        {"tool": "esc:add", "arguments": {"a": 1, "b": 3}},
    ]}));
    let wanted = [
        "ScriptError",
        "none",
        "ParameterValidationError",
        "ToolNotFoundError",
        "none",
        "none",
        "none",
    ];
    assert_eq!(kinds(&both), wanted);
    let (mut ids, told) = both;
    let end = |at: usize| of(&told, &ids[at], "end")[0];
    assert_eq!(
        (
            of(&told, &ids[0], "chunk").len(),
            of(&told, &ids[1], "chunk").len()
        ),
        (1, 100)
    );
    for hidden in [4, 5] {
        assert_eq!(
            told.iter()
                .filter(|event| whose(event) == ids[hidden])
                .count(),
            1,
            "its end alone"
        );
    }
    assert_eq!(end(4)["outputData"].as_array().map(Vec::len), Some(100));
    assert_eq!(
        (&end(5)["outputData"], &end(6)["outputData"]),
        (&json!({"sum": 3}), &json!({"sum": 4}))
    );
    assert_eq!(end(6)["user"], "bob");
    let records = playground.records().split_off(before);
    let mut recorded: Vec<&str> = records
        .iter()
        .map(|record| record["call"].as_str().unwrap())
        .collect();
    recorded.sort_unstable();
    ids.sort();
    assert_eq!(recorded, ids, "each leaves its record");
    // Each call has copies of whose it is: 64 of a long one would take the host's memory.
    for (length, long) in [(128, false), (129, true)] {
        let user = "\u{e4}".repeat(length);
        for (path, body) in [
            (
                "/v1/calls",
                json!({"user": user, "calls": [{"tool": "esc:none"}]}),
            ),
            ("/v1/actions", json!({"user": user, "text": "no action"})),
            (
                "/v1/tools/esc:none/calls",
                json!({"user": user, "arguments": {}}),
            ),
        ] {
            let reply = web.ask("POST", path, &[], &body.to_string());
            let refused = (
                reply.status == 400,
                reply.body.contains("user must be at most 256 bytes"),
            );
            assert_eq!(refused, (long, long), "{path} {length}: {}", reply.status);
        }
    }
}

#[test]
fn a_batch_is_held_to_what_each_call_is_held_to() {
    let (_playground, web, [alice, bob, carol]) = served_to(["alice", "bob", "carol"], |it| {
        adder(it);
        it.tool("other", "python", "print(1)\n", json!({}));
        let callers = caller("bob", "")
            + &caller("alice", "at_once = 1\n")
            + &caller("carol", "calls_per_minute = 1\n");
        write_callers(it, &callers.replace('*', "esc:add"));
    });
    let ask = |who: &str, body: &str, more: &[&str]| {
        web.ask("POST", "/v1/calls", &[&[who], more].concat(), body)
    };
    let add = json!({"tool": "esc:add", "arguments": {"a": 1, "b": 2}});
    let batch = |who: &str, calls: Value| {
        kinds(&pieces(&ask(
            who,
            &json!({ "calls": calls }).to_string(),
            &[],
        )))
    };
    let told = batch(&alice, json!([add, {"tool": "esc:other"}, add, add]));
    assert_eq!(
        told,
        ["none", "ToolNotFoundError", "none", "none"],
        "one at a time, and no hang"
    );
    let told = batch(&carol, json!([add, add, add, add]));
    assert_eq!(
        told.iter().filter(|kind| *kind == "RateLimitError").count(),
        3,
        "each counts"
    );
    // A body that cannot be read counts as well, so another asks.
    assert_eq!(ask(&carol, "[]", &[]).status, 429);
    for (body, more, words) in [
        ("{\"calls\": []}", &[][..], "1 to 64 calls"),
        (
            "{\"calls\": [{\"tool\": \"esc:add\", \"tool\": \"esc:other\"}]}",
            &[],
            "not one JSON document",
        ),
        (
            "{\"calls\": [{\"tool\": \"esc:add\", \"sudo\": 1}]}",
            &[],
            "unknown field `sudo`",
        ),
        (
            "{\"calls\": [{\"tool\": \"esc:add\"}], \"atOnce\": 0}",
            &[],
            "atOnce must be 1 to 64",
        ),
        ("[]", &[], "The body is {"),
        (
            "[[{\"tool\": \"esc:add\"}], null, null]",
            &[],
            "expected an object",
        ),
        (
            "{\"calls\": [[\"esc:add\", {\"a\": 1, \"b\": 2}, null, false]]}",
            &[],
            "expected an object",
        ),
    ] {
        let reply = ask(&bob, body, more);
        assert!(
            reply.status == 400 && reply.body.contains(words),
            "{body}: {reply:?}"
        );
    }
    let act = |body: &str| web.ask("POST", "/v1/actions", &[&bob], body).status;
    assert_eq!(
        [
            act("[\"no action\", null]"),
            act("{\"text\": \"no action\"}")
        ],
        [400, 200]
    );
    assert_eq!(web.ask("POST", "/v1/calls", &[], "{}").status, 401);
}

/// What a tool says of itself counts for whoever may be taken for its caller, too.
#[test]
fn who_acts_as_another_is_shown_what_that_one_is_and_ends_what_it_called() {
    let (playground, web, [gate, alice, eve]) = &served_to(["gate", "alice", "eve"], |it| {
        sleeper(it);
        let chatty = "import sys\nprint('a line', file=sys.stderr, flush=True)\nprint(1)\n";
        it.tool(
            "quiet",
            "python",
            chatty,
            json!({"presentation": {"hidden": true}}),
        );
        it.tool("chatty", "python", chatty, json!({}));
        it.tool(
            "later",
            "python",
            chatty,
            json!({"execution": {"mode": "async"}}),
        );
        let gate = "[[caller]]\nname = \"gate\"\nwhy = \"w\"\nact_as = [\"alice\"]\n".to_owned();
        write_callers(
            it,
            &(gate + &caller("alice", "") + "\n" + &caller("eve", "")),
        );
    });
    let listed = |who: &str, query: &str| {
        let reply = web.get(&format!("/v1/tools{query}"), &[who]);
        (
            reply.status,
            reply.json()["tools"]
                .as_array()
                .map_or(0, |tools| tools.len()),
        )
    };
    assert_eq!(
        (listed(gate, ""), listed(alice, "")),
        ((200, 0), (200, listed(gate, "?as=alice").1))
    );
    assert!(
        listed(gate, "?as=alice").1 > 0,
        "those of the caller that it may act as"
    );
    assert_eq!(
        [
            listed(gate, "?as=bob").0,
            listed(alice, "?as=gate").0,
            listed(alice, "?as=alice").0
        ],
        [403, 403, 200]
    );
    for who in [gate, alice] {
        let lines = |tool: &str| {
            let body = json!({"user": "alice", "calls": [{"tool": tool}]}).to_string();
            let told = events(&web.ask("POST", "/v1/calls", &[who], &body).body);
            assert_eq!(told[told.len() - 2].1["success"], true, "{told:?}");
            told.iter().filter(|(name, _)| name == "log").count()
        };
        assert_eq!(
            (lines("esc:quiet"), lines("esc:chatty")),
            (0, 1),
            "and the control"
        );
        let called = |tool: &str| {
            web.call(tool, &json!({"user": "alice", "arguments": {}}), &[who])
                .status
        };
        assert_eq!([called("esc:later"), called("esc:chatty")], [202, 200]);
    }
    // What it called it sees and ends, and others do not.
    let body = json!({"user": "alice", "arguments": {}}).to_string();
    let stream = web.send("POST", "/v1/tools/esc:sleep/calls", &[gate], &body);
    playground.runs(SLEEPER, 1);
    // Its own calls of esc:later, from above, may run still.
    let running = |who: &str| -> Vec<Value> {
        let sleeps = |call: &Value| {
            call["phase"] == "running" && call["tool"].as_str().unwrap().starts_with("esc:sleep")
        };
        web.calls(&[who]).into_iter().filter(sleeps).collect()
    };
    wait_for("it runs", || !running(gate).is_empty());
    let call = running(gate).remove(0);
    assert_eq!(
        (
            &call["caller"],
            running(alice).len(),
            web.calls(&[eve]).len()
        ),
        (&json!("alice"), 1, 0)
    );
    let ends = |who: &str, path: &str| web.ask("DELETE", path, &[who], "").status;
    let path = format!("/v1/calls/{}", call["id"].as_str().unwrap());
    assert_eq!(
        [ends(eve, &path), ends(gate, &path)],
        [404, 202],
        "control: others do not"
    );
    assert!(rest(stream).contains("CancelledError"));
    // One in the background too.
    let begun = web.call(
        "esc:sleep",
        &json!({"user": "alice", "arguments": {}, "mode": "async"}),
        &[gate],
    );
    let place = begun.header("location").unwrap();
    assert_eq!(
        [gate, alice, eve].map(|who| web.get(place, &[who]).status),
        [200, 200, 404]
    );
    assert_eq!(ends(gate, place), 202);
}
