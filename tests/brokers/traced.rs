//! The trace that a message is part of becomes that of its call.

use super::{Node, Raw, Served, unique, world};
use crate::harness::Who;
use lapin::types::AMQPValue;
use serde_json::json;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn a_message_says_the_trace_of_its_call() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("traced"));
    let host = Served::serve(&playground, "one", &node.url(), &service);
    let mut raw = Raw::to(&node.url(), &service).await;
    let body = json!({"config": "{\"tool\": \"esc:echo\"}"}).to_string();
    let text = |text: &str| AMQPValue::LongString(text.into());
    for (id, parent) in [
        ("told", Some(format!("00-{TRACE}-b7ad6b7169203331-01"))),
        ("untold", None),
        ("wrong", Some(format!("00-{TRACE}-0000000000000000-01"))),
    ] {
        let headers = parent.iter().map(|parent| ("traceparent", text(parent))).chain([("id", text(id))]);
        raw.send_with(headers, body.as_bytes()).await;
        assert_eq!(raw.answer(id).await["response"], "{}");
    }
    // A number is no context either, and its message is a request all the same.
    raw.send_with([("id", text("number")), ("traceparent", AMQPValue::LongInt(5))], body.as_bytes()).await;
    assert_eq!(raw.answer("number").await["response"], "{}");
    drop(host);
    let records = playground.records();
    let trace = |id: &str| records.iter().find(|record| record["transaction"] == id).unwrap()["trace"].as_str();
    assert_eq!([trace("told"), trace("untold"), trace("wrong"), trace("number")], [Some(TRACE), None, None, None]);
}
