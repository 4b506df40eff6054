//! Staged grants, judged from outside: what reaches the tool's folder, what does not, and what is
//! said of it.

use crate::prelude::*;

const START: &str = "import json, os, sys, time\nfrom pathlib import Path\nout = Path('out')\n";

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let rules = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                 write = [{ path = \"./**\", why = \"a test\" }]\n\
                 [limits]\ntimeout_ms = 120_000\n";
    playground.policy("staging", "esc:*", rules);
    playground
}

/// A tool that may write `out/*.csv`; its folder `out` holds `old.csv`.
fn tool(playground: &Playground, name: &str, script: &str, limits: Value) -> PathBuf {
    let more = json!({
        "securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/*.csv"]}},
        "limits": limits,
    });
    let folder = playground.tool(name, "python", &format!("{START}{script}"), more);
    fs::create_dir_all(folder.join("out")).unwrap();
    fs::write(folder.join("out/old.csv"), "old").unwrap();
    playground.settle();
    folder.join("out")
}

/// The same, which ends once a file `go/on` lies beside it.
fn waiting(playground: &Playground, name: &str, script: &str) -> PathBuf {
    let wait = "while not Path('go/on').exists(): time.sleep(0.01)\nprint(1)\n";
    let script = format!("{script}{wait}");
    let out = tool(playground, name, &script, json!({}));
    let manifest = out.with_file_name(format!("{name}.tool.json"));
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"self\"", "\"self\",\"go/**\"")).unwrap();
    fs::create_dir(out.with_file_name("go")).unwrap();
    playground.settle();
    out
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    entries
        .map(|entry| (name(&entry), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}

fn are(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect()
}

fn untouched(out: &Path) -> bool {
    files(out) == are(&[("old.csv", "old")])
}

/// path → why it was dropped, empty where it was published.
fn told(ended: &Ended) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = ended.out["artifacts"]
        .as_array()
        .unwrap_or_else(|| panic!("{ended:?}"));
    assert!(
        all.iter()
            .all(|a| (a["published"] == true) == a["droppedBecause"].is_null()),
        "{all:?}"
    );
    all.iter()
        .map(|a| (text(&a["path"]), text(&a["droppedBecause"])))
        .collect()
}

#[test]
fn what_matches_is_published_as_the_folders_owner() {
    let script = "assert (out / 'old.csv').read_text() == 'old'\n\
        (out / 'new.csv').write_text('1,2')\nos.chmod('out/new.csv', 0o666)\n\
        (out / 'secret.csv').write_text('3')\nos.chmod('out/secret.csv', 0o600)\n\
        (out / 'old.csv').write_text('changed')\n(out / 'note.txt').write_text('x')\n\
        (out / 'x.tool.json').write_text('{}')\n\
        refused = 0\n\
        for make in (lambda: os.symlink('/etc/passwd', 'out/link.csv'), \
        lambda: os.link('out/note.txt', 'out/hard.csv'), lambda: os.mkfifo('out/pipe.csv')):\n\
        \x20   try:\n        make()\n    except OSError:\n        refused += 1\n\
        print(json.dumps(refused))\n";
    for playground in Who::both().map(playground) {
        let out = tool(&playground, "maker", script, json!({}));
        let ended = playground.expect("esc:maker", "{}", "ok 2");
        assert_eq!(
            files(&out),
            are(&[
                ("new.csv", "1,2"),
                ("old.csv", "changed"),
                ("secret.csv", "3")
            ])
        );
        let owner = fs::metadata(&out).unwrap();
        for (name, mode) in [
            ("new.csv", 0o644),
            ("old.csv", 0o644),
            ("secret.csv", 0o600),
        ] {
            let facts = fs::symlink_metadata(out.join(name)).unwrap();
            assert!(facts.is_file() && facts.nlink() == 1, "{name}");
            let own = (facts.mode() & 0o7777, facts.uid(), facts.gid());
            assert_eq!(own, (mode, owner.uid(), owner.gid()), "{name}");
        }
        let told = told(&ended);
        assert_eq!(told.len(), 6, "{told:?}");
        assert!(
            ["new.csv", "old.csv", "secret.csv"]
                .iter()
                .all(|name| told[&format!("out/{name}")].is_empty()),
            "{told:?}"
        );
        // A link is made where nothing is written live, and is not published.
        for name in ["out/hard.csv", "out/note.txt"] {
            assert_eq!(told[name], "it has more than one hard link");
        }
        assert!(told["out/x.tool.json"].contains("matches none"), "{told:?}");
        // What it holds is told of a file that was dropped, too.
        let dropped = ended.out["artifacts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|a| a["path"] == "out/x.tool.json");
        assert_eq!(dropped.unwrap()["bytes"], 2, "{ended:?}");
    }
}

/// With an access list the group bits of a mode are its mask: as a mode alone they would open the
/// file to its group.
#[test]
fn a_published_file_has_the_access_list_of_the_one_it_replaces() {
    let lists = "import os, struct, sys\nname, entries = 'system.posix_acl_', [(1, 6, -1), (2, 4, \
        65534), (4, 0, -1), (16, 4, -1), (32, 0, -1)]\nlisted = struct.pack('<I', 2) + \
        b''.join(struct.pack('<HHi', *entry) for entry in entries)\ndef read(path):\n    \
        try:\n        return os.getxattr(path, name + 'access')\n    except OSError:\n        \
        return b''\nif sys.argv[1] == 'set':\n    os.chmod('listed.csv', 0o640)\n    \
        os.chmod('old.csv', 0o640)\n\x20   os.setxattr('listed.csv', name + 'access', listed)\n    \
        os.setxattr('.', name + 'default', listed)\nprint(read('listed.csv') == listed, \
        read('old.csv') == b'', read('new.csv') == listed)";
    let script = "for name in ['listed', 'old', 'new']:\n    (out / (name + \
        '.csv')).write_text('changed')\nprint('1')\n";
    for playground in Who::both().map(playground) {
        let out = tool(&playground, "listed", script, json!({}));
        fs::write(out.join("listed.csv"), "old").unwrap();
        playground.settle();
        let run = |what: &str| {
            let ran = Command::new("python3")
                .args(["-c", lists, what])
                .current_dir(&out)
                .output()
                .unwrap();
            String::from_utf8(ran.stdout).unwrap() + &String::from_utf8_lossy(&ran.stderr)
        };
        assert_eq!(run("set"), "True True False\n");
        let mode = |name: &str| fs::metadata(out.join(name)).unwrap().mode() & 0o7777;
        playground.expect("esc:listed", "{}", "ok 1");
        assert_eq!(
            files(&out).values().map(String::as_str).collect::<Vec<_>>(),
            ["changed"; 3]
        );
        assert_eq!(
            [mode("listed.csv"), mode("old.csv"), mode("new.csv")],
            [0o640, 0o640, 0o640]
        );
        assert_eq!(run("show"), "True True True\n");
    }
}

/// What shells, editors and git obey is no result, whatever pattern asks for it.
#[test]
fn what_others_obey_is_not_published() {
    let obeyed = [".mcp.json", ".claude", ".envrc", ".git", ".vimrc"];
    let script = format!(
        "for name in {obeyed:?} + ['plain.yml', '.plain.csv']:\n    (out / \
        name).write_text('new')\nprint(1)\n"
    );
    let playground = playground(Who::ours());
    let out = tool(&playground, "settings", &script, json!({}));
    let manifest = playground.path("user_scripts/settings/settings.tool.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(
        &manifest,
        text.replace("\"out/*.csv\"", "\"out/*\", \"out/.*\""),
    )
    .unwrap();
    fs::write(out.join(".mcp.json"), "old").unwrap();
    playground.settle();
    let ended = playground.call("esc:settings", "{}");
    let told = told(&ended);
    for name in obeyed {
        assert!(
            told[&format!("out/{name}")].contains("run or obey"),
            "{name}: {ended:?}"
        );
    }
    // The controls: other names are published, and what was not changed is not told.
    assert!(
        told["out/plain.yml"].is_empty() && told["out/.plain.csv"].is_empty() && told.len() == 7,
        "{told:?}"
    );
    let wanted = [
        (".mcp.json", "old"),
        (".plain.csv", "new"),
        ("old.csv", "old"),
        ("plain.yml", "new"),
    ];
    assert_eq!(files(&out), are(&wanted));
}

/// Half a result would look like a whole one.
#[test]
fn too_many_or_too_much_is_not_published_at_all() {
    let many = "for n in range(1001):\n    (out / f'{n}.csv').write_text('')\nprint(1)\n";
    let much = "with open('out/holes.csv', 'w') as f:\n    f.truncate(3 << 20)\n\
        (out / 'small.csv').write_text('x')\nprint(1)\n";
    let playground = playground(Who::ours());
    let out = tool(&playground, "many", many, json!({"scratchBytes": 8 << 20}));
    let told = told(&playground.expect("esc:many", "{}", "ok 1"));
    assert!(
        untouched(&out) && told.len() == 1 && told["out"].contains("more than 1000 files"),
        "{told:?}"
    );
    // A limit of the call: it ends the call and names itself.
    let out = tool(&playground, "much", much, json!({"scratchBytes": 1 << 20}));
    let ended = playground.expect("esc:much", "{}", "ResourceLimitError");
    assert!(ended.error().1.contains("scratchBytes"), "{ended:?}");
    assert!(untouched(&out), "{:?}", files(&out).keys());
}

/// An answer that speaks of files which are not there is no success.
#[test]
fn a_file_that_cannot_be_written_out_fails_the_call() {
    let playground = playground(Who::ours());
    let script = "(out / 'a.csv').write_text('x')\n(out / 'b.csv').write_text('y')\n";
    let out = waiting(&playground, "stuck", script);
    let ended = std::thread::scope(|scope| {
        let call = scope.spawn(|| playground.call("esc:stuck", "{}"));
        playground.runs("user_scripts/stuck/main.py", 1);
        fs::create_dir(out.join("a.csv")).unwrap();
        fs::write(out.with_file_name("go/on"), "").unwrap();
        call.join().unwrap()
    });
    assert_eq!(ended.error().0, "InternalError", "{ended:?}");
    assert!(
        told(&ended)["out/a.csv"].contains("Is a directory"),
        "{ended:?}"
    );
    // The file beside it is out, and the answer says so.
    assert_eq!(
        (
            &*told(&ended)["out/b.csv"],
            &*fs::read_to_string(out.join("b.csv")).unwrap()
        ),
        ("", "y")
    );
}

#[test]
fn nothing_is_published_without_a_good_answer() {
    let script = "(out / 'new.csv').write_text('x')\n(out / 'old.csv').write_text('changed')\n\
        exec(json.load(sys.stdin)['end'])\n";
    let playground = playground(Who::ours());
    playground.without_breaker();
    let out = tool(&playground, "ends", script, json!({}));
    for (end, kind) in [
        ("sys.exit(3)", "ScriptError"),
        ("raise ValueError('no')", "ScriptError"),
        (
            "os.kill(os.getpid(), 9)\nimport ctypes\nctypes.string_at(8)",
            "ScriptError",
        ),
        ("time.sleep(60)", "TimeoutError"),
        ("pass", "ScriptError"),
        ("print('hello')", "ScriptError"),
        (
            "while True: os.write(1, b'x' * 65536)",
            "ResourceLimitError",
        ),
    ] {
        let input = json!({"end": end}).to_string();
        let more = if kind == "TimeoutError" {
            &["--timeout-ms", "1500"][..]
        } else {
            &[]
        };
        let ended = playground.call_with("esc:ends", &input, more);
        fits(kind, &ended).unwrap();
        assert!(untouched(&out), "{end}: {:?}", files(&out));
        assert_eq!(ended.out["artifacts"], json!([]), "{end}");
    }
    // The control.
    let ended = playground.expect("esc:ends", "{\"end\": \"print(1)\"}", "ok 1");
    assert!(!untouched(&out) && told(&ended).len() == 2, "{ended:?}");
}

/// Of two calls that change one file the second does not put its copy over what the first wrote.
/// Who only read it, or wrote another file, is not concerned.
#[test]
fn a_call_takes_nothing_back_that_another_wrote_meanwhile() {
    let script = "asked = json.load(sys.stdin)\nfile = out / asked['file']\n\
        before = file.read_text() if file.exists() else ''\n\
        if asked['add']: file.write_text(before + asked['add'])\n\
        while not Path(asked['until']).exists(): time.sleep(0.01)\nprint(1)\n";
    let more = json!({
        "securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/*.csv"]}},
        "execution": {"timeoutMs": 120_000},
    });
    for playground in Who::both().map(playground) {
        let folder = playground.tool("adds", "python", &format!("{START}{script}"), more.clone());
        let out = folder.join("out");
        fs::create_dir_all(&out).unwrap();
        fs::write(out.join("old.csv"), "old").unwrap();
        playground.settle();
        let adds = |file: &str, add: &str, until: &str| {
            let input = json!({"file": file, "add": add, "until": until});
            playground.call("esc:adds", &input.to_string())
        };
        for (number, (file, add, is_lost)) in [
            ("new.csv", " c", true),
            ("old.csv", " c", true),
            ("old.csv", "", false),
            ("own.csv", " c", false),
        ]
        .into_iter()
        .enumerate()
        {
            let ended = std::thread::scope(|scope| {
                let until = format!("ended-{number}");
                let call = scope.spawn(move || adds(file, add, &until));
                // It has its copies now, and ends after the others.
                playground.runs("user_scripts/adds/main.py", 1);
                for other in ["old.csv", "new.csv"] {
                    assert_eq!(adds(other, " d", "main.py").code, Some(0));
                }
                fs::write(folder.join(format!("ended-{number}")), "").unwrap();
                call.join().unwrap()
            });
            let why = &ended.out["error"];
            let line = format!("not published: out/{file}: it was changed by another");
            let details = why["details"].as_str().unwrap_or_default();
            assert_eq!(details.contains(&line), is_lost, "{file}: {ended:?}");
            assert_eq!(why["retryable"] == true, is_lost, "{file}: {ended:?}");
            assert_eq!(ended.code != Some(0), is_lost, "{file}: {ended:?}");
        }
        let now = are(&[
            ("new.csv", " d d d d"),
            ("old.csv", "old d d d d"),
            ("own.csv", " c"),
        ]);
        assert_eq!(files(&out), now);
    }
}

/// Twenty at once: each says that it wrote, or that it did not, and no line of one that did is lost.
#[test]
fn what_calls_say_they_added_is_there() {
    let playground = playground(Who::ours());
    playground.without_breaker();
    let script = "line = json.load(sys.stdin)['line']\n\
        text = (out / 'old.csv').read_text()\n(out / 'old.csv').write_text(text + line)\nprint(1)\n";
    let out = tool(&playground, "lines", script, json!({}));
    let added = std::thread::scope(|scope| {
        let call = |number: usize| {
            let line = format!(" {number}.");
            let ended = playground.call("esc:lines", &json!({"line": line}).to_string());
            assert!(
                ended.code == Some(0) || ended.out["error"]["retryable"] == true,
                "{ended:?}"
            );
            (ended.code == Some(0)).then_some(line)
        };
        let calls: Vec<_> = (0..20)
            .map(|number| scope.spawn(move || call(number)))
            .collect();
        let ended = calls.into_iter().filter_map(|call| call.join().unwrap());
        ended.collect::<BTreeSet<_>>()
    });
    let text = files(&out)["old.csv"].clone();
    let there = text.trim_start_matches("old").split_inclusive('.');
    assert!(!added.is_empty());
    assert_eq!(there.map(str::to_owned).collect::<BTreeSet<_>>(), added);
}

#[test]
fn a_folder_that_became_a_link_leads_nowhere() {
    for playground in Who::both().map(playground) {
        let out = waiting(&playground, "slow", "(out / 'new.csv').write_text('x')\n");
        let aim = playground.path("granted/ro-sibling");
        let before = files(&aim);
        let ended = std::thread::scope(|scope| {
            let call = scope.spawn(|| playground.call("esc:slow", "{}"));
            playground.runs("user_scripts/slow/main.py", 1);
            std::thread::sleep(Duration::from_millis(500));
            fs::rename(&out, out.with_file_name("was")).unwrap();
            symlink(&aim, &out).unwrap();
            fs::write(out.with_file_name("go/on"), "").unwrap();
            call.join().unwrap()
        });
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let told = told(&ended);
        assert!(
            told.len() == 1 && told["out"].contains("replaced during the call"),
            "{told:?}"
        );
        assert_eq!(files(&aim), before);
        assert!(untouched(&out.with_file_name("was")));
    }
}

/// What does not fit is a limit with its name; more folders than the host can hand over are refused
/// before the run.
#[test]
fn what_cannot_be_staged_is_refused_before_the_run() {
    let playground = playground(Who::ours());
    let out = tool(
        &playground,
        "large",
        "print(1)\n",
        json!({"scratchBytes": 65_536}),
    );
    fs::write(out.join("old.csv"), vec![b'x'; 300_000]).unwrap();
    let ended = playground.expect("esc:large", "{}", "ResourceLimitError");
    assert!(
        ended.error().1.contains("scratchBytes is 65536 bytes"),
        "{ended:?}"
    );

    let places: Vec<String> = (0..33).map(|n| format!("o{n}/*.csv")).collect();
    let asks =
        json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": places}}});
    playground.tool("wide", "python", "print(1)\n", asks);
    playground.settle();
    let ended = playground.expect("esc:wide", "{}", "SecurityError: 33 staged folders");
    let (_, message) = ended.error();
    assert!(
        ended.code == Some(3)
            && message.contains("33 staged folders")
            && message.contains("32")
            && !message.contains('/'),
        "{ended:?}"
    );
    assert!(ended.out["error"].to_string().len() < 500, "{ended:?}");
}

/// RLIMIT_FSIZE: whoever ignores SIGXFSZ, as Python does, sees EFBIG; whoever does not is ended,
/// with the limit's name.
#[test]
fn a_file_too_large_is_an_error_number_or_the_end() {
    let script = "import errno, json, os, signal, sys\n\
        if json.load(sys.stdin)['ends']: signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n\
        file = os.open('/tmp/x', os.O_WRONLY | os.O_CREAT)\n\
        try:\n    os.write(file, bytes(4096)); os.write(file, b'x')\n    saw = 0\n\
        except OSError as e:\n    saw = errno.errorcode[e.errno]\nprint(json.dumps(saw))\n";
    let small = json!({"limits": {"fileBytes": 4096}});
    let playground = Playground::with(Who::ours(), &[("large", "python", script, small)]);
    playground.expect("esc:large", r#"{"ends": false}"#, "ok \"EFBIG\"");
    let ended = playground.expect("esc:large", r#"{"ends": true}"#, "ResourceLimitError");
    assert!(ended.error().1.contains("fileBytes"), "{ended:?}");
}

/// Only what the call changed is published: not what others changed meanwhile, and however many
/// files lie beside it.
#[test]
fn a_call_puts_back_nothing_that_it_did_not_change() {
    // A write to a page of a tmpfs that was read before changes no time of the file.
    let script = "import mmap\nwith open(out / 'map.csv', 'r+b') as file:\n    page = \
        mmap.mmap(file.fileno(), 0)\n\x20   page[0]\n    page[:3] = b'new'\n    page.close()\n(out \
        / 'mine.csv').write_text('1')\n(out / 'private.csv').write_text('2')\nwhile not \
        Path('go/on').exists():\n    time.sleep(0.02)\nprint(1)\n";
    let playground = playground(Who::ours());
    let access = json!({"allowRead": ["self", "go/**"], "allowWrite": ["out/*.csv"]});
    let more = json!({"securityContext": {"fileAccess": access}});
    let out = playground
        .tool("late", "python", &format!("{START}{script}"), more)
        .join("out");
    let go = out.with_file_name("go");
    [&out, &go]
        .iter()
        .for_each(|folder| fs::create_dir_all(folder).unwrap());
    fs::create_dir(out.join("folder.csv")).unwrap();
    (0..1100).for_each(|n| fs::write(out.join(format!("{n}.txt")), "x").unwrap());
    ["private.csv", "old.csv", "gone.csv", "map.csv"]
        .iter()
        .for_each(|name| fs::write(out.join(name), "old").unwrap());
    playground.settle();
    fs::set_permissions(out.join("private.csv"), fs::Permissions::from_mode(0o600)).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| playground.expect("esc:late", "{}", "ok 1"));
        playground.runs("user_scripts/late/main.py", 1);
        fs::write(out.join("old.csv"), "newer").unwrap();
        fs::remove_file(out.join("gone.csv")).unwrap();
        fs::write(go.join("on"), "").unwrap();
        assert_eq!(
            told(&late.join().unwrap()).into_keys().collect::<Vec<_>>(),
            ["out/map.csv", "out/mine.csv", "out/private.csv"]
        );
    });
    fs::remove_dir(out.join("folder.csv")).unwrap();
    let kept: BTreeMap<_, _> = files(&out)
        .into_iter()
        .filter(|(name, _)| name.ends_with("csv"))
        .collect();
    assert_eq!(
        kept,
        are(&[
            ("map.csv", "new"),
            ("mine.csv", "1"),
            ("old.csv", "newer"),
            ("private.csv", "2")
        ])
    );
    assert_eq!(
        fs::metadata(out.join("private.csv")).unwrap().mode() & 0o777,
        0o600,
        "as private as before"
    );
}
