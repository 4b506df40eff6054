//! P3, P5, P19: a tool's data is its neighbours' data; its code is not. What one tool writes,
//! others read, and none runs; what it leaves in a folder that it may write never becomes a tool.
//! (A folder that it fills: `registry/scan.rs`.)

use super::{files, put, says};
use crate::prelude::*;

/// What planted code answers.
const PLANTED: &str = "99887766";
/// Writes `files`, puts `away` what is named, and stays until the file `until` is there.
const WRITER: &str = include_str!("planted.py");
const NOTHING: &str = r#"{"files": {}}"#;

/// Answers what its module says, or 1 where there is none.
const PY: &str =
    "try:\n    from lib.helper import said\nexcept ImportError:\n    said = 1\nprint(said)\n";
const JS: &str = "let said = 1\ntry { said = (await import('./lib/helper.mjs')).said } catch {}\n\
    try { said = (await import('./lib/index.js')).said ?? said } catch {}\nconsole.log(said)\n";
const READERS: [(&str, &str, &str); 3] = [
    ("mod:py", "python", "py.py"),
    ("mod:node", "nodejs", "node.mjs"),
    ("mod:bun", "bun", "bun.mjs"),
];

/// What would be loaded by each of them.
fn planted() -> Value {
    json!({
        "lib/helper.py": format!("said = {PLANTED}\n"), "lib/helper.mjs": format!("export const \
            said = {PLANTED}\n"),
        "lib/index.js": format!("module.exports = {{ said: {PLANTED} }}\n"), "lib/package.json": "{\"type\": \"commonjs\"}",
        "lib/data.csv": "1,2\n",
    })
}

/// It goes, and what a control left.
fn code_goes(lib: &Path) {
    for name in ["helper.py", "helper.mjs", "index.js", "package.json"] {
        fs::remove_file(lib.join(name)).unwrap();
    }
    let _ = fs::remove_dir_all(lib.join("__pycache__"));
}

/// A tool that may write this.
fn writes(playground: &Playground, id: &str, file: &str, pattern: &str) -> PathBuf {
    let folder = pattern.rsplit_once('/').unwrap().0;
    let rule = if folder.starts_with('/') {
        format!("{folder}/**")
    } else {
        format!("./{folder}/**")
    };
    playground.allow(&id.replace(':', "-"), id, &["./**"], &[&rule]);
    let folder = playground.tool_at(id, "python", file, WRITER, files(&["self"], &[pattern]));
    playground.settle();
    folder
}

/// Three readers in one folder.
fn readers(playground: &Playground, py: &str, js: &str, more: &Value) {
    for (id, language, file) in READERS {
        let script = if language == "python" { py } else { js };
        playground.tool_at(
            id,
            language,
            &format!("shared/{file}"),
            script,
            more.clone(),
        );
    }
    playground.settle();
}

fn all_answer(playground: &Playground, wanted: &str) {
    READERS
        .iter()
        .for_each(|(id, ..)| drop(playground.expect(id, "{}", wanted)));
}

fn every_language() -> bool {
    READERS.iter().all(|(_, language, _)| has(language, 4))
}

fn input(files: &Value) -> String {
    json!({"files": files}).to_string()
}

/// What is not loaded is named in the log of the call.
fn names_the_file(ended: &Ended, file: &Path) {
    let told = format!("{} was not loaded: tools write there", file.display());
    assert!(ended.out["logs"].to_string().contains(&told), "{ended:?}");
}

/// The files that one tool adds, another lists, of the same folder and of another one.
#[test]
fn data_that_one_tool_writes_is_read_by_others() {
    const ADD: &str = "import json, os, sys\nos.makedirs('data', exist_ok=True)\n\
        n = len(os.listdir('data'))\nopen(f'data/{n}.json', 'w').write(json.dumps({'n': n}))\n\
        open('data/plain', 'w').write('x')\nprint(n)\n";
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let data = playground.path("user_scripts/notes/data");
    let (tree, names) = (
        format!("{}/**", data.display()),
        format!("{}/*.json", data.display()),
    );
    let list = "import json\nfrom pathlib import Path\n\
        print(json.dumps(sorted(p.name for p in Path('DATA').iterdir() if p.read_text())))\n";
    let list = list.replace("DATA", data.to_str().unwrap());
    for (id, script, more) in [
        ("notes:add", ADD, files(&["self"], &["data/**"])),
        ("notes:list", &list, json!({})),
        ("far:list", &list, files(&["self", &tree], &[])),
        ("far:names", &list, files(&["self", &names], &[])),
    ] {
        playground.tool_at(
            id,
            "python",
            &format!("{}.py", id.replace(':', "/")),
            script,
            more,
        );
    }
    playground.allow("notes", "notes:add", &["./**"], &["./data/**"]);
    playground.allow("far", "far:*", &[&tree], &[]);
    playground.settle();
    for (tool, wanted) in [
        ("notes:add", "ok 0"),
        ("notes:list", r#"ok ["0.json","plain"]"#),
        ("far:list", r#"ok ["0.json","plain"]"#),
        ("far:names", r#"ok ["0.json"]"#),
        ("notes:add", "ok 2"),
    ] {
        playground.expect(tool, "{}", wanted);
    }
    // A report with its assets stops no tool: it is data, like all that tools write.
    for name in ["x.py", "page.js", "package.json"] {
        fs::write(data.join(name), "1").unwrap();
    }
    playground.expect("far:list", "{}", "ok");
    playground.expect(
        "notes:list",
        "{}",
        r#"ok ["0.json","2.json","package.json","page.js","plain","x.py"]"#,
    );
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
            readers(&playground, PY, JS, &json!({}));
            let shared = playground.path("user_scripts/shared");
            let lib = shared.join("lib");
            fs::create_dir(&lib).unwrap();
            match elsewhere {
                true => writes(
                    &playground,
                    "mod:writer",
                    "writer/main.py",
                    &format!("{}/**", lib.display()),
                ),
                false => writes(&playground, "mod:writer", "shared/writer.py", "lib/**"),
            };
            // It runs while all of the others do.
            let policy = playground.path("sandbox-policies/mod-writer.policy.toml");
            let text = fs::read_to_string(&policy).unwrap();
            fs::write(policy, text + "[limits]\ntimeout_ms = 110_000\n").unwrap();
            playground.settle();
            let at = |(name, text): (&String, &Value)| {
                (shared.join(name).display().to_string(), text.clone())
            };
            let files: Value = planted()
                .as_object()
                .unwrap()
                .iter()
                .map(at)
                .collect::<serde_json::Map<_, _>>()
                .into();
            let mut server = Server::start(&playground);
            all_answer(&playground, "ok 1");
            READERS.iter().for_each(|(id, ..)| {
                assert_eq!(kind(&server.called(id, json!({}))), "none", "{id}")
            });
            let loaded = ["helper.py", "helper.mjs", "helper.mjs"].map(|name| lib.join(name));
            // While it still runs, and after that.
            let mut writer = playground.host();
            let given = json!({"files": files, "until": lib.join("enough.csv")}).to_string();
            writer.args(["call", "mod:writer", "--json", "--input", &given]);
            let mut writer = writer.stdout(Stdio::null()).spawn().unwrap();
            wait_for("it writes", || lib.join("data.csv").is_file());
            let mut look = |when: &str| {
                for ((id, language, file), planted) in READERS.iter().zip(&loaded) {
                    // The control: run outside of all layers, the reader loads what was planted.
                    let program = if *language == "nodejs" {
                        "node"
                    } else {
                        language
                    };
                    let program = if *language == "python" {
                        PYTHON.into()
                    } else {
                        found(program).unwrap()
                    };
                    let mut command = playground.outside(&program.display().to_string());
                    command.arg(shared.join(file));
                    assert_eq!(
                        finish(command, b"").text().trim(),
                        PLANTED,
                        "the control: {who:?}: {id}"
                    );
                    names_the_file(&playground.expect(id, "{}", "ok 1"), planted);
                    // A server that runs knows what another process let a tool write.
                    let answer = server.called(id, json!({}));
                    let loads =
                        answer["result"]["isError"] == true || answer.to_string().contains(PLANTED);
                    assert!(!loads, "{who:?}: {when}: {id}: {answer}");
                }
                says(
                    &playground,
                    &["check"],
                    &["helper.py: tools write there, so it is data"],
                );
            };
            look("while it runs");
            fs::write(lib.join("enough.csv"), "").unwrap();
            assert!(writer.wait().unwrap().success(), "{who:?}");
            look("afterwards");
            code_goes(&lib);
            all_answer(&playground, "ok 1");
        }
    });
}

/// No staged file is published by which an interpreter finds modules. What a tool left for its own
/// next call is not loaded either, also when it may write there no longer.
#[test]
fn code_that_a_tool_left_beside_scripts_is_not_published_and_not_loaded() {
    if !every_language() {
        return;
    }
    as_everyone("staged and own code", |who| {
        let playground = Playground::new(who, "/var/tmp");
        readers(&playground, PY, JS, &json!({}));
        let (lib, out) = (
            playground.path("user_scripts/shared/lib"),
            playground.path("out"),
        );
        [&lib, &out]
            .iter()
            .for_each(|folder| fs::create_dir(folder).unwrap());
        writes(&playground, "mod:staged", "shared/writer.py", "lib/*");
        let mut files = planted();
        [
            "lib/a.PY",
            "lib/b.so",
            "lib/c.wasm",
            "lib/d.json",
            "lib/e.pth",
        ]
        .iter()
        .for_each(|name| files[*name] = json!("x"));
        let ended = playground.expect("mod:staged", &input(&files), "ok");
        let there = fs::read_dir(&lib)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let there: BTreeSet<String> = there.collect();
        let published = "a.PY b.so c.wasm d.json data.csv e.pth helper.mjs helper.py index.js";
        assert_eq!(
            Vec::from_iter(there).join(" "),
            published,
            "{who:?}: {}",
            ended.out["artifacts"]
        );
        assert!(
            ended.out["artifacts"]
                .to_string()
                .contains("interpreters find modules"),
            "{ended:?}"
        );
        all_answer(&playground, "ok 1");
        // Spelled, it is published.
        for folder in [&lib, &out] {
            writes(
                &playground,
                "mod:spelled",
                "spelled/main.py",
                &format!("{}/*.py", folder.display()),
            );
            let file = folder.join("new.py");
            playground.expect(
                "mod:spelled",
                &input(&json!({&file.display().to_string(): "said = 3\n"})),
                "ok",
            );
            assert!(file.is_file(), "{who:?}");
        }
        // Beside a script, no pattern that matches it, or its manifest alone; what others match is
        // never read as requirements.
        for (pattern, wanted) in [
            ("*.csv", "ok"),
            ("result.csv", "ok"),
            ("*", "SecurityError: the tool's own script could be written"),
            ("*.json", "ok"),
            ("report*", "ok"),
            ("x.tool.json", "SecurityError: a tool cannot make tools"),
            ("*.txt", "ok"),
        ] {
            let pattern = format!(
                "{}/{pattern}",
                playground.path("user_scripts/beside").display()
            );
            writes(&playground, "mod:beside", "beside/main.py", &pattern);
            playground.expect(
                "mod:beside",
                &input(&json!({"requirements.txt": "evil==1.0\n"})),
                wanted,
            );
        }
        let ended = playground.call("mod:beside", NOTHING);
        assert!(
            ended.code != Some(0) && ended.stderr.contains("requirements.txt"),
            "{who:?}: {ended:?}"
        );
        // What a tool wrote beside itself.
        let lib = writes(&playground, "mod:own", "own/main.py", "lib/**").join("lib");
        playground.expect("mod:own", &input(&planted()), "ok");
        let again = |wanted: &str| drop(playground.expect("mod:own", NOTHING, wanted));
        again("ok");
        // A new version, which asks for nothing.
        fs::remove_file(playground.path("sandbox-policies/mod-own.policy.toml")).unwrap();
        playground.tool_at(
            "mod:own",
            "python",
            "own/main.py",
            PY,
            json!({"version": "2.0.0"}),
        );
        playground.settle();
        names_the_file(
            &playground.expect("mod:own", NOTHING, "ok 1"),
            &lib.join("helper.py"),
        );
    });
}

/// Code that tools share lies below the scripts base. Who reads it takes nothing from a tool that
/// may write it: the readers load nothing of what is written.
#[test]
fn helpers_below_the_base_are_shared_until_a_tool_may_write_them() {
    const PY: &str = "import os, \
        sys\nsys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\nfrom \
        lib.helper import said\nprint(said)\n";
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
        readers(&playground, PY, JS, &files(&["self", "base:lib/**"], &[]));
        all_answer(&playground, "SecurityError");
        playground.allow("use", "mod:*", &[&tree], &[]);
        playground.settle();
        all_answer(&playground, "ok 2");
        const LOST: &str = "ScriptError: was not loaded: tools write there";
        let code = json!({lib.join("out/x.mjs").display().to_string(): "1\n"});
        for (pattern, files, wanted, readers) in [
            (
                format!("{}/**", playground.path("user_scripts").display()),
                json!({}),
                "SecurityError: could be written",
                "ok 2",
            ),
            (format!("{}/out/**", lib.display()), json!({}), "ok", "ok 2"),
            (format!("{}/out/**", lib.display()), code, "ok", "ok 2"),
            (format!("{}/*", lib.display()), json!({}), "ok", LOST),
            (tree, json!({}), "ok", LOST),
        ] {
            writes(&playground, "mod:writer", "writer/main.py", &pattern);
            playground.expect("mod:writer", &input(&files), wanted);
            all_answer(&playground, readers);
        }
    });
}

/// What a tool left below a tree that it could write is no tool, no script and no policy: while it
/// is loaded, without its manifest, without its policy, at a reload.
#[test]
fn a_place_keeps_its_past() {
    as_everyone("a place with a past", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let base = playground.path("user_scripts");
        playground.allow_builtin_tools();
        let folder = writes(&playground, "mod:writer", "old/main.py", "out/**");
        playground.tool_at(
            "mod:other",
            "python",
            "zz/main.py",
            "print('{\"n\": 2}')\n",
            json!({}),
        );
        let planted =
            |id: &str, path: &str| manifest(id, script(path, "python"), json!({})).to_string();
        let files = json!({
            "out/evil.tool.json": planted("mod:evil", "evil.py"), "out/evil.py": format!("print({PLANTED})\n"),
            "out/x.policy.toml": "name = \"x\"\nwhy = \"w\"\ntools = [\"mod:writer\"]\n",
            "out/forbids.tool.json": "{\"handler\": {\"scriptPath\": \"zz/main.py\"}",
        });
        // Also before its first call: by hand, one that claims the writer's id, and one that is
        // broken.
        for (name, text) in [
            ("deep/evil", planted("mod:evil", "zz/main.py")),
            ("same", planted("mod:writer", "zz/main.py")),
            (
                "half",
                "{\"handler\": {\"scriptPath\": \"old/main.py\"}".into(),
            ),
        ] {
            put(
                &playground,
                folder.join(format!("out/{name}.tool.json")),
                text,
            );
        }
        playground.settle();
        let ended = playground.expect("mod:evil", "{}", "ToolNotFoundError");
        assert!(
            ended.stderr.contains("mod:writer@1.0.0 may write"),
            "{who:?}: {ended:?}"
        );
        let checked = playground.cli(&["check"]).text();
        for name in ["evil", "same"] {
            let (_, told) = checked
                .split_once(&format!("{name}.tool.json: skipped"))
                .unwrap();
            let reason = "mod:writer@1.0.0 may write, and a tool cannot make tools";
            assert!(
                told.lines().nth(1).unwrap().contains(reason),
                "{who:?} {name}: {checked}"
            );
        }
        fs::remove_file(folder.join("out/deep/evil.tool.json")).unwrap();
        playground.expect("mod:writer", &input(&files), "ok");
        let run = |path: &str, wanted: &str| {
            playground.expect(
                "core:execute-python-script",
                &json!({"scriptPath": path}).to_string(),
                wanted,
            );
        };
        // While its writer is loaded, without that one's policy, without its manifest.
        let unknown = || drop(playground.expect("mod:evil", "{}", "ToolNotFoundError"));
        let mut server = Server::start(&playground);
        unknown();
        // A manifest that a tool dropped keeps no other from running the script that it names.
        run("zz/main.py", "ok");
        // What it planted is data, and the writer goes on once the code beside its script is gone.
        fs::rename(folder.join("out/evil.py"), base.join("evil.py")).unwrap();
        playground.expect("mod:writer", NOTHING, "ok");
        fs::rename(base.join("evil.py"), folder.join("out/evil.py")).unwrap();
        fs::remove_file(playground.path("sandbox-policies/mod-writer.policy.toml")).unwrap();
        unknown();
        fs::remove_file(folder.join("mod-writer.tool.json")).unwrap();
        playground.settle();
        unknown();
        server.reload("the writer goes", |server| {
            !server.names().contains(&"mod__writer".to_owned())
        });
        let answer = server.called("mod:evil", json!({}));
        assert!(!answer.to_string().contains(PLANTED), "{answer}");
        run(
            "old/out/evil.py",
            "SecurityError: mod:writer@1.0.0 could write in an earlier call",
        );
        says(
            &playground,
            &["check"],
            &["could write in an earlier call, and a tool cannot make tools"],
        );
        // Nor does `check` take a policy from there, by whatever path; nor does a call.
        for (folder, path) in [
            (folder.join("out"), "x.policy.toml"),
            (folder.clone(), "out/x.policy.toml"),
        ] {
            let mut command = playground.host();
            command.current_dir(folder).args(["check", path]);
            let ended = finish(command, b"");
            let told = ended.text() + &ended.stderr;
            assert!(
                told.contains("a tool cannot make policies"),
                "{who:?} {path}: {told}"
            );
        }
        let ended = playground.call_with(
            "mod:any",
            "{}",
            &["--policies", &folder.join("out").display().to_string()],
        );
        assert!(
            ended.code == Some(3) && ended.stderr.contains("a tool cannot make policies"),
            "{who:?}: {ended:?}"
        );
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
    let log = playground
        .path("link/data/audit.jsonl")
        .display()
        .to_string();
    symlink(playground.path("real"), playground.path("link")).unwrap();
    for (name, folder, wanted) in [
        ("forger", "data", "SecurityError"),
        ("control", "free", "ok"),
    ] {
        let folder = playground.path("real").join(folder);
        fs::create_dir_all(&folder).unwrap();
        writes(
            &playground,
            &format!("esc:{name}"),
            &format!("{name}/main.py"),
            &format!("{}/**", folder.display()),
        );
        let ended = playground.call_with(&format!("esc:{name}"), NOTHING, &["--audit-log", &log]);
        fits(wanted, &ended).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

/// Repositories with their hooks, and what editors run, are there to read in a tree that a tool may
/// write. No folder above a repository gets another name, so that none is put in its place.
#[test]
fn what_others_obey_in_a_live_tree_is_read_only() {
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let obeyed = words(
        ".git/hooks/pre-commit .vscode/tasks.json sub/deep/.git/config .husky/pre-push .envrc \
        bare/hooks/update",
    );
    let others = words("src/a.txt plain/a.txt .gitignore bare/HEAD bare/objects/x bare/refs/x");
    let plain = words("src/a.txt src/new.txt .gitignore new/x sub/a sub/b sub/c");
    as_everyone("repositories", |who| {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let project = playground.path("project");
            for name in obeyed.iter().chain(&others) {
                put(&playground, project.join(name), "as it was\n");
            }
            let pattern = format!("{}/**", project.display());
            let folder = writes(&playground, "mod:editor", "editor/main.py", &pattern);
            // Enough for the new files and a folder, and too little where what lies below `sub`
            // counts twice.
            let policy = playground.path("sandbox-policies/mod-editor.policy.toml");
            fs::write(
                &policy,
                fs::read_to_string(&policy).unwrap() + "[limits]\nwritten_files = 8\n",
            )
            .unwrap();
            let at = |name: &str| project.join(name).display().to_string();
            let files: serde_json::Map<_, _> = obeyed
                .iter()
                .chain(&plain)
                .map(|name| (at(name), json!("changed\n")))
                .collect();
            let away = [".git", "sub/deep/.git", "sub/deep", ".envrc", "bare", "sub"].map(at);
            let control = at("plain");
            let given =
                json!({"files": files, "away": away.iter().chain([&control]).collect::<Vec<_>>()})
                    .to_string();
            let ended = playground.expect("mod:editor", &given, "ok");
            let got = &ended.out["outputData"];
            for name in &obeyed {
                let wanted = if away.contains(&at(name)) {
                    "EBUSY"
                } else {
                    "EROFS"
                };
                assert_eq!(got[at(name)], wanted, "{who:?} {below}: {name}: {got}");
                assert_eq!(
                    fs::read_to_string(project.join(name)).unwrap(),
                    "as it was\n",
                    "{who:?} {below}: {name}"
                );
            }
            assert!(
                away.iter().all(|name| got[name] == "EBUSY"),
                "{who:?} {below}: {got}"
            );
            assert_eq!(got[&control], "ok", "the control: {got}");
            fs::rename(control.clone() + "-away", &control).unwrap();
            for name in &plain {
                assert_eq!(
                    fs::read_to_string(project.join(name)).unwrap(),
                    "changed\n",
                    "the control: {name}"
                );
            }
            // The control: outside all of it is changed.
            let mut command = playground.outside(PYTHON);
            command.arg(folder.join("main.py"));
            let outside = finish(command, given.as_bytes()).out;
            assert!(
                outside.as_object().unwrap().values().all(|got| got == "ok"),
                "{outside}"
            );
            // Such a folder itself, and a link to one, are not granted at all.
            for (ask, wanted) in [
                (at("sub-away/deep-away/.git-away/**"), "ok"),
                (
                    at(".vscode/**"),
                    "SecurityError: other programs run or obey `.vscode`",
                ),
                (
                    at(".git/hooks/*"),
                    "SecurityError: other programs run or obey `.git`",
                ),
                (
                    at(".envrc"),
                    "SecurityError: other programs run or obey `.envrc`",
                ),
                (
                    at("bare-away/**"),
                    "SecurityError: a writable folder is a repository",
                ),
                (
                    at("bare-away/*"),
                    "SecurityError: a writable folder is a repository, or lies in one",
                ),
                (
                    at("bare-away/hooks/**"),
                    "SecurityError: a writable folder is a repository",
                ),
                (
                    pattern.clone(),
                    "SecurityError: a writable folder is a repository, or holds a link to one",
                ),
            ] {
                writes(&playground, "mod:editor", "editor/main.py", &ask);
                // Not settled: the link is of somebody else.
                if ask == pattern {
                    symlink(project.join("src"), project.join("src/.git")).unwrap();
                }
                playground.expect("mod:editor", NOTHING, wanted);
            }
        }
    });
}
