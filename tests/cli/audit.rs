//! `audit` as a person meets it: who can reach a path, what would grant what is refused, and what
//! is tried.

use crate::prelude::*;
const DEFAULT: &str = include_str!("../../sandbox-policies/default.policy.toml");

/// The builtin tools write `.cache` beside the script that a call names: that can be in any folder
/// below a base.
#[test]
fn who_can_counts_every_folder_a_script_may_lie_in() {
    let host = host();
    let root = host.folder.path().canonicalize().unwrap();
    host.put(
        "sandbox-policies/core.policy.toml",
        include_str!("../../sandbox-policies/core.policy.toml"),
    );
    fs::create_dir_all(root.join("user_scripts/demo/.cache/deep")).unwrap();
    host.put("user_scripts/demo/s.py", "");
    symlink(root.join("user_scripts"), root.join("link")).unwrap();
    let whole = "if the script that it runs lies in a folder above it";
    let part = "a part of it, if the script that it runs lies there or below";
    let a_part = "write:user_scripts write:user_scripts/demo write:link/demo write:";
    let wholly = "write:user_scripts/demo/.cache write:user_scripts/demo/.cache/deep/x \
                  write:user_scripts/.cache/x read:user_scripts/demo read:link";
    let none = "write:user_scripts/demo/not-there-yet write:user_scripts/demo/s.py write:elsewhere \
        write:state";
    for (questions, how) in [(a_part, Some(part)), (wholly, Some(whole)), (none, None)] {
        for question in questions.split_whitespace() {
            let said = host.json(&[
                "audit",
                "--who-can",
                &question.replace(':', &format!(":{}/", root.display())),
            ]);
            let answers = said["answers"].as_array().unwrap();
            let found = answers
                .iter()
                .find(|answer| answer["tool"] == "core:execute-python-script@1.0.0");
            assert_eq!(
                found.map(|answer| answer["how"].as_str().unwrap()),
                how,
                "{question}: {said}"
            );
        }
    }
    // The same where the folder of scripts is named through a link.
    let asked = format!("write:{}/user_scripts/demo", root.display());
    let (_, text, _) = host.run(&[
        "--scripts",
        root.join("link").to_str().unwrap(),
        "audit",
        "--who-can",
        &asked,
    ]);
    assert!(
        text.contains("core:execute-python-script") && text.contains(part),
        "{text}"
    );
}

/// The report of a large registry is printed as it is made: it takes no more memory than the list
/// of its tools.
#[test]
fn a_report_of_every_tool_is_not_held_in_memory() {
    let host = host();
    for n in 0..600 {
        host.tool(&format!("t:many{n}"), json!({}));
    }
    let printed = host.path("printed.json");
    let peak = |arguments: &[&str]| -> u64 {
        let python = "import resource, subprocess, sys\n\
                      subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'wb'), check=True)\n\
                      print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n";
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", python])
            .args([printed.as_os_str(), host.process().get_program()]);
        command
            .args(host.process().get_args())
            .args(arguments)
            .env("XDG_STATE_HOME", host.path("state"));
        finish(command, b"")
            .out
            .as_u64()
            .unwrap_or_else(|| panic!("{arguments:?}"))
    };
    in_time_once(|| {
        let (list, audit) = (peak(&["list"]), peak(&["audit", "--all", "--json"]));
        let is_alike = audit < list + 15 * 1024;
        let words = || format!("KiB: list {list}, audit {audit}");
        is_alike.then_some(()).ok_or_else(words)
    });
    let whole: Value = serde_json::from_slice(&fs::read(&printed).unwrap()).unwrap();
    assert_eq!(
        whole["tools"].as_array().unwrap().len(),
        610,
        "the builtin ones too"
    );
}

impl Host {
    fn suggested(&self, id: &str) -> String {
        let (code, out, err) = self.run(&["audit", id, "--suggest-policy"]);
        assert_eq!(code, 0, "{err}");
        out
    }

    /// The policy that governs a tool, where calls of it are not refused.
    fn governed(&self, id: &str) -> Value {
        let audit = self.json(&["audit", id]);
        assert_eq!(audit["refused"], Value::Null, "{audit}");
        audit["policy"].clone()
    }
}

#[test]
fn a_suggested_policy_leaves_out_what_no_policy_can_give_and_is_written_to_a_new_file() {
    let host = host();
    let asks = |files: Value| json!({ "securityContext": { "fileAccess": files } });
    host.tool("t:mixed", asks(json!({ "allowWrite": [".", "out/**"] })));
    let text = host.suggested("t:mixed");
    let (comment, policy) = text
        .split_once("\nname = ")
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        comment.contains("No policy can give t:mixed this, so every call is refused"),
        "{text}"
    );
    assert!(comment.contains("write .: the tool's own"), "{text}");
    let write = policy.split_once("write = [").unwrap().1;
    assert!(
        write.contains("\"./out/**\"") && !write.contains("\"./**\""),
        "{text}"
    );
    // Nothing that a policy could give: no policy.
    host.tool(
        "t:none",
        asks(json!({ "allowRead": ["/proc/**"], "allowWrite": ["."] })),
    );
    let text = host.suggested("t:none");
    assert!(
        !text.contains("name = ") && text.contains("none is suggested"),
        "{text}"
    );
    // `--out` writes a new file, whole, that loads as it stands; what is there is not written over.
    host.tool("t:own", asks(json!({ "allowWrite": ["out/*.csv"] })));
    host.put("sandbox-policies/default.policy.toml", DEFAULT);
    let file = host.path("sandbox-policies/t-own.policy.toml");
    let printed = host.suggested("t:own");
    // The command that it names works in any folder.
    let (_, command) = printed.split_once("(`toolhost ").unwrap();
    let (command, _) = command.split_once("`)").unwrap();
    let program = host.process().get_program().to_owned();
    let line = format!("{} {command}", program.to_str().unwrap());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &line]).current_dir("/");
    shell.env("XDG_STATE_HOME", host.path("state"));
    let ended = finish(shell, b"");
    assert_eq!(ended.code, Some(0), "{line}: {}", ended.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), printed);
    fs::remove_file(&file).unwrap();
    let out = || {
        host.run(&[
            "audit",
            "t:own",
            "--suggest-policy",
            "--out",
            file.to_str().unwrap(),
        ])
        .0
    };
    assert_eq!(
        (out(), fs::read_to_string(&file).unwrap()),
        (0, printed.clone())
    );
    assert_eq!(host.governed("t:own"), "t-own");
    assert!(out() != 0 && fs::read_to_string(&file).unwrap() == printed);
    // What is refused for want of a name is given one.
    let code = [
        "call",
        "core:run-code",
        "--input",
        r#"{"language": "python", "code": "print(1)"}"#,
    ];
    let (exit, _, err) = host.run(&code);
    let hint = " audit core:run-code --suggest-policy` prints) what would grant it";
    assert!(exit == 3 && err.contains(hint), "{err}");
    let text = host.suggested("core:run-code");
    assert!(
        text.contains("tools = [\"core:run-code\"]") && !text.contains("none is suggested"),
        "{text}"
    );
    host.policy(&text);
    assert_eq!(host.governed("core:run-code"), "core-run-code");
    assert!(!host.run(&code).2.contains("SecurityError"));
}

/// A second policy that names the tool would stop everything, so the fix is in the first one's
/// `folders`.
#[test]
fn a_policy_that_is_for_another_folder_is_named_with_its_fix() {
    let host = host();
    host.put("sandbox-policies/default.policy.toml", DEFAULT);
    host.tool(
        "t:moved",
        json!({ "securityContext": { "fileAccess": { "allowWrite": ["out/**"] } } }),
    );
    let rules = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = \
        [{ path = \"./out/**\", why = \"w\" }]\n";
    let for_folder = |folder: &str| {
        let head = format!(
            "name = \"mine\"\nwhy = \"w\"\ntools = [\"t:moved\"]\nfolders = [\"{folder}\"]\n"
        );
        host.put("sandbox-policies/mine.policy.toml", head + rules);
    };
    for_folder("user_scripts/old");
    let folder = host
        .folder
        .path()
        .canonicalize()
        .unwrap()
        .join("user_scripts/moved")
        .display()
        .to_string();
    let parts = [
        "`mine`",
        "mine.policy.toml:4",
        "user_scripts/old",
        &folder,
        "to `folders` there",
    ];
    let (code, _, refusal) = host.run(&["call", "t:moved"]);
    assert_eq!(code, 3, "{refusal}");
    let suggested = host.suggested("t:moved");
    for text in [
        &host.run(&["audit", "t:moved"]).1,
        &refusal,
        &suggested,
        &host.run(&["check"]).1,
    ] {
        parts
            .iter()
            .for_each(|part| assert!(text.contains(part), "{part} is missing: {text}"));
    }
    assert!(
        suggested
            .lines()
            .all(|line| line.starts_with('#') || line.is_empty()),
        "{suggested}"
    );
    for_folder("user_scripts/moved");
    assert_eq!(host.governed("t:moved"), "mine");
    let (_, check, _) = host.run(&["check"]);
    assert!(!check.contains("`folders` are for tools"), "{check}");
}

/// (name, allowRead, home of the host, what is made in the tool's folder with its mode)
type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a [(&'a str, u32)]);

/// What its own mode closes to the user of a call.
const CLOSED: [Case; 4] = [
    ("shadow", &["/etc/shadow"], "", &[]),
    ("closed-file", &["data/a.csv"], "", &[("data/a.csv", 0o000)]),
    (
        "closed-pattern",
        &["data/*.csv"],
        "",
        &[("data/a.csv", 0o200), ("data/b.csv", 0o644)],
    ),
    ("closed-folder", &["data/**"], "", &[("data/", 0o300)]),
];

/// What a probe tried and found to be otherwise than `audit` says.
fn wrong(playground: &Playground, (name, _, home, _): Case) -> Vec<Value> {
    let mut command = playground.host();
    if !home.is_empty() {
        command.env(
            "HOME",
            home.replace("$ROOT", &playground.base.display().to_string()),
        );
    }
    command.args(["audit", &format!("esc:{name}"), "--probe", "--json"]);
    let ended = finish(command, b"");
    let tried = ended.out["tried"]
        .as_array()
        .unwrap_or_else(|| panic!("{name}: {ended:?}"));
    tried
        .iter()
        .filter(|t| t["asSaid"] == false)
        .cloned()
        .collect()
}

/// A playground with a tool for each case.
fn cases(who: Who, below: &str, cases: &[Case]) -> Playground {
    let playground = Playground::new(who, below);
    let root = playground.base.display().to_string();
    fs::create_dir_all(playground.path("user_scripts/near-other/deep")).unwrap();
    for (name, read, _, made) in cases {
        let read: Vec<String> = read
            .iter()
            .map(|path| path.replace("$ROOT", &root))
            .collect();
        let asks = json!({ "securityContext": { "fileAccess": { "allowRead": read } } });
        let folder = playground.tool(name, "python", "print(1)\n", asks);
        for (file, _) in *made {
            let path = folder.join(file);
            fs::create_dir_all(if file.ends_with('/') {
                &path
            } else {
                path.parent().unwrap()
            })
            .unwrap();
            if !file.ends_with('/') {
                fs::write(path, "x").unwrap();
            }
        }
    }
    let near = format!("{root}/user_scripts/near-other/deep/**");
    playground.allow(
        "esc",
        "esc:*",
        &["./**", "/usr/share/**", "/etc/shadow", &near],
        &[],
    );
    playground.settle();
    for (name, _, _, made) in cases {
        for (file, mode) in *made {
            let path = playground.path(&format!("user_scripts/{name}/{file}"));
            fs::set_permissions(path, fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
    playground
}

/// A probe fails only where something differs from what `audit` says. What lies below /tmp is shown
/// by another way.
#[test]
fn a_probe_finds_nothing_wrong_where_all_is_as_audit_says() {
    let homes = ["proc", "root", "dev", "etc", "usr", "var", "run"];
    let homes = homes.map(|home| {
        (
            format!("home-{home}"),
            format!("/{}", home.trim_start_matches("root")),
        )
    });
    // What every call has of its own stands there, empty; so does the folder of a near name, above
    // a grant.
    let mut plain: Vec<Case> = vec![
        ("nothing", &[], "", &[]),
        ("elsewhere", &["/usr/share/**"], "", &[]),
        (
            "near",
            &["self", "$ROOT/user_scripts/near-other/deep/**"],
            "",
            &[],
        ),
        (
            "in-grant",
            &["./**"],
            "$ROOT/user_scripts/in-grant/h",
            &[("h/.bashrc", 0o644)],
        ),
    ];
    for (below, homes) in [("/tmp", &[][..]), ("/var/tmp", &homes)] {
        plain.extend(
            homes
                .iter()
                .map(|(name, home)| (name.as_str(), &["self"][..], home.as_str(), &[][..])),
        );
        let playground = cases(Who::ours(), below, &plain);
        for case in &plain {
            assert_eq!(
                wrong(&playground, *case),
                Vec::<Value>::new(),
                "{} below {below}",
                case.0
            );
        }
    }
}

/// A pattern is of files: a folder whose name it matches is not in the copy, and a read grant of it
/// stays one.
#[test]
fn a_probe_knows_which_of_two_grants_decides() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, read) in [
        ("sub", "data/sub/"),
        ("file", "data/a.csv"),
        ("some", "data/*.csv"),
        ("whole", "data/"),
    ] {
        let asks = json!({ "fileAccess": { "allowRead": [read], "allowWrite": ["data/*"] } });
        let folder = playground.tool(
            name,
            "python",
            "print(1)\n",
            json!({ "securityContext": asks }),
        );
        fs::create_dir_all(folder.join("data/sub")).unwrap();
        fs::write(folder.join("data/a.csv"), "x").unwrap();
    }
    playground.allow("esc", "esc:*", &["./**"], &["./data/**"]);
    playground.settle();
    for name in ["sub", "file", "some", "whole"] {
        assert_eq!(
            wrong(&playground, (name, &[], "", &[])),
            Vec::<Value>::new(),
            "{name}"
        );
    }
    let said = playground.cli(&["audit", "esc:sub", "--probe"]).text();
    let data = playground
        .path("user_scripts/sub/data")
        .display()
        .to_string();
    assert!(
        said.contains("PASS: blocked  make a file in") && said.contains(&format!("{data}/sub")),
        "{said}"
    );
    let made = said
        .lines()
        .find(|line| line.contains(&format!("make a file in {data} ")));
    assert!(
        made.is_some_and(|line| line.contains("PASS: allowed")),
        "the control: {said}"
    );
}

/// Of a guest only an absolute path grants anything: what is suggested is granted when it is
/// written.
#[test]
fn a_policy_that_is_suggested_for_a_guest_grants_what_it_says() {
    let host = host();
    let asks = json!({ "securityContext": { "fileAccess": { "allowWrite": ["out/*.csv"] } } });
    host.tool("t:home", asks.clone());
    let mut guest = manifest("t:guest", script("free/main.py", "python"), json!({}));
    guest
        .as_object_mut()
        .unwrap()
        .extend(asks.as_object().unwrap().clone());
    host.put("user_scripts/free/main.py", "print(1)\n");
    host.put("tool-defs/guest/guest.tool.json", guest.to_string());
    host.put("sandbox-policies/default.policy.toml", DEFAULT);
    assert!(
        host.suggested("t:home").contains("path = \"./out/**\""),
        "the control"
    );
    let text = host.suggested("t:guest");
    assert!(
        text.contains("user_scripts/free/out/**\"") && !text.contains("\"./"),
        "{text}"
    );
    host.put(
        "sandbox-policies/t-guest.policy.toml",
        text.replace("/out/**", "/in/**"),
    );
    assert_ne!(
        host.json(&["audit", "t:guest"])["refused"],
        Value::Null,
        "the control"
    );
    host.put("sandbox-policies/t-guest.policy.toml", text);
    assert_eq!(host.governed("t:guest"), "t-guest");
}

/// Reports say what policy grants; a shell without the interpreter and the variables changes a word
/// behind it.
#[test]
fn reports_state_the_same_grants_in_an_empty_shell() {
    let host = host();
    let root = host
        .folder
        .path()
        .canonicalize()
        .unwrap()
        .display()
        .to_string();
    let files = json!({ "allowRead": ["data/"], "allowWrite": ["out/*.csv"] });
    let context = json!({
        "fileAccess": files, "networkAccess": { "allowHosts": ["a.example.com"] },
        "requiredCapabilities": ["env:REGION", "secret:KEY"],
    });
    host.tool("t:one", json!({ "securityContext": context }));
    host.put("user_scripts/one/data/x", "");
    let hash = "0".repeat(64);
    host.put(
        "user_scripts/one/requirements.txt",
        format!("six==1.16.0 --hash=sha256:{hash}\n"),
    );
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = \
        [{ path = \"./out/**\", why = \"w\" }]\n";
    let rest = "[network]\nhosts = [{ host = \"a.example.com\", why = \"w\" }]\n\
                [packages]\npython = { index = \"default\", why = \"w\" }\n\
                [secrets]\ngrant = [{ name = \"KEY\", from = \"env:KEY\", why = \"w\" }]\n\
                [capabilities]\ngrant = [{ name = \"env:REGION\", why = \"w\" }]\n";
    let policy = |files: &str| {
        host.policy(&format!(
            "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\"]\n{files}{rest}"
        ))
    };
    policy(files);
    let shell = |whole: bool, arguments: &[&str]| {
        let mut command = host.process();
        command
            .env_clear()
            .env("PATH", "/nowhere")
            .env("XDG_STATE_HOME", host.path("state"));
        if whole {
            command
                .env("PATH", std::env::var_os("PATH").unwrap())
                .env("REGION", "eu")
                .env("KEY", "0123456789abcdef");
        }
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let here = ", but it is unavailable here now";
    let (read, write) = (
        format!("read:{root}/user_scripts/one/data"),
        format!("write:{root}/user_scripts/one/out/a.csv"),
    );
    let questions = [
        &read,
        &write,
        "reach:a.example.com",
        "secret:KEY",
        "package:six@1.16.0",
        "call:t:one",
    ];
    for question in questions {
        let [full, empty] =
            [true, false].map(|whole| shell(whole, &["audit", "--who-can", question]));
        assert!(
            full.contains("t:one@1.0.0: ") && empty.contains(here),
            "{full}{empty}"
        );
        let of = |text: &str| {
            text.lines()
                .find(|line| line.contains("t:one@"))
                .map(|line| line.replace(here, ""))
        };
        assert_eq!(of(&full), of(&empty), "{question}");
    }
    let saved = |name: &str, whole| host.put(name, shell(whole, &["audit", "--all", "--json"]));
    let (full, empty) = (saved("full.json", true), saved("empty.json", false));
    let compared = |old: &str, new: &str| -> Value {
        serde_json::from_str(&shell(true, &["diff", old, new, "--json"])).unwrap()
    };
    for (old, new) in [(&full, &empty), (&empty, &full)] {
        let diff = compared(old, new);
        assert_eq!(
            [&diff["newly"], &diff["noLonger"]],
            [&json!([]), &json!([])],
            "{diff}"
        );
    }
    // The control: what policy takes away is said in every shell.
    policy("");
    for whole in [true, false] {
        assert!(
            !shell(whole, &["audit", "--who-can", questions[1]]).contains("t:one@"),
            "the control"
        );
    }
    assert_ne!(
        compared(&full, &saved("less.json", false))["noLonger"],
        json!([]),
        "the control"
    );
}

/// Source text has what the lock of the policy holds, and reports say so.
#[test]
fn the_lock_that_a_policy_names_is_seen() {
    let host = host();
    host.put("sandbox-policies/default.policy.toml", DEFAULT);
    let wheel = "url = \"https://files.example/numpy-2.1.0-py3-none-any.whl\"\nhashes = \
        { sha256 = \"HASH\" }\n";
    let lock = "lock-version = \"1.0\"\ncreated-by = \"t\"\n[[packages]]\nname = \
                \"numpy\"\nversion = \"2.1.0\"\n[[packages.wheels]]\n"
        .to_owned();
    host.put(
        "sandbox-policies/code.pylock.toml",
        lock + &wheel.replace("HASH", &"a".repeat(64)),
    );
    let policy = |lock: &str| {
        let head = "name = \"code\"\nwhy = \"w\"\ntools = [\"core:run-code\"]\n[packages]\n";
        let line = format!("python = {{ index = \"default\"{lock}, why = \"w\" }}\n");
        host.put("sandbox-policies/code.policy.toml", head.to_owned() + &line);
    };
    let seen = || {
        let who = host.run(&["audit", "--who-can", "package:numpy@2.1.0"]).1;
        (
            who.contains("core:run-code") && who.contains("locked at 2.1.0"),
            host.run(&["audit", "core:run-code", "--all"])
                .1
                .contains("numpy"),
        )
    };
    policy("");
    assert_eq!(seen(), (false, false), "the control");
    policy(", lock_file = \"code.pylock.toml\"");
    assert_eq!(seen(), (true, true));
    // What cannot be read gives nothing, and the report says why.
    fs::remove_file(host.path("sandbox-policies/code.pylock.toml")).unwrap();
    assert_eq!(seen(), (false, false));
    let report = host.run(&["audit", "core:run-code", "--all"]).1;
    assert!(
        report.contains("code.pylock.toml: does not exist"),
        "{report}"
    );
}

#[test]
fn a_probe_says_of_a_file_that_its_own_mode_closes_it() {
    for who in Who::both() {
        let playground = cases(who, "/var/tmp", &CLOSED);
        for case @ (name, ..) in CLOSED {
            let wrong = wrong(&playground, case);
            let by_mode = |tried: &Value| {
                tried["closed"]
                    .as_str()
                    .is_some_and(|why| why.starts_with("mode 0"))
            };
            assert!(wrong.iter().all(by_mode), "{name} as {who:?}: {wrong:?}");
            let closed = name != "shadow" || who == Who::User;
            assert_eq!(!wrong.is_empty(), closed, "{name} as {who:?}: {wrong:?}");
            if closed {
                let text = playground
                    .cli(&["audit", &format!("esc:{name}"), "--probe"])
                    .text();
                assert!(
                    text.contains("blocked although granted") && !text.contains("do not run"),
                    "{text}"
                );
            }
        }
    }
}
