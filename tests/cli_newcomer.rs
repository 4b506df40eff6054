//! What somebody new gets wrong: names, folders, flags. The words say what was meant, and the exit code who must act.

use crate::harness::{Host, host, manifest, script};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A manifest under a name of one's own choice.
fn written(host: &Host, name: &str) {
    let folder = host.path("user_scripts/one");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("main.py"), "print(1)\n").unwrap();
    let text = manifest("t:one", script("one/main.py", "python"), json!({})).to_string();
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn a_manifest_by_nearly_its_name_is_told() {
    for (name, told) in [
        ("one.tool.json", false),
        ("ONE.TOOL.JSON", true),
        ("one.tool.jsonc", true),
        ("one.tool.yaml", true),
        ("tool.json", true),
        // Data, and a copy that somebody put away.
        ("package.json", false),
        ("one.tool.json.bak", false),
    ] {
        let host = host();
        host.tool("t:other", json!({}));
        written(&host, name);
        let (code, out, err) = host.run(&["check"]);
        let warned = "warning[unreadable]: is passed over: the name of a manifest ends with .tool.json";
        assert_eq!((code, out.contains(warned)), (0, told), "{name}: {out}{err}");
        assert_eq!(host.run(&["check", "--strict"]).0, if told { 2 } else { 0 }, "{name}");
        let (code, _, err) = host.run(&["call", "t:one"]);
        assert_eq!(code != 2, name == "one.tool.json", "{name}: {err}");
        assert_eq!(err.contains(&format!("{name}: is passed over")), told, "{name}: {err}");
    }
}

#[test]
fn a_policy_that_is_not_read_is_a_warning() {
    let host = host();
    host.tool("t:one", json!({}));
    fs::create_dir_all(host.path("sandbox-policies")).unwrap();
    for (name, severity) in [("callers.toml", "warning"), ("x.policy", "warning"), ("README.md", "note")] {
        fs::write(host.path("sandbox-policies").join(name), "confirm = \"x\"\n").unwrap();
        let problems = host.problems(name).1;
        assert_eq!((problems.len(), problems[0]["severity"].as_str()), (1, Some(severity)), "{name}: {problems:?}");
    }
    // The key of docs/API-KEY.md lies there because a policy says so.
    fs::write(host.path("sandbox-policies/rates.key"), "hunter2-hunter2").unwrap();
    fs::set_permissions(host.path("sandbox-policies/rates.key"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(host.run(&["check"]).1.contains("rates.key"), "the control");
    let policy = "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\"]\n[secrets]\n\
                  grant = [{ name = \"KEY\", from = \"file:rates.key\", why = \"w\" }]\n";
    host.policy(policy);
    let (code_of_check, out, _) = host.run(&["check"]);
    assert!(code_of_check == 0 && !out.contains("rates.key"), "{out}");
    host.policy("");
    assert!(host.run(&["call", "t:one"]).2.contains("the shell makes FILE first"));
}

#[test]
fn an_example_that_does_not_fit_is_shown_to_no_model() {
    let host = host();
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}});
    let example = |n: Value| json!({"description": "d", "input": {"n": n}});
    host.tool("t:one", json!({"parameters": parameters, "examples": [example(json!("x")), example(json!(3))]}));
    let out = host.run(&["list", "--format", "anthropic", "--namespace", "t"]).1;
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed[0]["input_examples"], json!([{"n": 3}]), "{out}");
    let out = host.run(&["prompt", "--namespace", "t"]).1;
    assert!(out.contains("{\"n\":3}") && !out.contains("{\"n\":\"x\"}"), "{out}");
}

#[test]
fn a_caller_without_an_entry_hears_why_the_list_is_empty() {
    let host = host();
    host.tool("t:one", json!({}));
    fs::create_dir_all(host.path("sandbox-policies")).unwrap();
    let entry = "[[caller]]\nname = \"alice\"\nwhy = \"a test\"\ntools = [\"t:*\"]\n";
    fs::write(host.path("sandbox-policies/callers.policy.toml"), entry).unwrap();
    let (_, out, err) = host.run(&["list"]);
    assert!(out == "No tool.\n" && err.contains("callers.policy.toml grants") && err.contains("no tool"), "{out}{err}");
    let (_, out, err) = host.run(&["list", "--caller", "alice"]);
    assert!(out.contains("t:one") && !err.contains("grants"), "{out}{err}");
}
