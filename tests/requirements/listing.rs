//! What `list`, `test` and a starting server report about tools.

use super::put;
use crate::prelude::*;

/// (id, tags, category).
const TOOLS: &[(&str, &[&str], &str)] = &[
    ("alpha:one", &["red", "round"], "shapes"),
    ("alpha:two", &["blue"], "shapes"),
    ("alpha:three", &["Red"], "colours"),
    ("beta:one", &["red", "blue"], "colours"),
    ("betamax:one", &["blue-green"], "shapes and more"),
];
const OF_FILES: &[&str] = &[
    "alpha:one",
    "alpha:three",
    "alpha:two",
    "beta:one",
    "betamax:one",
];

/// (flags, the ids that are listed).
const FILTERS: &[(&str, &[&str])] = &[
    (
        "--tag red --tag blue",
        &["alpha:one", "alpha:two", "beta:one"],
    ),
    ("--category shapes", &["alpha:one", "alpha:two"]),
    ("--namespace beta", &["beta:one"]),
    ("--source files", OF_FILES),
    ("--source nowhere", &[]),
    (
        "--tag blue --category shapes --namespace alpha --source files",
        &["alpha:two"],
    ),
];

#[test]
fn filters_of_the_list() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (id, tags, category) in TOOLS {
        let more = json!({"tags": tags, "metadata": {"category": category}});
        playground.tool_at(
            id,
            "python",
            &format!("{}.py", id.replace(':', "/")),
            "print(1)\n",
            more,
        );
    }
    playground.settle();
    let ids = |flags: &str| -> Vec<String> {
        let ended = playground.cli(
            &["list", "--json"]
                .into_iter()
                .chain(flags.split_whitespace())
                .collect::<Vec<_>>(),
        );
        assert_eq!(ended.code, Some(0), "{flags}: {ended:?}");
        ended
            .out
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["toolId"].as_str().unwrap().to_owned())
            .collect()
    };
    for (flags, wanted) in FILTERS {
        assert_eq!(ids(flags), *wanted, "{flags}");
    }
    let builtin = ids("--source builtin");
    assert!(
        builtin.iter().all(|id| id.starts_with("core:")) && builtin.len() == 10,
        "{builtin:?}"
    );
    assert_eq!(ids("").len(), TOOLS.len() + builtin.len());
}

/// The exit status of `toolhost test` is that of its worst example.
#[test]
fn a_failing_example_fails_the_test() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let double = "import json, sys\nn = json.load(sys.stdin)['n']\n\
        sys.exit(5) if n < 0 else print(json.dumps({'twice': 2 * n, 'more': [n]}))\n";
    let example = |n: i64| json!({"description": "d", "input": {"n": n}});
    let expects = |n: i64, output: Value| json!({"description": "d", "input": {"n": n}, "expectedOutput": output});
    let failure = json!({"success": false, "error": {"type": "ScriptError"}});
    // (tool, examples, the last line, exit code).
    let rows = [
        (
            "req:good",
            vec![expects(2, json!({"twice": 4})), example(3)],
            "2 passed, 0 failed",
            0,
        ),
        (
            "req:wrong",
            vec![
                expects(2, json!({"twice": 4})),
                expects(2, json!({"twice": 5})),
            ],
            "1 passed, 1 failed",
            1,
        ),
        (
            "req:lacks",
            vec![expects(2, json!({"thrice": 6}))],
            "0 passed, 1 failed",
            1,
        ),
        (
            "req:fails",
            vec![example(-1), expects(-1, failure)],
            "0 passed, 2 failed",
            1,
        ),
        ("req:none", vec![], "0 passed, 0 failed", 0),
    ];
    for (id, examples, ..) in &rows {
        let more = json!({"examples": examples});
        playground.tool_at(
            id,
            "python",
            &format!("{}/main.py", id.replace(':', "-")),
            double,
            more,
        );
    }
    playground.settle();
    let test = |arguments: &[&str]| {
        let ended = playground.cli(&[&["test"], arguments].concat());
        (
            ended.text().lines().last().unwrap_or_default().to_owned(),
            ended.code,
        )
    };
    for (id, _, told, code) in &rows {
        assert_eq!(test(&[id]), ((*told).to_owned(), Some(*code)), "{id}");
    }
    assert_eq!(test(&["--all"]), ("3 passed, 4 failed".to_owned(), Some(1)));
    assert_eq!(test(&["req:unknown"]).1, Some(2));
    // The control: a failure may be expected of a tool that answers with envelopes.
    let handler = json!({"type": "service-method", "serviceName": "ExternalScriptExecutionService",
        "methodName": "executeScript", "language": "python"});
    let input = json!({"scriptPath": "req-good/main.py", "inputData": {"n": -1}});
    for (expected, told) in [
        (json!({"success": false}), "1 passed, 0 failed"),
        (json!({}), "0 passed, 1 failed"),
    ] {
        let examples =
            json!([{"description": "fails", "input": input, "expectedOutput": expected}]);
        let text = manifest(
            "req:envelope",
            handler.clone(),
            json!({"examples": examples}),
        )
        .to_string();
        put(&playground, "tool-defs/envelope.tool.json", text);
        playground.settle();
        assert_eq!(test(&["req:envelope"]).0, told);
    }
}

/// A server answers only once every tool is loaded. The requests lie in the pipe before it reads.
#[test]
fn ready_only_after_the_first_load() {
    if !has("wasm", 1) {
        return;
    }
    const MANY: usize = 150;
    let playground = Playground::new(Who::ours(), "/var/tmp");
    put(&playground, "user_scripts/many/main.wat", "(module)");
    for n in 0..MANY {
        let text = manifest(
            format!("many:t{n:03}"),
            script("many/main.wat", "wasm"),
            json!({}),
        )
        .to_string();
        put(&playground, format!("tool-defs/t{n}.tool.json"), text);
    }
    playground.settle();
    for _ in 0..2 {
        let mut server = Server::silent(&playground);
        let hello = server.hello();
        let listed = server.ask("tools/list", json!({}));
        let last = server.call(&format!("many:t{:03}", MANY - 1), json!({}));
        let answers = server.answers(&[hello, listed, last]);
        let tools = answers[&listed]["result"]["tools"].to_string();
        assert_eq!(tools.matches("\"name\":\"many__").count(), MANY);
        assert!(
            answers[&last]["error"].is_null(),
            "known from the first moment: {}",
            answers[&last]
        );
    }
}
