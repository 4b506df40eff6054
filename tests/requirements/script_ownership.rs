//! Whose a script is: nobody else names it, by no road and under no other name; a call that names it answers to all
//! that its own manifests say.

use crate::harness::{
    PYTHON, Playground, Server, Who, as_everyone, as_everyone_with, copy, finish, fits, found, has, is_root, manifest,
    repository,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub(super) const PY: &str = "core:execute-python-script";
const ANY: &str = "core:execute-script";

/// A tool that doubles small numbers; what lies beside it is nobody else's.
const OWN: &str = "import json, os, sys\nfrom helper import read\n\
    def run(n): return n * 2\n\
    if __name__ == '__main__': print(json.dumps({'n': json.load(sys.stdin).get('n')}))\n";
const HELPER: &str = "def read(path): return open(path).read()\n";

pub(super) fn owned(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
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
    let core = "sandbox-policies/core.policy.toml";
    fs::copy(repository(core), playground.path(core)).unwrap();
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

pub(super) fn good(playground: &Playground, when: &str) {
    let ended = playground.call("vic:own", r#"{"n": 2}"#);
    fits("ok 4", &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
    let ended = playground.call(PY, r#"{"scriptPath": "vic/main.py", "inputData": {"n": 2}}"#);
    fits(r#"ok {"n": 2}"#, &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
}

#[test]
fn nobody_names_anothers_script() {
    as_everyone_with("python", "another's script", |who| {
        let playground = owned(who);
        good(&playground, "alone");
        let path = json!({"path": playground.path("user_scripts/vic/private.txt")}).to_string();
        let base = playground.path("user_scripts");
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
            let when = format!("{who:?}: {at}: {script} {entry:?}");
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
            // Every report says it, or knows nothing of the tool.
            let checked = playground.cli(&["check"]);
            let told = checked.text();
            let owner = base.join("vic/vic-own.tool.json");
            let reason = format!("which belongs to {}: ", owner.display());
            assert!(
                told.contains("error[security]: /handler/scriptPath: ") && told.contains(&reason),
                "{when}: {told}"
            );
            assert_ne!(checked.code, Some(0));
            assert!(!playground.cli(&["list"]).text().contains("evil:x"), "{when}");
            let audited = playground.cli(&["audit", "evil:x"]);
            assert!(audited.stderr.contains(&reason) && audited.stdout.is_empty(), "{when}: {audited:?}");
            let asked = format!("read:{}", base.join("vic/private.txt").display());
            let told = playground.cli(&["audit", "--who-can", &asked]).text();
            assert!(told.contains("vic:own@1.0.0") && !told.contains("evil:x"), "{when}: {told}");
            let (evil, own) = (playground.path(at).display().to_string(), owner.display().to_string());
            let compared = playground.cli(&["diff", &own, &evil]);
            assert!(compared.stderr.contains(&reason) && compared.stdout.is_empty(), "{when}: {compared:?}");
            fs::remove_file(playground.path(at)).unwrap();
            let _ = fs::remove_file(link);
        }
        // Broken, it blocks nothing either.
        for text in [r#"{"handler": {"scriptPath": "vic/main.py"}}"#, "{"] {
            fs::create_dir_all(base.join("evil")).unwrap();
            fs::write(base.join("evil/x.tool.json"), text).unwrap();
            playground.settle();
            good(&playground, text);
        }
        fs::remove_file(base.join("evil/x.tool.json")).unwrap();
        // The controls: a manifest beside the script is its tool's, and a script in nobody's folder is who names it.
        name(&playground, "user_scripts/vic/x.tool.json", "vic/main.py", Some("run"));
        playground.settle();
        fits("ok 10", &playground.call("evil:x", r#"{"n": 5}"#)).unwrap();
        fs::remove_file(base.join("vic/x.tool.json")).unwrap();
        fs::remove_file(base.join("vic/vic-own.tool.json")).unwrap();
        name(&playground, "tool-defs/x.tool.json", "vic/helper.py", Some("read"));
        playground.settle();
        fits("ok \"99887766\\n\"", &playground.call("evil:x", &path)).unwrap();
        // And there, still nothing that the script only imports.
        name(&playground, "tool-defs/x.tool.json", "vic/main.py", Some("os.system"));
        playground.settle();
        let run = json!({"command": format!("touch {}", playground.path("granted/ran").display())}).to_string();
        fits("ScriptError: main.py has no function 'os.system'", &playground.call("evil:x", &run)).unwrap();
        name(&playground, "tool-defs/x.tool.json", "vic/main.py", Some("read"));
        playground.settle();
        fits("ScriptError: 'read' is not defined in main.py", &playground.call("evil:x", &path)).unwrap();
    });
}

/// A manifest that comes to lie above a script which it does not name takes nothing: not the tool that names the script
/// from elsewhere, and not its parameters from a call by path.
#[test]
fn a_manifest_above_takes_no_script_that_it_does_not_name() {
    as_everyone_with("python", "a manifest above", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let core = "sandbox-policies/core.policy.toml";
        fs::copy(repository(core), playground.path(core)).unwrap();
        let team = playground.path("user_scripts/team");
        fs::create_dir_all(team.join("fin")).unwrap();
        fs::create_dir_all(playground.path("tool-defs/fin")).unwrap();
        for script in ["x.py", "fin/x.py", "fin/direct.py"] {
            fs::write(team.join(script), "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n").unwrap();
        }
        fs::write(team.join("fin/helper.py"), HELPER).unwrap();
        fs::write(team.join("fin/private.txt"), "99887766\n").unwrap();
        let handler = |script: &str| json!({"type": "external-script", "scriptPath": script, "language": "python"});
        let account = json!({"type": "string", "description": "d", "pattern": "^[a-z]{3}$"});
        let more = json!({"parameters": {"type": "object", "properties": {"account": account}}});
        let fin = playground.path("tool-defs/fin/fin.tool.json");
        let text = manifest("fin:report", handler("team/fin/direct.py"), more).to_string();
        fs::write(&fin, &text).unwrap();
        playground.settle();
        let by_path = |account: &str| {
            let input = json!({"scriptPath": "team/fin/direct.py", "inputData": {"account": account}});
            playground.call(PY, &input.to_string())
        };
        const WRONG: &str = "ParameterValidationError: inputData answers to the parameters of fin:report, whose script";
        let held = |when: &str| {
            let fits =
                |wanted: &str, ended| fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {when}: {why}"));
            fits("ok", playground.call("fin:report", r#"{"account": "abc"}"#));
            fits("ok", by_path("abc"));
            fits(WRONG, by_path("../../x"));
        };
        held("alone");
        let mut server = Server::start(&playground);
        // Times of files are those of the kernel's ticks.
        std::thread::sleep(std::time::Duration::from_millis(50));
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
            held(&format!("{at}: {text}"));
            server.hang_up();
            std::thread::sleep(std::time::Duration::from_millis(500));
            let input = json!({"scriptPath": "team/fin/direct.py", "inputData": {"account": "../../x"}});
            let told = server.called(PY, input).to_string();
            assert!(told.contains("the parameters of fin:report"), "{who:?}: {at}: {text}: {told}");
            // A manifest that comes later is refused, and gets no file: those beside the manifests are theirs.
            if text == beside {
                name(&playground, "tool-defs/x.tool.json", "team/fin/helper.py", Some("read"));
                playground.settle();
                let path = json!({"path": team.join("fin/private.txt")}).to_string();
                let ended = playground.call("evil:x", &path);
                fits("ToolNotFoundError: which belongs to", &ended).unwrap_or_else(|why| panic!("{who:?}: {why}"));
                fs::remove_file(playground.path("tool-defs/x.tool.json")).unwrap();
            }
            fs::remove_file(team.join(at)).unwrap();
        }
        // The tool comes later, or is broken: the call by path is refused, since nobody knows what its manifest denies.
        fs::write(team.join("x.tool.json"), &good).unwrap();
        fs::remove_file(&fin).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        for text in [text.as_str(), r#"{"handler": {"scriptPath": "team/fin/direct.py"}}"#] {
            fs::write(&fin, text).unwrap();
            playground.settle();
            let wanted = "SecurityError: it belongs to a tool that is not loaded";
            fits(wanted, &by_path("abc")).unwrap_or_else(|why| panic!("{who:?}: {text}: {why}"));
            fits("ToolNotFoundError", &playground.call("fin:report", "{}")).unwrap();
        }
        fs::remove_file(&fin).unwrap();
        fits("ok", &by_path("../../x")).unwrap_or_else(|why| panic!("{who:?}: the control: {why}"));
    });
}

/// A script that a call names answers to the parameters of every manifest that it belongs to.
#[test]
fn a_script_run_by_path_answers_to_its_own_parameters() {
    as_everyone_with("python", "parameters", |who| {
        let playground = owned(who);
        let base = playground.path("user_scripts");
        let input = |script: &str, n: Value| json!({"scriptPath": script, "inputData": {"n": n}}).to_string();
        const WRONG: &str = "ParameterValidationError: inputData answers to the parameters of vic:own, whose script";
        let run = |script: &str, n: Value, wanted: &str| {
            let ended = playground.call(PY, &input(script, n));
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {script}: {why}"));
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
        // Each tool by its own name answers to its own.
        fits("ok", &playground.call("two:b", r#"{"n": 7}"#)).unwrap();
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
    as_everyone("data files", |who| {
        let playground = owned(who);
        let fin = playground.path("user_scripts/fin");
        fs::create_dir_all(fin.join(".hidden")).unwrap();
        let data = [".env", "accounts.csv", "key", "notes.txt", "conf.json", ".hidden/x.py", ".x.js", "data.py.bak"];
        for name in data {
            fs::write(fin.join(name), format!("{LINE}\n")).unwrap();
        }
        fs::write(fin.join("plain.py"), format!("{LINE}\n")).unwrap();
        playground.settle();
        let mut server = Server::start(&playground);
        for name in data {
            let hidden = name.starts_with('.');
            for language in ["python", "nodejs", "bun"] {
                let when = format!("{who:?}: {name} as {language}");
                let input = json!({"language": language, "scriptPath": format!("fin/{name}")});
                let ended = playground.call(ANY, &input.to_string());
                let wanted = match hidden {
                    true => "SecurityError: no part of it may start with a dot".to_owned(),
                    false => format!("ParameterValidationError: names no {language} script: the name of one ends in"),
                };
                fits(&wanted, &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
                let told = server.called(ANY, input).to_string();
                assert!(!told.contains("99887766") && !ended.out.to_string().contains("99887766"), "{when}: {told}");
                // By a manifest.
                let handler =
                    json!({"type": "external-script", "scriptPath": format!("fin/{name}"), "language": language});
                let file = playground.path("tool-defs/data.tool.json");
                fs::write(&file, manifest("evil:data", handler, json!({})).to_string()).unwrap();
                playground.settle();
                let ended = playground.call("evil:data", "{}");
                fits("ToolNotFoundError", &ended).unwrap_or_else(|why| panic!("{when}: {why}"));
                assert!(!ended.out.to_string().contains("99887766"), "{when}: {ended:?}");
                let told = playground.cli(&["check"]).text();
                let dot = told.contains("error[security]: /handler/scriptPath: ") && told.contains("start with a dot");
                let ending = format!("error[schema]: /handler/scriptPath: the name of a {language} script ends in");
                let other = "error[schema]: /handler/language: the language is";
                assert!(dot || told.contains(&ending) || told.contains(other), "{when}: {told}");
                fs::remove_file(file).unwrap();
            }
        }
        // The controls: outside, and under the name of a script, the line comes out.
        for (program, name) in [(Path::new(PYTHON), ".env"), (&found("node").unwrap(), "notes.txt")] {
            let mut command = playground.outside(&program.display().to_string());
            command.arg(fin.join(name));
            assert!(finish(command, b"").stderr.contains("99887766"), "{name}");
        }
        let ended = playground.call(PY, r#"{"scriptPath": "fin/plain.py"}"#);
        assert!(ended.out.to_string().contains("99887766"), "{ended:?}");
    });
}

/// Root reads every file: what only its owner may read is no script that a call may name, unless a manifest does.
#[test]
fn root_runs_no_file_that_only_its_owner_may_read() {
    as_everyone_with("python", "owner-only files", |who| {
        let playground = owned(who);
        let fin = playground.path("user_scripts/fin");
        fs::create_dir_all(&fin).unwrap();
        fs::write(fin.join("keys.py"), "KEY=99887766 is a secret\n").unwrap();
        playground.settle();
        let mode = |mode| fs::set_permissions(fin.join("keys.py"), fs::Permissions::from_mode(mode)).unwrap();
        let run = || playground.call(PY, r#"{"scriptPath": "fin/keys.py"}"#);
        for bits in [0o600, 0o640, 0o700] {
            mode(bits);
            let ended = run();
            if who == Who::Root {
                fits("SecurityError: this host runs as root, and only the file's owner may read it", &ended).unwrap();
                assert!(!ended.out.to_string().contains("99887766"), "{ended:?}");
            } else {
                // A user's own file is the user's to run.
                fits("ScriptError", &ended).unwrap();
            }
        }
        mode(0o644);
        assert!(run().out.to_string().contains("99887766"), "the control");
        // Nor does a file that lies in a folder which only its owner may enter.
        let folder = |mode| fs::set_permissions(&fin, fs::Permissions::from_mode(mode)).unwrap();
        folder(0o750);
        if who == Who::Root {
            fits("SecurityError: this host runs as root, and only the file's owner may read it", &run()).unwrap();
        } else {
            fits("ScriptError", &run()).unwrap();
        }
        folder(0o755);
        let handler = json!({"type": "external-script", "scriptPath": "fin/keys.py", "language": "python"});
        let file = fin.join("keys.tool.json");
        fs::write(file, manifest("fin:keys", handler, json!({})).to_string()).unwrap();
        fs::write(fin.join("keys.py"), "print('{}')\n").unwrap();
        mode(0o600);
        playground.settle();
        fits("ok {}", &run()).unwrap();
    });
}

/// The shipped tools share a folder of scripts that no manifest lies in.
#[test]
fn a_folder_of_scripts_without_manifests_is_everybodys() {
    as_everyone_with("python", "shared scripts", |who| {
        let playground = Playground::new(who, "/var/tmp");
        copy(&repository("user_scripts/examples"), &playground.path("user_scripts/examples"));
        copy(&repository("tool-defs/examples"), &playground.path("tool-defs/examples"));
        playground.settle();
        fits("ok", &playground.call("examples:echo", r#"{"message": "m"}"#)).unwrap();
        name(&playground, "tool-defs/more/x.tool.json", "examples/echo.py", None);
        playground.settle();
        fits("ok", &playground.call("examples:echo", r#"{"message": "m"}"#)).unwrap();
        fits("ok", &playground.call("evil:x", r#"{"message": "m"}"#)).unwrap();
    });
}

/// A manifest elsewhere that names a script among another tool's gets the script, and nothing else of that folder.
#[test]
fn a_guest_in_a_folder_sees_its_script_only() {
    as_everyone_with("python", "a guest", |who| {
        let playground = Playground::new(who, "/var/tmp");
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
            let ended = playground.call(tool, &input.to_string());
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {tool}: {why}"));
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
    });
}

/// Whoever owns a tool's folder can change what runs there: it is said, with the mend.
#[test]
fn a_folder_of_another_user_is_told() {
    if !has("python", 1) || !is_root() {
        return;
    }
    as_everyone("another user's folder", |who| {
        let playground = owned(who);
        const ANOTHER: u32 = 54_321;
        let own = fs::metadata(playground.path("user_scripts/vic")).unwrap().uid();
        let told = || playground.cli(&["check"]).text();
        assert!(!told().contains("belongs to another user"), "the control: {}", told());
        // Of a folder that holds other things as well, only the folder itself is to be taken over.
        for (name, take) in [
            ("user_scripts/vic", "chown -R"),
            ("user_scripts/vic/main.py", "chown"),
            ("user_scripts/vic/vic-own.tool.json", "chown"),
            ("tool-defs", "chown"),
        ] {
            let path = playground.path(name);
            std::os::unix::fs::chown(&path, Some(ANOTHER), None).unwrap();
            let shown = path.display();
            let wanted = format!(
                "warning[security]: {shown} belongs to another user (uid {ANOTHER}), who can so change what runs here: \
                 run this host as that user, or `{take} {own} '{shown}'`"
            );
            assert!(told().contains(&wanted), "{who:?}: {}", told());
            assert!(!told().contains("skipped\n"), "{who:?}: it is read all the same: {}", told());
            std::os::unix::fs::chown(&path, Some(own), None).unwrap();
        }
        good(&playground, "and runs");
    });
}
