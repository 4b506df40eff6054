//! P3: a place is a file system and a path inside it. A folder that is mounted at a second path, or
//! that takes other spellings of its names, is protected there like by its first path.

use super::{files, put};
use crate::prelude::*;
use nix::mount::{MntFlags, umount2};

const WRITER: &str = include_str!("planted.py");

/// A command of the host in a mount namespace of its own, in which each first folder is also
/// mounted at the second.
fn mounted(playground: &Playground, binds: &[(&str, &str)], verb: &[&str], input: &str) -> Ended {
    let bind = |(from, to): &(&str, &str)| {
        format!(
            "mount --bind '{}' '{}' && ",
            playground.path(from).display(),
            playground.path(to).display()
        )
    };
    let script = binds.iter().map(bind).collect::<String>() + "exec \"$@\"";
    let mut program = playground.outside("/usr/bin/unshare");
    let own = if playground.who == Who::MappedRoot {
        "-Urm"
    } else {
        "-m"
    };
    program.args([own, "/bin/sh", "-c", &script, "sh"]);
    let mut command = playground.host_by(program);
    command.args(verb);
    finish(command, input.as_bytes())
}

fn call(
    playground: &Playground,
    binds: &[(&str, &str)],
    tool: &str,
    input: &Value,
    wanted: &str,
) -> Ended {
    let ended = mounted(
        playground,
        binds,
        &["call", tool, "--json", "--input", "-"],
        &input.to_string(),
    );
    fits(wanted, &ended)
        .unwrap_or_else(|why| panic!("{:?} {tool} {binds:?}: {why}", playground.who));
    ended
}

fn as_those_who_mount(test: impl Fn(Who)) {
    if !is_root() {
        return skipped(1, "mounts beside those of a user need root");
    }
    [Who::Root, Who::MappedRoot].into_iter().for_each(test);
}

/// A tool that writes what its input names, and may write this.
fn writer(playground: &Playground, asked: &str, allowed: &str) {
    playground.allow("w", "esc:writer", &["./**"], &[allowed]);
    playground.tool("writer", "python", WRITER, files(&["self"], &[asked]));
}

fn secret(file: &Path) -> String {
    format!(
        "[secrets]\ngrant = [{{ name = \"KEY\", why = \"t\", from = \"file:{}\" }}]\n",
        file.display()
    )
}

#[test]
fn what_is_protected_is_protected_at_every_path() {
    const USED: &str = "could be written";
    as_those_who_mount(|who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("victim", "python", "print(1)\n", json!({}));
        put(&playground, "user_scripts/free/a.csv", "1");
        put(&playground, "home/.config/x", "");
        put(&playground, "data/deep/a", "1");
        playground.tool("named", "python", "print(1)\n", json!({}));
        playground.policy(
            "named",
            "esc:named",
            &secret(&playground.path("secret/secret.txt")),
        );
        fs::create_dir(playground.path("alias")).unwrap();
        // What is mounted, what a tool asks for there, and the reason; without one it may write
        // there.
        let rows = [
            ("user_scripts", "alias/victim/**", USED),
            ("user_scripts", "alias/**", USED),
            ("user_scripts/victim", "alias/**", USED),
            ("user_scripts/victim", "alias/*.py", USED),
            ("user_scripts/victim", "alias/main.py", USED),
            ("user_scripts/victim", "alias/esc-victim.tool.json", USED),
            ("user_scripts/victim", "alias/*.json", USED),
            ("sandbox-policies", "alias/**", USED),
            ("sandbox-policies", "alias/deep/**", USED),
            ("secret", "alias/**", USED),
            ("secret", "alias/secret.*", USED),
            ("state", "alias/*", USED),
            (".", "alias/home/.config/**", "names start with a dot"),
            ("home", "alias/.bashrc", "names start with a dot"),
            ("/usr", "alias/**", "programs or settings"),
            ("/usr", "alias/lib/x/**", "programs or settings"),
            (
                "/proc",
                "alias/sys/kernel/core_pattern",
                "nothing below /proc",
            ),
            ("user_scripts/free", "alias/**", ""),
            ("user_scripts/victim", "alias/*.csv", ""),
            ("data", "alias/deep/**", ""),
        ];
        for (from, asked, why) in rows {
            let asked = playground.path(asked).display().to_string();
            let folder = asked.rsplit_once('/').unwrap().0;
            writer(&playground, &asked, &format!("{folder}/**"));
            playground.settle();
            let wanted = if why.is_empty() {
                "ok".to_owned()
            } else {
                format!("SecurityError: {why}")
            };
            let name = asked
                .rsplit_once('/')
                .unwrap()
                .1
                .replace("**", "new")
                .replace('*', "new");
            let input = json!({"files": {format!("{folder}/{name}"): "x"}});
            let ended = call(
                &playground,
                &[(from, "alias")],
                "esc:writer",
                &input,
                &wanted,
            );
            if why.is_empty() {
                assert!(
                    ended.out["outputData"].to_string().contains("\"ok\""),
                    "{who:?} {from}: {ended:?}"
                );
                let below = Path::new(folder)
                    .strip_prefix(playground.path("alias"))
                    .unwrap()
                    .join(&name);
                assert_eq!(
                    fs::read(playground.path(from).join(below)).unwrap(),
                    b"x",
                    "the control: {who:?} {asked}"
                );
                continue;
            }
            let checked = mounted(&playground, &[(from, "alias")], &["check"], "").text();
            assert!(checked.contains(why), "{who:?} {from} {asked}: {checked}");
            // The control: where nothing is mounted there, the same request is granted.
            if !asked.contains("/.") && !asked.contains(".tool.json") {
                fs::create_dir_all(folder).unwrap();
                playground.settle();
                call(&playground, &[], "esc:writer", &input, "ok");
                // What it could write is not loaded, and so not protected.
                fs::remove_file(playground.path("state/written.jsonl")).unwrap();
                fs::remove_dir_all(playground.path("alias")).unwrap();
                fs::create_dir(playground.path("alias")).unwrap();
            }
        }
    });
}

/// A tool makes no tool through another path of the folder, while it may write there and
/// afterwards.
#[test]
fn what_was_written_by_another_path_is_never_loaded() {
    as_those_who_mount(|who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.allow_builtin_tools();
        fs::create_dir_all(playground.path("user_scripts/later")).unwrap();
        fs::create_dir(playground.path("alias")).unwrap();
        let tree = format!("{}/**", playground.path("alias").display());
        writer(&playground, &tree, &tree);
        playground.settle();
        let binds = [("user_scripts/later", "alias")];
        let planted =
            manifest("mod:evil", script("later/evil.py", "python"), json!({})).to_string();
        let at = |name: &str| playground.path("alias").join(name).display().to_string();
        let input = json!({"files": {at("evil.tool.json"): planted, at("evil.py"): "print(7)\n"}});
        call(&playground, &binds, "esc:writer", &input, "ok");
        let run = json!({"scriptPath": "later/evil.py"});
        let refused = |when: &str| {
            let ended = call(
                &playground,
                &binds,
                "mod:evil",
                &json!({}),
                "ToolNotFoundError",
            );
            assert!(ended.stderr.contains(when), "{who:?}: {}", ended.stderr);
            call(
                &playground,
                &binds,
                "core:execute-python-script",
                &run,
                &format!("SecurityError: {when}"),
            );
        };
        refused("esc:writer@1.0.0");
        let question = format!(
            "write:{}",
            playground.path("user_scripts/later/evil.py").display()
        );
        let who_can = mounted(&playground, &binds, &["audit", "--who-can", &question], "").text();
        assert!(
            who_can.contains("esc:writer@1.0.0: all of it"),
            "{who:?}: {who_can}"
        );
        fs::remove_file(playground.path("sandbox-policies/w.policy.toml")).unwrap();
        fs::remove_file(playground.path("user_scripts/writer/writer.tool.json")).unwrap();
        refused("esc:writer@1.0.0 could write");
        // The control: the same files, which no tool could write, are a tool.
        fs::rename(
            playground.path("user_scripts/later"),
            playground.path("later"),
        )
        .unwrap();
        fs::create_dir(playground.path("user_scripts/later")).unwrap();
        for name in ["evil.tool.json", "evil.py"] {
            fs::rename(
                playground.path("later").join(name),
                playground.path("user_scripts/later").join(name),
            )
            .unwrap();
        }
        playground.settle();
        call(&playground, &[], "mod:evil", &json!({}), "ok 7");
    });
}

struct Folded {
    server: Child,
    at: PathBuf,
}

impl Drop for Folded {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

#[test]
fn where_case_does_not_count_a_path_is_spelt_as_its_folder_lists_it() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped(
            1,
            "a file system that ignores case needs root and /dev/fuse",
        );
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    playground.allow_builtin_tools();
    playground.tool("victim", "python", "print({})\n", json!({}));
    put(&playground, "user_scripts/keys/key.txt", "key");
    put(&playground, "user_scripts/data/result.csv", "1");
    let base = playground.path("user_scripts");
    playground.policy("named", "esc:named", &secret(&base.join("KEYS/key.txt")));
    let other = manifest("mod:other", script("VICTIM/main.py", "python"), json!({})).to_string();
    put(&playground, "tool-defs/other.tool.json", other);
    writer(&playground, "out/**", "./out/**");
    playground.settle();
    let real = playground.path("real");
    fs::rename(&base, &real).unwrap();
    fs::create_dir(&base).unwrap();
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/requirements/folded_files.py"
    );
    let mut server = Command::new(PYTHON);
    let server = server
        .arg(program)
        .args([&real, &base])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut folded = Folded {
        server,
        at: base.clone(),
    };
    let mut line = String::new();
    BufReader::new(folded.server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    assert_eq!(
        fs::read(base.join("DATA/Result.csv")).unwrap(),
        b"1",
        "the control: case does not count"
    );
    const LISTED: &str = "SecurityError: write it as listed";
    for (asked, wanted) in [
        ("data/**", "ok"),
        ("Data/**", LISTED),
        ("data/RESULT.csv", LISTED),
        ("VICTIM/**", LISTED),
        ("victim/**", "SecurityError: could be written"),
        ("keys/**", "SecurityError: could be written"),
    ] {
        let asked = base.join(asked).display().to_string();
        let folder = asked.rsplit_once('/').unwrap().0;
        playground.allow("w", "esc:writer", &["./**"], &[&format!("{folder}/**")]);
        fs::remove_file(real.join("writer/writer.tool.json")).unwrap();
        let writes = manifest(
            "esc:writer",
            script("writer/main.py", "python"),
            files(&["self"], &[&asked]),
        );
        fs::write(real.join("writer/writer.tool.json"), writes.to_string()).unwrap();
        playground.expect("esc:writer", "{\"files\": {}}", wanted);
    }
    for (path, wanted) in [
        ("victim/main.py", "ok {}"),
        ("victim/MAIN.py", LISTED),
        ("Victim/main.py", LISTED),
    ] {
        playground.expect(
            "core:execute-python-script",
            &json!({"scriptPath": path}).to_string(),
            wanted,
        );
    }
    let checked = playground.cli(&["check"]).text();
    assert!(
        checked.contains("write it as listed") && checked.contains("victim/main.py"),
        "{checked}"
    );
}

/// However many places a tool names, few are kept of it, and what lies beside them is not touched
/// by that.
#[test]
fn many_places_of_one_tool_are_one_and_patterns_are_their_names() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let lines = || fs::read_to_string(playground.path("state/written.jsonl")).unwrap();
    let many =
        |folder: &str| -> Vec<String> { (0..100).map(|n| format!("{folder}{n}/**")).collect() };
    playground.allow("many", "esc:*", &["./**"], &["./**"]);
    for (name, folder, wanted) in [
        ("many", "out/", "ok"),
        (
            "flat",
            "o",
            "SecurityError: of more than 64 places the folder above them counts",
        ),
    ] {
        let asked = many(folder);
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        playground.tool(name, "python", WRITER, files(&["self"], &asked));
        playground.settle();
        playground.expect(
            &format!("esc:{name}"),
            "{\"files\": {\"out/7/x.csv\": \"1\"}}",
            wanted,
        );
    }
    let kept = lines();
    assert_eq!(kept.matches("esc:many").count(), 1, "{kept}");
    assert!(
        kept.contains("/many/out\"") && !kept.contains("esc:flat"),
        "{kept}"
    );
    // Two patterns in one folder, and a report with its assets, keep no other tool of the folder
    // from running.
    let beside = |name: &str, asked: &[&str]| {
        playground.tool_at(
            &format!("esc:{name}"),
            "python",
            &format!("both/{name}.py"),
            WRITER,
            files(&["./**"], asked),
        );
    };
    beside("report", &["site/*.js", "site/*"]);
    beside("notes", &["site/*.csv", "note-*"]);
    playground.settle();
    fs::create_dir(playground.path("user_scripts/both/site")).unwrap();
    playground.settle();
    let input =
        json!({"files": {"site/app.js": "1", "site/a.csv": "1", "note-1.csv": "1"}}).to_string();
    for name in ["report", "notes", "report"] {
        playground.expect(&format!("esc:{name}"), &input, "ok");
    }
    let both = playground.path("user_scripts/both");
    let there = ["site/app.js", "site/a.csv", "note-1.csv"].map(|name| both.join(name).is_file());
    assert_eq!(there, [true; 3], "the control: all were published");
    let planted =
        manifest("mod:evil", script("both/note-evil.py", "python"), json!({})).to_string();
    put(&playground, "user_scripts/both/evil.tool.json", planted);
    put(&playground, "user_scripts/both/note-evil.py", "print(1)\n");
    playground.settle();
    playground.expect(
        "mod:evil",
        "{}",
        "ToolNotFoundError: esc:notes@1.0.0 may write",
    );
}

/// Below a folder that is left out nothing can be shown: neither results nor the script.
#[test]
fn what_lies_in_a_mount_that_is_left_out_is_refused_by_name() {
    as_those_who_mount(|who| {
        let playground = Playground::new(who, "/var/tmp");
        let asks = files(&["./*"], &["data/out/*.csv"]);
        playground.tool("staged", "python", "print(1)\n", asks);
        playground.allow("staged", "esc:staged", &["./**"], &["./data/out/**"]);
        let handler = json!({"type": "external-script", "scriptPath": "above/src/main.py", "language": "python"});
        let text = manifest("esc:above", handler, json!({})).to_string();
        put(&playground, "user_scripts/above/above.tool.json", text);
        put(&playground, "user_scripts/above/src/main.py", "print(1)\n");
        put(&playground, "elsewhere/main.py", "print(1)\n");
        put(&playground, "user_scripts/staged/data/out/a.csv", "1");
        put(&playground, "elsewhere/out/a.csv", "1");
        playground.settle();
        for (tool, at) in [("esc:staged", "staged/data"), ("esc:above", "above/src")] {
            playground.expect(tool, "{}", "ok 1");
            let at = format!("user_scripts/{at}");
            let wanted = "SecurityError: lies in what is left out";
            call(&playground, &[("elsewhere", &at)], tool, &json!({}), wanted);
        }
    });
}

/// What is mounted in a folder is left out of that, and not of what the manifest names itself.
#[test]
fn what_a_manifest_names_in_a_mount_is_shown_or_refused() {
    as_those_who_mount(|who| {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import json, os\nprint(json.dumps(os.path.exists('data/vol/x')))\n";
        for (name, asks) in [
            ("outer", &["self", "data/**"] as &[_]),
            ("both", &["self", "data/**", "data/vol/**"]),
            ("inner", &["self", "data/vol/**"]),
            ("file", &["self", "data/**", "data/vol/x"]),
        ] {
            let folder = playground.tool(name, "python", script, files(asks, &[]));
            fs::create_dir_all(folder.join("data/vol")).unwrap();
            fs::write(folder.join("data/vol/x"), "").unwrap();
        }
        put(&playground, "elsewhere/x", "1");
        playground.settle();
        for (name, wanted) in [
            ("outer", "ok false"),
            ("both", "ok true"),
            ("inner", "ok true"),
            ("file", "SecurityError: lies in what is left out"),
        ] {
            let tool = format!("esc:{name}");
            playground.expect(&tool, "{}", "ok true");
            let at = format!("user_scripts/{name}/data/vol");
            let binds = [("elsewhere", at.as_str())];
            call(&playground, &binds, &tool, &json!({}), wanted);
            let told = mounted(&playground, &binds, &["check"], "").text();
            let is_told = told.contains("left out of it");
            assert_eq!(is_told, ["outer", "file"].contains(&name), "{name}: {told}");
        }
    });
}
