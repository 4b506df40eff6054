//! No verb prints what a terminal would obey, nor lets a name from outside begin a line of its own.

use crate::prelude::*;
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

/// Tools that load with hostile words in them, and files that do not load for theirs.
fn tools(host: &Host) {
    let handler = |more: Value| json!({ "handler": more });
    let asks = |more: Value| json!({ "securityContext": more });
    let schema = |of: Value| json!({ "type": "object", "properties": { EVIL: of } });
    let method =
        json!({ "type": "service-method", "serviceName": EVIL, "methodName": EVIL, "parameterMap": { EVIL: EVIL } });
    let capabilities = json!([EVIL, format!("env:{EVIL}")]);
    for (name, more) in [
        ("plain", json!({})),
        (
            "words",
            json!({
                "displayName": EVIL, "description": EVIL, "tags": [EVIL],
                "metadata": { "category": EVIL, "author": EVIL, "permissions": [EVIL] },
                "examples": [{ "description": EVIL, "input": { EVIL: EVIL }, "expectedOutput": { EVIL: EVIL } }],
                "execution": { "env": { "A": EVIL } },
                "parameters": schema(json!({ "description": EVIL, "enum": [EVIL], "default": EVIL })),
                "output": { "type": "object", "properties": { EVIL: { "const": EVIL } }, "required": [EVIL] },
            }),
        ),
        ("caps", asks(json!({ "requiredCapabilities": capabilities, "fileAccess": { "allowRead": ["/srv/x"] } }))),
        ("method", handler(method)),
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
        ("schema", json!({ "parameters": schema(json!({ "type": EVIL, "pattern": format!("({EVIL}") })) })),
        // What a tool left in its own folder refuses the next call, by its name.
        ("left", asks(json!({ "fileAccess": { "allowWrite": ["out/**"] } }))),
    ] {
        host.tool(&format!("t:{name}"), more);
    }
    let own = format!("user_scripts/{EVIL}");
    let files = json!({ "allowRead": ["./**", "/srv/**"], "allowWrite": ["out/**"] });
    let beside = manifest("t:beside", script("main.py", "python"), asks(json!({ "fileAccess": files })));
    let rule = |path: &str| format!("[{{ path = \"{path}\", why = {} }}]", toml(EVIL));
    let policy = |name: &str, tools: &str, write: &str| {
        let head = format!("name = \"{name}\"\nwhy = {}\ntools = [{tools}]\n", toml(EVIL));
        format!("{head}[files]\nread = {}\n{write} {}\n", rule("./**"), rule("./out/**"))
    };
    for (file, text) in [
        (format!("{own}/main.py"), "print(1)\n".to_owned()),
        (format!("{own}/out/node_modules"), String::new()),
        (format!("{own}/{EVIL}.tool.json"), beside.to_string()),
        (format!("user_scripts/left/out/{EVIL}/node_modules/x"), String::new()),
        (format!("user_scripts/plain/{EVIL}.tool.json"), "{\"x\": }".to_owned()),
        (format!("sandbox-policies/{EVIL}.policy.toml"), policy("hostile", "\"t:beside\", \"t:left\"", "write =")),
        (format!("sandbox-policies/ignored {EVIL}"), String::new()),
        ("sandbox-policies/default.policy.toml".to_owned(), policy("default", "\"*\"", "#")),
    ] {
        host.put(&file, text);
    }
    host.put(&format!("user_scripts/plain/z{EVIL}.tool.json"), b"\xff\xfe{}");
}

#[test]
fn no_verb_prints_what_a_terminal_would_obey() {
    let host = host();
    tools(&host);
    let root = host.folder.path().canonicalize().unwrap();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (own, policies) = (at(&format!("user_scripts/{EVIL}")), at("sandbox-policies"));
    let mut watched = Watched(host, Vec::new());
    let (evil_file, evil_policy) = (format!("{own}/{EVIL}.tool.json"), format!("{policies}/{EVIL}.policy.toml"));
    for id in ["t:plain", "t:words", "t:beside", "t:left", "t:caps", "t:method", "t:type", "core:run-code", EVIL] {
        watched.run(&["audit", id, "--suggest-policy"]);
        watched.run(&["call", id, "--verbose", "--log", "debug", "--input", &json!({ EVIL: EVIL }).to_string()]);
        watched.run(&["call", id, "--json", "--log", "debug,json", &format!("{EVIL}=1")]);
        watched.run(&["diff", id, "t:plain"]);
    }
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
        &["audit", "--who-can", &format!("read:{}", at("user_scripts"))],
        &["audit", "--who-can", &format!("write:/{EVIL}")],
        &["audit", "--who-can", &format!("reach:{EVIL}")],
        &["audit", "--who-can", EVIL],
        &["audit", "--call", EVIL],
        &["audit", EVIL],
        &["audit", EVIL, "--json"],
        &["call", "t:plain", EVIL],
        &["call", "t:plain", &format!("--x{EVIL}")],
        &["call", "t:plain", "--timeout-ms", EVIL],
        &["call", "t:plain", "--input", &format!("@/no{EVIL}")],
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
        &["test", EVIL],
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
    let client = json!({ "name": EVIL, "version": "1" });
    let messages = [
        ("initialize", json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client })),
        ("tools/list", json!({})),
        ("tools/call", json!({ "name": "t__words", "arguments": { EVIL: EVIL } })),
        (EVIL, json!({})),
        ("tools/call", json!({ "name": EVIL })),
    ];
    let request = |(id, (method, params)): (usize, &(&str, Value))| {
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id + 1, "method": method, "params": params }))
    };
    let input: String = messages.iter().enumerate().map(request).collect();
    watched.with_input(&["serve", "--stdio", "--log", "debug"], &input);
    let there = "\u{202e}";
    for broken in [
        format!("{0} = 1\nname = {0}\n[files]\nread = [{{ path = {0}, why = \"\" }}]\n", toml(EVIL)),
        format!("name = \"x{}", EVIL.replace('\n', " ")),
        format!("name = \"z\"\nwhy = \"w\"\ntools = [{0}]\nfolders = [{0}]\nmode = {0}\n", toml(EVIL)),
        format!(
            "name = \"z\"\nwhy = \"w\"\ntools = [\"t:plain\"]\nfolders = [\"no{there}\"]\n\
             [files]\nread = [{{ path = \"/opt/{there}\", why = \"{there}\" }}]\n\
             [runtimes]\npython = {{ path = \"/opt/{there}\", why = \"w\" }}\n"
        ),
    ] {
        watched.0.put("sandbox-policies/z.policy.toml", broken);
        for arguments in [
            &["check"][..],
            &["call", "t:plain", "--log", "debug"],
            &["audit", "t:plain"],
            &["doctor"],
            &["diff", &policies, "t:plain"],
        ] {
            watched.run(arguments);
        }
    }
    assert!(watched.1.is_empty(), "{}", watched.1.join("\n"));
}
