//! Answers that nobody reads, and answers that are large: what a client gets of them, and what that
//! costs the others.

use super::mcp::Client;
use super::{Web, adder, exchanged, request, served, served_to};
use crate::prelude::*;

const MIB: usize = 1024 * 1024;

/// A tool that answers with so many bytes, as a text or in an object.
fn large(playground: &Playground) {
    let script = "import json, sys\ngiven = json.load(sys.stdin)\ntext = 'x' * given['n']\n\
                  print('{\"a\":\"' + text + '\"}' if given['object'] else '\"' + text + '\"')\n";
    let properties = json!({"n": {"type": "integer"}, "object": {"type": "boolean"}});
    let parameters =
        json!({"type": "object", "properties": properties, "required": ["n", "object"]});
    let more = json!({"parameters": parameters, "limits": {"outputBytes": 64 * MIB}});
    playground.tool("large", "python", script, more);
    let allowed = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
        [limits]\noutput_bytes = 50_000_000\ntimeout_ms = 110_000\n";
    playground.policy("large", "esc:large", allowed);
}

#[test]
fn a_response_is_at_most_32_mib() {
    let (playground, web) = served(large);
    let checked = playground.cli(&["check"]);
    let said = checked.text() + &checked.stderr;
    assert_eq!(
        said.matches("33554432, the largest response").count(),
        2,
        "the manifest and the policy: {said}"
    );
    // Over MCP an object stands in the answer twice: as text, and as what is structured.
    let over_mcp = |modern: bool, fits: usize| {
        let mut client = Client::new(&web, modern, &[]);
        let mut call = |n: usize, object: bool| {
            words(
                &client
                    .call("esc__large", json!({"n": n, "object": object}))
                    .0,
            )
        };
        assert_eq!(call(fits, false).len(), fits, "control");
        let told = call(17 * MIB, true);
        assert!(
            told.contains("ResourceLimitError") && told.contains("The tool ran"),
            "{told:.200}"
        );
    };
    std::thread::scope(|scope| {
        scope.spawn(|| over_mcp(true, 17 * MIB));
        scope.spawn(|| over_mcp(false, MIB));
        let http = |n: usize| web.call("esc:large", &json!({"n": n, "object": true}), &[]);
        assert_eq!(
            http(17 * MIB).json()["outputData"]["a"]
                .as_str()
                .map(str::len),
            Some(17 * MIB),
            "control"
        );
        http(33 * MIB).is(200, "ResourceLimitError: outputBytes (33554432 bytes)");
    });
    let records = playground.records();
    let ended = |outcome: &str| {
        records
            .iter()
            .filter(|record| record["outcome"] == outcome)
            .count()
    };
    assert_eq!(
        (ended("success"), ended("ResourceLimitError"), records.len()),
        (5, 1, 6),
        "all others ran"
    );
}

#[test]
fn answers_that_are_not_read_hold_up_their_principal_alone_and_for_30_seconds() {
    // On a busy machine the first is let go before all have asked.
    assert!((0..3).any(|_| are_held_up()), "in time once");
}

/// Whether all had asked before the first was let go.
fn are_held_up() -> bool {
    let (playground, web, [alice, bob]) = served_to(["alice", "bob"], |it| {
        large(it);
        adder(it);
        let wide = json!({"type": "object", "properties": {"a": {"type": "integer", "description": "d".repeat(70_000)}}});
        it.tool(
            "wide",
            "python",
            "print(1)\n",
            json!({ "parameters": wide }),
        );
    });
    let ran = || playground.records().len();
    // Two of them fill a quarter of 256 MiB to 40 KiB.
    let each = 32 * MIB - 20 * 1024;
    let asked = json!({"n": each, "object": false}).to_string();
    // Established connections to the server that it has open: one that it closed may still have
    // bytes on the way.
    let port = format!(
        ":{:04X}",
        web.address
            .rsplit(':')
            .next()
            .unwrap()
            .parse::<u16>()
            .unwrap()
    );
    let open = || {
        let all = fs::read_to_string("/proc/net/tcp").unwrap();
        let fields = all
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields
            .filter(|it| it[1].ends_with(&port) && it[3] == "01" && it[9] != "0")
            .count()
    };
    let ask = |_| {
        let mut stream = web.connect();
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::RcvBuf, &(64 * 1024))
            .unwrap();
        let text = request(
            "POST",
            "/v1/tools/esc:large/calls",
            &web.address,
            &[&alice],
            &asked,
        );
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    // What is small is answered always; a long list can be asked for again.
    let lists = |who: &str| {
        let mcp = Client::new(&web, true, &[who]).asked("tools/list", json!({}));
        let refused = mcp["error"]["message"]
            .as_str()
            .map(|words| words.contains("read the answers that are open"));
        (
            web.get("/v1/tools", &[who]).status,
            refused,
            web.get("/v1/tools/esc:add", &[who]).status,
        )
    };
    assert_eq!(lists(&alice), (200, None, 200), "the control");
    let (first, idle) = (Instant::now(), Stopwatch::start());
    let deaf: Vec<TcpStream> = (0..3).map(ask).collect();
    wait_for("the records of calls whose answers are not read", || {
        ran() >= 2
    });
    let add = |who: &str| {
        web.call("esc:add", &json!({"a": 1, "b": 2}), &[who]).json()["outputData"]["sum"].clone()
    };
    let is_held = std::thread::scope(|scope| {
        let waits = |()| {
            std::thread::sleep(Duration::from_secs(1));
            let (later, asked) = (scope.spawn(|| add(&alice)), Stopwatch::start());
            while !later.is_finished() && asked.elapsed() < Duration::from_secs(3) {
                std::thread::sleep(Duration::from_millis(50));
            }
            (!later.is_finished()).then_some(later)
        };
        // The third waits before it runs, a moment after the records of the others: longer on a
        // busy machine.
        let tries =
            std::iter::repeat(()).take_while(|()| first.elapsed() < Duration::from_secs(28));
        let Some(later) = { tries }.find_map(waits) else {
            let busy = idle.elapsed() < Duration::from_secs(14);
            assert!(busy, "a call of hers waits");
            return false;
        };
        let before = ran();
        assert_eq!(
            (add(&bob), lists(&bob)),
            (json!(3), (200, None, 200)),
            "others go on"
        );
        std::thread::sleep(Duration::from_secs(1));
        let seen = (ran(), lists(&alice));
        if first.elapsed() < Duration::from_secs(28) {
            assert_eq!(seen.0, before + 1, "no new call of hers starts");
            assert_eq!(seen.1, (429, Some(true), 200));
        }
        assert_eq!(
            later.join().unwrap(),
            3,
            "once those who do not read are let go"
        );
        true
    });
    if !is_held {
        return false;
    }
    assert!(
        first.elapsed() > Duration::from_secs(30),
        "{:?}",
        first.elapsed()
    );
    let outcomes: Vec<Value> = playground
        .records()
        .iter()
        .map(|record| record["outcome"].clone())
        .collect();
    let (calls, refused): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| **outcome == "success");
    assert!(
        calls.len() >= 4 && refused.iter().all(|it| **it == "RateLimitError"),
        "the records stay: {outcomes:?}"
    );
    // The third began once there was room for it, and may be sent still.
    within(
        Duration::from_secs(45),
        "two connections are closed",
        || open() <= 1,
    );
    let whole = deaf
        .into_iter()
        .map(|stream| exchanged(stream, b"").len())
        .filter(|len| *len >= each);
    assert!(
        whole.count() <= 1,
        "the connections of who does not read are closed"
    );
    true
}

/// The most memory that the server had, bytes.
fn peak(web: &super::Web) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", web.child.id())).unwrap();
    let kib = |line: &str| {
        line.strip_prefix("VmHWM:")?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<usize>()
            .ok()
    };
    status.lines().find_map(kib).unwrap() * 1024
}

/// A tool that may answer with 32 MiB: `n` times a text, between two others.
fn repeats(playground: &Playground) {
    let script = "import json, sys\ngiven = json.load(sys.stdin)\n\
                  print(given['first'] + ','.join([given['each']] * given['n']) + given['last'])\n";
    let text = |more: Value| {
        let mut text = json!({"type": "string", "description": "d"});
        text.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        text
    };
    let properties = json!({
        "first": text(json!({})), "each": text(json!({})), "last": text(json!({})),
        "n": {"type": "integer", "description": "d"}, "key": text(json!({"writeOnly": true})),
    });
    let more = json!({
        "parameters": {"type": "object", "properties": properties}, "limits": {"outputBytes": 32 * MIB},
    });
    playground.tool("repeats", "python", script, more);
    let allowed = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
        [limits]\noutput_bytes = 33_554_432\ntimeout_ms = 110_000\n";
    playground.policy("repeats", "esc:repeats", allowed);
}

fn repeated(first: &str, each: &str, n: usize, last: &str) -> Value {
    json!({"first": first, "each": each, "n": n, "last": last, "key": "hunter2-hunter2"})
}

/// Four answers of very many parts, in which a secret is looked for, are read at once: as many as
/// would stop every thread of the server, if they were read there. The control: the answers are
/// read, which takes long.
#[test]
fn while_large_answers_are_read_another_principal_is_served() {
    let (_playground, web, [alice, bob]) = served_to(["alice", "bob"], |it| {
        repeats(it);
        adder(it);
    });
    let many = repeated("[", "\"hunter\"", 100_000, ",\"hunter2-hunter2\"]");
    in_time_once(|| is_served_beside(&web, &many, [&alice, &bob]));
}

fn is_served_beside(web: &Web, many: &Value, [alice, bob]: [&str; 2]) -> Result<(), String> {
    let began = Instant::now();
    let slowest = std::thread::scope(|scope| {
        let call = || web.call("esc:repeats", many, &[alice]).json();
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        let mut slowest = Duration::ZERO;
        while !calls.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let asked = Stopwatch::start();
            assert_eq!(web.get("/v1/tools/esc:add", &[bob]).status, 200);
            slowest = slowest.max(asked.elapsed());
        }
        for call in calls {
            let answer = call.join().unwrap();
            let values = answer["outputData"]
                .as_array()
                .unwrap_or_else(|| panic!("{:.300}", answer.to_string()));
            assert_eq!((values.len(), &values[100_000]), (100_001, &json!("***")));
        }
        slowest
    });
    let all = began.elapsed();
    let is_quick = slowest < all / 8;
    is_quick
        .then_some(())
        .ok_or_else(|| format!("{slowest:?} of {all:?}"))
}

/// Eight clients of one principal read nothing. Two answers fill its share; the other calls do not
/// even run. The control: another principal gets such an answer meanwhile.
#[test]
fn answers_are_charged_before_anything_runs() {
    // On a busy machine the first are let go before all was seen.
    assert!((0..6).any(|_| are_charged()), "in time once");
}

/// Whether all was seen in time.
fn are_charged() -> bool {
    let (playground, web, [alice, bob]) = served_to(["alice", "bob"], repeats);
    let mut body = repeated("\"", "x", 16 * MIB - 10_000, "\"");
    body.as_object_mut().unwrap().remove("key");
    let body = body.to_string();
    let (before, began) = (peak(&web), Instant::now());
    let ask = |_| {
        let mut stream = web.connect();
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::RcvBuf, &(64 * 1024))
            .unwrap();
        let text = request(
            "POST",
            "/v1/tools/esc:repeats/calls",
            &web.address,
            &[&alice],
            &body,
        );
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let deaf: Vec<TcpStream> = (0..8).map(ask).collect();
    wait_for("two records", || playground.records().len() >= 2);
    let whole = web.ask("POST", "/v1/tools/esc:repeats/calls", &[&bob], &body);
    assert_eq!(whole.json()["success"], true, "{:.300}", whole.body);
    let (ran, more) = (playground.records().len(), peak(&web) - before);
    let in_time = began.elapsed() < Duration::from_secs(28);
    if in_time {
        assert_eq!(ran, 3, "the others wait before they run");
        // Two unread answers, and one that is read: as it was printed, as JSON, and as it is sent.
        assert!(more < (2 + 3 + 1) * 32 * MIB, "{} MiB", more / MIB);
    }
    drop(deaf);
    in_time
}

/// The answer of an action stays text in every form: as a tree it would take thirty times as much.
#[test]
fn a_large_answer_of_an_action_takes_no_more_memory_than_its_text() {
    let (_playground, web) = served(repeats);
    let before = peak(&web);
    let n = 8 * MIB / 3;
    let inputs = [
        (
            "first",
            "{\"$content\":[{\"type\":\"text\",\"text\":\"x\"}],\"structured\":[",
        ),
        ("each", "{}"),
        ("n", &n.to_string()),
        ("last", "]}"),
    ];
    let inputs = inputs
        .map(|(name, text)| format!("<input name=\"{name}\"><![CDATA[{text}]]></input>"))
        .concat();
    let text = format!("<ACTION><tool_id>esc:repeats</tool_id><inputs>{inputs}</inputs></ACTION>");
    let reply = web.ask(
        "POST",
        "/v1/actions",
        &[],
        &json!({ "text": text }).to_string(),
    );
    assert!(
        reply.body.contains("\"success\":true") && reply.body.len() > 8 * MIB,
        "{:.600}",
        reply.body
    );
    assert!(reply.body.contains("…[cut "), "the observation is cut");
    let more = peak(&web) - before;
    assert!(more < 5 * 8 * MIB + 16 * MIB, "{} MiB", more / MIB);
}
