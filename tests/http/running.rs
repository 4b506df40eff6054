//! What runs: one's own calls, everybody's for operators, the verbs of the command line, metrics.

use super::mcp::SLEEPER;
use super::{
    Web, adder, caller, certified, rest, served, served_to, sleeper, token_of, tokens,
    write_callers,
};
use crate::prelude::*;
use std::thread::JoinHandle;
use toolhost::base::files;

#[test]
fn a_call_is_seen_and_ended_by_its_caller_and_by_operators_alone() {
    let (playground, web, [alice, bob, ops]) =
        served_to(["alice", "bob", "ops!"], |it| [adder(it), sleeper(it)]);
    let open = |caller: &str| -> Vec<Value> {
        web.calls(&[caller])
            .into_iter()
            .filter(|call| call["phase"] == "running")
            .collect()
    };
    // A call of alice that runs, and its id.
    let asleep = || {
        let stream = web.send("POST", "/v1/tools/esc:sleep/calls", &[&alice], "{}");
        wait_for("it runs", || open(&alice).len() == 1);
        (stream, open(&alice)[0]["id"].as_str().unwrap().to_owned())
    };
    let (stream, id) = asleep();
    let call = open(&alice)[0].clone();
    assert_eq!(
        [&call["caller"], &call["tool"]],
        ["alice", "esc:sleep@1.0.0"]
    );
    let path = format!("/v1/calls/{id}");
    // To others it is not there, by any word.
    for (method, word) in [("GET", "no such call"), ("DELETE", "no such open call")] {
        let absent = web.ask(
            method,
            "/v1/calls/00000000-0000-7000-8000-000000000000",
            &[&bob],
            "",
        );
        let absent = absent.is(404, &format!("ToolNotFoundError: {word}"));
        assert_eq!(
            web.ask(method, &path, &[&bob], "")
                .is(404, "ToolNotFoundError")
                .body,
            absent.body
        );
    }
    assert!(open(&bob).is_empty() && open(&ops).len() == 1);
    assert_eq!(web.ask("DELETE", &path, &[&alice], "").status, 202);
    let answer = rest(stream);
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("CancelledError"),
        "{answer}"
    );
    assert_eq!(
        web.get(&path, &[&alice]).json()["outcome"],
        "CancelledError"
    );
    assert_eq!(
        web.ask("DELETE", &path, &[&alice], "").status,
        404,
        "it is not open any more"
    );
    // The same from the command line, as an operator.
    let (stream, id) = asleep();
    let verb = |words: &[&str], header: &str| web.verb(&playground, words, header);
    let seen = verb(&["ps"], &ops).text();
    assert!(
        seen.contains(&id) && seen.contains("alice") && seen.contains("running"),
        "{seen}"
    );
    assert_eq!(verb(&["ps", "--json"], &ops).out[0]["id"], json!(id));
    assert_eq!(verb(&["status", "--json"], &ops).out["running"], 1);
    let refused = verb(&["status"], &alice);
    assert!(
        refused.code == Some(4) && refused.stderr.contains("for operators of the host"),
        "{refused:?}"
    );
    assert_eq!(verb(&["kill", "../../healthz"], &ops).code, Some(2));
    let none = verb(&["kill", "ffff"], &ops);
    assert!(none.stderr.contains("the id of no call"), "{none:?}");
    assert_eq!(verb(&["kill", &id[..13]], &ops).code, Some(0));
    assert!(rest(stream).contains("ops cancelled the call."));
    // So says its record, and that an operator ordered it.
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    let order = format!(
        "\"cancelled\":{{\"id\":\"{id}\",\"tool\":\"esc:sleep@1.0.0\",\"caller\":\"alice\"}},\"user\":\"ops\""
    );
    assert_eq!(
        log.matches("\"cancelled\":{").count(),
        1,
        "not of alice's own: {log}"
    );
    assert!(
        log.contains(&order) && log.contains("\"message\":\"ops cancelled"),
        "{log}"
    );
    assert!(verb(&["ps"], &ops).text().contains("No call runs."));
    let nobody = playground.cli(&["ps", "--http", "127.0.0.1:1"]);
    assert!(
        nobody.code == Some(4) && nobody.stderr.contains("`--http ADDRESS` names another"),
        "{nobody:?}"
    );
}

/// A listener of this user, which answers once as if all were well; what it was sent.
fn impostor(uid: u32) -> (String, JoinHandle<String>) {
    let listener = files::as_owner((uid, uid), || TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = files::as_owner((uid, uid), || listener.accept()).unwrap();
        let (mut heard, mut piece) = (String::new(), [0; 4096]);
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            heard += &String::from_utf8_lossy(&piece[..length]);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                .unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        heard
    });
    (address, heard)
}

#[test]
fn a_token_goes_to_no_other_user_and_not_in_the_clear() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (file, [ops]) = tokens(&playground, ["ops!"]);
    let asked = |words: &[&str], address: &str| {
        let mut command = playground.host();
        command.args(words).args(["--http", address]);
        command
            .env("TOOLHOST_TOKEN", token_of(&ops))
            .env("SSL_CERT_FILE", playground.path("state/cert.pem"));
        finish(command, b"")
    };
    let refused = |words: &[&str], address: &str, why: &str| {
        let ended = asked(words, address);
        assert!(
            ended.code == Some(4) && ended.stderr.contains(why),
            "{why}: {ended:?}"
        );
    };
    let own = playground.who.uid().unwrap_or(0);
    for words in [
        &["ps"] as &[&str],
        &["status"],
        &["approvals"],
        &["kill", "00000000-0000-7000-8000-000000000000"],
    ] {
        if is_root() {
            let (address, heard) = impostor(12399);
            refused(words, &address, "another user (uid 12399) listens");
            assert_eq!(heard.join().unwrap(), "");
        }
        // The control: one's own listener is sent the token, and its answer is not taken for a
        // server's.
        let (address, heard) = impostor(own);
        refused(words, &address, "is not a toolhost server");
        assert!(heard.join().unwrap().contains(token_of(&ops)));
        refused(words, "192.0.2.1:8787", "use https://NAME:PORT");
    }
    let [certificate, key] = certified(&playground);
    let web = Web::start(
        &playground,
        &[
            "--token-file",
            &file,
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
        ],
    );
    let port = web.address.rsplit(':').next().unwrap();
    let good = asked(&["status", "--json"], &format!("https://localhost:{port}"));
    assert_eq!(good.out["running"], 0, "{good:?}");
    refused(
        &["status"],
        &format!("https://127.0.0.1:{port}"),
        "certificate",
    );
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
        web.signal(Signal::SIGHUP);
        wait_for("it was read anew", || {
            web.get("/readyz", &[]).status == if ready { 200 } else { 503 }
        });
    };
    // Broken, and gone: nothing new runs, and without the file everybody could call everything.
    for text in [Some("[[callr]]\n"), None] {
        text.map_or_else(|| fs::remove_file(&file), |text| fs::write(&file, text))
            .unwrap();
        reload(false);
        assert_eq!(add(), 403);
        assert_eq!(web.get("/v1/status", &[]).json()["running"], 1);
        if text.is_none() {
            web.says("callers.policy.toml is gone", 1);
            let calls = web.calls(&[]);
            let running = calls
                .iter()
                .find(|call| call["phase"] == "running")
                .unwrap_or_else(|| panic!("{calls:?}"));
            let path = format!("/v1/calls/{}", running["id"].as_str().unwrap());
            assert_eq!(web.ask("DELETE", &path, &[], "").status, 202);
        }
        fs::write(&file, &good).unwrap();
        reload(true);
        assert_eq!(add(), 200, "control: once it is good again");
    }
    assert!(rest(stream).contains("CancelledError"));
}

/// The files that each call needs before it looks at its tool: the log, where the begun calls
/// stand, and the ledger.
#[test]
fn the_server_is_not_ready_while_every_call_would_be_refused() {
    let (playground, web) = served(adder);
    let answers = || {
        let [call, ready] = [
            web.call("esc:add", &json!({"a": 1, "b": 2}), &[]),
            web.get("/readyz", &[]),
        ];
        (
            [call.status, ready.status],
            call.json()["error"]["message"].clone(),
            ready.json()["status"].clone(),
        )
    };
    for (name, refused) in [
        ("audit.jsonl", "audit log"),
        ("written.jsonl", "where tools wrote before"),
    ] {
        let (file, aside) = (
            playground.path("state").join(name),
            playground.path("state/aside"),
        );
        for is_folder in [false, true] {
            assert_eq!(answers().0, [200, 200], "{name}: the control");
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&file)
                .unwrap();
            fs::rename(&file, &aside).unwrap();
            // Another file that everybody can write, and none.
            if is_folder {
                fs::create_dir(&file)
            } else {
                fs::write(&file, "")
            }
            .unwrap();
            fs::set_permissions(
                &file,
                fs::Permissions::from_mode(if is_folder { 0o700 } else { 0o666 }),
            )
            .unwrap();
            let (statuses, why, status) = answers();
            assert_eq!((statuses, &why), ([500, 503], &status), "{name}");
            assert!(why.as_str().unwrap().contains(refused), "{name}: {why}");
            if is_folder {
                fs::remove_dir(&file)
            } else {
                fs::remove_file(&file)
            }
            .unwrap();
            fs::rename(&aside, &file).unwrap();
        }
    }
    assert_eq!(
        answers().0,
        [200, 200],
        "the control: once they are as before"
    );
}

/// Every sample of a text in the exposition format, with its labels in the name. What a reader
/// would refuse is a panic.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut found, mut told, mut kinds) = (BTreeMap::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, what) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(!what.is_empty() && !told.contains(&name), "{line}");
            told.push(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(
                told.last() == Some(&name) && ["gauge", "counter", "histogram"].contains(&kind),
                "{line}"
            );
            kinds.push((name, kind));
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let (of, kind) = *kinds.last().unwrap();
            let part = name
                .strip_prefix(of)
                .unwrap_or_else(|| panic!("{line} stands below {of}"));
            let parts: &[&str] = if kind == "histogram" {
                &["_bucket", "_sum", "_count"]
            } else {
                &[""]
            };
            assert!(parts.contains(&part) && labels.ends_with('}'), "{line}");
            assert!(kind != "counter" || name.ends_with("_total"), "{line}");
            let value = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(
                found.insert(sample.to_owned(), value).is_none(),
                "twice: {line}"
            );
        }
    }
    found
}

#[test]
fn metrics_say_what_calls_used_and_what_the_host_holds() {
    let (_playground, web) = served(|it| {
        adder(it);
        let busy = "import time\nwhile time.process_time() < 0.3:\n    pass\nprint(1)\n";
        it.tool("busy", "python", busy, json!({}));
        let limited = json!({"execution": {"timeoutMs": 1500}});
        it.tool("slow", "python", "import time\ntime.sleep(20)\n", limited);
    });
    let before = samples(&web.get("/metrics", &[]).body);
    assert_eq!(
        (
            before["toolhost_launchers"],
            before["toolhost_calls_running"]
        ),
        (0.0, 0.0)
    );
    // One that does not begin within its time is no denial.
    let mut slow = 0.0;
    wait_for("it begins", || {
        slow += 1.0;
        let told = web.call("esc:slow", &json!({"a": 1, "b": 2}), &[]).body;
        !told.contains("; try again") && !told.contains("could be started")
    });
    // What is made up, or no tool's, adds no label of its own.
    for (tool, many) in [
        ("esc:busy", 2),
        ("esc:add", 7),
        ("made:up\" }", 1),
        ("esc:other", 1),
    ] {
        (0..many).for_each(|_| drop(web.call(tool, &json!({"a": 1, "b": 2}), &[])));
    }
    let text = web.get("/metrics", &[]).body;
    assert!(
        !text.contains("esc:other") && !text.contains("made:up"),
        "{text}"
    );
    let now = samples(&text);
    let is = |name: &str, wanted: f64| assert_eq!(now.get(name), Some(&wanted), "{name}: {now:?}");
    is(
        "toolhost_calls_total{tool=\"esc:busy\",outcome=\"success\"}",
        2.0,
    );
    is(
        "toolhost_calls_total{tool=\"esc:slow\",outcome=\"TimeoutError\"}",
        slow,
    );
    is(
        "toolhost_calls_total{tool=\"esc:add\",outcome=\"success\"}",
        7.0,
    );
    is(
        "toolhost_calls_total{tool=\"none\",outcome=\"ToolNotFoundError\"}",
        1.0,
    );
    is(
        "toolhost_denials_total{tool=\"esc:slow\",operation=\"limit\"}",
        1.0,
    );
    let all: f64 = now
        .iter()
        .filter(|(name, _)| name.starts_with("toolhost_calls_total"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(all, 10.0 + slow);
    is("toolhost_breakers{state=\"closed\"}", 1.0);
    let none = "breakers{state=\"open\"} calls_running calls_waiting calls_queued \
                approvals_waiting network_leases package_builds_running \
                package_builds_total{outcome=\"success\"} trace_spans_lost_total \
                log_lines_lost_total background_calls_open background_calls_kept callbacks_owed";
    none.split(' ')
        .for_each(|name| is(&format!("toolhost_{name}"), 0.0));
    assert!(
        now["toolhost_launchers"] >= 1.0 && now["toolhost_launchers_idle"] >= 1.0,
        "{now:?}"
    );
    assert!(
        now["toolhost_launchers_idle"] <= now["toolhost_launchers"],
        "{now:?}"
    );
    assert!(
        now["toolhost_call_cpu_seconds_total{tool=\"esc:busy\"}"] >= 0.6,
        "{now:?}"
    );
    assert!(
        now["toolhost_call_memory_peak_bytes{tool=\"esc:busy\"}"] >= 1e6,
        "{now:?}"
    );
    assert!(
        now["toolhost_call_duration_seconds_sum{tool=\"esc:slow\"}"] >= 0.3,
        "{now:?}"
    );
    let of_busy = |bound: &str| {
        now[&format!("toolhost_call_duration_seconds_bucket{{tool=\"esc:busy\",le=\"{bound}\"}}")]
    };
    let bounds = [
        "0.01", "0.025", "0.05", "0.1", "0.25", "1", "5", "30", "300", "+Inf",
    ];
    assert!(
        bounds
            .windows(2)
            .all(|pair| of_busy(pair[0]) <= of_busy(pair[1])),
        "{now:?}"
    );
    assert_eq!((of_busy("0.25"), of_busy("+Inf")), (0.0, 2.0), "{now:?}");
}
