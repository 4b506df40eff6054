//! What `list`, `test` and a server that starts tell of the tools.

use crate::harness::{Playground, Server, Who, has, manifest};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

/// (id, tags, category).
const TOOLS: &[(&str, &[&str], Option<&str>)] = &[
    ("alpha:one", &["red", "round"], Some("shapes")),
    ("alpha:two", &["blue"], Some("shapes")),
    ("alpha:three", &["Red"], Some("colours")),
    ("beta:one", &["red", "blue"], Some("colours")),
    ("beta:plain", &[], None),
    ("betamax:one", &["blue-green"], Some("shapes and more")),
];

/// (flags, the ids that are listed).
const FILTERS: &[(&[&str], &[&str])] = &[
    (&["--tag", "red"], &["alpha:one", "beta:one"]),
    (&["--tag", "red", "--tag", "blue"], &["alpha:one", "alpha:two", "beta:one"]),
    (&["--tag", ""], &[]),
    (&["--category", "shapes"], &["alpha:one", "alpha:two"]),
    (&["--category", "shape"], &[]),
    (&["--namespace", "beta"], &["beta:one", "beta:plain"]),
    (&["--namespace", "bet"], &[]),
    (&["--source", "files"], &["alpha:one", "alpha:three", "alpha:two", "beta:one", "beta:plain", "betamax:one"]),
    (
        &["--source", "builtin"],
        &[
            "core:execute-nodejs-script",
            "core:execute-python-script",
            "core:execute-script",
            "core:run-code",
            "core:task-status",
        ],
    ),
    (&["--source", "nowhere"], &[]),
    (&["--tag", "blue", "--category", "shapes", "--namespace", "alpha", "--source", "files"], &["alpha:two"]),
    (&["--tag", "blue", "--category", "shapes", "--namespace", "alpha", "--source", "builtin"], &[]),
];

#[test]
fn filters_of_the_list() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (id, tags, category) in TOOLS {
        let mut more = json!({"tags": tags});
        if let Some(category) = category {
            more["metadata"] = json!({"category": category});
        }
        playground.tool_at(id, "python", &format!("{}/main.py", id.replace(':', "-")), "print(1)\n", more);
    }
    playground.settle();
    for (flags, wanted) in FILTERS {
        let ended = playground.cli(&[&["list", "--json"], *flags].concat());
        let listed = ended.out.as_array().unwrap_or_else(|| panic!("{flags:?}: {ended:?}"));
        let ids: Vec<&str> = listed.iter().filter_map(|tool| tool["toolId"].as_str()).collect();
        assert_eq!(ids, *wanted, "{flags:?}");
        assert_eq!(ended.code, Some(0));
    }
    let all = playground.cli(&["list", "--json"]).out;
    let sources: BTreeSet<&str> = all.as_array().unwrap().iter().filter_map(|t| t["source"].as_str()).collect();
    assert_eq!((all.as_array().map(Vec::len), sources), (Some(TOOLS.len() + 5), BTreeSet::from(["builtin", "files"])));
}

/// The exit status of `toolhost test` is that of its worst example.
#[test]
fn a_failing_example_fails_the_test() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let double = "import json, sys\nn = json.load(sys.stdin)['n']\nsys.exit(5) if n < 0 else print(json.dumps({'twice': 2 * n, 'more': [n]}))\n";
    let example = |n: i64, expected: Value| {
        let mut example = json!({"description": format!("n is {n}"), "input": {"n": n}});
        if !expected.is_null() {
            example["expectedOutput"] = expected;
        }
        example
    };
    // (tool, examples, what is told last, exit code).
    let rows = [
        ("req:good", vec![example(2, json!({"twice": 4})), example(3, Value::Null)], "2 passed, 0 failed", 0),
        ("req:wrong", vec![example(2, json!({"twice": 4})), example(2, json!({"twice": 5}))], "1 passed, 1 failed", 1),
        ("req:fails", vec![example(-1, Value::Null)], "0 passed, 1 failed", 1),
        ("req:lacks", vec![example(2, json!({"thrice": 6}))], "0 passed, 1 failed", 1),
        (
            "req:failure",
            vec![
                example(-1, json!({"success": false, "error": {"type": "ScriptError"}})),
                example(-1, json!({"success": false})),
                example(-1, json!({"error": {}})),
                example(-1, json!({})),
            ],
            "0 passed, 4 failed",
            1,
        ),
        ("req:none", vec![], "0 passed, 0 failed", 0),
    ];
    for (id, examples, ..) in &rows {
        let more = json!({"examples": examples});
        playground.tool_at(id, "python", &format!("{}/main.py", id.replace(':', "-")), double, more);
    }
    playground.settle();
    for (id, _, told, code) in &rows {
        let ended = playground.cli(&["test", id]);
        let text = ended.text();
        assert_eq!((text.lines().last(), ended.code), (Some(*told), Some(*code)), "{id}: {text}{}", ended.stderr);
    }
    let ended = playground.cli(&["test", "--all"]);
    let text = ended.text();
    assert_eq!((text.lines().last(), ended.code), (Some("3 passed, 7 failed"), Some(1)), "{text}");
    assert_eq!(playground.cli(&["test", "req:nobody"]).code, Some(2));
    // The control: a failure may be expected of a tool that answers with envelopes.
    let handler = json!({"type": "service-method", "serviceName": "ExternalScriptExecutionService", "methodName": "executeScript", "language": "python"});
    let input = json!({"scriptPath": "req-good/main.py", "inputData": {"n": -1}});
    for (expected, told) in [(json!({"success": false}), "1 passed, 0 failed"), (json!({}), "0 passed, 1 failed")] {
        let examples = json!([{"description": "fails", "input": input, "expectedOutput": expected}]);
        let text = manifest("req:envelope", handler.clone(), json!({"examples": examples})).to_string();
        fs::write(playground.path("tool-defs/envelope.tool.json"), text).unwrap();
        playground.settle();
        let text = playground.cli(&["test", "req:envelope"]).text();
        assert_eq!(text.lines().last(), Some(told), "{text}");
    }
    fs::remove_file(playground.path("tool-defs/envelope.tool.json")).unwrap();
    for id in ["req:wrong", "req:fails", "req:lacks", "req:failure"] {
        fs::remove_dir_all(playground.path("user_scripts").join(id.replace(':', "-"))).unwrap();
    }
    assert_eq!(playground.cli(&["test", "--all"]).code, Some(0), "the control");
}

/// A server answers only once every tool is loaded. The requests lie in the pipe before it reads.
#[test]
fn ready_only_after_the_first_load() {
    if !has("wasm", 1) {
        return;
    }
    const MANY: usize = 150;
    let who = Who::ours();
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::create_dir_all(playground.path("user_scripts/many")).unwrap();
    fs::write(playground.path("user_scripts/many/main.wat"), "(module)").unwrap();
    let handler = json!({"type": "external-script", "scriptPath": "many/main.wat", "language": "wasm"});
    for n in 0..MANY {
        let text = manifest(format!("many:t{n:03}"), handler.clone(), json!({})).to_string();
        fs::write(playground.path(&format!("tool-defs/t{n}.tool.json")), text).unwrap();
    }
    playground.settle();
    for _ in 0..5 {
        let mut server = Server::silent(&playground);
        let hello = server.hello();
        let listed = server.ask("tools/list", json!({}));
        let last = server.call(&format!("many:t{:03}", MANY - 1), json!({}));
        let answers = server.answers(&[hello, listed, last]);
        let tools = answers[&listed]["result"]["tools"].as_array().unwrap();
        let many = tools.iter().filter(|tool| tool["name"].as_str().is_some_and(|name| name.starts_with("many__")));
        assert_eq!(many.count(), MANY, "as {}", who.name());
        assert!(answers[&last]["error"].is_null(), "known from the first moment: {}", answers[&last]);
    }
}
