//! Sessions: code of one caller that goes on between its calls, and nobody else's. Each refusal has
//! a control in which the same session goes on.

use crate::http::{Web, caller, tokens, write_callers};
use crate::prelude::*;

const ALLOWED: &str = "sessions = { max = 2, idle_ms = 600_000, why = \"a test\" }\n";

/// The limit of calls that something else is to end.
const LONG: &str = "[limits]\ntimeout_ms = 120_000\n";

fn playground(who: Who, policy: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.policy("core", "core:run-code", policy);
    playground.settle();
    playground
}

/// Runs code in the session of this name.
fn asked(web: &Web, session: &str, code: &str) -> Value {
    let input = json!({"language": "python", "code": code, "session": session});
    web.call("core:run-code", &json!({ "arguments": input }), &[])
        .json()
}

/// As `asked`, where that has an answer.
#[track_caller]
fn ran(web: &Web, session: &str, code: &str) -> Value {
    let answer = asked(web, session, code);
    assert_eq!(answer["success"], true, "{answer}");
    answer["outputData"].clone()
}

/// The session starts empty with this call, and says why.
#[track_caller]
fn starts_empty(web: &Web, session: &str, why: &str) {
    let answer = ran(web, session, "x");
    assert_eq!(answer["error"]["name"], "NameError", "{answer}");
    assert_eq!(answer["session"]["new"], true, "{answer}");
    let because = answer["session"]["endedBecause"].as_str().unwrap_or("");
    assert!(because.contains(why), "{answer}");
    goes_on(web, session);
}

/// The control: the session keeps what it had.
#[track_caller]
fn goes_on(web: &Web, session: &str) {
    ran(web, session, "x = 40");
    let answer = ran(web, session, "x + 2");
    assert_eq!(answer["results"][0]["text"], "42", "{answer}");
    let wanted = json!({"name": session, "new": false});
    assert_eq!(answer["session"], wanted, "{answer}");
}

/// A verb of the command line that asks this server.
fn verb(playground: &Playground, web: &Web, words: &[&str]) -> Ended {
    let mut command = playground.host();
    command.args(words).env("TOOLHOST_HTTP", &web.address);
    finish(command, b"")
}

fn sessions(web: &Web, headers: &[&str]) -> Vec<Value> {
    let answer = web.get("/v1/calls", headers).json();
    answer["sessions"].as_array().unwrap().clone()
}

#[test]
fn a_session_keeps_variables_and_folder_for_its_own_calls() {
    as_everyone("sessions", |who| {
        let playground = playground(who, ALLOWED);
        let web = Web::start(&playground, &[]);
        let first = ran(
            &web,
            "a",
            "import os\nx = 1\nopen('kept', 'w').write('text')\nx + 1",
        );
        assert_eq!(first["results"][0]["text"], "2", "{first}");
        assert_eq!(first["session"], json!({"name": "a", "new": true}));
        let kept = "print(x)\nx, open('kept').read(), os.getcwd(), os.getuid() == 0";
        let second = ran(&web, "a", kept);
        assert_eq!(
            second["results"][0]["text"],
            "(1, 'text', '/tmp/call', False)"
        );
        assert_eq!(second["logs"], json!({"stdout": ["1\n"], "stderr": []}));
        assert_eq!(second["session"], json!({"name": "a", "new": false}));
        assert_eq!(second["executionCount"], 2);
        // Another session, and a call without one, have nothing of it.
        for other in ["b", "A"] {
            let answer = ran(&web, other, "import os\n'x' in globals(), os.listdir('.')");
            let text = answer["results"][0]["text"].as_str().unwrap();
            assert!(
                text.starts_with("(False, ['input', 'output'])")
                    || text.starts_with("(False, ['output', 'input'])"),
                "{answer}"
            );
            let id = sessions(&web, &[])
                .iter()
                .find(|it| it["session"] == other)
                .unwrap()["id"]
                .clone();
            let path = format!("/v1/calls/{}", id.as_str().unwrap());
            assert_eq!(web.ask("DELETE", &path, &[], "").status, 202);
        }
        let bare =
            json!({"language": "python", "code": "import os\nprint(os.path.exists('kept'))"});
        let bare = web
            .call("core:run-code", &json!({ "arguments": bare }), &[])
            .json();
        assert_eq!(bare["outputData"], "False", "{bare}");
    });
}

/// Between its calls nothing of a session runs, and the death of its host ends it.
#[test]
fn a_session_is_stopped_between_its_calls_and_ends_with_its_host() {
    let playground = playground(Who::ours(), ALLOWED);
    let web = Web::start(&playground, &[]);
    let marker = format!("6{}.25", std::process::id());
    let code =
        format!("import subprocess\nx = subprocess.Popen(['/bin/sleep', '{marker}'])\nx.pid");
    ran(&web, "a", &code);
    let stopped = || {
        let all = processes_of(&marker);
        let state = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !all.is_empty() && all.iter().all(|(pid, _)| state(*pid).contains(") T "))
    };
    wait_for("it is stopped", stopped);
    goes_on(&web, "a");
    wait_for("it is stopped again", stopped);
    web.signal(Signal::SIGKILL);
    wait_for("nothing of it is left", || processes_of(&marker).is_empty());
}

#[test]
fn what_is_no_session_is_refused() {
    let playground = playground(Who::ours(), ALLOWED);
    let web = Web::start(&playground, &[]);
    let refused = |more: Value, kind: &str, words: &str| {
        let mut input = json!({"language": "python", "code": "1", "session": "a"});
        let all = input.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        let answer = web
            .call("core:run-code", &json!({ "arguments": input }), &[])
            .json();
        assert_eq!(answer["error"]["type"], kind, "{answer}");
        assert!(answer.to_string().contains(words), "{answer}");
    };
    let invalid = "ParameterValidationError";
    for name in ["", "a b", "../a", "ä", &"a".repeat(65)] {
        refused(json!({ "session": name }), invalid, "session");
    }
    refused(json!({"language": "bun"}), invalid, "Python");
    refused(json!({"inputData": {"n": 1}}), invalid, "inputData");
    ran(&web, &"a".repeat(64), "1");
    ran(&web, "b", "1");
    let answer = asked(&web, "c", "1");
    assert_eq!(answer["error"]["type"], "RateLimitError", "{answer}");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("aaaa, b"),
        "{answer}"
    );
    goes_on(&web, "b");
    // A host that ends with its call keeps none; nor one whose policy says nothing.
    let input = json!({"language": "python", "code": "1", "session": "a"}).to_string();
    let once = playground.call("core:run-code", &input);
    assert!(
        once.text().contains(" serve`") || once.stderr.contains(" serve`"),
        "{once:?}"
    );
    playground.policy("core", "core:run-code", "[limits]\nprocesses = 64\n");
    playground.settle();
    web.signal(Signal::SIGHUP);
    wait_for("it is refused", || {
        asked(&web, "b", "1")["error"]["type"] == "SecurityError"
    });
    let answer = asked(&web, "b", "1");
    assert!(answer.to_string().contains("sessions = { max"), "{answer}");
    wait_for("it is ended", || sessions(&web, &[]).is_empty());
}

/// Whatever ends a session, its next call says so and starts empty.
#[test]
fn a_session_that_ends_says_why_and_starts_empty() {
    let limits = "[limits]\nmemory_bytes = 200_000_000\n";
    let playground = playground(Who::ours(), &format!("{ALLOWED}{limits}"));
    let web = Web::start(&playground, &[]);
    goes_on(&web, "a");
    let id = sessions(&web, &[])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        verb(&playground, &web, &["ps"]).text().matches(&id).count(),
        1
    );
    verb(&playground, &web, &["kill", &id]);
    starts_empty(&web, "a", "on request");
    let answer = asked(&web, "a", "import os\nos._exit(0)");
    assert_eq!(answer["error"]["type"], "ScriptError", "{answer}");
    starts_empty(&web, "a", "its process ended");
    let answer = asked(&web, "a", "y = bytearray(400_000_000)");
    assert_eq!(answer["error"]["type"], "ResourceLimitError", "{answer}");
    starts_empty(&web, "a", "memoryBytes");
    let ignores = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let input = json!({"language": "python", "code": ignores, "session": "a", "timeoutMs": 2000});
    let late = || {
        web.call("core:run-code", &json!({ "arguments": input }), &[])
            .json()
    };
    // Where the machine stood still before it ignored anything, it was interrupted or not begun.
    let is_ended = |it: &Value| it["success"] == false && it["error"]["retryable"] != true;
    let late = (0..4).map(|_| late()).find(is_ended);
    let late = late.expect("it is ended");
    assert_eq!(late["error"]["type"], "TimeoutError", "{late}");
    starts_empty(&web, "a", "time limit");
    let more = ALLOWED.replace("max = 2", "max = 3");
    playground.policy("core", "core:run-code", &format!("{more}{limits}"));
    playground.settle();
    web.signal(Signal::SIGHUP);
    wait_for("it is ended", || sessions(&web, &[]).is_empty());
    starts_empty(&web, "a", "changed");
    let short = ALLOWED.replace("600_000", "1_000");
    playground.policy("core", "core:run-code", &format!("{short}{limits}"));
    playground.settle();
    web.signal(Signal::SIGHUP);
    wait_for("it is ended", || sessions(&web, &[]).is_empty());
    ran(&web, "a", "x = 1");
    wait_for("no call came", || sessions(&web, &[]).is_empty());
    let answer = ran(&web, "a", "1");
    assert!(
        answer.to_string().contains("no call came for 1000 ms"),
        "{answer}"
    );
}

/// A time-out interrupts, and the state stays.
#[test]
fn an_interrupted_session_goes_on() {
    let playground = playground(Who::ours(), &format!("{ALLOWED}{LONG}"));
    let web = Web::start(&playground, &[]);
    for code in [
        "x = 5\nwhile True: pass",
        "x = 5\nimport asyncio\nawait asyncio.sleep(1000)",
    ] {
        let input = json!({"language": "python", "code": code, "session": "a", "timeoutMs": 1000});
        let late = || {
            web.call("core:run-code", &json!({ "arguments": input }), &[])
                .json()
        };
        // Where the machine stood still, it did not begin, or was killed as one that ran on.
        let is_interrupted = |it: &Value| it["outputData"]["error"]["name"] == "TimeoutError";
        let late = (0..4).map(|_| late()).find(is_interrupted);
        let late = late.expect("it is interrupted");
        assert!(!late.to_string().contains(".toolhost"), "{late}");
        let answer = ran(&web, "a", "x");
        assert_eq!(answer["results"][0]["text"], "5", "{answer}");
    }
    // On request, too.
    let id = sessions(&web, &[])[0]["id"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| ran(&web, "a", "import time\ntime.sleep(110)"));
        wait_for("it is interrupted", || {
            verb(&playground, &web, &["kill", "--interrupt", &id]);
            running.is_finished()
        });
        let answer = running.join().unwrap();
        assert_eq!(answer["error"]["name"], "KeyboardInterrupt", "{answer}");
    });
    assert_eq!(ran(&web, "a", "x")["results"][0]["text"], "5");
}

/// Two principals, one of which may act as the other, each have sessions of their own.
#[test]
fn a_name_is_a_session_of_one_principal_and_caller() {
    let playground = playground(Who::ours(), ALLOWED);
    let all = caller("alice", "act_as = [\"bob\"]\n")
        + &caller("bob", "")
        + &caller("root", "role = \"operator\"\n");
    write_callers(&playground, &all);
    let (file, headers) = tokens(&playground, ["alice", "bob", "root!"]);
    let web = Web::start(&playground, &["--token-file", &file]);
    let [alice, bob, root] = headers.each_ref().map(String::as_str);
    let run = |code: &str, header: &str, user: &str| {
        let input = json!({"language": "python", "code": code, "session": "same"});
        let body = json!({ "arguments": input, "user": user });
        let answer = web.call("core:run-code", &body, &[header]).json();
        answer["outputData"]["results"][0]["text"].clone()
    };
    let everybody = [(alice, "alice"), (bob, "bob"), (alice, "bob")];
    for (n, (header, user)) in everybody.iter().enumerate() {
        run(&format!("x = {n}"), header, user);
    }
    for (n, (header, user)) in everybody.iter().enumerate() {
        assert_eq!(run("x", header, user), n.to_string(), "{user}");
    }
    assert_eq!(sessions(&web, &[root]).len(), 3);
    let of_bob = sessions(&web, &[bob]);
    let of_alice = sessions(&web, &[alice]);
    let own = |all: &[Value]| all.iter().find(|it| it["caller"] == "alice").unwrap()["id"].clone();
    let id = own(&of_alice);
    assert!(of_bob.iter().all(|it| it["id"] != id), "{of_bob:?}");
    let path = format!("/v1/calls/{}", id.as_str().unwrap());
    assert_eq!(web.ask("DELETE", &path, &[bob], "").status, 404);
    assert_eq!(web.ask("DELETE", &path, &[alice], "").status, 202);
    assert_eq!(run("'x' in globals()", alice, "alice"), "False");
    assert_eq!(run("x", bob, "bob"), "1", "the control");
}

/// What a session writes to its pipe disturbs itself at most.
#[test]
fn forged_frames_end_their_own_session() {
    let playground = playground(Who::ours(), ALLOWED);
    let web = Web::start(&playground, &[]);
    goes_on(&web, "control");
    let find = "import gc, os, json\nfd = [n for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}') \
        and os.readlink(f'/proc/self/fd/{n}').startswith('pipe:')]\n";
    for frame in [
        "junk\\n",
        "{\"message\":{\"ended\":{\"id\":1}},\"bytes\":1073741824}\\n",
        "{\"message\":{\"ended\":{\"id\":99}},\"bytes\":4}\\nnull",
        "{\"message\":{\"result\":{\"isMainResult\":true}},\"bytes\":3}\\n[1]",
    ] {
        let code = format!(
            "{find}for n in fd:\n    try:\n        os.write(n, b'{frame}')\n    except OSError:\n        pass\n\
            import time\ntime.sleep(60)"
        );
        let answer = asked(&web, "hostile", &code);
        assert_eq!(answer["error"]["type"], "ScriptError", "{answer}");
        goes_on(&web, "control");
    }
    starts_empty(&web, "hostile", "its process ended");
}

/// Each call has the CPU time of a call, however long its session lives.
#[test]
fn every_call_has_its_own_cpu_time() {
    let limits = format!("{LONG}cpu_ms = 3_000\n");
    let playground = playground(Who::ours(), &format!("{ALLOWED}{limits}"));
    let web = Web::start(&playground, &[]);
    let burns = "import time\nend = time.process_time() + 1.5\n\
        while time.process_time() < end: pass\nend";
    for _ in 0..3 {
        ran(&web, "a", burns);
    }
    let answer = asked(&web, "a", &burns.replace("1.5", "60"));
    assert_eq!(answer["error"]["type"], "ResourceLimitError", "{answer}");
    starts_empty(&web, "a", "cpuMs");
}

/// What a cell shows comes in its forms and in order, also where it then fails. What is long or no
/// text is an artifact.
#[test]
fn values_are_shown_in_their_forms() {
    let playground = playground(Who::ours(), ALLOWED);
    let web = Web::start(&playground, &[]);
    let code = "class Table:\n    def __repr__(self): return 'table'\n    \
        def _repr_html_(self): return '<table>'\n    \
        def _repr_mimebundle_(self, include, exclude): return {'application/x-own+json': {'n': 1}}\n\
        class Picture:\n    def _repr_png_(self): return bytes.fromhex('89504e470d0a1a0a0000000d49484452')\n\
        display(Picture())\nopen('output/own.txt', 'w').write('own')\nprint('y' * 100_000)\nTable()";
    let answer = asked(&web, "a", code);
    let results = &answer["outputData"]["results"];
    let table = json!({"text": "table", "html": "<table>", "extra": {"application/x-own+json": {"n": 1}},
        "isMainResult": true});
    assert_eq!(results[1], table, "{answer}");
    assert_eq!(results[0]["png"], "result-1-1.png", "{answer}");
    let stdout = answer["outputData"]["logs"]["stdout"][0].as_str().unwrap();
    assert!(
        stdout.ends_with("[… 100001 bytes in all: stdout-1.txt]"),
        "{stdout}"
    );
    let artifacts = |answer: &Value| -> Vec<(Value, Value)> {
        let all = answer["artifacts"].as_array().unwrap().iter();
        all.map(|it| (it["name"].clone(), it["mediaType"].clone()))
            .collect()
    };
    let wanted = [
        ("result-1-1.png", "image/png"),
        ("stdout-1.txt", "text/plain"),
        ("own.txt", "text/plain"),
    ];
    let wanted: Vec<_> = wanted
        .iter()
        .map(|(name, kind)| (json!(name), json!(kind)))
        .collect();
    assert_eq!(artifacts(&answer), wanted, "{answer}");
    // A file that does not change is no result of the next call.
    let answer = asked(&web, "a", "open('output/own.txt').read()");
    assert_eq!(
        answer["outputData"]["results"][0]["text"], "'own'",
        "{answer}"
    );
    assert_eq!(artifacts(&answer), [], "{answer}");
    let answer = asked(
        &web,
        "a",
        "open('output/own.txt', 'a').write('2')\ndisplay('before')\ndef f(): 1 / 0\nf()",
    );
    assert_eq!(artifacts(&answer).len(), 1, "{answer}");
    let data = &answer["outputData"];
    assert_eq!(data["results"][0]["text"], "'before'", "{answer}");
    assert_eq!(data["error"]["name"], "ZeroDivisionError", "{answer}");
    let traceback = data["error"]["traceback"].as_str().unwrap();
    assert!(
        traceback.contains("in f") && !traceback.contains(".toolhost"),
        "{traceback}"
    );
}

/// Whether a call in the session runs now.
fn is_running(web: &Web, headers: &[&str], session: &str) -> bool {
    let all = sessions(web, headers);
    all.iter()
        .any(|it| it["session"] == session && it["isRunning"] == true)
}

fn interrupt(web: &Web, headers: &[&str], session: &str) {
    let all = sessions(web, headers);
    let id = all.iter().find(|it| it["session"] == session).unwrap()["id"].clone();
    let path = format!("/v1/calls/{}/interrupt", id.as_str().unwrap());
    assert_eq!(web.ask("POST", &path, headers, "").status, 202);
}

/// A second call waits inside its own time, and takes no slot from others.
#[test]
fn calls_of_one_session_take_turns() {
    let playground = playground(Who::ours(), &format!("{ALLOWED}{LONG}"));
    write_callers(&playground, &caller("alice", "at_once = 2\n"));
    let (web, [alice]) = Web::for_callers(&playground, ["alice"]);
    let alice = &[alice.as_str()][..];
    let call = &|session: Option<&str>, code: &str, ms: u64| {
        let mut input = json!({"language": "python", "code": code, "timeoutMs": ms});
        if let Some(name) = session {
            input["session"] = name.into();
        }
        let body = json!({ "arguments": input });
        web.call("core:run-code", &body, alice).json()
    };
    std::thread::scope(|scope| {
        let marker = format!("5{}.25", std::process::id());
        let sleeps =
            format!("x = 1\nimport subprocess\nsubprocess.run(['/bin/sleep', '{marker}'])");
        let first = scope.spawn(move || call(Some("a"), &sleeps, 110_000));
        wait_for("the first runs", || !processes_of(&marker).is_empty());
        wait_for("one that waited for its turn is told so", || {
            let short = call(Some("a"), "x", 500);
            assert_eq!(short["error"]["type"], "TimeoutError", "{short}");
            short.to_string().contains("session still runs")
        });
        let waits: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| call(Some("a"), "x += 1\nx", 110_000)))
            .collect();
        wait_for("three wait", || {
            let all = web.calls(alice);
            let waiting = all.iter().filter(|it| it["phase"] == "waiting");
            waiting.count() == 3
        });
        // The control: the second slot is free.
        let other = call(None, "print(5)", 100_000);
        assert_eq!(other["outputData"], 5, "{other}");
        assert!(!first.is_finished() && waits.iter().all(|it| !it.is_finished()));
        interrupt(&web, alice, "a");
        let first = first.join().unwrap();
        assert_eq!(first["outputData"]["error"]["name"], "KeyboardInterrupt");
        let waited = waits.into_iter().map(|it| it.join().unwrap());
        let mut shown: Vec<_> = waited
            .inspect(|it| assert_eq!(it["outputData"]["session"]["new"], false, "{it}"))
            .map(|it| it["outputData"]["results"][0]["text"].clone())
            .collect();
        shown.sort_by_key(Value::to_string);
        assert_eq!(json!(shown), json!(["2", "3", "4"]));
    });
    // Those that wait while a session is ended start another one.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call(Some("a"), "import time\ntime.sleep(100)", 110_000));
        wait_for("the first runs", || is_running(&web, alice, "a"));
        let second = scope.spawn(|| call(Some("a"), "x", 110_000));
        wait_for("the second waits", || {
            let all = web.calls(alice);
            all.iter().any(|it| it["phase"] == "waiting")
        });
        let id = sessions(&web, alice)[0]["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/calls/{id}");
        assert_eq!(web.ask("DELETE", &path, alice, "").status, 202);
        assert_eq!(first.join().unwrap()["error"]["type"], "CancelledError");
        let second = second.join().unwrap();
        let session = json!({"name": "a", "new": true, "endedBecause": "it was ended on request"});
        assert_eq!(second["outputData"]["session"], session, "{second}");
    });
}

/// A client that leaves interrupts its cell, and the session goes on.
#[test]
fn a_cancelled_call_interrupts_its_cell() {
    let playground = playground(Who::ours(), &format!("{ALLOWED}{LONG}"));
    let web = Web::start(&playground, &[]);
    let body = |code: &str| {
        let input =
            json!({"language": "python", "code": code, "session": "a", "timeoutMs": 100_000});
        json!({ "arguments": input }).to_string()
    };
    let path = "/v1/tools/core:run-code/calls";
    let marker = format!("9{}.25", std::process::id());
    let runs = |marker: &str| !processes_of(marker).is_empty();
    let sleeps = format!(
        "x = 7\nopen('output/left', 'w').write('text')\nimport subprocess\n\
        subprocess.run(['/bin/sleep', '{marker}'])"
    );
    ran(&web, "a", "open('output/taken', 'w').write('text')");
    let connection = web.send("POST", path, &[], &body(&sleeps));
    wait_for("it runs", || runs(&marker));
    drop(connection);
    wait_for("it is interrupted", || !is_running(&web, &[], "a"));
    assert!(!runs(&marker));
    // What it left goes to the next call, and nothing twice.
    let next = asked(&web, "a", "x");
    assert_eq!(next["outputData"]["results"][0]["text"], "7", "{next}");
    let artifacts = next["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), 1, "{next}");
    assert_eq!(artifacts[0]["name"], "left", "{next}");
    let connection = web.send("POST", path, &[], &body(&sleeps));
    wait_for("it runs", || runs(&marker));
    let calls = web.calls(&[]);
    let open = calls.iter().find(|it| it["phase"] == "running").unwrap();
    let call = format!("/v1/calls/{}", open["id"].as_str().unwrap());
    assert_eq!(web.ask("DELETE", &call, &[], "").status, 202);
    assert!(crate::http::rest(connection).contains("CancelledError"));
    let answer = ran(&web, "a", "x + 1");
    assert_eq!(answer["results"][0]["text"], "8");
    assert_eq!(answer["session"], json!({"name": "a", "new": false}));
    // One that does not let itself be interrupted is killed.
    let ignores = format!(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
        subprocess.Popen(['/bin/sleep', '{marker}'])\nwhile True: pass"
    );
    let connection = web.send("POST", path, &[], &body(&ignores));
    wait_for("it runs", || runs(&marker));
    drop(connection);
    wait_for("it is ended", || sessions(&web, &[]).is_empty());
    wait_for("nothing of it is left", || !runs(&marker));
    starts_empty(&web, "a", "cancelled and ran on");
}

/// Each cell has the tools, the files and the context of its own call.
#[test]
fn each_cell_has_what_its_call_brings() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, sys\nprint(json.dumps(json.load(sys.stdin).get('n', 0) + 1))\n";
    let number =
        json!({"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}});
    playground.tool_at(
        "data:query",
        "python",
        "data/query/main.py",
        script,
        json!({"parameters": number}),
    );
    playground.tool_at(
        "other:query",
        "python",
        "other/query/main.py",
        script,
        json!({}),
    );
    let calls = "[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }]\n";
    playground.policy("core", "core:run-code", &format!("{ALLOWED}{calls}"));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let call = |more: Value, code: &str| {
        let mut input = json!({"language": "python", "code": code, "session": "a"});
        input
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        web.call("core:run-code", &json!({ "arguments": input }), &[])
            .json()
    };
    let text = |more: Value, code: &str| {
        let answer = call(more, code);
        let data = &answer["outputData"];
        let shown = data["results"][0]["text"].as_str();
        shown.map_or_else(|| panic!("{answer}"), str::to_owned)
    };
    let tools = || json!({"tools": ["data:query"]});
    let all = "import asyncio, toolhost\nx = await data_query(n=1)\nasync def ask(n): return await data_query(n=n)\n\
        y = await asyncio.gather(*[ask(n) for n in range(20)])\n\
        [x, y == list(range(1, 21)), await tools.call('data:query', {'n': 4}), toolhost.call('data:query', n=6)]";
    assert_eq!(text(tools(), all), "[2, True, 5, 7]");
    let stubs = "import os\n'async def data_query(*, n' in open(os.environ['TOOL_STUBS']).read()";
    assert_eq!(text(tools(), stubs), "True");
    let tries = "import os\ntry:\n    shown = await ask(1)\nexcept toolhost.ToolError as e:\n    shown = e.type\n\
        [shown, 'TOOL_STUBS' in os.environ]";
    assert_eq!(text(tools(), tries), "[2, True]");
    // What an earlier cell was allowed, a later one is not.
    assert_eq!(text(json!({}), tries), "['SecurityError', False]");
    let answer = call(tools(), "await tools.call('other:query')");
    let error = &answer["outputData"]["error"];
    assert_eq!(error["name"], "ToolError", "{answer}");
    let traceback = error["traceback"].as_str().unwrap();
    assert!(
        traceback.contains("<cell 5>") && !traceback.contains(".toolhost"),
        "{traceback}"
    );
    let answer = call(json!({"tools": ["other:query"]}), "1");
    assert_eq!(answer["error"]["type"], "SecurityError", "{answer}");
    // A frame that asks for a tool without any being offered gets no answer, and goes no further.
    let forged = "import os\nfd = [n for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}') and \
        os.readlink(f'/proc/self/fd/{n}').startswith('pipe:')]\n\
        frame = b'{\"message\":{\"call\":{\"id\":900,\"tool\":\"data:query\"}},\"bytes\":2}\\n{}'\n\
        for n in fd:\n    try: os.write(n, frame)\n    except OSError: pass\n'sent'";
    assert_eq!(text(json!({}), forged), "'sent'");
    // A call that is still open when its cell ends is over.
    let late = "slow = asyncio.ensure_future(ask(1))\nawait asyncio.sleep(0)\n1";
    assert_eq!(text(tools(), late), "1");
    let tries =
        "try:\n    shown = await slow\nexcept toolhost.ToolError as e:\n    shown = e.type\nshown";
    assert_eq!(text(tools(), tries), "'CancelledError'");
    let reads = "import json\n[open(path).read() for path in json.loads(os.environ['TOOL_FILES'])], os.listdir('input')";
    let file = json!({"files": ["data:text/plain;name=a.txt;base64,YWJj"]});
    assert_eq!(text(file, reads), "(['abc'], ['a.txt'])");
    let file = json!({"files": ["data:text/plain;name=a.txt;base64,ZGVm", "data:text/plain;name=b.txt;base64,Zw=="]});
    let sorted = reads.replace("os.listdir('input')", "sorted(os.listdir('input'))");
    assert_eq!(text(file, &sorted), "(['def', 'g'], ['a.txt', 'b.txt'])");
    let none = text(json!({}), reads);
    assert!(none.starts_with("([], "), "{none}");
    let records = playground.records();
    let nested = records.iter().filter(|it| it["tool"] == "data:query");
    assert!(nested.clone().count() >= 24);
    assert!(nested.clone().all(|it| it["parent"].is_string()));
}

/// What a session leaves running is stopped until its next call, and does not run on.
#[test]
fn a_child_that_runs_on_is_stopped_between_calls() {
    as_everyone("a session's child", |who| {
        let playground = playground(who, &format!("{ALLOWED}{LONG}"));
        let web = Web::start(&playground, &[]);
        let marker = format!("8{}.{}", std::process::id(), who.uid().unwrap_or(0));
        // It leaves the group and the terminal of its parent, and is nobody's child.
        let ticks = format!(
            "import subprocess, sys, time\n\
            code = '''import time\nwhile True:\n    open(\"ticks\", \"a\").write(f\"{{time.monotonic()}}\\\\n\")\n    \
            time.sleep(0.01)\n'''\n\
            subprocess.run(['/bin/sh', '-c', '\"$1\" -c \"$2\" {marker} &', 'sh', sys.executable, code], \
            start_new_session=True)\n\
            def gap(since):\n    import time\n    now = time.monotonic()\n    \
            all = [since] + [float(it) for it in open('ticks').read().split()] + [now]\n    \
            all = sorted(it for it in all if since <= it <= now)\n    \
            return max(b - a for a, b in zip(all, all[1:]))\n\
            while True:\n    try:\n        if open('ticks').read(): break\n    except OSError: pass\n\
            1"
        );
        ran(&web, "a", &ticks);
        let seconds = |text: &Value| text.as_str().unwrap().parse::<f64>().unwrap();
        // The control: it runs while a call does, unless the machine stood still.
        let runs = "began = time.monotonic()\ntime.sleep(4)\ngap(began)";
        let control = (0..4).any(|_| seconds(&ran(&web, "a", runs)["results"][0]["text"]) < 3.5);
        assert!(control, "the control");
        let all = || processes_of(&marker);
        let state = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        wait_for("it is stopped", || {
            !all().is_empty() && all().iter().all(|(pid, _)| state(*pid).contains(") T "))
        });
        let began = "time.monotonic()";
        let before = ran(&web, "a", began)["results"][0]["text"].clone();
        wait_for("it is stopped", || {
            all().iter().all(|(pid, _)| state(*pid).contains(") T "))
        });
        std::thread::sleep(Duration::from_secs(4));
        let since = before.as_str().unwrap();
        let gap = ran(&web, "a", &format!("gap({since})"))["results"][0]["text"].clone();
        assert!(seconds(&gap) > 3.5, "{gap}");
    });
}

/// A host that is told to end does not wait for sessions that wait, and leaves nothing of them.
#[test]
fn a_stopped_session_ends_at_once_with_a_host_that_ends() {
    let playground = playground(Who::ours(), ALLOWED);
    let mut web = Web::start(&playground, &[]);
    let marker = format!("7{}.25", std::process::id());
    let code = format!("import subprocess\nx = subprocess.Popen(['/bin/sleep', '{marker}'])\n1");
    ran(&web, "a", &code);
    assert!(!processes_of(&marker).is_empty(), "the control");
    web.signal(Signal::SIGTERM);
    // A call would have time to end.
    assert_eq!(web.ended(Duration::from_secs(9)), Some(143));
    wait_for("nothing of it is left", || processes_of(&marker).is_empty());
    playground.assert_quiet("the session");
}

/// Memory and scratch count over the life of a session; its answers are bounded one by one.
#[test]
fn what_a_session_keeps_is_bounded() {
    let limits =
        "[limits]\nmemory_bytes = 300_000_000\nscratch_bytes = 50_000_000\noutput_bytes = 50_000\n";
    let playground = playground(Who::ours(), &format!("{ALLOWED}{limits}"));
    let web = Web::start(&playground, &[]);
    let fills = "with open('big', 'ab') as file: file.write(bytes(20_000_000))\nimport os\nos.path.getsize('big')";
    for size in ["20000000", "40000000"] {
        assert_eq!(ran(&web, "a", fills)["results"][0]["text"], size);
    }
    let full = ran(&web, "a", fills);
    assert_eq!(full["error"]["name"], "OSError", "{full}");
    let again = fills.replace("'ab'", "'wb'");
    assert_eq!(
        ran(&web, "a", &again)["results"][0]["text"],
        "20000000",
        "the control"
    );
    // The end of what is too long is lost, and the answer says how much there was.
    let answer = asked(&web, "a", "print('y' * 99_999)");
    let stdout = answer["outputData"]["logs"]["stdout"][0].as_str().unwrap();
    assert!(
        stdout.ends_with("[… 100000 bytes in all, the first 50000: stdout-5.txt]"),
        "{answer}"
    );
    assert_eq!(answer["artifacts"][0]["bytes"], 50_000, "{answer}");
    let long = asked(&web, "a", "'y' * 90_000");
    let text = long["outputData"]["results"][0]["text"].as_str().unwrap();
    assert!(text.contains("90002 characters"), "{text}");
    let takes =
        "kept = globals().get('kept', [])\nkept.append(bytearray(b'x') * 60_000_000)\nlen(kept)";
    let gives = "kept.clear()\n0";
    for _ in 0..4 {
        ran(&web, "a", takes);
        ran(&web, "a", gives);
    }
    assert_eq!(ran(&web, "a", "1")["session"]["new"], false, "the control");
    let ended = (0..6)
        .map(|_| asked(&web, "a", takes))
        .find(|it| it["success"] == false);
    let ended = ended.expect("its memory is bounded");
    assert_eq!(ended["error"]["type"], "ResourceLimitError", "{ended}");
    starts_empty(&web, "a", "memoryBytes");
}

/// A session ends with the right of its caller to call its tool, and with the tool.
#[test]
fn a_session_ends_with_what_allowed_it() {
    let playground = playground(Who::ours(), ALLOWED);
    let all = caller("alice", "") + &caller("bob", "");
    write_callers(&playground, &all);
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let run = |code: &str, header: &str| {
        let input = json!({"language": "python", "code": code, "session": "same"});
        web.call("core:run-code", &json!({ "arguments": input }), &[header])
            .json()
    };
    let text =
        |code: &str, header: &str| run(code, header)["outputData"]["results"][0]["text"].clone();
    text("x = 1", &alice);
    text("x = 2", &bob);
    let withheld = all.replacen("tools = [\"*\"]", "tools = [\"esc:*\"]", 1);
    // The file of tokens is for the host alone, and stays so.
    let rewrite = |text: &str| {
        let file = playground.path("sandbox-policies/callers.policy.toml");
        fs::write(file, text).unwrap();
        web.signal(Signal::SIGHUP);
    };
    rewrite(&withheld);
    wait_for("that of alice is ended", || {
        sessions(&web, &[&alice]).is_empty()
    });
    assert_eq!(run("x", &alice)["error"]["type"], "ToolNotFoundError");
    assert_eq!(text("x", &bob), "2", "the control");
    rewrite(&all);
    wait_for("alice may call again", || {
        run("1", &alice)["success"] == true
    });
    assert_eq!(text("'x' in globals()", &alice), "False");
    // One that runs while its policy changes is ended once it waits.
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run("import time\ntime.sleep(100)", &bob));
        wait_for("it runs", || is_running(&web, &[&bob], "same"));
        let more = ALLOWED.replace("max = 2", "max = 3");
        playground.policy("core", "core:run-code", &more);
        web.signal(Signal::SIGHUP);
        // It may have ended, and its session with it, before the answer has come.
        wait_for("the policy is read", || {
            for it in sessions(&web, &[&bob]) {
                let path = format!("/v1/calls/{}/interrupt", it["id"].as_str().unwrap());
                web.ask("POST", &path, &[&bob], "");
            }
            running.is_finished()
        });
    });
    wait_for("its session is ended", || {
        sessions(&web, &[&bob]).is_empty()
    });
    let answer = run("x", &bob);
    assert_eq!(
        answer["outputData"]["error"]["name"], "NameError",
        "{answer}"
    );
    let because = answer["outputData"]["session"]["endedBecause"].to_string();
    assert!(because.contains("changed"), "{answer}");
}

/// Who may keep a session is in every report, and the line that allows one.
#[test]
fn reports_say_what_sessions_allow() {
    let playground = playground(Who::ours(), "");
    let said = |words: &[&str]| {
        let ended = playground.cli(words);
        format!("{}{}", ended.text(), ended.stderr)
    };
    let line = "sessions = { max = 4, idle_ms = 600_000, why = \"…\" }";
    let check = said(&["check"]);
    assert!(check.contains(line), "{check}");
    let can = &["audit", "--who-can", "session:core:run-code"];
    let nobody = said(can);
    assert!(
        !nobody.contains("may keep") && !nobody.contains("a test"),
        "{nobody}"
    );
    let save = |name: &str| {
        let report = playground.cli(&["audit", "core:run-code", "--json"]);
        let path = playground.path(name);
        fs::write(&path, &report.stdout).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let before = save("before.json");
    playground.policy("core", "core:run-code", ALLOWED);
    playground.settle();
    assert!(!said(&["check"]).contains(line));
    let audit = said(&["audit", "core:run-code"]);
    let weaker = "2 sessions of each caller, whose earlier code can disturb its later code";
    assert!(audit.contains(weaker), "{audit}");
    let somebody = said(can);
    assert!(
        somebody.contains("core:run-code") && somebody.contains("a test"),
        "{somebody}"
    );
    let after = save("after.json");
    let diff = said(&["diff", &before, &after]);
    assert!(diff.contains("2 sessions of each caller"), "{diff}");
    assert!(
        playground.cli(&["diff", &after, &after]).text().is_empty()
            || !said(&["diff", &after, &after]).contains("sessions")
    );
}

/// JavaScript goes on as if all was typed at one prompt.
#[test]
fn node_has_sessions_too() {
    as_ours_with("nodejs", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import json, sys\nprint(json.dumps(json.load(sys.stdin).get('n', 0) + 1))\n";
        let number =
            json!({"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}});
        playground.tool_at(
            "data:query",
            "python",
            "data/query/main.py",
            script,
            json!({"parameters": number}),
        );
        let calls = "[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }]\n";
        playground.policy("core", "core:run-code", &format!("{ALLOWED}{calls}"));
        playground.settle();
        let web = Web::start(&playground, &[]);
        let call = |more: Value, code: &str| {
            let mut input = json!({"language": "nodejs", "code": code, "session": "a"});
            input
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let answer = web
                .call("core:run-code", &json!({ "arguments": input }), &[])
                .json();
            assert_eq!(answer["success"], true, "{answer}");
            answer["outputData"].clone()
        };
        let shows = |more: Value, code: &str, wanted: &str| {
            let answer = call(more, code);
            assert_eq!(answer["results"][0]["text"], wanted, "{answer}");
        };
        let none = || json!({});
        let answer = call(
            none(),
            "const x = 40;\nconsole.log('printed'); display({ a: 1 }); x + 2",
        );
        assert_eq!(answer["logs"]["stdout"], json!(["printed\n"]), "{answer}");
        let results = json!([{"text": "{ a: 1 }", "isMainResult": false}, {"text": "42", "isMainResult": true}]);
        assert_eq!(answer["results"], results, "{answer}");
        shows(
            none(),
            "const x = await Promise.resolve(5);\nconst fs = require('node:fs');\n[x, process.cwd()]",
            "[ 5, '/tmp/call' ]",
        );
        let answer = call(none(), "function fails() { null.x; }\nfails();");
        let error = &answer["error"];
        assert_eq!(error["name"], "TypeError", "{answer}");
        let frames: Vec<_> = error["traceback"]
            .as_str()
            .unwrap()
            .lines()
            .skip(1)
            .collect();
        assert_eq!(
            frames,
            ["    at fails (cell-3:1:25)", "    at cell-3:2:1"],
            "{answer}"
        );
        shows(none(), "x", "5");
        // Python of this name is another session.
        let python = ran(&web, "a", "'x' in globals()");
        assert_eq!(python["results"][0]["text"], "False", "{python}");
        let file = json!({"files": ["data:text/plain;name=a.txt;base64,YWJj"]});
        shows(
            file,
            "JSON.parse(process.env.TOOL_FILES).map((it) => `${fs.readFileSync(it)}`)",
            "[ 'abc' ]",
        );
        shows(
            none(),
            "[process.env.TOOL_FILES, fs.readdirSync('input')]",
            "[ '[]', [] ]",
        );
        let tools = || json!({"tools": ["data:query"]});
        let all = "await Promise.all([1, 2].map((n) => data_query({ n })))";
        shows(tools(), all, "[ 2, 3 ]");
        shows(
            tools(),
            "fs.readFileSync(process.env.TOOL_STUBS).includes('declare function data_query')",
            "true",
        );
        shows(
            none(),
            "await data_query({ n: 1 }).catch((e) => e.type)",
            "'SecurityError'",
        );
        // A time-out interrupts code that computes, and code that awaits.
        for code in [
            "while (true) {}",
            "await new Promise(() => {})",
            "await null;\nwhile (true) {}",
        ] {
            let late = call(json!({"timeoutMs": 1000}), code);
            assert_eq!(late["error"]["name"], "TimeoutError", "{late}");
            shows(none(), "x", "5");
        }
        let answer = call(
            none(),
            "setTimeout(() => { throw new Error('later'); }, 1);\nawait new Promise((it) => setTimeout(it, 500));\nx",
        );
        assert_eq!(answer["results"][0]["text"], "5", "{answer}");
        assert!(
            answer["logs"]["stderr"][0]
                .as_str()
                .unwrap()
                .starts_with("Error: later"),
            "{answer}"
        );
    });
}

/// A tool of one's own runs code in sessions, too: with the context of each call, and not where the
/// code could keep a secret.
#[test]
fn other_tools_have_sessions() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let tool = |more: Value, policy: &str| {
        let handler = json!({"type": "service-method", "serviceName": "ExternalScriptExecutionService",
            "methodName": "runCode"});
        let text = manifest("esc:code", handler, more).to_string();
        fs::write(playground.path("tool-defs/code.tool.json"), text).unwrap();
        playground.policy("code", "esc:code", &format!("{ALLOWED}{policy}"));
        playground.settle();
    };
    let run = |web: &Web, code: &str| {
        let input = json!({"language": "python", "code": code, "session": "a"});
        web.call("esc:code", &json!({ "arguments": input }), &[])
            .json()
    };
    tool(json!({"execution": {"context": true}}), "");
    let web = Web::start(&playground, &[]);
    let reads = "import json, os\njson.loads(os.environ['TOOL_CONTEXT'])['callId']";
    for _ in 0..2 {
        let answer = run(&web, reads);
        let shown = answer["outputData"]["results"][0]["text"].as_str().unwrap();
        assert_eq!(shown.trim_matches('\''), answer["id"], "{answer}");
    }
    drop(web);
    let asks = json!({"securityContext": {"requiredCapabilities": ["secret:API_KEY"]}});
    let secret =
        "[secrets]\ngrant = [{ name = \"API_KEY\", from = \"file:api.key\", why = \"a test\" }]\n";
    tool(asks, secret);
    crate::http::private(
        &playground,
        "sandbox-policies/api.key",
        "a-secret-value-0123456789",
    );
    let web = Web::start(&playground, &[]);
    let answer = run(&web, "1");
    assert_eq!(answer["error"]["type"], "SecurityError", "{answer}");
    let audit = playground.cli(&["audit", "esc:code"]).text();
    assert!(
        audit.contains("sessions has no effect: a variable holds a secret"),
        "{audit}"
    );
    // The control: it runs without a session.
    let input =
        json!({"language": "python", "code": "import os\nprint(len(os.environ['API_KEY']))"});
    let answer = web
        .call("esc:code", &json!({ "arguments": input }), &[])
        .json();
    assert_eq!(answer["outputData"], 25, "{answer}");
}

/// Over MCP, too: a second call waits, and what is cancelled leaves its session whole.
#[test]
fn a_cancelled_request_leaves_its_session_whole() {
    let playground = playground(Who::ours(), &format!("{ALLOWED}{LONG}"));
    let mut server = Server::start(&playground);
    let input = |code: &str| json!({"language": "python", "session": "a", "code": code, "timeoutMs": 100_000});
    server.called("core:run-code", input("x = 3"));
    let sleeps = server.call("core:run-code", input("import time\ntime.sleep(90)"));
    let waits = server.call("core:run-code", input("x"));
    let cancel = json!({"requestId": sleeps});
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));
    let answer = server.answers(&[waits]).remove(&waits).unwrap();
    let data = &answer["result"]["structuredContent"]["outputData"];
    assert_eq!(data["results"][0]["text"], "3", "{answer}");
    assert_eq!(
        data["session"],
        json!({"name": "a", "new": false}),
        "{answer}"
    );
}
