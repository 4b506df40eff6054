//! Calls: statuses, events while the tool runs, clients that leave, a server that is told to stop.

use super::mcp::{Client, SLEEPER};
use super::{GATE, adder, gated, heard, open_gate, request, rest, served, sleeper};
use crate::prelude::*;

/// The events of a stream: names and data.
pub fn events(body: &str) -> Vec<(String, Value)> {
    let parts = body
        .split("\n\n")
        .filter(|part| part.starts_with("event: "));
    let read = parts.map(|part| {
        let (name, data) = part
            .strip_prefix("event: ")
            .unwrap()
            .split_once("\ndata: ")
            .unwrap();
        (
            name.to_owned(),
            serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")),
        )
    });
    read.collect()
}

const STREAM: &str = "Accept: text/event-stream";

#[test]
fn the_status_says_whether_the_tool_ran_and_a_stream_starts_and_ends_once() {
    let (playground, web) = served(|it| {
        adder(it);
        it.tool("fails", "python", "raise SystemExit(3)\n", json!({}));
        it.tool(
            "long",
            "python",
            "print('\"' + 'x' * 300000 + '\"')\n",
            json!({}),
        );
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["/etc/*"]}}});
        it.tool("asks", "python", "print(1)\n", asks);
        // A line of the tool that looks like one of the stream, and one with characters that a
        // terminal would obey.
        let script = "import os, sys, time\nfor line in ['one', 'event: end', 'data: {}', \
                      '\\x1b[31m\\u202ered']:\n    print(line, file=sys.stderr, flush=True)\n    \
                      time.sleep(0.2)\n    while not os.path.exists(os.path.dirname(__file__) + \
                      '/heard'):\n        time.sleep(0.01)\nprint(json := 7)\n";
        it.tool("tells", "python", script, json!({}));
    });
    let good = json!({"a": 1, "b": 2});
    for (tool, body, status, kind) in [
        ("esc:add", good.clone(), 200, "none"),
        ("esc:add@1.0.0", good.clone(), 200, "none"),
        ("esc%3Aadd", good.clone(), 200, "none"),
        (
            "esc:add",
            json!({"arguments": good.to_string(), "config": "{\"timeoutMs\": 30000}"}),
            200,
            "none",
        ),
        ("esc:fails", json!({}), 200, "ScriptError"),
        (
            "esc:add",
            json!({"a": "x", "b": 2}),
            422,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"arguments": "{\"a\": 1, \"a\": 2}"}),
            422,
            "ParameterValidationError",
        ),
        ("esc:add", json!([1]), 400, "ParameterValidationError"),
        (
            "esc:add",
            json!({"arguments": good, "config": {"tool": "esc:long"}}),
            400,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"arguments": good, "config": []}),
            400,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"arguments": good, "user": 1}),
            400,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"arguments": good, "callback": []}),
            400,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"user": "bob"}),
            422,
            "ParameterValidationError",
        ),
        ("esc:nothing", good.clone(), 404, "ToolNotFoundError"),
        ("esc:add@^9", good.clone(), 404, "VersionMismatchError"),
        ("esc:asks", json!({}), 403, "SecurityError"),
    ] {
        for accept in ["Accept: */*", STREAM] {
            let before = playground.records().len();
            let reply = web.call(tool, &body, &[accept]);
            assert_eq!(reply.status, status, "{tool} {body}: {reply:?}");
            let report = match status == 200 && accept == STREAM {
                true => events(&reply.body).pop().unwrap().1,
                false => reply.json(),
            };
            let seen = report["error"]["type"].as_str().unwrap_or("none");
            assert_eq!(
                (seen, report["success"] == true),
                (kind, kind == "none"),
                "{tool} {body}"
            );
            let records = playground.records().split_off(before);
            assert_eq!(
                (records.len(), &records[0]["call"]),
                (1, &report["id"]),
                "each leaves its record"
            );
        }
    }
    // A member beside `arguments` makes all of it the arguments, and who did not mean that is told.
    for accept in ["Accept: */*", STREAM] {
        let both = json!({"arguments": good, "timeoutMs": 9000});
        let reply = web
            .call("esc:add", &both, &[accept])
            .is(422, "ParameterValidationError");
        let details = reply.json()["error"]["details"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            details.contains("since it holds 'timeoutMs' beside 'arguments'"),
            "{details}"
        );
        let reply = web.call("esc:add", &json!({"a": "x", "b": 2}), &[accept]);
        assert!(
            !reply.body.contains("beside 'arguments'"),
            "the control: {reply:?}"
        );
    }
    for (config, wanted) in [
        ("timeout_ms", 400),
        ("timeout", 400),
        ("timeoutMs", 200),
        ("else", 200),
    ] {
        let reply = web.call(
            "esc:add",
            &json!({"arguments": good, "config": {config: 30_000}}),
            &[],
        );
        assert_eq!(reply.status, wanted, "{config}: {reply:?}");
        assert_eq!(
            reply.body.contains("Did you mean 'timeoutMs'?"),
            wanted == 400,
            "{reply:?}"
        );
    }
    // An answer that is made while it is sent.
    let long = web.call("esc:long", &json!({}), &[]);
    assert_eq!(
        long.json()["outputData"].as_str().map(str::len),
        Some(300_000)
    );
    let long = web.call("esc:long", &json!({}), &[STREAM]);
    assert_eq!(
        events(&long.body).pop().unwrap().1["outputData"]
            .as_str()
            .map(str::len),
        Some(300_000)
    );
    // What a tool says on the way.
    let mut stream = web.send("POST", "/v1/tools/esc:tells/calls", &[STREAM], "{}");
    let first = heard(&mut stream, "one");
    assert!(
        !first.contains("event: end"),
        "the line is heard while the tool runs: {first}"
    );
    fs::write(playground.path("user_scripts/tells/heard"), "").unwrap();
    let rest = rest(stream);
    assert!(!rest.contains(['\u{1b}', '\u{202e}']), "{rest}");
    let reply = web.call(
        "esc:tells",
        &json!({"user": "bob", "arguments": {}}),
        &[STREAM],
    );
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let told = events(&reply.body);
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["start", "log", "log", "log", "log", "end"]);
    assert_eq!(told[2].1["line"], "event: end");
    let (start, end) = (&told[0].1, &told[5].1);
    assert_eq!(
        (&start["id"], &end["outputData"], &end["user"]),
        (&end["id"], &json!(7), &json!("bob"))
    );
}

#[test]
fn a_client_that_leaves_ends_its_calls() {
    let (playground, web) = served(sleeper);
    let leaves = |stream: TcpStream, many: usize| {
        playground.runs(SLEEPER, many);
        let before = playground.records().len();
        drop(stream);
        within(Duration::from_secs(15), "all end", || {
            playground.records().len() >= before + many
        });
        playground.runs(SLEEPER, 0);
    };
    let begun = |accept: &str| {
        web.send(
            "POST",
            "/v1/tools/esc:sleep/calls",
            &[accept, "Connection: keep-alive"],
            "{}",
        )
    };
    leaves(begun("Accept: */*"), 1);
    leaves(begun(STREAM), 1);
    leaves(Client::new(&web, true, &[]).begin("esc__sleep"), 1);
    // More requests follow the first, and are not read yet.
    let mut stream = begun(STREAM);
    stream
        .write_all(
            request("GET", "/healthz", &web.address, &[], "")
                .repeat(500)
                .as_bytes(),
        )
        .unwrap();
    leaves(stream, 1);
    // Of a batch one is cancelled by its id: it has its end, and the next one begins.
    let calls = json!({"calls": vec![json!({"tool": "esc:sleep"}); 5], "atOnce": 3});
    let mut stream = web.send(
        "POST",
        "/v1/calls",
        &["Connection: keep-alive"],
        &calls.to_string(),
    );
    playground.runs(SLEEPER, 3);
    let told = heard(&mut stream, "asleep");
    let id = told
        .split("\"call\":\"")
        .last()
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(
        web.ask("DELETE", &format!("/v1/calls/{id}"), &[], "")
            .status,
        202
    );
    wait_for("its end", || {
        playground
            .records()
            .iter()
            .any(|record| record["call"] == id.as_str())
    });
    leaves(stream, 3);
    assert!(
        playground
            .records()
            .iter()
            .all(|record| record["outcome"] == "CancelledError")
    );
}

#[test]
fn told_to_stop_it_lets_calls_end_and_told_again_it_does_not() {
    for twice in [false, true] {
        let (playground, mut web) = served(|it| [gated(it), adder(it)]);
        let running = web.send(
            "POST",
            "/v1/tools/esc:gate/calls",
            &[],
            "{\"file\": \"end\"}",
        );
        playground.runs(GATE, 1);
        assert_eq!(web.get("/readyz", &[]).status, 200);
        web.signal(Signal::SIGTERM);
        wait_for("it drains", || web.get("/readyz", &[]).status == 503);
        assert_eq!(web.get("/healthz", &[]).status, 200);
        let refused = web.call("esc:add", &json!({"a": 1, "b": 2}), &[]);
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (503, Some("1")),
            "{refused:?}"
        );
        let began = Stopwatch::start();
        match twice {
            true => web.signal(Signal::SIGTERM),
            false => open_gate(&playground, "end"),
        }
        let answer = rest(running);
        let wanted = if twice {
            "CancelledError"
        } else {
            "\"outputData\":\"through\""
        };
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains(wanted),
            "{answer}"
        );
        assert!(
            !twice || began.elapsed() < Duration::from_secs(15),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(web.ended(PATIENCE), Some(143));
        playground.assert_quiet("a stopped server");
        let records = playground.records();
        let outcome = |tool: &str| {
            &records
                .iter()
                .find(|record| record["tool"] == tool)
                .unwrap()["outcome"]
        };
        assert_eq!(
            outcome("esc:gate") == "CancelledError",
            twice,
            "{records:?}"
        );
        assert_eq!(
            outcome("POST /v1/tools/esc:add/calls"),
            "ServiceError",
            "the refused one has its own"
        );
        let record = records
            .iter()
            .find(|record| record["tool"] == "esc:gate")
            .unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        for name in ["version", "digests"] {
            assert!(
                body.contains(&record[name].to_string()) && !record[name].is_null(),
                "{name}: {body}, {record}"
            );
        }
    }
}

#[test]
fn a_models_text_is_acted_on() {
    let (playground, web) = served(adder);
    let act = |body: &Value| web.ask("POST", "/v1/actions", &[], &body.to_string());
    let text = "I add. <ACTION><tool_id>esc:add</tool_id><inputs><input name=\"a\">1</input>\
                    <input name=\"b\">2</input></inputs></ACTION>";
    let reply = act(&json!({"text": text, "user": "bob"}));
    let answer = reply.json();
    assert_eq!(
        (reply.status, &answer["lead"], &answer["dialect"]),
        (200, &json!("I add."), &json!("canonical"))
    );
    let observation = answer["observation"].as_str().unwrap();
    assert!(
        observation.starts_with("<OBSERVATION call_id=\"") && observation.contains("3"),
        "{observation}"
    );
    assert_eq!(
        (&answer["outcome"]["success"], &answer["outcome"]["user"]),
        (&json!(true), &json!("bob"))
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["call"], &record["label"]),
        (&answer["outcome"]["id"], &json!("bob"))
    );
    let none = act(&json!({"text": "nothing to do"})).json();
    assert_eq!(
        (&none["observation"], &none["outcome"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(playground.records().len(), 1, "no call, no record");
    let lost = act(&json!({"text": "<ACTION><tool_id>esc:no</tool_id></ACTION>"}));
    assert_eq!(
        (lost.status, &lost.json()["outcome"]["error"]["type"]),
        (200, &json!("ToolNotFoundError"))
    );
    for bad in [
        json!({}),
        json!({"text": 1}),
        json!({"text": "x", "tool": "y"}),
    ] {
        assert_eq!(act(&bad).status, 400, "{bad}");
    }
}
