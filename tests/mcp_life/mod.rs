//! MCP servers of others behind all layers: what goes on between calls, and for whom; what ends a
//! server, and what does not; and that it gets no more than a script would. Each attack has a control.

use crate::http::{Web, caller, tokens, write_callers};
use crate::prelude::*;

const FAKE: &str = include_str!("fake.py");
const GRANTS: &str = "[files]\nread = [{ path = \"./**\", why = \"its code\" }]\n\
                      write = [{ path = \"./data/**\", why = \"its data\" }]\n\
                      [limits]\ntimeout_ms = 120_000\n";

struct Fakes {
    playground: Playground,
    folder: PathBuf,
}

/// A host with the server `fake:server`, whose list is recorded and which is approved.
fn fakes(who: Who, policy: &str, more: Value) -> Fakes {
    let fakes = unapproved(who, policy, more);
    fakes.settle_list();
    fakes
}

fn unapproved(who: Who, policy: &str, more: Value) -> Fakes {
    let playground = Playground::new(who, "/var/tmp");
    playground.without_breaker();
    let asks = json!({
        "securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["data/"]}},
        "execution": {"timeoutMs": 120_000},
    });
    let folder = playground.tool_at("fake:server", "python", "fake/server.py", FAKE, asks);
    fs::create_dir(folder.join("data")).unwrap();
    let fakes = Fakes { playground, folder };
    fakes.change(json!({"handler": {"type": "mcp"}}));
    fakes.change(more);
    fakes.playground.policy("fake", "fake:*", policy);
    fakes.playground.settle();
    fakes
}

impl Fakes {
    fn manifest(&self) -> PathBuf {
        self.folder.join("fake-server.tool.json")
    }

    /// Adds members to the blocks of its manifest.
    fn change(&self, more: Value) {
        let mut whole: Value = serde_json::from_slice(&fs::read(self.manifest()).unwrap()).unwrap();
        for (name, block) in more.as_object().unwrap() {
            match whole.get_mut(name).and_then(Value::as_object_mut) {
                Some(there) => there.extend(block.as_object().unwrap().clone()),
                None => whole[name] = block.clone(),
            }
        }
        fs::write(self.manifest(), whole.to_string()).unwrap();
    }

    fn settle_list(&self) {
        self.verb(&["mcp", "refresh", "fake:server", "--yes"], 0);
        self.playground.settle();
        self.verb(&["approve", "fake:server", "--why", "a test", "--yes"], 0);
    }

    #[track_caller]
    fn verb(&self, words: &[&str], code: i32) -> Ended {
        let ended = self.playground.cli(words);
        assert_eq!(
            ended.code,
            Some(code),
            "{words:?}: {}{}",
            ended.text(),
            ended.stderr
        );
        ended
    }

    fn call(&self, tool: &str, input: Value) -> Ended {
        self.playground
            .call(&format!("fake:{tool}"), &input.to_string())
    }
}

fn asked(web: &Web, tool: &str, input: Value, headers: &[&str]) -> Value {
    let body = json!({"arguments": input});
    web.call(&format!("fake:{tool}"), &body, headers).json()
}

/// What its counter says, and its process.
#[track_caller]
fn counted(web: &Web, headers: &[&str]) -> (u64, u64) {
    let answer = asked(web, "count", json!({}), headers);
    let number = |name: &str| answer["outputData"][name].as_u64();
    let both = number("count").zip(number("pid"));
    both.unwrap_or_else(|| panic!("{answer}"))
}

#[track_caller]
fn fails(answer: &Value, kind: &str, words: &str) {
    assert_eq!(answer["error"]["type"], kind, "{answer}");
    assert!(
        answer["error"].to_string().contains(words),
        "{words}: {answer}"
    );
}

/// One process serves two calls side by side, keeps its state, ends with its host, and is seen.
#[test]
fn a_server_goes_on_between_the_calls_of_its_caller_alone() {
    as_everyone("MCP servers", |who| {
        let fakes = unapproved(who, GRANTS, json!({}));
        let callers = [
            caller("alice", ""),
            caller("bob", ""),
            caller("root", "role = \"operator\"\n"),
        ];
        write_callers(&fakes.playground, &callers.concat());
        fakes.settle_list();
        let (file, [alice, bob, root]) = tokens(&fakes.playground, ["alice", "bob", "root!"]);
        let web = Web::start(&fakes.playground, &["--token-file", &file]);
        assert_eq!(counted(&web, &[&alice]).0, 1);
        let side_by_side = std::thread::scope(|scope| {
            let waits = scope.spawn(|| asked(&web, "wait", json!({}), &[&alice]));
            let goes = asked(&web, "go", json!({}), &[&alice]);
            [waits.join().unwrap(), goes].map(|it| it["outputData"].clone())
        });
        assert_eq!(side_by_side, ["it went", "go"]);
        assert_eq!(counted(&web, &[&alice]).0, 2, "its state is kept");
        assert_eq!(counted(&web, &[&bob]).0, 1, "and not shared");
        let blocks = asked(&web, "blocks", json!({}), &[&alice]);
        assert_eq!(
            blocks["outputData"]["$content"].as_array().map(Vec::len),
            Some(2),
            "{blocks}"
        );
        let all = web.get("/v1/calls", &[&root]).json();
        assert_eq!(all["sessions"].as_array().map(Vec::len), Some(2), "{all}");
        let own = web.get("/v1/calls", &[&bob]).json();
        assert_eq!(own["sessions"].as_array().map(Vec::len), Some(1), "{own}");
        let id = own["sessions"][0]["id"].as_str().unwrap();
        assert_eq!(
            web.ask("DELETE", &format!("/v1/calls/{id}"), &[&alice], "")
                .status,
            404
        );
        assert_eq!(
            web.ask("DELETE", &format!("/v1/calls/{id}"), &[&bob], "")
                .status,
            202
        );
        wait_for("a server starts again", || counted(&web, &[&bob]).0 == 1);
        let script = fakes.folder.join("server.py").display().to_string();
        assert!(!processes_of(&script).is_empty());
        web.signal(Signal::SIGKILL);
        wait_for("nothing of it is left", || processes_of(&script).is_empty());
    });
}

#[test]
fn callers_share_a_server_where_policy_says_so() {
    let shared = "[mcp]\nshared = true\nidle_ms = 1_000\nwhy = \"a test\"\n";
    let fakes = unapproved(Who::ours(), &format!("{GRANTS}{shared}"), json!({}));
    let callers = [caller("alice", ""), caller("bob", "")];
    write_callers(&fakes.playground, &callers.concat());
    fakes.settle_list();
    let (file, [alice, bob]) = tokens(&fakes.playground, ["alice", "bob"]);
    let web = Web::start(&fakes.playground, &["--token-file", &file]);
    loop {
        let began = Instant::now();
        let (first, process) = counted(&web, &[&alice]);
        let second = counted(&web, &[&bob]);
        if second == (first + 1, process) {
            break;
        }
        let was_idle = began.elapsed() >= Duration::from_secs(1);
        assert!(was_idle, "{first} of {process}, then {second:?}");
    }
    let script = fakes.folder.join("server.py").display().to_string();
    wait_for("it ends when it is idle", || {
        processes_of(&script).is_empty()
    });
    assert_eq!(counted(&web, &[&bob]).0, 1);
}

/// What a server does ill fails its calls, ends it if it must, and hurts nobody else.
#[test]
fn a_server_that_fails_ends_and_starts_again() {
    let limits = json!({"limits": {"memoryBytes": 268_435_456, "outputBytes": 1_048_576}});
    let fakes = fakes(Who::ours(), GRANTS, limits);
    let web = Web::start(&fakes.playground, &[]);
    let cases = [
        ("die", "ServiceError", "exit status was 3"),
        ("die", "ServiceError", "its last words"),
        ("close", "ServiceError", "closed its stdin or stdout"),
        ("junk", "ServiceError", "It begins: Server is listening"),
        ("flood", "ResourceLimitError", "outputBytes"),
        ("line", "ResourceLimitError", "outputBytes"),
        ("eat", "ResourceLimitError", "memoryBytes"),
    ];
    for (tool, kind, words) in cases {
        assert_eq!(counted(&web, &[]).0, 1, "{tool}");
        fails(&asked(&web, tool, json!({}), &[]), kind, words);
    }
    let (_, process) = counted(&web, &[]);
    let wrong = asked(&web, "wrong", json!({}), &[]);
    assert_eq!(wrong["outputData"], "first", "{wrong}");
    assert_eq!(
        counted(&web, &[]),
        (2, process),
        "late answers are nobody's"
    );
}

/// The line that breaks a server is shown where the server has a secret, too, and the secret is not.
#[test]
fn what_a_server_with_a_secret_printed_is_shown_without_it() {
    let secret =
        "[secrets]\ngrant = [{ name = \"KEY\", from = \"file:api.key\", why = \"a test\" }]\n";
    let asks = json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}});
    let fakes = unapproved(Who::ours(), &format!("{GRANTS}{secret}"), asks);
    let value = "a-secret-value-0123456789";
    let put = || crate::http::private(&fakes.playground, "sandbox-policies/api.key", value);
    put();
    fakes.verb(&["mcp", "refresh", "fake:server", "--yes"], 0);
    fakes.playground.settle();
    put();
    fakes.verb(&["approve", "fake:server", "--why", "a test", "--yes"], 0);
    let ended = fakes.call("junk", json!({"long": true}));
    let words = "It begins: Server is listening with *** x x";
    fails(&ended.out, "ServiceError", words);
    assert!(!ended.text().contains("a-secret"), "{}", ended.text());
}

/// Nobody else pays for what a server writes, and one that loses its caller ends.
#[test]
fn a_server_that_writes_without_end_holds_up_nobody() {
    let fakes = unapproved(Who::ours(), GRANTS, json!({}));
    let [alice, bob] = ["alice", "bob"].map(|name| caller(name, ""));
    write_callers(&fakes.playground, &format!("{alice}{bob}"));
    fakes.settle_list();
    let (file, [alice, bob]) = tokens(&fakes.playground, ["alice", "bob"]);
    let web = Web::start(&fakes.playground, &["--token-file", &file]);
    let began = asked(&web, "spam", json!({"fd": 2}), &[&alice]);
    assert_eq!(began["success"], true, "{began}");
    assert_eq!(counted(&web, &[&bob]).0, 1);
    assert_eq!(counted(&web, &[&alice]).0, 1, "its log hides no answer");
    let script = fakes.folder.join("server.py").display().to_string();
    let both = processes_of(&script).len();
    let began = asked(&web, "spam", json!({"fd": 1}), &[&alice]);
    assert_eq!(began["success"], true, "{began}");
    wait_for("what nobody asked for ends it", || {
        processes_of(&script).len() < both
    });
    assert_eq!(counted(&web, &[&bob]).0, 2, "the control goes on");
    let [alice, bob] = ["alice", "bob"].map(|name| caller(name, ""));
    let none = (alice + &bob).replace("[\"*\"]", "[\"core:*\"]");
    write_callers(&fakes.playground, &none);
    wait_for("they end with the rights of their callers", || {
        processes_of(&script).is_empty()
    });
}

/// What is recorded of a server is of one call: calls side by side have servers of their own.
#[test]
fn observed_calls_end_no_server_of_others() {
    let fakes = fakes(Who::ours(), &format!("observe = true\n{GRANTS}"), json!({}));
    let web = Web::start(&fakes.playground, &[]);
    let meet = |make: &str, other: &str| {
        let files = json!({"make": format!("data/{make}"), "await": format!("data/{other}")});
        asked(&web, "meet", files, &[])["outputData"].clone()
    };
    let met = std::thread::scope(|scope| {
        let first = scope.spawn(|| meet("a", "b"));
        [meet("b", "a"), first.join().unwrap()]
    });
    assert_eq!(met, ["met", "met"]);
}

/// A call that is over its time is cancelled. Its server goes on if it says that the call is over.
#[test]
fn a_cancelled_call_ends_or_its_server_does() {
    let fakes = fakes(Who::ours(), GRANTS, json!({}));
    let web = Web::start(&fakes.playground, &[]);
    let hang = |input: Value| {
        let body = json!({"arguments": input, "config": {"timeoutMs": 5_000}});
        fails(
            &web.call("fake:hang", &body, &[]).json(),
            "TimeoutError",
            "",
        );
    };
    let (_, process) = counted(&web, &[]);
    hang(json!({"polite": true}));
    assert_eq!(counted(&web, &[]), (2, process));
    hang(json!({}));
    let script = fakes.folder.join("server.py").display().to_string();
    wait_for("it was ended", || processes_of(&script).is_empty());
    assert_eq!(counted(&web, &[]).0, 1);
}

/// A call that comes while a cancelled one is not answered waits for the next server, whoever
/// cancelled it.
#[test]
fn a_call_after_a_cancelled_one_does_not_end_with_its_server() {
    let shared = "[mcp]\nshared = true\nwhy = \"a test\"\n";
    let fakes = unapproved(Who::ours(), &format!("{GRANTS}{shared}"), json!({}));
    let callers = [caller("alice", ""), caller("bob", "")];
    write_callers(&fakes.playground, &callers.concat());
    fakes.settle_list();
    let (file, [alice, bob]) = tokens(&fakes.playground, ["alice", "bob"]);
    let web = Web::start(&fakes.playground, &["--token-file", &file]);
    counted(&web, &[&alice]);
    let body = json!({"arguments": {}, "config": {"timeoutMs": 5_000}});
    let late = web.call("fake:hang", &body, &[&alice]).json();
    fails(&late, "TimeoutError", "");
    let both = std::thread::scope(|scope| {
        let own = scope.spawn(|| counted(&web, &[&alice]));
        [counted(&web, &[&bob]), own.join().unwrap()]
    });
    // Its next server counts from 1, for both.
    assert_eq!(both.map(|it| it.0).iter().sum::<u64>(), 3, "{both:?}");
}

#[test]
fn a_server_that_keeps_dying_is_held_back() {
    let fakes = unapproved(Who::ours(), GRANTS, json!({}));
    let breaker = "[breaker]\nfailures = 2\nwait_seconds = 600\nwhy = \"a test\"\n";
    write_callers(&fakes.playground, &format!("{}{breaker}", caller("*", "")));
    fakes.settle_list();
    let web = Web::start(&fakes.playground, &[]);
    for _ in 0..2 {
        fails(&asked(&web, "die", json!({}), &[]), "ServiceError", "");
    }
    fails(
        &asked(&web, "count", json!({}), &[]),
        "CircuitOpenError",
        "",
    );
}

/// It reads, writes and reaches what it was granted, and nothing else; what it was refused stands in
/// the call that ran meanwhile.
#[test]
fn a_server_gets_no_more_than_its_grants() {
    as_everyone("MCP servers", |who| {
        let fakes = fakes(who, GRANTS, json!({}));
        let secret = fakes
            .playground
            .path("secret/secret.txt")
            .display()
            .to_string();
        let before = fakes.playground.state(&[&fakes.folder.join("data")]);
        let listeners = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listeners.local_addr().unwrap().port();
        let input = json!({
            "read": [secret, fakes.folder.join("server.py")],
            "write": ["server.py", "beside.py", "data/kept"],
            "reach": [["127.0.0.1", port]],
        });
        let ended = fakes
            .playground
            .call_with("fake:probe", &input.to_string(), &["--explain"]);
        let done = &ended.out["outputData"];
        assert_eq!(done[&secret], "FileNotFoundError", "{}", ended.text());
        assert_eq!(
            done[fakes.folder.join("server.py").to_str().unwrap()],
            "done"
        );
        assert_ne!(done["server.py"], "done");
        assert_ne!(done["beside.py"], "done");
        assert_eq!(done["data/kept"], "done", "the control");
        assert_ne!(done[format!("['127.0.0.1', {port}]")], "done");
        assert_eq!(
            fakes.playground.state(&[&fakes.folder.join("data")]),
            before
        );
        let denials = ended.out["denials"]["observed"].to_string();
        assert!(
            denials.contains(&secret) && denials.contains(&format!("127.0.0.1:{port}")),
            "{denials}"
        );
        // The control: outside the layers all of this works.
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(fs::read(&secret).is_ok());
    });
}

/// What a person approved is what may be called, at the start and later.
#[test]
fn what_a_server_changes_is_not_called() {
    let fakes = fakes(Who::ours(), GRANTS, json!({}));
    let web = Web::start(&fakes.playground, &[]);
    assert_eq!(
        asked(&web, "say", json!({"text": "x"}), &[])["success"],
        true,
        "the control"
    );
    let mute = json!({"mute": true});
    assert_eq!(asked(&web, "change", mute, &[])["success"], true);
    // Until its list was read, nothing of it is believed.
    fails(
        &asked(&web, "count", json!({}), &[]),
        "ServiceError",
        "not now",
    );
    let changed = asked(&web, "count", json!({}), &[]);
    fails(
        &changed,
        "SecurityError",
        "otherwise than when it was approved",
    );
    fails(
        &asked(&web, "wait", json!({}), &[]),
        "CapabilityError",
        "no longer has",
    );
    fails(&asked(&web, "new", json!({}), &[]), "ToolNotFoundError", "");
    assert_eq!(
        asked(&web, "say", json!({"text": "x"}), &[])["success"],
        true
    );
    drop(web);
    // The list shows what changed, and nothing of the server runs before somebody approved that.
    fakes.change(json!({"handler": {"args": ["changed"]}}));
    fakes.playground.settle();
    let shown = fakes.verb(&["mcp", "refresh", "fake:server", "--yes", "--json"], 0);
    assert_eq!(shown.out["changed"], json!(["count"]));
    assert_eq!(
        (&shown.out["new"], &shown.out["gone"]),
        (&json!(["new"]), &json!(["wait"]))
    );
    let refused = fakes.call("go", json!({}));
    assert_eq!(refused.kind(), "SecurityError", "{}", refused.text());
}

/// One call from the command line starts its server, uses it and ends it, also one that does not end
/// by itself; a server that cannot start says why.
#[test]
fn one_call_leaves_no_server() {
    let fakes = fakes(Who::ours(), GRANTS, json!({"handler": {"args": ["stays"]}}));
    let said = "a line of its log";
    let ended = fakes.call("say", json!({"text": said}));
    assert_eq!(ended.out["outputData"], "said", "{}", ended.text());
    let logs = ended.out["logs"].to_string();
    assert!(logs.contains(said), "{}", ended.text());
    let script = fakes.folder.join("server.py").display().to_string();
    assert!(processes_of(&script).is_empty());
    let dies = unapproved(Who::ours(), GRANTS, json!({"handler": {"args": ["dies"]}}));
    let ended = dies
        .playground
        .cli(&["mcp", "refresh", "fake:server", "--yes"]);
    assert!(
        ended.stderr.contains("could not be used") || ended.stderr.contains("ended before"),
        "{}",
        ended.stderr
    );
}

/// What a server does with its network once its last call has ended has a record, too.
#[test]
fn what_a_server_reaches_between_calls_is_recorded() {
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["granted.example"]}}});
    let hosts = "[network]\nhosts = [{ host = \"granted.example\", why = \"a test\" }]\n";
    let fakes = fakes(Who::ours(), &format!("{GRANTS}{hosts}"), asks);
    let mut web = Web::start(&fakes.playground, &[]);
    let input = json!({"await": "data/go", "make": "data/gone", "reach": ["refused.example", 80]});
    let answer = asked(&web, "later", input, &[]);
    assert_eq!(answer["success"], true, "{answer}");
    fs::write(fakes.folder.join("data/go"), "").unwrap();
    let gone = fakes.folder.join("data/gone");
    wait_for("it tried", || gone.exists());
    web.signal(Signal::SIGTERM);
    web.ended(PATIENCE);
    is_recorded_once(&fakes);
}

/// One record, outside of calls, has the name that was refused.
#[track_caller]
fn is_recorded_once(fakes: &Fakes) {
    let log = fs::read_to_string(fakes.playground.path("state/audit.jsonl")).unwrap();
    let records = log.lines();
    let records = records.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut records = records.filter(|it| it["network"]["events"].to_string().contains("refused."));
    let record = records.next().unwrap_or_else(|| panic!("{log}"));
    assert_eq!(record["tool"], "fake:server@1.0.0", "{record}");
    assert_ne!(record["user"], "", "{record}");
    let said = record["notes"].to_string();
    assert!(said.contains("outside of calls"), "{record}");
    assert!(records.next().is_none(), "{log}");
}

/// So has what it does when it is started for its list alone.
#[test]
fn what_a_server_reaches_when_its_tools_are_listed_is_recorded() {
    let asks = json!({"handler": {"args": ["reaches"]},
        "securityContext": {"networkAccess": {"allowHosts": ["granted.example"]}}});
    let hosts = "[network]\nhosts = [{ host = \"granted.example\", why = \"a test\" }]\n";
    let fakes = unapproved(Who::ours(), &format!("{GRANTS}{hosts}"), asks);
    fakes.verb(&["mcp", "refresh", "fake:server", "--yes"], 0);
    is_recorded_once(&fakes);
}

/// A start that takes longer than a call may is not begun again by the next call.
#[test]
fn a_slow_start_goes_on_for_the_next_call() {
    let fakes = unapproved(Who::ours(), GRANTS, json!({"handler": {"args": ["slow"]}}));
    let go = fakes.folder.join("data/go");
    fs::write(&go, "").unwrap();
    fakes.settle_list();
    fs::remove_file(&go).unwrap();
    let started = fakes.folder.join("data/started");
    fs::remove_file(&started).unwrap();
    let web = Web::start(&fakes.playground, &[]);
    let body = json!({"arguments": {}, "config": {"timeoutMs": 3000}});
    wait_for("a call is late while it is being started", || {
        let late = web.call("fake:count", &body, &[]).json();
        fails(&late, "TimeoutError", "");
        late["error"].to_string().contains("still being started")
    });
    fs::write(&go, "").unwrap();
    let (count, _) = counted(&web, &[]);
    assert_eq!(count, 1);
    assert_eq!(
        fs::read_to_string(&started).unwrap(),
        "x",
        "it started once"
    );
}

/// A server asks the person of its caller where policy grants that, and is declined elsewhere.
#[test]
fn a_question_goes_to_the_caller_where_that_is_granted() {
    let declined = fakes(Who::ours(), GRANTS, json!({}));
    let ended = declined.call("ask", json!({}));
    assert_eq!(
        ended.out["outputData"],
        "{\"action\": \"decline\"}",
        "{}",
        ended.text()
    );
    let grant = "[capabilities]\ngrant = [{ name = \"ask:elicitation\", why = \"a test\" }]\n";
    let requests = json!({"securityContext": {"requiredCapabilities": ["ask:elicitation"]}});
    let granted = fakes(Who::ours(), &format!("{GRANTS}{grant}"), requests);
    let ended = granted.call("ask", json!({}));
    assert_eq!(
        ended.out["outputData"],
        "{\"action\": \"decline\"}",
        "{}",
        ended.text()
    );
    let mut server = Server::start(&granted.playground);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "t", "version": "1"}});
    let _ = server.asked("initialize", hello);
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let call = server.call("fake:ask", json!({}));
    let question = server.request("elicitation/create");
    assert_eq!(
        question["params"]["message"], "fake:ask asks: Which colour?",
        "{question}"
    );
    let answer = json!({"action": "accept", "content": {"colour": "red"}});
    server.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}));
    let answers = server.answers(&[call]);
    assert!(words(&answers[&call]).contains("red"), "{answers:?}");
}
