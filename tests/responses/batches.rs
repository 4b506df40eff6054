//! `POST /v1/tool-batches`: the golden traces of calls that run here.

use super::{batch, check, trace, turn};
use crate::http::{adder, caller, private, served, served_to, write_callers};
use crate::prelude::*;

/// A line of a stream, printed by Python.
fn says(json: &str) -> String {
    format!("print('@toolhost {json}', flush=True)\n")
}

const SUM: &str =
    "import json, sys\nprint(json.dumps({'sum': sum(json.load(sys.stdin)['numbers'])}))\n";
const CALL: [&str; 5] = [
    "output_item.added #0 mcp_call in_progress",
    "mcp_call.in_progress #0",
    "mcp_call_arguments.delta #0",
    "mcp_call_arguments.done #0",
    "mcp_call.completed #0",
];

/// The trace between `in_progress` and `completed`.
fn inner(told: &super::Events) -> Vec<String> {
    let lines = trace(told);
    assert_eq!(lines.last().unwrap(), "completed");
    lines[2..lines.len() - 1].to_vec()
}

fn outputs(response: &Value) -> Vec<&str> {
    let outputs = response["tool_outputs"].as_array().unwrap().iter();
    outputs
        .map(|item| item["output"].as_str().unwrap())
        .collect()
}

/// G1, G2, G7: a success, a timeout, and a tool that dies once its item is there.
#[test]
fn a_call_is_an_item_however_it_ends() {
    let (_playground, web) = served(|it| {
        it.without_breaker();
        it.tool("sum", "python", SUM, json!({}));
        it.tool(
            "slow",
            "python",
            "import time\ntime.sleep(60)\n",
            json!({"execution": {"timeoutMs": 1500}}),
        );
        let dies = says(r#"{"chunk": "a"}"#) + "import os\nos.kill(os.getpid(), 9)\n";
        it.tool("dies", "python", &dies, json!({}));
    });
    let numbers = json!({"numbers": [1, 2, 3]});
    let told = batch(&web, &turn(&[("esc__sum", numbers.clone())]));
    let response = check(&told);
    let done = "output_item.done #0 mcp_call completed";
    assert_eq!(inner(&told), [&CALL[..], &[done]].concat());
    let item = &response["output"][0];
    assert_eq!(
        (
            &item["name"],
            &item["arguments"],
            &item["output"],
            &item["error"]
        ),
        (
            &json!("esc:sum"),
            &json!("{\"numbers\":[1,2,3]}"),
            &json!("{\"sum\":6}"),
            &Value::Null
        )
    );
    assert_eq!(
        response["tool_outputs"],
        json!([
        {"type": "function_call_output", "call_id": "call_0", "output": "{\"sum\":6}"}])
    );

    let told = batch(&web, &turn(&[("esc:slow", json!({}))]));
    let response = check(&told);
    assert_eq!(response["status"], "completed");
    let failed = ["mcp_call.failed #0", "output_item.done #0 mcp_call failed"];
    assert_eq!(inner(&told), [&CALL[..4], &failed].concat());
    let item = &response["output"][0];
    let words = item["error"]["content"][0]["text"].as_str().unwrap();
    assert!(
        item["output"].is_null()
            && words.starts_with("Tool esc:slow failed. Error type: TimeoutError.")
    );
    assert_eq!(outputs(&response), [words]);

    let told = batch(
        &web,
        &turn(&[
            ("esc:dies", json!({})),
            ("esc:sum", numbers),
            ("esc:none", json!({})),
        ]),
    );
    let response = check(&told);
    let kinds = |response: &Value| -> Vec<String> {
        let output = response["output"].as_array().unwrap().iter();
        output
            .map(|item| {
                format!(
                    "{} {}",
                    item["name"].as_str().unwrap(),
                    item["status"].as_str().unwrap()
                )
            })
            .collect()
    };
    let mut seen = kinds(&response);
    seen.sort();
    assert_eq!(
        seen,
        ["esc:dies failed", "esc:none failed", "esc:sum completed"]
    );
    assert!(
        outputs(&response)[2].contains("ToolNotFoundError"),
        "{response}"
    );
    // Without a stream the same response, but for what is new each time.
    let mut body = turn(&[("esc:sum", json!({"numbers": [1]}))]);
    body["calls"][0] = json!({"type": "function", "id": "c", "function": {"name": "esc__sum", "arguments": "{\"numbers\": [1]}"}});
    let reply = web.ask("POST", "/v1/tool-batches", &[], &body.to_string());
    let response = reply.json();
    assert_eq!(
        (
            reply.status,
            &response["object"],
            &response["output"][0]["output"]
        ),
        (200, &json!("response"), &json!("{\"sum\":1}"))
    );
}

/// G5, G8: two that stream together are told one after the other, and one that is hidden not at
/// all.
#[test]
fn streams_are_told_in_turn_and_what_is_hidden_is_not() {
    let (_playground, web) = served(|it| {
        let chunks = "import json, sys, time\nmine = json.load(sys.stdin)\nfor n in range(mine['many']):\n    \
            print('@toolhost ' + json.dumps({'chunk': f'{n} '}), flush=True)\n    time.sleep(mine['pause'])\n\
            print('@toolhost {\"end\": true}')\n";
        it.tool("chunks", "python", chunks, json!({}));
        it.tool(
            "quiet",
            "python",
            SUM,
            json!({"presentation": {"hidden": true}}),
        );
        it.tool(
            "final",
            "python",
            chunks,
            json!({"presentation": {"final": true}, "output": {"type": "string"}}),
        );
        it.tool(
            "fails",
            "python",
            &(says("{\"chunk\": \"so far\"}") + "raise ValueError('no')\n"),
            json!({"presentation": {"final": true}, "output": {"type": "string"}}),
        );
    });
    let chunks = |many: u32, pause: f64| json!({"many": many, "pause": pause});
    let told = batch(
        &web,
        &turn(&[
            ("esc:chunks", chunks(20, 0.05)),
            ("esc:chunks", chunks(20, 0.0)),
            ("esc:quiet", json!({"numbers": [4]})),
        ]),
    );
    let response = check(&told);
    let deltas = told
        .iter()
        .filter(|(name, _)| name == "toolhost:output.delta");
    let order: Vec<u64> = deltas
        .map(|(_, data)| data["output_index"].as_u64().unwrap())
        .collect();
    assert_eq!(order, [vec![0; 20], vec![1; 20]].concat());
    assert_eq!(response["output"].as_array().unwrap().len(), 2);
    assert_eq!(
        outputs(&response)[2],
        "{\"sum\":4}",
        "the model reads it all the same"
    );

    let told = batch(&web, &turn(&[("esc:final", chunks(3, 0.0))]));
    let response = check(&told);
    let delta = "output_text.delta #0";
    assert_eq!(
        inner(&told),
        [
            "output_item.added #0 message in_progress",
            "content_part.added #0",
            delta,
            delta,
            delta,
            "output_text.done #0",
            "content_part.done #0",
            "output_item.done #0 message completed"
        ]
    );
    assert_eq!(response["output"][0]["content"][0]["text"], "0 1 2 ");
    // What was said stands; how it failed follows.
    let response = check(&batch(&web, &turn(&[("esc:fails", json!({}))])));
    let text = response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap();
    assert!(
        text.starts_with("so far\nTool esc:fails failed. Error type: ScriptError."),
        "{text}"
    );
}

/// C-026, C-027, C-041, C-042: what a script shows of its work.
#[test]
fn a_script_shows_pictures_searches_and_events_of_its_own() {
    const PNG: &str = "iVBORw0KGgo=";
    let (playground, web) = served(|it| {
        it.allow_builtin_tools();
        it.without_breaker();
        let image = [
            says(r#"{"event": {"image": "generating"}}"#),
            says(r#"{"event": {"image": {"partial": "aGFsZg=="}}}"#),
        ]
        .concat();
        let inline = format!(
            "print('{{\"$content\": [{{\"type\": \"image\", \"data\": \"{PNG}\", \"mimeType\": \"image/png\"}}]}}')\n"
        );
        it.tool("draws", "python", &format!("{image}{inline}"), json!({}));
        let stored = "import base64, os\nopen(os.environ['TOOL_OUTPUT'] + '/a.png', 'wb').write(base64.b64decode('iVBORw0KGgoAAAANSUhEUg=='))\nprint(1)\n";
        it.tool("stores", "python", &(image + stored), json!({}));
        let search = says(r#"{"event": {"search": ["stars"]}}"#)
            + "print('{\"results\": [{\"file_id\": \"f1\", \"filename\": \"a.txt\", \"score\": 0.5, \"text\": \"Sirius\"}]}')\n";
        it.tool("searches", "python", &search, json!({}));
        it.tool(
            "answers",
            "python",
            &search,
            json!({"presentation": {"final": true}}),
        );
        it.tool(
            "custom",
            "python",
            &(says(r#"{"event": {"custom": {"step": 1}}}"#) + "print(2)\n"),
            json!({}),
        );
        it.tool(
            "wrong",
            "python",
            &(says(r#"{"event": {"sound": 1}}"#) + "print(2)\n"),
            json!({}),
        );
    });
    let run = |tool: &str| {
        let told = batch(&web, &turn(&[(tool, json!({}))]));
        let response = check(&told);
        (inner(&told), response["output"][0].clone())
    };
    let picture = [
        "output_item.added #0 image_generation_call in_progress",
        "image_generation_call.in_progress #0",
        "image_generation_call.generating #0",
        "image_generation_call.partial_image #0",
        "image_generation_call.completed #0",
        "output_item.done #0 image_generation_call completed",
    ];
    let (lines, item) = run("esc:draws");
    assert_eq!(
        (lines, &item["result"]),
        (picture.map(str::to_owned).to_vec(), &json!(PNG))
    );
    let (lines, item) = run("esc:stores");
    assert_eq!(
        (lines, &item["result"]),
        (picture.map(str::to_owned).to_vec(), &Value::Null)
    );
    let reply = web.get(item["url"].as_str().unwrap(), &[]);
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("image/png"))
    );

    // Where nothing is stored, it stands in the item.
    let config = private(
        &playground,
        "state/unstored.toml",
        "[artifacts]\nbytes_per_caller = 0\n",
    );
    let unstored = crate::http::Web::start(&playground, &["--config", &config]);
    let told = batch(&unstored, &turn(&[("esc:stores", json!({}))]));
    let item = check(&told)["output"][0].clone();
    assert_eq!(
        (&item["result"], &item["url"]),
        (&json!("iVBORw0KGgoAAAANSUhEUg=="), &Value::Null)
    );

    let (lines, item) = run("esc:searches");
    assert_eq!(
        lines,
        [
            "output_item.added #0 file_search_call in_progress",
            "file_search_call.in_progress #0",
            "file_search_call.searching #0",
            "file_search_call.completed #0",
            "output_item.done #0 file_search_call completed"
        ]
    );
    assert_eq!(
        (&item["queries"], &item["results"]),
        (
            &json!(["stars"]),
            &json!([{"file_id": "f1", "filename": "a.txt", "score": 0.5, "text": "Sirius", "attributes": {}}])
        )
    );
    // A final tool that searches answers with its text.
    let (_, item) = run("esc:answers");
    let text = item["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("Sirius"), "{item}");
    let (lines, item) = run("esc:custom");
    assert_eq!(
        (&*lines[4], &item["output"]),
        ("toolhost:event #0", &json!("2"))
    );
    let (_, item) = run("esc:wrong");
    let words = item["error"]["content"][0]["text"].as_str().unwrap();
    assert!(words.contains("has no event that there is"), "{words}");
    // Code that a model wrote is shown as code.
    let code = json!({"language": "python", "code": "print(6)"});
    let told = batch(&web, &turn(&[("core:run-code", code)]));
    let item = &check(&told)["output"][0];
    assert_eq!(
        (&item["type"], &item["code"], &item["outputs"][0]["type"]),
        (
            &json!("code_interpreter_call"),
            &json!("print(6)"),
            &json!("logs")
        ),
        "{item}"
    );
    drop(playground);
}

#[test]
fn a_turn_is_held_to_what_each_call_is_held_to() {
    let (_playground, web, [alice, bob]) = served_to(["alice", "bob"], |it| {
        adder(it);
        it.tool("other", "python", "print(1)\n", json!({}));
        write_callers(
            it,
            &(caller("bob", "") + &caller("alice", "").replace('*', "esc:add")),
        );
    });
    let ask =
        |who: &str, body: &Value| web.ask("POST", "/v1/tool-batches", &[who], &body.to_string());
    let both = turn(&[
        ("esc:other", json!({})),
        ("esc:add", json!({"a": 1, "b": 2})),
    ]);
    let seen = |who: &str| {
        let response = ask(who, &both).json();
        let outputs = outputs(&response)
            .into_iter()
            .map(|text| text.contains("ToolNotFoundError"));
        outputs.collect::<Vec<_>>()
    };
    assert_eq!(
        (seen(&alice), seen(&bob)),
        (vec![true, false], vec![false, false])
    );
    for (body, words) in [
        (json!({"calls": []}), "1 to 64 calls"),
        (
            json!({"calls": [{"type": "function_call", "call_id": "", "name": "esc:add", "arguments": "{}"}]}),
            "calls[0]",
        ),
        (
            json!({"calls": [both["calls"][0], both["calls"][0]]}),
            "calls[1]",
        ),
        (
            json!({"calls": [{"type": "web_search_call", "id": "x"}]}),
            "web_search_call",
        ),
        (json!({"calls": [], "model": "x"}), "unknown field `model`"),
    ] {
        let reply = ask(&bob, &body).is(400, "ParameterValidationError");
        assert!(reply.body.contains(words), "{words}: {reply:?}");
    }
}

/// G3, G4, G6: calls that the client runs come after those that run here, and nothing is started
/// for them.
#[test]
fn what_the_client_runs_is_handed_out_last() {
    let (playground, web) = served(|it| {
        it.tool("sum", "python", SUM, json!({}));
        for (name, handler) in [
            (
                "shell",
                json!({"type": "definition-only", "kind": "local_shell"}),
            ),
            ("sql", json!({"type": "definition-only", "kind": "custom"})),
        ] {
            let text = manifest(format!("esc:{name}"), handler, json!({})).to_string();
            fs::write(it.path(&format!("tool-defs/{name}.tool.json")), text).unwrap();
        }
    });
    let told = batch(
        &web,
        &turn(&[("esc:shell", json!({"command": ["ls", "-l"]}))]),
    );
    let response = check(&told);
    assert_eq!(
        inner(&told),
        [
            "output_item.added #0 local_shell_call in_progress",
            "output_item.done #0 local_shell_call completed"
        ]
    );
    let item = &response["output"][0];
    assert_eq!(
        (&item["action"], &item["call_id"]),
        (
            &json!({"type": "exec", "env": {}, "command": ["ls", "-l"]}),
            &json!("call_0")
        )
    );
    let told = batch(
        &web,
        &turn(&[("esc:sql", json!({"input_data": "select 1"}))]),
    );
    assert_eq!(
        inner(&told),
        [
            "output_item.added #0 custom_tool_call in_progress",
            "custom_tool_call_input.delta #0",
            "custom_tool_call_input.done #0",
            "output_item.done #0 custom_tool_call completed"
        ]
    );
    assert_eq!(check(&told)["output"][0]["input"], "select 1");

    let told = batch(
        &web,
        &turn(&[
            ("esc:shell", json!({"command": ["ls"]})),
            ("esc:sum", json!({"numbers": [1]})),
            ("esc:sql", json!({"input_data": "x"})),
        ]),
    );
    let response = check(&told);
    let kinds: Vec<&str> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["mcp_call", "local_shell_call", "custom_tool_call"]);
    assert_eq!(response["tool_outputs"].as_array().unwrap().len(), 1);
    // A tool that the request brings; it cannot take the name of one that is here.
    let mut own = turn(&[("weather", json!({"city": "Ulm"}))]);
    own["tools"] = json!([{"type": "function", "name": "weather"}]);
    let item = &check(&batch(&web, &own))["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["arguments"]),
        (
            &json!("function_call"),
            &json!("weather"),
            &json!("{\"city\":\"Ulm\"}")
        )
    );
    own["tools"][0]["name"] = json!("esc__sum");
    let reply = web
        .ask("POST", "/v1/tool-batches", &[], &own.to_string())
        .is(400, "ParameterValidationError");
    assert!(reply.body.contains("tools[0].name"), "{reply:?}");
    // Without its input it is a failure that the model reads.
    let response = check(&batch(&web, &turn(&[("esc:sql", json!({}))])));
    assert!(
        outputs(&response)[0].contains("ParameterValidationError"),
        "{response}"
    );
    drop(playground);
}

/// Each output is cut, and all of them together have a bound.
#[test]
fn the_outputs_of_a_response_are_bounded() {
    let (_playground, web) = served(|it| {
        let more =
            json!({"limits": {"outputBytes": 4_000_000}, "execution": {"timeoutMs": 60_000}});
        it.policy("large", "esc:*", "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n[limits]\noutput_bytes = 4000000\n");
        it.tool(
            "large",
            "python",
            "print('\"' + 'x' * 2_000_000 + '\"')\n",
            more,
        );
    });
    let calls: Vec<(&str, Value)> = (0..9).map(|_| ("esc:large", json!({}))).collect();
    let mut body = turn(&calls);
    body["atOnce"] = json!(2);
    let response = check(&batch(&web, &body));
    let outputs = outputs(&response);
    let cut = outputs
        .iter()
        .filter(|text| text.ends_with("…[cut 951424 bytes]"));
    let refused = outputs
        .iter()
        .filter(|text| text.contains("ResourceLimitError"));
    assert_eq!((cut.count(), refused.count()), (7, 2));
}

/// An alias is presented as its tool is, unless it says otherwise; and what is final is not hidden.
#[test]
fn an_alias_is_final_and_hidden_as_its_tool_is() {
    let (playground, web) = served(|it| {
        for (name, presentation) in [
            ("quiet", json!({"hidden": true})),
            ("tell", json!({"final": true})),
            ("both", json!({"hidden": true, "final": true})),
        ] {
            let presentation = json!({ "presentation": presentation });
            it.tool(name, "python", "print('\"told\"')\n", presentation);
        }
        for (name, tool, presentation) in [
            ("quiet", "esc:quiet", json!({})),
            ("shown", "esc:quiet", json!({"hidden": false})),
            ("tell", "esc:tell", json!({})),
            ("mixed", "esc:tell", json!({"hidden": true})),
        ] {
            let handler = json!({"type": "alias", "tool": tool});
            let presentation = json!({ "presentation": presentation });
            let text = manifest(format!("easy:{name}"), handler, presentation).to_string();
            fs::write(it.path(&format!("tool-defs/easy-{name}.tool.json")), text).unwrap();
        }
    });
    for (tool, wanted) in [
        ("easy:quiet", None),
        ("easy:shown", Some("mcp_call")),
        ("easy:tell", Some("message")),
    ] {
        let response = check(&batch(&web, &turn(&[(tool, json!({}))])));
        assert_eq!(response["output"][0]["type"].as_str(), wanted, "{tool}");
        assert_eq!(outputs(&response), ["told"], "{tool}");
    }
    let said = playground.cli(&["check"]).text();
    for file in ["both.tool.json", "easy-mixed.tool.json"] {
        assert!(said.contains(file), "{file}: {said}");
    }
    assert!(
        said.contains("from whom `hidden` keeps its output"),
        "{said}"
    );
    let gone = turn(&[("esc:both", json!({})), ("easy:mixed", json!({}))]);
    let response = check(&batch(&web, &gone));
    for output in outputs(&response) {
        assert!(!output.contains("told"), "{output}");
    }
}
