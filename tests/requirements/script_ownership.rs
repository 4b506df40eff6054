//! Who owns a script: nobody else names it, by no path and under no other name; a call that names it answers to all
//! that its own manifests say, and is refused while those are not known.

use crate::harness::{
    PYTHON, Playground, Server, Who, as_everyone, finish, fits, found, has, is_root, manifest, skipped,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

const PY: &str = "core:execute-python-script";
const ANY: &str = "core:execute-script";
const UNKNOWN: &str = "SecurityError: it belongs to a tool that is not loaded";

/// A tool that doubles small numbers; what lies beside it is nobody else's.
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

/// A manifest anywhere, and whether it brings its folder.
fn name(playground: &Playground, at: &str, script: &str, entry: Option<&str>) {
    let path = playground.path(at);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut handler = json!({"type": "external-script", "scriptPath": script, "language": "python"});
    if let Some(entry) = entry {
        handler["entryPoint"] = json!(entry);
    }
    fs::write(path, manifest("evil:x", handler, json!({})).to_string()).unwrap();
}

fn good(playground: &Playground, when: &str) {
    let ended = playground.call("vic:own", r#"{"n": 2}"#);
    fits("ok 4", &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
    let ended = playground.call(PY, r#"{"scriptPath": "vic/main.py", "inputData": {"n": 2}}"#);
    fits(r#"ok {"n": 2}"#, &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
}

#[test]
fn nobody_names_anothers_script() {
    let playground = owned(Who::ours());
    good(&playground, "alone");
    let path = json!({"path": playground.path("user_scripts/vic/private.txt")}).to_string();
    let base = playground.path("user_scripts");
    let owner = base.join("vic/vic-own.tool.json");
    let reason = format!("which belongs to {}: ", owner.display());
    for (at, script, entry) in [
        ("user_scripts/evil/x.tool.json", "vic/main.py", Some("os.system")),
        ("user_scripts/evil/x.tool.json", "vic/main.py", Some("read")),
        ("user_scripts/evil/x.tool.json", "vic/main.py", None),
        ("user_scripts/evil/x.tool.json", "user_scripts/vic/main.py", None),
        // What lies beside it, and below.
        ("user_scripts/evil/x.tool.json", "vic/helper.py", Some("read")),
        ("user_scripts/evil/x.tool.json", "vic/lib/deep.py", Some("read")),
        // From the other base, from a base itself, and from above.
        ("tool-defs/x.tool.json", "vic/helper.py", Some("read")),
        ("tool-defs/vic/x.tool.json", "vic/main.py", None),
        ("user_scripts/x.tool.json", "vic/main.py", None),
        // Another name of the same file.
        ("user_scripts/evil/x.tool.json", "evil/link.py", Some("run")),
    ] {
        let when = format!("{at}: {script} {entry:?}");
        name(&playground, at, script, entry);
        let link = base.join("evil/link.py");
        if script.ends_with("link.py") {
            fs::hard_link(base.join("vic/main.py"), &link).unwrap();
        }
        playground.settle();
        let ended = playground.call("evil:x", &path);
        fits("ToolNotFoundError: which belongs to", &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
        assert!(!ended.stderr.contains("99887766") && !ended.out.to_string().contains("99887766"), "{ended:?}");
        good(&playground, &when);
        let checked = playground.cli(&["check"]);
        let told = checked.text();
        assert!(told.contains("error[security]: /handler/scriptPath: ") && told.contains(&reason), "{when}: {told}");
        assert_ne!(checked.code, Some(0));
        let _ = fs::remove_file(link);
        if !script.ends_with("lib/deep.py") {
            fs::remove_file(playground.path(at)).unwrap();
            continue;
        }
        // Every other report says it, or knows nothing of the tool.
        assert!(!playground.cli(&["list"]).text().contains("evil:x"));
        let audited = playground.cli(&["audit", "evil:x"]);
        assert!(audited.stderr.contains(&reason) && audited.stdout.is_empty(), "{audited:?}");
        let asked = format!("read:{}", base.join("vic/private.txt").display());
        let told = playground.cli(&["audit", "--who-can", &asked]).text();
        assert!(told.contains("vic:own@1.0.0") && !told.contains("evil:x"), "{told}");
        let evil = playground.path(at).display().to_string();
        let compared = playground.cli(&["diff", &owner.display().to_string(), &evil]);
        assert!(compared.stderr.contains(&reason) && compared.stdout.is_empty(), "{compared:?}");
        fs::remove_file(playground.path(at)).unwrap();
    }
    // Broken, it blocks nothing either.
    for text in [r#"{"handler": {"scriptPath": "vic/main.py"}}"#, "{"] {
        fs::write(base.join("evil/x.tool.json"), text).unwrap();
        good(&playground, text);
    }
    fs::remove_file(base.join("evil/x.tool.json")).unwrap();
    // The controls: a manifest beside the script is its tool's, and a script in nobody's folder is who names it.
    name(&playground, "user_scripts/vic/x.tool.json", "vic/main.py", Some("run"));
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
        name(&playground, "tool-defs/x.tool.json", script, Some(entry));
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
    let handler = |script: &str| json!({"type": "external-script", "scriptPath": script, "language": "python"});
    let account = json!({"type": "string", "description": "d", "pattern": "^[a-z]{3}$"});
    let more = json!({"parameters": {"type": "object", "properties": {"account": account}}});
    let fin = playground.path("tool-defs/fin.tool.json");
    let text = manifest("fin:report", handler("team/fin/direct.py"), more).to_string();
    fs::write(&fin, &text).unwrap();
    playground.settle();
    let input = |account: &str| json!({"scriptPath": "team/fin/direct.py", "inputData": {"account": account}});
    let by_path = |account: &str| playground.call(PY, &input(account).to_string());
    playground.expect("fin:report", r#"{"account": "abc"}"#, "ok");
    fits("ok", &by_path("abc")).unwrap();
    let wrong = "ParameterValidationError: inputData answers to the parameters of fin:report, whose script";
    fits(wrong, &by_path("../../x")).unwrap();
    let good = manifest("team:x", handler("team/x.py"), json!({})).to_string();
    let beside = manifest("team:x", handler("team/fin/x.py"), json!({})).to_string();
    for (at, text) in [
        ("x.tool.json", good.as_str()),
        ("x.tool.json", r#"{"handler": {"scriptPath": "team/x.py"}}"#),
        ("x.tool.json", "{"),
        ("fin/x.tool.json", beside.as_str()),
    ] {
        fs::write(team.join(at), text).unwrap();
        playground.settle();
        let ended = playground.call("fin:report", r#"{"account": "abc"}"#);
        fits("ToolNotFoundError: which belongs to", &ended).unwrap_or_else(|why| panic!("{at}: {text}: {why}"));
        for account in ["abc", "../../x"] {
            fits(UNKNOWN, &by_path(account)).unwrap_or_else(|why| panic!("{at}: {text}: {why}"));
        }
        fs::remove_file(team.join(at)).unwrap();
    }
    playground.expect("fin:report", r#"{"account": "abc"}"#, "ok");
    fs::remove_file(&fin).unwrap();
    fits("ok", &by_path("../../x")).unwrap_or_else(|why| panic!("the control: {why}"));
}

/// A script that a call names answers to the parameters of every manifest that it belongs to.
#[test]
fn a_script_run_by_path_answers_to_its_own_parameters() {
    as_everyone("parameters", |who| {
        let playground = owned(who);
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
        // Two manifests that share a script of nobody's folder: both.
        for (id, most) in [("two:a", 5), ("two:b", 7)] {
            let handler = json!({"type": "external-script", "scriptPath": "free/copy.py", "language": "python"});
            let n = json!({"type": "integer", "description": "d", "maximum": most});
            let more = json!({"parameters": {"type": "object", "properties": {"n": n}}});
            let file = playground.path("tool-defs").join(format!("{}.tool.json", id.replace(':', "-")));
            fs::write(file, manifest(id, handler, more).to_string()).unwrap();
        }
        playground.settle();
        run("free/copy.py", json!(6), "ParameterValidationError: inputData answers to the parameters of two:a");
        run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
        // A label that policy requires and a tool lacks keeps its script from others, too.
        playground.policy(
            "label",
            "two:a",
            "require = [\"permission:pii\"]\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n",
        );
        playground.settle();
        run("free/copy.py", json!(5), "SecurityError: belongs to a tool that this host refuses");
        fs::remove_file(playground.path("sandbox-policies/label.policy.toml")).unwrap();
        run("free/copy.py", json!(5), r#"ok {"n": 5}"#);
        // What ten owners grant together is found at once: parts of parts do not multiply.
        fs::copy(base.join("vic/main.py"), base.join("free/many.py")).unwrap();
        let reads: Vec<_> = ["f", "f*", "*f", "*f*", "?", "?*", "*?", "*?*", "*"].map(|p| format!("./{p}")).into();
        for n in 0..10 {
            let handler = json!({"type": "external-script", "scriptPath": "free/many.py", "language": "python"});
            let more = json!({"securityContext": {"fileAccess": {"allowRead": reads}}});
            let file = playground.path("tool-defs").join(format!("many-{n}.tool.json"));
            fs::write(file, manifest(format!("many:m{n}"), handler, more).to_string()).unwrap();
        }
        playground.settle();
        run("free/many.py", json!(6), r#"ok {"n": 6}"#);
        // Each tool by its own name answers to its own.
        playground.expect("two:b", r#"{"n": 7}"#, "ok");
        let mut server = Server::start(&playground);
        let told = server.called(PY, json!({"scriptPath": "vic/main.py", "inputData": {"n": 4}})).to_string();
        assert!(told.contains("whose script this is"), "{told}");
    });
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
        let (when, script) = (format!("{name} as {language}"), format!("fin/{name}"));
        let told = server.called(ANY, json!({"language": language, "scriptPath": script})).to_string();
        let wanted = match name.starts_with('.') {
            true => "no part of it may start with a dot".to_owned(),
            false => format!("names no {language} script: the name of one ends in"),
        };
        assert!(told.contains(&wanted) && !told.contains("99887766"), "{when}: {told}");
        // By a manifest.
        let handler = json!({"type": "external-script", "scriptPath": script, "language": language});
        let file = playground.path(&format!("tool-defs/data-{language}-{}.tool.json", name.replace(['.', '/'], "-")));
        let id = format!("evil:data-{language}-{}", name.replace(['.', '/'], "-"));
        fs::write(file, manifest(id, handler, json!({})).to_string()).unwrap();
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
        let handler = json!({"type": "external-script", "scriptPath": "fin/keys.py", "language": "python"});
        fs::write(fin.join("keys.tool.json"), manifest("fin:keys", handler, json!({})).to_string()).unwrap();
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
    fs::create_dir_all(playground.path("tool-defs/fin")).unwrap();
    const MAIN: &str = "def report():\n    from helper import read\n    return read(__file__[:-7] + '.env')\n\
            def _shell(cmd):\n    import os\n    return os.popen(cmd).read()\n";
    for (name, text) in [("main.py", MAIN), ("helper.py", HELPER), (".env", "99887766\n")] {
        fs::write(fin.join(name), text).unwrap();
    }
    let env = fin.join(".env");
    let runs = |id: &str, at: &str, script: &str, entry: &str, read: Option<&str>| {
        let handler =
            json!({"type": "external-script", "scriptPath": script, "language": "python", "entryPoint": entry});
        let more = match read {
            Some(read) => json!({"securityContext": {"fileAccess": {"allowRead": [read]}}}),
            None => json!({}),
        };
        let path = playground.path(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, manifest(id, handler, more).to_string()).unwrap();
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

/// Whoever owns a tool's folder can change what runs there: it is said, with the fix.
#[test]
fn a_folder_of_another_user_is_told() {
    if !is_root() {
        return skipped(1, "a folder of somebody else needs root");
    }
    let playground = owned(Who::ours());
    let told = || playground.cli(&["check"]).text();
    assert!(!told().contains("belongs to another user"), "the control: {}", told());
    for name in ["user_scripts/vic", "user_scripts/vic/main.py", "user_scripts/vic/vic-own.tool.json", "tool-defs"] {
        let path = playground.path(name);
        let own = fs::metadata(&path).unwrap().uid();
        chown(&path, Some(54_321), None).unwrap();
        let shown = path.display();
        let wanted = format!("warning[security]: {shown} belongs to another user (uid 54321)");
        let told = told();
        assert!(told.contains(&wanted) && told.contains(&format!("`chown {own} '{shown}'`")), "{told}");
        assert!(!told.contains("skipped\n"), "it is read all the same: {told}");
        chown(&path, Some(own), None).unwrap();
    }
}

/// What lies in a folder that can be entered and not listed may belong to manifests which nobody saw.
#[test]
fn a_script_in_a_folder_that_cannot_be_listed_is_not_run_by_its_path() {
    if !is_root() {
        return skipped(1, "a folder of somebody else needs root");
    }
    let playground = owned(Who::User);
    let folder = playground.path("user_scripts/vic");
    chown(&folder, Some(0), Some(0)).unwrap();
    let run = |script: &str| {
        let input = json!({"scriptPath": script, "inputData": {"n": 9}});
        playground.call(PY, &input.to_string())
    };
    let mode = |bits| fs::set_permissions(&folder, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    let scripts = ["vic/main.py", "vic/lib/deep.py"];
    for script in scripts {
        fits("ParameterValidationError: must be <= 3", &run(script)).unwrap();
    }
    mode(0o711);
    for script in scripts {
        let ended = run(script);
        fits(UNKNOWN, &ended).unwrap();
        assert!(ended.stderr.contains("user_scripts/vic is not loaded"), "{ended:?}");
        assert_eq!(playground.records().pop().unwrap()["rule"], "script", "no policy refused it");
    }
    mode(0o755);
    // A manifest that nobody sees may name a script elsewhere, but not one that has its own manifest beside it.
    let free = playground.path("user_scripts/free");
    fs::create_dir_all(&free).unwrap();
    fs::write(free.join("x.py"), "print('{}')\n").unwrap();
    fits("ok {}", &run("free/x.py")).unwrap();
    let closed = playground.path("tool-defs/closed");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = run("free/x.py");
    fits(UNKNOWN, &ended).unwrap();
    assert!(ended.stderr.contains("tool-defs/closed is not loaded"), "{ended:?}");
    good(&playground, "with a closed folder elsewhere");
    fs::remove_dir(&closed).unwrap();
    fits("ok {}", &run("free/x.py")).unwrap();
    let unread = playground.path("tool-defs/unread.tool.json");
    fs::write(&unread, "{}").unwrap();
    fs::set_permissions(&unread, fs::Permissions::from_mode(0o600)).unwrap();
    let ended = run("free/x.py");
    fits(UNKNOWN, &ended).unwrap();
    assert!(ended.stderr.contains("unread.tool.json is not loaded"), "{ended:?}");
    good(&playground, "with a closed file elsewhere");
    fits("SecurityError: it must not lead upwards", &run("vic/../main.py")).unwrap();
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
    let handler = json!({"type": "external-script", "scriptPath": "free/x.py", "language": "python"});
    let must = json!({"type": "object", "properties": {"must": {"type": "string"}}, "required": ["must"]});
    let good = manifest("far:x", handler, json!({"parameters": must})).to_string();
    let write = |text: &str| {
        fs::write(playground.path("tool-defs/x.tool.json"), text).unwrap();
        playground.settle();
    };
    let run = |name: &str| playground.call(PY, &json!({"scriptPath": format!("free/{name}")}).to_string());
    write(&good);
    fits("ParameterValidationError: 'must' is required", &run("x.py")).unwrap();
    fits("ok {}", &run("y.py")).unwrap();
    for broken in [
        &good[..good.len() - 1],
        &good.replacen('{', "{\"version\": \"1\",", 1),
        &good.replace("\"handler\"", "\"handlr\""),
        "{handler: {scriptPath : \"free\\/x.py\"}}",
    ] {
        write(broken);
        fits(UNKNOWN, &run("x.py")).unwrap();
        fits("ok {}", &run("y.py")).unwrap();
    }
}
