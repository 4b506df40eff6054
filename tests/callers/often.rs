//! How often, how many at once, and the circuit breaker, over one server.

use super::{entry, playground, put};
use crate::http::{Web, bearer, exchanged, private, request, token};
use crate::prelude::*;

fn serve(playground: &Playground, label: &str) -> Server {
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--user", label]);
    Server::with(host)
}

const HEAD: &str = "[[caller]]\nname = \"ME\"\nwhy = \"w\"\nact_as = [\"alice\", \"bob\"]\ntools = [\"*\"]\n\
    [[caller]]\nname = \"bob\"\nwhy = \"w\"\ntools = [\"*\"]\n\
    [[caller]]\nname = \"alice\"\nwhy = \"w\"\ntools = [\"*\"]\n";

#[test]
fn the_sixth_of_five_a_minute_is_told_when() {
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
    // A body that is not a call counts as one of whoever authenticated, and leaves its record.
    let long = format!("{{\"a\":1,\"a\":\"{}\"}}", "x".repeat(20_000));
    let rows = [
        ("t0", "/v1/tools/a:one/calls", "{\"a\":1,\"a\":2}"),
        ("t1", "/v1/calls", "{\"calls\": 1}"),
        ("t2", "/v1/actions", "[]"),
        ("t3", "/mcp", &long),
    ];
    let made = rows.map(|(name, ..)| token(&playground, name, &[]));
    put(&playground, &rows.map(|(name, ..)| entry(name, "\"*\"", "calls_per_minute = 2\n")).concat());
    let file = private(&playground, "state/tokens", &made.each_ref().map(|(_, line)| line.as_str()).join("\n"));
    let web = Web::start(&playground, &["--token-file", &file]);
    for ((_, path, body), (token, _)) in rows.iter().zip(&made) {
        let before = playground.records().len();
        let told = [0; 3].map(|_| web.ask("POST", path, &[&bearer(token)], body).status);
        assert_eq!(told, [400, 400, 429], "{path}");
        let records = playground.records();
        let outcomes: Vec<_> = records[before..].iter().map(|record| record["outcome"].as_str().unwrap()).collect();
        let unread = "ParameterValidationError";
        assert_eq!(outcomes, [unread, unread, "RateLimitError"], "{path}");
    }
}

/// A script that is run by its path belongs to its tool, whose limits hold for it as its rights do.
#[test]
fn the_limit_of_a_tool_holds_for_its_script_by_whatever_path() {
    let limit = |what: &str| format!("{HEAD}[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\n{what}\n");
    let playground = playground(Who::ours(), &limit("calls_per_minute = 2"));
    let script = |path: &str| json!({"scriptPath": path, "inputData": {}});
    let mut server = serve(&playground, "alice");
    let run = |server: &mut Server, path: &str| words(&server.called("core:execute-python-script", script(path)));
    let told = [0; 3].map(|_| run(&mut server, "bob/one/main.py").contains("This tool may be called 2 times a minute"));
    assert_eq!(told, [false, false, true]);
    assert!(words(&server.called("b:one", json!({}))).contains("RateLimitError"), "one count for both ways");
    let others = [0; 4].map(|_| run(&mut server, "alice/one/main.py").contains("Error"));
    assert_eq!(others, [false; 4], "control: a script of another tool");
}

#[test]
fn whoever_acts_as_others_is_held_to_its_own_entry_too() {
    let head = HEAD.replacen("act_as", "calls_per_minute = 3\nact_as", 1);
    let playground = playground(Who::ours(), &head);
    let mut server = serve(&playground, "alice");
    let mut as_one = |label: &str| {
        let params = json!({"name": "a__one", "arguments": {"n": "x"}, "_meta": {"dev.toolhost/user": label}});
        words(&server.asked("tools/call", params)).contains("You may make 3 calls a minute")
    };
    assert_eq!(["alice", "bob", "alice", "bob"].map(&mut as_one), [false, false, false, true]);
    put(&playground, HEAD);
    let mut server = serve(&playground, "alice");
    let refused = (0..5).filter(|_| words(&server.called("a:one", json!({"n": "x"}))).contains("RateLimit")).count();
    assert_eq!(refused, 0, "control: without that limit");
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
    // Those that are only counted yet are recorded before the host ends.
    drop(server.to.take());
    wait_for("the host ends", || server.child.try_wait().unwrap().is_some());
    let records = playground.records();
    let refusals: Vec<&Value> = records.iter().filter(|record| record["outcome"] == "RateLimitError").collect();
    let most = 60 + usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    assert!((60..=most).contains(&refusals.len()), "{} records of {refused}", refusals.len());
    let left = |record: &&&Value| -> Option<usize> {
        record["notes"][0].as_str()?.strip_suffix(" such refusals before this one have no record")?.parse().ok()
    };
    let unrecorded: usize = refusals.iter().filter_map(|record| left(&record)).sum();
    assert_eq!(refusals.len() + unrecorded, refused, "none is lost");
    assert!(records.len() - refusals.len() >= 5, "control: those within the limit have theirs");
}

/// A tool of bob, as a generator and as a script, and one of alice: each waits until the file `go` lies beside it.
fn waiters(limit: &str) -> Playground {
    let playground = playground(Who::ours(), &format!("{HEAD}{limit}"));
    let waits = "import os, time\ndef wait():\n  while not os.path.exists(os.path.dirname(__file__) + '/go'):\n    \
                 time.sleep(0.01)\ndef go():\n  yield 1\n  wait()\n  yield 2\n\
                 if __name__ == '__main__':\n  wait()\n  print('{}')\n";
    let generator = json!({"handler": {"entryPoint": "go"}});
    playground.tool_at("b:gen", "python", "bob/gen/main.py", waits, generator);
    playground.tool_at("b:slow", "python", "bob/slow/main.py", waits, json!({}));
    playground.settle();
    playground
}

const ONE_AT_ONCE: &str = "[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\nat_once = 1\n";
const BY_PATH: &str = "core:execute-python-script";

fn go(playground: &Playground, tool: &str) {
    std::fs::write(playground.path(&format!("user_scripts/bob/{tool}/go")), "").unwrap();
}

/// Calls that wait for the limit of one tool hold up no other call, though it comes under the same name by the same
/// tool.
#[test]
fn a_full_limit_holds_up_equal_calls_alone() {
    let playground = waiters(ONE_AT_ONCE);
    let mut server = serve(&playground, "alice");
    let script = |path: &str| json!({"scriptPath": path, "inputData": {}});
    let slow = [0; 3].map(|_| server.call(BY_PATH, script("bob/slow/main.py")));
    playground.runs("user_scripts/bob/slow/main.py", 1);
    std::thread::sleep(Duration::from_millis(500));
    let other = words(&server.called(BY_PATH, script("alice/one/main.py")));
    assert!(!other.contains("Error"), "{other}");
    playground.runs("user_scripts/bob/slow/main.py", 1);
    go(&playground, "slow");
    let answers = server.answers(&slow);
    assert!(
        answers.values().all(|answer| answer["result"]["isError"] != true),
        "control: equal calls waited: {answers:?}"
    );
}

#[test]
fn a_call_waits_for_the_limit_of_a_tool_as_long_as_it_may_run() {
    let playground = waiters(ONE_AT_ONCE);
    let web = Web::start(&playground, &[]);
    let run = json!({"scriptPath": "bob/slow/main.py", "inputData": {}});
    let call = |ms: u64| web.call(BY_PATH, &json!({"arguments": run, "config": {"timeoutMs": ms}}), &[]).json();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call(20_000));
        playground.runs("user_scripts/bob/slow/main.py", 1);
        let long = scope.spawn(|| call(20_000));
        let late = call(500);
        assert_eq!(late["error"]["type"], "RateLimitError", "{late}");
        assert!(late["error"]["message"].as_str().unwrap().starts_with("No slot for this call"), "{late}");
        go(&playground, "slow");
        let ended = [first, long].map(|call| call.join().unwrap()["outputData"].clone());
        assert_eq!(ended, [json!({}), json!({})], "control: one that may wait longer runs");
    });
}

/// A generator has its slot until its stream ends, whoever waits for it by whatever way.
#[test]
fn a_stream_has_its_slot_until_it_ends() {
    for limit in [ONE_AT_ONCE, ""] {
        let playground = waiters(limit);
        let web = Web::start(&playground, &[]);
        let mut stream = web.connect();
        let asked = request("POST", "/v1/tools/b:gen/calls", &web.address, &["Accept: text/event-stream"], "{}");
        stream.write_all(asked.as_bytes()).unwrap();
        let (mut heard, mut piece) = (String::new(), [0; 4096]);
        while !heard.contains("event: chunk") {
            let length = stream.read(&mut piece).unwrap();
            heard += &String::from_utf8_lossy(&piece[..length]);
            assert!(length > 0, "{heard}");
        }
        let script = json!({"scriptPath": "bob/gen/main.py", "inputData": {}});
        std::thread::scope(|scope| {
            let again = scope.spawn(|| web.call("b:gen", &json!({}), &[]).json());
            let by_path = scope.spawn(|| web.call(BY_PATH, &script, &[]).json());
            if limit.is_empty() {
                playground.runs("user_scripts/bob/gen/main.py", 3);
            } else {
                wait_for("both wait", || web.get("/v1/calls", &[]).body.matches("\"waiting\"").count() == 2);
                std::thread::sleep(Duration::from_millis(300));
                let script = playground.path("user_scripts/bob/gen/main.py").display().to_string();
                assert_eq!(processes_of(&script).len(), 1, "the stream alone runs");
            }
            go(&playground, "gen");
            let ended = [again, by_path].map(|call| call.join().unwrap()["outputData"].clone());
            assert_eq!(ended, [json!([1, 2]), json!({})], "{limit}");
        });
        let rest = String::from_utf8(exchanged(stream, b"")).unwrap();
        assert!(rest.contains("event: end"), "{rest}");
    }
}

#[test]
fn a_tool_that_times_out_or_crashes_for_one_caller_is_held_back_from_that_one() {
    let rule = "[breaker]\nfailures = 2\nwait_seconds = 1\nwhy = \"w\"\n";
    let playground = playground(Who::ours(), &format!("{HEAD}{rule}"));
    let flaky = "import json, os, sys, time\nn = json.load(sys.stdin).get('n', 0)\n\
                 if n == 1: sys.exit(3)\nif n == 2: os.kill(os.getpid(), 11)\nif n == 3: time.sleep(9)\nprint(n)\n";
    let number = json!({"type": "integer", "description": "d"});
    let more = json!({"parameters": {"type": "object", "properties": {"n": number}}, "execution": {"timeoutMs": 2000}});
    playground.tool("flaky", "python", flaky, more);
    playground.settle();
    let mut server = serve(&playground, "alice");
    let call = |server: &mut Server, label: &str, tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"dev.toolhost/user": label}});
        words(&server.asked("tools/call", params))
    };
    let flaky = |server: &mut Server, label: &str, n: Value| call(server, label, "esc__flaky", json!({ "n": n }));
    // Neither what the caller did wrong, nor a script that ends with an error, nor a failure before a success counts.
    for n in [json!(1), json!(1), json!(1), json!("x"), json!("x"), json!(2), json!(0), json!(2)] {
        assert!(!flaky(&mut server, "alice", n).contains("CircuitOpenError"));
    }
    assert!(flaky(&mut server, "alice", json!(3)).contains("TimeoutError"), "the second in a row");
    let held = flaky(&mut server, "alice", json!(0));
    assert!(held.contains("CircuitOpenError") && held.contains("Circuit breaker open for esc__flaky"), "{held}");
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["decision"], &record["rule"]), (&json!("refused"), &json!("guard")), "nothing ran");
    assert_eq!(flaky(&mut server, "bob", json!(0)), "0", "another caller's failures are its own");
    // Nor by the tool that runs a script by its path, which is itself not held back.
    let core = |server: &mut Server, path: &str| {
        call(server, "alice", "core__execute-python-script", json!({"scriptPath": path, "inputData": {}}))
    };
    let held = core(&mut server, "flaky/main.py");
    assert!(held.contains("CircuitOpenError"), "{held}");
    let ran = core(&mut server, "alice/one/main.py");
    assert!(!ran.contains("Error"), "{ran}");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(flaky(&mut server, "alice", json!(2)).contains("ScriptError"), "one tries");
    assert!(flaky(&mut server, "alice", json!(0)).contains("CircuitOpenError"), "and opens it again");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(flaky(&mut server, "alice", json!(0)), "0");
    assert_eq!(flaky(&mut server, "alice", json!(0)), "0", "a success closes it");
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

/// A tool that comes to own the script while a call waits counts that call, too.
#[test]
fn the_limit_of_a_tool_that_becomes_an_owner_meanwhile_counts() {
    let late = "[[limit]]\ntools = [\"b:late\"]\nwhy = \"w\"\ncalls_per_minute = 1\n";
    let slow = ONE_AT_ONCE.replace("b:*", "b:slow");
    for (limits, refused) in [(format!("{slow}{late}"), true), (slow.clone(), false)] {
        let playground = waiters(&limits);
        let mut server = serve(&playground, "alice");
        let run = json!({"scriptPath": "bob/slow/main.py", "inputData": {}});
        let both = [0; 2].map(|_| server.call(BY_PATH, run.clone()));
        playground.runs("user_scripts/bob/slow/main.py", 1);
        let folder = playground.path("user_scripts/bob/slow");
        let manifest = std::fs::read_to_string(folder.join("b-slow.tool.json")).unwrap();
        std::fs::write(folder.join("b-late.tool.json"), manifest.replace("b:slow", "b:late")).unwrap();
        playground.settle();
        server.reload("the other owner is listed", |server| server.names().contains(&"b__late".to_owned()));
        go(&playground, "slow");
        let answers = server.answers(&both);
        assert!(answers.values().all(|answer| answer["result"]["isError"] != true), "{answers:?}");
        let third = words(&server.called(BY_PATH, run));
        assert_eq!(third.contains("This tool may be called 1 times a minute"), refused, "{third}");
    }
}
