//! What a recorded call tells of refusals: `toolhost call TOOL --explain`, and `observe = true` in a policy.

use crate::prelude::*;
/// Asks for files, programs and a system call, each in turn, and says how each ended.
const ASKS: &str = r#"
import ctypes, errno, json, os, socket, subprocess, sys, threading
beside = json.load(sys.stdin)["beside"]
out = {}
def tried(name, what):
    try:
        what()
        out[name] = "done"
    except OSError as e:
        out[name] = errno.errorcode[e.errno]
tried("own", lambda: open("main.py").close())
tried("scratch", lambda: open("/tmp/mine", "w").close())
tried("there", lambda: open(beside + "/secret.txt").close())
tried("not there", lambda: open(beside + "/none.txt").close())
tried("above", lambda: open("../../secret/secret.txt").close())
tried("list", lambda: os.listdir(beside))
tried("write own", lambda: open("main.py", "a").close())
tried("make", lambda: os.mkdir(beside + "/made"))
tried("move", lambda: os.rename("/tmp/mine", beside + "/moved"))
tried("run", lambda: subprocess.run([beside + "/program"]))
os.chmod("/tmp/mine", 0o755)
tried("run own", lambda: subprocess.run(["/tmp/mine"]))
tried("socket", lambda: socket.socket())
folder = os.open("/", os.O_PATH)
tried("below", lambda: os.open("srv/none", os.O_RDONLY, dir_fd=folder))
thread = threading.Thread(target=lambda: tried("thread", lambda: open(beside + "/thread.txt").close()))
thread.start()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
out["ptrace"] = errno.errorcode[ctypes.get_errno()] if libc.ptrace(0, 0, 0, 0) < 0 else "done"
print(json.dumps(out))
"#;

/// Operation, target, rule and narrower of what was refused; `%` is the folder beside.
const REFUSED: &[[&str; 4]] = &[
    ["read", "%/secret.txt", "view: not granted", "manifest"],
    ["read", "%/none.txt", "view: not granted", "manifest"],
    ["read", "../../secret/secret.txt", "view: not granted", "manifest"],
    ["read", "%", "view: not granted", "manifest"],
    ["write", "main.py", "view: read-only", "house"],
    ["write", "%/made", "view: not granted", "manifest"],
    ["write", "%/moved", "view: not granted", "manifest"],
    ["run", "%/program", "view: not granted", "manifest"],
    ["run", "/tmp/mine", "view: what the tool can write is not run", "house"],
    ["call", "socket", "seccomp: EPERM", "house"],
    ["read", "srv/none", "view: not granted", "manifest"],
    ["read", "%/thread.txt", "view: not granted", "manifest"],
    ["call", "ptrace", "seccomp: EPERM", "house"],
];

fn observed(ended: &Ended) -> Vec<Value> {
    ended.out["denials"]["observed"].as_array().unwrap_or_else(|| panic!("no outcome: {}", ended.stderr)).clone()
}

fn rows(observed: &[Value]) -> BTreeSet<[String; 4]> {
    let text = |denial: &Value, name: &str| denial[name].as_str().unwrap_or_default().to_owned();
    // The loader of libraries looks for some beside the interpreter.
    let own = |denial: &&Value| !text(denial, "target").contains(".so");
    let row = |denial: &Value| ["operation", "target", "rule", "narrower"].map(|name| text(denial, name));
    observed.iter().filter(own).map(row).collect()
}

#[test]
fn a_recorded_call_tells_all_that_it_was_refused() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("asks", "python", ASKS, json!({}));
        playground.settle();
        let beside = playground.path("secret").display().to_string();
        let input = json!({"beside": beside}).to_string();
        // The control: the same is refused in the same way, and nobody keeps it.
        let plain = playground.call("esc:asks", &input);
        assert_eq!(plain.out["success"], true, "{who:?}: {}", plain.stderr);
        assert_eq!(observed(&plain), Vec::<Value>::new(), "{who:?}");
        let said = plain.out["denials"]["notObserved"][0].to_string();
        assert!(said.contains("only the tool saw the error number") && said.contains("--explain"), "{said}");

        let recorded = playground.call_with("esc:asks", &input, &["--explain"]);
        assert_eq!(recorded.out["outputData"], plain.out["outputData"], "{who:?}: the verdicts are the same");
        let wanted = REFUSED.iter().map(|row| row.map(|part| part.replace('%', &beside))).collect::<BTreeSet<_>>();
        assert_eq!(rows(&observed(&recorded)), wanted, "{who:?}");
        let said = recorded.out["denials"]["notObserved"].to_string();
        assert!(!said.contains("only the tool saw the error number") && said.contains("stat, access"), "{said}");
        assert!(!said.contains("the recorder was lost"), "it ended by itself: {said}");
        assert_ne!(recorded.out["digests"]["confinement"], plain.out["digests"]["confinement"]);

        // What lies outside of the view makes no difference.
        let of = |name: &str| {
            let target = json!(format!("{beside}/{name}"));
            let mut denial = observed(&recorded).into_iter().find(|denial| denial["target"] == target).unwrap();
            denial["target"] = json!("");
            denial.to_string().replace(name, "")
        };
        assert_eq!(of("secret.txt"), of("none.txt"), "{who:?}");

        // The person reads the list; the record has it.
        let shown = playground.cli(&["call", "esc:asks", "--explain", "--input", &input]);
        assert!(
            shown.stderr.contains("  read ../../secret/secret.txt (view: not granted; manifest)"),
            "{}",
            shown.stderr
        );
        let record = playground.records().pop().unwrap();
        let kept = record["violations"].to_string();
        assert!(kept.contains("secret.txt") && kept.contains("\"kind\":\"more\",\"count\":"), "{kept}");
    }
}

#[test]
fn the_line_that_would_ask_is_one_that_does() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let file = playground.path("granted/figures.csv");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "1;2\n").unwrap();
    let script = "import json, sys\nprint(json.dumps(open(json.load(sys.stdin)['file']).read()))\n";
    playground.tool("reads", "python", script, json!({}));
    let shown = file.display().to_string();
    let input = json!({"file": shown}).to_string();
    let own = "[files]\nread = [{ path = \"./**\", why = \"a test\" }";
    playground.policy("reads", "esc:reads", &format!("{own}]\n"));
    playground.settle();
    let call = || playground.call_with("esc:reads", &input, &["--explain"]);
    let ended = call();
    assert_eq!(ended.kind(), "ScriptError");
    let details = ended.out["error"]["details"].as_str().unwrap();
    assert!(details.contains(&format!("Refused: read {shown} (view: not granted).")), "{details}");
    let ask = observed(&ended)[0]["ask"].as_str().unwrap().to_owned();
    let (field, rule) = ("securityContext.fileAccess.allowRead", format!("[{{ path = \"{shown}\", why = \"…\" }}]"));
    assert!(
        ask.contains(&format!("\"{shown}\" in {field}")) && ask.contains(&format!("[files] read = {rule}")),
        "{ask}"
    );
    for named in ["user_scripts/reads/reads.tool.json", "sandbox-policies/reads.policy.toml"] {
        assert!(ask.contains(named), "{ask}");
    }

    // Asked for, and not allowed: a policy that narrows is the narrower now.
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**", shown]}}});
    playground.tool("reads", "python", script, asks);
    playground.policy("reads", "esc:reads", &format!("mode = \"narrow\"\n{own}]\n"));
    playground.settle();
    let denial = observed(&call())[0].clone();
    assert_eq!(denial["narrower"], "policy");
    assert!(denial["ask"].as_str().unwrap().starts_with(&format!("{shown} is asked for and not allowed")), "{denial}");

    // Both lines are written.
    playground.policy("reads", "esc:reads", &format!("{own}, {{ path = \"{shown}\", why = \"…\" }}]\n"));
    playground.settle();
    let ended = call();
    assert_eq!((ended.out["outputData"].as_str(), observed(&ended).len()), (Some("1;2\n"), 0), "{}", ended.stderr);
}

#[test]
fn every_interpreter_is_recorded_without_its_own_noise() {
    let javascript = "const fs = require('fs');\nfor (const file of ['/srv/none.txt', '../x/y']) {\n  \
        try { fs.readFileSync(file); } catch {}\n}\ntry { fs.writeFileSync('made.txt', 'x'); } catch {}\nconsole.log('1');\n";
    let wanted: BTreeSet<[String; 4]> = [
        ["read", "/srv/none.txt", "view: not granted", "manifest"],
        ["read", "../x/y", "view: not granted", "manifest"],
        ["write", "made.txt", "view: read-only", "manifest"],
    ]
    .map(|row| row.map(str::to_owned))
    .into();
    let playground = Playground::new(Who::User, "/var/tmp");
    playground.tool("quiet", "python", "import asyncio, ssl, subprocess\nprint(1)\n", json!({}));
    for (name, language) in [("nodes", "nodejs"), ("buns", "bun")] {
        playground.tool(name, language, javascript, json!({}));
    }
    playground.settle();
    let quiet = rows(&observed(&playground.call_with("esc:quiet", "{}", &["--explain"])));
    let asked: Vec<_> = quiet.iter().filter(|row| !row[1].contains("/ssl/")).collect();
    assert!(asked.is_empty(), "{asked:?}");
    for (program, name) in [("node", "nodes"), ("bun", "buns")] {
        match found(program) {
            Some(_) => {
                let ended = playground.call_with(&format!("esc:{name}"), "{}", &["--explain"]);
                assert_eq!(rows(&observed(&ended)), wanted, "{name}: {}", ended.stderr);
            }
            None => missing(1, program),
        }
    }
}

#[test]
fn a_policy_observes_every_call_and_an_agent_reads_what_was_refused() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import sys\nsys.stdin.read()\nopen('../other/data.csv')\n";
        playground.tool("agent", "python", script, json!({}));
        let own = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n";
        playground.policy("agent", "esc:agent", &format!("observe = true\n{own}"));
        playground.settle();
        assert_eq!(playground.cli(&["audit", "esc:agent", "--json"]).out["observe"], true);
        let mut server = Server::start(&playground);
        let answer = server.called("esc:agent", json!({})).to_string();
        assert!(answer.contains("Refused: read ../other/data.csv (view: not granted)."), "{answer}");
        assert!(
            !answer.contains("allowRead") && !answer.contains("sandbox-policies"),
            "for the person alone: {answer}"
        );
        // The control: without that line nobody keeps it.
        playground.policy("agent", "esc:agent", own);
        playground.settle();
        let plain = playground.call("esc:agent", "{}");
        assert!(!plain.out["error"]["details"].to_string().contains("Refused"), "{}", plain.out["error"]);
    }
}

#[test]
fn a_call_that_runs_out_of_time_tells_what_it_was_refused() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = "import time\ntry:\n    open('/srv/none.txt')\nexcept OSError:\n    pass\ntime.sleep(60)\n";
    playground.tool("late", "python", script, json!({"execution": {"timeoutMs": 1500}}));
    playground.settle();
    let ended = playground.call_with("esc:late", "{}", &["--explain"]);
    assert_eq!(ended.kind(), "TimeoutError", "{}", ended.stderr);
    let found = rows(&observed(&ended));
    let wanted = [
        ["limit", "timeoutMs", "at most 1500", "manifest"],
        ["read", "/srv/none.txt", "view: not granted", "manifest"],
    ];
    assert!(wanted.iter().all(|row| found.contains(&row.map(str::to_owned))), "{found:?}");
    // The limit is told without a recording too, and by what it could be raised.
    let plain = observed(&playground.call("esc:late", "{}"));
    assert_eq!((plain.len(), plain[0]["target"].as_str()), (1, Some("timeoutMs")), "{plain:?}");
    assert_eq!(plain[0]["ask"], Value::Null, "files of this host are for who asked for an explanation");
    let asked = observed(&ended)[0]["ask"].to_string();
    assert!(asked.contains("execution.timeoutMs"), "{asked}");
}

/// Ways to open a path that a model of paths in user space would not see, each tried with a path that is not granted
/// and with the tool's own script.
const TRICKS: &str = r#"
import ctypes, errno, json, os, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.open.argtypes = [ctypes.c_void_p, ctypes.c_int]
home = os.getcwd()
own, out = home + "/main.py", {}
def plain(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno]
def page(path):
    at = libc.mmap(None, 4096, 3, 0x22, -1, 0)
    ctypes.memmove(at, path.encode() + b"\0", len(path) + 1)
    libc.mprotect(at, 4096, 2)  # PROT_WRITE alone
    return "done" if libc.open(at, os.O_RDONLY) >= 0 else errno.errorcode[ctypes.get_errno()]
def inside(path):
    os.chdir("/proc/self/root")
    said = plain(path[1:])
    os.chdir(home)
    return said
def chain(path):
    n = len(os.listdir("/tmp/c"))
    for i in range(30):
        os.symlink(f"../c/l{n}-{i + 1}", f"/tmp/c/l{n}-{i}")
    os.symlink("../.." + path, f"/tmp/c/l{n}-30")
    return plain(f"/tmp/c/l{n}-0")
os.mkdir("/tmp/c")
root = os.open("/", os.O_PATH)
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
ways = {
    "plain": plain,
    "page": page,
    "long": lambda path: plain("/" + "./" * 1500 + path[1:]),
    "root": lambda path: plain("/proc/self/root" + path),
    "thread": lambda path: plain("/proc/thread-self/root" + path),
    "fd": lambda path: plain(f"/proc/self/fd/{root}{path}"),
    "cwd": inside,
    "chain": chain,
    "child": lambda path: plain(f"/proc/{child}/root{path}"),
}
for name, way in ways.items():
    out[name] = [way("/srv/none/" + name), way(own)]
paths, over, seen = [own.encode() + b"\0", b"/srv/none/flip\0"], [], set()
buffer = ctypes.create_string_buffer(4096)
def flip():
    while not over:
        for path in paths:
            ctypes.memmove(buffer, path, len(path))
threading.Thread(target=flip).start()
until = time.monotonic() + 1.5
while time.monotonic() < until or len(seen) < 2:
    got = libc.open(ctypes.addressof(buffer), os.O_RDONLY)
    seen.add(got >= 0)
    if got >= 0:
        os.close(got)
over.append(1)
out["flip"] = sorted(seen)
print(json.dumps(out))
"#;

#[test]
fn no_way_of_naming_a_path_blinds_the_recorder() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("tricks", "python", TRICKS, json!({}));
        playground.settle();
        let plain = playground.call("esc:tricks", "{}");
        let recorded = playground.call_with("esc:tricks", "{}", &["--explain"]);
        assert_eq!(recorded.out["outputData"], plain.out["outputData"], "{who:?}: {}", recorded.stderr);
        let found = rows(&observed(&recorded));
        let ways = recorded.out["outputData"].as_object().unwrap();
        for (way, said) in ways.iter().filter(|(way, _)| *way != "flip") {
            assert_eq!(said, &json!(["ENOENT", "done"]), "{who:?} {way}: the control opens its own script");
        }
        let refused = |target: &str| {
            let row = ["read", target, "view: not granted", "manifest"].map(str::to_owned);
            assert!(found.contains(&row), "{who:?} {target}: {found:?}");
        };
        for way in ["plain", "page"] {
            refused(&format!("/srv/none/{way}"));
        }
        refused("srv/none/cwd");
        let with = |part: &str| found.iter().filter(|row| row[1].contains(part)).count();
        assert_eq!((with("/./"), with("l31-0")), (1, 0), "{who:?}: {found:?}");
        // A link of a process, and one to nothing, is not followed, and that is said.
        for part in ["/srv/none/root", "/srv/none/thread", "/srv/none/fd", "/srv/none/child", "/tmp/c/l0-0"] {
            let rows: Vec<_> = found.iter().filter(|row| row[1].contains(part)).collect();
            assert!(rows.len() == 1 && rows[0][2].starts_with("not observed: "), "{who:?} {part}: {rows:?}");
        }
        let unread = recorded.out["denials"]["notObserved"].to_string().contains("another thread changed");
        assert!(with("/srv/none/flip") == 1 || unread, "{who:?}: {found:?}");
        let script = playground.path("user_scripts/tricks/main.py").display().to_string();
        let own = found.iter().filter(|row| row[1].ends_with(&script)).collect::<Vec<_>>();
        assert!(own.iter().all(|row| row[2].starts_with("not observed: ")), "{who:?}: what it may read: {own:?}");
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
        let policies = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n";
        playground.policy("asks", "esc:asks", policies);
        let beside = folder.display();
        let policy = playground.path("sandbox-policies/asks.policy.toml").display().to_string();
        let files = [
            format!("{beside}/key"),
            format!("{beside}/closed/a.csv"),
            policy,
            "/etc/shadow".to_owned(),
            format!("{beside}/open.csv"),
        ];
        let script = "import json, sys\nfor path in json.load(sys.stdin)['files']:\n    try:\n        open(path)\n    except OSError:\n        pass\nprint(1)\n";
        playground.tool("asks", "python", script, json!({}));
        playground.settle();
        for (name, mode) in [("key", 0o600), ("closed", 0o700)] {
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let ended = playground.call_with("esc:asks", &json!({"files": files}).to_string(), &["--explain"]);
        let told = observed(&ended);
        let asked = |file: &str| {
            let denial = told.iter().find(|denial| denial["target"] == *file);
            denial.unwrap_or_else(|| panic!("{who:?} {file}: {told:?}"))["ask"].is_string()
        };
        let asked: Vec<bool> = files.iter().map(|file| asked(file)).collect();
        assert_eq!(asked, [false, false, false, false, true], "{who:?}: the last one is the control");
    }
}

#[test]
fn no_secret_stands_in_what_is_told() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = "import json, os, sys\nkey = json.load(sys.stdin)['key']\n\
        for path in ['/srv/' + key, '/srv/' + 'y' * 185 + '/' + key + '/a', '/srv/' + 'z' * 300]:\n    \
        try:\n        open(path)\n    except OSError:\n        pass\nos.symlink('/srv/' + key, '/tmp/l')\nopen('/tmp/l')\n";
    let schema = json!({"type": "object", "properties": {"key": {"type": "string", "writeOnly": true}}});
    playground.tool("keys", "python", script, json!({"parameters": schema}));
    playground.settle();
    let key = "hunter2-SECRET-abcd";
    let ended = playground.call_with("esc:keys", &json!({"key": key}).to_string(), &["--explain"]);
    let found = rows(&observed(&ended));
    assert!(found.iter().any(|row| row[1] == "/srv/***") && found.iter().any(|row| row[1] == "/tmp/l"), "{found:?}");
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    for told in [ended.text(), ended.stderr.clone(), log] {
        assert!(!told.contains("hunter2"), "{told}");
    }
    let lines = observed(&ended);
    let long = lines.iter().find(|denial| denial["target"].as_str().unwrap().contains("zzz")).unwrap();
    let (target, ask) = (long["target"].as_str().unwrap(), long["ask"].as_str().unwrap());
    assert!(target.ends_with('…') && ask.contains(&"z".repeat(300)), "decided on the whole, cut to be shown: {long}");
}

#[test]
fn a_tool_that_floods_or_is_frozen_is_still_told_of() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let flood = "for n in range(3000):\n    try:\n        open('/srv/none/%d' % n)\n    except OSError:\n        pass\n\
            import time\nopen('/srv/the/last.csv')\n";
        playground.tool("floods", "python", flood, json!({}));
        // Renames keep the count of a live folder busy, which stops the call to look; a stopped child stays stopped.
        let frozen = "import os, signal, time\nchild = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n\
            os.kill(child, signal.SIGSTOP)\nrounds, until = 0, time.monotonic() + 1.5\nwhile time.monotonic() < until:\n    \
            for n in range(20):\n        with open('out/x%d' % n, 'wb') as f:\n            f.write(bytes(65536))\n        \
            os.rename('out/x%d' % n, 'out/y%d' % n)\n    rounds += 1\nos.kill(child, signal.SIGKILL)\nprint(rounds)\n";
        let asks =
            json!({"securityContext": {"fileAccess": {"allowWrite": ["out/**"]}}, "execution": {"timeoutMs": 12_000}});
        let folder = playground.tool("frozen", "python", frozen, asks);
        fs::create_dir_all(folder.join("out")).unwrap();
        playground.allow("frozen", "esc:frozen", &["./**"], &["./out/**"]);
        playground.settle();
        let ended = playground.call_with("esc:floods", "{}", &["--explain"]);
        let told = observed(&ended);
        assert!((90..=100).contains(&told.len()), "{who:?}: {}", told.len());
        let unseen = ended.out["denials"]["notObserved"].to_string();
        assert!(unseen.contains("no room for more") && unseen.contains("are listed"), "{who:?}: {unseen}");
        let ended = playground.call_with("esc:frozen", "{}", &["--explain"]);
        assert!(ended.out["outputData"].as_u64().is_some_and(|rounds| rounds > 0), "{who:?}: {}", ended.stderr);
    }
}

#[test]
fn work_of_the_recorder_is_the_calls_own() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = "import os\nos.chdir('/tmp')\nos.mkdir('x')\nfor n in range(30):\n    os.symlink('x/../' * 20 + 'l%d' % (n + 1), 'l%d' % n)\n\
        while True:\n    try:\n        os.open('/tmp/l0', os.O_RDONLY)\n    except OSError:\n        pass\n";
    playground.tool("works", "python", script, json!({"limits": {"cpuMs": 1000}}));
    playground.settle();
    let ended = playground.call_with("esc:works", "{}", &["--explain"]);
    assert_eq!(ended.kind(), "ResourceLimitError", "{}", ended.stderr);
    assert!(ended.stderr.contains("cpuMs") || ended.error().1.contains("cpuMs"), "{:?}", ended.error());
    assert!(ended.out["usage"]["wallMs"].as_u64().unwrap() < 10_000, "{}", ended.out["usage"]);
}

/// Pid of the parent and of the session's leader.
fn parent_and_session(pid: u32) -> Option<(u32, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.nth(1)?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

fn named(pid: u32, word: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
}

/// The recorder of a call of this playground: host → keeper → launcher → recorder, which leads a session.
fn recorder(playground: &Playground) -> Option<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let launcher = |pid: u32| named(pid, "toolhost-launcher");
        let Some((parent, session)) = parent_and_session(*pid) else { return false };
        let Some((keeper, _)) = parent_and_session(parent) else { return false };
        let Some((host, _)) = parent_and_session(keeper) else { return false };
        session == *pid
            && launcher(*pid)
            && launcher(parent)
            && launcher(keeper)
            && named(host, &playground.base.display().to_string())
    })
}

#[test]
fn where_nobody_listens_any_more_everything_is_refused() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        // Opens its own script again and again, until that fails or its time is over.
        let script = "import errno, json, os, sys, time\nsaid = 'opened'\nuntil = time.monotonic() + json.load(sys.stdin)['s']\nwhile time.monotonic() < until:\n    \
            try:\n        os.close(os.open(__file__, os.O_RDONLY))\n    except OSError as e:\n        \
            said = errno.errorcode[e.errno]\n        break\n    time.sleep(0.01)\nprint(json.dumps(said))\n";
        playground.tool("loops", "python", script, json!({}));
        playground.settle();
        let call = |input: &str| playground.call_with("esc:loops", input, &["--explain"]);
        assert_eq!(call(r#"{"s": 1}"#).out["outputData"], "opened", "{who:?}: the control");
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| call(r#"{"s": 20}"#));
            let mut found = None;
            wait_for("a recorder", || {
                found = recorder(&playground);
                found.is_some()
            });
            std::thread::sleep(Duration::from_millis(300));
            let pid = nix::unistd::Pid::from_raw(found.unwrap() as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
            let ended = ended.join().unwrap();
            assert_eq!(ended.out["outputData"], "ENOSYS", "{who:?}");
            let unseen = ended.out["denials"]["notObserved"].to_string();
            assert!(unseen.contains("the recorder was lost"), "{who:?}: {unseen}");
        });
        playground.assert_quiet("a recorder that was killed");
    }
}

/// The field of a process's /proc status.
fn status_field(status: &str, name: &str) -> Vec<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// A user namespace, and the capabilities that a process had there.
type Permitted = BTreeSet<(std::path::PathBuf, u64)>;

/// The permitted capabilities of the launcher, and those that the recorder had at any time of one call.
fn capabilities_of(playground: &Playground) -> (Permitted, Permitted) {
    let (mut launchers, mut recorders) = (BTreeSet::new(), BTreeSet::new());
    let mut command = playground.host();
    command.args(["call", "esc:waits", "--explain", "--json", "--input", "{}"]);
    let mut host = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let first = host.id();
    while host.try_wait().unwrap().is_none() {
        for pid in descendants(first) {
            let space = || fs::read_link(format!("/proc/{pid}/ns/user")).ok();
            let Some(before) = space() else { continue };
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
            if space().as_ref() != Some(&before) {
                continue;
            }
            let (pids, sessions) = (status_field(&status, "NSpid"), status_field(&status, "NSsid"));
            let permitted = || (before.clone(), u64::from_str_radix(&status_field(&status, "CapPrm")[0], 16).unwrap());
            // Both have a pid in the launcher's namespace; the recorder leads a session there.
            match (pids.as_slice(), sessions.last()) {
                ([.., own], _) if pids.len() == launcher_depth() && own == "1" => _ = launchers.insert(permitted()),
                ([.., own], Some(session)) if pids.len() == launcher_depth() && own == session => {
                    recorders.insert(permitted());
                }
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
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
        }
    }
    found
}

/// How many pids a process of the launcher's namespace has, seen from here.
fn launcher_depth() -> usize {
    status_field(&fs::read_to_string("/proc/self/status").unwrap(), "NSpid").len() + 1
}

/// The recorder reads the memory of a hostile tool: until it has entered the tool's namespaces it has the three
/// capabilities that this takes, and afterwards one.
#[test]
fn the_recorder_has_no_more_capabilities_than_it_needs() {
    const TRACE: u64 = 1 << 19;
    // CAP_SYS_CHROOT, CAP_SYS_PTRACE and CAP_SYS_ADMIN.
    const FIRST: u64 = 1 << 18 | TRACE | 1 << 21;
    crate::harness::as_everyone("the recorder's capabilities", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool_at(
            "esc:waits",
            "python",
            "waits/main.py",
            "import time\ntime.sleep(0.2)\nprint(1)\n",
            json!({}),
        );
        playground.settle();
        // Call by call, since the kernel gives the numbers of namespaces again.
        let calls: Vec<_> = (0..6).map(|_| capabilities_of(&playground)).collect();
        // The control: the launcher, of which the recorder is a copy, has more.
        let mut launchers = calls.iter().flat_map(|(launchers, _)| launchers);
        assert!(launchers.any(|(_, set)| set & !FIRST != 0), "{who:?}: {calls:x?}");
        let mut recorders = calls.iter().flat_map(|(_, recorders)| recorders);
        assert!(recorders.any(|(_, set)| *set == TRACE), "{who:?}: while the tool ran: {calls:x?}");
        // In the tool's own namespace setns(2) gives it all, for the moment until it keeps one.
        for (launchers, recorders) in &calls {
            let mut outside = recorders.iter().filter(|(space, _)| launchers.iter().any(|(other, _)| other == space));
            assert!(outside.all(|(_, set)| set & !FIRST == 0), "{who:?}: {recorders:x?}");
        }
    });
}

#[test]
fn a_host_that_the_script_names_comes_first() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = "import urllib.request\nurllib.request.urlopen('https://example.com/x')\n";
    playground.tool("calls", "python", script, json!({}));
    playground.settle();
    let ended = playground.call_with("esc:calls", "{}", &["--explain"]);
    let first = &observed(&ended)[0];
    assert_eq!((first["operation"].as_str(), first["target"].as_str()), (Some("connect"), Some("example.com")));
    assert!(first["ask"].as_str().is_some_and(|ask| ask.contains("allowHosts")), "{first}");
}
