//! What a model says in a form of its own, and what was said before a request: nothing of it is
//! merged, emptied or put elsewhere without a word.

use super::models::{Model, Said, asks, body, chunk, run, says};
use super::{check, told};
use crate::http::{Web, adder, heard};
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

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "f", "arguments": ""})
}

fn output(id: &str, output: Value) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": output})
}

/// An item with another member, or without one.
fn with(mut item: Value, name: &str, value: Value) -> Value {
    item[name] = value;
    item
}

#[test]
fn an_item_that_has_not_its_form_or_place_is_refused_with_its_member() {
    let model = Model::new(vec![says(&["yes"])]);
    let (_playground, web) = model.host(|_| {}, "");
    let said = json!({"role": "user", "content": "go"});
    let part = |part: Value| json!([call("a"), output("a", json!([part]))]);
    let shown =
        json!({"type": "code_interpreter_call", "id": "ci_1", "code": "", "status": "completed"});
    for (input, words) in [
        (json!([5]), "input[0]: must be an object"),
        (
            json!([with(said.clone(), "type", json!(5))]),
            "input[0].type: must be a text",
        ),
        (
            json!([with(call("a"), "arguments", json!({"a": 1}))]),
            "input[0].arguments: must be a text",
        ),
        (
            json!([with(call("a"), "name", Value::Null)]),
            "input[0].name: must be a text",
        ),
        (
            json!([with(call("a"), "call_id", json!(5))]),
            "input[0].call_id: must be a text",
        ),
        (json!([call("")]), "input[0].call_id: must not be empty"),
        (
            json!([{"type": "custom_tool_call", "call_id": "a", "name": "f"}]),
            "input[0].input: must be a text",
        ),
        (
            json!([{"type": "local_shell_call", "call_id": "a"}]),
            "input[0].action: must be an object",
        ),
        (json!([shown]), "input[0].tool_call: must be an object"),
        (
            json!([call("a"), output("a", Value::Null)]),
            "input[1].output: must be a text or a list of parts",
        ),
        (
            part(json!({"type": "input_image", "image_url": "http://127.0.0.1:9/x.png"})),
            "input[1].output[0].image_url: send the data itself",
        ),
        (
            part(json!({"type": "input_text", "text": 5})),
            "input[1].output[0].text: must be a text",
        ),
        (
            json!([call("a"), call("a"), output("a", json!("1"))]),
            "Two calls have the call_id a",
        ),
        (
            json!([call("a"), said, output("a", json!("1"))]),
            "No tool output found for function call a.",
        ),
        (
            json!([output("a", json!("1")), call("a")]),
            "input[0].call_id: No tool call found",
        ),
        (
            json!([
                call("a"),
                with(
                    output("a", json!("1")),
                    "type",
                    json!("custom_tool_call_output")
                )
            ]),
            "input[1].type: The output of the call a is a function_call_output.",
        ),
    ] {
        let asked = body(input).to_string();
        let reply = web.ask("POST", "/v1/responses", &[], &asked);
        reply.is(400, &format!("ParameterValidationError: {words}"));
    }
    assert_eq!(model.heard().len(), 0, "the model was not asked");

    // The controls: a member does not make a message a call, and the model is shown all of an output.
    let picture = "data:image/png;base64,iVBORw0KGgo=";
    let parts =
        json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": picture}]);
    let note = with(said, "tool_call", json!({"name": "f"}));
    let shell = json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "b", "action": {"type": "exec", "command": ["ls"]}});
    let printed = json!({"type": "local_shell_call_output", "id": "b", "output": "x"});
    let input = json!([note, call("a"), shell, printed, output("a", parts)]);
    check(&run(&web, &body(input)));
    let made = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls = [
        made("a", "f", "{}"),
        made("b", "local_shell", r#"{"command":["ls"]}"#),
    ];
    assert_eq!(
        model.heard()[0].1["messages"],
        json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "a\n[it follows in the next message]"},
            {"role": "tool", "tool_call_id": "b", "content": "x"},
            {"role": "user", "content": [
                {"type": "text", "text": "From the output of the call a:"},
                {"type": "image_url", "image_url": {"url": picture}}]},
        ])
    );
}

/// A response that was cancelled has items without a result, and can be continued: the model reads
/// what is known, under a name that its server takes.
#[test]
fn what_was_cut_off_is_told_as_that() {
    let model = Model::new(vec![asks(&[("esc__draw", json!({}))]), says(&["I see."])]);
    let (_playground, web, [alice]) = model.host_for(["alice"], |it| {
        let draws = "import threading\nprint('@toolhost {\"event\": {\"image\": \"generating\"}}', \
                     flush=True)\nthreading.Event().wait()\n";
        it.tool("draw", "python", draws, json!({}));
        let long =
            "[limits]\ntimeout_ms = 120_000\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
        it.policy("draw", "esc:draw", long);
    });
    let mut asked = body(json!("draw"));
    asked["store"] = json!(true);
    let mut stream = web.send("POST", "/v1/responses", &[&alice], &asked.to_string());
    let seen = heard(&mut stream, "image_generation_call.generating");
    let (_, id) = seen.split_once("\"id\":\"resp_").unwrap();
    let id = format!("resp_{}", id.split('"').next().unwrap());
    let path = format!("/v1/responses/{id}/cancel");
    let cancelled = web.ask("POST", &path, &[&alice], "{}").json();
    let drawn = &cancelled["output"][0];
    assert_eq!(
        [
            &drawn["type"],
            &drawn["status"],
            &drawn["tool_call"]["name"]
        ],
        ["image_generation_call", "failed", "esc__draw"]
    );
    let begun = json!({"type": "mcp_call", "id": "mcp_1", "server_label": "toolhost", "name": "x:gone",
        "arguments": "", "output": null, "error": null, "approval_request_id": null, "status": "incomplete"});
    let error = json!({"type": "http_error", "code": 500, "message": "down"});
    let failed = with(
        with(begun.clone(), "id", json!("mcp_2")),
        "error",
        error.clone(),
    );
    asked["previous_response_id"] = json!(id);
    asked["input"] = json!([begun, failed, {"role": "user", "content": "and?"}]);
    let reply = web.ask("POST", "/v1/responses", &[&alice], &asked.to_string());
    check(&super::told(&reply));
    let messages = model.heard()[1].1["messages"].clone();
    let calls = messages[1]["tool_calls"].as_array().unwrap().iter();
    let calls = calls.map(|call| {
        let function = &call["function"];
        (
            function["name"].as_str().unwrap(),
            function["arguments"].as_str().unwrap(),
        )
    });
    assert_eq!(
        calls.collect::<Vec<_>>(),
        [("esc__draw", "{}"), ("x__gone", "{}"), ("x__gone", "{}")]
    );
    let read = |at: usize| messages[at]["content"].as_str().unwrap().to_owned();
    for at in [2, 3] {
        assert!(read(at).contains("it may have run"), "{messages}");
    }
    assert_eq!((read(4), read(5)), (error.to_string(), "and?".to_owned()));
}

/// A shell of this host that the client runs stays what it was offered as.
#[test]
fn a_shell_with_a_name_keeps_it() {
    let run = json!({"command": "ls", "timeout_ms": 5});
    let model = Model::new(vec![asks(&[("own__local", run)]), says(&["done"])]);
    let (playground, config) = model.playground(crate::client_tools::client_tools, "");
    let web = Web::start(&playground, &["--config", &config]);
    let ask = |body: &Value| told(&web.ask("POST", "/v1/responses", &[], &body.to_string()));
    let mut asked = body(json!("go"));
    asked["store"] = json!(true);
    let first = check(&ask(&asked));
    let call = &first["output"][0];
    assert_eq!(
        [&call["type"], &call["name"]],
        ["local_shell_call", "own__local"]
    );
    let output = json!({"type": "local_shell_call_output", "id": call["call_id"], "output": "x"});
    let mut next = body(json!([output]));
    next["previous_response_id"] = first["id"].clone();
    check(&ask(&next));
    let heard = model.heard()[1].1["messages"][1]["tool_calls"][0]["function"]["name"].clone();
    assert_eq!(heard, "own__local");
    let records = playground.records();
    let taken = records.iter().find(|it| it["files"][0]["name"] == "output");
    assert_eq!(taken.unwrap()["tool"], "own:local", "{records:?}");
}
