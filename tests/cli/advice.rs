//! `check --advice` names what tells a model too little.

use crate::prelude::*;

fn text_tool(host: &Host, id: &str, description: &str, about: &str, examples: Value) {
    let parameters =
        json!({"type": "object", "properties": {"n": {"type": "integer", "description": about}}});
    let all = json!({"description": description, "parameters": parameters, "examples": examples});
    host.tool(id, all);
}

/// The advice about a file: pointer and message.
fn advice(host: &Host, file: &str) -> Vec<(String, String)> {
    let files = host.json(&["check", "--advice"]);
    let files = files.as_array().unwrap();
    let of = |report: &&Value| report["path"].as_str().unwrap().ends_with(file);
    let problems = files.iter().find(of).unwrap()["problems"]
        .as_array()
        .unwrap();
    let said = problems.iter().map(|problem| {
        let text = |name: &str| problem[name].as_str().unwrap().to_owned();
        (text("pointer"), text("message"))
    });
    said.collect()
}

#[test]
fn descriptions_that_say_too_little_are_named() {
    let host = host();
    text_tool(&host, "custom:weak", "Adds.", "A number.", json!([]));
    let good = json!([{"description": "d", "input": {"n": 1}}]);
    text_tool(
        &host,
        "custom:good",
        "Adds one to a whole number.",
        "The number, at most 100.",
        good,
    );
    let pointers = |file: &str| {
        let said = advice(&host, file);
        said.into_iter()
            .map(|(pointer, _)| pointer)
            .collect::<Vec<_>>()
    };
    let weak = ["", "/parameters/properties/n", ""].map(str::to_owned);
    assert_eq!(
        BTreeSet::from_iter(pointers("weak.tool.json")),
        BTreeSet::from(weak.clone())
    );
    assert!(pointers("good.tool.json").is_empty());
    // Without the flag nothing of it is said.
    assert!(!host.json(&["check"]).to_string().contains("advice: "));
}
