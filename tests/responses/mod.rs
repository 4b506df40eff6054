//! The Responses API: its streams keep the rules of Open Responses, however calls end.

mod batches;
mod history;
pub mod models;
mod random;
mod requests;
mod shapes;
mod stored;

use crate::http::{Reply, Web, calls::events};
use crate::prelude::*;
use std::sync::LazyLock;

pub type Events = Vec<(String, Value)>;

/// The events of a whole stream.
pub fn told(reply: &Reply) -> Events {
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/event-stream")),
        "{reply:?}"
    );
    let body = reply.body.strip_suffix("data: [DONE]\n\n");
    events(body.unwrap_or_else(|| panic!("no end: {reply:?}")))
}

/// A schema for each type of event, item and tool: `open_responses.json` says whose.
static SCHEMAS: LazyLock<BTreeMap<String, jsonschema::Validator>> = LazyLock::new(|| {
    let all: Value = serde_json::from_str(include_str!("open_responses.json")).unwrap();
    let mut schemas = BTreeMap::new();
    for family in ["events", "items", "tools"] {
        for (kind, schema) in all[family].as_object().unwrap() {
            let mut schema = schema.clone();
            schema["$defs"] = all["$defs"].clone();
            let validator = jsonschema::validator_for(&schema).unwrap();
            schemas.insert(format!("{family} {kind}"), validator);
        }
    }
    schemas
});

/// Holds a value to the schema of its type, where that is not this host's own.
fn fits(family: &str, value: &Value) {
    let kind = value["type"].as_str().unwrap();
    if kind.starts_with("toolhost:") {
        return;
    }
    let schema = SCHEMAS.get(&format!("{family} {kind}"));
    let schema = schema.unwrap_or_else(|| panic!("{family} know no {kind}"));
    let faults: Vec<String> = schema
        .iter_errors(value)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{kind}: {faults:?} in {value}");
}

/// Holds a stream to the rules and its events to their schemas, and returns the response at its end.
pub fn check(told: &Events) -> Value {
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    let (mut open, mut done): (Option<String>, Vec<Value>) = (None, Vec::new());
    let (mut ids, mut texts) = (BTreeSet::new(), BTreeMap::<String, String>::new());
    for (at, (name, data)) in told.iter().enumerate() {
        fits("events", data);
        let output = data["response"]["output"].as_array().into_iter().flatten();
        output
            .chain(data.get("item"))
            .for_each(|item| fits("items", item));
        let tools = data["response"]["tools"].as_array().into_iter().flatten();
        tools.for_each(|tool| fits("tools", tool));
        assert_eq!(
            (&data["type"], &data["sequence_number"]),
            (&json!(name), &json!(at))
        );
        let is_last = at + 1 == told.len();
        let ends = [
            "response.completed",
            "response.failed",
            "response.incomplete",
        ];
        assert_eq!(
            ends.contains(&&**name),
            is_last,
            "one end, and it is last: {names:?}"
        );
        if at < 2 || is_last || name == "error" {
            assert!(open.is_none(), "{name} inside an item");
            continue;
        }
        assert_eq!(data["output_index"], done.len(), "{name}: dense");
        let id = |item: &Value| item["id"].as_str().unwrap().to_owned();
        match &**name {
            "response.output_item.added" => {
                assert!(open.is_none(), "added inside another item");
                assert_eq!(data["item"]["status"], "in_progress");
                open = Some(id(&data["item"]));
                assert!(ids.insert(id(&data["item"])), "an id of its own");
            }
            "response.output_item.done" => {
                assert_eq!(open.take(), Some(id(&data["item"])));
                assert_ne!(data["item"]["status"], "in_progress");
                done.push(data["item"].clone());
                texts.clear();
            }
            _ => {
                assert_eq!(data["item_id"].as_str(), open.as_deref(), "{name}");
                let (family, step) = name.rsplit_once('.').unwrap_or((name, ""));
                match (step, data["delta"].as_str()) {
                    ("delta", Some(delta)) => *texts.entry(family.to_owned()).or_default() += delta,
                    ("done", _) if family != "response.content_part" => {
                        let all = ["text", "arguments", "code", "input"];
                        let whole = all
                            .iter()
                            .find_map(|member| data[*member].as_str())
                            .unwrap();
                        assert_eq!(texts.remove(family).unwrap_or_default(), whole, "{name}");
                    }
                    _ => {}
                }
            }
        }
    }
    let response = &told.last().unwrap().1["response"];
    assert_eq!(
        response["output"],
        json!(done),
        "what is done, in its order"
    );
    response.clone()
}

/// A stream as `event index`, without `response.` and the numbers, which `check` looks at.
pub fn trace(told: &Events) -> Vec<String> {
    let line = |(name, data): &(String, Value)| {
        let name = name.trim_start_matches("response.");
        let kind = data["item"]["type"].as_str().map(|kind| {
            format!(
                " {kind} {}",
                data["item"]["status"].as_str().unwrap_or_default()
            )
        });
        let index = data["output_index"]
            .as_u64()
            .map(|index| format!(" #{index}"));
        format!(
            "{name}{}{}",
            index.unwrap_or_default(),
            kind.unwrap_or_default()
        )
    };
    told.iter().map(line).collect()
}

/// The calls of a turn: tool and arguments of each.
pub fn turn(calls: &[(&str, Value)]) -> Value {
    let calls = calls.iter().enumerate().map(|(at, (tool, arguments))| {
        json!({"type": "function_call", "call_id": format!("call_{at}"), "name": tool,
            "arguments": arguments.to_string()})
    });
    json!({"calls": calls.collect::<Vec<_>>()})
}

pub fn batch(web: &Web, body: &Value) -> Events {
    let mut body = body.clone();
    body["stream"] = json!(true);
    told(&web.ask("POST", "/v1/tool-batches", &[], &body.to_string()))
}
