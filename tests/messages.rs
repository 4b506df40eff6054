//! What is said when something goes wrong: the true cause, and the mend, to the person and to a model.

use crate::harness::{Host, Playground, Who, host, skipped};
use serde_json::{Value, json};
use std::fs;

/// (language, script, what everybody reads)
const FAILURES: [(&str, &str, &str); 5] = [
    ("python", "import pandas_is_not_here\n", "package 'pandas_is_not_here' is not there"),
    ("nodejs", "require('lodash-is-not-here');\n", "package 'lodash-is-not-here' is not there"),
    ("bun", "const _ = require('lodash-is-not-here'); _();\n", "package 'lodash-is-not-here' is not there"),
    ("python", "open('/srv/not-there')\n", ""),
    ("python", "1 / 0\n", ""),
];

fn here(program: &str) -> bool {
    let folders = crate::harness::SEARCH_PATH.split(':');
    folders.map(|folder| format!("{folder}/{program}")).any(|path| std::path::Path::new(&path).exists())
}

#[test]
fn a_failed_script_is_told_what_it_lacks() {
    if let Some(missing) = ["python3", "node", "bun"].into_iter().find(|program| !here(program)) {
        assert!(std::env::var_os("TOOLHOST_CI").is_none(), "CI must have it: {missing}");
        return skipped(FAILURES.len(), missing);
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (at, (language, script, _)) in FAILURES.iter().enumerate() {
        playground.tool(&format!("f{at}"), language, script, json!({}));
    }
    playground.settle();
    for (at, (language, script, anybody)) in FAILURES.iter().enumerate() {
        let ended = playground.call(&format!("esc:f{at}"), "{}");
        let details = ended.out["error"]["details"].as_str().unwrap_or_default();
        assert_eq!(ended.out["error"]["type"], "ScriptError", "{script}: {ended:?}");
        assert_eq!(details.contains("is not there: "), !anybody.is_empty(), "{language} {script}: {details}");
        assert!(details.contains(anybody) && !details.contains("--explain"), "{language} {script}: {details}");
        let look = format!("`toolhost call esc:f{at} --explain` what it was refused");
        assert!(ended.stderr.contains(&look), "{script}: {}", ended.stderr);
    }
}

#[test]
fn check_says_what_could_not_run_here() {
    let host = host();
    let folder = host.folder.path().join("user_scripts");
    let wasm = |name: &str, ending: &str, bytes: &[u8]| {
        let script = format!("{name}/main.{ending}");
        host.tool(
            &format!("t:{name}"),
            json!({ "handler": { "type": "external-script", "scriptPath": script, "language": "wasm" } }),
        );
        fs::write(folder.join(script), bytes).unwrap();
    };
    wasm("bad", "wasm", b"version https://git-lfs.github.com/spec/v1\n");
    wasm("badtext", "wat", b"hello\n");
    wasm("good", "wasm", b"\0asm\x01\0\0\0");
    wasm("goodtext", "wat", b"  ;; a comment\n(module)\n");
    for (name, refused) in [("bad", true), ("badtext", true), ("good", false), ("goodtext", false)] {
        let (code, problems) = host.problems(&format!("{name}.tool.json"));
        let told = problems.iter().any(|p| p["message"].as_str().unwrap().contains("not a WebAssembly module"));
        assert_eq!((told, code), (refused, 2), "{name}: {problems:?}");
    }
    host.tool("t:needs", json!({}));
    fs::write(folder.join("needs/requirements.txt"), "pandas\n").unwrap();
    if here("python3") {
        let (_, problems) = host.problems("needs.tool.json");
        assert!(problems.iter().any(|p| p["message"].as_str().unwrap().contains("requirements.txt")), "{problems:?}");
    }
}

/// (manifest, code, pointer, words)
#[test]
fn a_manifest_that_is_wrong_is_told_the_mend() {
    let host = host();
    let limit = |value: Value| json!({ "limits": { "memoryBytes": value } });
    let typed = |value: Value| json!({ "parameters": { "type": "object", "properties": { "a": { "type": value, "description": "d" } } } });
    let hosts = |host: &str| json!({ "securityContext": { "networkAccess": { "allowHosts": [host] } } });
    let reference = |to: &str| json!({ "parameters": { "type": "object", "properties": { "a": { "$ref": to, "description": "d" } } } });
    let (a, memory) = ("/parameters/properties/a/type", "/limits/memoryBytes");
    for (at, (more, code, pointer, words)) in [
        (json!({ "displayName": null }), "schema", "/displayName", "not null"),
        (json!({ "handler": null }), "schema", "/handler", "not null"),
        (limit(json!("64MB")), "schema", memory, "must be a whole number, not a string"),
        (limit(json!(-5)), "schema", memory, "is too small; the least is 16777216"),
        (limit(json!(1.5)), "schema", memory, "must be a whole number, not a float"),
        (limit(json!(null)), "schema", memory, "not null"),
        (json!({ "execution": { "timeoutMs": "1s" } }), "schema", "/execution/timeoutMs", "must be a whole number"),
        (typed(json!("int")), "schema", a, "not a valid JSON Schema"),
        (typed(json!(["zzz", "null"])), "schema", "/parameters/properties/a/type/0", "not a valid JSON Schema"),
        (reference("https://example.com/x.json"), "security", "/parameters/properties/a/$ref", "nothing is fetched"),
        (reference("file:///etc/passwd"), "security", "/parameters/properties/a/$ref", "nothing is fetched"),
        (reference("other.json#/x"), "security", "/parameters/properties/a/$ref", "nothing is fetched"),
        (reference("#/$defs/none"), "schema", "/parameters/properties/a/$ref", "leads to nothing"),
        (hosts("https://example.com"), "schema", "/securityContext/networkAccess/allowHosts/0", "is a URL"),
        (hosts("a.*.com"), "schema", "/securityContext/networkAccess/allowHosts/0", "in the middle"),
    ]
    .into_iter()
    .enumerate()
    {
        host.tool(&format!("t:m{at}"), more.clone());
        let (_, problems) = host.problems(&format!("/m{at}.tool.json"));
        let told = problems.iter().find(|p| p["message"].as_str().unwrap().contains(words));
        let told = told.unwrap_or_else(|| panic!("{more}: {problems:?}"));
        assert_eq!((told["code"].as_str(), told["pointer"].as_str()), (Some(code), Some(pointer)), "{more}");
    }
    let (_, out, err) = host.run(&["list"]);
    assert!(
        !out.contains("skipped") && err.contains("15 file(s) were skipped: `toolhost check` says why"),
        "{out}{err}"
    );
    // What is always there needs no asking; a folder is not written like a file.
    host.tool("t:tmp", json!({ "securityContext": { "fileAccess": { "allowWrite": ["/tmp"] } } }));
    let (_, audit, _) = host.run(&["audit", "t:tmp"]);
    assert!(audit.contains("/tmp inside a call is its own scratch: it is always yours"), "{audit}");
    host.tool("t:data", json!({ "securityContext": { "fileAccess": { "allowWrite": ["/data"] } } }));
    let (_, audit, _) = host.run(&["audit", "t:data"]);
    assert!(audit.contains("as a folder it is written `/data/**`"), "{audit}");
}

#[test]
fn a_whole_number_may_have_a_fraction_of_zero() {
    let host = host();
    let call = |input: &str| host.run(&["call", "core:execute-script", "--input", input]).2;
    let with =
        |timeout: &str| call(&format!(r#"{{"scriptPath": "no.py", "language": "python", "timeoutMs": {timeout}}}"#));
    assert!(!with("30000.0").contains("timeoutMs") && !with("30000").contains("timeoutMs"), "{}", with("30000.0"));
    assert!(with("30000.5").contains("'timeoutMs' must be an integer"), "the control");
    assert!(with("null").contains("not null (leave it out"), "{}", with("null"));
}

#[test]
fn numbers_alone_are_what_a_version_begins_with_and_the_one_that_ran_is_said() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("v", "python", "print(1)\n", json!({}));
    let manifest: Value = serde_json::from_str(&fs::read_to_string(folder.join("v.tool.json")).unwrap()).unwrap();
    for version in ["1.2.0", "1.2.5", "1.10.0", "2.0.0"] {
        let mut own = manifest.clone();
        own["version"] = json!(version);
        fs::write(folder.join(format!("{version}.tool.json")), own.to_string()).unwrap();
    }
    fs::remove_file(folder.join("v.tool.json")).unwrap();
    playground.settle();
    for (asked, ran, said) in [
        ("", "2.0.0", false),
        ("@1.2", "1.2.5", true),
        ("@1", "1.10.0", true),
        ("@^1.2", "1.10.0", true),
        ("@~1.2", "1.2.5", true),
        ("@1.2.0", "1.2.0", false),
        ("@=1.10", "1.10.0", true),
    ] {
        let output =
            playground.host().args(["call", &format!("esc:v{asked}"), "--input", "{}", "--json"]).output().unwrap();
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(outcome["version"], ran, "{asked}: {outcome}");
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(err.contains(&format!("version {ran} ran")), said, "{asked}: {err}");
    }
}

impl Host {
    fn log_at(&self, path: &str) -> (i32, String) {
        let log = self.folder.path().join(path);
        let (code, _, err) = self.run(&["call", "no:such", "--audit-log", log.to_str().unwrap()]);
        (code, err)
    }
}

/// A slip in the name of a folder must not make another; our own folder for it is made.
#[test]
fn an_audit_log_is_not_made_in_a_folder_that_is_not_there() {
    let host = host();
    let (code, err) = host.log_at("slip/audit.jsonl");
    assert!(
        code == 2 && err.contains("audit-log (flag)") && err.contains("No such file") && !err.contains("ToolNotFound"),
        "{err}"
    );
    assert!(!host.folder.path().join("slip").exists());
    let (_, err) = host.log_at("state/audit.jsonl");
    assert!(err.contains("ToolNotFoundError") && host.folder.path().join("state/audit.jsonl").exists(), "{err}");
    let (_, _, err) = host.run(&["call", "no:such"]);
    assert!(
        err.contains("ToolNotFoundError") && host.folder.path().join("state/toolhost/audit.jsonl").exists(),
        "{err}"
    );
}

#[test]
fn what_was_left_running_is_named_where_a_call_times_out() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let thread =
        "import threading, time\nprint(1, flush=True)\nthreading.Thread(target=time.sleep, args=(60,)).start()\n";
    let quiet = "import time\ntime.sleep(60)\n";
    for (name, script) in [("left", thread), ("quiet", quiet)] {
        playground.tool(name, "python", script, json!({ "execution": { "timeoutMs": 1500 } }));
    }
    playground.settle();
    for (name, told) in [("left", true), ("quiet", false)] {
        let outcome = playground.call(&format!("esc:{name}"), "{}").out;
        assert_eq!(outcome["error"]["type"], "TimeoutError", "{outcome}");
        let details = outcome["error"]["details"].as_str().unwrap();
        assert_eq!(details.contains("thread or timer that it left running"), told, "{details}");
    }
}

/// A method's own names are not what its caller knows.
#[test]
fn a_mapped_parameter_is_told_by_the_name_the_tool_gives_it() {
    let host = host();
    let map = json!({ "path": "scriptPath", "scriptPath": "language", "what": "inputData" });
    let properties: Value = ["path", "scriptPath", "what"]
        .iter()
        .map(|name| (name.to_string(), json!({ "description": "d" })))
        .collect::<serde_json::Map<_, _>>()
        .into();
    host.tool(
        "t:map",
        json!({
            "handler": {
                "type": "service-method", "serviceName": "ExternalScriptExecutionService", "methodName": "executeScript",
                "parameterMap": map,
            },
            "parameters": { "type": "object", "properties": properties },
        }),
    );
    let (_, _, err) = host.run(&["call", "t:map", "--input", r#"{"path": 3, "scriptPath": "x", "what": 1}"#]);
    for words in [
        "parameter 'path' must be a non-empty string",
        "parameter 'scriptPath' must be one of: python",
        "parameter 'what' must be an object",
    ] {
        assert!(err.contains(words), "{words}: {err}");
    }
}

/// The manifests that are compiled in lie in the repository as well, and are no news at each start.
#[test]
fn a_copy_of_what_is_compiled_in_is_no_warning() {
    let host = host();
    crate::shipped::copy_to(host.folder.path());
    let (_, _, err) = host.run(&["call", "no:such", "--log", "warn"]);
    assert!(err.contains("ToolNotFoundError") && !err.contains("skipped") && !err.contains("not read"), "{err}");
    host.tool("t:bad", json!({ "version": "x" }));
    let (_, _, err) = host.run(&["call", "no:such", "--log", "warn"]);
    assert!(err.contains("manifest skipped"), "the control: {err}");
}

/// Over MCP a model is advised what it can do itself.
#[test]
fn a_model_is_told_to_mend_its_own_code_and_paths() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let core = include_str!("../sandbox-policies/core.policy.toml");
    fs::write(playground.path("sandbox-policies/core.policy.toml"), core).unwrap();
    playground.settle();
    let call = |id: u64, name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }))
    };
    let begin =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let mut input = format!("{}\n", json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin }));
    input += &call(2, "core__run-code", json!({ "language": "python", "code": "1/0" }));
    input += &call(3, "core__execute-script", json!({ "scriptPath": "../x.py", "language": "python" }));
    input += &call(
        4,
        "core__execute-script",
        json!({ "scriptPath": "other/main.py", "language": "python", "timeoutMs": null }),
    );
    input += &call(
        5,
        "core__execute-script",
        json!({ "scriptPath": "other/main.py", "language": "python", "env": { "PATH": "/x" } }),
    );
    input += &call(6, "core__run-code", json!({ "language": "python", "code": "import not_here_at_all" }));
    let mut command = playground.host();
    command.args(["serve", "--stdio"]);
    let texts = answers(command, &input, 6);
    for (id, wanted, never) in [
        (2, "The code failed: mend it", "operator"),
        (6, "code that a call brings has what comes with its interpreter, and no packages but", "beside the script"),
        (3, "Correct the arguments and call again", "operator"),
        (4, "leave it out where it is not needed", "operator"),
        (5, "Correct the arguments and call again", "operator"),
    ] {
        let text =
            texts.iter().find(|(of, _)| *of == id).map(|(_, text)| text).unwrap_or_else(|| panic!("{id}: {texts:?}"));
        assert!(text.contains(wanted) && !text.contains(never), "{id}: {text}");
    }
}

/// The answers to as many requests, by their ids.
fn answers(mut command: std::process::Command, input: &str, count: usize) -> Vec<(u64, String)> {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(count);
    let found = lines
        .map(|line| {
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            (
                answer["id"].as_u64().unwrap(),
                answer["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    drop(stdin);
    child.wait().unwrap();
    found
}
