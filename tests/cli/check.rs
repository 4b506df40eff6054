//! `check` and `list`, before any call: what no call could do, what no policy could give, names
//! that lead nowhere.

use crate::prelude::*;
fn writing(patterns: &[&str]) -> Value {
    json!({ "securityContext": { "fileAccess": { "allowWrite": patterns } } })
}

fn requiring(capability: &str) -> Value {
    json!({ "securityContext": { "requiredCapabilities": [capability] } })
}

/// (requested write pattern, severity, part of the message). `error`: no policy can grant it.
const ASKS: [(&str, &str, &str); 7] = [
    (".", "error", "could be written"),
    ("./*", "error", "could be written"),
    ("main.py", "error", "could be written"),
    ("node_modules/**", "error", "run or obey"),
    ("report*", "warning", "--suggest-policy"),
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
    let problems_of = host.problems();
    assert_eq!(
        problems_of("fine.tool.json"),
        Vec::<Value>::new(),
        "the control"
    );
    for (at, (asked, severity, part)) in ASKS.iter().enumerate() {
        let problems = problems_of(&format!("ask{at}.tool.json"));
        let [problem] = &problems[..] else {
            panic!("{asked}: {problems:?}")
        };
        assert_eq!(
            [&problem["severity"], &problem["code"]],
            [severity, "security"],
            "{problem}"
        );
        assert_eq!(
            problem["pointer"], "/securityContext/fileAccess/allowWrite/0",
            "{problem}"
        );
        assert!(
            problem["line"].as_u64() > Some(1) && problem["column"].as_u64() > Some(1),
            "{problem}"
        );
        let message = problem["message"].as_str().unwrap();
        assert!(
            message.contains(part) && message.contains("every call is refused"),
            "{message}"
        );
        let (code, _, err) = host.run(&["call", &format!("t:ask{at}"), "--input", "{}"]);
        assert!(
            code == 3 && err.contains("SecurityError") && err.contains(part),
            "{asked}: {err}"
        );
        assert_eq!(
            err.contains("no policy can grant this"),
            *severity == "error",
            "{asked}: {err}"
        );
    }
    let (code, text, _) = host.run(&["check"]);
    assert!(
        code == 2 && text.contains("ask0.tool.json: REFUSED, t:ask0@1.0.0"),
        "{text}"
    );
    assert!(text.contains("3 good, 0 skipped"), "{text}");
    assert_eq!(
        host.run(&["audit", "--who-can", "call:t:ask0"]).1,
        "Nobody can call t:ask0.\n"
    );
    // In `narrow` mode, what is never granted is only a warning.
    host.tool("t:wide", writing(&[".", "out/*.csv"]));
    host.policy("name = \"n\"\nwhy = \"w\"\ntools = [\"*\"]\nmode = \"narrow\"\n");
    let problems = host.problems()("wide.tool.json");
    assert_eq!(
        (host.run(&["check"]).0, problems.len()),
        (0, 1),
        "{problems:?}"
    );
    assert_eq!(
        host.problems()("ask0.tool.json").len(),
        1,
        "also where nothing else is asked"
    );
    assert!(
        problems[0]["message"]
            .as_str()
            .unwrap()
            .contains("never granted, whatever a policy says"),
        "{problems:?}"
    );
    // Where it is not known what tools could write, nothing is loaded.
    fs::remove_dir_all(host.path("sandbox-policies")).unwrap();
    assert_eq!(host.run(&["list"]).0, 0, "the control");
    let ledger = host.path("state/toolhost/written.jsonl");
    let _ = fs::remove_file(&ledger);
    fs::create_dir_all(&ledger).unwrap();
    let (code, _, err) = host.run(&["list"]);
    assert!(
        code == 4
            && err.contains("where tools wrote before is not known")
            && err.contains("--audit-log"),
        "{err}"
    );
}

#[test]
fn a_secret_that_no_call_could_have_is_reported_at_its_place() {
    // Name, source, what `check` says of it.
    let secrets = [
        ("VARIABLE", "env:X", ""),
        ("FINE", "file:fine.key", ""),
        ("OPEN", "file:open.key", "(mode 0640): chmod 600"),
        ("MISSING", "file:fine.keys", "fine.keys does not exist"),
        ("FOLDER", "file:folder", "not a regular file"),
        ("COMMAND", "command:/bin/sh", ""),
        ("GONE", "command:/no/sh", "/no/sh does not exist"),
    ];
    let host = host();
    host.tool("t:one", requiring("secret:FINE"));
    host.tool("t:two", requiring("secret:OTHER"));
    let grant =
        |(name, from, _)| format!("{{ name = \"{name}\", from = \"{from}\", why = \"w\" }},\n");
    let head = "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\", \"t:two\"]\n";
    host.policy(&format!(
        "{head}[secrets]\ngrant = [\n{}]\n",
        secrets.map(grant).concat()
    ));
    fs::create_dir(host.path("sandbox-policies/folder")).unwrap();
    for (name, mode) in [("fine.key", 0o600), ("open.key", 0o640)] {
        let file = host.put(&format!("sandbox-policies/{name}"), "hunter2-hunter2");
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }
    let problems_of = host.problems();
    assert_eq!(
        problems_of("one.tool.json"),
        Vec::<Value>::new(),
        "the control"
    );
    let two = problems_of("two.tool.json");
    assert!(
        two[0]["message"]
            .as_str()
            .unwrap()
            .contains("no entry of [secrets] grant in policy `x`"),
        "{two:?}"
    );
    let found = problems_of("x.policy.toml");
    let wanted: Vec<_> = secrets
        .iter()
        .enumerate()
        .filter(|(_, (_, _, words))| !words.is_empty())
        .collect();
    assert_eq!(
        (host.run(&["check"]).0, found.len()),
        (0, wanted.len()),
        "{found:?}"
    );
    for (problem, (at, (_, _, words))) in found.iter().zip(wanted) {
        assert_eq!(
            problem["pointer"],
            format!("/secrets/grant/{at}/from"),
            "{problem}"
        );
        assert!(
            problem["message"].as_str().unwrap().contains(words),
            "{words}: {problem}"
        );
    }
}

/// Only a running server knows what is announced: a policy for it is no mistake, and one for
/// anything else is.
#[test]
fn a_policy_of_an_announced_tool_is_not_a_mistake() {
    let host = host();
    host.tool("t:one", json!({}));
    let private = |name: &str, text: &str| {
        let file = host.put(name, text);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    };
    private("b.key", &"k".repeat(40));
    let from =
        "announced = { from = [{ announcer = \"b\", namespace = \"far\", key = \"file:b.key\" }] }";
    let config = private(
        "config.toml",
        &format!("[[tool_services]]\nurl = \"amqp://localhost\"\n{from}\n"),
    );
    let with = ["--config", config.as_str(), "check", "--strict"];
    let cases = [
        ("far.svc:ask", 0),
        ("far.svc:*", 0),
        ("fra.svc:ask", 2),
        ("far:ask", 2),
        ("farther.svc:*", 2),
    ];
    for (named, code) in cases {
        host.policy(&format!(
            "name = \"x\"\nwhy = \"w\"\ntools = [\"{named}\"]\n"
        ));
        let (exit, out, err) = host.run(&with);
        assert!(
            exit == code && out.contains("names no loaded tool") == (code > 0),
            "{named}: {out}{err}"
        );
        assert_eq!(
            host.run(&["check", "--strict"]).0,
            2,
            "the control: without an announcer, {named}"
        );
    }
}

#[test]
fn a_manifest_that_is_broken_is_no_typo_of_its_policy() {
    let host = host();
    host.policy("name = \"x\"\nwhy = \"w\"\ntools = [\"own:tool\"]\n");
    for (text, is_known) in [("{\"toolId\": \"own:tool\", ", true), ("{", false)] {
        host.put("user_scripts/tool/tool.tool.json", text);
        let (_, out, err) = host.run(&["check"]);
        assert_eq!(
            !out.contains("names no loaded tool"),
            is_known,
            "{out}{err}"
        );
    }
}

#[test]
fn a_function_that_is_missing_and_a_broken_module_are_found() {
    let host = host();
    let python = "def run():\n    return 1\n";
    // name, language, file, script, entry point, the error that is found
    let cases = [
        ("fine", "python", "main.py", python, "run", ""),
        (
            "lacks",
            "python",
            "main.py",
            python,
            "rum",
            "did you mean 'run'?",
        ),
        (
            "default",
            "nodejs",
            "main.cjs",
            "module.exports = () => 1\n",
            "default",
            "",
        ),
        ("module", "wasm", "main.wat", "(module)\n", "", ""),
        (
            "broken",
            "wasm",
            "main.wat",
            "(module\n  (func $f (result i32) i32.const\n",
            "",
            "not WebAssembly: line ",
        ),
    ];
    for (name, language, file, text, entry, _) in cases {
        host.put(&format!("user_scripts/{name}/{file}"), text);
        let more = if entry.is_empty() {
            json!({})
        } else {
            json!({"handler": {"entryPoint": entry}})
        };
        let manifest = manifest(
            format!("t:{name}"),
            script(format!("{name}/{file}"), language),
            more,
        );
        host.put(
            &format!("user_scripts/{name}/{name}.tool.json"),
            manifest.to_string(),
        );
    }
    let problems_of = host.problems();
    for (name, .., wanted) in cases {
        let problems = problems_of(&format!("{name}.tool.json"));
        let errors = problems
            .iter()
            .filter(|problem| problem["severity"] == "error");
        let said: Vec<&str> = errors
            .map(|problem| problem["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            said.len(),
            usize::from(!wanted.is_empty()),
            "{name}: {said:?}"
        );
        assert!(
            said.iter().all(|words| words.contains(wanted)),
            "{name}: {said:?}"
        );
    }
}

/// What the manifest has | where `check` says so | what a call ends with | severity | words that
/// all of them say
const REFUSED: &str = include_str!("refused.txt");

/// `check`, `list` and `audit` show the refusal of a call.
#[test]
fn what_no_call_could_do_is_reported_by_check_list_and_audit() {
    let host = host();
    host.tool("t:fine", json!({}));
    let rows: Vec<Vec<&str>> = REFUSED
        .lines()
        .map(|row| row.split('|').collect())
        .collect();
    for (at, row) in rows.iter().enumerate() {
        host.tool(&format!("t:r{at}"), serde_json::from_str(row[0]).unwrap());
    }
    let (listed, audited, problems_of) = (
        host.json(&["list"]),
        host.json(&["audit", "--all"]),
        host.problems(),
    );
    let (table, audit) = (host.run(&["list"]).1, host.run(&["audit", "--all"]).1);
    let one = |all: &Value, key: &str, id: &str| {
        all.as_array()
            .unwrap()
            .iter()
            .find(|tool| tool[key] == id)
            .unwrap_or_else(|| panic!("{id}: {all}"))
            .clone()
    };
    let listed = |id: &str| one(&listed, "toolId", id);
    let refusal =
        |id: &str| one(&audited["tools"], "tool", &format!("{id}@1.0.0"))["refused"].clone();
    assert_eq!(
        (&listed("t:fine")["available"], refusal("t:fine")),
        (&json!(true), Value::Null),
        "the control"
    );
    assert_eq!(
        problems_of("fine.tool.json"),
        Vec::<Value>::new(),
        "the control"
    );
    for (at, row) in rows.into_iter().enumerate() {
        let [more, pointer, kind, severity, words] = row[..] else {
            panic!("{row:?}")
        };
        let id = format!("t:r{at}");
        let (code, _, err) = host.run(&["call", &id, "--input", "{}"]);
        assert_eq!(code, 4, "{more}: {err}");
        assert!(
            err.contains(kind) && err.replace('\n', " ").contains(words),
            "{more}: {err}"
        );
        let tool = listed(&id);
        assert!(
            tool["available"] == false && tool["needs"].to_string().contains(words),
            "{more}: {tool}"
        );
        let verdict = audit
            .lines()
            .skip_while(|line| !line.trim_start().starts_with(&format!("{id}@1.0.0 ")))
            .nth(1)
            .filter(|line| line.trim_start().starts_with("refused: "));
        assert!(
            verdict.is_some_and(|line| line.contains(words)),
            "{more}: {audit}"
        );
        assert!(table.contains(words), "{more}: {table}");
        assert_eq!(refusal(&id)["type"], kind, "{more}");
        let problems = problems_of(&format!("/r{at}.tool.json"));
        let problem = problems
            .iter()
            .find(|problem| problem["message"].as_str().unwrap().contains(words));
        let problem = problem.unwrap_or_else(|| panic!("{more}: {problems:?}"));
        assert!(
            problem["message"]
                .as_str()
                .unwrap()
                .starts_with("unavailable here: "),
            "{problem}"
        );
        assert_eq!(
            (&problem["pointer"], &problem["severity"]),
            (&json!(pointer), &json!(severity)),
            "{problem}"
        );
        assert!(problem["line"].as_u64() > Some(0), "{problem}");
    }
}

#[test]
fn a_manifest_by_nearly_its_name_is_reported() {
    let host = host();
    host.tool("t:other", json!({}));
    let text = manifest("t:one", script("one/main.py", "python"), json!({})).to_string();
    let put = |name: &str| host.put(&format!("user_scripts/one/{name}"), &text);
    host.put("user_scripts/one/main.py", "print(1)\n");
    // Data, and a copy that somebody put away.
    let others = ["package.json", "one.tool.json.bak"].map(|name| (put(name), name).1);
    assert_eq!(host.run(&["check", "--strict"]).0, 0, "the control");
    let names = [
        "ONE.TOOL.JSON",
        "one.tool.jsonc",
        "one.tool.yaml",
        "tool.json",
    ]
    .map(|name| (put(name), name).1);
    let (code, out, err) = host.run(&["check"]);
    let passed_over =
        "warning[unreadable]: is ignored: the name of a manifest ends with .tool.json";
    assert_eq!(
        (code, out.matches(passed_over).count()),
        (0, names.len()),
        "{out}{err}"
    );
    assert_eq!(host.run(&["check", "--strict"]).0, 2);
    let (code, _, err) = host.run(&["call", "t:one"]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("one/ONE.TOOL.JSON: is ignored") && err.contains("and 3 more"),
        "{err}"
    );
    names
        .iter()
        .for_each(|name| assert!(out.contains(&format!("one/{name}: ")), "{name}: {out}"));
    others.iter().for_each(|name| {
        assert!(
            !out.contains(name) && !err.contains(name),
            "{name}: {out}{err}"
        )
    });
    put("one.tool.json");
    assert_ne!(host.run(&["call", "t:one"]).0, 2, "the control");
}

#[test]
fn a_policy_that_is_not_read_is_a_warning_and_hidden_files_are_none() {
    let host = host();
    host.tool("t:one", json!({}));
    // What an editor keeps beside an open file is hidden, and a lock of it is a link that leads
    // nowhere.
    let link =
        |name: &str| symlink("me@host.123", host.path("sandbox-policies").join(name)).unwrap();
    host.put(
        "sandbox-policies/.x.policy.toml",
        "name = \"hidden\"\n[broken",
    );
    link(".#x.policy.toml");
    let (code, out, err) = host.run(&["check"]);
    assert!(
        code == 0 && !out.contains(".x.policy.toml") && !out.contains(".#x"),
        "{out}{err}"
    );
    assert_eq!(host.run(&["list"]).0, 0);
    let rows = [
        ("callers.toml", "warning"),
        ("x.policy", "warning"),
        ("README.md", "note"),
    ];
    for (name, _) in rows {
        host.put(&format!("sandbox-policies/{name}"), "confirm = \"x\"\n");
    }
    let problems_of = host.problems();
    for (name, severity) in rows {
        let problems = problems_of(name);
        assert_eq!(
            (problems.len(), problems[0]["severity"].as_str()),
            (1, Some(severity)),
            "{name}: {problems:?}"
        );
    }
    // The key of docs/RECIPES.md lies there because a policy says so.
    let key = host.put("sandbox-policies/rates.key", "hunter2-hunter2");
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(host.run(&["check"]).1.contains("rates.key"), "the control");
    let grant = "grant = [{ name = \"KEY\", from = \"file:rates.key\", why = \"w\" }]\n";
    host.policy(&format!(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\"]\n[secrets]\n{grant}"
    ));
    let (code, out, _) = host.run(&["check"]);
    assert!(code == 0 && !out.contains("rates.key"), "{out}");
    host.policy("");
    assert!(
        host.run(&["call", "t:one"])
            .2
            .contains("the shell makes FILE first")
    );
    fs::remove_file(host.path("sandbox-policies/x.policy.toml")).unwrap();
    assert_eq!(host.run(&["list"]).0, 0);
    link("y.policy.toml");
    assert_eq!(
        host.run(&["list"]).0,
        3,
        "the control: under a name that is not hidden it stops everything"
    );
}

#[test]
fn an_example_that_does_not_fit_is_shown_to_no_model_and_a_caller_without_an_entry_hears_so() {
    let host = host();
    let parameters =
        json!({"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}});
    let example = |n: Value| json!({"description": "d", "input": {"n": n}});
    host.tool(
        "t:one",
        json!({"parameters": parameters, "examples": [example(json!("x")), example(json!(3))]}),
    );
    let out = host
        .run(&["list", "--format", "anthropic", "--namespace", "t"])
        .1;
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed[0]["input_examples"], json!([{"n": 3}]), "{out}");
    let out = host.run(&["prompt", "--namespace", "t"]).1;
    assert!(
        out.contains("{\"n\":3}") && !out.contains("{\"n\":\"x\"}"),
        "{out}"
    );
    let entry = "[[caller]]\nname = \"alice\"\nwhy = \"a test\"\ntools = [\"t:*\"]\n";
    host.put("sandbox-policies/callers.policy.toml", entry);
    let (_, out, err) = host.run(&["list"]);
    assert!(
        out == "No tools.\n"
            && err.contains("callers.policy.toml grants")
            && err.contains("no tool"),
        "{out}{err}"
    );
    let (_, out, err) = host.run(&["list", "--caller", "alice"]);
    assert!(
        out.contains("t:one") && !err.contains("grants"),
        "{out}{err}"
    );
}

/// (the script, the parameters that its manifest declares, what `check` says). Nothing of a script
/// is run, whatever it does when it is imported.
const PARSED: [(&str, &str, &str); 8] = [
    ("def run(x):\n    return x\n", "x", ""),
    ("def run(x, y=1, *, z=2):\n    return x\n", "x", ""),
    ("def run(**more):\n    return 1\n", "x", ""),
    (
        "raise SystemExit(open('/etc/passwd'))\ndef run(x): return x\n",
        "x",
        "",
    ),
    ("def run(x:\n    return x\n", "x", "main.py:1: SyntaxError"),
    (
        "return 1\ndef run(x): return x\n",
        "x",
        "main.py:1: SyntaxError",
    ),
    (
        "def run(y=1):\n    return y\n",
        "x",
        "run() does not take 'x'",
    ),
    ("def run(x, y):\n    return y\n", "x", "run() needs 'y'"),
];

#[test]
fn python_scripts_are_parsed_and_not_run() {
    let host = host();
    // What ends the parser, or is too deep for it, hides nothing about the others.
    host.tool("t:deep", json!({}));
    let deep = format!("x = {}1\n", "-".repeat(2_000_000));
    fs::write(host.path("user_scripts/deep/main.py"), deep).unwrap();
    for (at, (script, parameter, _)) in PARSED.iter().enumerate() {
        host.tool(
            &format!("t:p{at}"),
            json!({
                "handler": {
                    "type": "external-script",
                    "language": "python",
                    "scriptPath": format!("p{at}/main.py"),
                    "entryPoint": "run",
                },
                "parameters": {
                    "type": "object",
                    "properties": { *parameter: { "type": "integer", "description": "a number" } },
                },
            }),
        );
        let path = host.path(&format!("user_scripts/p{at}/main.py"));
        assert!(path.exists(), "{}", path.display());
        fs::write(path, script).unwrap();
    }
    let problems_of = host.problems();
    for (at, (script, _, words)) in PARSED.iter().enumerate() {
        let problems = problems_of(&format!("p{at}.tool.json"));
        let messages: Vec<&str> = problems
            .iter()
            .map(|problem| problem["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            messages.len(),
            usize::from(!words.is_empty()),
            "{script}: {messages:?}"
        );
        assert!(messages.concat().contains(words), "{script}: {messages:?}");
    }
}

/// (the script, each hint with its line). The names that Python itself would find.
const HINTED: [(&str, &[&str]); 8] = [
    ("print(1)\n", &[]),
    (
        "import os as o\no.system('x')\nfrom subprocess import run as r\nr(['x'])\n",
        &[
            "main.py:2: `os.system` starts processes",
            "main.py:3: `subprocess.run` starts processes",
            "main.py:4: `subprocess.run` starts processes",
        ],
    ),
    (
        "def f():\n    import ctypes, socket\n\neval('1')\n\u{ff45}val('2')\n",
        &[
            "main.py:2: `ctypes` calls native code",
            "main.py:2: `socket` reaches the network",
            "main.py:4: `eval` runs text or data as code",
            "main.py:5: `eval` runs text or data as code",
        ],
    ),
    (
        "m = __import__('o' + 's')\n",
        &["main.py:1: `__import__` loads modules by name"],
    ),
    (
        "import importlib\nm = importlib.import_module('os')\n",
        &[
            "main.py:1: `importlib` loads modules by name",
            "main.py:2: `importlib.import_module` loads modules by name",
        ],
    ),
    // A module of its own with that name, a variable, and a name that is made as it runs.
    (
        "from . import requests\nfrom .socket import x\nhttp = 1\nprint(http, requests, x)\n",
        &[],
    ),
    ("import os\ngetattr(os, 'sys' + 'tem')('x')\n", &[]),
    ("raise SystemExit(open('/etc/passwd'))\n", &[]),
];

#[test]
fn hints_name_what_a_script_could_do_and_claim_no_more() {
    let host = host();
    let put = |name: &str, text: &[u8]| {
        host.tool(&format!("t:{name}"), json!({}));
        fs::write(host.path(&format!("user_scripts/{name}/main.py")), text).unwrap();
    };
    for (at, (script, _)) in HINTED.iter().enumerate() {
        put(&format!("p{at}"), script.as_bytes());
    }
    put("broken", b"import socket\nx = (\n");
    put("latin", b"import socket # \xe9\n");
    let many = "eval('1')\n".repeat(150);
    put("many", many.as_bytes());
    host.put("user_scripts/js/main.js", "require('child_process')\n");
    let handler =
        json!({"type": "external-script", "language": "nodejs", "scriptPath": "js/main.js"});
    host.tool("t:js", json!({ "handler": handler }));
    let files = host.json(&["check", "--hints"]);
    let hints = |name: &str| -> Vec<String> {
        let path = format!("/{name}.tool.json");
        let mut files = files.as_array().unwrap().iter();
        let file = files.find(|file| file["path"].as_str().unwrap().ends_with(&path));
        let problems = file.unwrap()["problems"].as_array().unwrap().iter();
        let hints = problems.filter_map(|problem| {
            let hint = problem["message"].as_str()?.strip_prefix("hint: ")?;
            assert_eq!(
                [&problem["severity"], &problem["code"]],
                ["note", "security"]
            );
            Some(hint.to_owned())
        });
        hints.collect()
    };
    for (at, (script, wanted)) in HINTED.iter().enumerate() {
        let found = hints(&format!("p{at}"));
        let (about, found) = found.split_last().unwrap();
        assert_eq!(found, *wanted, "{script}");
        assert!(
            about.starts_with(&format!("{} found, ", wanted.len())),
            "{about}"
        );
        assert!(about.contains("to find nothing proves nothing"), "{about}");
    }
    for name in ["broken", "latin", "js"] {
        let found = hints(name);
        assert!(
            found.len() == 1 && found[0].starts_with("not looked at"),
            "{name}: {found:?}"
        );
    }
    let found = hints("many");
    assert!(
        found.len() == 101 && found[100].starts_with("150 found, "),
        "{found:?}"
    );
    // Control: nobody asked.
    let files = host.json(&["check"]).to_string();
    assert!(!files.contains("hint: "), "{files}");
}

/// A grant of a kind that no tool of its policy requests.
#[test]
fn a_grant_that_nobody_requests_is_noted() {
    let host = host();
    host.tool("t:writes", writing(&["out/**"]));
    host.tool("t:plain", json!({}));
    let policy = |name: &str, tool: &str| {
        host.put(
            &format!("sandbox-policies/{name}.policy.toml"),
            format!(
                "name = \"{name}\"\nwhy = \"w\"\ntools = [\"{tool}\"]\n\
                 [files]\nwrite = [{{ path = \"./out/**\", why = \"w\" }}]\n"
            ),
        )
    };
    policy("used", "t:writes");
    policy("idle", "t:plain");
    let problems_of = host.problems();
    let told = |file: &str| json!(problems_of(file)).to_string();
    assert!(told("idle.policy.toml").contains("no tool of this policy requests this"));
    assert!(
        !told("used.policy.toml").contains("requests this"),
        "the control"
    );
}

/// A policy that names an interpreter which is not there: the person reads which and where, an
/// agent no path, and the tool is not counted as good.
#[test]
fn a_missing_interpreter_is_named_to_the_person() {
    let playground = Playground::with(
        Who::ours(),
        &[
            ("old", "python", "print(1)\n", json!({})),
            ("new", "python", "print(1)\n", json!({})),
        ],
    );
    let missing = "/opt/none/bin/python3";
    let rule = format!("[runtimes]\npython = {{ path = \"{missing}\", why = \"t\" }}\n");
    playground.policy("old", "esc:old", &rule);
    playground.settle();
    playground.expect("esc:new", "{}", "ok");
    let person = playground.cli(&["call", "esc:old", "--input", "{}"]).stderr;
    assert!(
        person.contains(missing) && person.contains("old.policy.toml:5"),
        "{person}"
    );
    let agent = Server::start(&playground)
        .called("esc:old", json!({}))
        .to_string();
    assert!(
        agent.contains("cannot be used here") && !agent.contains(missing),
        "{agent}"
    );
    let text = playground.cli(&["check"]).text();
    assert!(text.contains("1 unavailable here"), "{text}");
}
