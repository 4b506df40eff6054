//! No verb prints what a terminal would obey, nor lets a name from outside begin a line of its own.

use crate::harness::{Host, host, manifest, script};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reorders, clears, hides, drives, and breaks the line.
const EVIL: &str = "x\u{202e}\u{9b}31m\u{e0041}\u{1b}]0;t\u{7}\nFORGED y";

fn raw(text: &str) -> bool {
    let obeyed = ['\u{202e}', '\u{9b}', '\u{e0041}', '\u{1b}', '\u{7}', '\r', '\t'];
    text.contains(obeyed) || text.lines().any(|line| line.trim_start().starts_with("FORGED"))
}

struct Watched(Host, Vec<String>);

impl Watched {
    fn run(&mut self, arguments: &[&str]) {
        self.with_input(arguments, "");
    }

    fn with_input(&mut self, arguments: &[&str], input: &str) {
        let output = self.0.command().args(arguments).write_stdin(input).output().unwrap();
        for (stream, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
            let text = String::from_utf8(bytes).unwrap();
            if raw(&text) {
                self.1.push(format!("{arguments:?} on {stream}: {text:?}"));
            }
        }
    }
}

/// A TOML string that means these characters.
fn toml(text: &str) -> String {
    format!("\"{}\"", text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect::<String>())
}

fn write(path: &Path, text: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// Tools that load with hostile words in them, and files that do not load for theirs.
fn tools(host: &Host) {
    let handler = |more: Value| json!({ "handler": more });
    let asks = |more: Value| json!({ "securityContext": more });
    for (name, more) in [
        ("plain", json!({})),
        (
            "words",
            json!({
                "displayName": EVIL, "description": EVIL, "tags": [EVIL],
                "metadata": { "category": EVIL, "author": EVIL, "permissions": [EVIL] },
                "examples": [{ "description": EVIL, "input": { EVIL: EVIL }, "expectedOutput": { EVIL: EVIL } }],
                "execution": { "env": { "A": EVIL } },
                "parameters": { "type": "object", "properties": { EVIL: { "description": EVIL, "enum": [EVIL], "default": EVIL } } },
                "output": { "type": "object", "properties": { EVIL: { "const": EVIL } }, "required": [EVIL] },
            }),
        ),
        (
            "caps",
            asks(
                json!({ "requiredCapabilities": [EVIL, format!("env:{EVIL}")], "fileAccess": { "allowRead": ["/srv/x"] } }),
            ),
        ),
        (
            "method",
            handler(
                json!({ "type": "service-method", "serviceName": EVIL, "methodName": EVIL, "parameterMap": { EVIL: EVIL } }),
            ),
        ),
        ("type", handler(json!({ "type": EVIL }))),
        ("key", asks(json!({ EVIL: EVIL }))),
        ("pattern", asks(json!({ "fileAccess": { "allowRead": [EVIL] } }))),
        ("hosts", asks(json!({ "networkAccess": { "allowHosts": [EVIL] } }))),
        ("script", handler(script(EVIL, "python"))),
        ("language", handler(script("plain/main.py", EVIL))),
        ("requires", json!({ "requires": { EVIL: EVIL, "t:none": "^1" } })),
        ("version", json!({ "version": EVIL })),
        ("id", json!({ "toolId": EVIL })),
        ("limits", json!({ "limits": { EVIL: 1, "cpuMs": EVIL } })),
        (
            "schema",
            json!({ "parameters": { "type": "object", "properties": { EVIL: { "type": EVIL, "pattern": format!("({EVIL}") } } } }),
        ),
    ] {
        host.tool(&format!("t:{name}"), more);
    }
    let scripts = host.folder.path().join("user_scripts");
    let mut beside = manifest(
        "t:beside",
        script("main.py", "python"),
        json!({"securityContext": { "fileAccess": { "allowRead": ["./**", "/srv/**"], "allowWrite": ["out/**"] } }}),
    );
    write(&scripts.join(EVIL).join("main.py"), b"print(1)\n");
    write(&scripts.join(EVIL).join("out/node_modules"), b"");
    write(&scripts.join(EVIL).join(format!("{EVIL}.tool.json")), beside.to_string().as_bytes());
    // What a tool left in its own folder refuses the next call, by its name.
    beside["toolId"] = json!("t:left");
    beside["securityContext"] = json!({ "fileAccess": { "allowWrite": ["out/**"] } });
    beside["handler"] = script("main.py", "python");
    write(&scripts.join("left/main.py"), b"print(1)\n");
    write(&scripts.join(format!("left/out/{EVIL}/node_modules/x")), b"");
    write(&scripts.join("left/left.tool.json"), beside.to_string().as_bytes());
    write(&scripts.join(format!("plain/{EVIL}.tool.json")), b"{\"x\": }");
    write(&scripts.join(format!("plain/z{EVIL}.tool.json")), b"\xff\xfe{}");
    let rules = format!(
        "[files]\nread = [{{ path = \"./**\", why = {0} }}]\nwrite = [{{ path = \"./out/**\", why = {0} }}]\n",
        toml(EVIL)
    );
    let policy =
        |name: &str, tools: &str| format!("name = \"{name}\"\nwhy = {}\ntools = [{tools}]\n{rules}", toml(EVIL));
    let policies = host.folder.path().join("sandbox-policies");
    write(&policies.join(format!("{EVIL}.policy.toml")), policy("hostile", "\"t:beside\", \"t:left\"").as_bytes());
    write(&policies.join(format!("ignored {EVIL}")), b"");
    write(&policies.join("default.policy.toml"), policy("default", "\"*\"").replace("write =", "# ").as_bytes());
}

#[test]
fn no_verb_prints_what_a_terminal_would_obey() {
    let host = host();
    tools(&host);
    let root = host.folder.path().canonicalize().unwrap();
    let own = root.join("user_scripts").join(EVIL);
    let (own, policies) = (own.to_str().unwrap().to_owned(), root.join("sandbox-policies"));
    let policies = policies.to_str().unwrap().to_owned();
    let mut watched = Watched(host, Vec::new());
    let evil_file = format!("{own}/{EVIL}.tool.json");
    for id in ["t:plain", "t:words", "t:beside", "t:left", "t:caps", "t:method", "t:type", "core:run-code", EVIL] {
        for how in [&[][..], &["--json"], &["--suggest-policy"]] {
            watched.run(&[&["audit", id], how].concat());
        }
        watched.run(&["call", id, "--json", "--input", "{}"]);
        watched.run(&["call", id, "--verbose", "--log", "debug", "--input", &json!({ EVIL: EVIL }).to_string()]);
        watched.run(&["call", id, "--log", "debug,json", &format!("{EVIL}=1")]);
        watched.run(&["diff", id, "t:plain"]);
        watched.run(&["test", id]);
    }
    let missing = format!("@/no{EVIL}");
    let here = format!("read:{}", root.join("user_scripts").display());
    let (write_there, reach) = (format!("write:/{EVIL}"), format!("reach:{EVIL}"));
    let evil_policy = format!("{policies}/{EVIL}.policy.toml");
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["list", "--namespace", EVIL],
        &["check"],
        &["check", "--json"],
        &["check", &format!("{own}/nothing")],
        &["check", &evil_file],
        &["check", &policies],
        &["audit", "--all"],
        &["audit", "--all", "--json"],
        &["audit", "t:beside", "--probe"],
        &["audit", "--who-can", &here],
        &["audit", "--who-can", &write_there],
        &["audit", "--who-can", &reach],
        &["audit", "--who-can", EVIL],
        &["audit", "--call", EVIL],
        &["call", "t:plain", EVIL],
        &["call", "t:plain", &format!("--x{EVIL}")],
        &["call", "t:plain", "--timeout-ms", EVIL],
        &["call", "t:plain", "--input", &missing],
        &["call", "t:plain", "--input", EVIL],
        &["call", "core:execute-script", &format!("scriptPath={EVIL}")],
        &["diff", &evil_file, "t:words"],
        &["diff", &evil_policy, &format!("{policies}/default.policy.toml")],
        &["diff", &format!("/no/{EVIL}"), "t:plain"],
        &["new", EVIL],
        &["new", "n", "--language", EVIL],
        &["new", "n", "--script", &format!("/no/{EVIL}.py")],
        &["doctor", "--json"],
        &["schema", EVIL],
        &[EVIL],
        &["test", "--all"],
    ] {
        watched.run(arguments);
    }
    let log = fs::read_to_string(root.join("state/toolhost/audit.jsonl")).unwrap();
    assert!(!raw(&log) && log.lines().count() > 20, "{log}");
    for record in log.lines().take(12) {
        let id = serde_json::from_str::<Value>(record).unwrap()["call"].as_str().unwrap().to_owned();
        watched.run(&["audit", "--call", &id]);
    }
    let request = |id: u64, method: &str, params: Value| {
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
    };
    let begin =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": EVIL, "version": "1" } });
    let mut input =
        request(1, "initialize", begin) + &request(2, "tools/list", json!({})) + &request(4, EVIL, json!({}));
    input += &request(3, "tools/call", json!({ "name": "t__words", "arguments": { EVIL: EVIL } }));
    input += &request(5, "tools/call", json!({ "name": EVIL }));
    watched.with_input(&["serve", "--stdio", "--log", "debug"], &input);
    for broken in [
        format!("{} = 1\nname = {}\n[files]\nread = [{{ path = {0}, why = \"\" }}]\n", toml(EVIL), toml(EVIL)),
        format!("name = \"x{}", EVIL.replace('\n', " ")),
        format!("name = \"z\"\nwhy = \"w\"\ntools = [{0}]\nfolders = [{0}]\nmode = {0}\n", toml(EVIL)),
        "name = \"z\"\nwhy = \"w\"\ntools = [\"t:plain\"]\nfolders = [\"no\u{202e}\"]\n[files]\nread = [{ path = \"/opt/\u{202e}\", why = \"\u{202e}\" }]\n[runtimes]\npython = { path = \"/opt/\u{202e}\", why = \"w\" }\n".into(),
    ] {
        write(Path::new(&format!("{policies}/z.policy.toml")), broken.as_bytes());
        for arguments in [&["check"][..], &["call", "t:plain", "--log", "debug"], &["audit", "t:plain"], &["doctor"], &["diff", &policies, "t:plain"]] {
            watched.run(arguments);
        }
    }
    assert!(watched.1.is_empty(), "{}", watched.1.join("\n"));
}
