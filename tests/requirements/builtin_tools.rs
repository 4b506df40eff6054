//! The builtin tools behind the real layers: scripts that an agent names, code that it brings.

use super::put;
use crate::prelude::*;
use toolhost::base::json as reader;

/// The manifest by which the builtin Python tool was specified, comments and all.
const SEED: &str = include_str!("builtin_tools.tool.jsonc");

/// Opens what it is told to, and says what it got.
const SPY: &str = "import json, sys\nasked = json.load(sys.stdin)\nmode = asked.get('mode', \
    'r')\ntry:\n    file = open(asked['path'], mode)\n    text = file.read() if mode == 'r' else \
    str(file.write('x'))\nexcept OSError as e:\n    text = 'errno %d' % \
    e.errno\nprint(json.dumps({'got': text}))\n";
const ECHO_JS: &str = "const fs = require('fs')\nconst runs = typeof Bun === 'undefined' ? 'node' \
    : 'bun'\nconsole.log(JSON.stringify({runs, got: JSON.parse(fs.readFileSync(0, 'utf8'))}))\n";
const ECHO_TS: &str = "const given: object = await \
    Bun.stdin.json()\nconsole.log(JSON.stringify({runs: 'bun', got: given}))\n";
const FILES: &[(&str, &str)] = &[
    ("free/spy.py", SPY),
    (
        "free/fails.py",
        "import sys\nprint('broken inside', file=sys.stderr)\nsys.exit(3)\n",
    ),
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
    for folder in ["user_scripts/examples", "tool-defs/examples"] {
        copy(&repository(folder), &playground.path(folder));
    }
    playground.allow_builtin_tools();
    for (name, text) in FILES {
        put(&playground, format!("user_scripts/{name}"), text);
    }
    symlink(
        playground.path("secret/secret.txt"),
        playground.path("user_scripts/free/link.py"),
    )
    .unwrap();
    playground.settle();
    playground
}

const PY: &str = "core:execute-python-script";
const RUN: &str = "core:run-code";

#[test]
fn scripts_and_code_of_agents_run_behind_the_layers() {
    as_everyone("the builtin tools", |who| {
        let mut playground = playground(who);
        let cache = playground.path("user_scripts/free/.cache");
        let before = playground.state(&[&cache]);
        let mut wrong = Vec::new();
        // Tool, language that it takes, decision of the audit record, wanted, input. BASE is the
        // playground.
        for row in include_str!("builtin_tools.txt")
            .lines()
            .filter(|row| !row.starts_with('#'))
        {
            let [tool, language, decision, wanted, input] =
                row.splitn(5, " | ").collect::<Vec<_>>()[..]
            else {
                panic!("{row}")
            };
            // What is refused before anything starts is the same for everybody.
            let allowed = decision == "allowed";
            let tried = if allowed {
                has(language, 1)
            } else {
                who == Who::ours()
            };
            if !tried {
                continue;
            }
            let tool = &format!("core:{tool}");
            let input = input.replace("BASE", playground.base.to_str().unwrap());
            let mut fault = |what: String| wrong.push(format!("{tool} {input}: {what}"));
            let ended = playground.call(tool, &input);
            fits(wanted, &ended).unwrap_or_else(&mut fault);
            let record = playground.records().pop().unwrap();
            let outcome = if wanted.starts_with("ok") {
                "success"
            } else {
                ended.kind()
            };
            let told = [
                &record["call"],
                &record["tool"],
                &record["decision"],
                &record["outcome"],
            ];
            if told
                != [
                    &ended.out["id"],
                    &json!(tool),
                    &json!(decision),
                    &json!(outcome),
                ]
            {
                fault(format!("the record says {record}"));
            }
            // Every call that was allowed was confined, behind layers.
            let stood = ended.out["layers"]
                .as_array()
                .is_some_and(|layers| !layers.is_empty());
            if record["digests"]["confinement"].is_string() != allowed || stood != allowed {
                fault(format!(
                    "decision {decision}, layers {stood}, record {record}"
                ));
            }
            if ended.out.to_string().contains(&playground.secret) {
                fault("the secret came out".into());
            }
            playground.assert_quiet(tool);
        }
        let after = playground.state(&[&cache]);
        // The folder that holds .cache changed when .cache was made in it.
        let own = |path: &&PathBuf| path.as_path() != cache.parent().unwrap();
        let changed = after
            .keys()
            .filter(|path| before.get(*path) != after.get(*path))
            .filter(own);
        wrong.extend(changed.map(|path| format!("changed: {}", path.display())));
        assert_eq!(
            fs::read_to_string(cache.join("made.txt")).ok().as_deref(),
            Some("x"),
            "what it may, it wrote"
        );
        assert!(playground.canary_lives());
        assert!(wrong.is_empty(), "as {who:?}:\n{}", wrong.join("\n"));
        // The control: without layers the spy reads and writes what inside it could not.
        for (path, mode, got) in [
            ("../beside/data.txt", "r", "another tool's\n"),
            ("../../secret/secret.txt", "r", &playground.secret),
            ("made.txt", "w", "1"),
            ("spy.py", "w", "1"),
        ] {
            let mut command = playground.outside(PYTHON);
            command
                .current_dir(cache.parent().unwrap())
                .args(["-s", "-E", "-B", "spy.py"]);
            let ended = finish(
                command,
                json!({"path": path, "mode": mode}).to_string().as_bytes(),
            );
            assert_eq!(ended.out, json!({"got": got}), "{path}");
        }
    });
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
    assert_eq!(
        (
            ended.code,
            &playground.records().last().unwrap()["decision"]
        ),
        (Some(3), &json!("refused"))
    );
    fs::remove_file(&policy).unwrap();
    playground.expect(RUN, code, "SecurityError");
    let script = r#"{"scriptPath":"free/spy.py","inputData":{"path":"data.txt"}}"#;
    playground.expect(PY, script, r#"ok {"got":"beside\n"}"#);
    let write = r#"{"scriptPath":"free/spy.py","inputData":{"path":".cache/x","mode":"w"}}"#;
    let ended = playground.call(PY, write);
    assert_ne!(
        ended.out["outputData"]["got"], "1",
        "nothing grants it: {:?}",
        ended.out
    );
}

/// A fresh host lists the tool, and its schema is the specified one.
#[test]
fn a_fresh_host_has_the_seeds_tool() {
    let document = reader::parse(SEED.as_bytes(), reader::Dialect::Commented).unwrap();
    assert!(
        !document.notes.is_empty(),
        "the seed's own comments are read, and noted"
    );
    let mut seed = document.value;
    // The seed's description speaks of any JSON data, and a script may print any.
    let data = seed["output"]["properties"]["outputData"].as_object_mut();
    data.unwrap().retain(|name, _| name == "description");
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::remove_dir_all(playground.path("sandbox-policies")).unwrap();
    let listed = playground
        .cli(&["list", "--json", "--source", "builtin"])
        .out
        .as_array()
        .unwrap()
        .clone();
    let ids: Vec<&str> = listed
        .iter()
        .filter_map(|tool| tool["toolId"].as_str())
        .collect();
    assert_eq!(
        ids,
        [
            "core:call-tool",
            "core:execute-nodejs-script",
            PY,
            "core:execute-script",
            "core:list-skills",
            "core:read-skill",
            RUN,
            "core:run-skill-script",
            "core:search-tools",
            "core:task-status"
        ]
    );
    let own = listed.iter().find(|tool| tool["toolId"] == PY).unwrap();
    for field in [
        "toolId",
        "displayName",
        "version",
        "parameters",
        "output",
        "examples",
        "tags",
    ] {
        assert_eq!(own[field], seed[field], "{field}");
    }
    // The shipped description leaves out what this version does not do: it installs nothing.
    assert!(
        own["description"]
            .as_str()
            .unwrap()
            .starts_with("Executes a provided Python script securely.")
    );
    let asks = playground.cli(&["audit", PY, "--json"]).out["asks"].clone();
    for (what, field) in [("read", "allowRead"), ("write", "allowWrite")] {
        for pattern in seed["securityContext"]["fileAccess"][field]
            .as_array()
            .unwrap()
        {
            let is_this = |ask: &Value| ask["what"] == what && ask["asked"] == *pattern;
            assert!(
                asks.as_array().unwrap().iter().any(is_this),
                "{what} {pattern} is not among {asks}"
            );
        }
    }
    let shipped = fs::read(repository("tool-defs/core/execute-python-script.tool.json")).unwrap();
    let shipped: Value = serde_json::from_slice(&shipped).unwrap();
    assert_eq!(shipped["securityContext"], seed["securityContext"]);
    for field in ["type", "serviceName", "methodName"] {
        assert_eq!(shipped["handler"][field], seed["handler"][field], "{field}");
    }
}

/// Code reads what a policy that names its tool lets it read. A policy for all tools gives it
/// nothing.
#[test]
fn code_reads_what_a_policy_that_names_it_grants() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        fs::remove_dir_all(playground.path("sandbox-policies")).unwrap();
        fs::create_dir_all(playground.path("sandbox-policies")).unwrap();
        fs::create_dir(playground.path("figures")).unwrap();
        fs::write(playground.path("figures/a.txt"), "41").unwrap();
        let figures = playground.path("figures");
        let grant = format!(
            "[files]\nread = [{{ path = \"{}/**\", why = \"w\" }}]\n",
            figures.display()
        );
        let code = format!("print(open('{}/a.txt').read())", figures.display());
        let input = json!({"language": "python", "code": code}).to_string();
        playground.policy("code", RUN, &grant);
        playground.settle();
        playground.expect(RUN, &input, "ok 41");
        playground.policy("all", "*", &grant);
        playground.policy("code", RUN, "");
        playground.settle();
        playground.expect(RUN, &input, "ScriptError: No such file");
    }
}
