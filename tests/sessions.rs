//! Sessions: code of one caller that goes on between its calls, and nobody else's. Each refusal has
//! a control in which the same session goes on.

use crate::http::{Web, caller, tokens, write_callers};
use crate::prelude::*;

const ALLOWED: &str = "sessions = { max = 2, idle_ms = 600_000, why = \"a test\" }\n";

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
    refused(json!({"language": "nodejs"}), invalid, "Python");
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
        once.text().contains("toolhost serve") || once.stderr.contains("toolhost serve"),
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
    let late = web
        .call("core:run-code", &json!({ "arguments": input }), &[])
        .json();
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
    let playground = playground(Who::ours(), ALLOWED);
    let web = Web::start(&playground, &[]);
    for code in [
        "x = 5\nwhile True: pass",
        "import asyncio\nawait asyncio.sleep(1000)",
    ] {
        let input = json!({"language": "python", "code": code, "session": "a", "timeoutMs": 1000});
        let late = web
            .call("core:run-code", &json!({ "arguments": input }), &[])
            .json();
        assert_eq!(
            late["outputData"]["error"]["name"], "TimeoutError",
            "{late}"
        );
        assert!(!late.to_string().contains(".toolhost"), "{late}");
        let answer = ran(&web, "a", "x");
        assert_eq!(answer["results"][0]["text"], "5", "{answer}");
    }
    // On request, too.
    let id = sessions(&web, &[])[0]["id"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| ran(&web, "a", "import time\ntime.sleep(25)"));
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
    let limits = "[limits]\ncpu_ms = 3_000\n";
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
