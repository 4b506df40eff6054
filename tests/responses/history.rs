//! What a model says in a form of its own, and what was said before a request: nothing of it is
//! merged, emptied or put elsewhere without a word.

use super::check;
use super::models::{Model, Said, body, chunk, run, says};
use crate::http::adder;
use crate::prelude::*;

fn piece(id: &Value, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn numbered(mut piece: Value, index: u64) -> Value {
    piece["index"] = json!(index);
    piece
}

/// A stream whose chunks have one list of pieces each.
fn streams(chunks: &[Vec<Value>]) -> Said {
    let chunks = chunks
        .iter()
        .map(|list| chunk(&json!({ "tool_calls": list }), None));
    Said::Stream(chunks.collect::<String>() + &chunk(&json!({}), Some("tool_calls")))
}

fn whole(calls: [Value; 2]) -> Said {
    let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    Said::Raw(
        "200 OK\r\ncontent-type: application/json".to_owned(),
        json!({"choices": [choice], "usage": null}).to_string(),
    )
}

/// Servers repeat numbers, ids and names, and leave them out.
#[test]
fn each_call_of_a_model_is_its_own_whatever_its_server_repeats() {
    const ADD: &str = "esc__add";
    const SUMS: [&str; 2] = [r#"{"a":1,"b":2}"#, r#"{"a":3,"b":4}"#];
    let (none, x) = (Value::Null, json!("x"));
    let both = |id: &Value| SUMS.map(|sum| piece(id, ADD, sum));
    let second = || vec![numbered(piece(&json!("y"), ADD, SUMS[1]), 1)];
    let [first_half, last_half] = [&SUMS[0][..5], &SUMS[0][5..]];
    let again = |part: &str| vec![numbered(piece(&x, ADD, part), 0)];
    let nulls = [
        "data: {\"choices\": null, \"usage\": null, \"error\": null}\n\n".to_owned(),
        chunk(&json!({"tool_calls": again(SUMS[0])}), None),
        chunk(&json!({"tool_calls": [{"index": 0, "id": null, "function": null}]}), None),
        chunk(&json!({"content": null, "tool_calls": second()}), None),
        chunk(&json!({"tool_calls": null}), Some("tool_calls")),
        "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 10.0, \"completion_tokens\": null}}\n\n"
            .to_owned(),
    ];
    let cases = [
        ("a whole completion, one id", whole(both(&x))),
        ("a whole completion, empty ids", whole(both(&json!("")))),
        ("a whole completion, no ids", whole(both(&none))),
        ("one list, no numbers", streams(&[both(&none).to_vec()])),
        (
            "two lists, no numbers",
            streams(&both(&none).map(|call| vec![call])),
        ),
        (
            "one number and id",
            streams(&both(&x).map(|call| vec![numbered(call, 0)])),
        ),
        (
            "a name in pieces",
            streams(&[
                vec![piece(&none, "esc_", "")],
                vec![piece(&none, "_add", "")],
                vec![json!({"function": {"arguments": first_half}})],
                vec![json!({"function": {"arguments": last_half}})],
                vec![piece(&none, ADD, SUMS[1])],
            ]),
        ),
        (
            "a name each time",
            streams(&[again(""), again(first_half), again(last_half), second()]),
        ),
        ("nulls and fractions", Said::Stream(nulls.concat())),
    ];
    let names = cases.each_ref().map(|(what, _)| *what);
    let script = cases
        .into_iter()
        .flat_map(|(_, said)| [said, says(&["done"])]);
    let model = Model::new(script.collect());
    let (_playground, web) = model.host(adder, "");
    for what in names {
        let response = check(&run(&web, &body(json!("go"))));
        let output = response["output"].as_array().unwrap().iter();
        let calls = output.filter(|item| item["type"] == "mcp_call");
        let mut sums: Vec<&str> = calls.filter_map(|item| item["output"].as_str()).collect();
        sums.sort_unstable();
        assert_eq!(sums, [r#"{"sum":3}"#, r#"{"sum":7}"#], "{what}: {response}");
        if what == "nulls and fractions" {
            assert_eq!(response["usage"]["input_tokens"], 20, "{response}");
        }
    }
}
