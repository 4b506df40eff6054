//! The run log of a server: one stream of JSON lines with call ids, and never in the way of a call.

use crate::http::Web;
use crate::prelude::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Writes so many lines to its log.
const TALKER: &str = "import json, sys\nn = json.load(sys.stdin).get('n', 2)\n\
    for i in range(n):\n    print('line', i, file=sys.stderr)\nprint(n)\n";

#[test]
fn every_line_is_json_and_those_of_a_call_have_its_id_and_trace() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("talker", "python", TALKER, json!({}));
    playground.tool("broken", "python", "raise SystemExit('no')\n", json!({}));
    playground.settle();
    let web = Web::start(&playground, &["--log", "debug,json"]);
    let header = format!("traceparent: {PARENT}");
    let told = web.call("esc:talker", &json!({}), &[&header]).json();
    web.call("esc:broken", &json!({}), &[&header]);
    web.call("no:such", &json!({}), &[&header]);
    let lines = || -> Vec<Value> {
        let said = web.said();
        said.lines()
            .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
            .collect()
    };
    let of_calls = |lines: &[Value]| {
        lines
            .iter()
            .filter(|line| line["target"] == "toolhost::call")
            .count()
    };
    wait_for("the lines are there", || of_calls(&lines()) == 3);
    let lines = lines();
    assert!(
        lines
            .iter()
            .all(|line| line["timestamp"].is_string() && line["level"].is_string()),
        "{lines:?}"
    );
    let logged = lines
        .iter()
        .filter(|line| line["call"] == told["id"] && line["target"] == "toolhost::log");
    let texts: Vec<_> = logged
        .map(|line| {
            (
                line["tool"].as_str().unwrap(),
                line["line"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        texts,
        [("esc:talker", "line 0"), ("esc:talker", "line 1")],
        "each as one: {lines:?}"
    );
    let mut called = lines.iter().filter(|line| line["call"].is_string());
    // What callers and tools do wrong is nothing that the operator has to put right.
    assert!(
        called.all(|line| line["trace"] == PARENT[3..35] && line["level"] != "WARN"),
        "{lines:?}"
    );
    // Who looks for what is grave finds why a server does not run.
    let mut command = playground.host();
    command.args([
        "--log",
        "error,json",
        "serve",
        "--http",
        "unix:/nowhere/at/all.sock",
    ]);
    let said = Web::run(command, playground.who.uid())
        .err()
        .expect("no such folder");
    let failed: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = failed.last().unwrap();
    assert!(
        last["message"]
            .as_str()
            .unwrap()
            .contains("/nowhere/at/all.sock"),
        "{said}"
    );
    assert_eq!(
        (&last["level"], &last["target"]),
        (&json!("ERROR"), &json!("toolhost")),
        "{said}"
    );
}

/// What a tool or a caller writes stands in quotes: the log as text shows no field that is not the
/// host's.
#[test]
fn no_text_of_others_shows_a_field_of_its_own() {
    let forger =
        "import json, sys\nprint(json.load(sys.stdin)['text'], file=sys.stderr)\nprint(1)\n";
    let playground = Playground::with(Who::ours(), &[("forger", "python", forger, json!({}))]);
    let forged = json!({"text": "x tool=\"core:run-code\" user=root"}).to_string();
    let mut command = playground.host();
    command.args(["--log", "debug", "call", "esc:forger", &forged]);
    let said = finish(command, b"").stderr;
    let of = |target: &str| {
        said.lines()
            .find(|line| line.contains(target))
            .unwrap_or_else(|| panic!("{said}"))
    };
    for line in [of("toolhost::log: "), of("toolhost::call: ")] {
        assert!(line.contains(" tool=\"esc:forger"), "the control: {line}");
        // Quotes within a text are escaped, so that what is between them can be taken away.
        let bare: String = line
            .replace("\\\\", "")
            .replace("\\\"", "")
            .split('"')
            .step_by(2)
            .collect();
        assert!(
            !bare.contains("core:run-code") && !bare.contains("root"),
            "{bare}"
        );
    }
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_call_and_what_is_lost_is_told() {
    // Each character becomes seven in a line of JSON.
    let loud = "import json, sys\nn = json.load(sys.stdin)['n']\n\
        for i in range(300):\n    print('\\x1b' * 200, file=sys.stderr)\nprint(n)\n";
    let playground = Playground::with(Who::ours(), &[("loud", "python", loud, json!({}))]);
    let mut command = playground.host();
    command.args(["--log", "debug,json", "serve", "--stdio"]);
    let (mut server, unread) = Server::heard(command);
    // Each call logs some 400 KiB, and 4 MiB may wait.
    for n in 0..14 {
        assert_eq!(
            words(&server.called("esc:loud", json!({"n": n}))),
            n.to_string()
        );
    }
    // Then somebody reads.
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(unread)
            .lines()
            .map_while(Result::ok)
            .for_each(|line| drop(send.send(line)));
    });
    let mut seen = 0;
    let lost = |line: String| {
        let line: Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("a whole line: {e}: {line}"));
        seen += 1;
        line["target"] == "toolhost::runlog" && line["lost"].as_u64().unwrap() > 0
    };
    assert!(
        std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok()).any(lost),
        "the loss is told"
    );
    assert!(seen > 1000, "what found room was kept: {seen} lines");
}

/// What a person sees of past calls: the newest, by tool, by how they ended, one alone, and as they end.
#[test]
fn past_calls_are_shown_chosen_and_followed() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("fine", "python", "print('{}')\n", json!({}));
    playground.tool(
        "bad",
        "python",
        "raise SystemExit('\x1b[2J broke')\n",
        json!({}),
    );
    playground.settle();
    let mut follow = playground.host();
    follow
        .args(["log", "--follow", "--json"])
        .stdout(Stdio::piped());
    let mut follow = follow.spawn().unwrap();
    let followed = BufReader::new(follow.stdout.take().unwrap()).lines();
    // Where it begins while a call runs, it shows that first.
    let mut followed = followed
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
        .filter(|record| record["outcome"] != "running");
    let shown = |more: &[&str]| playground.cli(&[&["log"], more].concat());
    let json = |more: &[&str]| -> Vec<Value> {
        let ended = shown(&[more, &["--json"]].concat());
        let lines = ended.text();
        let lines = lines.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    assert!(shown(&[]).text().contains("No such call is recorded."));
    playground.call("esc:fine", "{}");
    playground.call("esc:bad", "{}");
    playground.call("esc:none", "{}");
    for tool in ["esc:fine", "esc:bad", "esc:none"] {
        assert_eq!(followed.next().unwrap()["tool"], tool);
    }
    follow.kill().unwrap();
    follow.wait().unwrap();
    let tools = |records: Vec<Value>| -> Vec<String> {
        let named = records
            .iter()
            .map(|record| record["tool"].as_str().unwrap().to_owned());
        named.collect()
    };
    assert_eq!(tools(json(&[])), ["esc:fine", "esc:bad", "esc:none"]);
    assert_eq!(tools(json(&["--failed"])), ["esc:bad"]);
    assert_eq!(tools(json(&["--refused"])), ["esc:none"]);
    assert_eq!(tools(json(&["--tool", "esc:fine"])), ["esc:fine"]);
    let both = ["--refused", "--failed"];
    assert_eq!(tools(json(&both)), ["esc:bad", "esc:none"]);
    assert_eq!(tools(json(&["--limit", "1"])), ["esc:none"]);
    assert_eq!(tools(json(&["--since", "2020-01-31"])).len(), 3);
    assert!(json(&["--since", "2100-01-31"]).is_empty());
    assert_eq!(tools(json(&["--since", "1h"])).len(), 3);
    assert!(json(&["--since", "2100-01-01T00:00:00Z"]).is_empty());
    assert!(json(&["--caller", "nobody-else"]).is_empty());
    let bad = &json(&["--failed"])[0];
    let one = shown(&[bad["call"].as_str().unwrap()]);
    assert!(
        one.text().contains("esc:bad") && !one.text().contains('\u{1b}'),
        "{}",
        one.text()
    );
    // The beginning of an id is enough where it is of one call.
    let id = bad["call"].as_str().unwrap();
    assert_eq!(shown(&[&id[..34]]).text(), one.text());
    let audit = playground.cli(&["audit", "--call", &id[..34]]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
    let several = shown(&[&id[..1]]);
    assert!(several.stderr.contains("3 calls begin with"), "{several:?}");
    let waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(1)\n";
    let folder = playground.tool("waits", "python", waits, json!({}));
    playground.policy("waits", "esc:waits", "[limits]\ntimeout_ms = 120_000\n");
    playground.settle();
    let mut running = playground.host();
    running.args(["call", "esc:waits"]).stdout(Stdio::null());
    let mut running = running.spawn().unwrap();
    let outcome = |tool: &str| -> Value { json(&["--tool", tool])[0]["outcome"].clone() };
    wait_for("it runs", || !json(&["--tool", "esc:waits"]).is_empty());
    assert_eq!(outcome("esc:waits"), "running");
    let waiting = json(&["--tool", "esc:waits"])[0]["call"].clone();
    let one = shown(&[&waiting.as_str().unwrap()[..34]]).text();
    assert!(
        one.contains("running") && one.contains("esc:waits"),
        "{one}"
    );
    fs::write(folder.join("go"), "").unwrap();
    running.wait().unwrap();
    assert_eq!(outcome("esc:waits"), "success");
    let table = shown(&["--failed"]).text();
    assert!(
        table.contains("ScriptError") && !table.contains('\u{1b}'),
        "{table}"
    );
}
