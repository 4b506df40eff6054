//! MCP over HTTP: clients of an older session that come back for what they missed.

use super::mcp::{BOTH, Client, SLEEPER, borrowed, messages, of_function};
use super::{Reply, Web, heard, rest, served, served_to, sleeper};
use crate::prelude::*;

const VERSION: &str = "MCP-Protocol-Version: 2025-11-25";
const OLDER: &str = "2025-06-18";

/// Tells how far it is, twice, and answers; goes on only once `waits` does not lie beside it.
fn steps(playground: &Playground) {
    let script = "import os, toolhost, time\ndef run():\n    toolhost.progress(1, 2)\n    \
                  time.sleep(1.5)\n    while os.path.exists(os.path.dirname(__file__) + \
                  '/waits'):\n        time.sleep(0.01)\n    toolhost.progress(2, 2)\n    \
                  time.sleep(0.2)\n    return 'done'\n";
    playground.tool("steps", "python", script, of_function("run"));
    let rest =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 110_000\n";
    playground.policy("steps", "esc:steps", rest);
}

/// Reads until the event that holds this, and gives the id of that one.
fn event(stream: &mut TcpStream, last: &str) -> (String, String) {
    let mut all = heard(stream, last);
    while !all.ends_with("\n\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        all.push(byte[0].into());
    }
    let id = all[all.find(last).unwrap()..]
        .lines()
        .find_map(|line| line.strip_prefix("id: "));
    let id = id.unwrap_or_else(|| panic!("no id: {all}")).to_owned();
    (all, id)
}

fn resumed(web: &Web, client: &Client, id: &str) -> Reply {
    let last = format!("Last-Event-ID: {id}");
    web.ask(
        "GET",
        "/mcp",
        &[borrowed(&client.headers), vec![&last]].concat(),
        "",
    )
}

/// How far it says that it is, and its answer.
fn answer(told: &[Value]) -> (Vec<u64>, String) {
    let far = told
        .iter()
        .filter_map(|told| told["params"]["progress"].as_f64());
    (
        far.map(|far| far as u64).collect(),
        words(told.last().unwrap()),
    )
}

#[test]
fn a_client_whose_connection_broke_reads_on_after_the_last_event_or_has_its_call_killed() {
    let (playground, web) = served(|it| {
        steps(it);
        sleeper(it);
        let allowed = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\noutput_bytes \
            = 8_000_000\n";
        for (name, length) in [("large", 3_000_000), ("larger", 6_000_000)] {
            let script = format!("print('\"' + 'x' * {length} + '\"')\n");
            it.tool(
                name,
                "python",
                &script,
                json!({"limits": {"outputBytes": 8_000_000}}),
            );
            it.policy(name, &format!("esc:{name}"), allowed);
        }
    });
    let mut client = Client::new(&web, false, &[VERSION]);
    for late in [false, true] {
        let before = playground.records().len();
        let mut stream = client.begin("esc__steps");
        let (told, id) = event(&mut stream, "\"progress\":1");
        assert!(
            told.contains("data: \nid: 0/") && told.contains("retry: 1000\n"),
            "first how to come back: {told}"
        );
        drop(stream);
        if late {
            wait_for("its end, which nobody hears", || {
                playground.records().len() > before
            });
        }
        assert_eq!(
            answer(&messages(&resumed(&web, &client, &id))),
            (vec![2], "done".into()),
            "{late}"
        );
        let records = playground.records().split_off(before);
        assert_eq!(
            (records.len(), &records[0]["outcome"]),
            (1, &json!("success")),
            "it ran once"
        );
        // Nobody knows whether it got that: it can ask again, from any event on.
        let first = format!("0/{}", id.split_once('/').unwrap().1);
        assert_eq!(
            answer(&messages(&resumed(&web, &client, &first))),
            (vec![1, 2], "done".into()),
            "{late}"
        );
        assert_eq!(playground.records().len(), before + 1);
    }
    // A later reader takes the place of a connection that only looks as if it were there.
    let waits = playground.path("user_scripts/steps/waits");
    fs::write(&waits, "").unwrap();
    let mut stream = client.begin("esc__steps");
    let (_, id) = event(&mut stream, "\"progress\":1");
    let (rest, later) = std::thread::scope(|scope| {
        let later = scope.spawn(|| resumed(&web, &client, &id));
        let rest = rest(stream);
        fs::remove_file(&waits).unwrap();
        (rest, later.join().unwrap())
    });
    assert_eq!(answer(&messages(&later)).1, "done");
    assert!(!rest.contains("result"), "one reader at a time: {rest}");
    // A large answer that broke off is sent again, and one that is too large is not.
    for (name, length) in [("esc__large", Some(3_000_000)), ("esc__larger", None)] {
        let before = playground.records().len();
        let mut stream = client.begin(name);
        let told = heard(&mut stream, "xxx");
        let id = told
            .lines()
            .find_map(|line| line.strip_prefix("id: "))
            .unwrap()
            .to_owned();
        drop(stream);
        wait_for("its record", || playground.records().len() > before);
        std::thread::sleep(Duration::from_millis(500));
        // Until it is over it can be read on.
        wait_for(&format!("{name} is over"), || {
            let told = messages(&resumed(&web, &client, &id));
            let text = told
                .last()
                .map(|told| told["result"]["content"][0]["text"].as_str().unwrap().len());
            text == length
        });
    }
    // The call of one that does not come back is killed.
    let before = playground.records().len();
    let mut stream = client.begin("esc__sleep");
    heard(&mut stream, "retry: 1000");
    playground.runs(SLEEPER, 1);
    let (left, idle) = (Instant::now(), Stopwatch::start());
    drop(stream);
    wait_for("its record", || {
        playground
            .records()
            .iter()
            .skip(before)
            .any(|record| record["outcome"] == "CancelledError")
    });
    playground.runs(SLEEPER, 0);
    assert!(
        left.elapsed().as_secs() >= 5 && idle.elapsed().as_secs() < 20,
        "it was waited for: {:?}",
        left.elapsed()
    );
    // One that does not know an event without content gets none, so that it has no id to come back
    // with.
    let hello = json!({"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
    let welcome = web.ask("POST", "/mcp", &[BOTH], &hello.to_string());
    assert_eq!(
        messages(&welcome)[0]["result"]["protocolVersion"],
        OLDER,
        "{welcome:?}"
    );
    let session = format!(
        "Mcp-Session-Id: {}",
        welcome.header("mcp-session-id").unwrap()
    );
    let sleep = json!({"name": "esc__sleep", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": sleep});
    let headers = [BOTH, &session, &format!("MCP-Protocol-Version: {OLDER}")];
    let mut stream = web.send("POST", "/mcp", &headers, &call.to_string());
    assert!(!heard(&mut stream, "\r\n\r\n").contains("retry"));
    playground.runs(SLEEPER, 1);
    drop(stream);
    playground.runs(SLEEPER, 0);
}

#[test]
fn a_stream_is_resumed_by_its_caller_in_its_session_alone() {
    let (_playground, web, [alice, bob]) = served_to(["alice", "bob"], steps);
    let mut own = Client::new(&web, false, &[VERSION, &alice]);
    let mut stream = own.begin("esc__steps");
    let (_, id) = event(&mut stream, "\"progress\":1");
    drop(stream);
    let last = format!("Last-Event-ID: {id}");
    let theirs = web.ask(
        "GET",
        "/mcp",
        &[BOTH, VERSION, own.session(), &last, &bob],
        "",
    );
    assert_eq!(
        (theirs.status, theirs.body.contains("progress")),
        (404, false),
        "another caller: {theirs:?}"
    );
    let another = Client::new(&web, false, &[VERSION, &alice]);
    for (client, id) in [
        (&another, id.as_str()),
        (&own, "0/99"),
        (&own, "x/y"),
        (&own, "18446744073709551616/0"),
    ] {
        let nothing = resumed(&web, client, id);
        assert_eq!(
            (nothing.status, messages(&nothing).len()),
            (200, 0),
            "{id}: {nothing:?}"
        );
    }
    assert_eq!(
        answer(&messages(&resumed(&web, &own, &id))).1,
        "done",
        "control"
    );
    // Its end ends what it can be told.
    assert_eq!(
        web.ask("DELETE", "/mcp", &[VERSION, own.session(), &alice], "")
            .status,
        204
    );
    assert_eq!(resumed(&web, &own, &id).status, 404);
}
