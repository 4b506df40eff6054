//! What the bodies of requests hold: every form of a call, and the words about what is wrong.

use super::models::{Model, asks, body, says};
use super::{check, fits, told};
use crate::http::{Web, adder, served};
use crate::prelude::*;

fn client_tool(playground: &Playground, name: &str, kind: &str) {
    let handler = json!({"type": "definition-only", "kind": kind});
    let text = manifest(format!("esc:{name}"), handler, json!({})).to_string();
    fs::write(
        playground.path(&format!("tool-defs/{name}.tool.json")),
        text,
    )
    .unwrap();
}

fn host(model: &Model, tools: impl FnOnce(&Playground)) -> (Playground, Web) {
    let (playground, config) = model.playground(tools, "");
    let web = Web::start(&playground, &["--config", &config]);
    (playground, web)
}

#[test]
fn every_form_of_a_call_that_is_listed_or_handed_out_is_read() {
    let (_playground, web) = served(|it| {
        adder(it);
        for (name, kind) in [("sql", "custom"), ("lsh", "local_shell"), ("sh", "shell")] {
            client_tool(it, name, kind);
        }
    });
    let listed = web.get("/v1/tools?format=openai-responses", &[]).json();
    let listed = listed.to_string();
    for kind in ["custom", "local_shell", "shell"] {
        assert!(listed.contains(&format!("\"type\":\"{kind}\"")), "{listed}");
    }
    let sum = "{\"a\": 1, \"b\": 2}";
    let exec =
        json!({"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": null, "user": null});
    let grammar = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}});
    let body = json!({
        "stream": null,
        "tools": [{"type": "custom", "custom": {"name": "dsl", "format": grammar}}],
        "calls": [
            {"type": "function_call", "call_id": "a", "name": "esc__add", "arguments": sum, "async": true,
             "id": null, "status": "completed", "parsed_arguments": null, "output": "forged"},
            {"type": "function", "id": "b", "index": 1,
             "function": {"name": "esc__add", "arguments": sum, "parsed_arguments": {"a": 1}}},
            {"type": "custom_tool_call", "call_id": "c", "name": "esc__sql", "input": "select 1", "id": "ctc_1"},
            {"type": "local_shell_call", "call_id": "d", "id": "lsh_1", "status": "completed", "action": exec},
            {"type": "shell_call", "call_id": "e", "action": {"commands": ["ls"], "max_output_length": null}},
            {"type": "custom", "id": "f", "custom": {"name": "dsl", "input": "aa"}},
            {"type": "custom_tool_call", "call_id": "g", "name": "gone", "input": ""},
        ],
    });
    let reply = web.ask("POST", "/v1/tool-batches", &[], &body.to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
    let response = reply.json();
    let output = response["output"].as_array().unwrap();
    let ran = output
        .iter()
        .filter(|item| item["output"] == "{\"sum\":3}")
        .map(|item| item["async"].clone())
        .collect::<Vec<_>>();
    assert!(ran.len() == 2 && ran.contains(&json!(true)), "{response}");
    let client: Vec<_> = output[3..]
        .iter()
        .map(|item| (item["type"].clone(), item["call_id"].clone()))
        .collect();
    let wanted = [
        ("custom_tool_call", "c"),
        ("local_shell_call", "d"),
        ("shell_call", "e"),
        ("custom_tool_call", "f"),
    ];
    assert_eq!(client, wanted.map(|(kind, id)| (json!(kind), json!(id))));
    assert_eq!(
        (
            &output[3]["input"],
            &output[4]["action"]["command"],
            &output[5]["action"]["commands"],
            &output[6]["input"]
        ),
        (
            &json!("select 1"),
            &json!(["ls"]),
            &json!(["ls"]),
            &json!("aa")
        )
    );
    let outputs = response["tool_outputs"].as_array().unwrap();
    let refused = &outputs[2];
    assert_eq!(
        (&refused["type"], &refused["call_id"]),
        (&json!("custom_tool_call_output"), &json!("g")),
        "{outputs:?}"
    );
}

#[test]
fn what_a_body_has_wrong_is_named() {
    let model = Model::new(vec![says(&["yes"])]);
    let (_playground, web) = host(&model, adder);
    let host_tools =
        |names: Value| json!([{"type": "mcp", "server_label": "toolhost", "allowed_tools": names}]);
    let shell = json!([{"type": "shell", "environment": {"type": "container_auto"}}]);
    let mut cases = Vec::new();
    for (member, value, words) in [
        ("temperature", json!("hot"), "temperature: invalid type"),
        ("metadata", json!(5), "metadata: invalid type"),
        ("stream", json!("yes"), "stream: invalid type"),
        ("store", json!(1), "store: invalid type"),
        ("tools", json!(5), "tools: invalid type"),
        (
            "max_output_tokens",
            json!(-1),
            "max_output_tokens: invalid value",
        ),
        ("max_output_tokens", json!(0), "max_output_tokens: must be"),
        ("instructions", json!(["x"]), "instructions: invalid type"),
        ("input", json!([]), "input: must say something"),
        ("text", json!(5), "text: invalid type"),
        (
            "text",
            json!({"format": {"type": "xml"}}),
            "text.format.type: unknown variant",
        ),
        ("tool_choice", json!(5), "tool_choice: must be"),
        (
            "tool_choice",
            json!({"type": "function", "name": "esc__ad"}),
            "tool_choice: the model is offered no tool 'esc__ad'",
        ),
        ("tool_choice", json!({"type": "shell"}), "no tool 'shell'"),
        (
            "tools",
            host_tools(json!(["esc__ad"])),
            "tools[0]: you are not offered 'esc__ad'",
        ),
        ("tools", shell, "tools[0].environment"),
    ] {
        let mut asked = body(json!("go"));
        asked[member] = value;
        cases.push(("/v1/responses", asked, words));
    }
    let call = json!({"type": "function_call", "call_id": "c", "name": "esc:add"});
    cases.extend([
        (
            "/v1/tool-batches",
            json!({"calls": [call]}),
            "calls[0]: missing field `arguments`",
        ),
        (
            "/v1/runs",
            json!({"calls": [{"name": "x"}, {"name": 5}]}),
            "calls[1].name: invalid type",
        ),
        (
            "/v1/calls",
            json!({"calls": [{"tool": []}]}),
            "calls[0].tool: invalid type",
        ),
    ]);
    for (path, asked, words) in cases {
        let reply = web.ask("POST", path, &[], &asked.to_string());
        let reply = reply.is(400, "ParameterValidationError");
        assert!(
            reply.body.contains(words) && !reply.body.contains("column"),
            "{words}: {reply:?}"
        );
    }
    assert_eq!(model.heard().len(), 0, "the model was not asked");
}

#[test]
fn a_choice_is_by_name_or_id_and_narrows_what_is_offered() {
    let sum = asks(&[("esc__add", json!({"a": 1, "b": 2}))]);
    let model = Model::new(vec![sum, says(&["3"])]);
    let (_playground, web) = host(&model, |it| {
        adder(it);
        it.tool("other", "python", "print(1)\n", json!({}));
    });
    let mut asked = body(json!("go"));
    let run = |asked: &Value| {
        check(&told(&web.ask(
            "POST",
            "/v1/responses",
            &[],
            &asked.to_string(),
        )))
    };
    asked["tools"] =
        json!([{"type": "function", "name": "mine"}, {"type": "mcp", "server_label": "toolhost"}]);
    asked["tool_choice"] = json!({"type": "allowed_tools", "mode": "required",
        "tools": [{"type": "mcp", "server_label": "toolhost", "name": "esc:add"}]});
    let response = run(&asked);
    assert_eq!(response["output"][0]["output"], "{\"sum\":3}", "{response}");
    asked["tool_choice"] = json!({"type": "function", "name": "esc:add"});
    asked["stream"] = json!(false);
    asked["text"] =
        json!({"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": true}});
    let reply = web.ask("POST", "/v1/responses", &[], &asked.to_string());
    let reply = reply.json();
    assert_eq!(
        (&reply["status"], &reply["tool_choice"]["name"]),
        (&json!("completed"), &json!("esc__add"))
    );
    let heard = model.heard();
    for (turn, choice) in [(0, "required"), (1, "auto")] {
        let tools = heard[turn].1["tools"].as_array().unwrap();
        assert_eq!(
            (tools.len(), &tools[0]["function"]["name"]),
            (1, &json!("esc__add"))
        );
        assert_eq!(heard[turn].1["tool_choice"], choice);
    }
    let last = &heard[2].1;
    assert_eq!(last["tool_choice"]["function"]["name"], "esc__add");
    assert!(last["tools"].as_array().unwrap().len() > 2, "the control");
    assert_eq!(
        last["response_format"],
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": true}})
    );
}

/// A search that the client runs, the tools that it found, and namespaces.
#[test]
fn tools_that_a_client_finds_are_offered() {
    let model = Model::new(vec![
        asks(&[("tool_search", json!({"q": "weather"}))]),
        asks(&[("lookup", json!({}))]),
    ]);
    let (_playground, web) = host(&model, adder);
    let mut asked = body(json!([{"role": "user", "content": "go"}]));
    asked["stream"] = json!(false);
    let function = |name: &str| json!({"type": "function", "name": name, "defer_loading": true});
    let query = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    asked["tools"] = json!([
        {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": query},
        {"type": "namespace", "name": "crm", "description": "d", "tools": [function("lookup")]},
    ]);
    let first = |asked: &Value| {
        let reply = web.ask("POST", "/v1/responses", &[], &asked.to_string());
        let item = reply.json()["output"][0].clone();
        fits("items", &item);
        item
    };
    let search = first(&asked);
    assert_eq!(
        (&search["type"], &search["execution"], &search["arguments"]),
        (
            &json!("tool_search_call"),
            &json!("client"),
            &json!({"q": "weather"})
        )
    );
    let found = [
        function("weather"),
        function("lookup"),
        function("esc__add"),
    ];
    let found = json!({"type": "tool_search_output", "call_id": search["call_id"], "status": "completed",
        "execution": "client", "tools": found});
    asked["input"]
        .as_array_mut()
        .unwrap()
        .extend([search, found]);
    let call = first(&asked);
    assert_eq!(
        (&call["type"], &call["name"], &call["namespace"]),
        (&json!("function_call"), &json!("lookup"), &json!("crm"))
    );
    let names = |turn: usize| -> Vec<String> {
        let heard = model.heard()[turn].1.clone();
        let tools = heard["tools"].as_array().unwrap().iter();
        tools
            .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(!names(0).contains(&"weather".to_owned()), "the control");
    let mut offered = names(1);
    offered.retain(|name| !name.starts_with("core__"));
    offered.sort();
    assert_eq!(offered, ["esc__add", "lookup", "tool_search", "weather"]);
    asked["tools"] = json!([{"type": "programmatic_tool_calling"}]);
    web.ask("POST", "/v1/responses", &[], &asked.to_string())
        .is(400, "ParameterValidationError: code_interpreter");
}
