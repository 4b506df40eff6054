//! How often, how many at once, and the circuit breaker, over one server.

use super::{playground, put};
use crate::harness::{Playground, Server, Who, has};
use crate::http::Web;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn serve(playground: &Playground, label: &str) -> Server {
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--user", label]);
    Server::with(host)
}

fn words(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

const HEAD: &str = "[[caller]]\nname = \"ME\"\nwhy = \"w\"\nact_as = [\"alice\", \"bob\"]\ntools = [\"*\"]\n\
    [[caller]]\nname = \"bob\"\nwhy = \"w\"\ntools = [\"*\"]\n[[caller]]\nname = \"alice\"\nwhy = \"w\"\ntools = [\"*\"]\n";

#[test]
fn the_sixth_of_five_a_minute_is_told_when() {
    if !has("python", 1) {
        return;
    }
    let playground = playground(
        Who::ours(),
        &format!("{HEAD}calls_per_minute = 5\n[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\ncalls_per_minute = 2\n"),
    );
    let mut alice = serve(&playground, "alice");
    let told: Vec<String> = (0..6).map(|_| words(&alice.called("a:one", json!({"n": 1})))).collect();
    assert!(told[..5].iter().all(|words| !words.contains("Error")), "{told:?}");
    assert!(told[5].contains("RateLimitError") && told[5].contains("5 calls a minute. Try again in 1"), "{}", told[5]);
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["user"], &record["rule"]), (&json!("alice"), &json!("guard")));
    let bob = |server: &mut Server, tool: &str| {
        let name = tool.replace(':', "__");
        let params = json!({"name": name, "arguments": {}, "_meta": {"dev.toolhost/user": "bob"}});
        words(&server.asked("tools/call", params))
    };
    assert!(!bob(&mut alice, "a:one").contains("Error"), "another caller is counted apart");
    let told: Vec<bool> = (0..3).map(|_| bob(&mut alice, "b:one").contains("RateLimitError")).collect();
    assert_eq!(told, [false, false, true], "and a tool has its own limit");
}

#[test]
fn calls_that_cannot_run_use_up_nothing_of_a_tool() {
    if !has("python", 1) {
        return;
    }
    let may = "parameters = [{ tool = \"b:one\", name = \"n\", max = 1, why = \"w\" }]\n";
    let limit = "[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\ncalls_per_minute = 2\n";
    let playground = playground(Who::ours(), &format!("{HEAD}{may}{limit}"));
    let mut server = serve(&playground, "alice");
    for _ in 0..3 {
        assert!(words(&server.called("b:one", json!({"n": "x"}))).contains("ParameterValidationError"));
        assert!(words(&server.called("b:one", json!({"n": 2}))).contains("AuthorizationError"));
    }
    let bob = |server: &mut Server| {
        let params = json!({"name": "b__one", "arguments": {"n": 5}, "_meta": {"dev.toolhost/user": "bob"}});
        words(&server.asked("tools/call", params)).contains("RateLimitError")
    };
    let told = [0; 3].map(|_| bob(&mut server));
    assert_eq!(told, [false, false, true], "and the limit holds for those that run");
}

#[test]
fn what_cannot_be_read_counts_too() {
    let playground = playground(Who::ours(), &format!("{HEAD}calls_per_minute = 5\n"));
    let web = Web::start(&playground, &[]);
    let act = |web: &Web, user: &str| {
        let text = "<ACTION><tool_id>a:one</tool_id><inputs></ACTION>";
        web.ask("POST", "/v1/actions", &[], &json!({"user": user, "text": text}).to_string()).body
    };
    let told = [0; 6].map(|_| act(&web, "alice"));
    assert!(told[..5].iter().all(|words| words.contains("ActionParseError")), "{told:?}");
    assert!(told[5].contains("RateLimitError"), "{}", told[5]);
    assert!(act(&web, "bob").contains("ActionParseError"), "control: another caller");
    // A body that is no call counts as one of whoever authenticated.
    put(&playground, "[[caller]]\nname = \"ME\"\nwhy = \"w\"\ntools = [\"*\"]\ncalls_per_minute = 2\n");
    let web = Web::start(&playground, &[]);
    let told = [0; 3].map(|_| web.ask("POST", "/v1/tools/a:one/calls", &[], "{\"a\":1,\"a\":2}").status);
    assert_eq!(told, [400, 400, 429]);
}

/// Whoever asks without pause pushes no record of others out of the log.
#[test]
fn of_many_refusals_few_have_a_record_which_counts_the_others() {
    let playground = playground(Who::ours(), &format!("{HEAD}calls_per_minute = 5\n"));
    let mut server = serve(&playground, "alice");
    let began = Instant::now();
    let mut asked = |n: usize| {
        let ids: Vec<u64> =
            (0..n).map(|_| server.ask("tools/call", json!({"name": "a__one", "arguments": {}}))).collect();
        let answers = server.answers(&ids);
        answers.values().filter(|answer| words(answer).contains("RateLimitError")).count()
    };
    let refused: usize = (0..10).map(|_| asked(40)).sum();
    // The next that is recorded, a second later, tells of those that were not.
    std::thread::sleep(Duration::from_millis(1500));
    let refused = refused + asked(1);
    let records = playground.records();
    let refusals: Vec<&Value> = records.iter().filter(|record| record["outcome"] == "RateLimitError").collect();
    let most = 60 + usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!((60..=most).contains(&refusals.len()), "{} records of {refused}", refusals.len());
    let left = |record: &&&Value| -> Option<usize> {
        record["notes"][0].as_str()?.strip_suffix(" such refusals before this one have no record")?.parse().ok()
    };
    let unrecorded: usize = refusals.iter().filter_map(|record| left(&record)).sum();
    assert_eq!(refusals.len() + unrecorded, refused, "none is lost");
    assert!(records.len() - refusals.len() >= 5, "control: those within the limit have theirs");
}

#[test]
fn no_more_at_once_than_the_file_says_and_others_pass() {
    if !has("python", 1) {
        return;
    }
    let playground = playground(Who::ours(), &format!("{HEAD}at_once = 1\n"));
    playground.tool("slow", "python", "import time\ntime.sleep(1)\nprint(1)\n", json!({}));
    playground.settle();
    let mut server = serve(&playground, "alice");
    let asked = |server: &mut Server, label: &str| {
        server.ask("tools/call", json!({"name": "esc__slow", "arguments": {}, "_meta": {"dev.toolhost/user": label}}))
    };
    let timed = |server: &mut Server, labels: [&str; 2]| {
        let began = Instant::now();
        let ids = labels.map(|label| asked(server, label));
        let answers = server.answers(&ids);
        assert!(answers.values().all(|answer| answer["result"]["isError"] != true), "{answers:?}");
        began.elapsed()
    };
    assert!(timed(&mut server, ["alice", "alice"]) >= Duration::from_secs(2), "one after the other");
    let both = timed(&mut server, ["bob", "bob"]);
    let apart = timed(&mut server, ["alice", "bob"]);
    assert!(
        both.max(apart) < timed(&mut server, ["alice", "alice"]),
        "control: those of others run beside: {both:?} {apart:?}"
    );
}

#[test]
fn a_tool_that_fails_for_one_caller_is_held_back_from_that_one() {
    if !has("python", 1) {
        return;
    }
    let rule = "[breaker]\nfailures = 2\nwait_seconds = 2\nwhy = \"w\"\n";
    let playground = playground(Who::ours(), &format!("{HEAD}{rule}"));
    let flaky = "import json, sys\nn = json.load(sys.stdin).get('n', 0)\nsys.exit(3) if n else print(n)\n";
    let more = json!({"parameters": {"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}}});
    playground.tool("flaky", "python", flaky, more);
    playground.settle();
    let mut server = serve(&playground, "alice");
    let call = |server: &mut Server, label: &str, arguments: Value| {
        let params = json!({"name": "esc__flaky", "arguments": arguments, "_meta": {"dev.toolhost/user": label}});
        words(&server.asked("tools/call", params))
    };
    // Neither what the caller did wrong, nor a failure before a success counts.
    for arguments in [json!({"n": 1}), json!({}), json!({"n": "x"}), json!({"n": "x"}), json!({"n": 1})] {
        assert!(!call(&mut server, "alice", arguments).contains("CircuitOpenError"));
    }
    assert!(call(&mut server, "alice", json!({"n": 1})).contains("ScriptError"), "the second in a row");
    let held = call(&mut server, "alice", json!({}));
    assert!(held.contains("CircuitOpenError") && held.contains("Circuit breaker open for esc:flaky"), "{held}");
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["decision"], &record["rule"]), (&json!("refused"), &json!("guard")), "nothing ran");
    assert_eq!(call(&mut server, "bob", json!({})), "0", "another caller's failures are its own");
    std::thread::sleep(Duration::from_millis(2100));
    assert!(call(&mut server, "alice", json!({"n": 1})).contains("ScriptError"), "one tries");
    assert!(call(&mut server, "alice", json!({})).contains("CircuitOpenError"), "and opens it again");
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(call(&mut server, "alice", json!({})), "0");
    assert_eq!(call(&mut server, "alice", json!({})), "0", "a success closes it");
}

#[test]
fn whom_policy_keeps_refusing_is_told_to_the_person() {
    let playground = playground(
        Who::ours(),
        &format!("{HEAD}parameters = [{{ tool = \"a:one\", name = \"n\", max = 1, why = \"w\" }}]\n"),
    );
    let mut command = playground.host();
    command.args(["serve", "--stdio", "--user", "alice"]);
    let mut host = Server::heard(command);
    for _ in 0..12 {
        assert!(words(&host.0.called("a:one", json!({"n": 2}))).contains("AuthorizationError"));
    }
    drop(host.0);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut host.1, &mut said).unwrap();
    let alerts = said.lines().filter(|line| line.contains("toolhost::alert")).collect::<Vec<_>>();
    assert!(alerts.len() == 1 && alerts[0].contains("alice"), "once a minute: {said}");
}
