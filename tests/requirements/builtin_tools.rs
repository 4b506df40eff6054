//! The builtin tools behind the real walls: scripts that an agent names, code that it brings.

use crate::prelude::*;
use toolhost::base::json as reader;

/// The manifest by which the builtin Python tool was specified, comments and all.
const SEED: &str = include_str!("builtin_tools.tool.jsonc");

/// Opens what it is told to, and says what it got.
const SPY: &str = "import json, sys\nasked = json.load(sys.stdin)\ntry:\n    text = open(asked['path'], asked.get('mode', 'r')).read() if asked.get('mode', 'r') == 'r' \\\n        else str(open(asked['path'], asked['mode']).write('x'))\nexcept OSError as e:\n    text = 'errno %d' % e.errno\nprint(json.dumps({'got': text}))\n";
const ECHO_JS: &str = "const fs = require('fs')\nconsole.log(JSON.stringify({runs: typeof Bun === 'undefined' ? 'node' : 'bun', got: JSON.parse(fs.readFileSync(0, 'utf8'))}))\n";
const ECHO_TS: &str =
    "const given: object = await Bun.stdin.json()\nconsole.log(JSON.stringify({runs: 'bun', got: given}))\n";
const FILES: &[(&str, &str)] = &[
    ("free/spy.py", SPY),
    ("free/fails.py", "import sys\nprint('broken inside', file=sys.stderr)\nsys.exit(3)\n"),
    ("free/list.py", "print([1, 2])\n"),
    ("free/slow.js", "setTimeout(() => console.log(1), 60000)\n"),
    ("free/echo.js", ECHO_JS),
    ("free/echo.cjs", ECHO_JS),
    ("free/echo.ts", ECHO_TS),
    ("free/main", "print('{\"no\": \"ending\"}')\n"),
    ("free/data.txt", "beside\n"),
    ("beside/data.txt", "another tool's\n"),
];

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    copy(&repository("user_scripts/examples"), &playground.path("user_scripts/examples"));
    copy(&repository("tool-defs/examples"), &playground.path("tool-defs/examples"));
    playground.allow_builtin_tools();
    for (name, text) in FILES {
        let path = playground.path("user_scripts").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    symlink(playground.path("secret/secret.txt"), playground.path("user_scripts/free/link.py")).unwrap();
    playground.settle();
    playground
}

/// (tool, language it takes to run, input, wanted, decision of the audit record). BASE is the playground.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str);

const PY: &str = "core:execute-python-script";
const JS: &str = "core:execute-nodejs-script";
const ANY: &str = "core:execute-script";
const RUN: &str = "core:run-code";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // The two examples of the builtin tools.
    (PY, "python", r#"{"scriptPath":"examples/echo.py","inputData":{"message":"hello from agent"}}"#, r#"ok {"received_message":"hello from agent"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"examples/long_running.py","inputData":{},"timeoutMs":100}"#, "TimeoutError: Script execution timed out.", "allowed"),
    // The same with a path that names the base folder once more: agents write it so.
    (PY, "python", r#"{"scriptPath":"user_scripts/examples/echo.py","inputData":{"message":"m"}}"#, r#"ok {"received_message":"m"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/fails.py"}"#, "ScriptError: broken inside", "allowed"),
    (PY, "python", r#"{"scriptPath":"free/list.py"}"#, "OutputValidationError: outputData", "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":"data.txt"}}"#, r#"ok {"got":"beside\n"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":"../beside/data.txt"}}"#, r#"ok {"got":"errno 2"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":"BASE/secret/secret.txt"}}"#, r#"ok {"got":"errno 2"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":"made.txt","mode":"w"}}"#, r#"ok {"got":"errno 30"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":"spy.py","mode":"w"}}"#, r#"ok {"got":"errno 30"}"#, "allowed"),
    (PY, "python", r#"{"scriptPath":"free/spy.py","inputData":{"path":".cache/made.txt","mode":"w"}}"#, r#"ok {"got":"1"}"#, "allowed"),
    (JS, "nodejs", r#"{"scriptPath":"free/echo.js","inputData":{"a":[1]}}"#, r#"ok {"runs":"node","got":{"a":[1]}}"#, "allowed"),
    (JS, "nodejs", r#"{"scriptPath":"free/slow.js","timeoutMs":1000}"#, "TimeoutError: Script execution timed out.", "allowed"),
    (ANY, "python", r#"{"language":"python","scriptPath":"examples/echo.py","inputData":{"message":"m"}}"#, r#"ok {"received_message":"m"}"#, "allowed"),
    (ANY, "nodejs", r#"{"language":"nodejs","scriptPath":"free/echo.cjs","inputData":{}}"#, r#"ok {"runs":"node","got":{}}"#, "allowed"),
    (ANY, "bun", r#"{"language":"bun","scriptPath":"free/echo.js","inputData":{}}"#, r#"ok {"runs":"bun","got":{}}"#, "allowed"),
    (ANY, "bun", r#"{"language":"bun","scriptPath":"free/echo.ts","inputData":{"x":1}}"#, r#"ok {"runs":"bun","got":{"x":1}}"#, "allowed"),
    // Languages that disagree.
    (PY, "", r#"{"scriptPath":"free/echo.js"}"#, "ParameterValidationError: names a nodejs script", "refused"),
    (JS, "", r#"{"scriptPath":"examples/echo.py"}"#, "ParameterValidationError: names a python script", "refused"),
    (JS, "", r#"{"scriptPath":"free/echo.ts"}"#, "ParameterValidationError: names a bun script", "refused"),
    // A name that is no script's: an interpreter that is given a file of data prints lines of it.
    (ANY, "", r#"{"language":"python","scriptPath":"free/main"}"#, "ParameterValidationError: names no python script: the name of one ends in .py.", "refused"),
    (ANY, "", r#"{"language":"python","scriptPath":"free/echo.js"}"#, "ParameterValidationError: names a nodejs script", "refused"),
    (ANY, "", r#"{"scriptPath":"examples/echo.py"}"#, "ParameterValidationError: language", "refused"),
    (PY, "", r#"{"scriptPath":"examples/echo.py","language":"python"}"#, "ParameterValidationError: language", "refused"),
    // Paths and arguments that are refused before anything starts.
    (PY, "", r#"{"scriptPath":"../secret/secret.txt"}"#, "SecurityError", "refused"),
    (PY, "", r#"{"scriptPath":"free/../../secret/secret.txt"}"#, "SecurityError", "refused"),
    (PY, "", r#"{"scriptPath":"BASE/user_scripts/free/spy.py"}"#, "SecurityError", "refused"),
    (PY, "", r#"{"scriptPath":"free/link.py"}"#, "SecurityError", "refused"),
    // Code that the agent brings.
    (RUN, "python", r#"{"language":"python","code":"import json, sys\nprint(json.dumps({'sum': sum(json.load(sys.stdin)['numbers'])}))","inputData":{"numbers":[1,2,3]}}"#, r#"ok {"sum":6}"#, "allowed"),
    (RUN, "nodejs", r#"{"language":"nodejs","code":"console.log(JSON.stringify({words: 'to be or not'.split(' ').length}))"}"#, r#"ok {"words":4}"#, "allowed"),
    (RUN, "bun", r#"{"language":"bun","code":"const n: number = 4; console.log(JSON.stringify({n, bun: typeof Bun}))"}"#, r#"ok {"n":4,"bun":"object"}"#, "allowed"),
    (RUN, "python", r#"{"language":"python","code":"raise ValueError('no good')"}"#, "ScriptError: ValueError: no good", "allowed"),
    (RUN, "python", r#"{"language":"python","code":"while True: pass","timeoutMs":400}"#, "TimeoutError: Script execution timed out.", "allowed"),
    (RUN, "python", r#"{"language":"python","code":"import os\nprint(str(os.path.exists('BASE')).lower())"}"#, "ok false", "allowed"),
    (RUN, "python", r#"{"language":"python","code":"open('/tmp/left', 'w').write('1')\nprint(open('/tmp/left').read())"}"#, "ok 1", "allowed"),
    (RUN, "python", r#"{"language":"python","code":"import os\nprint(str(os.path.exists('/tmp/left')).lower())"}"#, "ok false", "allowed"),
    (RUN, "", r#"{"language":"wasm","code":"(module)"}"#, "ParameterValidationError: language", "refused"),
    (RUN, "", r#"{"language":"python","code":"print(1)","env":{"A":"b"}}"#, "ParameterValidationError: env", "refused"),
];

#[test]
fn scripts_and_code_of_agents_run_behind_the_walls() {
    as_everyone("the builtin tools", |who| {
        let mut playground = playground(who);
        let cache = playground.path("user_scripts/free/.cache");
        let before = playground.state(&[&cache]);
        let mut wrong = Vec::new();
        // What is refused before anything starts is the same for everybody.
        let here = |case: &&Case| case.4 == "allowed" && has(case.1, 1) || case.4 == "refused" && who == Who::ours();
        for (tool, _, input, wanted, decision) in CASES.iter().filter(here) {
            let input = input.replace("BASE", playground.base.to_str().unwrap());
            let ended = playground.call(tool, &input);
            if let Err(why) = fits(wanted, &ended) {
                wrong.push(format!("{tool} {input}: {why}"));
            }
            let records = playground.records();
            let record = records.last().unwrap();
            let outcome = if wanted.starts_with("ok") { "success" } else { ended.kind() };
            let told = (&record["call"], &record["tool"], &record["decision"], &record["outcome"]);
            if told != (&ended.out["id"], &json!(tool), &json!(decision), &json!(outcome)) {
                wrong.push(format!("{tool} {input}: the record says {record}"));
            }
            // Every call that was allowed was confined, behind walls.
            let allowed = *decision == "allowed";
            let stood = ended.out["walls"].as_array().is_some_and(|walls| !walls.is_empty());
            if record["digests"]["confinement"].is_string() != allowed || stood != allowed {
                wrong.push(format!("{tool} {input}: decision {decision}, walls {stood}, record {record}"));
            }
            if ended.out.to_string().contains(&playground.secret) {
                wrong.push(format!("{tool} {input}: the secret came out"));
            }
            playground.assert_quiet(tool);
        }
        let after = playground.state(&[&cache]);
        for path in after.keys().filter(|path| before.get(*path) != after.get(*path)) {
            // The folder that holds .cache changed when .cache was made in it.
            if path != cache.parent().unwrap() {
                wrong.push(format!("changed: {}", path.display()));
            }
        }
        assert_eq!(
            fs::read_to_string(cache.join("made.txt")).ok().as_deref(),
            Some("x"),
            "what it may write, it wrote"
        );
        assert!(playground.canary_lives());
        assert!(wrong.is_empty(), "as {}:\n{}", who.name(), wrong.join("\n"));
    });
}

/// The control: without walls the spy reads and writes what inside it could not.
#[test]
fn the_spy_outside_gets_everything() {
    let playground = playground(Who::User);
    for (path, mode, got) in [
        ("../beside/data.txt", "r", "another tool's\n".to_owned()),
        ("../../secret/secret.txt", "r", playground.secret.clone()),
        ("made.txt", "w", "1".to_owned()),
        ("spy.py", "w", "1".to_owned()),
    ] {
        let mut command = playground.outside(PYTHON);
        command.current_dir(playground.path("user_scripts/free")).args(["-s", "-E", "-B", "spy.py"]);
        let ended = finish(command, json!({"path": path, "mode": mode}).to_string().as_bytes());
        assert_eq!(serde_json::from_slice::<Value>(&ended.stdout).unwrap(), json!({"got": got}), "{path}");
    }
}

/// `core:run-code` exists only while a policy names it exactly.
#[test]
fn without_its_policy_no_code_is_run() {
    let playground = playground(Who::ours());
    let code = r#"{"language":"python","code":"print(1)"}"#;
    playground.expect(RUN, code, "ok 1");
    let policy = playground.path("sandbox-policies/core.policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, text.replace(", \"core:run-code\"]", "]")).unwrap();
    let ended = playground.expect(RUN, code, "SecurityError");
    assert_eq!((ended.code, &playground.records().last().unwrap()["decision"]), (Some(3), &json!("refused")));
    fs::remove_file(&policy).unwrap();
    playground.expect(RUN, code, "SecurityError");
    let script = r#"{"scriptPath":"free/spy.py","inputData":{"path":"data.txt"}}"#;
    playground.expect(PY, script, r#"ok {"got":"beside\n"}"#);
    let write = r#"{"scriptPath":"free/spy.py","inputData":{"path":".cache/x","mode":"w"}}"#;
    let ended = playground.call(PY, write);
    assert_ne!(ended.out["outputData"]["got"], "1", "nothing grants it: {:?}", ended.out);
}

/// A fresh host lists the tool, and its schema is the specified one.
#[test]
fn a_fresh_host_has_the_seeds_tool() {
    let document = reader::parse(SEED.as_bytes(), reader::Dialect::Commented).unwrap();
    assert!(!document.notes.is_empty(), "the seed's own comments are read, and noted");
    let seed = document.value;
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::remove_dir_all(playground.path("sandbox-policies")).unwrap();
    let listed = playground.cli(&["list", "--json", "--source", "builtin"]).out;
    let listed = listed.as_array().unwrap().clone();
    let ids: Vec<&str> = listed.iter().filter_map(|tool| tool["toolId"].as_str()).collect();
    assert_eq!(ids, [JS, PY, ANY, RUN, "core:task-status"]);
    let own = listed.iter().find(|tool| tool["toolId"] == PY).unwrap();
    for field in ["toolId", "displayName", "version", "parameters", "output", "examples", "tags"] {
        assert_eq!(own[field], seed[field], "{field}");
    }
    // The shipped description leaves out what this version does not do: it installs nothing.
    assert!(own["description"].as_str().unwrap().starts_with("Executes a provided Python script securely."));
    let asks = playground.cli(&["audit", PY, "--json"]).out["asks"].clone();
    for (what, field) in [("read", "allowRead"), ("write", "allowWrite")] {
        for pattern in seed["securityContext"]["fileAccess"][field].as_array().unwrap() {
            let is_this = |ask: &Value| ask["what"] == what && ask["asked"] == *pattern;
            assert!(asks.as_array().unwrap().iter().any(is_this), "{what} {pattern} is not among {asks}");
        }
    }
    let shipped = fs::read(repository("tool-defs/core/execute-python-script.tool.json")).unwrap();
    let shipped: Value = serde_json::from_slice(&shipped).unwrap();
    assert_eq!(shipped["securityContext"], seed["securityContext"]);
    for field in ["type", "serviceName", "methodName"] {
        assert_eq!(shipped["handler"][field], seed["handler"][field], "{field}");
    }
}
