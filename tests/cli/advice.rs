//! `check --advice` names what tells a model too little, shows what the operator's program proposes,
//! and changes nothing.

use crate::prelude::*;

pub fn text_tool(host: &Host, id: &str, description: &str, about: &str, examples: Value) {
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

#[test]
fn what_the_operators_program_proposes_is_shown_and_never_applied() {
    let host = host();
    text_tool(&host, "custom:weak", "Adds.", "A number.", json!([]));
    // What it prints is data: a text that would colour a terminal is shown, and a pointer may lead nowhere.
    let answer = json!({"/description": "Adds one.\u{1b}[31m\nok", "/none/x": 1, "/examples": [{"input": {"n": 2}}]});
    let file = host.path("user_scripts/weak/weak.tool.json");
    let before = fs::read(&file).unwrap();
    let got = host.path("got").display().to_string();
    let left = host.path("left").display().to_string();
    for (script, wanted) in [
        (
            format!("#!/bin/sh\ncat > {got}\nprintf '%s' '{answer}'\n"),
            "/description: proposed: - \"Adds.\" + \"Adds one.",
        ),
        (
            "#!/bin/sh\nexit 3\n".to_owned(),
            "[advice] command: it ended with",
        ),
        ("#!/bin/sh\necho nothing\n".to_owned(), "[advice] command: "),
        // What it leaves in the background is ended with it.
        (
            format!(
                "#!/bin/sh\ncat > /dev/null\nsleep 600 > /dev/null &\necho $! > {left}\necho '[1]'\n"
            ),
            "something else than an object",
        ),
        (
            "#!/bin/sh\nhead -c 200000 /dev/zero\n".to_owned(),
            "prints more than",
        ),
    ] {
        let program = host.path("propose");
        copy_program(host.put("propose.sh", script), &program);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        host.put(
            "config/toolhost/config.toml",
            format!("[advice]\ncommand = [{program:?}]\n"),
        );
        let (code, said, err) = host.run(&["check", "--advice"]);
        assert!(code == 0 && said.contains(wanted), "{wanted}: {said}{err}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
        assert_eq!(fs::read(&file).unwrap(), before);
    }
    let left = fs::read_to_string(left).unwrap();
    let left = format!("/proc/{}/exe", left.trim());
    wait_for("it has ended", || fs::read_link(&left).is_err());
    // It got the manifest and the advice, of the weak tool only.
    let got: Value = serde_json::from_slice(&fs::read(got).unwrap()).unwrap();
    assert_eq!(got["manifest"]["toolId"], "custom:weak");
    assert!(got["advice"].as_array().unwrap().len() >= 3, "{got}");
    host.put(
        "config/toolhost/config.toml",
        "[advice]\ncommand = [\"relative\"]\n",
    );
    let (code, _, err) = host.run(&["check", "--advice"]);
    assert!(
        code != 0 && err.contains("[advice] command: begin with the absolute path"),
        "{err}"
    );
}
