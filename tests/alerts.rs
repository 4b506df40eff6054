//! Alerts: a program of the operator's gets what somebody should look at, and no call waits for it.

use crate::prelude::*;

/// Keeps what it gets, with its own arguments before it.
const NOTIFY: &str = "#!/bin/sh\nprintf '%s ' \"$@\" >>\"$2\"\ncat >>\"$2\"\n";
/// Fails twice, then keeps what it gets.
const FAILING: &str = "#!/bin/sh\necho x >>\"$2.tried\"\n[ \"$(wc -l <\"$2.tried\")\" -gt 2 ] || \
    exit 1\ncat >>\"$2\"\n";
/// Never ends by itself.
const HANGING: &str = "#!/bin/sh\necho x >>\"$2.tried\"\nsleep 1000\n";
const SECRET: &str = "word-that-nobody-may-read";

/// A host with this program for alerts, and these rates.
fn playground(program: &str, rates: &str) -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let tool = |name: &str, script: &str, more: Value| {
        playground.tool(name, "python", script, more);
    };
    tool("good", "print(1)\n", json!({}));
    tool(
        "crash",
        "import sys\nsys.exit(sys.stdin.read())\n",
        json!({}),
    );
    let long = json!({"execution": {"timeoutMs": 1500}});
    tool("late", "import time\ntime.sleep(600)\n", long);
    let much = json!({"limits": {"outputBytes": 1000}});
    tool("much", "print('\"' + 'x' * 100_000 + '\"')\n", much);
    let wide = json!({"securityContext": {"fileAccess": {"allowRead": ["/etc/**"]}}});
    tool("greedy", "print(1)\n", wide);
    playground.without_breaker();
    fs::write(playground.path("bin/notify"), program).unwrap();
    fs::create_dir_all(playground.path("home/.config/toolhost")).unwrap();
    let (notify, got) = (playground.path("bin/notify"), got(&playground));
    fs::write(
        playground.path("home/.config/toolhost/config.toml"),
        format!("[alerts]\ncommand = [{notify:?}, \"fixed words; $(id)\", {got:?}]\n{rates}"),
    )
    .unwrap();
    playground.settle();
    playground
}

fn got(playground: &Playground) -> PathBuf {
    playground.path("state/got")
}

/// What the program got, without its arguments.
fn alerts(playground: &Playground) -> Vec<Value> {
    let text = fs::read_to_string(got(playground)).unwrap_or_default();
    let whole = text.lines().filter_map(|line| {
        let line = &line[line.find('{')?..];
        serde_json::from_str(line).ok()
    });
    whole.collect()
}

fn kinds(alerts: &[Value]) -> Vec<&str> {
    let kinds = alerts.iter().map(|alert| alert["alert"].as_str().unwrap());
    kinds.collect()
}

/// A call of which every alert reached the program: a host that ends waits for it for a while.
fn call(playground: &Playground, tool: &str, input: &str) -> Ended {
    let began = Instant::now();
    loop {
        let _ = fs::remove_file(got(playground));
        let ended = playground.call(tool, input);
        if !ended.stderr.contains("alerts are lost") || began.elapsed() > PATIENCE {
            return ended;
        }
    }
}

fn end(mut server: Server) {
    drop(server.to.take());
    server.child.wait().unwrap();
}

#[test]
fn a_security_error_is_sent_once_a_minute_without_arguments() {
    let playground = playground(NOTIFY, "");
    // The command line waits for the program.
    let ended = call(
        &playground,
        "esc:greedy",
        &json!({"word": SECRET}).to_string(),
    );
    assert_eq!(ended.kind(), "SecurityError", "{ended:?}");
    let sent = alerts(&playground);
    assert_eq!(kinds(&sent), ["securityError"]);
    let alert = &sent[0];
    assert_eq!(
        (&alert["tool"], &alert["call"], &alert["count"]),
        (&json!("esc:greedy@1.0.0"), &ended.out["id"], &json!(1)),
        "{alert}"
    );
    assert!(
        alert["caller"].is_string() && alert["time"].is_string(),
        "{alert}"
    );
    let whole = fs::read_to_string(got(&playground)).unwrap();
    assert!(
        whole.starts_with("fixed words; $(id) "),
        "no shell: {whole}"
    );
    assert!(!whole.contains(SECRET), "{whole}");

    // A server sends the first at once, the others together, at the latest when it ends.
    fs::remove_file(got(&playground)).unwrap();
    let mut server = Server::start(&playground);
    let calls: Vec<u64> = (0..12).map(|n| server.call_n("greedy", n)).collect();
    server.answers(&calls);
    wait_for("the first alert", || !alerts(&playground).is_empty());
    end(server);
    let sent = alerts(&playground);
    assert!(sent.len() < 6, "{sent:?}");
    let counts = sent.iter().map(|alert| alert["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 12, "{sent:?}");

    // What goes well sends nothing.
    fs::remove_file(got(&playground)).unwrap();
    playground.expect("esc:good", "{}", "ok");
    assert_eq!(alerts(&playground), Vec::<Value>::new());
}

#[test]
fn what_happens_too_often_in_a_minute_is_sent() {
    let rates = "per_minute = { crashes = 3, timeouts = 0, limits = 0, refusals = 1 }\n";
    let playground = playground(NOTIFY, rates);
    let mut server = Server::start(&playground);
    for _ in 0..3 {
        assert_eq!(
            kind(&server.called("esc:crash", json!({"word": SECRET}))),
            "ScriptError"
        );
    }
    assert_eq!(
        kind(&server.called("esc:greedy", json!({}))),
        "SecurityError"
    );
    wait_for("the control", || !alerts(&playground).is_empty());
    assert_eq!(
        kinds(&alerts(&playground)),
        ["securityError"],
        "three are allowed"
    );
    for (tool, error, what) in [
        ("crash", "ScriptError", "crashes"),
        ("late", "TimeoutError", "timeouts"),
        ("much", "ResourceLimitError", "limits"),
    ] {
        assert_eq!(
            kind(&server.called(&format!("esc:{tool}"), json!({}))),
            error
        );
        let is_sent = |alert: &Value| {
            alert["alert"] == "tooMany"
                && alert["what"] == what
                && alert["tool"] == format!("esc:{tool}@1.0.0")
        };
        wait_for(what, || alerts(&playground).iter().any(is_sent));
    }
    end(server);
    let whole = fs::read_to_string(got(&playground)).unwrap();
    assert!(!whole.contains(SECRET), "{whole}");
}

#[test]
fn a_broken_chain_is_sent() {
    let playground = playground(NOTIFY, "");
    for _ in 0..3 {
        playground.expect("esc:good", "{}", "ok");
    }
    let log = playground.path("state/audit.jsonl");
    let good = fs::read_to_string(&log).unwrap();
    let server = Server::start(&playground);
    end(server);
    assert_eq!(alerts(&playground), Vec::<Value>::new(), "the control");
    fs::write(&log, good.replacen("success", "Success", 1)).unwrap();
    let server = Server::start(&playground);
    wait_for("the alert", || {
        kinds(&alerts(&playground)) == ["chainBroken"]
    });
    end(server);
    let alert = &alerts(&playground)[0];
    assert!(
        alert["finding"]
            .as_str()
            .unwrap()
            .contains("record 1: changed, or what follows it (seen at audit.jsonl"),
        "{alert}"
    );
    fs::write(&log, &good).unwrap();
    assert_eq!(playground.cli(&["log", "verify"]).code, Some(0));
}

#[test]
fn refusals_and_failures_of_the_host_are_sent() {
    let playground = playground(
        NOTIFY,
        "per_minute = { refusals = 1 }\n[log]\nhead_to = \"/\"\n",
    );
    let callers = "[[caller]]\nname = \"*\"\nwhy = \"a test\"\ntools = [\"*\"]\n\
                   calls_per_minute = 1\n";
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        callers,
    )
    .unwrap();
    let mut server = Server::start(&playground);
    let kinds_of_three = [0; 3].map(|_| kind(&server.called("esc:good", json!({}))));
    assert_eq!(kinds_of_three, ["none", "RateLimitError", "RateLimitError"]);
    wait_for("too many", || {
        alerts(&playground)
            .iter()
            .any(|alert| alert["what"] == "refusals")
    });
    end(server);
    let sent = alerts(&playground);
    assert_eq!(kinds(&sent), ["tooMany", "headNotWritten"]);
    assert_eq!(sent[0]["count"], 2, "one is allowed: {sent:?}");

    playground.without_breaker();
    fs::remove_file(got(&playground)).unwrap();
    let mut server = Server::start(&playground);
    let log = playground.path("state/audit.jsonl");
    fs::rename(&log, log.with_extension("away")).unwrap();
    fs::create_dir(&log).unwrap();
    let refused = server.called("esc:good", json!({}));
    assert_eq!(kind(&refused), "InternalError", "{refused:?}");
    wait_for("the host failed", || {
        kinds(&alerts(&playground)) == ["hostFailed"]
    });
    fs::remove_dir(&log).unwrap();
    fs::rename(log.with_extension("away"), &log).unwrap();
    assert_eq!(
        kind(&server.called("esc:good", json!({}))),
        "none",
        "the control"
    );
    let policy = playground.path("sandbox-policies/callers.policy.toml");
    fs::write(policy, "not a policy").unwrap();
    server.hang_up();
    wait_for("not reloaded", || {
        kinds(&alerts(&playground)).contains(&"notReloaded")
    });
    end(server);
}

#[test]
fn a_tool_that_changed_since_its_approval_is_sent() {
    let playground = playground(NOTIFY, "");
    playground.policy("strict", "esc:good", "[approval]\nrequired = true\n");
    playground.settle();
    let approve = ["approve", "esc:good", "--why", "a test", "--yes"];
    let ended = playground.cli(&approve);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    playground.expect("esc:good", "{}", "ok");
    assert_eq!(alerts(&playground), Vec::<Value>::new(), "the control");
    fs::write(playground.path("user_scripts/good/main.py"), "print(2)\n").unwrap();
    let refused = call(&playground, "esc:good", "{}");
    assert_eq!(refused.kind(), "SecurityError", "{refused:?}");
    let sent = alerts(&playground);
    assert!(kinds(&sent).contains(&"approvalChanged"), "{sent:?}");
    assert!(kinds(&sent).contains(&"securityError"), "{sent:?}");

    // Under a server: when it looks again, and when the tool is called.
    let sent = || kinds(&alerts(&playground)).contains(&"approvalChanged");
    let script = playground.path("user_scripts/good/main.py");
    for looks_again in [true, false] {
        fs::write(&script, "print(1)\n").unwrap();
        let mut server = Server::start(&playground);
        assert_eq!(kind(&server.called("esc:good", json!({}))), "none");
        fs::remove_file(got(&playground)).unwrap_or_default();
        fs::write(&script, "print(3)\n").unwrap();
        server.hang_up();
        if !looks_again {
            server.called("esc:good", json!({}));
        }
        wait_for("the alert", sent);
        end(server);
    }
    // Before its start.
    fs::remove_file(got(&playground)).unwrap();
    let mut server = Server::start(&playground);
    server.called("esc:good", json!({}));
    wait_for("the alert", sent);
    end(server);
}

#[test]
fn a_program_that_fails_is_run_again() {
    let playground = playground(FAILING, "");
    let mut server = Server::start(&playground);
    assert_eq!(
        kind(&server.called("esc:greedy", json!({}))),
        "SecurityError"
    );
    wait_for("the alert", || {
        kinds(&alerts(&playground)) == ["securityError"]
    });
    let tried = fs::read_to_string(playground.path("state/got.tried")).unwrap();
    assert_eq!(tried.lines().count(), 3);
    end(server);
}

#[test]
fn no_call_waits_for_the_program() {
    let playground = playground(HANGING, "");
    let mut server = Server::start(&playground);
    let calls: Vec<u64> = (0..400).map(|n| server.call_n("greedy", n)).collect();
    server.answers(&calls);
    wait_for("the program runs", || {
        playground.path("state/got.tried").exists()
    });
    assert_eq!(kind(&server.called("esc:good", json!({}))), "none");
    end(server);
    let left = playground.path("bin/notify").display().to_string();
    wait_for("it ended with its host", || processes_of(&left).is_empty());
}

#[test]
fn only_the_configuration_of_the_host_names_the_program() {
    let playground = playground(NOTIFY, "");
    let evil = format!(
        "[alerts]\ncommand = [\"/bin/touch\", {:?}]\n",
        playground.path("evil")
    );
    playground.policy("evil", "esc:good", &evil);
    playground.settle();
    let refused = playground.call("esc:good", "{}");
    assert_ne!(refused.code, Some(0), "{refused:?}");
    playground.call("esc:greedy", "{}");
    assert!(!playground.path("evil").exists());

    // Who may change the program is who decides what runs.
    let notify = playground.path("bin/notify");
    let state = playground.path("bin").display().to_string();
    playground.policy("evil", "esc:none", "");
    let write = json!({"securityContext": {"fileAccess": {"allowWrite": [format!("{state}/**")]}}});
    playground.tool("writer", "python", "print(1)\n", write);
    playground.allow("writer", "esc:writer", &[], &[&format!("{state}/**")]);
    playground.settle();
    let forged = call(&playground, "esc:writer", "{}");
    assert_eq!(forged.kind(), "SecurityError", "{forged:?}");
    fs::remove_file(got(&playground)).unwrap();
    fs::set_permissions(&notify, fs::Permissions::from_mode(0o777)).unwrap();
    playground.call("esc:greedy", "{}");
    assert_eq!(
        alerts(&playground),
        Vec::<Value>::new(),
        "others may write it"
    );
    let fault = "[alerts] command: no alert can be sent";
    let checked = playground.cli(&["check"]);
    assert!(
        checked.code == Some(2) && checked.text().contains(fault),
        "{checked:?}"
    );
    let doctor = playground.cli(&["doctor"]);
    assert!(doctor.text().contains(fault), "{doctor:?}");
    fs::set_permissions(&notify, fs::Permissions::from_mode(0o755)).unwrap();
    call(&playground, "esc:greedy", "{}");
    assert_eq!(
        kinds(&alerts(&playground)),
        ["securityError"],
        "the control"
    );
    assert!(!playground.cli(&["check"]).text().contains(fault));

    let config = playground.path("home/.config/toolhost/config.toml");
    fs::write(&config, "[alerts]\ncommand = [\"notify\"]\n").unwrap();
    let refused = playground.cli(&["list"]);
    assert!(
        refused.code == Some(4) && refused.stderr.contains("absolute path of a program"),
        "{refused:?}"
    );
}
