//! P3, P5, P19: a tool's data is its neighbours' data; its code is not. What one tool writes, others read, and none
//! runs; what it leaves in a folder that it may write never becomes a tool. (A folder that it fills:
//! `registry/scan.rs`.)

use crate::prelude::*;
/// What planted code answers.
const PLANTED: &str = "99887766";
/// The refusal of a script that would find it.
const CODE: &str = "SecurityError: a writable folder beside the script holds code";

/// Writes files, and stays until `until` is there: `{"files": {"path": "text"}, "until": "path"}`.
const WRITER: &str = "import errno, json, os, sys, time\ngiven = json.load(sys.stdin)\ngot = {}\n\
    for path, text in given['files'].items():\n    try:\n        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n\
    \x20       open(path, 'w').write(text)\n        got[path] = 'ok'\n    except OSError as e:\n        got[path] = errno.errorcode[e.errno]\n\
    while given.get('until') and not os.path.exists(given['until']):\n    time.sleep(0.01)\nprint(json.dumps(got))\n";

/// Answers what its module says, or 1 where there is none.
const PY: &str = "try:\n    from lib.helper import said\nexcept ImportError:\n    said = 1\nprint(said)\n";
const JS: &str = "let said = 1\ntry { said = (await import('./lib/helper.mjs')).said } catch {}\n\
    try { said = (await import('./lib/index.js')).said ?? said } catch {}\nconsole.log(said)\n";

/// What would be loaded by each of them.
fn planted() -> Value {
    json!({
        "lib/helper.py": format!("said = {PLANTED}\n"), "lib/helper.mjs": format!("export const said = {PLANTED}\n"),
        "lib/index.js": format!("module.exports = {{ said: {PLANTED} }}\n"), "lib/package.json": "{\"type\": \"commonjs\"}",
        "lib/data.csv": "1,2\n",
    })
}

fn files(read: &[&str], write: &[&str]) -> Value {
    json!({"securityContext": {"fileAccess": {"allowRead": read, "allowWrite": write}}})
}

fn writes(playground: &Playground, id: &str, file: &str, pattern: &str) -> PathBuf {
    let rule = if pattern.ends_with("/**") { pattern.to_owned() } else { format!("{}/**", folder_of(pattern)) };
    let rule = if rule.starts_with('/') { rule } else { format!("./{rule}") };
    playground.allow(&id.replace(':', "-"), id, &["./**"], &[&rule]);
    playground.tool_at(id, "python", file, WRITER, files(&["self"], &[pattern]))
}

fn folder_of(pattern: &str) -> &str {
    pattern.rsplit_once('/').map_or(".", |(folder, _)| folder)
}

/// Three readers in one folder.
fn readers(playground: &Playground) -> [&'static str; 3] {
    playground.tool_at("mod:py", "python", "shared/py.py", PY, json!({}));
    playground.tool_at("mod:node", "nodejs", "shared/node.mjs", JS, json!({}));
    playground.tool_at("mod:bun", "bun", "shared/bun.mjs", JS, json!({}));
    ["mod:py", "mod:node", "mod:bun"]
}

/// The control: the reader, run outside of all walls, loads what was planted.
fn outside(playground: &Playground, reader: &str) -> String {
    let (program, script) = match reader {
        "mod:py" => (PathBuf::from(PYTHON), "py.py"),
        "mod:node" => (found("node").unwrap(), "node.mjs"),
        _ => (found("bun").unwrap(), "bun.mjs"),
    };
    let mut command = playground.outside(&program.display().to_string());
    command.arg(playground.path("user_scripts/shared").join(script));
    finish(command, b"").text()
}

fn every_language() -> bool {
    ["python", "nodejs", "bun"].iter().all(|language| has(language, 4))
}

fn input(files: &Value) -> String {
    json!({"files": files}).to_string()
}

/// The refusal names the file and who could write it.
fn names_the_file(ended: &Ended, file: &Path, writer: &str) {
    let told = &ended.stderr;
    assert!(told.contains(&file.display().to_string()) && told.contains(writer), "{ended:?}");
}

/// The files that one tool adds, another lists, of the same folder and of another one.
#[test]
fn data_that_one_tool_writes_is_read_by_others() {
    const ADD: &str = "import json, os, sys\nos.makedirs('data', exist_ok=True)\n\
        n = len(os.listdir('data'))\nopen(f'data/{n}.json', 'w').write(json.dumps({'n': n}))\n\
        open('data/plain', 'w').write('x')\nprint(n)\n";
    const LIST: &str = "import json, os\nfrom pathlib import Path\nfolder = Path('FOLDER')\n\
        print(json.dumps(sorted(p.name for p in folder.iterdir() if p.read_text())))\n";
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let data = playground.path("user_scripts/notes/data");
    let tree = format!("{}/**", data.display());
    playground.tool_at("notes:add", "python", "notes/add.py", ADD, files(&["self"], &["data/**"]));
    playground.tool_at("notes:list", "python", "notes/list.py", &LIST.replace("FOLDER", "data"), json!({}));
    let far = LIST.replace("FOLDER", &data.display().to_string());
    playground.tool_at("far:list", "python", "far/list.py", &far, files(&["self", &tree], &[]));
    let names = format!("{}/*.json", data.display());
    playground.tool_at("far:names", "python", "far/names.py", &far, files(&["self", &names], &[]));
    playground.allow("notes", "notes:add", &["./**"], &["./data/**"]);
    playground.allow("far", "far:*", &[&tree], &[]);
    playground.settle();
    playground.expect("notes:add", "{}", "ok 0");
    for tool in ["notes:list", "far:list"] {
        playground.expect(tool, "{}", r#"ok ["0.json","plain"]"#);
    }
    playground.expect("far:names", "{}", r#"ok ["0.json"]"#);
    playground.expect("notes:add", "{}", "ok 2");
    // Elsewhere nothing is looked at: a reader of another folder loads no code from there.
    fs::write(data.join("x.py"), "1").unwrap();
    playground.expect("far:list", "{}", "ok");
    let ended = playground.expect("notes:list", "{}", CODE);
    names_the_file(&ended, &data.join("x.py"), "notes:add@1.0.0");
}

#[test]
fn a_shared_folder_is_no_way_into_another_tool() {
    if !every_language() {
        return;
    }
    as_everyone("planted modules", |who| {
        // From its own folder, which is the same; and from elsewhere, where a policy says so.
        for (elsewhere, below) in [(false, "/var/tmp"), (true, "/tmp")] {
            let playground = Playground::new(who, below);
            let readers = readers(&playground);
            let shared = playground.path("user_scripts/shared");
            let lib = shared.join("lib");
            fs::create_dir(&lib).unwrap();
            match elsewhere {
                true => writes(&playground, "mod:writer", "writer/main.py", &format!("{}/**", lib.display())),
                false => writes(&playground, "mod:writer", "shared/writer.py", "lib/**"),
            };
            let at = |(name, text): (&String, &Value)| (shared.join(name).display().to_string(), text.clone());
            let files: Value = planted().as_object().unwrap().iter().map(at).collect::<serde_json::Map<_, _>>().into();
            playground.settle();
            let mut server = Server::start(&playground);
            for reader in readers {
                playground.expect(reader, "{}", "ok 1");
                let answer = server.called(reader, json!({}));
                assert_eq!(answer["result"]["isError"], false, "{reader}: {answer}");
            }
            // While it still runs, and after that.
            let mut writer = playground.host();
            let given = json!({"files": files, "until": lib.join("enough.csv")}).to_string();
            writer.args(["call", "mod:writer", "--json", "--input", &given]);
            let mut writer = writer.stdout(Stdio::null()).spawn().unwrap();
            wait_for("it writes", || lib.join("data.csv").is_file());
            let mut look = |when: &str| {
                for reader in readers {
                    assert_eq!(outside(&playground, reader).trim(), PLANTED, "the control: {who:?}: {reader}");
                    let ended = playground.expect(reader, "{}", CODE);
                    names_the_file(&ended, &lib, "mod:writer@1.0.0");
                    // A server that runs knows what another process let a tool write.
                    let answer = server.called(reader, json!({}));
                    assert!(!answer.to_string().contains(PLANTED), "{who:?}: {when}: {reader}: {answer}");
                    assert_eq!(answer["result"]["isError"], true, "{who:?}: {when}: {reader}: {answer}");
                }
                for told in [&["audit", "mod:py"][..], &["check"]] {
                    let told = playground.cli(told).text();
                    assert!(told.contains("holds code") && told.contains("mod:writer@1.0.0"), "{who:?}: {told}");
                }
            };
            look("while it runs");
            fs::write(lib.join("enough.csv"), "").unwrap();
            assert!(writer.wait().unwrap().success(), "{who:?}");
            look("afterwards");
            // Once the code is gone they run again.
            for name in ["helper.py", "helper.mjs", "index.js", "package.json"] {
                fs::remove_file(lib.join(name)).unwrap();
            }
            // Left by the control.
            let _ = fs::remove_dir_all(lib.join("__pycache__"));
            for reader in readers {
                playground.expect(reader, "{}", "ok 1");
            }
        }
    });
}

/// No staged file is published that an interpreter loads, but where the manifest spells its ending and no script lies.
#[test]
fn staged_code_is_not_published_beside_scripts() {
    if !every_language() {
        return;
    }
    as_everyone("staged code", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let readers = readers(&playground);
        let lib = playground.path("user_scripts/shared/lib");
        fs::create_dir(&lib).unwrap();
        writes(&playground, "mod:staged", "shared/writer.py", "lib/*");
        playground.settle();
        let mut files = planted();
        ["lib/a.PY", "lib/b.so", "lib/c.wasm", "lib/d.json", "lib/e.pth"].iter().for_each(|n| files[*n] = json!("x"));
        let ended = playground.expect("mod:staged", &input(&files), "ok");
        let mut there: Vec<String> =
            fs::read_dir(&lib).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        assert_eq!(there, ["d.json", "data.csv"], "{who:?}: {}", ended.out["artifacts"]);
        assert!(ended.out["artifacts"].to_string().contains("an interpreter loads a file of that name"), "{ended:?}");
        for reader in readers {
            playground.expect(reader, "{}", "ok 1");
        }
        // Spelled, it is refused where a script lies above, and published elsewhere.
        let out = playground.path("out");
        fs::create_dir(&out).unwrap();
        for (folder, published) in [(&lib, false), (&out, true)] {
            writes(&playground, "mod:spelled", "spelled/main.py", &format!("{}/*.py", folder.display()));
            playground.settle();
            let file = folder.join("new.py");
            let wanted = if published { "ok" } else { "SecurityError: where a script lies, and would be run later" };
            playground.expect("mod:spelled", &input(&json!({&file.display().to_string(): "said = 3\n"})), wanted);
            assert_eq!(file.is_file(), published, "{who:?}");
        }
        // Beside a script, patterns of data alone; what they match is never read as requirements.
        for (pattern, wanted) in [
            ("*.csv", "ok"),
            ("result.csv", "ok"),
            ("*", "SecurityError: the tool's own script could be written"),
            ("*.json", "SecurityError: the tool's own script could be written"),
            ("report*", "SecurityError: a fixed ending of data"),
            ("x.tool.json", "SecurityError: a tool cannot make tools"),
            ("*.txt", "ok"),
        ] {
            let pattern = format!("{}/{pattern}", playground.path("user_scripts/beside").display());
            writes(&playground, "mod:beside", "beside/main.py", &pattern);
            playground.settle();
            playground.expect("mod:beside", &input(&json!({"requirements.txt": "evil==1.0\n"})), wanted);
        }
        let ended = playground.call("mod:beside", &input(&json!({})));
        assert!(ended.code != Some(0) && ended.stderr.contains("requirements.txt"), "{who:?}: {ended:?}");
    });
}

/// What a tool left for its own next call is not loaded either, also when it may write there no longer.
#[test]
fn a_tool_does_not_load_what_it_once_wrote() {
    as_everyone("its own code", |who| {
        let playground = Playground::new(who, "/var/tmp");
        writes(&playground, "mod:own", "own/main.py", "lib/**");
        playground.settle();
        playground.expect("mod:own", &input(&planted()), "ok");
        let folder = playground.path("user_scripts/own");
        let again = |wanted: &str| drop(playground.expect("mod:own", &input(&json!({})), wanted));
        again(CODE);
        // A new version, which asks for nothing.
        fs::remove_file(playground.path("sandbox-policies/mod-own.policy.toml")).unwrap();
        playground.tool_at("mod:own", "python", "own/main.py", PY, json!({"version": "2.0.0"}));
        playground.settle();
        again(CODE);
        assert!(playground.cli(&["audit", "mod:own"]).text().contains("holds code"));
        let lib = folder.join("lib");
        for name in ["helper.py", "helper.mjs", "index.js", "package.json"] {
            fs::remove_file(lib.join(name)).unwrap();
        }
        again("ok 1");
        // What cannot be looked at refuses, too.
        if who == Who::User {
            use std::os::unix::fs::PermissionsExt;
            let closed = lib.join("closed");
            fs::create_dir(&closed).unwrap();
            playground.settle();
            fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
            again("SecurityError: a writable folder beside the script cannot be looked at");
            fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
        }
    });
}

/// Code that tools share lies below the scripts base, and no tool is granted to write it.
#[test]
fn helpers_below_the_base_are_shared_and_not_written() {
    const PY: &str = "import os, sys\nsys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n\
        from lib.helper import said\nprint(said)\n";
    const JS: &str = "import { said } from '../lib/helper.mjs'\nconsole.log(said)\n";
    if !every_language() {
        return;
    }
    as_everyone("helpers", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let lib = playground.path("user_scripts/lib");
        fs::create_dir_all(lib.join("out")).unwrap();
        fs::write(lib.join("helper.py"), "said = 2\n").unwrap();
        fs::write(lib.join("helper.mjs"), "export const said = 2\n").unwrap();
        let tree = format!("{}/**", lib.display());
        for (id, language, file, text) in [
            ("use:py", "python", "a/main.py", PY),
            ("use:node", "nodejs", "b/main.mjs", JS),
            ("use:bun", "bun", "c/main.mjs", JS),
        ] {
            playground.tool_at(id, language, file, text, files(&["self", "base:lib/**"], &[]));
        }
        let users = ["use:py", "use:node", "use:bun"];
        playground.settle();
        for id in users {
            playground.expect(id, "{}", "SecurityError");
        }
        playground.allow("use", "use:*", &[&tree], &[]);
        playground.settle();
        for id in users {
            playground.expect(id, "{}", "ok 2");
        }
        // Neither it, nor a folder above it, is written; a folder in it may be, until code lies there.
        for (pattern, wanted) in [
            (tree.clone(), "SecurityError: could be written"),
            (format!("{}/**", playground.path("user_scripts").display()), "SecurityError: could be written"),
            (format!("{}/*", lib.display()), "SecurityError: could be written"),
            (format!("{}/out/**", lib.display()), "ok"),
        ] {
            writes(&playground, "mod:writer", "writer/main.py", &pattern);
            playground.settle();
            playground.expect("mod:writer", &input(&json!({})), wanted);
            for id in users {
                playground.expect(id, "{}", "ok 2");
            }
        }
        let file = json!({lib.join("out/x.mjs").display().to_string(): "1\n"});
        playground.expect("mod:writer", &input(&file), "ok");
        for id in users {
            playground.expect(id, "{}", CODE);
        }
    });
}

/// What a tool left below a tree that it could write is no tool, no script and no policy: while it is loaded, without
/// its manifest, without its policy, at a reload.
#[test]
fn a_place_keeps_its_past() {
    as_everyone("a place with a past", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let base = playground.path("user_scripts");
        playground.allow_builtin_tools();
        let folder = writes(&playground, "mod:writer", "old/main.py", "out/**");
        playground.tool_at("mod:other", "python", "zz/main.py", "print('{\"n\": 2}')\n", json!({}));
        playground.settle();
        let planted = |id: &str, path: &str| manifest(id, script(path, "python"), json!({})).to_string();
        let evil = planted("mod:evil", "evil.py");
        let policy = "name = \"x\"\nwhy = \"w\"\ntools = [\"mod:writer\"]\n";
        let files = json!({
            "out/evil.tool.json": evil, "out/evil.py": format!("print({PLANTED})\n"), "out/x.policy.toml": policy,
            "out/forbids.tool.json": "{\"handler\": {\"scriptPath\": \"zz/main.py\"}",
        });
        // Also before its first call: by hand, one that claims the writer's id, and one that is broken.
        fs::create_dir_all(folder.join("out/deep")).unwrap();
        fs::write(folder.join("out/deep/evil.tool.json"), planted("mod:evil", "zz/main.py")).unwrap();
        fs::write(folder.join("out/same.tool.json"), planted("mod:writer", "zz/main.py")).unwrap();
        fs::write(folder.join("out/half.tool.json"), "{\"handler\": {\"scriptPath\": \"old/main.py\"}").unwrap();
        playground.settle();
        let ended = playground.expect("mod:evil", "{}", "ToolNotFoundError");
        assert!(ended.stderr.contains("mod:writer@1.0.0 may write"), "{who:?}: {ended:?}");
        let checked = playground.cli(&["check"]).text();
        for name in ["evil", "same"] {
            let (_, told) = checked.split_once(&format!("{name}.tool.json: skipped")).unwrap();
            let reason = "mod:writer@1.0.0 may write, and a tool cannot make tools";
            assert!(told.lines().nth(1).unwrap().contains(reason), "{who:?} {name}: {checked}");
        }
        fs::remove_file(folder.join("out/deep/evil.tool.json")).unwrap();
        playground.expect("mod:writer", &input(&files), "ok");
        let run = |path: &str, wanted: &str| {
            playground.expect("core:execute-python-script", &json!({"scriptPath": path}).to_string(), wanted);
        };
        // While its writer is loaded, without that one's policy, without its manifest.
        let unknown = || drop(playground.expect("mod:evil", "{}", "ToolNotFoundError"));
        let mut server = Server::start(&playground);
        unknown();
        // A manifest that a tool dropped keeps no other from running the script that it names.
        run("zz/main.py", "ok");
        // What it planted counts as nothing: it is data, and the writer goes on once the code beside its script is
        // gone.
        fs::rename(folder.join("out/evil.py"), base.join("evil.py")).unwrap();
        playground.expect("mod:writer", &input(&json!({})), "ok");
        fs::rename(base.join("evil.py"), folder.join("out/evil.py")).unwrap();
        fs::remove_file(playground.path("sandbox-policies/mod-writer.policy.toml")).unwrap();
        unknown();
        fs::remove_file(folder.join("mod-writer.tool.json")).unwrap();
        playground.settle();
        unknown();
        server.reload("the writer goes", |server| !server.names().contains(&"mod__writer".to_owned()));
        let answer = server.called("mod:evil", json!({}));
        assert!(!answer.to_string().contains(PLANTED), "{answer}");
        run("old/out/evil.py", "SecurityError: mod:writer@1.0.0 could write in an earlier call");
        let told = playground.cli(&["check"]).text();
        assert!(told.contains("could write in an earlier call, and a tool cannot make tools"), "{who:?}: {told}");
        // Nor does `check` take a policy from there, also by a path that begins at the current folder; nor does a call.
        for (folder, path) in [(folder.join("out"), "x.policy.toml"), (folder.clone(), "out/x.policy.toml")] {
            let mut command = playground.host();
            command.current_dir(folder).args(["check", path]);
            let ended = finish(command, b"");
            let told = format!("{}{}", ended.text(), ended.stderr);
            assert!(told.contains("a tool cannot make policies"), "{who:?} {path}: {told}");
        }
        let ended = playground.call_with("mod:any", "{}", &["--policies", &folder.join("out").display().to_string()]);
        assert!(ended.code == Some(3) && ended.stderr.contains("a tool cannot make policies"), "{who:?}: {ended:?}");
        // The control: put elsewhere by a person, the same files are a tool.
        fs::create_dir(base.join("own")).unwrap();
        for name in ["evil.tool.json", "evil.py"] {
            fs::rename(folder.join("out").join(name), base.join("own").join(name)).unwrap();
        }
        playground.settle();
        playground.expect("mod:evil", "{}", &format!("ok {PLANTED}"));
    });
}

#[test]
fn a_log_named_through_a_link_is_protected_before_it_is_there() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let real = playground.path("real");
    let log = playground.path("link/data/audit.jsonl").display().to_string();
    symlink(&real, playground.path("link")).unwrap();
    for (name, folder) in [("forger", "data"), ("control", "free")] {
        fs::create_dir_all(real.join(folder)).unwrap();
        let (id, file) = (format!("esc:{name}"), format!("{name}/main.py"));
        let pattern = format!("{}/**", real.join(folder).display());
        playground.tool_at(&id, "python", &file, "print(1)\n", files(&["self"], &[&pattern]));
        playground.allow(name, &id, &[], &[&pattern]);
    }
    playground.settle();
    for (tool, wanted) in [("esc:forger", "SecurityError"), ("esc:control", "none")] {
        let ended = playground.call_with(tool, "{}", &["--audit-log", &log]);
        assert_eq!(ended.kind(), wanted, "{tool}: {}", ended.out);
    }
}

/// Repositories with their hooks, and what editors run, are there to read in a tree that a tool may write. No folder above
/// a repository gets another name, so that none is put in its place.
#[test]
fn what_others_obey_in_a_live_tree_is_read_only() {
    const MORE: &str = "\nfor path in given.get('away', []):\n    try:\n        os.rename(path, path + '-away')\n        got[path] = 'ok'\n\
        \x20   except OSError as e:\n        got[path] = errno.errorcode[e.errno]\nprint(json.dumps(got))\n";
    as_everyone("repositories", |who| {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let project = playground.path("project");
            let obeyed = [
                ".git/hooks/pre-commit",
                ".vscode/tasks.json",
                "sub/deep/.git/config",
                ".husky/pre-push",
                ".envrc",
                "bare/hooks/update",
            ];
            for name in obeyed.iter().chain(&[
                "src/a.txt",
                "plain/a.txt",
                ".gitignore",
                "bare/HEAD",
                "bare/objects/x",
                "bare/refs/x",
            ]) {
                fs::create_dir_all(project.join(name).parent().unwrap()).unwrap();
                fs::write(project.join(name), "as it was\n").unwrap();
            }
            let pattern = format!("{}/**", project.display());
            let folder = writes(&playground, "mod:editor", "editor/main.py", &pattern);
            let script = WRITER.rsplit_once("\nprint").unwrap().0.to_owned() + MORE;
            fs::write(folder.join("main.py"), script).unwrap();
            // Enough for the new files and a folder, and too little where what lies below `sub` counts twice.
            let policy = playground.path("sandbox-policies/mod-editor.policy.toml");
            fs::write(&policy, fs::read_to_string(&policy).unwrap() + "[limits]\nwritten_files = 8\n").unwrap();
            playground.settle();
            let at = |name: &str| project.join(name).display().to_string();
            let plain = ["src/a.txt", "src/new.txt", ".gitignore", "new/x", "sub/a", "sub/b", "sub/c"];
            let files: serde_json::Map<_, _> =
                obeyed.iter().chain(&plain).map(|name| (at(name), json!("changed\n"))).collect();
            let away: Vec<String> =
                [".git", "sub/deep/.git", "sub/deep", ".envrc", "bare", "sub"].iter().map(|name| at(name)).collect();
            let control = at("plain");
            let given = json!({"files": files, "away": away.iter().chain([&control]).collect::<Vec<_>>()}).to_string();
            let ended = playground.expect("mod:editor", &given, "ok");
            let got = &ended.out["outputData"];
            for name in obeyed {
                let kept = fs::read_to_string(project.join(name)).unwrap();
                let wanted = if away.contains(&at(name)) { "EBUSY" } else { "EROFS" };
                assert_eq!(
                    (got[at(name)].as_str(), kept.as_str()),
                    (Some(wanted), "as it was\n"),
                    "{who:?} {below}: {name}: {got}"
                );
            }
            for name in &away {
                assert_eq!(got[name], "EBUSY", "{who:?} {below}: {got}");
            }
            assert_eq!(got[&control], "ok", "the control: {got}");
            fs::rename(control.clone() + "-away", &control).unwrap();
            for name in plain {
                assert_eq!(fs::read_to_string(project.join(name)).unwrap(), "changed\n", "the control: {name}");
            }
            // The control: outside all of it is changed.
            let mut command = playground.outside(PYTHON);
            command.arg(folder.join("main.py"));
            let outside = finish(command, given.as_bytes()).out;
            assert!(outside.as_object().unwrap().values().all(|got| got == "ok"), "{outside}");
            // Such a folder itself, and a link to one, are not granted at all.
            for (ask, wanted) in [
                (format!("{}/**", at("sub-away/deep-away/.git-away")), "ok"),
                (format!("{}/**", at(".vscode")), "SecurityError: what lies in `.vscode` other programs run or obey"),
                (format!("{}/*", at(".git/hooks")), "SecurityError: what lies in `.git` other programs run or obey"),
                (at(".envrc"), "SecurityError: what lies in `.envrc` other programs run or obey"),
                (format!("{}/**", at("bare-away")), "SecurityError: a writable folder is a repository"),
                (format!("{}/*", at("bare-away")), "SecurityError: a writable folder is a repository, or lies in one"),
                (format!("{}/**", at("bare-away/hooks")), "SecurityError: a writable folder is a repository"),
                (pattern.clone(), "SecurityError: a writable folder is a repository, or holds a link to one"),
            ] {
                if ask == pattern {
                    symlink(project.join("src"), project.join("src/.git")).unwrap();
                }
                writes(&playground, "mod:editor", "editor/main.py", &ask);
                if who == Who::Root || ask != pattern {
                    playground.settle();
                }
                playground.expect("mod:editor", &input(&json!({})), wanted);
            }
            assert!(Path::new(&at("src/.git")).is_symlink());
        }
    });
}
