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
        (typed(json!(["zzz", "null"])), "schema", a, "not a valid JSON Schema"),
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
    // What is always there needs no request.
    host.tool("t:tmp", json!({ "securityContext": { "fileAccess": { "allowWrite": ["/tmp"] } } }));
    let (_, audit, _) = host.run(&["audit", "t:tmp"]);
    assert!(audit.contains("/tmp inside a call is its own scratch"), "{audit}");
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
