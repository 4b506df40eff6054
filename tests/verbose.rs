//! `call --verbose` and `test --verbose`: what was run, with what, and how long each stage took.

use crate::prelude::*;
const SECRET: &str = "hunter2-very-secret";
const SCRIPT: &str = "import json, sys\ngiven = json.load(sys.stdin)\n\
    print('heard \\x1b[31m', given.get('token'), file=sys.stderr)\n\
    print(json.dumps({'n': given['n'], 'token': given.get('token')}))\n";

/// The lines of one field: its own, and those below it.
fn field<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with(&format!("{name} ")));
    let first = lines
        .next()
        .map(|line| line.trim_start()[name.len()..].trim());
    first
        .into_iter()
        .chain(
            lines
                .take_while(|line| line.starts_with("       "))
                .map(str::trim),
        )
        .collect()
}

#[test]
fn a_call_shows_command_input_output_log_grants_and_times() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let secret = json!({"type": "string", "description": "d", "writeOnly": true});
    let parameters = json!({"type": "object", "properties": {"token": secret, "n": {"type": "integer", "description": "d"}}});
    let example = json!({"description": "one", "input": {"n": 7}, "expectedOutput": {"n": 7}});
    let more = json!({"parameters": parameters, "examples": [example]});
    let folder = playground.tool("shown", "python", SCRIPT, more);
    playground.settle();
    let input = json!({"n": 7, "token": SECRET}).to_string();
    let ended = playground.cli(&["call", "esc:shown", "--verbose", "--input", &input]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.out,
        json!({"n": 7, "token": "***"}),
        "standard output is the answer alone"
    );
    let err = &ended.stderr;
    let one = |name: &str| {
        field(err, name)
            .first()
            .map_or(String::new(), |line| (*line).to_owned())
    };
    assert!(
        one("command").ends_with(&format!("{}/main.py", folder.display())),
        "{err}"
    );
    assert!(one("command").contains("python"), "{err}");
    let masked = r#"{"n":7,"token":"***"}"#;
    assert_eq!(
        (one("stdin").as_str(), one("stdout").as_str()),
        (masked, masked),
        "{err}"
    );
    assert!(one("log").starts_with("heard \\u{1b}[31m ***"), "{err}");
    assert!(
        field(err, "grants")
            .iter()
            .any(|line| line.starts_with("read ")),
        "{err}"
    );
    let timing = one("timing");
    for stage in ["turn", "decide", "prepare", "run", "answer"] {
        assert!(timing.contains(&format!("{stage} ")), "{stage}: {timing}");
    }
    assert!(!err.contains(SECRET) && !err.contains('\u{1b}'), "{err}");
    // For a program it is a member of the outcome, and only where it was asked for.
    let ended = playground.cli(&[
        "call",
        "esc:shown",
        "--verbose",
        "--json",
        "--input",
        &input,
    ]);
    let told = &ended.out["verbose"];
    assert_eq!(told["stdin"], masked, "{ended:?}");
    assert!(
        told["timing"]
            .as_array()
            .is_some_and(|stages| stages.len() == 5),
        "{told}"
    );
    assert!(!ended.text().contains(SECRET), "{}", ended.text());
    let ended = playground.cli(&["call", "esc:shown", "--json", "--input", &input]);
    assert_eq!(ended.out.get("verbose"), None);
    // A script that a call names.
    let named =
        json!({"scriptPath": "shown/main.py", "inputData": {"n": 7, "token": SECRET}}).to_string();
    let ended = playground.cli(&[
        "call",
        "core:execute-python-script",
        "--verbose",
        "--input",
        &named,
    ]);
    assert_eq!(field(&ended.stderr, "stdin"), [masked], "{ended:?}");
    assert!(
        field(&ended.stderr, "command")[0].ends_with("shown/main.py"),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
    let ended = playground.cli(&["test", "esc:shown", "--verbose"]);
    assert!(ended.text().contains("1 passed, 0 failed"), "{ended:?}");
    assert_eq!(field(&ended.stderr, "stdin"), [r#"{"n":7}"#], "{ended:?}");
    assert!(
        ended.stderr.contains("esc:shown@1.0.0: one") && !field(&ended.stderr, "timing").is_empty(),
        "{ended:?}"
    );
}
