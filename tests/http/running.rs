//! What runs: one's own calls, everybody's for operators, the verbs of the command line, metrics.

use super::mcp::SLEEPER;
use super::{Web, adder, caller, certified, private, sleeper, token, token_of, write_callers};
use crate::prelude::*;
use std::thread::JoinHandle;
use toolhost::base::files;

#[test]
fn a_call_is_seen_and_ended_by_its_caller_and_by_operators_alone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    sleeper(&playground);
    let (web, [alice, bob, ops]) = Web::for_callers(&playground, ["alice", "bob", "ops!"]);
    let asleep = || {
        let stream = web.send("POST", "/v1/tools/esc:sleep/calls", &[&alice], "{}");
        playground.runs(SLEEPER, 1);
        stream
    };
    let open = |caller: &str| -> Vec<Value> {
        let calls = web.get("/v1/calls", &[caller]).json()["calls"].as_array().unwrap().clone();
        calls.into_iter().filter(|call| call["phase"] == "running").collect()
    };
    let stream = asleep();
    wait_for("it runs", || open(&alice).len() == 1);
    let call = open(&alice)[0].clone();
    assert_eq!((&call["caller"], &call["tool"]), (&json!("alice"), &json!("esc:sleep@1.0.0")));
    let path = format!("/v1/calls/{}", call["id"].as_str().unwrap());
    // To others it is not there, by any word.
    for (method, word) in [("GET", "no such call"), ("DELETE", "no such open call")] {
        let absent = web.ask(method, "/v1/calls/00000000-0000-7000-8000-000000000000", &[&bob], "");
        assert!(absent.body.contains(word) && absent.body.contains("ToolNotFoundError"), "{absent:?}");
        let other = web.ask(method, &path, &[&bob], "");
        assert_eq!((other.status, &other.body), (404, &absent.body));
    }
    assert!(open(&bob).is_empty() && open(&ops).len() == 1);
    assert_eq!(web.ask("DELETE", &path, &[&alice], "").status, 202);
    let answer = String::from_utf8(super::exchanged(stream, b"")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("CancelledError"), "{answer}");
    assert_eq!(web.get(&path, &[&alice]).json()["outcome"], "CancelledError");
    assert_eq!(web.ask("DELETE", &path, &[&alice], "").status, 404, "it is not open any more");
    // The same from the command line, as an operator.
    let stream = asleep();
    wait_for("it runs", || open(&alice).len() == 1);
    let id = open(&alice)[0]["id"].as_str().unwrap().to_owned();
    let verb = |words: &[&str], token: &str| {
        let mut command = playground.host();
        command.args(words).env("TOOLHOST_HTTP", &web.address).env("TOOLHOST_TOKEN", token);
        finish(command, b"")
    };
    let [alices, operators] = [&alice, &ops].map(|header| token_of(header));
    let seen = verb(&["ps"], operators).text();
    assert!(seen.contains(&id) && seen.contains("alice") && seen.contains("running"), "{seen}");
    assert_eq!(verb(&["ps", "--json"], operators).out[0]["id"], json!(id));
    assert_eq!(verb(&["status", "--json"], operators).out["running"], 1);
    let refused = verb(&["status"], alices);
    assert!(refused.code == Some(4) && refused.stderr.contains("for operators of the host"), "{refused:?}");
    assert_eq!(verb(&["kill", "../../healthz"], operators).code, Some(2));
    assert_eq!(verb(&["kill", &id], operators).code, Some(0));
    let answer = String::from_utf8(super::exchanged(stream, b"")).unwrap();
    assert!(answer.contains("CancelledError"), "{answer}");
    assert!(verb(&["ps"], operators).text().contains("No call runs."));
    let nobody = playground.cli(&["ps", "--http", "127.0.0.1:1"]);
    assert!(nobody.code == Some(4) && nobody.stderr.contains("is `serve --http` running there?"), "{nobody:?}");
}

/// A listener of this user, which answers once with these bytes; what it was sent.
fn impostor(uid: u32, answer: &'static [u8]) -> (String, JoinHandle<Vec<u8>>) {
    let listener = files::as_owner((uid, uid), || TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = files::as_owner((uid, uid), || listener.accept()).unwrap();
        let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            heard.extend(&piece[..length]);
            stream.write_all(answer).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        heard
    });
    (address, heard)
}

#[test]
fn a_token_goes_to_no_other_user_and_not_in_the_clear() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (made, line) = token(&playground, "ops", &["--operator"]);
    let verb = |words: &[&str]| {
        let mut command = playground.host();
        command.args(words).env("TOOLHOST_TOKEN", &made).env("SSL_CERT_FILE", playground.path("state/cert.pem"));
        finish(command, b"")
    };
    let own = playground.who.uid().unwrap_or(0);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    for words in [&["ps"] as &[&str], &["status"], &["approvals"], &["kill", "00000000-0000-7000-8000-000000000000"]] {
        if is_root() {
            let (address, heard) = impostor(12399, answer);
            let ended = verb(&[words, &["--http", &address]].concat());
            assert!(ended.code == Some(4) && ended.stderr.contains("another user (uid 12399) listens"), "{ended:?}");
            assert_eq!(String::from_utf8_lossy(&heard.join().unwrap()), "");
        }
        // The control: one's own listener is sent the token, and its answer is not taken for a server's.
        let (address, heard) = impostor(own, answer);
        let ended = verb(&[words, &["--http", &address]].concat());
        assert!(ended.code == Some(4) && ended.stderr.contains("is not a toolhost server"), "{ended:?}");
        assert!(String::from_utf8_lossy(&heard.join().unwrap()).contains(&made));
        let far = verb(&[words, &["--http", "192.0.2.1:8787"]].concat());
        assert!(far.code == Some(4) && far.stderr.contains("name it as https://NAME:PORT"), "{far:?}");
    }
    let [certificate, key] = certified(&playground);
    let file = private(&playground, "state/tokens", &line);
    let web = Web::start(&playground, &["--token-file", &file, "--tls-cert", &certificate, "--tls-key", &key]);
    let port = web.address.rsplit(':').next().unwrap();
    let asked = |name: &str| verb(&["status", "--json", "--http", &format!("https://{name}:{port}")]);
    assert_eq!(asked("localhost").out["running"], 0, "{:?}", asked("localhost"));
    let other = asked("127.0.0.1");
    assert!(other.code == Some(4) && other.stderr.contains("certificate"), "{other:?}");
}

#[test]
fn who_acts_as_another_sees_and_ends_what_it_called() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    sleeper(&playground);
    write_callers(&playground, &(caller("gateway", "act_as = [\"*\"]\n") + &caller("*", "")));
    let (web, [gateway, eve, alice]) = Web::for_callers(&playground, ["gateway", "eve", "alice"]);
    let body = json!({"user": "alice", "arguments": {}}).to_string();
    let stream = web.send("POST", "/v1/tools/esc:sleep/calls", &[&gateway], &body);
    playground.runs(SLEEPER, 1);
    let calls = |caller: &str| web.get("/v1/calls", &[caller]).json()["calls"].as_array().unwrap().clone();
    wait_for("it runs", || calls(&gateway).iter().any(|call| call["phase"] == "running"));
    let call = calls(&gateway)[0].clone();
    assert_eq!((&call["caller"], calls(&alice).len(), calls(&eve).len()), (&json!("alice"), 1, 0));
    let path = format!("/v1/calls/{}", call["id"].as_str().unwrap());
    assert_eq!(web.ask("DELETE", &path, &[&eve], "").status, 404, "control: others do not");
    assert_eq!(web.ask("DELETE", &path, &[&gateway], "").status, 202);
    assert!(String::from_utf8(super::exchanged(stream, b"")).unwrap().contains("CancelledError"));
    // One in the background too.
    let body = json!({"user": "alice", "arguments": {}, "mode": "async"}).to_string();
    let begun = web.ask("POST", "/v1/tools/esc:sleep/calls", &[&gateway], &body);
    assert_eq!(begun.status, 202, "{begun:?}");
    let place = begun.header("location").unwrap().to_owned();
    assert_eq!([&gateway, &alice, &eve].map(|caller| web.get(&place, &[caller]).status), [200, 200, 404]);
    assert_eq!(web.ask("DELETE", &place, &[&gateway], "").status, 202);
}

#[test]
fn while_policies_cannot_be_read_what_runs_is_seen_and_ended() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    sleeper(&playground);
    let file = playground.path("sandbox-policies/callers.policy.toml");
    let good = caller("*", "role = \"operator\"\n");
    write_callers(&playground, &good);
    let web = Web::start(&playground, &["--watch", "off"]);
    let add = || web.call("esc:add", &json!({"a": 1, "b": 2}), &[]).status;
    assert_eq!(add(), 200, "control");
    let stream = web.send("POST", "/v1/tools/esc:sleep/calls", &[], "{}");
    playground.runs(SLEEPER, 1);
    let reload = |ready: bool| {
        web.signal(nix::sys::signal::Signal::SIGHUP);
        let wanted = if ready { 200 } else { 503 };
        wait_for("it was read anew", || web.get("/readyz", &[]).status == wanted);
    };
    // Broken, and gone: nothing new runs.
    std::fs::write(&file, "[[callr]]\n").unwrap();
    reload(false);
    assert_eq!(add(), 403);
    std::fs::write(&file, &good).unwrap();
    reload(true);
    assert_eq!(add(), 200, "control: mended");
    std::fs::remove_file(&file).unwrap();
    reload(false);
    assert_eq!(add(), 403, "without the file everybody could call everything");
    assert!(web.said().contains("callers.policy.toml is gone"), "{}", web.said());
    let seen = web.get("/v1/calls", &[]);
    let calls = seen.json()["calls"].as_array().cloned().unwrap_or_default();
    let running = calls.iter().find(|call| call["phase"] == "running").unwrap_or_else(|| panic!("{seen:?}"));
    assert_eq!(web.get("/v1/status", &[]).json()["running"], 1);
    let path = format!("/v1/calls/{}", running["id"].as_str().unwrap());
    assert_eq!(web.ask("DELETE", &path, &[], "").status, 202);
    assert!(String::from_utf8(super::exchanged(stream, b"")).unwrap().contains("CancelledError"));
    std::fs::write(&file, &good).unwrap();
    reload(true);
    assert_eq!(add(), 200);
}

/// Every sample of a text in the exposition format, with its labels in the name. What a reader would refuse is a panic.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    let (mut found, mut told, mut kinds) = (std::collections::BTreeMap::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, what) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(!what.is_empty() && !told.contains(&name), "{line}");
            told.push(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(told.last() == Some(&name) && ["gauge", "counter", "histogram"].contains(&kind), "{line}");
            kinds.push((name, kind));
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let (of, kind) = *kinds.last().unwrap();
            let part = name.strip_prefix(of).unwrap_or_else(|| panic!("{line} stands below {of}"));
            let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(
                parts.contains(&part) && labels.ends_with('}') && (kind != "counter" || name.ends_with("_total")),
                "{line}"
            );
            let value = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(found.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    found
}

#[test]
fn metrics_say_what_calls_used_and_what_the_host_holds() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let busy = "import time\nwhile time.process_time() < 0.3:\n    pass\nprint(1)\n";
    playground.tool("busy", "python", busy, json!({}));
    let slow = json!({"execution": {"timeoutMs": 300}});
    playground.tool("slow", "python", "import time\ntime.sleep(20)\n", slow);
    playground.settle();
    let web = Web::start(&playground, &[]);
    let before = samples(&web.get("/metrics", &[]).body);
    assert_eq!((before["toolhost_launchers"], before["toolhost_calls_running"]), (0.0, 0.0));
    for (tool, many) in [("esc:busy", 2), ("esc:slow", 1), ("esc:add", 7)] {
        for _ in 0..many {
            web.call(tool, &json!({"a": 1, "b": 2}), &[]);
        }
    }
    // What is made up, or no tool's, adds no label of its own.
    for tool in ["made:up\" }", "esc:other"] {
        web.call(tool, &json!({}), &[]);
    }
    let text = web.get("/metrics", &[]).body;
    assert!(!text.contains("esc:other") && !text.contains("made:up"), "{text}");
    let now = samples(&text);
    let is = |name: &str, wanted: f64| assert_eq!(now.get(name), Some(&wanted), "{name}: {now:?}");
    is("toolhost_calls_total{tool=\"esc:busy\",outcome=\"success\"}", 2.0);
    is("toolhost_calls_total{tool=\"esc:slow\",outcome=\"TimeoutError\"}", 1.0);
    is("toolhost_calls_total{tool=\"esc:add\",outcome=\"success\"}", 7.0);
    is("toolhost_calls_total{tool=\"none\",outcome=\"ToolNotFoundError\"}", 1.0);
    is("toolhost_denials_total{tool=\"esc:slow\",operation=\"limit\"}", 1.0);
    let all: f64 = now.iter().filter(|(name, _)| name.starts_with("toolhost_calls_total")).map(|(_, n)| n).sum();
    assert_eq!(all, 11.0);
    is("toolhost_breakers{state=\"closed\"}", 1.0);
    is("toolhost_breakers{state=\"open\"}", 0.0);
    for name in [
        "toolhost_calls_running",
        "toolhost_calls_waiting",
        "toolhost_calls_queued",
        "toolhost_approvals_waiting",
        "toolhost_network_leases",
        "toolhost_package_builds_running",
        "toolhost_package_builds_total{outcome=\"success\"}",
        "toolhost_trace_spans_lost_total",
        "toolhost_log_lines_lost_total",
        "toolhost_background_calls_open",
        "toolhost_background_calls_kept",
        "toolhost_callbacks_owed",
    ] {
        is(name, 0.0);
    }
    assert!(now["toolhost_launchers"] >= 1.0 && now["toolhost_launchers_idle"] >= 1.0, "{now:?}");
    assert!(now["toolhost_launchers_idle"] <= now["toolhost_launchers"], "{now:?}");
    assert!(now["toolhost_call_cpu_seconds_total{tool=\"esc:busy\"}"] >= 0.6, "{now:?}");
    assert!(now["toolhost_call_memory_peak_bytes{tool=\"esc:busy\"}"] >= 1e6, "{now:?}");
    assert!(now["toolhost_call_duration_seconds_sum{tool=\"esc:slow\"}"] >= 0.3, "{now:?}");
    let of_busy =
        |bound: &str| now[&format!("toolhost_call_duration_seconds_bucket{{tool=\"esc:busy\",le=\"{bound}\"}}")];
    let bounds = ["0.01", "0.025", "0.05", "0.1", "0.25", "1", "5", "30", "300", "+Inf"];
    assert!(bounds.windows(2).all(|pair| of_busy(pair[0]) <= of_busy(pair[1])), "{now:?}");
    assert_eq!((of_busy("0.25"), of_busy("+Inf")), (0.0, 2.0), "{now:?}");
}

#[test]
fn a_key_runs_its_request_once() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("count", "python", "import time\nprint(time.time_ns())\n", json!({}));
    playground.tool("other", "python", "print(1)\n", json!({}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let call = |key: &str, body: Value| web.call("esc:count", &body, &[&format!("Idempotency-Key: {key}")]);
    let (first, second) = (call("k1", json!({})).json(), call("k1", json!({})).json());
    assert_eq!((&first["outputData"], &first["id"]), (&second["outputData"], &second["id"]));
    assert_ne!(call("k2", json!({})).json()["outputData"], first["outputData"]);
    let other = call("k1", json!({"n": 1}));
    assert_eq!((other.status, &other.json()["error"]["type"]), (409, &json!("ParameterValidationError")));
    assert_eq!(web.call("esc:other", &json!({}), &["Idempotency-Key: k1"]).status, 409, "another tool");
    let events = |key: &str| -> Vec<(String, Value)> {
        let headers = [&format!("Idempotency-Key: {key}"), "Accept: text/event-stream"];
        super::calls::events(&web.call("esc:count", &json!({}), &headers).body)
    };
    let names = |told: &[(String, Value)]| told.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>().join(" ");
    let told = events("k1");
    assert_eq!(names(&told), "start replay end", "a stream says whose outcome it ends with");
    assert_eq!((&told[1].1["id"], &told[2].1["id"]), (&first["id"], &first["id"]));
    let own = &told[0].1["id"];
    assert_ne!(own, &first["id"]);
    assert_eq!(web.get(&format!("/v1/calls/{}", own.as_str().unwrap()), &[]).json()["outcome"], "success");
    let told = events("k3");
    assert_eq!(names(&told), "start end", "control: a first call");
    assert_eq!(told[0].1["id"], told[1].1["id"]);
    let two = web.call("esc:count", &json!({}), &["Idempotency-Key: a", "Idempotency-Key: b"]);
    assert_eq!(two.status, 400, "{two:?}");
}
