//! How often, how many at once, and the circuit breaker, over one server.

use super::{BY_PATH, entry, labelled, playground, put, script};
use crate::http::{Web, exchanged, heard};
use crate::prelude::*;

fn serve(playground: &Playground, label: &str) -> Server {
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--user", label]);
    Server::with(host)
}

/// What a call for another one than the server's user says.
fn said_to(server: &mut Server, label: &str, tool: &str, arguments: Value) -> String {
    words(&labelled(server, label, tool, arguments))
}

/// What a new host tells, where that took less than this time: then a rate grows back.
fn before_it_grows_back<H, T>(
    time: Duration,
    mut tell: impl FnMut() -> (H, T, Duration),
) -> (H, T, Duration) {
    let over = Instant::now() + PATIENCE;
    loop {
        let told = tell();
        if told.2 < time || Instant::now() > over {
            return told;
        }
    }
}

const HEAD: &str = "[[caller]]\nname = \"ME\"\nwhy = \"w\"\nact_as = [\"alice\", \"bob\"]\ntools = \
    [\"*\"]\n[[caller]]\nname = \"bob\"\nwhy = \"w\"\ntools = [\"*\"]\n[[caller]]\nname = \
    \"alice\"\nwhy = \"w\"\ntools = [\"*\"]\n";
const TWO_A_MINUTE: &str = "[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\ncalls_per_minute = 2\n";

#[test]
fn the_sixth_of_five_a_minute_is_refused_with_its_wait_and_who_acts_as_others_has_a_limit_too() {
    let playground = playground(
        Who::ours(),
        &format!("{HEAD}calls_per_minute = 5\n{TWO_A_MINUTE}"),
    );
    let (mut alice, told, took) = before_it_grows_back(Duration::from_secs(12), || {
        let mut alice = serve(&playground, "alice");
        let began = Instant::now();
        let told = [0; 6].map(|_| words(&alice.called("a:one", json!({"n": 1}))));
        (alice, told, began.elapsed())
    });
    assert!(
        told[..5].iter().all(|words| !words.contains("Error")),
        "{told:?}"
    );
    let wait = told[5].split_once("5 calls a minute. Try again in ");
    let wait = wait.and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(
        told[5].contains("RateLimitError")
            && wait.is_some_and(|wait| wait <= 12 && wait + took.as_secs() + 1 >= 12),
        "{} after {took:?}",
        told[5]
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["user"], &record["rule"]),
        (&json!("alice"), &json!("guard"))
    );
    assert!(
        !said_to(&mut alice, "bob", "a:one", json!({})).contains("Error"),
        "another caller is counted apart"
    );
    drop(alice);
    let (_, told, _) = before_it_grows_back(Duration::from_secs(30), || {
        let mut alice = serve(&playground, "alice");
        let began = Instant::now();
        let mut bob = || said_to(&mut alice, "bob", "b:one", json!({}));
        let told = [0; 3].map(|_| bob().contains("RateLimitError"));
        (alice, told, began.elapsed())
    });
    assert_eq!(told, [false, false, true], "and a tool has its own limit");

    let refusals = |head: &str| {
        put(&playground, head);
        let mut server = serve(&playground, "alice");
        ["alice", "bob", "alice", "bob"].map(|label| {
            said_to(&mut server, label, "a:one", json!({"n": "x"}))
                .contains("You may make 3 calls a minute")
        })
    };
    let own = HEAD.replacen("act_as", "calls_per_minute = 3\nact_as", 1);
    assert_eq!(
        refusals(&own),
        [false, false, false, true],
        "of its own, whomever it acts as"
    );
    assert_eq!(refusals(HEAD), [false; 4], "control: without that limit");
}

/// A script that is run by its path belongs to its tool, whose limits hold for it as its rights do.
#[test]
fn the_limit_of_a_tool_holds_for_its_script_too_and_calls_that_cannot_run_use_up_nothing() {
    let may = "parameters = [{ tool = \"b:one\", name = \"n\", max = 1, why = \"w\" }]\n";
    let playground = playground(Who::ours(), &format!("{HEAD}{may}{TWO_A_MINUTE}"));
    let run = |server: &mut Server, path: &str| {
        words(&server.called(BY_PATH, json!({"scriptPath": path, "inputData": {"n": 1}})))
    };
    let ((mut server, mut err, started), (told, both), _) =
        before_it_grows_back(Duration::from_secs(30), || {
            let mut host = playground.host();
            host.args(["serve", "--stdio", "--user", "alice"]);
            let (mut server, err) = Server::heard(host);
            let started = Instant::now();
            for _ in 0..24 {
                let mut called = |n: Value| words(&server.called("b:one", json!({ "n": n })));
                assert!(called(json!("x")).contains("ParameterValidationError"));
                assert!(called(json!(2)).contains("AuthorizationError"));
            }
            let began = Instant::now();
            let told = [0; 3].map(|_| {
                run(&mut server, "bob/one/main.py")
                    .contains("This tool may be called 2 times a minute")
            });
            let both =
                ["alice", "bob"].map(|label| said_to(&mut server, label, "b:one", json!({"n": 1})));
            let took = began.elapsed();
            ((server, err, started), (told, both), took)
        });
    assert_eq!(told, [false, false, true]);
    assert!(
        both.iter().all(|told| told.contains("RateLimitError")),
        "one count for both ways and all callers: {both:?}"
    );
    assert_eq!(
        [0; 4].map(|_| run(&mut server, "alice/one/main.py").contains("Error")),
        [false; 4],
        "control: of another tool"
    );
    // Whom policy keeps refusing is told to the person, once a minute.
    let minutes = usize::try_from(started.elapsed().as_secs() / 60).unwrap();
    drop(server);
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    let alerts = said
        .lines()
        .filter(|line| line.contains("toolhost::alert"))
        .collect::<Vec<_>>();
    assert!(
        (1..=1 + minutes).contains(&alerts.len())
            && alerts.iter().all(|line| line.contains("alice")),
        "{said}"
    );
}

#[test]
fn what_cannot_be_read_counts_too() {
    let playground = playground(Who::ours(), &format!("{HEAD}calls_per_minute = 5\n"));
    let act = |web: &Web, user: &str| {
        let text = "<ACTION><tool_id>a:one</tool_id><inputs></ACTION>";
        web.ask(
            "POST",
            "/v1/actions",
            &[],
            &json!({"user": user, "text": text}).to_string(),
        )
        .body
    };
    let (web, told, _) = before_it_grows_back(Duration::from_secs(12), || {
        let web = Web::start(&playground, &[]);
        let began = Instant::now();
        let told = [0; 6].map(|_| act(&web, "alice"));
        (web, told, began.elapsed())
    });
    assert!(
        told[..5]
            .iter()
            .all(|words| words.contains("ActionParseError")),
        "{told:?}"
    );
    assert!(told[5].contains("RateLimitError"), "{}", told[5]);
    assert!(
        act(&web, "bob").contains("ActionParseError"),
        "control: another caller"
    );
    // A body that is not a call counts as one of whoever authenticated, and leaves its record.
    let long = format!("{{\"a\":1,\"a\":\"{}\"}}", "x".repeat(20_000));
    let names = ["t0", "t1", "t2", "t3"];
    let paths = ["/v1/tools/a:one/calls", "/v1/calls", "/v1/actions", "/mcp"];
    let bodies = ["{\"a\":1,\"a\":2}", "{\"calls\": 1}", "[]", &long];
    put(
        &playground,
        &names
            .map(|name| entry(name, "\"*\"", "calls_per_minute = 2\n"))
            .concat(),
    );
    let (web, headers) = Web::for_callers(&playground, names);
    for ((path, body), header) in paths.into_iter().zip(bodies).zip(&headers) {
        let before = playground.records().len();
        assert_eq!(
            [0; 3].map(|_| web.ask("POST", path, &[header], body).status),
            [400, 400, 429],
            "{path}"
        );
        let records = playground.records();
        let outcomes: Vec<_> = records[before..]
            .iter()
            .map(|record| record["outcome"].as_str().unwrap())
            .collect();
        let unread = "ParameterValidationError";
        assert_eq!(outcomes, [unread, unread, "RateLimitError"], "{path}");
    }
}

/// Whoever asks without pause pushes no record of others out of the log.
#[test]
fn of_many_refusals_few_have_a_record_which_counts_the_others() {
    let playground = playground(Who::ours(), &format!("{HEAD}calls_per_minute = 5\n"));
    let mut server = serve(&playground, "alice");
    let began = Instant::now();
    let mut asked = |n: usize| {
        let ids: Vec<u64> = (0..n).map(|_| server.call("a:one", json!({}))).collect();
        server
            .answers(&ids)
            .values()
            .filter(|answer| words(answer).contains("RateLimitError"))
            .count()
    };
    let refused: usize = (0..10).map(|_| asked(40)).sum();
    // Those that are only counted yet are recorded before the host ends.
    drop(server.to.take());
    wait_for("the host ends", || {
        server.child.try_wait().unwrap().is_some()
    });
    let records = playground.records();
    let refusals: Vec<&Value> = records
        .iter()
        .filter(|record| record["outcome"] == "RateLimitError")
        .collect();
    let most = 60 + usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    assert!(
        (60..=most).contains(&refusals.len()),
        "{} records of {refused}",
        refusals.len()
    );
    let left = |record: &&&Value| -> Option<usize> {
        record["notes"][0]
            .as_str()?
            .strip_suffix(" such refusals before this one have no record")?
            .parse()
            .ok()
    };
    let unrecorded: usize = refusals.iter().filter_map(|record| left(&record)).sum();
    assert_eq!(refusals.len() + unrecorded, refused, "none is lost");
    assert!(
        records.len() - refusals.len() >= 5,
        "control: those within the limit have theirs"
    );
}

/// A tool of bob, as a generator and as a script, and one of alice: each waits until the file `go`
/// lies beside it.
fn waiters(limit: &str) -> Playground {
    let playground = playground(Who::ours(), &format!("{HEAD}{limit}"));
    let waits = "import os, time\ndef wait():\n  while not \
                 os.path.exists(os.path.dirname(__file__) + '/go'):\n    time.sleep(0.01)\ndef \
                 go():\n  yield 1\n  wait()\n  yield 2\nif __name__ == '__main__':\n  wait()\n  \
                 print('{}')\n";
    playground.tool_at(
        "b:gen",
        "python",
        "bob/gen/main.py",
        waits,
        json!({"handler": {"entryPoint": "go"}}),
    );
    playground.tool_at("b:slow", "python", "bob/slow/main.py", waits, json!({}));
    playground.settle();
    playground
}

const ONE_AT_ONCE: &str = "[[limit]]\ntools = [\"b:*\"]\nwhy = \"w\"\nat_once = 1\n";
const SLOW: &str = "user_scripts/bob/slow/main.py";

fn go(playground: &Playground, tool: &str) {
    fs::write(playground.path(&format!("user_scripts/bob/{tool}/go")), "").unwrap();
}

/// Calls that wait for the limit of one tool hold up no other call, though it comes by the same
/// tool and name.
#[test]
fn a_call_waits_for_the_limit_of_its_tool_as_long_as_it_may_run_and_holds_up_no_other() {
    let playground = waiters(ONE_AT_ONCE);
    let web = Web::start(&playground, &[]);
    let call = |path: &str, ms: u64| {
        web.call(
            BY_PATH,
            &json!({"arguments": script(path), "config": {"timeoutMs": ms}}),
            &[],
        )
        .json()
    };
    std::thread::scope(|scope| {
        let equal = [0; 3].map(|_| scope.spawn(|| call("bob/slow/main.py", 120_000)));
        playground.runs(SLOW, 1);
        wait_for("two wait", || {
            web.get("/v1/calls", &[])
                .body
                .matches("\"waiting\"")
                .count()
                == 2
        });
        assert_eq!(call("alice/one/main.py", 20_000)["success"], true);
        let mut late = Value::Null;
        wait_for("it gets as far as to the slots", || {
            late = call("bob/slow/main.py", 500);
            late["error"]["type"] != "TimeoutError"
        });
        assert_eq!(late["error"]["type"], "RateLimitError", "{late}");
        assert!(
            late["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with("No slot for this call"),
            "{late}"
        );
        playground.runs(SLOW, 1);
        go(&playground, "slow");
        let ended = equal.map(|call| call.join().unwrap()["outputData"].clone());
        assert_eq!(
            ended,
            [0; 3].map(|_| json!({})),
            "control: those that may wait longer run"
        );
    });
}

#[test]
fn a_stream_has_its_slot_until_it_ends() {
    for limit in [ONE_AT_ONCE, ""] {
        let playground = waiters(limit);
        let web = Web::start(&playground, &[]);
        let mut stream = web.send(
            "POST",
            "/v1/tools/b:gen/calls",
            &["Accept: text/event-stream"],
            "{}",
        );
        heard(&mut stream, "event: chunk");
        std::thread::scope(|scope| {
            let again = scope.spawn(|| web.call("b:gen", &json!({}), &[]).json());
            let by_path = scope.spawn(|| web.call(BY_PATH, &script("bob/gen/main.py"), &[]).json());
            if limit.is_empty() {
                playground.runs("user_scripts/bob/gen/main.py", 3);
            } else {
                wait_for("both wait", || {
                    web.get("/v1/calls", &[])
                        .body
                        .matches("\"waiting\"")
                        .count()
                        == 2
                });
                std::thread::sleep(Duration::from_millis(300));
                let script = playground
                    .path("user_scripts/bob/gen/main.py")
                    .display()
                    .to_string();
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
    let rule = "[breaker]\nfailures = 2\nwait_seconds = 600\nwhy = \"w\"\n";
    let playground = playground(Who::ours(), &format!("{HEAD}{rule}"));
    let flaky = "import json, os, sys, time\nn = json.load(sys.stdin).get('n', 0)\nif n == 1: \
                 sys.exit(3)\nif n == 2: os.kill(os.getpid(), 11)\nif n == 3: \
                 time.sleep(9)\nprint(n)\n";
    let number = json!({"type": "integer", "description": "d"});
    let more = json!({"parameters": {"type": "object", "properties": {"n": number}}, "execution": {"timeoutMs": 4000}});
    playground.tool("flaky", "python", flaky, more);
    playground.settle();
    let mut server = serve(&playground, "alice");
    let mut flaky = |n: Value| words(&server.called("esc:flaky", json!({ "n": n })));
    // Neither what the caller did wrong, nor a script that ends with an error, nor a failure before
    // a success counts.
    for n in [
        json!(1),
        json!(1),
        json!(1),
        json!("x"),
        json!("x"),
        json!(2),
        json!(0),
        json!(2),
    ] {
        assert!(!flaky(n).contains("CircuitOpenError"));
    }
    assert!(
        flaky(json!(3)).contains("TimeoutError"),
        "the second in a row"
    );
    let open = flaky(json!(0));
    assert!(
        open.contains("CircuitOpenError") && open.contains("Circuit breaker open for esc__flaky"),
        "{open}"
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["decision"], &record["rule"]),
        (&json!("refused"), &json!("guard")),
        "nothing ran"
    );
    // Nor by the tool that runs a script by its path, which is itself not held back.
    let open = words(&server.called(BY_PATH, script("flaky/main.py")));
    assert!(open.contains("CircuitOpenError"), "{open}");
    let ran = words(&server.called(BY_PATH, script("alice/one/main.py")));
    assert!(!ran.contains("Error"), "{ran}");
    assert_eq!(
        said_to(&mut server, "bob", "esc:flaky", json!({"n": 0})),
        "0",
        "another caller's failures are its own"
    );
    drop(server);
    put(&playground, &format!("{HEAD}{}", rule.replace("600", "1")));
    let mut server = serve(&playground, "alice");
    let mut flaky = |n: u64| words(&server.called("esc:flaky", json!({ "n": n })));
    loop {
        wait_for("it is held back", || flaky(2).contains("CircuitOpenError"));
        std::thread::sleep(Duration::from_millis(1100));
        let tried = Instant::now();
        assert!(flaky(2).contains("ScriptError"), "one tries");
        if flaky(0).contains("CircuitOpenError") {
            break;
        }
        let waited = tried.elapsed() >= Duration::from_secs(1);
        assert!(waited, "and opens it again");
    }
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!([flaky(0), flaky(0)], ["0", "0"], "a success closes it");
}

#[test]
fn the_limit_of_a_tool_that_becomes_an_owner_meanwhile_counts() {
    let late = "[[limit]]\ntools = [\"b:late\"]\nwhy = \"w\"\ncalls_per_minute = 1\n";
    for (late, refused) in [(late, true), ("", false)] {
        let playground = waiters(&(ONE_AT_ONCE.replace("b:*", "b:slow") + late));
        let mut server = serve(&playground, "alice");
        let both = [0; 2].map(|_| server.call(BY_PATH, script("bob/slow/main.py")));
        playground.runs(SLOW, 1);
        let folder = playground.path("user_scripts/bob/slow");
        let manifest = fs::read_to_string(folder.join("b-slow.tool.json")).unwrap();
        fs::write(
            folder.join("b-late.tool.json"),
            manifest.replace("b:slow", "b:late"),
        )
        .unwrap();
        playground.settle();
        server.reload("the other owner is listed", |server| {
            server.names().contains(&"b__late".to_owned())
        });
        go(&playground, "slow");
        let answers = server.answers(&both);
        assert!(
            answers
                .values()
                .all(|answer| answer["result"]["isError"] != true),
            "{answers:?}"
        );
        let third = words(&server.called(BY_PATH, script("bob/slow/main.py")));
        assert_eq!(
            third.contains("This tool may be called 1 times a minute"),
            refused,
            "{third}"
        );
    }
}
