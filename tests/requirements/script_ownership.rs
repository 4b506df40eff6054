//! Who owns a script: no other manifest names it, by no path and under no other name. A call that names it answers to
//! all that its own manifests say, and is refused while those are not known.

use crate::prelude::*;
use std::os::unix::fs::chown;

const PY: &str = "core:execute-python-script";
const ANY: &str = "core:execute-script";
const UNKNOWN: &str = "SecurityError: it belongs to a tool that is not loaded";

/// A tool that doubles small numbers; what lies beside it is its own.
const OWN: &str = "import json, os, sys\nfrom helper import read\n\
    def run(n): return n * 2\n\
    if __name__ == '__main__': print(json.dumps({'n': json.load(sys.stdin).get('n')}))\n";
const HELPER: &str = "def read(path): return open(path).read()\n";

fn world(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.allow_builtin_tools();
    playground
}

fn owned(who: Who) -> Playground {
    let playground = world(who);
    let more = json!({
        "handler": {"entryPoint": "run"},
        "parameters": {"type": "object", "required": ["n"],
            "properties": {"n": {"type": "integer", "description": "d", "maximum": 3}}},
    });
    let folder = playground.tool_at("vic:own", "python", "vic/main.py", OWN, more);
    fs::create_dir_all(folder.join("lib")).unwrap();
    for (name, text) in [("helper.py", HELPER), ("lib/deep.py", HELPER), ("private.txt", "99887766\n")] {
        fs::write(folder.join(name), text).unwrap();
    }
    playground.settle();
    playground
}

/// A manifest of a Python script anywhere.
fn put(playground: &Playground, at: &str, id: &str, path: &str, entry: Option<&str>, more: Value) {
    let file = playground.path(at);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let mut handler = script(path, "python");
    if let Some(entry) = entry {
        handler["entryPoint"] = json!(entry);
    }
    fs::write(file, manifest(id, handler, more).to_string()).unwrap();
}

fn good(playground: &Playground) {
    playground.expect("vic:own", r#"{"n": 2}"#, "ok 4");
    playground.expect(PY, r#"{"scriptPath": "vic/main.py", "inputData": {"n": 2}}"#, r#"ok {"n": 2}"#);
}

/// (manifest, script, entry point): each names what belongs to the tool in `vic`.
const NAMING: [(&str, &str, Option<&str>); 10] = [
    ("user_scripts/evil/a.tool.json", "vic/main.py", Some("os.system")),
    ("user_scripts/evil/b.tool.json", "vic/main.py", Some("read")),
    ("user_scripts/evil/c.tool.json", "vic/main.py", None),
    ("user_scripts/evil/d.tool.json", "user_scripts/vic/main.py", None),
    // What lies beside it, and below.
    ("user_scripts/evil/e.tool.json", "vic/helper.py", Some("read")),
    ("user_scripts/evil/f.tool.json", "vic/lib/deep.py", Some("read")),
    // From the other base, from a base itself, and from above.
    ("tool-defs/x.tool.json", "vic/helper.py", Some("read")),
    ("tool-defs/vic/x.tool.json", "vic/main.py", None),
    ("user_scripts/x.tool.json", "vic/main.py", None),
    // Another name of the same file.
    ("user_scripts/evil/g.tool.json", "evil/link.py", Some("run")),
];

#[test]
fn a_script_is_named_by_its_owner_alone() {
    let playground = owned(Who::ours());
    good(&playground);
    let path = json!({"path": playground.path("user_scripts/vic/private.txt")}).to_string();
    let base = playground.path("user_scripts");
    let owner = base.join("vic/vic-own.tool.json");
    let reason = format!("which belongs to {}: ", owner.display());
    for (number, (at, script, entry)) in NAMING.iter().enumerate() {
        put(&playground, at, &format!("evil:x{number}"), script, *entry, json!({}));
    }
    fs::hard_link(base.join("vic/main.py"), base.join("evil/link.py")).unwrap();
    playground.settle();
    let checked = playground.cli(&["check"]);
    assert_ne!(checked.code, Some(0));
    for (number, (at, ..)) in NAMING.iter().enumerate() {
        let ended = playground.expect(&format!("evil:x{number}"), &path, "ToolNotFoundError: which belongs to");
        assert!(!ended.stderr.contains("99887766") && !ended.out.to_string().contains("99887766"), "{ended:?}");
        let told = checked.text();
        let (_, told) = told.split_once(&format!("{at}: skipped, ")).unwrap_or_else(|| panic!("{at}: {told}"));
        let line = told.lines().nth(1).unwrap();
        assert!(line.contains("error[security]: /handler/scriptPath: ") && line.contains(&reason), "{at}: {line}");
    }
    good(&playground);
    // Every other report says it, or knows nothing of the tool.
    assert!(!playground.cli(&["list"]).text().contains("evil:x"));
    let audited = playground.cli(&["audit", "evil:x5"]);
    assert!(audited.stderr.contains(&reason) && audited.stdout.is_empty(), "{audited:?}");
    let asked = format!("read:{}", base.join("vic/private.txt").display());
    let told = playground.cli(&["audit", "--who-can", &asked]).text();
    assert!(told.contains("vic:own@1.0.0") && !told.contains("evil:x"), "{told}");
    let evil = base.join("evil/f.tool.json").display().to_string();
    let compared = playground.cli(&["diff", &owner.display().to_string(), &evil]);
    assert!(compared.stderr.contains(&reason) && compared.stdout.is_empty(), "{compared:?}");
    // Broken, it blocks nothing either.
    NAMING.iter().for_each(|(at, ..)| fs::remove_file(playground.path(at)).unwrap());
    fs::remove_file(base.join("evil/link.py")).unwrap();
    for text in [r#"{"handler": {"scriptPath": "vic/main.py"}}"#, "{"] {
        fs::write(base.join("evil/x.tool.json"), text).unwrap();
        good(&playground);
    }
    fs::remove_file(base.join("evil/x.tool.json")).unwrap();
    // The controls: a manifest beside the script is its tool's, and a script in no tool's folder is who names it.
    put(&playground, "user_scripts/vic/x.tool.json", "evil:x", "vic/main.py", Some("run"), json!({}));
    playground.settle();
    playground.expect("evil:x", r#"{"n": 5}"#, "ok 10");
    fs::remove_file(base.join("vic/x.tool.json")).unwrap();
    fs::remove_file(owner).unwrap();
    let run = json!({"command": format!("touch {}", playground.path("granted/ran").display())}).to_string();
    for (script, entry, input, wanted) in [
        ("vic/helper.py", "read", &path, "ok \"99887766\\n\""),
        // And there, still nothing that the script only imports.
        ("vic/main.py", "os.system", &run, "ScriptError: main.py has no function 'os.system'"),
        ("vic/main.py", "read", &path, "ScriptError: 'read' is not defined in main.py"),
    ] {
        put(&playground, "tool-defs/x.tool.json", "evil:x", script, Some(entry), json!({}));
        playground.settle();
        playground.expect("evil:x", input, wanted);
    }
}

/// A manifest that is put above a script takes it from a manifest elsewhere, and frees no call by its path from that
/// one's parameters.
#[test]
fn a_manifest_above_takes_a_script_and_frees_nothing() {
    let playground = world(Who::ours());
    let team = playground.path("user_scripts/team");
    fs::create_dir_all(team.join("fin")).unwrap();
    for script in ["x.py", "fin/x.py", "fin/direct.py"] {
        fs::write(team.join(script), "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n").unwrap();
    }
    let account = json!({"type": "string", "description": "d", "pattern": "^[a-z]{3}$"});
    let more = json!({"parameters": {"type": "object", "properties": {"account": account}}});
    put(&playground, "tool-defs/fin.tool.json", "fin:report", "team/fin/direct.py", None, more);
    playground.settle();
    let by_path = |account: &str, wanted: &str| {
        let input = json!({"scriptPath": "team/fin/direct.py", "inputData": {"account": account}});
        playground.expect(PY, &input.to_string(), wanted);
    };
    playground.expect("fin:report", r#"{"account": "abc"}"#, "ok");
    by_path("abc", "ok");
    by_path("../../x", "ParameterValidationError: inputData answers to the parameters of fin:report, whose script");
    let good = manifest("team:x", script("team/x.py", "python"), json!({})).to_string();
    let beside = manifest("team:x", script("team/fin/x.py", "python"), json!({})).to_string();
    for (at, text) in [
        ("x.tool.json", good.as_str()),
        ("x.tool.json", r#"{"handler": {"scriptPath": "team/x.py"}}"#),
        ("x.tool.json", "{"),
        ("fin/x.tool.json", beside.as_str()),
    ] {
        fs::write(team.join(at), text).unwrap();
        playground.settle();
        playground.expect("fin:report", r#"{"account": "abc"}"#, "ToolNotFoundError: which belongs to");
        for account in ["abc", "../../x"] {
            by_path(account, UNKNOWN);
        }
        fs::remove_file(team.join(at)).unwrap();
    }
    playground.expect("fin:report", r#"{"account": "abc"}"#, "ok");
    // The control.
    fs::remove_file(playground.path("tool-defs/fin.tool.json")).unwrap();
    by_path("../../x", "ok");
}

/// A script that a call names answers to the parameters of every manifest that it belongs to.
#[test]
fn a_script_run_by_path_answers_to_its_own_parameters() {
    let playground = owned(Who::ours());
    let base = playground.path("user_scripts");
    let input = |script: &str, n: Value| json!({"scriptPath": script, "inputData": {"n": n}}).to_string();
    const WRONG: &str = "ParameterValidationError: inputData answers to the parameters of vic:own, whose script";
    let run = |script: &str, n: Value, wanted: &str| {
        playground.expect(PY, &input(script, n), wanted);
    };
    run("vic/main.py", json!(3), r#"ok {"n": 3}"#);
    run("vic/main.py", json!(4), WRONG);
    run("vic/main.py", json!("3"), WRONG);
    // Another name of the same file; a copy is a file of its own.
    fs::create_dir(base.join("free")).unwrap();
    fs::write(base.join("free/helper.py"), HELPER).unwrap();
    fs::hard_link(base.join("vic/main.py"), base.join("free/link.py")).unwrap();
    playground.settle();
    run("free/link.py", json!(4), WRONG);
    // It also answers to the grants of its tool, which hold nothing of this folder.
    run("free/link.py", json!(3), "ScriptError: No module named 'helper'");
    fs::remove_file(base.join("free/link.py")).unwrap();
    fs::copy(base.join("vic/main.py"), base.join("free/copy.py")).unwrap();
    playground.settle();
    run("free/copy.py", json!(4), r#"ok {"n": 4}"#);
    // Two manifests that share a script in no tool's folder: both.
    for (id, most) in [("two:a", 5), ("two:b", 7)] {
        let n = json!({"type": "integer", "description": "d", "maximum": most});
        let more = json!({"parameters": {"type": "object", "properties": {"n": n}}});
        put(&playground, &format!("tool-defs/{most}.tool.json"), id, "free/copy.py", None, more);
    }
    playground.settle();
    run("free/copy.py", json!(6), "ParameterValidationError: inputData answers to the parameters of two:a");
    run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
    // A label that policy requires and a tool lacks keeps its script from others, too.
    playground.policy("label", "two:a", "require = [\"permission:pii\"]\n");
    playground.settle();
    run("free/copy.py", json!(5), "SecurityError: belongs to a tool that this host refuses");
    fs::remove_file(playground.path("sandbox-policies/label.policy.toml")).unwrap();
    run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
    // What ten owners grant together is found at once: parts of parts do not multiply.
    fs::copy(base.join("vic/main.py"), base.join("free/many.py")).unwrap();
    let reads: Vec<_> = ["f", "f*", "*f", "*f*", "?", "?*", "*?", "*?*", "*"].map(|p| format!("./{p}")).into();
    for n in 0..10 {
        let more = json!({"securityContext": {"fileAccess": {"allowRead": reads}}});
        let at = format!("tool-defs/many-{n}.tool.json");
        put(&playground, &at, &format!("many:m{n}"), "free/many.py", None, more);
    }
    playground.settle();
    run("free/many.py", json!(6), r#"ok {"n": 6}"#);
    // Each tool by its own name answers to its own.
    playground.expect("two:b", r#"{"n": 7}"#, "ok");
    let mut server = Server::start(&playground);
    let told = server.called(PY, json!({"scriptPath": "vic/main.py", "inputData": {"n": 4}})).to_string();
    assert!(told.contains("whose script this is"), "{told}");
}

/// An interpreter that is given a file of data prints lines of it.
#[test]
fn files_of_data_are_no_scripts() {
    const LINE: &str = "KEY=99887766 is a secret";
    if !has("python", 4) || !has("nodejs", 4) || !has("bun", 4) {
        return;
    }
    let playground = owned(Who::ours());
    let fin = playground.path("user_scripts/fin");
    fs::create_dir_all(fin.join(".hidden")).unwrap();
    let data = [".env", "accounts.csv", "key", "notes.txt", "conf.json", ".hidden/x.py", ".x.js", "data.py.bak"];
    for name in data.iter().chain(&["plain.py"]) {
        fs::write(fin.join(name), format!("{LINE}\n")).unwrap();
    }
    playground.settle();
    let mut server = Server::start(&playground);
    for (name, language) in data.iter().flat_map(|name| ["python", "nodejs", "bun"].map(|language| (name, language))) {
        let (when, path) = (format!("{name} as {language}"), format!("fin/{name}"));
        let told = server.called(ANY, json!({"language": language, "scriptPath": path})).to_string();
        let wanted = match name.starts_with('.') {
            true => "no part of it may start with a dot".to_owned(),
            false => format!("names no {language} script: the name of one ends in"),
        };
        assert!(told.contains(&wanted) && !told.contains("99887766"), "{when}: {told}");
        // By a manifest.
        let id = format!("evil:data-{language}-{}", name.replace(['.', '/'], "-"));
        let text = manifest(&id, script(path, language), json!({})).to_string();
        fs::write(playground.path(&format!("tool-defs/{}.tool.json", &id[5..])), text).unwrap();
    }
    playground.settle();
    assert!(!playground.cli(&["list"]).text().contains("evil:"), "none of them is a tool");
    let checked = playground.cli(&["check"]).text();
    assert_eq!(checked.matches(": skipped").count(), 3 * data.len(), "{checked}");
    // The controls: outside, and under the name of a script, the line comes out.
    for (program, name) in [(Path::new(PYTHON), ".env"), (&found("node").unwrap(), "notes.txt")] {
        let mut command = playground.outside(&program.display().to_string());
        command.arg(fin.join(name));
        assert!(finish(command, b"").stderr.contains("99887766"), "{name}");
    }
    let ended = playground.call(PY, r#"{"scriptPath": "fin/plain.py"}"#);
    assert!(ended.out.to_string().contains("99887766"), "{ended:?}");
}

/// Root reads every file: what only its owner may read is no script that a call may name, unless a manifest does.
#[test]
fn root_runs_no_file_that_only_its_owner_may_read() {
    as_everyone("owner-only files", |who| {
        let playground = owned(who);
        let fin = playground.path("user_scripts/fin");
        fs::create_dir_all(&fin).unwrap();
        let keys = fin.join("keys.py");
        fs::write(&keys, "KEY=99887766 is a secret\n").unwrap();
        playground.settle();
        let mode = |path: &Path, bits| fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
        let run = || playground.call(PY, r#"{"scriptPath": "fin/keys.py"}"#);
        // A user's own file is the user's to run. Nor does root run what lies in a folder that only its owner may
        // enter.
        let wanted = match who {
            Who::Root => "SecurityError: this host runs as root, and only the file's owner may read it",
            _ => "ScriptError",
        };
        for (path, bits, good) in [(&keys, 0o600, 0o644), (&keys, 0o640, 0o644), (&fin, 0o750, 0o755)] {
            mode(path, bits);
            let ended = run();
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {bits:o}: {why}"));
            assert!(who != Who::Root || !ended.out.to_string().contains("99887766"), "{ended:?}");
            mode(path, good);
        }
        assert!(run().out.to_string().contains("99887766"), "the control");
        put(&playground, "user_scripts/fin/keys.tool.json", "fin:keys", "fin/keys.py", None, json!({}));
        fs::write(&keys, "print('{}')\n").unwrap();
        playground.settle();
        mode(&keys, 0o600);
        fits("ok {}", &run()).unwrap();
    });
}

/// A manifest elsewhere that names a script among another tool's gets the script, and nothing else of that folder.
#[test]
fn a_guest_in_a_folder_sees_its_script_only() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let fin = playground.path("user_scripts/fin");
    fs::create_dir_all(&fin).unwrap();
    const MAIN: &str = "def report():\n    from helper import read\n    return read(__file__[:-7] + '.env')\n\
            def _shell(cmd):\n    import os\n    return os.popen(cmd).read()\n";
    for (name, text) in [("main.py", MAIN), ("helper.py", HELPER), (".env", "99887766\n")] {
        fs::write(fin.join(name), text).unwrap();
    }
    let env = fin.join(".env");
    let runs = |id: &str, at: &str, script: &str, entry: &str, read: Option<&str>| {
        let asks = |read| json!({"securityContext": {"fileAccess": {"allowRead": [read]}}});
        put(&playground, at, id, script, Some(entry), read.map_or(json!({}), asks));
        playground.settle();
    };
    let fits = |wanted: &str, tool: &str, input: &Value| {
        let ended = playground.expect(tool, &input.to_string(), wanted);
        assert_eq!(wanted.contains("99887766"), ended.out.to_string().contains("99887766"), "{tool}: {ended:?}");
    };
    let (secret, none) = (r#"ok "99887766\n""#, json!({}));
    let (path, cmd) = (json!({"path": env}), json!({"cmd": format!("cat {} 2>&1", env.display())}));
    // The control: in a folder where no other manifest's script lies, wherever the manifest is.
    runs("evil:load", "tool-defs/evil/b.tool.json", "fin/helper.py", "read", None);
    fits(secret, "evil:load", &path);
    runs("fin:report", "tool-defs/fin/fin.tool.json", "fin/main.py", "report", None);
    runs("evil:shell", "tool-defs/evil/a.tool.json", "fin/main.py", "_shell", None);
    fits(secret, "fin:report", &none);
    fits("ScriptError: No such file or directory", "evil:load", &path);
    fits("ok", "evil:shell", &json!({"cmd": "echo runs"}));
    fits("ok", "evil:shell", &cmd);
    let told = playground.cli(&["audit", "evil:shell", "--all"]).text();
    assert!(told.contains("scripts of other tools lie in that folder"), "{told}");
    let told = playground.cli(&["audit", "--who-can", &format!("read:{}", env.display())]).text();
    assert!(told.contains("fin:report@1.0.0") && !told.contains("evil:"), "{told}");
    // It cannot ask for more either.
    for read in ["./**", ".env", "*.py"] {
        runs("evil:load", "tool-defs/evil/b.tool.json", "fin/helper.py", "read", Some(read));
        fits("SecurityError: scripts of other tools lie in", "evil:load", &path);
    }
    // Nor while the other manifest is broken.
    runs("evil:load", "tool-defs/evil/b.tool.json", "fin/helper.py", "read", None);
    let broken = r#"{"handler": {"scriptPath": "fin/main.py"}}"#;
    fs::write(playground.path("tool-defs/fin/fin.tool.json"), broken).unwrap();
    fs::remove_file(playground.path("tool-defs/evil/a.tool.json")).unwrap();
    playground.settle();
    fits("ScriptError: No such file or directory", "evil:load", &path);
}

/// What lies in a folder that can be entered and not listed may belong to manifests that were not seen.
#[test]
fn a_script_in_a_folder_that_cannot_be_listed_is_not_run_by_its_path() {
    if !is_root() {
        return skipped(1, "a folder of somebody else needs root");
    }
    let playground = owned(Who::User);
    let folder = playground.path("user_scripts/vic");
    chown(&folder, Some(0), Some(0)).unwrap();
    let run = |script: &str, wanted: &str| {
        playground.expect(PY, &json!({"scriptPath": script, "inputData": {"n": 9}}).to_string(), wanted)
    };
    let mode = |bits| fs::set_permissions(&folder, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    let scripts = ["vic/main.py", "vic/lib/deep.py"];
    for script in scripts {
        run(script, "ParameterValidationError: must be <= 3");
    }
    mode(0o711);
    for script in scripts {
        let ended = run(script, UNKNOWN);
        assert!(ended.stderr.contains("user_scripts/vic is not loaded"), "{ended:?}");
        assert_eq!(playground.records().pop().unwrap()["rule"], "script", "no policy refused it");
    }
    mode(0o755);
    // A manifest that is not seen may name a script elsewhere, but not one that has its own manifest beside it.
    let free = playground.path("user_scripts/free");
    fs::create_dir_all(&free).unwrap();
    fs::write(free.join("x.py"), "print('{}')\n").unwrap();
    run("free/x.py", "ok {}");
    let closed = playground.path("tool-defs/closed");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = run("free/x.py", UNKNOWN);
    assert!(ended.stderr.contains("tool-defs/closed is not loaded"), "{ended:?}");
    good(&playground);
    fs::remove_dir(&closed).unwrap();
    run("free/x.py", "ok {}");
    let unread = playground.path("tool-defs/unread.tool.json");
    fs::write(&unread, "{}").unwrap();
    fs::set_permissions(&unread, fs::Permissions::from_mode(0o600)).unwrap();
    let ended = run("free/x.py", UNKNOWN);
    assert!(ended.stderr.contains("unread.tool.json is not loaded"), "{ended:?}");
    good(&playground);
    run("vic/../main.py", "SecurityError: it must not lead upwards");
    assert_eq!(playground.records().pop().unwrap()["rule"], "script");
}

/// What is broken elsewhere still speaks for the script that its text names, and for no other.
#[test]
fn a_manifest_elsewhere_that_is_broken_keeps_its_script() {
    let playground = owned(Who::ours());
    let free = playground.path("user_scripts/free");
    fs::create_dir_all(&free).unwrap();
    for name in ["x.py", "y.py"] {
        fs::write(free.join(name), "print('{}')\n").unwrap();
    }
    let must = json!({"type": "object", "properties": {"must": {"type": "string"}}, "required": ["must"]});
    let good = manifest("far:x", script("free/x.py", "python"), json!({"parameters": must})).to_string();
    let write = |text: &str| {
        fs::write(playground.path("tool-defs/x.tool.json"), text).unwrap();
        playground.settle();
    };
    let run = |name: &str, wanted: &str| {
        playground.expect(PY, &json!({"scriptPath": format!("free/{name}")}).to_string(), wanted);
    };
    write(&good);
    run("x.py", "ParameterValidationError: 'must' is required");
    run("y.py", "ok {}");
    for broken in [
        &good[..good.len() - 1],
        &good.replacen('{', "{\"version\": \"1\",", 1),
        &good.replace("\"handler\"", "\"handlr\""),
        "{handler: {scriptPath : \"free\\/x.py\"}}",
    ] {
        write(broken);
        run("x.py", UNKNOWN);
        run("y.py", "ok {}");
    }
}
