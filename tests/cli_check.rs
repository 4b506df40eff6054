//! `check` as a person meets it: what no call could do, what no policy could give, names that lead nowhere.

use crate::harness::{Host, host, manifest, script};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

impl Host {
    /// A Python tool in a folder of its own.
    pub fn tool(&self, id: &str, more: Value) {
        let name = id.split_once(':').unwrap().1;
        let folder = self.folder.path().join("user_scripts").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("main.py"), "print(1)\n").unwrap();
        let mut manifest = manifest(id, script(format!("{name}/main.py"), "python"), json!({}));
        manifest.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fs::write(folder.join(format!("{name}.tool.json")), format!("{manifest:#}")).unwrap();
    }

    pub fn policy(&self, text: &str) {
        fs::create_dir_all(self.folder.path().join("sandbox-policies")).unwrap();
        fs::write(self.folder.path().join("sandbox-policies/x.policy.toml"), text).unwrap();
    }

    /// The problems of the one file whose path ends so, and the exit code.
    pub fn problems(&self, ending: &str) -> (i32, Vec<Value>) {
        let (code, out, err) = self.run(&["check", "--json"]);
        let files: Vec<Value> = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        let file = files.iter().find(|file| file["path"].as_str().unwrap().ends_with(ending));
        (code, file.unwrap_or_else(|| panic!("{ending}: {out}"))["problems"].as_array().unwrap().clone())
    }
}

fn writing(patterns: &[&str]) -> Value {
    json!({ "securityContext": { "fileAccess": { "allowWrite": patterns } } })
}

/// (what a tool asks to write, who refuses: `error` = no policy can grant it, `warning` = this one does not)
const ASKS: [(&str, &str, &str); 7] = [
    (".", "error", "could be written"),
    ("./*", "error", "could be written"),
    ("main.py", "error", "could be written"),
    ("node_modules/**", "error", "run or obey"),
    ("report*", "error", "a fixed ending of data"),
    ("/proc/**", "error", "nothing below /proc is ever granted"),
    ("out/**", "warning", "--suggest-policy"),
];

#[test]
fn check_gives_the_verdict_that_a_call_gives() {
    let host = host();
    for (at, (asked, ..)) in ASKS.iter().enumerate() {
        host.tool(&format!("t:ask{at}"), writing(&[asked]));
    }
    host.tool("t:fine", json!({}));
    for (at, (asked, severity, part)) in ASKS.iter().enumerate() {
        let (code, problems) = host.problems(&format!("ask{at}.tool.json"));
        assert_eq!((code, problems.len()), (2, 1), "{asked}: {problems:?}");
        let problem = &problems[0];
        assert_eq!(
            (problem["severity"].as_str(), &problem["code"]),
            (Some(*severity), &"security".into()),
            "{problem}"
        );
        assert_eq!(problem["pointer"], "/securityContext/fileAccess/allowWrite/0", "{problem}");
        assert!(problem["line"].as_u64() > Some(1) && problem["column"].as_u64() > Some(1), "{problem}");
        let message = problem["message"].as_str().unwrap();
        assert!(message.contains(part) && message.contains("every call is refused"), "{message}");
        let (code, _, err) = host.run(&["call", &format!("t:ask{at}"), "--input", "{}"]);
        assert_eq!(code, 3, "{err}");
        assert!(err.contains("SecurityError") && err.contains(part), "{asked}: {err}");
        assert_eq!(err.contains("no policy can grant this"), *severity == "error", "{asked}: {err}");
    }
    assert_eq!(host.problems("fine.tool.json").1, Vec::<Value>::new());
    let (_, text, _) = host.run(&["check"]);
    assert!(text.contains("ask0.tool.json: REFUSED, t:ask0@1.0.0") && text.contains("2 good, 0 skipped"), "{text}");
}

#[test]
fn where_a_policy_narrows_what_is_never_granted_is_only_warned_about() {
    let host = host();
    host.tool("t:wide", writing(&[".", "out/*.csv"]));
    host.policy("name = \"n\"\nwhy = \"w\"\ntools = [\"*\"]\nmode = \"narrow\"\n");
    let (code, problems) = host.problems("wide.tool.json");
    assert_eq!((code, problems.len()), (0, 1), "{problems:?}");
    assert!(problems[0]["message"].as_str().unwrap().contains("never granted, whatever a policy says"), "{problems:?}");
}

#[test]
fn a_suggested_policy_leaves_out_what_no_policy_can_give_and_says_so() {
    let host = host();
    host.tool("t:mixed", writing(&[".", "out/**"]));
    let (_, text, _) = host.run(&["audit", "t:mixed", "--suggest-policy"]);
    let (comment, policy) = text.split_once("\nname = ").unwrap_or_else(|| panic!("{text}"));
    assert!(comment.contains("No policy can give t:mixed this, so every call is refused"), "{text}");
    assert!(comment.contains("write .: the tool's own"), "{text}");
    let write = policy.split_once("write = [").unwrap().1;
    assert!(write.contains("\"./out/**\"") && !write.contains("\"./**\""), "{text}");
    // Nothing that a policy could give: no policy.
    host.tool(
        "t:none",
        json!({ "securityContext": { "fileAccess": { "allowRead": ["/proc/**"], "allowWrite": ["."] } } }),
    );
    let (code, text, _) = host.run(&["audit", "t:none", "--suggest-policy"]);
    assert!(code == 0 && !text.contains("name = ") && text.contains("none is suggested"), "{text}");
}

/// What an editor keeps beside an open file is hidden, and a lock of it is a link that leads nowhere.
#[test]
fn hidden_files_beside_policies_are_not_read() {
    let host = host();
    host.policy("name = \"p\"\nwhy = \"w\"\ntools = [\"*\"]\n");
    let policies = host.folder.path().join("sandbox-policies");
    std::os::unix::fs::symlink("me@host.123", policies.join(".#x.policy.toml")).unwrap();
    fs::write(policies.join(".x.policy.toml"), "name = \"hidden\"\n[broken").unwrap();
    let (code, out, err) = host.run(&["check"]);
    assert!(code == 0 && !out.contains(".x.policy.toml") && !out.contains(".#x"), "{out}{err}");
    let (code, _, err) = host.run(&["list"]);
    assert_eq!(code, 0, "{err}");
    // The control: the same under a name that is not hidden stops everything.
    std::os::unix::fs::symlink("me@host.123", policies.join("y.policy.toml")).unwrap();
    assert_eq!(host.run(&["list"]).0, 3);
}

/// Where it is not known what tools could write, nothing is loaded.
#[test]
fn a_ledger_that_cannot_be_read_refuses() {
    let host = host();
    assert_eq!(host.run(&["list"]).0, 0, "the control");
    fs::create_dir_all(host.folder.path().join("state/toolhost/written.jsonl")).unwrap();
    let (code, _, err) = host.run(&["list"]);
    assert!(code == 4 && err.contains("where tools wrote before is not known") && err.contains("--audit-log"), "{err}");
}

#[test]
fn a_secret_that_no_call_could_have_is_told_at_its_place() {
    let host = host();
    host.tool("t:one", json!({ "securityContext": { "requiredCapabilities": ["secret:FINE"] } }));
    host.tool("t:two", json!({ "securityContext": { "requiredCapabilities": ["secret:OTHER"] } }));
    let secret = |name: &str, from: &str| format!("{{ name = \"{name}\", from = \"{from}\", why = \"w\" }},\n");
    let sources = [
        "env:X",
        "file:fine.key",
        "file:open.key",
        "file:fine.keys",
        "file:folder",
        "command:/bin/sh",
        "command:/no/sh",
    ];
    let names = ["VARIABLE", "FINE", "OPEN", "MISSING", "FOLDER", "COMMAND", "GONE"];
    let entries: String = names.iter().zip(sources).map(|(name, from)| secret(name, from)).collect();
    host.policy(&format!(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\", \"t:two\"]\n[files]\nread = [{{ path = \"./**\", why = \"w\" }}]\n\
         [secrets]\ngrant = [\n{entries}]\n",
    ));
    let folder = host.folder.path().join("sandbox-policies");
    fs::create_dir(folder.join("folder")).unwrap();
    for (name, mode) in [("fine.key", 0o600), ("open.key", 0o640)] {
        fs::write(folder.join(name), "hunter2-hunter2").unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(host.problems("one.tool.json").1, Vec::<Value>::new(), "the control");
    let (_, problems) = host.problems("two.tool.json");
    assert!(
        problems[0]["message"].as_str().unwrap().contains("no entry of [secrets] grant in policy `x`"),
        "{problems:?}"
    );
    let (code, problems) = host.problems("x.policy.toml");
    let told: Vec<(&str, &str)> =
        problems.iter().map(|p| (p["pointer"].as_str().unwrap(), p["message"].as_str().unwrap())).collect();
    let wanted = [
        (2, "(mode 0640): chmod 600"),
        (3, "fine.keys does not exist"),
        (4, "not a regular file"),
        (6, "/no/sh does not exist"),
    ];
    assert_eq!((code, told.len()), (0, wanted.len()), "{told:?}");
    for ((pointer, message), (index, words)) in told.iter().zip(wanted) {
        assert!(*pointer == format!("/secrets/grant/{index}/from") && message.contains(words), "{pointer} {message}");
    }
}

#[test]
fn a_function_that_is_missing_and_a_broken_module_are_found() {
    let host = host();
    for (name, language, file, text, entry, wanted) in [
        ("fine", "python", "main.py", "def run():\n    return 1\n", Some("run"), None),
        ("lacks", "python", "main.py", "def run():\n    return 1\n", Some("rum"), Some("did you mean 'run'?")),
        ("default", "nodejs", "main.cjs", "module.exports = () => 1\n", Some("default"), None),
        ("module", "wasm", "main.wat", "(module)\n", None, None),
        (
            "broken",
            "wasm",
            "main.wat",
            "(module\n  (func $f (result i32) i32.const\n",
            None,
            Some("not WebAssembly: line "),
        ),
    ] {
        let folder = host.folder.path().join("user_scripts").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), text).unwrap();
        let mut manifest = manifest(format!("t:{name}"), script(format!("{name}/{file}"), language), json!({}));
        if let Some(entry) = entry {
            manifest["handler"]["entryPoint"] = json!(entry);
        }
        fs::write(folder.join(format!("{name}.tool.json")), manifest.to_string()).unwrap();
        let (_, problems) = host.problems(&format!("{name}.tool.json"));
        let errors = problems.iter().filter(|problem| problem["severity"] == "error");
        let told: Vec<&str> = errors.map(|problem| problem["message"].as_str().unwrap()).collect();
        match wanted {
            None => assert_eq!(told, Vec::<&str>::new(), "{name}"),
            Some(words) => assert!(told.len() == 1 && told[0].contains(words), "{name}: {told:?}"),
        }
    }
}
