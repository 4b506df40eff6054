//! What a recorded call tells of refusals: `toolhost call TOOL --explain`, and `observe = true` in
//! a policy.

use crate::prelude::*;

/// Operation, target, rule and narrower of what `asks.py` is refused; `%` is the folder beside.
const REFUSED: &[[&str; 4]] = &[
    ["read", "%/secret.txt", "view: not granted", "manifest"],
    ["read", "%/none.txt", "view: not granted", "manifest"],
    [
        "read",
        "../../secret/secret.txt",
        "view: not granted",
        "manifest",
    ],
    ["read", "%", "view: not granted", "manifest"],
    ["write", "main.py", "view: read-only", "built-in"],
    ["write", "%/made/", "view: not granted", "manifest"],
    ["write", "%/moved", "view: not granted", "manifest"],
    ["run", "%/program", "view: not granted", "manifest"],
    [
        "run",
        "/tmp/mine",
        "view: what the tool can write is not run",
        "built-in",
    ],
    ["call", "socket", "seccomp: EPERM", "built-in"],
    ["read", "srv/none", "view: not granted", "manifest"],
    ["read", "%/thread.txt", "view: not granted", "manifest"],
    ["call", "ptrace", "seccomp: EPERM", "built-in"],
];

/// Opens the files that it is given.
const OPENS: &str = "import json, sys\nfor path in json.load(sys.stdin)['files']:\n    \
    try:\n        open(path)\n    except OSError:\n        pass\nprint(1)\n";

const OWN: &str = "[files]\nread = [{ path = \"./**\", why = \"a test\" }";
/// For what the recorder slows down.
const LONG: &str = "[limits]\ntimeout_ms = 110_000\n";

fn explained(playground: &Playground, name: &str, input: &str) -> Ended {
    playground.call_with(&format!("esc:{name}"), input, &["--explain"])
}

fn observed(ended: &Ended) -> Vec<Value> {
    ended.out["denials"]["observed"]
        .as_array()
        .unwrap_or_else(|| panic!("no outcome: {}", ended.stderr))
        .clone()
}

fn unseen(ended: &Ended) -> String {
    ended.out["denials"]["notObserved"].to_string()
}

fn rows(ended: &Ended) -> BTreeSet<[String; 4]> {
    let text = |denial: &Value, name: &str| denial[name].as_str().unwrap_or_default().to_owned();
    let all = observed(ended);
    // The loader of libraries looks for some beside the interpreter.
    let own = all
        .iter()
        .filter(|denial| !text(denial, "target").contains(".so"));
    own.map(|denial| ["operation", "target", "rule", "narrower"].map(|name| text(denial, name)))
        .collect()
}

#[test]
fn a_recorded_call_tells_all_that_it_was_refused() {
    for who in Who::both() {
        let playground = Playground::with(
            who,
            &[("asks", "python", include_str!("explain/asks.py"), json!({}))],
        );
        let beside = playground.path("secret").display().to_string();
        let input = json!({"beside": beside}).to_string();
        // The control: the same is refused in the same way, and nobody keeps it.
        let plain = playground.expect("esc:asks", &input, "ok");
        assert_eq!(observed(&plain), Vec::<Value>::new(), "{who:?}");
        let said = plain.out["denials"]["notObserved"][0].to_string();
        assert!(
            said.contains("only the tool saw the error number") && said.contains("--explain"),
            "{said}"
        );

        let recorded = explained(&playground, "asks", &input);
        assert_eq!(
            recorded.out["outputData"], plain.out["outputData"],
            "{who:?}: the verdicts are the same"
        );
        let wanted = REFUSED
            .iter()
            .map(|row| row.map(|part| part.replace('%', &beside)))
            .collect::<BTreeSet<_>>();
        assert_eq!(rows(&recorded), wanted, "{who:?}");
        let said = unseen(&recorded);
        assert!(
            !said.contains("only the tool saw the error number") && said.contains("stat, access"),
            "{said}"
        );
        assert!(
            !said.contains("the recorder was lost"),
            "it ended by itself: {said}"
        );
        assert_ne!(
            recorded.out["digests"]["confinement"],
            plain.out["digests"]["confinement"]
        );

        // What lies outside of the view makes no difference.
        let of = |name: &str| {
            let target = json!(format!("{beside}/{name}"));
            let mut denial = observed(&recorded)
                .into_iter()
                .find(|denial| denial["target"] == target)
                .unwrap();
            denial["target"] = json!("");
            denial.to_string().replace(name, "")
        };
        assert_eq!(of("secret.txt"), of("none.txt"), "{who:?}");

        // The person reads the list; the record has it.
        let shown = playground
            .cli(&["call", "esc:asks", "--explain", "--input", &input])
            .stderr;
        assert!(
            shown.contains("  refused: read ../../secret/secret.txt (view: not granted; manifest)"),
            "{shown}"
        );
        let kept = playground.records().pop().unwrap()["violations"].to_string();
        assert!(
            kept.contains("secret.txt") && kept.contains("\"kind\":\"more\",\"count\":"),
            "{kept}"
        );
    }
}

#[test]
fn the_line_that_would_ask_is_one_that_does() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let file = playground.path("granted/figures.csv");
    fs::write(&file, "1;2\n").unwrap();
    let shown = file.display().to_string();
    let script = format!("import json\nprint(json.dumps(open({shown:?}).read()))\n");
    let call = |policy: &str, asks: Value| {
        playground.tool("reads", "python", &script, asks);
        playground.policy("reads", "esc:reads", policy);
        playground.settle();
        explained(&playground, "reads", "{}")
    };
    let ended = call(&format!("{OWN}]\n"), json!({}));
    fits(
        &format!("ScriptError: Refused: read {shown} (view: not granted)."),
        &ended,
    )
    .unwrap();
    let ask = observed(&ended)[0]["ask"].as_str().unwrap().to_owned();
    for part in [
        &format!("\"{shown}\" in securityContext.fileAccess.allowRead"),
        &format!(
            "below its `[files]` (which is a line, too): `read = [{{ path = \"{shown}\", why = \"…\" }}]`"
        ),
        "user_scripts/reads/reads.tool.json",
        "sandbox-policies/reads.policy.toml",
    ] {
        assert!(ask.contains(part), "{part}: {ask}");
    }
    // Asked for, and not allowed: a policy that narrows is the narrower now.
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**", shown]}}});
    let denial = observed(&call(&format!("mode = \"narrow\"\n{OWN}]\n"), asks.clone()))[0].clone();
    assert_eq!(denial["narrower"], "policy");
    assert!(
        denial["ask"]
            .as_str()
            .unwrap()
            .starts_with(&format!("{shown} is requested but not allowed")),
        "{denial}"
    );
    // Both lines are written.
    let ended = call(
        &format!("{OWN}, {{ path = \"{shown}\", why = \"…\" }}]\n"),
        asks,
    );
    assert_eq!(
        (ended.out["outputData"].as_str(), observed(&ended).len()),
        (Some("1;2\n"), 0),
        "{}",
        ended.stderr
    );
}

#[test]
fn every_interpreter_is_recorded_without_its_own_noise() {
    let javascript = "const fs = require('fs');\nfor (const file of ['/srv/none.txt', '../x/y']) \
        {\n  try { fs.readFileSync(file); } catch {}\n}\ntry \
        { fs.writeFileSync('made.txt', 'x'); } catch {}\nconsole.log('1');\n";
    let wanted = [
        ["read", "/srv/none.txt", "view: not granted", "manifest"],
        ["read", "../x/y", "view: not granted", "manifest"],
        ["write", "made.txt", "view: read-only", "manifest"],
    ];
    let playground = Playground::new(Who::User, "/var/tmp");
    playground.tool(
        "quiet",
        "python",
        "import asyncio, ssl, subprocess\nprint(1)\n",
        json!({}),
    );
    for language in ["nodejs", "bun"] {
        playground.tool(language, language, javascript, json!({}));
    }
    playground.settle();
    let quiet = rows(&explained(&playground, "quiet", "{}"));
    let asked: Vec<_> = quiet
        .iter()
        .filter(|row| !row[1].contains("/ssl/"))
        .collect();
    assert!(asked.is_empty(), "{asked:?}");
    for language in ["nodejs", "bun"]
        .into_iter()
        .filter(|language| has(language, 1))
    {
        let ended = explained(&playground, language, "{}");
        assert_eq!(
            rows(&ended),
            wanted.map(|row| row.map(str::to_owned)).into(),
            "{language}: {}",
            ended.stderr
        );
    }
}

#[test]
fn a_policy_observes_every_call_and_an_agent_reads_what_was_refused() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import sys\nsys.stdin.read()\nopen('../other/data.csv')\n";
        playground.tool("agent", "python", script, json!({}));
        playground.policy("agent", "esc:agent", &format!("observe = true\n{OWN}]\n"));
        playground.settle();
        assert_eq!(
            playground.cli(&["audit", "esc:agent", "--json"]).out["observe"],
            true
        );
        let answer = Server::start(&playground)
            .called("esc:agent", json!({}))
            .to_string();
        assert!(
            answer.contains("Refused: read ../other/data.csv (view: not granted)."),
            "{answer}"
        );
        assert!(
            !answer.contains("allowRead") && !answer.contains("sandbox-policies"),
            "for the person: {answer}"
        );
        // The control: without that line nobody keeps it.
        playground.policy("agent", "esc:agent", &format!("{OWN}]\n"));
        playground.settle();
        let plain = playground.call("esc:agent", "{}");
        assert!(
            !plain.out["error"]["details"]
                .to_string()
                .contains("Refused"),
            "{}",
            plain.out["error"]
        );
    }
}

/// However a call ends: out of time, out of processor time that the recorder spends for it, for
/// want of a host.
#[test]
fn a_call_that_fails_tells_what_it_was_refused_and_the_recorders_work_is_its_own() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let late = "import sys, time\ntry:\n    open('/srv/none.txt')\nexcept OSError:\n    \
        print('came-so-far', file=sys.stderr, flush=True)\ntime.sleep(60)\n";
    playground.tool(
        "late",
        "python",
        late,
        json!({"execution": {"timeoutMs": 1500}}),
    );
    let works = "import os\nos.chdir('/tmp')\nos.mkdir('x')\nfor n in range(30):\n    \
        os.symlink('x/../' * 20 + 'l%d' % (n + 1), 'l%d' % n)\nwhile True:\n    try:\n        \
        os.open('/tmp/l0', os.O_RDONLY)\n    except OSError:\n        pass\n";
    playground.tool("works", "python", works, json!({"limits": {"cpuMs": 1000}}));
    playground.policy("works", "esc:works", &format!("{OWN}]\n{LONG}"));
    let calls = "import urllib.request\nurllib.request.urlopen('https://example.com/x')\n";
    playground.tool("calls", "python", calls, json!({}));
    playground.settle();
    let mut ended = explained(&playground, "late", "{}");
    wait_for("it comes so far within its time", || {
        let tells = ended.text().contains("came-so-far");
        if !tells {
            ended = explained(&playground, "late", "{}");
        }
        tells
    });
    fits("TimeoutError", &ended).unwrap();
    let found = rows(&ended);
    let wanted = [
        ["limit", "timeoutMs", "at most 1500", "manifest"],
        ["read", "/srv/none.txt", "view: not granted", "manifest"],
    ];
    assert!(
        wanted
            .iter()
            .all(|row| found.contains(&row.map(str::to_owned))),
        "{found:?}"
    );
    // The limit is told without a recording too, and by what it could be raised.
    let plain = observed(&playground.call("esc:late", "{}"));
    assert_eq!(
        (plain.len(), plain[0]["target"].as_str()),
        (1, Some("timeoutMs")),
        "{plain:?}"
    );
    assert_eq!(
        plain[0]["ask"],
        Value::Null,
        "files of this host are for who asked for an explanation"
    );
    let asked = observed(&ended)[0]["ask"].to_string();
    assert!(asked.contains("execution.timeoutMs"), "{asked}");

    let ended = explained(&playground, "works", "{}");
    fits("ResourceLimitError: cpuMs", &ended).unwrap();
    assert!(
        ended.took < Duration::from_secs(10),
        "{:?}: {}",
        ended.took,
        ended.out["usage"]
    );

    let first = observed(&explained(&playground, "calls", "{}"))[0].clone();
    assert_eq!(
        (&first["operation"], &first["target"]),
        (&json!("connect"), &json!("example.com"))
    );
    assert!(
        first["ask"]
            .as_str()
            .is_some_and(|ask| ask.contains("allowHosts")),
        "{first}"
    );
}

/// Ways to open a path that a model of paths in user space would not see, each tried with a path
/// that is not granted and with the tool's own script.
#[test]
fn no_way_of_naming_a_path_blinds_the_recorder() {
    for who in Who::both() {
        let playground = Playground::with(
            who,
            &[(
                "tricks",
                "python",
                include_str!("explain/tricks.py"),
                json!({}),
            )],
        );
        playground.policy("tricks", "esc:tricks", &format!("{OWN}]\n{LONG}"));
        playground.settle();
        let plain = playground.call("esc:tricks", "{}");
        let recorded = explained(&playground, "tricks", "{}");
        assert_eq!(
            recorded.out["outputData"], plain.out["outputData"],
            "{who:?}: {}",
            recorded.stderr
        );
        let found = rows(&recorded);
        for (way, said) in recorded.out["outputData"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(way, _)| *way != "flip")
        {
            assert_eq!(
                said,
                &json!(["ENOENT", "done"]),
                "{who:?} {way}: the control opens its own script"
            );
        }
        for target in ["/srv/none/plain", "/srv/none/page", "srv/none/cwd"] {
            let row = ["read", target, "view: not granted", "manifest"].map(str::to_owned);
            assert!(found.contains(&row), "{who:?} {target}: {found:?}");
        }
        let with = |part: &str| found.iter().filter(|row| row[1].contains(part)).count();
        assert_eq!((with("/./"), with("l31-0")), (1, 0), "{who:?}: {found:?}");
        // A link of a process, and one to nothing, is not followed, and that is said.
        for part in [
            "/srv/none/root",
            "/srv/none/thread",
            "/srv/none/fd",
            "/srv/none/child",
            "/tmp/c/l0-0",
        ] {
            let rows: Vec<_> = found.iter().filter(|row| row[1].contains(part)).collect();
            assert!(
                rows.len() == 1 && rows[0][2].starts_with("not observed: "),
                "{who:?} {part}: {rows:?}"
            );
        }
        let unread = unseen(&recorded).contains("another thread changed");
        assert!(with("/srv/none/flip") == 1 || unread, "{who:?}: {found:?}");
        let script = playground
            .path("user_scripts/tricks/main.py")
            .display()
            .to_string();
        let mut own = found.iter().filter(|row| row[1].ends_with(&script));
        assert!(
            own.all(|row| row[2].starts_with("not observed: ")),
            "{who:?}: what it may read: {found:?}"
        );
    }
}

#[test]
fn no_grant_is_proposed_for_what_is_private_or_ours() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.path("beside");
        fs::create_dir_all(folder.join("closed")).unwrap();
        for name in ["key", "open.csv", "closed/a.csv"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        playground.policy("asks", "esc:asks", &format!("{OWN}]\n"));
        let names = [
            "beside/key",
            "beside/closed/a.csv",
            "sandbox-policies/asks.policy.toml",
            "/etc/shadow",
            "beside/open.csv",
        ];
        let files = names.map(|name| playground.path(name).display().to_string());
        let script = OPENS.replace("json.load(sys.stdin)['files']", &json!(files).to_string());
        playground.tool("asks", "python", &script, json!({}));
        playground.tool("given", "python", OPENS, json!({}));
        playground.policy("given", "esc:given", &format!("{OWN}]\n"));
        playground.settle();
        for (name, mode) in [("key", 0o600), ("closed", 0o700)] {
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let told = observed(&explained(&playground, "asks", "{}"));
        let asked = files.each_ref().map(|file| {
            let denial = told.iter().find(|denial| denial["target"] == *file);
            denial.unwrap_or_else(|| panic!("{who:?} {file}: {told:?}"))["ask"].is_string()
        });
        assert_eq!(
            asked,
            [false, false, false, false, true],
            "{who:?}: the last one is the control"
        );
        // Who calls a tool does not choose unseen what its person is asked to grant.
        let told = observed(&explained(
            &playground,
            "given",
            &json!({"files": files}).to_string(),
        ));
        let asked: Vec<_> = told.iter().filter(|it| it["ask"].is_string()).collect();
        let ask = asked.first().map(|it| it["ask"].as_str().unwrap());
        assert!(
            asked.len() == 1
                && asked[0]["target"] == files[4]
                && ask
                    .unwrap()
                    .starts_with("only an argument of this call names "),
            "{who:?}: {told:?}"
        );
    }
}

/// A line that no policy could hold is not proposed, and what it risks stands before the others.
#[test]
fn what_is_proposed_is_judged_first() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = "import urllib.request\nfor path in ['/usr/share/made', '/srv/made']:\n    \
        try:\n        open(path, 'w')\n    except OSError:\n        pass\nfor host in \
        ['http://169.254.169.254/x', 'http://example.com/x']:\n    try:\n        \
        urllib.request.urlopen(host)\n    except OSError:\n        pass\nprint(1)\n";
    playground.tool("writes", "python", script, json!({}));
    playground.settle();
    let told = observed(&explained(&playground, "writes", "{}"));
    let ask = |target: &str| {
        let denial = told.iter().find(|denial| denial["target"] == target);
        denial.unwrap_or_else(|| panic!("{target}: {told:?}"))["ask"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(ask("/usr/share/made"), "");
    assert!(
        ask("/srv/made").contains("fileAccess.allowWrite"),
        "the control: {told:?}"
    );
    assert!(
        ask("169.254.169.254").starts_with("high risk: "),
        "{told:?}"
    );
    assert!(
        ask("example.com").starts_with("to let the tool reach"),
        "the control: {told:?}"
    );
}

#[test]
fn no_secret_stands_in_what_a_caller_is_told() {
    let script =
        &"import json, os, sys\nkey = json.load(sys.stdin)['key']\nfor path in ['/srv/' + \
        key, '/srv/' + 'y' * 185 + '/' + key + '/a', '/srv/ZZZ']:\n    try:\n        \
        open(path)\n    except OSError:\n        pass\nos.symlink('/srv/' + key, \
        '/tmp/l')\nopen('/tmp/l')\n"
            .replace("ZZZ", &"z".repeat(300));
    let schema =
        json!({"type": "object", "properties": {"key": {"type": "string", "writeOnly": true}}});
    let playground = Playground::with(
        Who::User,
        &[("keys", "python", script, json!({"parameters": schema}))],
    );
    let ended = explained(&playground, "keys", r#"{"key": "hunter2-SECRET-abcd"}"#);
    let found = rows(&ended);
    assert!(
        found.iter().any(|row| row[1] == "/srv/***") && found.iter().any(|row| row[1] == "/tmp/l"),
        "{found:?}"
    );
    for told in [&ended.text(), &ended.stderr] {
        assert!(!told.contains("hunter2"), "{told}");
    }
    // An operator reads what the tool tried to open: a caller's secret is hidden where it stands,
    // and hides nothing else.
    let record = playground.records().pop().unwrap();
    assert_eq!(record["arguments"], r#"{"key":"***"}"#);
    assert!(
        record["violations"]
            .to_string()
            .contains("/srv/hunter2-SECRET-abcd"),
        "{record}"
    );
    let long = observed(&ended)
        .into_iter()
        .find(|denial| denial["target"].as_str().unwrap().contains("zzz"))
        .unwrap();
    let (target, ask) = (
        long["target"].as_str().unwrap(),
        long["ask"].as_str().unwrap(),
    );
    assert!(
        target.ends_with('…') && ask.contains(&"z".repeat(300)),
        "decided on the whole, cut to be shown: {long}"
    );
}

#[test]
fn a_tool_that_floods_or_is_frozen_is_still_told_of() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("floods", "python", OPENS, json!({}));
        playground.policy("floods", "esc:floods", &format!("{OWN}]\n{LONG}"));
        let asks = json!({"securityContext": {"fileAccess": {"allowWrite": ["out/**"]}}});
        let folder = playground.tool("frozen", "python", include_str!("explain/frozen.py"), asks);
        fs::create_dir_all(folder.join("out")).unwrap();
        let write = "write = [{ path = \"./out/**\", why = \"a test\" }]";
        let rest = format!("{OWN}]\n{write}\n{LONG}");
        playground.policy("frozen", "esc:frozen", &rest);
        playground.settle();
        let files: Vec<_> = (0..3000).map(|n| format!("/srv/none/{n}")).collect();
        let ended = explained(&playground, "floods", &json!({"files": files}).to_string());
        let (told, unseen) = (observed(&ended).len(), unseen(&ended));
        assert!((90..=100).contains(&told), "{who:?}: {told}");
        assert!(
            unseen.contains("no room for more") && unseen.contains("are listed"),
            "{who:?}: {unseen}"
        );
        let ended = explained(&playground, "frozen", "{}");
        assert!(
            ended.out["outputData"]
                .as_u64()
                .is_some_and(|rounds| rounds > 0),
            "{who:?}: {}",
            ended.stderr
        );
        assert!(
            ended.took < Duration::from_secs(13),
            "{who:?}: {:?}",
            ended.took
        );
    }
}

/// The session that a process belongs to.
fn session(pid: u32) -> Option<u32> {
    nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid as i32)))
        .ok()
        .map(|leader| leader.as_raw() as u32)
}

/// The recorder of a call of this playground: host → keeper → launcher → recorder, which leads a
/// session.
fn recorder(playground: &Playground) -> Option<u32> {
    let launchers: BTreeSet<u32> = processes_of("toolhost-launcher")
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let hosts: Vec<u32> = playground
        .processes()
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let above = |pid: &u32| parent_of(*pid).filter(|parent| launchers.contains(parent));
    let ours = |pid: &u32| {
        let keeper = above(pid).as_ref().and_then(above);
        keeper
            .and_then(parent_of)
            .is_some_and(|host| hosts.contains(&host))
    };
    launchers
        .iter()
        .copied()
        .find(|pid| session(*pid) == Some(*pid) && ours(pid))
}

#[test]
fn where_nobody_listens_any_more_everything_is_refused() {
    // With a child, once it has read all that it needs.
    let script = include_str!("explain/loops.py").replace(
        "\nuntil = ",
        "\ninput = json.load(sys.stdin)\nos.fork() or time.sleep(600)\nuntil = ",
    );
    let script = script.replace("+ json.load(sys.stdin)['s']", "+ input['s']");
    for who in Who::both() {
        let playground = Playground::with(who, &[("loops", "python", &script, json!({}))]);
        playground.policy("loops", "esc:loops", &format!("{OWN}]\n{LONG}"));
        playground.settle();
        let call = |input: &str| explained(&playground, "loops", input);
        assert_eq!(
            call(r#"{"s": 1}"#).out["outputData"],
            "opened",
            "{who:?}: the control"
        );
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| call(r#"{"s": 100}"#));
            playground.runs("user_scripts/loops/main.py", 2);
            let mut found = None;
            wait_for("a recorder", || {
                found = recorder(&playground);
                found.is_some()
            });
            signal(found.unwrap(), Signal::SIGKILL);
            let ended = ended.join().unwrap();
            assert_eq!(ended.out["outputData"], "ENOSYS", "{who:?}");
            assert!(
                unseen(&ended).contains("the recorder was lost"),
                "{who:?}: {}",
                unseen(&ended)
            );
        });
        playground.assert_quiet("a recorder that was killed");
    }
}

/// The field of a process's /proc status.
fn status_field(status: &str, name: &str) -> Vec<String> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// A user namespace, and the capabilities that a process had there.
type Permitted = BTreeSet<(PathBuf, u64)>;

/// The permitted capabilities of the launcher, and those that the recorder had at any time of one
/// call.
fn capabilities_of(playground: &Playground) -> (Permitted, Permitted) {
    // How many pids a process of the launcher's namespace has, seen from here.
    let depth = status_field(&fs::read_to_string("/proc/self/status").unwrap(), "NSpid").len() + 1;
    let (mut launchers, mut recorders) = (BTreeSet::new(), BTreeSet::new());
    let mut command = playground.host();
    command.args(["call", "esc:waits", "--explain", "--json", "--input", "{}"]);
    let mut host = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while host.try_wait().unwrap().is_none() {
        for pid in descendants(host.id()) {
            let space = || fs::read_link(format!("/proc/{pid}/ns/user")).ok();
            let Some(before) = space() else { continue };
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let (pids, sessions) = (
                status_field(&status, "NSpid"),
                status_field(&status, "NSsid"),
            );
            // Both have a pid in the launcher's namespace; the recorder leads a session there.
            if space().as_ref() != Some(&before) || pids.len() != depth {
                continue;
            }
            let permitted = || {
                (
                    before.clone(),
                    u64::from_str_radix(&status_field(&status, "CapPrm")[0], 16).unwrap(),
                )
            };
            match pids.last() {
                Some(own) if own == "1" => _ = launchers.insert(permitted()),
                own if own == sessions.last() => _ = recorders.insert(permitted()),
                _ => {}
            }
        }
    }
    (launchers, recorders)
}

/// A process and all that descend from it.
fn descendants(first: u32) -> Vec<u32> {
    let mut found = vec![first];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .map(|child| child.parse::<u32>().unwrap()),
            );
        }
    }
    found
}

/// The recorder reads the memory of a hostile tool: until it has entered the tool's namespaces it
/// has the three capabilities that this takes, and afterwards one.
#[test]
fn the_recorder_has_no_more_capabilities_than_it_needs() {
    const TRACE: u64 = 1 << 19;
    // CAP_SYS_CHROOT, CAP_SYS_PTRACE and CAP_SYS_ADMIN.
    const FIRST: u64 = 1 << 18 | TRACE | 1 << 21;
    as_everyone("the recorder's capabilities", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool(
            "waits",
            "python",
            "import time\ntime.sleep(0.2)\nprint(1)\n",
            json!({}),
        );
        playground.settle();
        // Call by call, since the kernel gives the numbers of namespaces again.
        let mut calls: Vec<_> = (0..6).map(|_| capabilities_of(&playground)).collect();
        // The control: the launcher, of which the recorder is a copy, has more; and the recorder is
        // seen while the tool runs.
        wait_for("launcher and recorder are seen", || {
            let mut launchers = calls.iter().flat_map(|(launchers, _)| launchers);
            let mut recorders = calls.iter().flat_map(|(_, recorders)| recorders);
            let seen = launchers.any(|(_, set)| set & !FIRST != 0)
                && recorders.any(|(_, set)| *set == TRACE);
            if !seen {
                calls.push(capabilities_of(&playground));
            }
            seen
        });
        // In the tool's own namespace setns(2) gives it all, for the moment until it keeps one.
        for (launchers, recorders) in &calls {
            let mut outside = recorders
                .iter()
                .filter(|(space, _)| launchers.iter().any(|(other, _)| other == space));
            assert!(
                outside.all(|(_, set)| set & !FIRST == 0),
                "{who:?}: {recorders:x?}"
            );
        }
    });
}

/// What advice says to write: the entries of a list of the manifest, and lines of a policy.
fn advised(line: &str) -> (Value, String) {
    let (entries, rest) = line.split_once(" in securityContext.").unwrap();
    let (_, entries) = entries.split_once("By hand: ").unwrap();
    let (place, rest) = rest.split_once(" (").unwrap();
    let (_, rest) = rest.split_once("below its `").unwrap();
    let (table, rest) = rest.split_once("` (which is a line, too): `").unwrap();
    let (line, _) = rest.split_once('`').unwrap();
    let list: Value = serde_json::from_str(&format!("[{entries}]")).unwrap();
    let asks = place
        .rsplit('.')
        .fold(list, |inner, name| json!({ name: inner }));
    (
        json!({ "securityContext": asks }),
        format!("{table}\n{line}\n"),
    )
}

/// What a person reads, without the settings in its commands and the space before its lines.
fn bare(playground: &Playground, text: &str) -> String {
    let settings = format!(
        "toolhost --root {} --audit-log {} ",
        playground.base.display(),
        playground.path("state/audit.jsonl").display()
    );
    assert!(
        !text.contains("`toolhost ") || text.contains(&settings),
        "{text}"
    );
    text.replace(&settings, "toolhost ").replace("\n  ", "\n")
}

/// Each kind of advice, followed to the letter: by the line of the policy that it names, and by
/// `--suggest-policy`, as the refusal of the call says that comes between.
#[test]
fn advice_works_as_it_is_printed() {
    let here = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = here
        .each_ref()
        .map(|host| host.local_addr().unwrap().port());
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let file = playground.path("granted/figures.csv");
    fs::write(&file, "1").unwrap();
    let folder = file.parent().unwrap().display();
    let connect = "import socket\nsocket.create_connection(('127.0.0.1', %), 5)\n";
    let listen = "import socket\nsocket.create_server(('127.0.0.1', 0))\n";
    let hosts = |port: u16| json!({"securityContext": {"networkAccess": {"allowHosts": [format!("127.0.0.1:{port}")]}}});
    let rules = format!(
        "[network]\nhosts = [{{ host = \"127.0.0.1:{first}\", ranges = [\"127.0.0.1/32\"], why = \"t\" }}]\n"
    );
    let nothing = || (json!({}), String::new());
    for (name, script, (asks, policy), told) in [
        (
            "reads",
            format!("open('{}')\n", file.display()),
            nothing(),
            true,
        ),
        (
            "lists",
            format!("import os\nos.listdir('{folder}')\n"),
            nothing(),
            true,
        ),
        (
            "writes",
            "open('made.txt', 'w')\n".to_owned(),
            nothing(),
            true,
        ),
        (
            "makes",
            "import os\nos.makedirs('logs', exist_ok=True)\nopen('logs/a', 'w')\n".to_owned(),
            nothing(),
            true,
        ),
        (
            "other",
            connect.replace('%', &second.to_string()),
            (hosts(first), rules),
            true,
        ),
        (
            "names",
            format!(
                "{}# http://127.0.0.1:{second}/\n",
                connect.replace('%', &second.to_string())
            ),
            nothing(),
            true,
        ),
        ("listens", listen.to_owned(), nothing(), true),
    ] {
        let script = format!("{script}print(1)\n");
        let tool = format!("esc:{name}");
        for suggested in [false, true] {
            playground.tool(name, "python", &script, asks.clone());
            playground.policy(name, &tool, &policy);
            playground.settle();
            let explained = explained(&playground, name, "{}");
            let plain = playground.cli(&["call", &tool, "--input", "{}"]).stderr;
            let plain = bare(&playground, &plain);
            let line = observed(&explained)
                .into_iter()
                .filter_map(|denial| denial["ask"].as_str().map(str::to_owned))
                .find(|ask| !ask.starts_with("without") || name == "listens")
                .unwrap_or_else(|| panic!("{name}: {}", explained.stderr));
            assert_eq!(plain.contains(&line), told, "{name}: {line}: {plain}");
            let (wanted, rule) = advised(&line);
            let more = if name == "other" {
                hosts(second)
            } else {
                wanted
            };
            playground.tool(name, "python", &script, more);
            let policies = playground.path(&format!("sandbox-policies/{name}.policy.toml"));
            if suggested {
                fs::remove_file(&policies).unwrap();
                playground.settle();
                let refused = playground.cli(&["call", &tool, "--input", "{}"]).stderr;
                assert!(refused.contains("--suggest-policy"), "{name}: {refused}");
                // `check` advises a command, which is run as it is printed.
                let checked = bare(&playground, &playground.cli(&["check"]).text());
                let command = checked.split('`').find(|text| {
                    text.starts_with(&format!("toolhost audit {tool} --suggest-policy"))
                });
                let command = command.unwrap_or_else(|| panic!("{name}: {checked}"));
                let out = policies.display().to_string();
                let mut command: Vec<_> = command.split(' ').skip(1).collect();
                command.extend(["--out", &out]);
                playground.cli(&command);
            } else {
                playground.policy(name, &tool, &rule);
            }
            playground.settle();
            let ended = playground.call(&tool, "{}");
            assert_eq!(
                ended.out["outputData"], 1,
                "{name}: {line}: {}",
                ended.stderr
            );
        }
    }
}

/// What was refused is told without an explanation: to an agent in the tool's own words and ours,
/// to a person with the line that grants it.
#[test]
fn the_cause_is_named_without_an_explanation() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let granted = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = granted.local_addr().unwrap().port();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = other.local_addr().unwrap().port();
        let host = format!("127.0.0.1:{port}");
        let asks = json!({"securityContext": {"networkAccess": {"allowHosts": [host]}}});
        // A datagram socket that is connected is refused nothing: resolvers sort addresses so.
        let script = "import json, socket, sys\n\
            socket.socket(type=socket.SOCK_DGRAM).connect_ex(('127.0.0.1', 4321))\n\
            for port in json.load(sys.stdin)['ports']:\n    \
            socket.create_connection(('127.0.0.1', port), 5)\nprint(1)\n";
        playground.tool("ports", "python", script, asks);
        playground.policy(
            "ports",
            "esc:ports",
            &format!("[network]\nhosts = [{{ host = \"{host}\", ranges = [\"127.0.0.1/32\"], why = \"t\" }}]\n"),
        );
        let lookup = "import socket\nsocket.getaddrinfo('api.example.com', 443)\n";
        playground.tool("lookup", "python", lookup, json!({}));
        playground.settle();
        let ports = |ports: &[u16]| json!({ "ports": ports }).to_string();
        playground.expect("esc:ports", &ports(&[port]), "ok");
        let refused = format!("connect 127.0.0.1:{other}: not granted");
        let agent = Server::start(&playground)
            .called("esc:ports", json!({"ports": [port, other]}))
            .to_string();
        assert!(
            agent.contains(&refused) && !agent.contains("allowHosts"),
            "{who:?}: {agent}"
        );
        let person = playground
            .cli(&["call", "esc:ports", "--input", &ports(&[port, other])])
            .stderr;
        assert!(
            person.contains(&refused) && person.contains("ranges = [\"127.0.0.1/32\"]"),
            "{who:?}: {person}"
        );
        let record = playground.records().pop().unwrap()["violations"].to_string();
        assert!(record.contains(&format!("127.0.0.1:{other}")), "{record}");
        assert!(!record.contains("127.0.0.1:4321"), "{record}");
        let agent = Server::start(&playground)
            .called("esc:lookup", json!({}))
            .to_string();
        assert!(agent.contains("was granted no hosts"), "{who:?}: {agent}");
    }
}
