//! One tool plants no code that another runs: not in a shared folder, not staged, not in a folder that was renamed.

use crate::harness::{
    Ended, PYTHON, Playground, Server, Who, as_everyone, as_everyone_with, finish, fits, found, has, manifest,
    repository, script, wait_for,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What planted code answers.
const PLANTED: &str = "99887766";

/// Writes files: `{"files": {"path": "text"}, "wait": seconds}`.
const WRITER: &str = "import errno, json, os, sys, time\ngiven = json.load(sys.stdin)\ngot = {}\n\
    for path, text in given['files'].items():\n    try:\n        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n\
    \x20       open(path, 'w').write(text)\n        got[path] = 'ok'\n    except OSError as e:\n        got[path] = errno.errorcode[e.errno]\n\
    time.sleep(given.get('wait', 0))\nprint(json.dumps(got))\n";

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

fn writes(playground: &Playground, id: &str, file: &str, pattern: &str) -> PathBuf {
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": [pattern]}}});
    let rule = if pattern.ends_with("/**") { pattern.to_owned() } else { format!("{}/**", folder_of(pattern)) };
    let rule = if rule.starts_with('/') { rule } else { format!("./{rule}") };
    let rest = format!(
        "[files]\nread = [{{ path = \"./**\", why = \"t\" }}]\nwrite = [{{ path = \"{rule}\", why = \"t\" }}]\n"
    );
    playground.policy(&id.replace(':', "-"), id, &rest);
    playground.tool_at(id, "python", file, WRITER, asks)
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

fn input(files: &Value, wait: f64) -> String {
    json!({"files": files, "wait": wait}).to_string()
}

fn notes(ended: &Ended) -> String {
    ended.out["notes"].to_string()
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
            let lib = playground.path("user_scripts/shared/lib");
            fs::create_dir(&lib).unwrap();
            let files: Value = planted()
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, text)| {
                    let path = playground.path("user_scripts/shared").join(name);
                    (path.display().to_string(), text.clone())
                })
                .collect::<serde_json::Map<_, _>>()
                .into();
            let pattern = format!("{}/**", lib.display());
            match elsewhere {
                true => writes(&playground, "mod:writer", "writer/main.py", &pattern),
                false => writes(&playground, "mod:writer", "shared/writer.py", "lib/**"),
            };
            playground.settle();
            let mut server = Server::start(&playground);
            for reader in readers {
                fits("ok 1", &playground.call(reader, "{}")).unwrap();
                let answer = server.called(reader, json!({}));
                assert_eq!(answer["result"]["isError"], false, "{reader}: {answer}");
            }
            // While it still runs, and after that.
            let mut writer = playground.host();
            writer.args(["call", "mod:writer", "--json", "--input", &input(&files, 3.0)]);
            let mut writer = spawned(writer);
            wait_for("it writes", || lib.join("data.csv").is_file());
            let mut look = |when: &str| {
                for reader in readers {
                    assert_eq!(outside(&playground, reader).trim(), PLANTED, "the control: {who:?}: {reader}");
                    let ended = playground.call(reader, "{}");
                    fits("ok 1", &ended).unwrap_or_else(|why| panic!("{who:?}: {when}: {reader}: {why}"));
                    let wanted = "narrowed: lib is not in view: mod:writer@1.0.0 could write in an earlier call";
                    assert!(notes(&ended).contains(wanted), "{who:?}: {when}: {}", ended.out);
                    // A server that runs knows what another process let a tool write.
                    let answer = server.called(reader, json!({}));
                    assert!(!answer.to_string().contains(PLANTED), "{who:?}: {when}: {reader}: {answer}");
                    let told = playground.cli(&["audit", reader]).text();
                    assert!(told.contains(wanted), "{who:?}: {told}");
                }
            };
            look("while it runs");
            assert!(writer.wait().unwrap().success(), "{who:?}");
            look("afterwards");
            // The writer itself runs no more until the code is gone.
            let ended = playground.call("mod:writer", &input(&json!({}), 0.0));
            fits("SecurityError: a writable folder beside the script holds code", &ended).unwrap();
            // Files of a pattern are seen, but for code.
            let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "lib/*"]}}});
            let list = "import json, os\nprint(json.dumps(sorted(os.listdir('lib'))))\n";
            playground.tool_at("mod:names", "python", "shared/names.py", list, asks);
            playground.settle();
            fits(r#"ok ["data.csv"]"#, &playground.call("mod:names", "{}"))
                .unwrap_or_else(|why| panic!("{who:?}: {why}"));
        }
    });
}

fn spawned(mut command: Command) -> std::process::Child {
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Where a module lies, nobody writes; and its own tool goes on loading it.
#[test]
fn a_folder_of_modules_is_not_written() {
    if !every_language() {
        return;
    }
    as_everyone("modules that are there", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let readers = readers(&playground);
        let lib = playground.path("user_scripts/shared/lib");
        fs::create_dir(&lib).unwrap();
        writes(&playground, "mod:beside", "shared/writer.py", "lib/**");
        writes(&playground, "mod:far", "far/main.py", &format!("{}/**", lib.display()));
        for (name, text) in [
            ("helper.py", "said = 2\n"),
            ("helper.mjs", "export const said = 2\n"),
            ("package.json", "{\"type\": \"module\"}"),
            ("sub/x.tsx", ""),
            ("m.so", ""),
            ("X.PY", ""),
        ] {
            let file = lib.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            playground.settle();
            for writer in ["mod:beside", "mod:far"] {
                let ended = playground.call(writer, &input(&json!({}), 0.0));
                fits("SecurityError: a writable folder beside the script holds code", &ended)
                    .unwrap_or_else(|why| panic!("{who:?}: {writer}: {name}: {why}"));
                assert!(ended.stderr.contains(&file.display().to_string()), "{ended:?}");
            }
            for (reader, own) in readers.iter().zip(["helper.py", "helper.mjs", "helper.mjs"]) {
                let wanted = if own == name { "ok 2" } else { "ok 1" };
                fits(wanted, &playground.call(reader, "{}")).unwrap_or_else(|why| panic!("{who:?}: {name}: {why}"));
            }
            fs::remove_file(&file).unwrap();
        }
        // The control: without code both write.
        fs::write(lib.join("notes.txt"), "").unwrap();
        playground.settle();
        let file = json!({lib.join("new.csv").display().to_string(): "1\n"});
        for writer in ["mod:beside", "mod:far"] {
            fits("ok", &playground.call(writer, &input(&file, 0.0))).unwrap();
            assert!(lib.join("new.csv").is_file(), "{who:?}: {writer}");
        }
    });
}

/// No staged file is published that a script could load, but where the manifest spells its ending and no script lies.
#[test]
fn staged_code_is_not_published() {
    if !every_language() {
        return;
    }
    as_everyone("staged code", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let readers = readers(&playground);
        let lib = playground.path("user_scripts/shared/lib");
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("conf.js"), "").unwrap();
        writes(&playground, "mod:staged", "shared/writer.py", "lib/*");
        playground.settle();
        let mut files = planted();
        let more =
            ["lib/a.PY", "lib/b.so", "lib/c.wasm", "lib/conf", "lib/plain", "lib/d.json", "lib/e.pth", "lib/f.pyz"];
        more.iter().for_each(|name| files[*name] = json!("x"));
        let ended = playground.call("mod:staged", &input(&files, 0.0));
        fits("ok", &ended).unwrap();
        let mut there: Vec<String> =
            fs::read_dir(&lib).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        assert_eq!(there, ["conf.js", "d.json", "data.csv"], "{who:?}: {}", ended.out["artifacts"]);
        let dropped = ended.out["artifacts"].to_string();
        for why in [
            "a script could load a file ending in `.py`: the manifest must spell that ending",
            "a script could load a file ending in `package.json`",
            "Node would load it in place of conf.js",
            "a script could load a file whose ending is not known to be data: the manifest must spell it",
        ] {
            assert!(dropped.contains(why), "{why}: {dropped}");
        }
        for reader in readers {
            fits("ok 1", &playground.call(reader, "{}")).unwrap();
        }
        // Spelled, it is refused where a script lies, also another tool's, and published where none does.
        let out = playground.path("out");
        fs::create_dir(&out).unwrap();
        for (folder, published) in [(&lib, false), (&out, true)] {
            writes(&playground, "mod:spelled", "spelled/main.py", &format!("{}/*.py", folder.display()));
            playground.settle();
            let file = folder.join("new.py");
            let ended =
                playground.call("mod:spelled", &input(&json!({&file.display().to_string(): "said = 3\n"}), 0.0));
            assert_eq!(file.is_file(), published, "{who:?}: {ended:?}");
            let wanted = if published { "ok" } else { "SecurityError: where a script lies, and would be run later" };
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {why}"));
        }
        // And what was published is no script after a folder above was renamed.
        let moved = playground.path("user_scripts/moved");
        fs::rename(&out, &moved).unwrap();
        let core = "sandbox-policies/core.policy.toml";
        fs::copy(repository(core), playground.path(core)).unwrap();
        playground.settle();
        let run = || playground.call("core:execute-python-script", r#"{"scriptPath": "moved/new.py"}"#);
        fits("SecurityError: mod:spelled@1.0.0 could write in an earlier call", &run()).unwrap();
        fs::rename(moved.join("new.py"), playground.path("user_scripts/other/new.py")).unwrap();
        let run = playground.call("core:execute-python-script", r#"{"scriptPath": "other/new.py"}"#);
        assert_eq!(run.kind(), "ScriptError", "the control: it runs, and prints nothing: {run:?}");
    });
}

/// A file of any name that Node does not know as data runs as a script, and stands before what a script means to load.
#[test]
fn no_staged_file_stands_before_a_module() {
    if !every_language() {
        return;
    }
    const DOT: &str = "const said = []\nfor (const name of ['app.config', 'local', 'dirmod']) {\n\
        \x20   try { said.push(require('./lib/' + name).said ?? 0) } catch { said.push(1) }\n}\nconsole.log(JSON.stringify(said))\n";
    as_everyone("staged names", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool_at("mod:node", "nodejs", "shared/dot.cjs", DOT, json!({}));
        playground.tool_at("mod:bun", "bun", "shared/dot2.cjs", DOT, json!({}));
        let lib = playground.path("user_scripts/shared/lib");
        fs::create_dir_all(lib.join("dirmod")).unwrap();
        fs::write(lib.join("app.config.js"), "exports.said = 2\n").unwrap();
        fs::write(lib.join("dirmod/index.js"), "exports.said = 2\n").unwrap();
        writes(&playground, "mod:staged", "evil/main.py", &format!("{}/*", lib.display()));
        let path = |name: &str| lib.join(name).display().to_string();
        let code = format!("exports.said = {PLANTED}\n");
        let data = format!("{{\"said\": {PLANTED}}}");
        let files = json!({path("app.config"): &code, path("local"): &code, path("dirmod.json"): &data,
            path("notes.cfg"): "x", path("data.csv"): "1\n"});
        playground.settle();
        let ended = playground.call("mod:staged", &input(&files, 0.0));
        fits("ok", &ended).unwrap();
        let dropped = ended.out["artifacts"].as_array().unwrap();
        const UNKNOWN: &str =
            "a script could load a file whose ending is not known to be data: the manifest must spell it";
        for (name, wanted) in [
            ("app.config", "Node would load it in place of app.config.js"),
            ("local", UNKNOWN),
            ("dirmod.json", "Node would load it in place of the folder dirmod"),
            ("notes.cfg", UNKNOWN),
        ] {
            let found = dropped.iter().find(|a| a["path"].as_str().unwrap().ends_with(&format!("/{name}"))).unwrap();
            assert_eq!(found["droppedBecause"], wanted, "{who:?}: {found}");
            assert!(!lib.join(name).exists(), "{who:?}: {name}");
        }
        assert!(lib.join("data.csv").is_file(), "{who:?}: the control: data is published");
        for reader in ["mod:node", "mod:bun"] {
            fits("ok [2,1,2]", &playground.call(reader, "{}")).unwrap_or_else(|why| panic!("{who:?}: {reader}: {why}"));
        }
        // Spelled, it is published, and no other tool runs it, also when its tool is gone.
        writes(&playground, "mod:staged", "evil/main.py", &path("local"));
        playground.settle();
        let ended = playground.call("mod:staged", &input(&json!({path("local"): &code}), 0.0));
        fits("ok", &ended).unwrap();
        assert!(lib.join("local").is_file(), "{who:?}: {ended:?}");
        fs::remove_dir_all(playground.path("user_scripts/evil")).unwrap();
        fs::remove_file(playground.path("sandbox-policies/mod-staged.policy.toml")).unwrap();
        playground.settle();
        for reader in ["mod:node", "mod:bun"] {
            let ended = playground.call(reader, "{}");
            fits("ok [2,0,2]", &ended).unwrap_or_else(|why| panic!("{who:?}: {reader}: {why}"));
        }
        // Nor by a tool that stages files of that folder itself: its copy lacks them, and they stay where they are.
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["lib/*"]}}});
        playground.tool_at("mod:stages", "nodejs", "shared/dot3.cjs", DOT, asks);
        playground.allow("mod-stages", "mod:stages", &["./**"], &["./lib/**"]);
        playground.settle();
        let ended = playground.call("mod:stages", "{}");
        fits("ok [2,0,2]", &ended).unwrap_or_else(|why| panic!("{who:?}: {why}"));
        assert_eq!(ended.out["artifacts"], json!([]), "{who:?}: nothing of it was the tool's to publish");
        assert!(lib.join("local").is_file(), "{who:?}");
        // The control: outside of the walls all of it is loaded.
        for name in ["app.config", "dirmod.json"] {
            fs::write(lib.join(name), if name.ends_with("json") { &data } else { &code }).unwrap();
        }
        let mut command = playground.outside(&found("node").unwrap().display().to_string());
        command.arg(playground.path("user_scripts/shared/dot.cjs"));
        assert_eq!(finish(command, b"").text().trim(), format!("[{}]", [PLANTED; 3].join(",")));
    });
}

/// A file without an ending, which Node runs by its name, from a tool that writes the folder as it is.
#[test]
fn a_live_file_without_an_ending_is_no_module_of_another_tool() {
    if !every_language() {
        return;
    }
    const LOCAL: &str = "let said = 1\ntry { said = require('./lib/local').said ?? 0 } catch {}\nconsole.log(said)\n";
    as_everyone("a file without an ending", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let lib = playground.path("user_scripts/shared/lib");
        fs::create_dir_all(&lib).unwrap();
        let asks = [
            ("mod:reads", json!({"allowRead": ["self", "lib/*"]})),
            ("mod:stages", json!({"allowRead": ["self"], "allowWrite": ["lib/*"]})),
        ];
        let rules =
            "[files]\nread = [{ path = \"./**\", why = \"t\" }]\nwrite = [{ path = \"./lib/**\", why = \"t\" }]\n";
        for (id, files) in asks.clone() {
            let file = format!("shared/{}.cjs", id.replace(':', "-"));
            playground.tool_at(id, "nodejs", &file, LOCAL, json!({"securityContext": {"fileAccess": files}}));
            playground.policy(&id.replace(':', "-"), id, rules);
        }
        playground.settle();
        let local = lib.join("local");
        fs::write(&local, format!("exports.said = {PLANTED}\n")).unwrap();
        for (id, _) in &asks {
            let said = format!("ok {PLANTED}");
            fits(&said, &playground.call(id, "{}")).unwrap_or_else(|why| panic!("the control: {who:?}: {id}: {why}"));
        }
        fs::remove_file(&local).unwrap();
        writes(&playground, "mod:live", "live/main.py", &format!("{}/**", lib.display()));
        playground.settle();
        let files = json!({local.display().to_string(): format!("exports.said = {PLANTED}\n")});
        fits("ok", &playground.call("mod:live", &input(&files, 0.0))).unwrap();
        assert!(local.is_file());
        for (id, _) in &asks {
            let ended = playground.call(id, "{}");
            fits("ok 1", &ended).unwrap_or_else(|why| panic!("{who:?}: {id}: {why}"));
            let told = "narrowed: files of lib without an ending of data are left out: mod:live@1.0.0";
            assert!(notes(&ended).contains(told), "{who:?}: {id}: {}", ended.out["notes"]);
        }
        assert!(local.is_file(), "{who:?}: it stays where it is");
    });
}

/// What a tool left for its own next call is not loaded either, also when it may write there no longer.
#[test]
fn a_tool_does_not_load_what_it_once_wrote() {
    as_everyone_with("python", "its own code", |who| {
        let playground = Playground::new(who, "/var/tmp");
        writes(&playground, "mod:own", "own/main.py", "lib/**");
        playground.settle();
        fits("ok", &playground.call("mod:own", &input(&planted(), 0.0))).unwrap();
        let folder = playground.path("user_scripts/own");
        let again = || playground.call("mod:own", &input(&json!({}), 0.0));
        const CODE: &str = "SecurityError: a writable folder beside the script holds code";
        fits(CODE, &again()).unwrap();
        // A new version, which asks for nothing.
        fs::remove_file(playground.path("sandbox-policies/mod-own.policy.toml")).unwrap();
        let manifest = folder.join("mod-own.tool.json");
        let mut text: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
        text["securityContext"] = json!({});
        text["version"] = json!("2.0.0");
        fs::write(&manifest, text.to_string()).unwrap();
        fs::write(folder.join("main.py"), PY).unwrap();
        playground.settle();
        fits(CODE, &again()).unwrap_or_else(|why| panic!("{who:?}: {why}"));
        assert!(playground.cli(&["audit", "mod:own"]).text().contains("holds code"));
        let lib = folder.join("lib");
        for entry in fs::read_dir(&lib).unwrap().map(|entry| entry.unwrap().path()) {
            if !entry.ends_with("data.csv") {
                fs::remove_file(entry).unwrap();
            }
        }
        fits("ok 1", &again()).unwrap();
    });
}

/// A place is known by device, inode and birth: nothing in it is loaded after a folder above was renamed.
#[test]
fn a_place_keeps_its_past_under_another_name() {
    as_everyone_with("python", "renamed places", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let base = playground.path("user_scripts");
        let core = "sandbox-policies/core.policy.toml";
        fs::copy(repository(core), playground.path(core)).unwrap();
        let folder = writes(&playground, "mod:writer", "old/main.py", "out/**");
        fs::create_dir(folder.join("out")).unwrap();
        playground.settle();
        let evil = manifest("mod:evil", script("evil.py", "python"), json!({}));
        let policy = "name = \"x\"\nwhy = \"w\"\ntools = [\"mod:writer\"]\n";
        let files = json!({
            "out/evil.tool.json": evil.to_string(), "out/evil.py": format!("print({PLANTED})\n"),
            "out/x.policy.toml": policy, "out/helper.py": format!("said = {PLANTED}\n"),
        });
        fits("ok", &playground.call("mod:writer", &input(&files, 0.0))).unwrap();
        let run = |path: &str| {
            let script = json!({"scriptPath": path}).to_string();
            playground.call("core:execute-python-script", &script)
        };
        // The folder above, the folder itself, and a place in the folder of another tool.
        fs::remove_file(folder.join("mod-writer.tool.json")).unwrap();
        fs::remove_file(playground.path("sandbox-policies/mod-writer.policy.toml")).unwrap();
        let new = base.join("new");
        fs::rename(&folder, &new).unwrap();
        for (from, to) in [(new.join("out"), new.join("results")), (new.join("results"), base.join("top"))] {
            for place in [&from, &to] {
                let relative = place.strip_prefix(&base).unwrap().display();
                fits("ToolNotFoundError", &playground.call("mod:evil", "{}")).unwrap();
                let wanted = "SecurityError: mod:writer@1.0.0 could write in an earlier call";
                fits(wanted, &run(&format!("{relative}/evil.py"))).unwrap_or_else(|why| panic!("{who:?}: {why}"));
                let told = playground.cli(&["check"]).text();
                assert!(
                    told.contains("could write in an earlier call, and a tool cannot make tools"),
                    "{who:?}: {told}"
                );
                if place == &from {
                    fs::rename(&from, &to).unwrap();
                }
            }
        }
        playground.tool_at("mod:py", "python", "shared/py.py", PY, json!({}));
        fs::rename(base.join("top"), base.join("shared/lib")).unwrap();
        playground.settle();
        assert_eq!(outside(&playground, "mod:py").trim(), PLANTED, "the control");
        let ended = playground.call("mod:py", "{}");
        fits("ok 1", &ended).unwrap_or_else(|why| panic!("{who:?}: {why}"));
        assert!(notes(&ended).contains("narrowed: lib is not in view: mod:writer@1.0.0"), "{}", ended.out);
        // Nor does `check` take a policy from there, named by a path that begins at the current folder.
        let lib = base.join("shared/lib");
        fs::write(lib.join("x.policy.toml"), "name = \"x\"\nwhy = \"w\"\ntools = [\"mod:*\"]\n").unwrap();
        for (folder, path) in [(&lib, "x.policy.toml"), (&base.join("shared"), "lib/x.policy.toml")] {
            let mut command = playground.host();
            command.current_dir(folder).args(["check", path]);
            let ended = crate::harness::finish(command, b"");
            let told = format!("{}{}", ended.text(), ended.stderr);
            assert!(told.contains("a tool cannot make policies"), "{who:?} {path}: {told}");
        }
        fs::remove_file(lib.join("x.policy.toml")).unwrap();
        // Nor are policies read from there.
        let policies = playground.path("sandbox-policies");
        fs::rename(&policies, playground.path("kept")).unwrap();
        fs::rename(base.join("shared/lib"), &policies).unwrap();
        for entry in ["evil.tool.json", "evil.py", "helper.py"] {
            fs::rename(policies.join(entry), playground.path("kept").join(entry)).unwrap();
        }
        let ended = playground.call("mod:py", "{}");
        assert_eq!(ended.code, Some(3), "{who:?}: {ended:?}");
        assert!(ended.stderr.contains("could write in an earlier call, and a tool cannot make policies"), "{ended:?}");
        assert_ne!(playground.cli(&["check"]).code, Some(0));
        fs::remove_dir_all(&policies).unwrap();
        fs::rename(playground.path("kept"), &policies).unwrap();
        // The control: put elsewhere by a person, the same files are a tool.
        fs::create_dir(base.join("own")).unwrap();
        for name in ["evil.tool.json", "evil.py"] {
            fs::rename(policies.join(name), base.join("own").join(name)).unwrap();
        }
        playground.settle();
        fits(&format!("ok {PLANTED}"), &playground.call("mod:evil", "{}")).unwrap();
    });
}

/// A repository is not replaced by renaming a folder above it, which fails; a folder beside it can be renamed.
#[test]
fn a_repository_is_not_replaced_with_the_folder_above() {
    if !has("python", 4) {
        return;
    }
    // Gives the folder another name, and makes a repository where it was.
    const REPLACER: &str = "import errno, json, os, sys\ngiven = json.load(sys.stdin)\ngot = {}\n\
        for path, new in given['away']:\n    try:\n        os.rename(path, new)\n\
        \x20       os.makedirs(path + '/.git/hooks')\n        open(path + '/.git/hooks/pre-commit', 'w').write('changed')\n\
        \x20       got[path] = 'ok'\n    except OSError as e:\n        got[path] = errno.errorcode[e.errno]\n\
        for path in given['write']:\n    open(path, 'w').write('x' * 4096)\nprint(json.dumps(got))\n";
    as_everyone("folders of repositories", |who| {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let out = playground.path("out");
            let hook = out.join("deep/repo/.git/hooks/pre-commit");
            for file in [hook.clone(), out.join("deep/repo/a.txt"), out.join("deep/plain/a.txt"), out.join("a.txt")] {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "as it was").unwrap();
            }
            let folder = writes(&playground, "mod:editor", "editor/main.py", &format!("{}/**", out.display()));
            fs::write(folder.join("main.py"), REPLACER).unwrap();
            // Enough for what is written, some 32 KiB with the new folders; too little where a part of it counts twice.
            let policy = playground.path("sandbox-policies/mod-editor.policy.toml");
            let text = fs::read_to_string(&policy).unwrap() + "[limits]\nwritten_bytes = 49152\nwritten_files = 20\n";
            fs::write(policy, text).unwrap();
            playground.settle();
            let at = |name: &str| out.join(name).display().to_string();
            let write = ["a", "deep/c", "deep/repo/d", "deep/repo/e"].map(at);
            let given = json!({
                "away": [
                    [at("deep/repo"), at("deep/old")], [at("deep"), at("old")],
                    // What lies in another mount is not linked or renamed into this one, also by its own user.
                    [at("deep/repo/a.txt"), at("deep/b.txt")],
                    [at("deep/plain"), at("deep/moved")],
                ],
                "write": write,
            });
            let ended = playground.call("mod:editor", &given.to_string());
            fits("ok", &ended).unwrap_or_else(|why| panic!("{who:?} {below}: {why}"));
            let got = &ended.out["outputData"];
            for (name, wanted) in
                [("deep/repo", "EBUSY"), ("deep", "EBUSY"), ("deep/repo/a.txt", "EXDEV"), ("deep/plain", "ok")]
            {
                assert_eq!(got[at(name)], wanted, "{who:?} {below}: {got}");
            }
            assert_eq!(fs::read_to_string(&hook).unwrap(), "as it was", "{who:?} {below}");
            assert!(out.join("deep/moved/a.txt").is_file() && out.join("deep/repo/e").is_file());
            // The control: outside of the walls the folder is replaced.
            let mut command = playground.outside(PYTHON);
            command.arg(folder.join("main.py"));
            let given = json!({"away": [[at("deep/repo"), at("deep/old")]], "write": []});
            assert_eq!(finish(command, given.to_string().as_bytes()).out[at("deep/repo")], "ok");
            assert_eq!(fs::read_to_string(&hook).unwrap(), "changed");
        }
    });
}

/// Repositories with their hooks, and what editors run, are there to read in a tree that a tool may write.
#[test]
fn what_others_obey_in_a_live_tree_is_read_only() {
    if !has("python", 4) {
        return;
    }
    const MORE: &str = "\nfor path in given.get('away', []):\n    try:\n        os.rename(path, path + '-away')\n        got[path] = 'ok'\n\
        \x20   except OSError as e:\n        got[path] = errno.errorcode[e.errno]\nprint(json.dumps(got))\n";
    as_everyone("repositories", |who| {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let project = playground.path("project");
            let obeyed = [
                ".git/hooks/pre-commit",
                ".vscode/tasks.json",
                "sub/.git/config",
                ".husky/pre-push",
                ".envrc",
                "bare/hooks/update",
            ];
            for name in obeyed.iter().chain(&["src/a.txt", ".gitignore", "bare/HEAD", "bare/objects/x", "bare/refs/x"])
            {
                fs::create_dir_all(project.join(name).parent().unwrap()).unwrap();
                fs::write(project.join(name), "as it was\n").unwrap();
            }
            let pattern = format!("{}/**", project.display());
            let folder = writes(&playground, "mod:editor", "editor/main.py", &pattern);
            let script = WRITER.rsplit_once("\nprint").unwrap().0.to_owned() + MORE;
            fs::write(folder.join("main.py"), script).unwrap();
            playground.settle();
            let at = |name: &str| project.join(name).display().to_string();
            let plain = ["src/a.txt", "src/new.txt", ".gitignore", "new/x"];
            let files: serde_json::Map<_, _> =
                obeyed.iter().chain(&plain).map(|name| (at(name), json!("changed\n"))).collect();
            let away: Vec<String> = [".git", "sub/.git", ".envrc", "bare"].iter().map(|name| at(name)).collect();
            let given = json!({"files": files, "away": away}).to_string();
            let ended = playground.call("mod:editor", &given);
            fits("ok", &ended).unwrap_or_else(|why| panic!("{who:?} {below}: {why}"));
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
                (format!("{}/**", at("sub/.git-away")), "ok"),
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
                let ended = playground.call("mod:editor", &input(&json!({}), 0.0));
                fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?} {below}: {ask}: {why}"));
            }
            assert!(Path::new(&at("src/.git")).is_symlink());
        }
    });
}
