//! Correct use at which nothing is at risk: it works, or one line says what to do.

use crate::prelude::*;
use crate::requirements::{files, says};
use std::sync::atomic::AtomicBool;

/// The manifest of a script at this path, as a file of that folder.
fn define(playground: &Playground, at: &str, id: &str, script: &str, more: Value) {
    let handler = json!({"type": "external-script", "scriptPath": script, "language": "python"});
    let path = playground.path(at);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, manifest(id, handler, more).to_string()).unwrap();
}

const ABOVE: &str = "import json\nfrom part import name\nopen('out/a.csv', 'w').write(name)\n\
    print(json.dumps(open('data/in.txt').read()))\n";

/// Also where its requirements lie in the folder of the manifest.
#[test]
fn a_manifest_above_its_script_has_that_folder_as_its_own() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let base = playground.path("user_scripts");
    for (name, text) in [
        ("app/src/main.py", ABOVE),
        ("app/src/part.py", "name = 'part'\n"),
        ("app/data/in.txt", "own"),
        ("src/main.py", ABOVE),
        ("data/in.txt", "of the base"),
    ] {
        crate::requirements::put(&playground, format!("user_scripts/{name}"), text);
    }
    let asks = files(&["./*"], &["out/*.csv"]);
    define(
        &playground,
        "user_scripts/app/app.tool.json",
        "esc:above",
        "app/src/main.py",
        asks.clone(),
    );
    // The controls: no tool owns a base, and a folder between that is one.
    define(
        &playground,
        "user_scripts/base.tool.json",
        "esc:base",
        "src/main.py",
        asks,
    );
    playground.allow("above", "esc:*", &["./**"], &["./out/**"]);
    playground.settle();
    playground.expect("esc:above", "{}", "ok \"own\"");
    assert_eq!(
        fs::read_to_string(base.join("app/out/a.csv")).unwrap(),
        "part"
    );
    playground.expect("esc:base", "{}", "ScriptError");
    assert!(!base.join("out").exists());
    let both = [&base, &base.join("app/src")].map(|base| base.display().to_string());
    let between = ["--scripts", &both[0], "--scripts", &both[1]];
    let between = playground.call_with("esc:above", "{}", &between);
    assert_eq!(between.error().0, "ScriptError", "{between:?}");
    for (at, wanted) in [
        (
            "app/requirements.txt",
            "CapabilityError: its python packages",
        ),
        ("requirements.txt", "ok"),
    ] {
        fs::write(base.join(at), "no-such-thing\n").unwrap();
        playground.settle();
        playground.expect("esc:above", "{}", wanted);
        fs::remove_file(base.join(at)).unwrap();
    }
}

const BESIDE: &str = "import json\nnames = ['data', 'more.tool', 'esc-beside.tool', 'package', \
    'tsconfig', 'package-lock', 'x.prompt']\nfor name in names:\n    \
    open(name + '.json', 'w').write('{}')\nprint(1)\n";

#[test]
fn json_beside_a_script_is_published_and_what_is_obeyed_is_not() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool("beside", "python", BESIDE, files(&["./*"], &["*.json"]));
        let own = folder.join("beside.tool.json");
        let manifest = fs::read_to_string(&own).unwrap();
        fs::rename(&own, folder.join("esc-beside.tool.json")).unwrap();
        // The other ways to the same names stay closed.
        for (name, asks) in [
            ("tree", "./**"),
            ("one", "package.json"),
            ("own", "own.tool.json"),
        ] {
            playground.tool(name, "python", BESIDE, files(&["./*"], &[asks]));
        }
        playground.allow("beside", "esc:*", &["./**"], &["./**"]);
        playground.settle();
        for _ in 0..2 {
            let ended = playground.expect("esc:beside", "{}", "ok 1");
            let all: Vec<&Value> = ended.out["artifacts"].as_array().unwrap().iter().collect();
            let dropped = all.iter().filter(|it| it["published"] == false).count();
            assert_eq!(dropped, 6, "{who:?}: {all:?}");
        }
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["data.json", "esc-beside.tool.json", "main.py"],
            "{who:?}"
        );
        assert_eq!(
            fs::read_to_string(folder.join("esc-beside.tool.json")).unwrap(),
            manifest
        );
        for name in ["tree", "one", "own"] {
            playground.expect(&format!("esc:{name}"), "{}", "SecurityError");
        }
    }
}

const LINKED: &str = "import json, os\nopen('out/a.csv', 'w').write('a')\n\
    print(json.dumps([open('data.txt').read(), os.getcwd()]))\n";

/// A tool `esc:linked` in this folder, which its manifest names as `linked`.
fn linked_tool(playground: &Playground, at: &str, data: &str) -> PathBuf {
    let folder = playground.tool("linked", "python", LINKED, files(&["./*"], &["out/*.csv"]));
    fs::write(folder.join("data.txt"), data).unwrap();
    fs::create_dir(folder.join("out")).unwrap();
    let real = playground.path(at);
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    fs::rename(&folder, &real).unwrap();
    real
}

#[test]
fn a_linked_folder_is_a_tool_folder_with_its_real_path() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let [one, two] = ["one", "two"].map(|at| linked_tool(&playground, at, at));
        let link = playground.path("user_scripts/linked");
        playground.allow("linked", "esc:linked", &["./**"], &["./out/**"]);
        for real in [one, two] {
            let _ = fs::remove_file(&link);
            symlink(&real, &link).unwrap();
            playground.settle();
            let name = real.file_name().unwrap().to_str().unwrap();
            let wanted = json!([name, real.display().to_string()]);
            playground.expect("esc:linked", "{}", &format!("ok {wanted}"));
            assert!(real.join("out/a.csv").is_file(), "{who:?}");
            let shown = real.display().to_string();
            let leads = format!("{shown}: the link {} leads there", link.display());
            says(&playground, &["audit", "esc:linked", "--all"], &[&leads]);
            let note = format!("a link: its tools are those of {shown}");
            says(&playground, &["check"], &[&note]);
            let link = link.display().to_string();
            says(&playground, &["check", &link], &["1 good", "0 warning"]);
        }
    }
}

/// Each way that a tool or another user could make a link lead elsewhere, beside a control that
/// works.
#[test]
fn no_link_is_entered_that_others_can_change() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let real = linked_tool(&playground, "shelf/linked", "own");
    let base = playground.path("user_scripts");
    let link = base.join("linked");
    playground.allow("linked", "esc:*", &["./**"], &["./out/**"]);
    let writer = playground.tool("writer", "python", "print(1)\n", files(&["./*"], &["out/"]));
    let [here, step] = ["step", "out/step"].map(|step| writer.join(step));
    fs::create_dir(writer.join("out")).unwrap();
    let inner = playground.path("user_scripts/inner");
    fs::create_dir(&inner).unwrap();
    let set = |at: &Path, target: &Path| {
        let _ = fs::remove_file(at);
        symlink(target, at).unwrap();
        playground.settle();
    };
    let own = format!("ok {}", json!(["own", real.display().to_string()]));
    let refused = "ToolNotFoundError";
    set(&here, &real);
    set(&link, &here);
    playground.expect("esc:linked", "{}", &own);
    // Where a tool could write in an earlier call.
    playground.expect("esc:writer", "{}", "ok 1");
    set(&step, &real);
    set(&link, &step);
    playground.expect("esc:linked", "{}", refused);
    set(&link, &real);
    playground.expect("esc:linked", "{}", &own);
    for open in [&base, &playground.path("shelf")] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
        playground.expect("esc:linked", "{}", refused);
        says(
            &playground,
            &["check"],
            &[
                "others may write",
                "move the folder itself here, and leave a link to it in its old place",
            ],
        );
        playground.settle();
        playground.expect("esc:linked", "{}", &own);
    }
    fs::remove_file(&link).unwrap();
    set(&inner.join("linked"), &real);
    playground.expect("esc:linked", "{}", refused);
    // What holds a base or the home is no tool's own folder.
    let home = playground.path("home");
    for above in [&home, &playground.base] {
        let moved = above.join("linked.tool.json");
        let text = fs::read_to_string(real.join("linked.tool.json")).unwrap();
        fs::write(&moved, text.replace("linked/main.py", "main.py")).unwrap();
        fs::copy(real.join("main.py"), above.join("main.py")).unwrap();
        set(&link, above);
        playground.expect("esc:linked", "{}", refused);
    }
    // The advice.
    fs::remove_file(&link).unwrap();
    fs::rename(&real, &link).unwrap();
    set(&real, &link);
    playground.expect(
        "esc:linked",
        "{}",
        &format!("ok {}", json!(["own", link.display().to_string()])),
    );
}

/// As joblib's `Memory` does.
const CACHES: &str = "import json, os\nat = '.cache/joblib/run'\nos.makedirs(at, exist_ok=True)\n\
    done = os.path.exists(at + '/output.pkl')\nopen(at + '/output.pkl.part', 'w').close()\n\
    os.replace(at + '/output.pkl.part', at + '/output.pkl')\n\
    open(at + '/func_code.py', 'w').write('# first line: 1\\n')\nprint(json.dumps(done))\n";

#[test]
fn a_hidden_cache_is_kept_between_calls() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("caches", "python", CACHES, files(&["./*"], &[".cache/**"]));
        playground.allow("caches", "esc:caches", &["./**"], &["./.cache/**"]);
        playground.settle();
        playground.expect("esc:caches", "{}", "ok false");
        playground.expect("esc:caches", "{}", "ok true");
    }
}

#[test]
fn a_tool_writes_its_own_data_where_a_policy_names_it() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let home = playground.path("home").display().to_string();
    let refused = "SecurityError";
    // The tool, what it asks for, what its policy allows.
    let rows = [
        ("app", ".local/share/app/**", ".local/share/app/**", "ok 1"),
        (
            "app",
            ".local/share/app/x/**",
            ".local/share/app/x/**",
            "ok 1",
        ),
        ("app", ".local/share/esc/**", ".local/share/esc/**", "ok 1"),
        ("app", ".local/share/app/**", ".local/share/**", refused),
        ("app", ".local/share/**", ".local/share/**", refused),
        (
            "app",
            ".local/share/apps/**",
            ".local/share/apps/**",
            refused,
        ),
        (
            "app",
            ".local/share/mise/**",
            ".local/share/mise/**",
            refused,
        ),
        (
            "app",
            ".local/share/keyrings/**",
            ".local/share/keyrings/**",
            refused,
        ),
        (
            "app",
            ".local/share/systemd/**",
            ".local/share/systemd/**",
            refused,
        ),
        // Programs and data of the machine have these names.
        ("env", ".local/share/env/**", ".local/share/env/**", refused),
        ("man", ".local/share/man/**", ".local/share/man/**", refused),
        ("app", ".local/bin/**", ".local/bin/**", refused),
        ("app", ".local/app/**", ".local/app/**", refused),
        ("app", ".config/app/**", ".config/app/**", refused),
    ];
    for (name, asks, allows, wanted) in rows {
        let at = format!("{home}/{}", asks.trim_end_matches("/**"));
        fs::create_dir_all(&at).unwrap();
        let script = format!("open('{at}/a', 'w').close()\nprint(1)\n");
        let asks = files(&["./*"], &[&format!("{home}/{asks}")]);
        playground.tool(name, "python", &script, asks);
        let tool = format!("esc:{name}");
        playground.allow(name, &tool, &["./**"], &[&format!("{home}/{allows}")]);
        playground.settle();
        playground.expect(&tool, "{}", wanted);
    }
}

const READS_ALL: &str = "import json, os\nfound = set()\n\
    for name in os.listdir('data') if os.path.isdir('data') else []:\n    \
    found.add(open('data/' + name).read())\nprint(json.dumps(sorted(found)))\n";

/// A neighbour exchanges the folder with another all the time: what was listed is what is shown.
#[test]
fn a_wide_folder_that_is_exchanged_shows_nothing_of_the_other() {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = files(&["self", "data/*.csv"], &[]);
    let folder = playground.tool("wide", "python", READS_ALL, asks);
    let [data, other] = ["data", "other"].map(|name| folder.join(name));
    for (at, ending) in [(&data, "csv"), (&other, "txt")] {
        fs::create_dir(at).unwrap();
        for number in 0..300 {
            fs::write(at.join(format!("{number}.{ending}")), ending).unwrap();
        }
    }
    playground.settle();
    // The control: without a neighbour all is shown.
    playground.expect("esc:wide", "{}", "ok [\"csv\"]");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let exchange = RenameFlags::RENAME_EXCHANGE;
                renameat2(AT_FDCWD, &data, AT_FDCWD, &other, exchange).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // The control: whoever lists the folder, and then opens it by its path, reads the other.
        let lists = |ending: &str| {
            let entries = fs::read_dir(&data).unwrap();
            entries
                .flatten()
                .all(|it| it.path().extension().is_some_and(|it| it == ending))
        };
        wait_for("the other by its path", || lists("csv") && lists("txt"));
        let shown: Vec<Value> = (0..12)
            .map(|_| playground.call("esc:wide", "{}").out["outputData"].clone())
            .collect();
        done.store(true, Ordering::Relaxed);
        assert!(!json!(shown).to_string().contains("txt"), "{shown:?}");
        assert!(json!(shown).to_string().contains("csv"), "{shown:?}");
    });
}

/// What `python3 -m venv` makes, with one package in it.
fn environment(folder: &Path, version: &str) {
    let packages = folder.join(format!(".venv/lib/python{version}/site-packages"));
    fs::create_dir_all(&packages).unwrap();
    fs::create_dir_all(folder.join(".venv/bin")).unwrap();
    symlink("/nowhere/python3", folder.join(".venv/bin/python")).unwrap();
    let settings = format!("home = /nowhere\nversion = {version}.1\n");
    fs::write(folder.join(".venv/pyvenv.cfg"), settings).unwrap();
    fs::write(packages.join("only_here.py"), "answer = 42\n").unwrap();
}

/// Its packages are found, by the tool and its children. None of its programs is run.
#[test]
fn a_virtual_environment_beside_a_script_is_used() {
    let asks = "import sys\nprint('%d.%d' % sys.version_info[:2])";
    let asked = Command::new(crate::harness::PYTHON)
        .args(["-c", asks])
        .output()
        .unwrap();
    let version = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
    let script = "import subprocess, sys\nimport only_here\n\
        child = [sys.executable, '-c', 'import only_here']\n\
        subprocess.run(child, check=True)\nprint(only_here.answer)\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool("beside", "python", script, json!({}));
        environment(&folder, &version);
        let other = playground.tool("other", "python", script, json!({}));
        environment(&other, "3.2");
        playground.tool("none", "python", script, json!({}));
        playground.settle();
        playground.expect("esc:beside", "{}", "ok 42");
        says(
            &playground,
            &["audit", "esc:beside"],
            &["packages of the author, not checked"],
        );
        // The controls: one of another Python, none, and a neighbour's.
        playground.expect("esc:other", "{}", "ScriptError: only_here");
        says(
            &playground,
            &["audit", "esc:other"],
            &["it is of another Python"],
        );
        playground.expect("esc:none", "{}", "ScriptError: only_here");
        // What it holds counts where nothing is locked; a policy that names packages says which.
        let required = folder.join("requirements.txt");
        fs::write(&required, "only-here\n").unwrap();
        playground.settle();
        playground.expect("esc:beside", "{}", "ok 42");
        fs::remove_file(&required).unwrap();
        let packages = "[packages]\npython = { index = \"default\", why = \"t\" }\n";
        playground.policy("beside", "esc:beside", packages);
        playground.settle();
        playground.expect("esc:beside", "{}", "ScriptError: only_here");
        let path = folder.join(".venv/bin/python").display().to_string();
        let named = format!("[runtimes]\npython = {{ path = \"{path}\", why = \"t\" }}\n");
        playground.policy("beside", "esc:beside", &format!("{packages}{named}"));
        playground.policy("none", "esc:none", &named);
        playground.settle();
        playground.expect("esc:beside", "{}", "ok 42");
        playground.expect("esc:none", "{}", "CapabilityError");
    }
}
