//! Who owns a script: no other manifest names it, by no path and under no other name. A call that
//! names it answers to all that its own manifests say, and is refused while those are not known.

use super::{put, says, set_mode};
use crate::prelude::*;
use std::os::unix::fs::chown;

const PY: &str = "core:execute-python-script";
const UNKNOWN: &str = "SecurityError: it belongs to a tool that is not loaded";
/// What comes out where a secret does.
const KEY: &str = "99887766";

/// A tool that doubles small numbers; what lies beside it is its own.
const OWN: &str = "import json, os, sys\nfrom helper import read\n\
    def run(n): return n * 2\n\
    if __name__ == '__main__': print(json.dumps({'n': json.load(sys.stdin).get('n')}))\n";
const HELPER: &str = "def read(path): return open(path).read()\n";

fn owned(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.allow_builtin_tools();
    let mut more = parameter(
        "n",
        json!({"type": "integer", "description": "d", "maximum": 3}),
    );
    more["handler"] = json!({"entryPoint": "run"});
    more["parameters"]["required"] = json!(["n"]);
    playground.tool_at("vic:own", "python", "vic/main.py", OWN, more);
    for (name, text) in [
        ("helper.py", HELPER),
        ("lib/deep.py", HELPER),
        ("private.txt", "99887766\n"),
    ] {
        put(&playground, format!("user_scripts/vic/{name}"), text);
    }
    playground.settle();
    playground
}

fn parameter(name: &str, schema: Value) -> Value {
    json!({"parameters": {"type": "object", "properties": {name: schema}}})
}

/// A manifest of a Python script anywhere.
fn define(
    playground: &Playground,
    at: &str,
    id: &str,
    path: &str,
    entry: Option<&str>,
    more: Value,
) {
    let mut handler = script(path, "python");
    if let Some(entry) = entry {
        handler["entryPoint"] = json!(entry);
    }
    put(playground, at, manifest(id, handler, more).to_string());
    playground.settle();
}

/// A call that names a script.
fn run(playground: &Playground, script: &str, input: Value, wanted: &str) -> Ended {
    playground.expect(
        PY,
        &json!({"scriptPath": script, "inputData": input}).to_string(),
        wanted,
    )
}

fn good(playground: &Playground) {
    playground.expect("vic:own", r#"{"n": 2}"#, "ok 4");
    run(playground, "vic/main.py", json!({"n": 2}), r#"ok {"n": 2}"#);
}

/// (manifest, script, entry point): each names what belongs to the tool in `vic`.
const NAMING: [(&str, &str, Option<&str>); 9] = [
    (
        "user_scripts/evil/a.tool.json",
        "vic/main.py",
        Some("os.system"),
    ),
    ("user_scripts/evil/b.tool.json", "vic/main.py", Some("read")),
    ("user_scripts/evil/c.tool.json", "vic/main.py", None),
    (
        "user_scripts/evil/d.tool.json",
        "user_scripts/vic/main.py",
        None,
    ),
    // What lies beside it, and below.
    (
        "user_scripts/evil/e.tool.json",
        "vic/helper.py",
        Some("read"),
    ),
    (
        "user_scripts/evil/f.tool.json",
        "vic/lib/deep.py",
        Some("read"),
    ),
    // From the other base, from a base itself, and from above.
    ("tool-defs/x.tool.json", "vic/helper.py", Some("read")),
    ("tool-defs/vic/x.tool.json", "vic/main.py", None),
    ("user_scripts/x.tool.json", "vic/main.py", None),
];

#[test]
fn a_script_is_named_by_its_owner_alone() {
    let playground = owned(Who::ours());
    good(&playground);
    let base = playground.path("user_scripts");
    let private = base.join("vic/private.txt");
    let path = json!({"path": private}).to_string();
    let owner = base.join("vic/vic-own.tool.json");
    let reason = format!("which belongs to {}: ", owner.display());
    for (number, (at, script, entry)) in NAMING.iter().enumerate() {
        define(
            &playground,
            at,
            &format!("evil:x{number}"),
            script,
            *entry,
            json!({}),
        );
    }
    let checked = playground.cli(&["check"]);
    assert_ne!(checked.code, Some(0));
    let told = checked.text();
    for (number, (at, ..)) in NAMING.iter().enumerate() {
        let ended = playground.expect(
            &format!("evil:x{number}"),
            &path,
            "ToolNotFoundError: which belongs to",
        );
        assert!(
            !ended.stderr.contains(KEY) && !ended.out.to_string().contains(KEY),
            "{ended:?}"
        );
        let (_, told) = told
            .split_once(&format!("{at}: skipped, "))
            .unwrap_or_else(|| panic!("{at}: {told}"));
        let line = told.lines().nth(1).unwrap();
        assert!(
            line.contains("error[security]: /handler/scriptPath: ") && line.contains(&reason),
            "{at}: {line}"
        );
    }
    good(&playground);
    // Every other report says it, or knows nothing of the tool.
    assert!(!playground.cli(&["list"]).text().contains("evil:x"));
    let evil = base.join("evil/f.tool.json").display().to_string();
    for verb in [
        &["audit", "evil:x5"][..],
        &["diff", owner.to_str().unwrap(), &evil],
    ] {
        let told = playground.cli(verb);
        assert!(
            told.stderr.contains(&reason) && told.stdout.is_empty(),
            "{told:?}"
        );
    }
    let told = playground
        .cli(&["audit", "--who-can", &format!("read:{}", private.display())])
        .text();
    assert!(
        told.contains("vic:own@1.0.0") && !told.contains("evil:x"),
        "{told}"
    );
    // Broken, it blocks nothing either.
    NAMING
        .iter()
        .for_each(|(at, ..)| fs::remove_file(playground.path(at)).unwrap());
    for text in [r#"{"handler": {"scriptPath": "vic/main.py"}}"#, "{"] {
        fs::write(base.join("evil/x.tool.json"), text).unwrap();
        good(&playground);
    }
    fs::remove_file(base.join("evil/x.tool.json")).unwrap();
    // The controls: a manifest beside the script is its tool's, and a script in no tool's folder is
    // who names it.
    define(
        &playground,
        "user_scripts/vic/x.tool.json",
        "evil:x",
        "vic/main.py",
        Some("run"),
        json!({}),
    );
    playground.expect("evil:x", r#"{"n": 5}"#, "ok 10");
    fs::remove_file(base.join("vic/x.tool.json")).unwrap();
    fs::remove_file(owner).unwrap();
    let touch = json!({"command": format!("touch {}", playground.path("granted/ran").display())})
        .to_string();
    for (script, entry, input, wanted) in [
        ("vic/helper.py", "read", &path, "ok \"99887766\\n\""),
        // And there, still nothing that the script only imports.
        (
            "vic/main.py",
            "os.system",
            &touch,
            "ScriptError: main.py has no function 'os.system'",
        ),
        (
            "vic/main.py",
            "read",
            &path,
            "ScriptError: 'read' is not defined in main.py",
        ),
    ] {
        define(
            &playground,
            "tool-defs/vic/x.tool.json",
            "evil:x",
            script,
            Some(entry),
            json!({}),
        );
        playground.expect("evil:x", input, wanted);
    }
}

/// A manifest that is put above a script takes it from a manifest elsewhere, and frees no call by
/// its path from that one's parameters. Nor does a manifest elsewhere that is broken, which still
/// speaks for the script that its text names, and for no other.
#[test]
fn a_manifest_above_or_a_broken_one_frees_no_script() {
    let playground = owned(Who::ours());
    for script in ["x.py", "fin/x.py", "fin/direct.py"] {
        let text = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
        put(&playground, format!("user_scripts/team/{script}"), text);
    }
    let more = parameter(
        "account",
        json!({"type": "string", "description": "d", "pattern": "^[a-z]{3}$"}),
    );
    define(
        &playground,
        "tool-defs/fin.tool.json",
        "fin:report",
        "team/fin/direct.py",
        None,
        more,
    );
    let own = fs::read_to_string(playground.path("tool-defs/fin.tool.json")).unwrap();
    let good = || drop(playground.expect("fin:report", r#"{"account": "abc"}"#, "ok"));
    let by_path = |account: &str, wanted: &str| {
        run(
            &playground,
            "team/fin/direct.py",
            json!({"account": account}),
            wanted,
        );
    };
    let unknown = || {
        ["abc", "../../x"]
            .iter()
            .for_each(|account| by_path(account, UNKNOWN))
    };
    good();
    by_path("abc", "ok");
    by_path(
        "../../x",
        "ParameterValidationError: inputData must fit the parameters of fin:report",
    );
    let text = |path: &str| manifest("team:x", script(path, "python"), json!({})).to_string();
    for (at, text) in [
        ("x.tool.json", text("team/x.py")),
        (
            "x.tool.json",
            r#"{"handler": {"scriptPath": "team/x.py"}}"#.into(),
        ),
        ("x.tool.json", "{".into()),
        ("fin/x.tool.json", text("team/fin/x.py")),
    ] {
        let file = put(&playground, format!("user_scripts/team/{at}"), text);
        playground.settle();
        playground.expect(
            "fin:report",
            r#"{"account": "abc"}"#,
            "ToolNotFoundError: which belongs to",
        );
        unknown();
        fs::remove_file(file).unwrap();
    }
    good();
    for broken in [
        &own[..own.len() - 1],
        &own.replacen('{', "{\"version\": \"1\",", 1),
        &own.replace("\"handler\"", "\"handlr\""),
        "{handler: {scriptPath : \"team\\/fin/direct.py\"}}",
    ] {
        put(&playground, "tool-defs/fin.tool.json", broken);
        unknown();
        run(&playground, "team/fin/x.py", json!({}), "ok {}");
    }
    // The control.
    fs::remove_file(playground.path("tool-defs/fin.tool.json")).unwrap();
    by_path("../../x", "ok");
}

/// A running server reads a manifest that now names another script than the one it owned, by
/// mistake.
#[test]
fn a_manifest_that_becomes_wrong_keeps_what_it_owned() {
    let playground = owned(Who::ours());
    put(&playground, "user_scripts/team/direct.py", "print('{}')\n");
    let more = parameter(
        "account",
        json!({"type": "string", "description": "d", "pattern": "^[a-z]{3}$"}),
    );
    let file = playground.path("tool-defs/fin.tool.json");
    define(
        &playground,
        "tool-defs/fin.tool.json",
        "fin:report",
        "team/direct.py",
        None,
        more,
    );
    playground.settle();
    let own = fs::read_to_string(&file).unwrap();
    let mut server = Server::start(&playground);
    let is_refused = |server: &mut Server| {
        let input = json!({"scriptPath": "team/direct.py", "inputData": {"account": "../../x"}});
        kind(&server.called(PY, input)) != "none"
    };
    assert!(is_refused(&mut server));
    for typo in [
        own.replace("team/direct", "team/drect"),
        own.replace("\"handler\"", "\"handlr\""),
        "{".to_owned(),
    ] {
        fs::write(&file, &typo).unwrap();
        playground.settle();
        server.hang_up();
        // A second tool shows that the server has read both.
        let other = format!("esc__seen{}", typo.len());
        playground.tool(&other[5..], "python", "print(1)\n", json!({}));
        playground.settle();
        server.reload("it was read", |server| server.names().contains(&other));
        assert!(is_refused(&mut server), "{typo}");
    }
    // The control.
    fs::remove_file(&file).unwrap();
    server.reload("nobody owns it", |server| !is_refused(server));
}

/// A script that a call names answers to the parameters of every manifest that it belongs to.
#[test]
fn a_script_run_by_path_answers_to_its_own_parameters() {
    const WRONG: &str = "ParameterValidationError: inputData must fit the parameters of vic:own";
    let playground = owned(Who::ours());
    let base = playground.path("user_scripts");
    let run = |script: &str, n: Value, wanted: &str| {
        playground.settle();
        run(&playground, script, json!({"n": n}), wanted);
    };
    run("vic/main.py", json!(3), r#"ok {"n": 3}"#);
    run("vic/main.py", json!(4), WRONG);
    run("vic/main.py", json!("3"), WRONG);
    // Ownership is by path: a copy, or another name of the same file, is a file of its own.
    put(&playground, "user_scripts/free/helper.py", HELPER);
    fs::hard_link(base.join("vic/main.py"), base.join("free/link.py")).unwrap();
    run("free/link.py", json!(4), r#"ok {"n": 4}"#);
    fs::remove_file(base.join("free/link.py")).unwrap();
    ["copy.py", "many.py"]
        .iter()
        .for_each(|copy| drop(put(&playground, base.join("free").join(copy), OWN)));
    run("free/copy.py", json!(4), r#"ok {"n": 4}"#);
    // Two manifests that share a script in no tool's folder: both.
    for (id, most) in [("two:a", 5), ("two:b", 7)] {
        let more = parameter(
            "n",
            json!({"type": "integer", "description": "d", "maximum": most}),
        );
        define(
            &playground,
            &format!("tool-defs/free/{most}.tool.json"),
            id,
            "free/copy.py",
            None,
            more,
        );
    }
    run(
        "free/copy.py",
        json!(6),
        "ParameterValidationError: inputData must fit the parameters of two:a",
    );
    run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
    // A label that policy requires and a tool lacks keeps its script from others, too.
    playground.policy("label", "two:a", "require = [\"permission:pii\"]\n");
    run(
        "free/copy.py",
        json!(5),
        "SecurityError: belongs to a tool that this host refuses",
    );
    fs::remove_file(playground.path("sandbox-policies/label.policy.toml")).unwrap();
    run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
    // What ten owners grant together is found at once: parts of parts do not multiply.
    let reads = ["f", "f*", "*f", "*f*", "?", "?*", "*?", "*?*", "*"].map(|p| format!("./{p}"));
    for n in 0..10 {
        let more = json!({"securityContext": {"fileAccess": {"allowRead": reads}}});
        define(
            &playground,
            &format!("tool-defs/free/many-{n}.tool.json"),
            &format!("many:m{n}"),
            "free/many.py",
            None,
            more,
        );
    }
    run("free/many.py", json!(6), r#"ok {"n": 6}"#);
    // Each tool by its own name answers to its own.
    playground.expect("two:b", r#"{"n": 7}"#, "ok");
    let mut server = Server::start(&playground);
    let told = server
        .called(
            PY,
            json!({"scriptPath": "vic/main.py", "inputData": {"n": 4}}),
        )
        .to_string();
    assert!(told.contains("to which this script belongs"), "{told}");
}

/// An interpreter that is given a file of data prints lines of it.
#[test]
fn files_of_data_are_no_scripts() {
    let languages = ["python", "nodejs", "bun"];
    if !languages.iter().all(|language| has(language, 4)) {
        return;
    }
    let playground = owned(Who::ours());
    let fin = playground.path("user_scripts/fin");
    let data = [
        ".env",
        "accounts.csv",
        "key",
        "notes.txt",
        "conf.json",
        ".hidden/x.py",
        ".x.js",
        "data.py.bak",
    ];
    for name in data.iter().chain(&["plain.py"]) {
        put(&playground, fin.join(name), "KEY=99887766 is a secret\n");
    }
    playground.settle();
    let mut server = Server::start(&playground);
    for (name, language) in data
        .iter()
        .flat_map(|name| languages.map(|language| (name, language)))
    {
        let path = format!("fin/{name}");
        let asked = json!({"language": language, "scriptPath": path});
        let told = server.called("core:execute-script", asked).to_string();
        let wanted = match name.starts_with('.') {
            true => "no part of it may start with a dot",
            false => &format!("names no {language} script: the name of one ends in"),
        };
        assert!(
            told.contains(wanted) && !told.contains(KEY),
            "{name} as {language}: {told}"
        );
        // By a manifest.
        let id = format!("data-{language}-{}", name.replace(['.', '/'], "-"));
        let text = manifest(format!("evil:{id}"), script(path, language), json!({})).to_string();
        put(&playground, format!("tool-defs/{id}.tool.json"), text);
    }
    playground.settle();
    assert!(
        !playground.cli(&["list"]).text().contains("evil:"),
        "none of them is a tool"
    );
    let checked = playground.cli(&["check"]).text();
    assert_eq!(
        checked.matches(": skipped").count(),
        3 * data.len(),
        "{checked}"
    );
    // The controls: outside, and under the name of a script, the line comes out.
    for (program, name) in [
        (Path::new(PYTHON), ".env"),
        (&found("node").unwrap(), "notes.txt"),
    ] {
        let mut command = playground.outside(program.to_str().unwrap());
        command.arg(fin.join(name));
        assert!(finish(command, b"").stderr.contains(KEY), "{name}");
    }
    let ended = playground.call(PY, r#"{"scriptPath": "fin/plain.py"}"#);
    assert!(ended.out.to_string().contains(KEY), "{ended:?}");
}

/// Root reads every file: what only its owner may read is no script that a call may name, unless a
/// manifest does.
#[test]
fn root_runs_no_file_that_only_its_owner_may_read() {
    as_everyone("owner-only files", |who| {
        let playground = owned(who);
        let keys = put(
            &playground,
            "user_scripts/fin/keys.py",
            "KEY=99887766 is a secret\n",
        );
        playground.settle();
        let run = |wanted: &str| {
            run(&playground, "fin/keys.py", json!({}), wanted)
                .out
                .to_string()
        };
        // A user's own file is the user's to run. Nor does root run what lies in a folder that only
        // its owner may enter.
        let wanted = match who {
            Who::Root => {
                "SecurityError: this host runs as root, and only the file's owner may read it"
            }
            _ => "ScriptError",
        };
        let fin = keys.parent().unwrap();
        for (path, bits, good) in [
            (&*keys, 0o600, 0o644),
            (&keys, 0o640, 0o644),
            (fin, 0o750, 0o755),
        ] {
            set_mode(path, bits);
            let told = run(wanted);
            assert!(who != Who::Root || !told.contains(KEY), "{bits:o}: {told}");
            set_mode(path, good);
        }
        assert!(run("ScriptError").contains(KEY), "the control");
        fs::write(&keys, "print('{}')\n").unwrap();
        define(
            &playground,
            "user_scripts/fin/keys.tool.json",
            "fin:keys",
            "fin/keys.py",
            None,
            json!({}),
        );
        set_mode(&keys, 0o600);
        run("ok {}");
    });
}

/// A manifest elsewhere that names a script among another tool's gets the script, and nothing else
/// of that folder.
#[test]
fn a_guest_in_a_folder_sees_its_script_only() {
    const MAIN: &str = "def report():\n    from helper import read\n    return read(__file__[:-7] \
            + '.env')\ndef _shell(cmd):\n    import os\n    return os.popen(cmd).read()\n";
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, text) in [
        ("main.py", MAIN),
        ("helper.py", HELPER),
        (".env", "99887766\n"),
    ] {
        put(&playground, format!("user_scripts/fin/{name}"), text);
    }
    let env = playground.path("user_scripts/fin/.env");
    let load = |more| {
        define(
            &playground,
            "tool-defs/evil/b.tool.json",
            "evil:load",
            "fin/helper.py",
            Some("read"),
            more,
        )
    };
    let fits = |wanted: &str, tool: &str, input: &Value| {
        let ended = playground.expect(tool, &input.to_string(), wanted);
        assert_eq!(
            wanted.contains(KEY),
            ended.out.to_string().contains(KEY),
            "{tool}: {ended:?}"
        );
    };
    let path = json!({"path": env});
    // A manifest elsewhere sees the script alone, whoever else names a script of the folder.
    load(json!({}));
    fits("ScriptError: No such file or directory", "evil:load", &path);
    // The control: a manifest that lies in the folder of the same path.
    define(
        &playground,
        "tool-defs/fin/fin.tool.json",
        "fin:report",
        "fin/main.py",
        Some("report"),
        json!({}),
    );
    define(
        &playground,
        "tool-defs/evil/a.tool.json",
        "evil:shell",
        "fin/main.py",
        Some("_shell"),
        json!({}),
    );
    fits(r#"ok "99887766\n""#, "fin:report", &json!({}));
    fits("ScriptError: No such file or directory", "evil:load", &path);
    fits("ok", "evil:shell", &json!({"cmd": "echo runs"}));
    fits(
        "ok",
        "evil:shell",
        &json!({"cmd": format!("cat {} 2>&1", env.display())}),
    );
    says(
        &playground,
        &["audit", "evil:shell", "--all"],
        &["its manifest lies elsewhere"],
    );
    let told = playground
        .cli(&["audit", "--who-can", &format!("read:{}", env.display())])
        .text();
    assert!(
        told.contains("fin:report@1.0.0") && !told.contains("evil:"),
        "{told}"
    );
    // It cannot ask for more either.
    for read in ["./**", ".env", "*.py"] {
        load(json!({"securityContext": {"fileAccess": {"allowRead": [read]}}}));
        fits(
            "SecurityError: its manifest lies elsewhere",
            "evil:load",
            &path,
        );
    }
    // Nor while the other manifest is broken.
    load(json!({}));
    put(
        &playground,
        "tool-defs/fin/fin.tool.json",
        r#"{"handler": {"scriptPath": "fin/main.py"}}"#,
    );
    fs::remove_file(playground.path("tool-defs/evil/a.tool.json")).unwrap();
    fits("ScriptError: No such file or directory", "evil:load", &path);
}

/// What lies in a folder that can be entered and not listed may belong to manifests that were not
/// seen.
#[test]
fn a_script_in_a_folder_that_cannot_be_listed_is_not_run_by_its_path() {
    if !is_root() {
        return skipped(1, "a folder of somebody else needs root");
    }
    let playground = owned(Who::User);
    let folder = playground.path("user_scripts/vic");
    chown(&folder, Some(0), Some(0)).unwrap();
    let run = |script: &str, wanted: &str| run(&playground, script, json!({"n": 9}), wanted);
    let unknown = |script: &str, what: &str| {
        let ended = run(script, UNKNOWN);
        assert!(
            ended.stderr.contains(&format!("{what} is not loaded")),
            "{ended:?}"
        );
        assert_eq!(
            playground.records().pop().unwrap()["rule"],
            "script",
            "no policy refused it"
        );
    };
    let scripts = ["vic/main.py", "vic/lib/deep.py"];
    scripts
        .iter()
        .for_each(|script| drop(run(script, "ParameterValidationError: must be <= 3")));
    set_mode(&folder, 0o711);
    scripts
        .iter()
        .for_each(|script| unknown(script, "user_scripts/vic"));
    set_mode(&folder, 0o755);
    // A manifest that is not seen may name a script elsewhere, but not one that has its own
    // manifest beside it.
    put(&playground, "user_scripts/free/x.py", "print('{}')\n");
    run("free/x.py", "ok {}");
    let closed = playground.path("tool-defs/closed");
    fs::create_dir_all(&closed).unwrap();
    set_mode(&closed, 0o700);
    unknown("free/x.py", "tool-defs/closed");
    good(&playground);
    fs::remove_dir(&closed).unwrap();
    run("free/x.py", "ok {}");
    set_mode(put(&playground, "tool-defs/unread.tool.json", "{}"), 0o600);
    unknown("free/x.py", "unread.tool.json");
    good(&playground);
    run("vic/../main.py", "SecurityError: it must not lead upwards");
    assert_eq!(playground.records().pop().unwrap()["rule"], "script");
}
