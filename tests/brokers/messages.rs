//! What comes in a message, and what goes back: each request has one answer of its own, whatever it
//! holds.

use super::{Node, Raw, Served, serving, unique, world};
use crate::http::write_callers;
use crate::prelude::*;
use lapin::types::AMQPValue;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn text(body: &Value) -> &str {
    assert_eq!(body["error"], Value::Null, "{body}");
    body["response"].as_str().unwrap()
}

fn refusal(body: &Value) -> String {
    assert_eq!(
        (&body["error"]["type"], &body["response"]),
        (&json!("tool-service-error"), &json!("")),
        "{body}"
    );
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn each_request_has_one_answer_of_its_own_whole_or_in_parts_and_its_trace() {
    let Some((_node, playground, _, host, mut raw)) = serving("messages", |_| ()).await else {
        return;
    };
    // The control.
    raw.call("größe", "echo", json!({"text": "größer 😀"}))
        .await;
    assert_eq!(text(&raw.answer("größe").await), "{\"text\":\"größer 😀\"}");
    // More at once than may run.
    for n in 0..24 {
        raw.call(&format!("n{n}"), "echo", json!({"n": n, "seconds": 0.1}))
            .await;
    }
    let mut answers = BTreeMap::new();
    for _ in 0..24 {
        let (id, body) = raw.reply().await;
        assert_eq!(
            answers.insert(String::from_utf8(id).unwrap(), text(&body).to_owned()),
            None,
            "a second answer"
        );
    }
    for n in 0..24 {
        let answer: Value = serde_json::from_str(&answers[&format!("n{n}")]).unwrap();
        assert_eq!(answer["n"], n, "somebody else's answer");
    }
    // An id is bytes, and copied so. Two requests of one id are two.
    for _ in 0..2 {
        let body =
            json!({"config": "{\"tool\": \"esc:echo\"}", "user": "alice", "more": [1]}).to_string();
        raw.send(
            Some(AMQPValue::LongString(vec![0xff, 0, b'x'].into())),
            body.as_bytes(),
        )
        .await;
    }
    for _ in 0..2 {
        let (id, body) = raw.reply().await;
        assert_eq!(
            (id, text(&body)),
            (vec![0xff, 0, b'x'], "{}"),
            "absent arguments are none"
        );
    }
    raw.ask(
        "s",
        &json!({"tool": "esc:echo", "stream": true}),
        &json!({"a": 1}),
    )
    .await;
    assert_eq!(
        text(&raw.answer("s").await),
        "{\"a\":1}",
        "a tool without parts"
    );
    // The end of a stream is empty, or what the tool answers beside its parts.
    let asked = |tool: &str, stream: bool| json!({"tool": format!("esc:{tool}"), "stream": stream});
    for (tool, arguments, parts) in [
        ("both", json!({}), &["one ", "two", "{\"rows\":3}"][..]),
        ("count", json!({"upto": 2}), &["0 ", "1 ", "done", ""]),
    ] {
        raw.ask(tool, &asked(tool, true), &arguments).await;
        for (n, part) in parts.iter().enumerate() {
            let (id, body) = raw.reply().await;
            let told = (id.as_slice(), text(&body), body["end_of_stream"] == true);
            assert_eq!(
                told,
                (tool.as_bytes(), *part, n + 1 == parts.len()),
                "{tool}: {body}"
            );
        }
    }
    // The control: who wants no parts gets the whole.
    for (tool, arguments, whole) in [
        ("both", json!({}), "{\"rows\":3}"),
        ("count", json!({"upto": 2}), "0 1 done"),
    ] {
        raw.ask(tool, &asked(tool, false), &arguments).await;
        assert_eq!(text(&raw.answer(tool).await), whole);
    }
    let body = json!({"config": "{\"tool\": \"esc:echo\"}"}).to_string();
    let long = |text: &str| AMQPValue::LongString(text.into());
    // The trace that a message is part of becomes that of its call.
    for (id, parent) in [
        ("told", Some(format!("00-{TRACE}-b7ad6b7169203331-01"))),
        ("untold", None),
        ("wrong", Some(format!("00-{TRACE}-0000000000000000-01"))),
    ] {
        let headers = parent
            .iter()
            .map(|parent| ("traceparent", long(parent)))
            .chain([("id", long(id))]);
        raw.send_with(headers, body.as_bytes()).await;
        assert_eq!(raw.answer(id).await["response"], "{}");
    }
    // A number is no context either, and its message is a request all the same.
    raw.send_with(
        [
            ("id", long("number")),
            ("traceparent", AMQPValue::LongInt(5)),
        ],
        body.as_bytes(),
    )
    .await;
    assert_eq!(raw.answer("number").await["response"], "{}");
    raw.is_quiet().await;
    drop(host);
    let records = playground.records();
    let trace = |id: &str| {
        records
            .iter()
            .find(|record| record["transaction"] == id)
            .unwrap()["trace"]
            .as_str()
    };
    assert_eq!(
        [
            trace("told"),
            trace("untold"),
            trace("wrong"),
            trace("number")
        ],
        [Some(TRACE), None, None, None]
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn what_cannot_be_run_is_answered_and_recorded() {
    let other =
        |playground: &Playground| _ = playground.tool("other", "python", "print(1)\n", json!({}));
    let Some((_node, playground, _, host, mut raw)) = serving("refused", other).await else {
        return;
    };
    let inside = |arguments: &str| {
        json!({"config": "{\"tool\": \"esc:echo\"}", "arguments": arguments}).to_string()
    };
    let config = |config: Value| json!({"config": config.to_string()}).to_string();
    let asked = json!({"tool": "esc:echo"});
    for (body, wanted) in [
        (String::new(), "not a JSON object"),
        ("[]".to_owned(), "not a JSON object"),
        ("{\"config\": {}}".to_owned(), "not a JSON object"),
        ("[".repeat(200_000), "not a JSON object"),
        (
            format!("{{\"x\": {}", "[".repeat(200_000)),
            "not a JSON object",
        ),
        (" ".repeat(5_000_001), "longer than 5000000"),
        (inside("{\"x\": NaN}"), "a JSON value is needed here"),
        (inside("{\"x\": \"\\ud800\"}"), "surrogate"),
        (inside("{\"x\": 1, \"x\": 2}"), "Input"),
        (inside("[1]"), "ParameterValidationError"),
        (config(json!({})), "must name one of them"),
        (
            config(json!({"tool": "esc:other"})),
            "does not have the tool",
        ),
        (config(json!({"tool": 1})), "must be a text"),
        (
            config(json!({"tool": "esc:echo", "stream": "yes"})),
            "'stream'",
        ),
        (
            config(json!({"tool": "esc:echo", "timeoutMs": "x"})),
            "'timeoutMs'",
        ),
        (config(json!([])), "config must be"),
        (
            config(json!({"tool": "esc:echo", "x": "x".repeat(65_536)})),
            "The config is longer than 65536 bytes",
        ),
    ] {
        raw.send(Some(AMQPValue::LongString("bad".into())), body.as_bytes())
            .await;
        let told = refusal(&raw.answer("bad").await);
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
    raw.call("long", "echo", json!({"long": 5_500_000})).await;
    assert!(refusal(&raw.answer("long").await).contains("larger than a message may be"));
    raw.ask(
        "late",
        &json!({"tool": "esc:echo", "timeoutMs": 300}),
        &json!({"seconds": 30}),
    )
    .await;
    assert!(refusal(&raw.answer("late").await).contains("TimeoutError"));
    // There is no one to answer: it is not run, and reported.
    let body = json!({"config": asked.to_string(), "arguments": "{\"secret\": 1}"}).to_string();
    raw.send(None, body.as_bytes()).await;
    raw.send(
        Some(AMQPValue::LongString("i".repeat(2000).into())),
        body.as_bytes(),
    )
    .await;
    host.says("is left unanswered: it has no id", 2);
    raw.is_quiet().await;
    let records = playground.records();
    let of = |id: &str| {
        records
            .iter()
            .filter(|record| record["transaction"] == id)
            .count()
    };
    assert_eq!(
        (of("bad"), of("long"), of("late")),
        (17, 1, 1),
        "each by its id: {records:#?}"
    );
    let unasked = records.iter().filter(|record| {
        record["message"]
            .as_str()
            .is_some_and(|it| it.contains("has no id"))
    });
    assert_eq!(
        unasked
            .filter(|record| record["decision"] == "refused")
            .count(),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn the_caller_is_the_entrys() {
    let callers = "[[caller]]\nname = \"trustgraph\"\nwhy = \"a test\"\ntools = [\"esc:echo\"]\n\
                   [[caller]]\nname = \"alice\"\nwhy = \"a test\"\ntools = [\"esc:write\"]\n";
    let write = |playground: &Playground| write_callers(playground, callers);
    let Some((_node, playground, _, host, mut raw)) = serving("callers", write).await else {
        return;
    };
    host.says("esc:write cannot be called now by trustgraph", 1);
    raw.call("1", "echo", json!({"a": 1})).await;
    assert_eq!(text(&raw.answer("1").await), "{\"a\":1}");
    let body = json!({"user": "alice", "config": "{\"tool\": \"esc:write\"}", "arguments": "{}"})
        .to_string();
    raw.send(Some(AMQPValue::LongString("2".into())), body.as_bytes())
        .await;
    assert!(refusal(&raw.answer("2").await).contains("ToolNotFoundError"));
    wait_for("the records", || playground.records().len() >= 2);
    let records = playground.records();
    assert!(
        records.iter().all(|record| record["user"] == "trustgraph"),
        "{records:#?}"
    );
}

/// An answer to a reply would be one more reply, and so on where two services listen to each other.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn what_is_a_reply_is_not_answered_and_what_is_null_is_nothing() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("circle"));
    let entry = format!(
        "[[broker]]\nurl = \"{}\"\nservice = \"{service}\"\ntools = [\"esc:echo@1\"]\ncaller = \
        \"trustgraph\"\n",
        node.url()
    );
    let host = Served::by(&playground, "one", &entry, &[]);
    host.says("is connected", 1);
    let mut raw = Raw::to(&node.url(), &service).await;
    let id = || Some(AMQPValue::LongString("1".into()));
    let nothing = json!({"user": null, "config": null, "arguments": null});
    for control in [json!({}), nothing] {
        raw.send(id(), control.to_string().as_bytes()).await;
        assert_eq!(
            text(&raw.answer("1").await),
            "{}",
            "the one tool of this service: {control}"
        );
    }
    let error = json!({"type": "tool-service-error", "message": "no"});
    for reply in [
        json!({"error": error, "response": "", "end_of_stream": true}),
        json!({"error": null, "response": "part", "end_of_stream": false}),
        json!({"response": "", "end_of_stream": null}),
    ] {
        raw.send(id(), reply.to_string().as_bytes()).await;
    }
    host.says("is left unanswered: it is a reply itself", 3);
    raw.is_quiet().await;
    let ran = playground
        .records()
        .iter()
        .filter(|record| record["decision"] == "allowed")
        .count();
    assert_eq!(ran, 3, "two controls, and the one that is quiet");
    // What else is not as the operator has it.
    for (body, wanted) in [
        (
            json!({"user": "u".repeat(1001)}),
            "user must be at most 1000 characters",
        ),
        (
            json!({"config": "{\"tool\": \"esc:echo@2\"}"}),
            "This service offers that tool only as 'esc:echo@1'",
        ),
    ] {
        raw.send(id(), body.to_string().as_bytes()).await;
        let told = refusal(&raw.answer("1").await);
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn a_request_for_a_disabled_tool_is_refused() {
    let Some((_node, playground, _, _host, mut raw)) = serving("disabled", |_| ()).await else {
        return;
    };
    let verb = |words: &[&str]| assert_eq!(playground.cli(words).code, Some(0), "{words:?}");
    for id in ["before", "disabled", "after"] {
        match id {
            "disabled" => verb(&["disable", "esc:*", "--why", "w"]),
            "after" => verb(&["enable", "esc:*"]),
            _ => {}
        }
        raw.call(id, "echo", json!({"n": 1})).await;
        let answer = raw.answer(id).await;
        if id == "disabled" {
            let refused = refusal(&answer);
            assert!(refused.contains("The operator disabled"), "{refused}");
        } else {
            assert_eq!(text(&answer), "{\"n\":1}");
        }
    }
}
