//! What somebody new gets wrong: names, folders, flags. The words say what was meant, and the exit code who must act.

use crate::harness::{Host, host, manifest, script};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

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
fn the_log_is_silent_unless_it_is_asked_for() {
    let host = host();
    host.tool("t:one", json!({}));
    fs::write(host.path("user_scripts/one/bad.tool.json"), "{").unwrap();
    for words in [&["call", "t:none", "--verbose"][..], &["test", "t:none"]] {
        let err = host.run(words).2;
        assert!(!err.contains("WARN") && !err.contains("INFO"), "{words:?}: {err}");
        let err = host.run(&[&["--log", "warn"], words].concat()).2;
        assert!(err.contains("WARN"), "the control, {words:?}: {err}");
    }
}

#[test]
fn a_doctor_does_not_call_a_host_well_that_refuses_every_call() {
    let host = host();
    if host.run(&["doctor"]).0 != 0 {
        return;
    }
    let open = host.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let log = open.join("audit.jsonl").display().to_string();
    let (code, out, err) = host.run(&["--audit-log", &log, "doctor"]);
    assert!(code == 4 && out.contains("the audit log cannot be opened, so every call is refused"), "{out}{err}");
    assert_eq!(host.run(&["--audit-log", &log, "call", "t:none"]).0, 4, "the control: it is refused");
}

#[test]
fn a_root_without_tools_says_so() {
    let host = host();
    for folder in ["user_scripts", "tool-defs"] {
        let _ = fs::remove_dir_all(host.path(folder));
    }
    let nothing = "no folder of tools is there: neither tool-defs nor user_scripts below the root";
    let empty = |folder: &str| format!("no manifest lies in or below {}", host.path(folder).display());
    let said = |words: &[&str]| host.run(words).2;
    for words in [&["list"][..], &["check"], &["call", "a:b"]] {
        assert!(said(words).contains(nothing), "{words:?}: {}", said(words));
    }
    fs::create_dir_all(host.path("user_scripts/x")).unwrap();
    for words in [&["list"][..], &["check"], &["call", "a:b"]] {
        assert!(said(words).contains(&empty("user_scripts")), "{words:?}: {}", said(words));
    }
    written(&host, "one.tool.json");
    for words in [&["list"][..], &["check"], &["call", "a:b"]] {
        assert!(!said(words).contains("no manifest lies"), "{words:?}: {}", said(words));
    }
}

#[test]
fn a_misspelt_file_or_tool_is_not_taken_for_something_else() {
    let host = host();
    host.tool("t:one", json!({}));
    let (code, _, err) = host.run(&["diff", "old.policy.tml", "new"]);
    assert!(code == 2 && err.contains("old.policy.tml: is not there. There is no tool"), "{err}");
    let (code, _, err) = host.run(&["diff", "one", "t:one"]);
    assert!(code == 2 && err.contains("Did you mean 't:one'?"), "{err}");
    let (_, out, err) = host.run(&["audit", "--who-can", "call:t:on"]);
    assert!(
        out == "Nobody can call t:on.\n" && err.contains("There is no tool 't:on'. Did you mean 't:one'?"),
        "{err}"
    );
    let (_, out, err) = host.run(&["audit", "--who-can", "call:t:one"]);
    assert!(out.contains("anybody whom this host serves") && err.is_empty(), "{out}{err}");
    let (code, _, err) = host.run(&["call", "t:one", "--text", "hello"]);
    assert!(code == 2 && err.contains("NAME=VALUE, or one JSON object after --input"), "{err}");
    assert!(!host.run(&["list", "--text"]).2.contains("NAME=VALUE"), "of other verbs it is not true");
}

#[test]
fn the_help_of_a_verb_begins_with_its_own_options() {
    let help = host().run(&["call", "--help"]).1;
    let own = help.split("Options of every verb:").next().unwrap();
    assert!(own.contains("--input") && own.contains("--explain") && !own.contains("--root"), "{help}");
    assert!(help.contains("--root"), "{help}");
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

#[test]
fn a_verb_that_waits_at_a_terminal_says_for_what() {
    let host = host();
    for (words, what) in [
        (&["act"][..], "a model's text"),
        (&["call", "a:b", "--input", "-"], "the arguments"),
        (&["serve", "--stdio"], "an MCP client"),
    ] {
        let first_line = |input: Stdio| {
            let mut verb = host.process();
            let mut verb = verb.args(words).stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(verb.stderr.take().unwrap()).read_line(&mut line).unwrap();
            verb.kill().unwrap();
            verb.wait().unwrap();
            line
        };
        let terminal = nix::pty::openpty(None, None).unwrap();
        let told = first_line(Stdio::from(terminal.slave));
        assert_eq!(told, format!("toolhost: waiting for {what} on standard input (Ctrl-D ends it)\n"));
        assert!(!first_line(Stdio::null()).contains("waiting"), "the control: {words:?}");
    }
}

/// What a server with this token file says of itself when it starts.
fn said_at_start(host: &Host, tokens: &str) -> String {
    let file = host.path("config/tokens");
    fs::write(&file, tokens).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut serve = host.process();
    serve
        .args(["serve", "--http", "127.0.0.1:0", "--token-file"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = serve.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    line
}

#[test]
fn a_server_that_nobody_can_call_says_so() {
    let host = host();
    let said = said_at_start(&host, "# none yet\n");
    assert!(said.contains("for no caller yet: the token file has no line"), "{said}");
    let token = host.run(&["token", "alice"]).1;
    let said = said_at_start(&host, token.lines().last().unwrap());
    assert!(said.contains("for whoever presents a token"), "the control: {said}");
}
