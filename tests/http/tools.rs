//! The tools over HTTP and on the command line: who sees what, and in whose shape.

use super::{Web, adder, caller, served, write_callers};
use crate::prelude::*;

#[test]
fn the_same_tools_in_every_shape_by_the_names_of_models_and_the_openapi_document_is_true() {
    let (playground, web) = served(|it| {
        adder(it);
        for (id, file, script, name) in [
            ("odd:named", "named/main.py", "print(7)\n", "short"),
            ("odd:first", "first/main.py", "print(8)\n", "twice"),
            ("far:second", "second/main.py", "print(9)\n", "twice"),
        ] {
            it.tool_at(
                id,
                "python",
                file,
                script,
                json!({"presentation": {"modelName": name}}),
            );
        }
        it.tool(
            "unlisted",
            "python",
            "print(1)\n",
            json!({"presentation": {"listed": false}}),
        );
        it.tool_at(
            "quiet:hidden",
            "python",
            "quiet/main.py",
            "print(1)\n",
            json!({"presentation": {"hidden": true}}),
        );
        it.tool(
            "needs",
            "python",
            "print(1)\n",
            json!({"requires": {"other:tool": "^1"}}),
        );
    });
    let get = |path: &str| web.get(path, &[]);
    let list = get("/v1/tools").json();
    let tools = list["tools"].as_array().unwrap();
    let ids: Vec<&str> = tools
        .iter()
        .map(|tool| tool["toolId"].as_str().unwrap())
        .collect();
    assert!(
        ids.contains(&"quiet:hidden")
            && !ids.contains(&"esc:unlisted")
            && !ids.contains(&"esc:needs"),
        "{ids:?}"
    );
    let one = get("/v1/tools/esc:add").json();
    assert_eq!(
        tools.iter().find(|tool| tool["toolId"] == "esc:add"),
        Some(&one)
    );
    assert!(
        !list
            .to_string()
            .contains(&playground.base.display().to_string()),
        "{list}"
    );
    let schema = one["parameters"].clone();
    let (name, text) = ("esc__add", "Tries esc:add.");
    let chat = json!({"name": name, "description": text, "parameters": schema, "strict": false});
    let mut responses = chat.clone();
    responses["type"] = json!("function");
    let gemini = json!({"name": name, "description": text, "parametersJsonSchema": schema});
    let shapes = [
        ("openai", json!([{"type": "function", "function": chat}])),
        ("openai-responses", json!([responses])),
        (
            "anthropic",
            json!([{"name": name, "description": text, "input_schema": schema}]),
        ),
        ("gemini", json!([{"functionDeclarations": [gemini]}])),
    ];
    for (format, wanted) in shapes {
        assert_eq!(
            get(&format!("/v1/tools/esc:add?format={format}")).json(),
            wanted,
            "{format}"
        );
        assert_eq!(
            get(&format!("/v1/tools?namespace=esc&format={format}")).json(),
            wanted,
            "{format}"
        );
        let listed = playground.cli(&["list", "--format", format, "--namespace", "esc"]);
        assert_eq!(listed.out, wanted, "{format}: {listed:?}");
    }
    let text = get("/v1/tools/esc:add?format=prompt");
    assert!(
        text.header("content-type")
            .unwrap()
            .starts_with("text/plain")
    );
    assert!(
        ["esc:add", "Tries esc:add.", &schema.to_string()]
            .iter()
            .all(|part| text.body.contains(part)),
        "{text:?}"
    );
    assert_eq!(
        playground
            .cli(&["prompt", "--namespace", "esc"])
            .text()
            .trim(),
        text.body.trim()
    );
    assert_eq!(get("/v1/tools?format=xml").status, 400);
    let written = get("/v1/tools?namespace=%65sc&format=%70rompt");
    assert_eq!(
        written.body,
        get("/v1/tools?namespace=esc&format=prompt").body
    );
    assert_eq!(get("/v1/tools/esc:nothing").status, 404);
    // What the command line reports of a tool is what an operator reads here.
    let mut seen = get("/v1/tools/esc:add/audit").json();
    let mut told = playground.cli(&["audit", "esc:add", "--json"]).out;
    for report in [&mut told, &mut seen] {
        report.as_object_mut().unwrap().remove("lastDenials");
    }
    assert_eq!(seen, told);
    // Every path and method of the document answers with a status that it names, and every refusal
    // has its shape.
    let document = get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let source = fs::read_to_string(repository("src/transport/http/mod.rs")).unwrap();
    let routes = source
        .split(".route(")
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .map(|path| path.replace("{*", "{"));
    let paths: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(routes.collect::<BTreeSet<_>>(), paths);
    let good = json!({"a": 1, "b": 2});
    for path in paths {
        let there = path.replace("{tool}", "esc:add").replace("{call}", "none");
        let absent = path
            .replace("{tool}", "esc:nothing")
            .replace("{call}", "none");
        for method in [
            "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE",
        ] {
            let operation = &document["paths"][&path][method.to_ascii_lowercase()];
            for (place, body) in [
                (&there, good.to_string()),
                (&absent, good.to_string()),
                (&there, "[".to_owned()),
            ] {
                let reply = web.ask(method, place, &[], &body);
                let told = format!("{method} {place}: {reply:?}");
                // RFC 9110: what takes GET takes HEAD.
                if operation.is_null()
                    && !(method == "HEAD" && document["paths"][&path]["get"].is_object())
                {
                    assert_eq!(reply.status, 405, "{told}");
                } else if method != "HEAD" {
                    assert!(
                        operation["responses"][reply.status.to_string()].is_object(),
                        "{told}"
                    );
                }
                if reply.status >= 400 && method != "HEAD" {
                    let error = &reply.json()["error"];
                    for field in document["components"]["schemas"]["Error"]["required"]
                        .as_array()
                        .unwrap()
                    {
                        assert!(!error[field.as_str().unwrap()].is_null(), "{told}");
                    }
                }
            }
        }
    }
    // What a model answers with leads back to the tool, without a table of names in the program
    // between.
    for (name, body, id, wanted) in [
        ("esc__add", &good, "esc:add", json!({"sum": 3})),
        ("esc__add@1", &good, "esc:add", json!({"sum": 3})),
        ("short", &json!({}), "odd:named", json!(7)),
    ] {
        assert_eq!(
            web.get(&format!("/v1/tools/{name}"), &[]).json()["toolId"],
            id
        );
        let told = web.call(name, body, &[]).json();
        assert_eq!(
            (&told["tool"], &told["outputData"]),
            (&json!(id), &wanted),
            "{name}: {told}"
        );
        assert_eq!(playground.records().pop().unwrap()["tool"], id);
    }
    let both = json!({"calls": [{"tool": "esc__add", "arguments": good}, {"tool": "short"}]});
    let told = web.ask("POST", "/v1/calls", &[], &both.to_string()).body;
    assert!(
        told.contains("\"sum\":3") && told.contains("\"outputData\":7"),
        "{told}"
    );
    // Of two with one name it is nobody's, and who is not offered has none.
    for name in ["twice", "odd__named", "esc__unlisted", "esc__"] {
        assert_eq!(web.call(name, &json!({}), &[]).status, 404, "{name}");
    }
    // A part of the list has the names of the whole.
    assert_eq!(
        playground
            .cli(&["list", "--format", "anthropic", "--namespace", "far"])
            .out,
        json!([])
    );
}

/// The processor time of a process.
fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split(' ').collect();
    fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
}

#[test]
fn a_list_is_made_once_and_for_each_kind_of_rights() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for n in 0..300 {
        let many = json!({"type": "object", "properties": (0..40).map(|n| (format!("p{n}"), json!({"type": "string"})))
                .collect::<serde_json::Map<_, _>>()});
        playground.tool_at(
            &format!("many:t{n}"),
            "python",
            "many/main.py",
            "print(1)\n",
            json!({"parameters": many}),
        );
    }
    adder(&playground);
    write_callers(
        &playground,
        &(caller("alice", "") + &caller("*", "").replace("[\"*\"]", "[\"esc:*\"]")),
    );
    playground.settle();
    in_time_once(|| {
        let (web, [alice]) = Web::for_callers(&playground, ["alice"]);
        let took = |times: usize| {
            let before = processor_ticks(web.child.id());
            for _ in 0..times {
                let all = web.get("/v1/tools?format=openai", &[&alice]).json();
                assert!(all.as_array().unwrap().len() > 300);
            }
            processor_ticks(web.child.id()) - before
        };
        let (first, twenty) = (took(1), took(20));
        let is_kept = twenty < 10 * first.max(1);
        let words = || format!("one: {first}, twenty more: {twenty}");
        is_kept.then_some(()).ok_or_else(words)
    });
    let (web, [alice, bob, carol]) = Web::for_callers(&playground, ["alice", "bob", "carol"]);
    let list = |header: &str, path: &str| web.get(path, &[header]).is(200, "none").json();
    for header in [&bob, &carol] {
        assert_eq!(
            list(header, "/v1/tools?format=openai")
                .as_array()
                .unwrap()
                .len(),
            1,
            "other rights, another list"
        );
    }
    assert_eq!(
        list(&alice, "/v1/tools?namespace=many")["tools"]
            .as_array()
            .unwrap()
            .len(),
        300
    );
    assert_eq!(list(&alice, "/v1/tools?namespace=no")["tools"], json!([]));
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        caller("*", ""),
    )
    .unwrap();
    web.signal(Signal::SIGHUP);
    wait_for("new rules, a new list", || {
        list(&bob, "/v1/tools?format=openai")
            .as_array()
            .unwrap()
            .len()
            > 300
    });
}
