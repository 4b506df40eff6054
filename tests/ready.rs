//! Ready processes: started before their call, used once, and never for anything else than what
//! they were started for. Each refusal has a control in which the same process is used.

use crate::files::{FORM, form};
use crate::http::{Web, caller, tokens, write_callers};
use crate::prelude::*;

/// Says how long it had waited, what earlier calls left for it, and what it was given.
const PROBE: &str = r#"
import glob, json, os, socket, subprocess, sys, time
began = time.monotonic()
def left():
    others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]
    return sorted(glob.glob('/tmp/left*') + glob.glob('/dev/shm/left*')) + others
before = left()
given = json.load(sys.stdin)
waited = time.monotonic() - began
for folder in ('/tmp', '/dev/shm'):
    open(folder + '/left', 'w').write('x')
child = subprocess.Popen(['/bin/sleep', '60'], start_new_session=True)
time.sleep(given.get('sleep', 0))
print(json.dumps({'waited': waited, 'before': before, 'own': left(), 'n': given.get('n'),
                  'net': os.readlink('/proc/self/ns/net'), 'mnt': os.readlink('/proc/self/ns/mnt'),
                  'key': os.environ.get('KEY'), 'uid': os.getuid()}))
"#;

fn ready() -> Value {
    json!({"execution": {"ready": true}})
}

fn policy(playground: &Playground, tool: &str, rest: &str) {
    let name = tool.replace(':', "-");
    playground.policy(&name, tool, &format!("[ready]\nwhy = \"a test\"\n{rest}"));
}

/// A host whose only tool `esc:probe` has this script and this policy.
fn probe(who: Who, script: &str, rest: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.tool("probe", "python", script, ready());
    policy(&playground, "esc:probe", rest);
    playground.settle();
    playground
}

/// The processes that wait for calls of this tool.
fn waiting(web: &Web, tool: &str, headers: &[&str]) -> Vec<Value> {
    let answer = web.get("/v1/calls", headers).json();
    let mut found = answer["ready"].as_array().unwrap().clone();
    let tool = format!("{tool}@");
    found.retain(|it| it["tool"].as_str().unwrap().starts_with(&tool));
    found
}

#[track_caller]
fn awaits(web: &Web, tool: &str, headers: &[&str], count: usize) {
    let what = format!("{count} processes of {tool} wait: {}", web.said());
    wait_for(&what, || waiting(web, tool, headers).len() == count);
    // They have loaded what they load once they sleep, also for who asks again and again.
    let mut asleep = None;
    wait_for("they wait for their input", || {
        asleep = all_sleep(web.child.id()).then(|| asleep.unwrap_or_else(Instant::now));
        asleep.is_some_and(|since| since.elapsed() > Duration::from_millis(300))
    });
}

/// Whether what the tools of a host run sleeps, and does not wait for a processor.
fn all_sleep(host: u32) -> bool {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = text.rsplit_once(')') else {
            continue;
        };
        let (pid, name) = name.split_once(" (").unwrap();
        let mut rest = rest.split_whitespace();
        let sleeps = rest.next() != Some("R") || name.starts_with("toolhost");
        let parent = rest.next().unwrap().parse().unwrap();
        let child = (pid.parse().unwrap(), sleeps);
        children.entry(parent).or_default().push(child);
    }
    let mut left = vec![(host, true)];
    while let Some((pid, sleeps)) = left.pop() {
        if !sleeps {
            return false;
        }
        left.extend(children.get(&pid).into_iter().flatten());
    }
    true
}

fn called(web: &Web, input: Value, headers: &[&str]) -> Value {
    web.call("esc:probe", &json!({ "arguments": input }), headers)
        .json()
}

#[track_caller]
fn is_ready(answer: &Value) -> Value {
    assert_eq!(answer["usage"]["started"], "ready", "{answer}");
    answer["outputData"].clone()
}

#[track_caller]
fn is_cold(answer: &Value) -> Value {
    assert_eq!(answer["success"], true, "{answer}");
    assert!(answer["usage"]["started"].is_null(), "{answer}");
    answer["outputData"].clone()
}

#[test]
fn a_process_that_waits_serves_one_call_and_everything_of_it_is_fresh() {
    as_everyone("ready processes", |who| {
        let playground = probe(who, PROBE, "");
        let web = Web::start(&playground, &[]);
        let ours = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        for n in 0..3 {
            awaits(&web, "esc:probe", &[], 1);
            let answer = called(&web, json!({"n": n}), &[]);
            let output = is_ready(&answer);
            assert_eq!(
                (&output["n"], &output["before"]),
                (&json!(n), &json!([])),
                "{answer}"
            );
            assert_eq!(
                output["own"].as_array().unwrap().len(),
                3,
                "the control: {answer}"
            );
            assert!(output["waited"].as_f64().unwrap() > 0.1, "{answer}");
            assert!(
                answer["usage"]["waitedMs"].as_u64().unwrap() >= 300,
                "{answer}"
            );
            // The number of a namespace that is gone is given again: one call's may be the next one's.
            for name in ["net", "mnt"] {
                assert_ne!(output[name], ours(name).display().to_string(), "{answer}");
            }
        }
        let record = playground.records().pop().unwrap();
        assert_eq!(record["usage"]["started"], "ready", "{record}");
    });
}

/// A process that fails without a look at its input served no call: the call starts cold.
#[test]
fn a_process_that_fails_before_it_reads_serves_no_call() {
    let script = "import json, select, subprocess, sys\n\
        came, null = select.select([0], [], [], 2)[0], subprocess.DEVNULL\n\
        if not came:\n    \
        subprocess.Popen(['/bin/sleep', 'MARKER'], stdin=null, stdout=null, stderr=null)\n\
        select.select([0], [], [])\n\
        if not came and MODE == 'unread':\n    sys.exit('waited too long')\n\
        n = json.load(sys.stdin)['n']\n\
        sys.exit('read') if not came else print(n)\n";
    for (n, mode) in ["unread", "read"].into_iter().enumerate() {
        let marker = format!("4{n}{}.25", std::process::id());
        let script = script.replace("MODE", &format!("'{mode}'"));
        let script = script.replace("MARKER", &marker);
        let playground = probe(Who::ours(), &script, "");
        let web = Web::start(&playground, &[]);
        awaits(&web, "esc:probe", &[], 1);
        wait_for("no input came", || !processes_of(&marker).is_empty());
        let answer = called(&web, json!({"n": 7}), &[]);
        if mode == "unread" {
            assert_eq!(is_cold(&answer), 7, "{answer}");
        } else {
            // The control: what had its input is not run again.
            assert_eq!(answer["usage"]["started"], "ready", "{answer}");
            assert_eq!(answer["success"], false, "{answer}");
        }
    }
}

/// However many come at once, no process serves two of them.
#[test]
fn no_process_serves_two_of_many_calls_that_come_at_once() {
    let script = "import json, os, sys\nborn = os.urandom(8).hex()\nn = json.load(sys.stdin)['n']\n\
        left = os.path.exists('/tmp/left')\nopen('/tmp/left', 'w').close()\nprint(json.dumps([n, born, left]))\n";
    let playground = probe(Who::ours(), script, "processes = 4\n");
    let web = Web::start(&playground, &[]);
    awaits(&web, "esc:probe", &[], 4);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let web = &web;
        let call = |n: u32| scope.spawn(move || called(web, json!({ "n": n }), &[]));
        let calls: Vec<_> = (0..20).map(call).collect();
        calls.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let mut born = BTreeSet::new();
    for (n, answer) in answers.iter().enumerate() {
        let output = &answer["outputData"];
        assert_eq!(
            (&output[0], &output[2]),
            (&json!(n), &json!(false)),
            "{answer}"
        );
        assert!(born.insert(output[1].to_string()), "used twice: {answer}");
    }
    let is_ready = |answer: &&Value| answer["usage"]["started"] == "ready";
    let ready = answers.iter().filter(is_ready).count();
    assert!((4..20).contains(&ready), "{ready}");
}

#[test]
fn time_counts_from_the_input_and_limits_hold() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let more = json!({"execution": {"ready": true, "timeoutMs": 1000}});
    playground.tool("probe", "python", PROBE, more);
    policy(&playground, "esc:probe", "");
    playground.settle();
    let web = Web::start(&playground, &[]);
    let answer = || {
        awaits(&web, "esc:probe", &[], 1);
        std::thread::sleep(Duration::from_millis(1200));
        called(&web, json!({"sleep": 0.5}), &[])
    };
    // Where the machine stood still for the rest of its second, it is called again.
    let answer = (0..4).map(|_| answer()).find(|it| it["success"] == true);
    let answer = answer.expect("it has its time from its input on");
    assert!(
        is_ready(&answer)["waited"].as_f64().unwrap() > 1.2,
        "{answer}"
    );
    awaits(&web, "esc:probe", &[], 1);
    let late = called(&web, json!({"sleep": 5}), &[]);
    assert_eq!(late["error"]["type"], "TimeoutError", "{late}");
}

/// Each change comes while a process waits: what was started before it serves no call any more.
#[test]
fn nothing_is_used_after_a_change() {
    let script = format!(
        "import helper\n{}",
        PROBE.replace("'uid'", "'helper': helper.N, 'uid'")
    );
    let playground = probe(Who::ours(), &script, "");
    let put = |name: &str, text: &str| fs::write(playground.path(name), text).unwrap();
    let helper = "user_scripts/probe/helper.py";
    let main = "user_scripts/probe/main.py";
    put(helper, "N = 1\n");
    put("secret/key", "first-secret\n");
    let private = fs::Permissions::from_mode(0o600);
    let settle = || {
        playground.settle();
        fs::set_permissions(playground.path("secret/key"), private.clone()).unwrap();
    };
    let from = playground.path("secret/key").display().to_string();
    let secrets = format!(
        "[secrets]\ngrant = [{{ name = \"KEY\", from = \"file:{from}\", why = \"a test\" }}]\n"
    );
    let more = json!({"execution": {"ready": true}, "securityContext": {"requiredCapabilities": ["secret:KEY"]}});
    playground.tool("probe", "python", &script, more);
    policy(&playground, "esc:probe", &secrets);
    settle();
    let web = Web::start(&playground, &[]);
    let used = |what: &str| {
        awaits(&web, "esc:probe", &[], 1);
        let answer = called(&web, json!({}), &[]);
        assert_eq!(
            answer["usage"]["started"], "ready",
            "the control before {what}: {answer}"
        );
        awaits(&web, "esc:probe", &[], 1);
    };
    let hidden = |answer: &Value| answer["key"].as_str().unwrap().to_owned();

    used("a helper changes");
    put(helper, "N = 2\n");
    assert_eq!(is_cold(&called(&web, json!({}), &[]))["helper"], 2);

    used("the script changes");
    put(main, &script.replace("given.get('n')", "'new'"));
    assert_eq!(is_cold(&called(&web, json!({}), &[]))["n"], "new");

    used("the secret changes");
    put("secret/key", "second-secret\n");
    // What the tool prints of it is hidden, so that only the length of the mask would tell.
    hidden(&is_cold(&called(&web, json!({}), &[])));

    used("the policy changes");
    let ended = || waiting(&web, "esc:probe", &[]);
    let old = ended();
    policy(
        &playground,
        "esc:probe",
        &format!("{secrets}[limits]\ntimeout_ms = 20_000\n"),
    );
    settle();
    web.signal(Signal::SIGHUP);
    wait_for("the old process is ended, and a new one waits", || {
        let now = ended();
        now.len() == 1 && now[0]["began"] != old[0]["began"]
    });

    used("the policy takes the table back");
    playground.policy("esc-probe", "esc:probe", &secrets);
    settle();
    web.signal(Signal::SIGHUP);
    awaits(&web, "esc:probe", &[], 0);
    is_cold(&called(&web, json!({}), &[]));
    awaits(&web, "esc:probe", &[], 0);
}

#[test]
fn callers_share_nothing_and_get_no_more_than_their_rights() {
    let playground = probe(Who::ours(), PROBE, "");
    let own = json!({"execution": {"ready": true}, "securityContext": {"requiredCapabilities": ["secret:KEY"]}});
    playground.tool("owned", "python", PROBE, own);
    for name in ["alice", "bob"] {
        fs::write(
            playground.path(&format!("secret/{name}")),
            format!("secret-of-{name}\n"),
        )
        .unwrap();
    }
    let from = playground.path("secret/{caller}").display().to_string();
    policy(
        &playground,
        "esc:owned",
        &format!(
            "[secrets]\ngrant = [{{ name = \"KEY\", from = \"file:{from}\", why = \"a test\" }}]\n"
        ),
    );
    let all = caller("alice", "")
        + &caller("bob", "")
        + &caller("root", "role = \"operator\"\n")
        + "[[caller]]\nname = \"eve\"\nwhy = \"a test\"\ntools = [\"esc:owned\"]\n";
    write_callers(&playground, &all);
    for name in ["alice", "bob"] {
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(playground.path(&format!("secret/{name}")), private).unwrap();
    }
    let (file, headers) = tokens(&playground, ["alice", "bob", "eve", "root!"]);
    let web = Web::start(&playground, &["--token-file", &file]);
    let [alice, bob, eve, root] = headers.each_ref().map(|it| [it.as_str()]);
    for who in [&alice, &bob] {
        awaits(&web, "esc:probe", &root, 1);
        assert_eq!(is_ready(&called(&web, json!({}), who))["before"], json!([]));
    }
    awaits(&web, "esc:probe", &root, 1);
    web.call("esc:probe", &json!({"arguments": {}}), &eve)
        .is(404, "ToolNotFoundError");
    assert_eq!(
        waiting(&web, "esc:probe", &root).len(),
        1,
        "it took nothing"
    );
    assert!(
        waiting(&web, "esc:probe", &alice).is_empty(),
        "only operators see them"
    );
    // Secrets that depend on the caller: never before the call.
    let answer = web
        .call("esc:owned", &json!({"arguments": {}}), &alice)
        .json();
    is_cold(&answer);
    assert!(waiting(&web, "esc:owned", &root).is_empty());
}

#[test]
fn a_start_that_ends_early_is_tried_three_times_until_the_tool_changes() {
    let playground = probe(Who::ours(), "import sys\nsys.exit('no input for me')\n", "");
    let web = Web::start(&playground, &[]);
    let said = || {
        let ended = playground.cli(&["check"]);
        (ended.text() + &ended.stderr).contains("no input for me")
    };
    wait_for("three starts ended", said);
    assert!(waiting(&web, "esc:probe", &[]).is_empty());
    // Also where an operator looks, and with the call.
    let address = web.address.to_string();
    let lists = || playground.cli(&["ps", "--http", &address]).text();
    wait_for("the list says it", || lists().contains("no input for me"));
    wait_for("the log says it", || web.said().contains("no input for me"));
    let cold = called(&web, json!({}), &[]);
    assert!(
        cold["notes"]
            .to_string()
            .contains("that failed three times"),
        "{cold}"
    );
    assert!(
        !cold["notes"].to_string().contains("no input for me"),
        "{cold}"
    );
    let record = playground.records().pop().unwrap();
    assert!(
        record["notes"].to_string().contains("no input for me"),
        "{record}"
    );
    let lasting = PROBE.replace("time.sleep(given", "time.sleep(0 * given");
    fs::write(playground.path("user_scripts/probe/main.py"), lasting).unwrap();
    is_cold(&called(&web, json!({}), &[]));
    awaits(&web, "esc:probe", &[], 1);
    let shown = lists();
    assert!(
        shown.contains("esc:probe") && !shown.contains("none"),
        "{shown}"
    );
    assert!(!shown.contains("no input for me"), "{shown}");
    is_ready(&called(&web, json!({}), &[]));
    assert!(!said(), "nothing is wrong with the new script");
}

/// A lock that was corrected is tried again, and a call that nobody could have started before says
/// nothing of that.
#[test]
fn starts_are_tried_again_once_the_packages_change() {
    let playground = probe(Who::ours(), "import sys\nsys.exit('lacks a package')\n", "");
    let says = || {
        let ended = playground.cli(&["check"]);
        (ended.text() + &ended.stderr).contains("lacks a package")
    };
    let web = Web::start(&playground, &[]);
    wait_for("three starts ended", says);
    let told = playground
        .cli(&["call", "esc:probe", "--input", "{}"])
        .stderr;
    assert!(!told.contains("three times"), "no server, no start: {told}");
    let packages = playground.path("user_scripts/probe/requirements.txt");
    fs::write(&packages, "# nothing\n").unwrap();
    assert!(says(), "the control: nothing else is required");
    let hash = "0".repeat(64);
    fs::write(&packages, format!("other==1.0 --hash=sha256:{hash}\n")).unwrap();
    assert!(!says(), "other packages, other starts");
    drop(web);
}

#[test]
fn a_host_that_ends_leaves_none_even_where_they_are_stopped() {
    let playground = probe(Who::ours(), PROBE, "");
    let web = Web::start(&playground, &[]);
    awaits(&web, "esc:probe", &[], 1);
    playground.runs("user_scripts/probe/main.py", 1);
    let host = web.child.id();
    let keepers = processes_of("toolhost-launcher")
        .into_iter()
        .filter(|(pid, _)| {
            let parent = parent_of(*pid);
            parent == Some(host) || parent.and_then(parent_of) == Some(host)
        });
    for (pid, _) in keepers.chain(playground.processes()) {
        if pid != host {
            signal(pid, Signal::SIGSTOP);
        }
    }
    web.signal(Signal::SIGKILL);
    playground.assert_quiet("a host that was killed");

    let mut web = Web::start(&playground, &[]);
    awaits(&web, "esc:probe", &[], 1);
    web.signal(Signal::SIGTERM);
    assert!(web.ended(Duration::from_secs(30)).is_some());
    playground.assert_quiet("a host that was stopped");
}

#[test]
fn their_memory_is_bounded_together_and_the_oldest_goes_first() {
    let large = PROBE.replace(
        "before = left()",
        "before = left(); held = b'x' * (40 << 20)",
    );
    let playground = probe(Who::ours(), &large, "");
    let more = ready();
    playground.tool("second", "python", &large, more);
    policy(&playground, "esc:second", "");
    let config = playground.path("state/config.toml");
    playground.settle();
    for (bytes, count) in [(300 << 20, 2), (80 << 20, 1)] {
        fs::write(&config, format!("ready_bytes = {bytes}\n")).unwrap();
        playground.settle();
        let mut command = playground.host();
        command.args([
            "--config",
            config.to_str().unwrap(),
            "serve",
            "--http",
            "127.0.0.1:0",
        ]);
        let web = Web::run(command, playground.who.uid()).unwrap();
        let all = || {
            [
                waiting(&web, "esc:probe", &[]),
                waiting(&web, "esc:second", &[]),
            ]
            .concat()
        };
        wait_for("as many wait as fit", || all().len() == count);
        std::thread::sleep(Duration::from_secs(3));
        let left = all();
        assert_eq!(left.len(), count, "with {bytes} bytes: {left:?}");
        wait_for("its memory is counted", || {
            all()[0]["memoryBytes"].as_u64().unwrap() > 40 << 20
        });
    }
}

/// Where a control group counts, files in scratch are memory of the process that wrote them.
#[test]
fn files_in_its_scratch_count_where_a_control_group_counts() {
    let large = PROBE.replace(
        "before = left()",
        "before = left(); open('/tmp/held', 'wb').write(b'x' * (40 << 20))",
    );
    let playground = probe(Who::ours(), &large, "");
    if playground.call("esc:probe", "{}").counted() != "cgroup" {
        return skipped(1, "memory is counted by a control group only for root");
    }
    let web = Web::start(&playground, &[]);
    wait_for("the file counts", || {
        let all = waiting(&web, "esc:probe", &[]);
        all.first()
            .is_some_and(|it| it["memoryBytes"].as_u64().unwrap() > 40 << 20)
    });
}

#[test]
fn source_text_waits_in_its_shim_with_what_it_imports() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let table = "[ready]\nimports = [\"decimal\"]\nwhy = \"a test\"\n";
    playground.policy("core", "core:run-code", table);
    playground.settle();
    let web = Web::start(&playground, &[]);
    let run = |code: &str| {
        awaits(&web, "core:run-code", &[], 1);
        let input = json!({"language": "python", "code": code, "inputData": {"n": 7}});
        web.call("core:run-code", &json!({ "arguments": input }), &[])
            .json()
    };
    let code = "import json, sys\nn = json.load(sys.stdin)['n']\n\
        print(json.dumps([n, 'decimal' in sys.modules, __name__, __file__, sys.argv, sys.path[0]]))";
    let answer = run(code);
    let wanted = json!([
        7,
        true,
        "__main__",
        "/tmp/call/main.py",
        ["/tmp/call/main.py"],
        "/tmp/call"
    ]);
    assert_eq!(is_ready(&answer), wanted, "{answer}");
    // Its own text is not a result that it forgot.
    assert_eq!(answer["artifacts"], json!([]), "{answer}");
    let failed = run("import sys\nif sys:\n    raise ValueError('mine')\n");
    let text = failed.to_string();
    assert!(
        text.contains("ValueError: mine") && text.contains("line 3"),
        "{failed}"
    );
    assert!(!text.contains("/.toolhost/"), "{failed}");
    // Whoever comes while none waits starts cold, with the same result. One that comes later finds
    // the next one.
    let input = json!({"language": "python", "code": "print(__name__)"});
    let starts_cold = (0..5).any(|_| {
        awaits(&web, "core:run-code", &[], 1);
        let both: Vec<Value> = std::thread::scope(|scope| {
            let call = || {
                web.call("core:run-code", &json!({ "arguments": &input }), &[])
                    .json()
            };
            let calls = [scope.spawn(call), scope.spawn(call)];
            calls.map(|it| it.join().unwrap()).into()
        });
        assert!(
            both.iter().all(|it| it["outputData"] == "__main__"),
            "{both:?}"
        );
        let ready = both
            .iter()
            .filter(|it| it["usage"]["started"] == "ready")
            .count();
        assert!(ready > 0, "{both:?}");
        ready == 1
    });
    assert!(starts_cold, "one of two that come at once");
    // An import that is missing ends its process; calls run all the same.
    playground.policy(
        "core",
        "core:run-code",
        &table.replace("decimal", "not_there"),
    );
    playground.settle();
    web.signal(Signal::SIGHUP);
    wait_for("check says which", || {
        let ended = playground.cli(&["check"]);
        (ended.text() + &ended.stderr).contains("not_there cannot be loaded")
    });
    let input = json!({"language": "python", "code": "print(5)"});
    let call = || web.call("core:run-code", &json!({ "arguments": &input }), &[]);
    std::thread::scope(|scope| {
        for call in [(); 8].map(|()| scope.spawn(call)) {
            assert_eq!(is_cold(&call.join().unwrap().json()), 5);
        }
    });
}

/// The files of a call come to a process that waits, before its input and for it alone.
#[test]
fn files_and_context_come_with_the_input() {
    as_everyone("files of ready processes", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.policy("core", "core:run-code", "[ready]\nwhy = \"a test\"\n");
        let script = "import json, os, toolhost\n\
            def told(n):\n    return [n, json.loads(os.environ['TOOL_CONTEXT'])['callId']]\n";
        let handler = json!({"type": "external-script", "language": "python",
            "scriptPath": "probe/main.py", "entryPoint": "told"});
        let more = json!({"execution": {"ready": true, "context": true}, "handler": handler});
        playground.tool_at("esc:probe", "python", "probe/main.py", script, more);
        policy(&playground, "esc:probe", "");
        playground.settle();
        let web = Web::start(&playground, &[]);
        let code = "import glob, json, os\nfound = sorted(glob.glob('/tmp/call/input/*'))\n\
            try:\n    open(found[0], 'a') if found else open('/tmp/call/input/x', 'w')\n    done = True\n\
            except OSError:\n    done = False\n\
            print(json.dumps([json.loads(os.environ.get('TOOL_FILES', '[]')),\n    \
            [open(name).read() for name in found], done]))";
        let request = json!({"arguments": {"language": "python", "code": code}}).to_string();
        let calls = "/v1/tools/core:run-code/calls";
        for text in ["one\n", "two\n"] {
            awaits(&web, "core:run-code", &[], 1);
            let parts = [("request", "", request.as_str()), ("x", "a.csv", text)];
            let answer = web.ask("POST", calls, &[FORM], &form(&parts)).json();
            let wanted = json!([["/tmp/call/input/a.csv"], [text], false]);
            assert_eq!(is_ready(&answer), wanted, "{answer}");
        }
        awaits(&web, "core:run-code", &[], 1);
        let answer = web.ask("POST", calls, &["Content-Type: application/json"], &request);
        assert_eq!(is_ready(&answer.json()), json!([[], [], false]));
        for n in [1, 2] {
            awaits(&web, "esc:probe", &[], 1);
            let answer = called(&web, json!({"n": n}), &[]);
            assert_eq!(is_ready(&answer), json!([n, answer["id"]]), "{answer}");
        }
    });
}

#[test]
fn an_entry_point_is_loaded_before_its_input() {
    for (language, file, script) in [
        (
            "python",
            "main.py",
            "import time, toolhost\nbegan = time.time()\n\
            def waited(n):\n    toolhost.progress(1)\n    return [n, time.time() - began]\n",
        ),
        (
            "nodejs",
            "main.mjs",
            "const began = Date.now();\n\
            export function waited({ n }) { toolhost.progress(1); return [n, (Date.now() - began) / 1000]; }\n",
        ),
    ] {
        if !has(language, 1) {
            continue;
        }
        let playground = Playground::new(Who::ours(), "/var/tmp");
        let handler = json!({"type": "external-script", "language": language,
            "scriptPath": format!("probe/{file}"), "entryPoint": "waited"});
        let more = json!({"execution": {"ready": true}, "handler": handler});
        playground.tool_at(
            "esc:probe",
            language,
            &format!("probe/{file}"),
            script,
            more,
        );
        policy(&playground, "esc:probe", "");
        playground.settle();
        let web = Web::start(&playground, &[]);
        for n in [4, 5] {
            awaits(&web, "esc:probe", &[], 1);
            std::thread::sleep(Duration::from_millis(200));
            let output = is_ready(&called(&web, json!({"n": n}), &[]));
            assert!(
                output[0] == n && output[1].as_f64().unwrap() > 0.1,
                "{language}: {output}"
            );
        }
    }
}

#[test]
fn reports_say_what_may_wait_and_why_it_does_not() {
    let playground = probe(Who::ours(), PROBE, "");
    let text = |arguments: &[&str]| {
        let ended = playground.cli(arguments);
        ended.text() + &ended.stderr
    };
    assert!(text(&["audit", "esc:probe"]).contains("1 started before their calls"));
    assert!(
        text(&["audit", "--who-can", "ready:esc:probe"])
            .contains("esc:probe@1.0.0: each for one call")
    );
    let old = playground.path("state/old.json");
    fs::write(
        &old,
        playground.cli(&["audit", "esc:probe", "--json"]).stdout,
    )
    .unwrap();
    playground.tool("probe", "python", PROBE, json!({}));
    playground.settle();
    let audit = text(&["audit", "esc:probe"]);
    assert!(
        audit.contains("[ready] has no effect: its manifest does not say"),
        "{audit}"
    );
    let new = playground.path("state/new.json");
    fs::write(
        &new,
        playground.cli(&["audit", "esc:probe", "--json"]).stdout,
    )
    .unwrap();
    let [old, new] = [&old, &new].map(|it| it.to_str().unwrap());
    assert!(text(&["diff", new, old]).contains("1 started before their calls"));
    // A tool that may write starts with each call.
    let writes = json!({"execution": {"ready": true}, "securityContext": {"fileAccess": {"allowWrite": ["out/**"]}}});
    playground.tool("probe", "python", PROBE, writes);
    policy(
        &playground,
        "esc:probe",
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n",
    );
    playground.settle();
    let audit = text(&["audit", "esc:probe"]);
    assert!(
        audit.contains("[ready] has no effect: it may write files"),
        "{audit}"
    );
}
