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

#[test]
fn a_required_name_that_nothing_declares_is_told() {
    let host = host();
    let declared = json!({ "text": { "type": "string", "description": "d" } });
    let cases = [
        (json!(["txet"]), json!(null), "properties does not declare it"),
        (json!(["txet"]), json!(false), "properties does not declare it"),
        (json!(["other"]), json!(true), "properties does not declare it"),
    ];
    for (at, (required, additional, part)) in cases.iter().enumerate() {
        let mut parameters = json!({ "type": "object", "properties": declared, "required": required });
        if !additional.is_null() {
            parameters["additionalProperties"] = additional.clone();
        }
        host.tool(&format!("t:r{at}"), json!({ "parameters": parameters }));
        let (code, problems) = host.problems(&format!("r{at}.tool.json"));
        assert_eq!((code, problems.len()), (0, 1), "{problems:?}");
        assert_eq!(
            (&problems[0]["severity"], &problems[0]["pointer"]),
            (&"warning".into(), &"/parameters/required/0".into())
        );
        assert!(problems[0]["message"].as_str().unwrap().contains(part), "{problems:?}");
    }
    let good = [
        json!({ "type": "object", "properties": declared, "required": ["text"] }),
        json!({ "type": "object", "allOf": [{ "properties": declared }], "required": ["text"] }),
        json!({ "type": "object", "patternProperties": { "^x": {} }, "required": ["x1"] }),
    ];
    for (at, parameters) in good.into_iter().enumerate() {
        host.tool(&format!("t:g{at}"), json!({ "parameters": parameters }));
        let (_, problems) = host.problems(&format!("g{at}.tool.json"));
        assert!(!problems.iter().any(|p| p["pointer"].as_str().unwrap().contains("required")), "{problems:?}");
    }
}

#[test]
fn a_policy_that_names_what_is_not_there_is_told() {
    let host = host();
    host.tool("data:summary", json!({}));
    let gone = host.folder.path().join("gone/deep.csv");
    host.policy(&format!(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"data:sumary\", \"dat:*\", \"data:summary\"]\nfolders = [\"user_script\", \"user_scripts\"]\n\
         [files]\nread = [\n{{ path = \"./**\", why = \"w\" }},\n{{ path = \"{0}\", why = \"w\" }},\n{{ path = \"./man.py\", why = \"w\" }}]\n\
         write = [{{ path = \"./out/**\", why = \"w\" }},\n{{ path = \"{0}\", why = \"w\" }}]\n[runtimes]\npython = {{ path = \"/opt/no/python\", why = \"w\" }}\n",
        gone.display()
    ));
    let (code, problems) = host.problems("x.policy.toml");
    let place = |p: &Value| (p["pointer"].as_str().unwrap().to_owned(), p["line"].as_u64().unwrap());
    let mut told: Vec<(String, u64)> = problems.iter().map(place).collect();
    told.sort_by_key(|(_, line)| *line);
    let wanted = [
        ("/tools/0", 3),
        ("/tools/1", 3),
        ("/folders/0", 4),
        ("/files/read/1/path", 8),
        ("/files/read/2/path", 9),
        ("/files/write/1/path", 11),
        ("/runtimes/python/path", 13),
    ];
    let wanted = wanted.map(|(pointer, line)| (pointer.to_owned(), line));
    assert_eq!((code, told), (0, wanted.to_vec()), "{problems:#?}");
    assert!(problems.iter().all(|p| p["severity"] == "warning"));
    // The same for one file, named.
    let file = host.folder.path().join("sandbox-policies/x.policy.toml");
    let (_, out, _) = host.run(&["check", file.to_str().unwrap()]);
    assert!(out.contains("did you mean 'data:summary'?") && out.contains("7 warning(s)"), "{out}");
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

#[test]
fn a_policy_that_does_not_load_says_where_and_a_mend_that_does() {
    let host = host();
    let head = "name = \"p\"\nwhy = \"w\"\ntools = [\"t:x\"]\n";
    let rule = |path: &str| format!("{head}[files]\nread = [{{ path = \"{path}\", why = \"w\" }}]\n");
    for path in ["./**/", "data/", "data//", "/srv/x/"] {
        host.policy(&rule(path));
        let message = host.problems("x.policy.toml").1[0]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("`dir/**` for a folder"), "{path}: {message}");
    }
    host.policy(&format!("{head}name = \"q\"\n"));
    let problem = host.problems("x.policy.toml").1[0].clone();
    assert!(problem["message"].as_str().unwrap().contains("duplicate key `name`"), "{problem}");
    assert_eq!((problem["line"].as_u64(), problem["column"].as_u64()), (Some(4), Some(1)), "{problem}");
    let file = host.folder.path().join("sandbox-policies/x.policy.toml");
    fs::write(file, [head.as_bytes(), b"# \xc3\xa9\xff\n"].concat()).unwrap();
    let problem = host.problems("x.policy.toml").1[0].clone();
    assert_eq!((problem["line"].as_u64(), problem["column"].as_u64()), (Some(4), Some(4)), "{problem}");
    assert_eq!(problem["code"], "encoding");
}

#[test]
fn a_file_is_no_folder_of_tools() {
    let host = host();
    let file = host.folder.path().join("file");
    fs::write(&file, "").unwrap();
    for flag in ["--root", "--tools", "--scripts"] {
        let mut command = assert_cmd::Command::cargo_bin("toolhost").unwrap();
        let output = command.arg(flag).arg(&file).args(["list"]).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && err.contains("it is not a folder"), "{flag}: {err}");
    }
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

/// The order is that of the paths, also of links that are not followed.
#[test]
fn the_order_of_the_report_is_that_of_the_paths() {
    let host = host();
    let scripts = host.folder.path().join("user_scripts");
    for name in ["zulu", "alpha", "mike", "golf", "tango", "bravo", "yankee", "echo"] {
        std::os::unix::fs::symlink("/usr/share", scripts.join(name)).unwrap();
    }
    for name in ["november", "delta", "whiskey"] {
        host.tool(&format!("t:{name}"), json!({}));
    }
    let (_, out, _) = host.run(&["check", "--json"]);
    let files: Vec<Value> = serde_json::from_str(&out).unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    let ours: Vec<&str> = paths.into_iter().filter(|path| path.contains("user_scripts/")).collect();
    assert!(ours.len() == 11 && ours.is_sorted(), "{ours:?}");
}

#[test]
fn a_file_that_is_named_twice_is_told_once() {
    let host = host();
    host.tool("t:one", json!({}));
    host.policy("name = \"p\"\nwhy = \"w\"\ntools = [\"*\"]\n");
    let at = |path: &str| host.folder.path().join(path).to_str().unwrap().to_owned();
    let file = at("user_scripts/one/one.tool.json");
    let folder = at("user_scripts/one");
    let (policies, policy) = (at("sandbox-policies"), at("sandbox-policies/x.policy.toml"));
    for paths in [&[&file, &folder][..], &[&folder, &file], &[&file, &file]] {
        let words: Vec<&str> = ["check"].into_iter().chain(paths.iter().map(|path| path.as_str())).collect();
        assert!(host.run(&words).1.contains("1 good, 0 skipped"), "{words:?}: {}", host.run(&words).1);
    }
    let (_, out, _) = host.run(&["check", &policy, &policies]);
    assert!(out.starts_with("1 good, 0 skipped"), "{out}");
}

#[test]
fn hosts_that_are_refused_or_risky_are_told_at_their_place() {
    let host = host();
    let asks = |hosts: Value| json!({ "securityContext": { "networkAccess": { "allowHosts": hosts } } });
    host.tool("t:asks", asks(json!(["api.x.com", "API.y.com."])));
    host.tool("t:fine", asks(json!(["api.x.com"])));
    host.policy(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"t:asks\", \"t:fine\"]\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
         [network]\nhosts = [\n{ host = \"api.x.com\", why = \"w\" },\n{ host = \"*.org\", why = \"w\" }]\n",
    );
    assert_eq!(host.problems("fine.tool.json").1, Vec::<Value>::new(), "the control");
    let (_, problems) = host.problems("asks.tool.json");
    let pointers: Vec<&Value> = problems.iter().map(|problem| &problem["pointer"]).collect();
    assert_eq!(pointers, ["/securityContext/networkAccess/allowHosts/1"], "{problems:?}");
    let (code, _, err) = host.run(&["call", "t:asks", "--input", "{}"]);
    assert!(code == 3 && err.contains("reach api.y.com: no entry of [network] hosts"), "{err}");
    let (code, problems) = host.problems("x.policy.toml");
    let (pointer, line) = (&problems[0]["pointer"], &problems[0]["line"]);
    assert_eq!(
        (code, problems.len(), pointer, line),
        (0, 1, &json!("/network/hosts/1/host"), &json!(9)),
        "{problems:?}"
    );
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
        (4, "no regular file"),
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

#[test]
fn a_conflict_has_a_place_and_names_the_twin() {
    let host = host();
    host.tool("t:Twin", json!({}));
    host.tool("t:twin", json!({}));
    for (own, other) in [("Twin", "twin"), ("twin", "Twin")] {
        let (_, problems) = host.problems(&format!("/{own}.tool.json"));
        assert_eq!(
            (problems[0]["code"].as_str(), problems[0]["pointer"].as_str()),
            (Some("conflict"), Some("/toolId"))
        );
        assert!(problems[0]["line"].as_u64() > Some(1) && problems[0]["column"].as_u64() > Some(1), "{problems:?}");
        let message = problems[0]["message"].as_str().unwrap();
        assert!(message.contains(&format!("/{other}.tool.json:")), "{message}");
    }
    // Whoever calls one of them is told both.
    let (_, _, err) = host.run(&["call", "t:twin", "--input", "{}"]);
    assert!(err.contains("/Twin.tool.json:") && err.contains("/twin.tool.json:"), "{err}");
}

/// The newest stable version is the one to name, and a list that is cut says so.
#[test]
fn what_is_offered_instead_is_what_a_person_would_want() {
    let host = host();
    let properties: serde_json::Map<String, Value> =
        (0..25).map(|n| (format!("parameter{n:02}"), json!({ "type": "string", "description": "d" }))).collect();
    host.tool("t:v", json!({ "parameters": { "type": "object", "properties": properties } }));
    let folder = host.folder.path().join("user_scripts/v");
    let text = fs::read_to_string(folder.join("v.tool.json")).unwrap();
    for version in ["1.1.0", "2.0.0-rc.1"] {
        fs::write(folder.join(format!("v-{version}.tool.json")), text.replace("1.0.0", version)).unwrap();
    }
    let (_, _, err) = host.run(&["call", "t:v@^9"]);
    assert!(err.contains("VersionMismatchError") && err.contains("t:v@1.1.0"), "{err}");
    let (_, _, err) = host.run(&["call", "t:v@^1", "zzz=1"]);
    assert!(err.contains("parameter19, …") && !err.contains("parameter20"), "{err}");
}

/// A script directly in a base folder has no folder of its own, and `check` says to give it one.
#[test]
fn a_script_directly_in_a_base_folder_is_told_to_have_its_own() {
    let host = host();
    let script = |at: &str| fs::write(host.folder.path().join("user_scripts").join(at), "print(1)\n").unwrap();
    let manifest = |id: &str, at: &str| {
        let handler = json!({ "type": "external-script", "scriptPath": at, "language": "python" });
        let text = manifest(id, handler, json!({}));
        let name = id.split_once(':').unwrap().1;
        let file = host.folder.path().join(format!("tool-defs/{name}.tool.json"));
        fs::write(file, format!("{text:#}")).unwrap();
    };
    script("lone.py");
    script("examples/kept.py");
    manifest("t:lone", "lone.py");
    manifest("t:kept", "examples/kept.py");
    manifest("t:twice", "user_scripts/examples/kept.py");
    let (code, problems) = host.problems("lone.tool.json");
    assert_eq!((code, problems.len()), (0, 1), "{problems:?}");
    let problem = &problems[0];
    assert!(problem["message"].as_str().unwrap().ends_with("give it one"), "{problem}");
    assert_eq!((&problem["pointer"], &problem["severity"]), (&"/handler/scriptPath".into(), &"note".into()));
    assert!(problem["line"].as_u64() > Some(1), "{problem}");
    assert_eq!(host.problems("kept.tool.json").1, Vec::<Value>::new(), "the control");
    // What the loader remarks about the path has its place too.
    let (_, problems) = host.problems("twice.tool.json");
    assert!(problems[0]["line"].as_u64() > Some(1) && problems[0]["pointer"] == "/handler/scriptPath", "{problems:?}");
}

#[test]
fn a_script_that_is_not_there_is_looked_for_in_each_place_once() {
    let host = host();
    host.tool("t:gone", json!({}));
    fs::remove_file(host.folder.path().join("user_scripts/gone/main.py")).unwrap();
    let manifest = host.folder.path().join("user_scripts/gone/gone.tool.json");
    fs::rename(manifest, host.folder.path().join("user_scripts/gone.tool.json")).unwrap();
    let (_, problems) = host.problems("gone.tool.json");
    let message = problems[0]["message"].as_str().unwrap();
    assert_eq!(message.matches("user_scripts/gone/main.py").count(), 1, "{message}");
}

#[test]
fn what_stands_in_the_way_of_a_verb_comes_with_its_mend() {
    let host = host();
    let (code, _, err) = host.run(&["call", "core:run-code", "--input", "@"]);
    assert!(code == 2 && err.contains("--input @ names no file"), "{err}");
    fs::create_dir_all(host.folder.path().join("state/toolhost/written.jsonl")).unwrap();
    let (code, _, err) = host.run(&["list"]);
    assert!(code == 4 && err.contains("where tools wrote before is not known") && err.contains("--audit-log"), "{err}");
}

#[test]
fn diff_says_of_a_path_that_it_is_a_path() {
    let host = host();
    for (path, part) in [("/etc/passwd", "is neither a manifest"), ("./nope", "is not there")] {
        let (code, _, err) = host.run(&["diff", path, "core:run-code"]);
        assert!(code == 2 && err.contains(part) && !err.contains("There is no tool"), "{path}: {err}");
    }
    let (_, _, err) = host.run(&["diff", "no:such", "core:run-code"]);
    assert!(err.contains("no tool 'no:such'"), "the control: {err}");
}
