//! `audit` as a person meets it: past calls, questions about relative paths, what no policy can grant.

use crate::cli_call::host;
use serde_json::Value;

#[test]
fn a_past_call_is_readable_and_json_has_it_whole() {
    let host = host();
    let (_, out, _) = host.run(&["call", "core:execute-python-script", "--json", "scriptPath=/abs.py"]);
    let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
    let (code, text, err) = host.run(&["audit", "--call", &id]);
    assert_eq!(code, 0, "{err}");
    assert!(!text.lines().any(|line| line.trim().starts_with(['{', '"'])), "it is no JSON: {text}");
    for part in [&format!("call {id}"), "core:execute-python-script@1.0.0", "SecurityError", "nothing was started"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let (_, json, _) = host.run(&["audit", "--call", &id, "--json"]);
    let recalled: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(recalled["record"]["call"], Value::from(id));
}

#[test]
fn a_question_about_a_relative_path_starts_at_the_current_folder() {
    let host = host();
    let here = host.folder.path().canonicalize().unwrap();
    let scripts = here.join("user_scripts");
    for (question, meant) in [
        ("write:out/x.csv", scripts.join("out/x.csv")),
        ("write:./out", scripts.join("out")),
        ("write:../tool-defs", here.join("tool-defs")),
        ("write:/srv/x", "/srv/x".into()),
    ] {
        let output = host.command().current_dir(&scripts).args(["audit", "--who-can", question]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&format!("write {}", meant.display())), "{question}: {text}");
    }
    let (code, _, err) = host.run(&["audit", "--who-can", "write:a/../b"]);
    assert!(code == 2 && err.contains("`..`"), "{err}");
}
