//! `confirm` over MCP: the person at the client that calls, asked by a form, where policy says so.

use super::{entry, me, put};
use crate::http::mcp::{Client, messages};
use crate::http::{GATE, Web, exchanged, gated, heard, open_gate};
use crate::prelude::*;
use std::process::{ChildStdin, ChildStdout};

const FILES: &str = "[files]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n";
const FORM: &str = "elicitation";
const KEY: &str = "toolhost.confirm";

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let script = "open('out/ran', 'a').write('x')\nprint('{\"paid\": 1}')\n";
    let more = json!({
        "parameters": {"type": "object", "properties": {"to": {"type": "string", "description": "d"}}},
        "securityContext": {"fileAccess": {"allowWrite": ["out/"]}},
    });
    for name in ["pay", "other"] {
        fs::create_dir_all(
            playground
                .tool(name, "python", script, more.clone())
                .join("out"),
        )
        .unwrap();
        policy(
            &playground,
            name,
            "confirm_by_client = \"its person sits beside ours\"\n",
        );
    }
    playground.settle();
    playground
}

fn policy(playground: &Playground, name: &str, more: &str) {
    playground.policy(
        name,
        &format!("esc:{name}"),
        &format!("confirm = \"it spends money\"\n{more}{FILES}"),
    );
}

fn ran(playground: &Playground) -> usize {
    fs::read(playground.path("user_scripts/pay/out/ran")).map_or(0, |marks| marks.len())
}

fn answer(action: &str, content: &Value) -> Value {
    json!({"action": action, "content": content})
}

fn yes() -> Value {
    answer("accept", &json!({"approve": true}))
}

/// A client of the newer era: what it is answered, and what it is sent away with.
struct Newer<'w>(&'w Web, &'w str);

impl Newer<'_> {
    fn call(&self, name: &str, to: &str, back: Value) -> Value {
        let mut client = Client::that_can(self.0, true, &[self.1], &json!({ FORM: {} }));
        let mut params = json!({"name": name, "arguments": {"to": to}});
        params
            .as_object_mut()
            .unwrap()
            .extend(back.as_object().cloned().unwrap());
        messages(&client.ask("tools/call", params)).pop().unwrap()
    }

    fn asked(&self, to: &str) -> Value {
        let asked = self.call("esc__pay", to, json!({}));
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        asked["result"].clone()
    }

    fn again(&self, name: &str, to: &str, asked: &Value, answer: &Value) -> Value {
        self.call(
            name,
            to,
            json!({"requestState": asked["requestState"], "inputResponses": {KEY: answer}}),
        )
    }
}

fn words(answer: &Value) -> String {
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_client_of_the_newer_era_asks_its_person_and_the_answer_counts_once() {
    let playground = playground(Who::ours());
    let (web, headers) = Web::for_callers(&playground, ["alice", "bob"]);
    let [alice, bob] = headers.each_ref().map(|header| Newer(&web, header));
    let asked = alice.asked("Eve");
    let params = &asked["inputRequests"][KEY]["params"];
    let shown = params["message"].as_str().unwrap();
    for word in [
        "esc:pay@1.0.0: may this call run?",
        "it spends money (policy pay)",
        "alice",
        "{\"to\":\"Eve\"}",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(
        !shown.contains(playground.path("").to_str().unwrap()),
        "no path of this host: {shown}"
    );
    assert_eq!(params["requestedSchema"]["required"], json!(["approve"]));
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["decision"], &record["rule"]),
        (&json!("refused"), &json!("confirm: asked"))
    );
    assert_eq!(ran(&playground), 0);

    // Another caller, other arguments, another tool: the state is not for them.
    for (who, name, to) in [
        (&bob, "esc__pay", "Eve"),
        (&alice, "esc__pay", "Mallory"),
        (&alice, "esc__other", "Eve"),
    ] {
        assert_eq!(
            who.again(name, to, &asked, &yes())["error"]["code"],
            -32602,
            "{name} {to}"
        );
    }
    assert_eq!(ran(&playground), 0);
    let paid = alice.again("esc__pay", "Eve", &asked, &yes());
    assert_eq!(
        paid["result"]["structuredContent"],
        json!({"paid": 1}),
        "control: {paid}"
    );
    let by = "alice (as the MCP client says)";
    assert_eq!(
        (
            ran(&playground),
            &playground.records().pop().unwrap()["approvedBy"]
        ),
        (1, &json!(by))
    );
    let twice = words(&alice.again("esc__pay", "Eve", &asked, &yes()));
    assert!(twice.contains("counts once"), "{twice}");

    let (denied, dismissed) = (
        format!("confirm: denied by {by}"),
        format!("confirm: dismissed by {by}"),
    );
    for (given, told, rule) in [
        (answer("decline", &json!({})), "did not agree", &denied[..]),
        (answer("accept", &json!({})), "did not agree", &denied),
        (
            answer("accept", &json!({"approve": "true"})),
            "did not agree",
            &denied,
        ),
        (
            answer("cancel", &json!({})),
            "closed the question without an answer",
            &dismissed,
        ),
        (json!({}), "and did not", "confirm: no answer that counts"),
    ] {
        let refused = words(&alice.again("esc__pay", "Eve", &alice.asked("Eve"), &given));
        assert!(refused.contains(told), "{given}: {refused}");
        assert_eq!(playground.records().pop().unwrap()["rule"], rule, "{given}");
    }
    // Policy says something else meanwhile.
    let asked = alice.asked("Eve");
    policy(
        &playground,
        "pay",
        "confirm_by_client = \"another reason\"\n",
    );
    web.signal(Signal::SIGHUP);
    wait_for("the policy", || {
        playground
            .cli(&["audit", "esc:pay"])
            .text()
            .contains("another reason")
    });
    wait_for("the server's, too", || {
        let now = alice.again(
            "esc__pay",
            "Eve",
            &alice.asked("Eve"),
            &answer("cancel", &json!({})),
        );
        now["result"]["isError"] == true
    });
    let changed = words(&alice.again("esc__pay", "Eve", &asked, &yes()));
    assert!(
        changed.contains("changed while a person was asked"),
        "{changed}"
    );
    assert_eq!(ran(&playground), 1);
}

/// Who is an operator is said by the file of callers alone, over MCP too: a form shows paths of
/// this host to nobody else.
#[test]
fn the_file_of_callers_says_who_is_an_operator() {
    let playground = playground(Who::ours());
    put(
        &playground,
        &(entry("alice", "\"*\"", "") + &entry("ops", "\"*\"", "role = \"operator\"\n")),
    );
    playground.settle();
    let (web, headers) = Web::for_callers(&playground, ["alice!", "ops"]);
    let shown = headers.each_ref().map(|header| {
        let asked = Newer(&web, header).asked("Eve");
        asked["inputRequests"][KEY]["params"]["message"]
            .as_str()
            .unwrap()
            .contains("user_scripts/pay/out")
    });
    assert_eq!(
        shown,
        [false, true],
        "alice's token says operator and the file does not; the control: ops"
    );
}

/// A call of an older client, and the question that it is asked.
fn asked(client: &mut Client) -> (TcpStream, Value) {
    let mut stream = client.begin("esc__pay");
    let all = heard(&mut stream, "elicitation/create");
    let all = if all.ends_with('\n') {
        all
    } else {
        all + &heard(&mut stream, "\n")
    };
    let mut data = all.lines().filter_map(|line| line.strip_prefix("data: "));
    let question = data
        .find(|line| line.contains("elicitation/create"))
        .unwrap();
    (stream, serde_json::from_str(question).unwrap())
}

#[test]
fn a_server_that_stops_takes_the_answer_of_a_client_and_is_not_held_up_by_its_question() {
    for answers in [true, false] {
        let playground = playground(Who::ours());
        gated(&playground);
        playground.settle();
        let mut web = Web::start(&playground, &[]);
        let mut running = web.send(
            "POST",
            "/v1/tools/esc:gate/calls",
            &[],
            "{\"file\": \"end\"}",
        );
        playground.runs(GATE, 1);
        let mut client = Client::that_can(&web, false, &[], &json!({ FORM: {} }));
        let (stream, question) = asked(&mut client);
        web.signal(Signal::SIGTERM);
        wait_for("it drains", || web.get("/readyz", &[]).status == 503);
        assert_eq!(
            client.ask("ping", json!({})).status,
            503,
            "control: no request is taken"
        );
        if answers {
            let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": yes()});
            assert_eq!(client.post(&reply).status, 202);
            let rest = String::from_utf8(exchanged(stream, b"")).unwrap();
            assert!(rest.contains("paid"), "{rest}");
        }
        open_gate(&playground, "end");
        heard(&mut running, "through");
        assert_eq!(web.ended(Duration::from_secs(15)), Some(143));
    }
}

#[test]
fn an_older_client_is_asked_while_its_call_waits_and_operators_where_policy_or_the_client_does_not_allow_it()
 {
    let playground = playground(Who::ours());
    let web = Web::start(&playground, &[]);
    for (given, words) in [
        (json!({"result": yes()}), "paid"),
        (
            json!({"result": answer("decline", &json!({}))}),
            "did not agree",
        ),
        (
            json!({"error": {"code": -32603, "message": "no window"}}),
            "and did not",
        ),
    ] {
        let mut client = Client::that_can(&web, false, &[], &json!({ FORM: {} }));
        let (stream, question) = asked(&mut client);
        assert!(
            question["params"]["message"]
                .as_str()
                .unwrap()
                .contains("it spends money"),
            "{question}"
        );
        let mut reply = json!({"jsonrpc": "2.0", "id": question["id"]});
        reply
            .as_object_mut()
            .unwrap()
            .extend(given.as_object().cloned().unwrap());
        // Another session's answer to a question of that id is none.
        assert_eq!(
            Client::that_can(&web, false, &[], &json!({ FORM: {} }))
                .post(&reply)
                .status,
            202
        );
        assert_eq!(client.post(&reply).status, 202);
        let rest = String::from_utf8(exchanged(stream, b"")).unwrap();
        assert!(rest.contains(words), "{rest}");
    }
    assert_eq!(ran(&playground), 1);

    let open = || {
        web.get("/v1/approvals", &[]).json()["approvals"]
            .as_array()
            .unwrap()
            .clone()
    };
    let reply = |question: &Value, yes: bool| {
        let path = format!("/v1/approvals/{}", question["call"].as_str().unwrap());
        web.ask("POST", &path, &[], &json!({"approve": yes}).to_string())
            .status
    };
    let by_operator = |modern: bool, can: Value| {
        let before = ran(&playground);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                Client::that_can(&web, modern, &[], &can)
                    .call("esc__pay", json!({}))
                    .0
            });
            wait_for("an operator is asked", || open().len() == 1);
            assert_eq!(reply(&open()[0], true), 200);
            assert_eq!(
                call.join().unwrap()["result"]["structuredContent"],
                json!({"paid": 1})
            );
        });
        assert_eq!(ran(&playground), before + 1);
    };
    for modern in [true, false] {
        by_operator(modern, json!({}));
        by_operator(modern, json!({ FORM: {"url": {}} }));
    }
    // The cap of the host asks, and does not say that clients may.
    let cap = format!("name = \"cap\"\nwhy = \"w\"\nconfirm = \"this host is watched\"\n{FILES}");
    fs::write(playground.path("sandbox-policies/host.policy.toml"), cap).unwrap();
    playground.settle();
    web.signal(Signal::SIGHUP);
    wait_for("the cap", || {
        playground
            .cli(&["audit", "esc:pay"])
            .text()
            .contains("this host is watched")
    });
    let newer = Newer(&web, "X-Nothing: 1");
    wait_for("the server's, too", || {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| newer.call("esc__pay", "Eve", json!({})));
            wait_for("an answer, or a question", || {
                call.is_finished() || !open().is_empty()
            });
            open()
                .iter()
                .for_each(|question| _ = reply(question, false));
            call.join().unwrap().to_string().contains("did not agree")
        })
    });
    let audit = playground.cli(&["audit", "esc:pay"]).text();
    assert!(
        audit.contains("the MCP client that calls may ask its person: its person sits beside ours"),
        "{audit}"
    );
}

#[test]
fn tools_that_ask_and_those_with_tasks_need_a_yes_too() {
    let playground = playground(Who::ours());
    let script = "import toolhost\ndef run(to=None):\n    if 'who' not in \
                  toolhost.answers:\n        return toolhost.ask({'n': 7}, \
                  who=toolhost.form('Who?', {'name': {'type': 'string'}}))\n    return \
                  [toolhost.answers['who']['content']['name'], toolhost.state['n']]\n";
    let requires = json!({"requiredCapabilities": ["ask:elicitation"]});
    playground.tool(
        "asks",
        "python",
        script,
        json!({"handler": {"entryPoint": "run"}, "securityContext": requires}),
    );
    let grant = "[capabilities]\ngrant = [{ name = \"ask:elicitation\", why = \"a test\" }]\n";
    let text = format!("confirm = \"w\"\nconfirm_by_client = \"w\"\n{FILES}{grant}");
    playground.policy("asks", "esc:asks", &text);
    playground.tool(
        "slow",
        "python",
        "print('{\"slow\": 1}')\n",
        json!({"execution": {"task": "optional"}}),
    );
    policy(&playground, "slow", "confirm_by_client = \"w\"\n");
    playground.settle();
    let web = Web::start(&playground, &[]);
    let newer = Newer(&web, "X-Nothing: 1");
    let back = |asked: &Value, key: &str, answer: Value| {
        let result = &asked["result"];
        assert!(
            result["inputRequests"][key].is_object() && result["requestState"].is_string(),
            "{key}: {asked}"
        );
        newer.call(
            "esc__asks",
            "",
            json!({"requestState": result["requestState"], "inputResponses": {key: answer}}),
        )
    };
    let asks = back(&newer.call("esc__asks", "", json!({})), KEY, yes());
    let second = back(&asks, "who", answer("accept", &json!({"name": "Al"})));
    assert_eq!(
        words(&back(&second, KEY, answer("cancel", &json!({}))))
            .matches("closed the question")
            .count(),
        1
    );
    let second = back(&asks, "who", answer("accept", &json!({"name": "Al"})));
    let done = back(&second, KEY, yes());
    assert_eq!(
        done["result"]["content"][0]["text"], "[\n  \"Al\",\n  7\n]",
        "{done}"
    );

    let can = json!({FORM: {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    // Where a person must agree the client waits for the call, also if it knows tasks.
    let ask = |more: Value| {
        let mut params = json!({"name": "esc__slow", "arguments": {}});
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        messages(&Client::that_can(&web, true, &[], &can).ask("tools/call", params))
            .pop()
            .unwrap()["result"]
            .clone()
    };
    for (given, outcome) in [
        (yes(), "slow"),
        (answer("decline", &json!({})), "did not agree"),
    ] {
        let asked = ask(json!({}));
        let question = &asked["inputRequests"][KEY]["params"]["message"];
        assert!(
            question.as_str().unwrap().contains("esc:slow@1.0.0"),
            "{asked}"
        );
        let ended =
            ask(json!({"requestState": asked["requestState"], "inputResponses": {KEY: given}}));
        assert!(ended.to_string().contains(outcome), "{ended}");
    }
}

/// One server over standard input and output, and what a client of it can.
struct Line(Child, ChildStdin, BufReader<ChildStdout>);

impl Line {
    fn to(playground: &Playground, can: Value) -> Line {
        let mut command = playground.host();
        command
            .args(["serve", "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let (to, from) = (
            server.stdin.take().unwrap(),
            BufReader::new(server.stdout.take().unwrap()),
        );
        let mut line = Line(server, to, from);
        let client = json!({"name": "t", "version": "1"});
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": client});
        line.send(json!({"id": 1, "method": "initialize", "params": hello}));
        assert_eq!(line.next()["result"]["protocolVersion"], "2025-11-25");
        line.send(json!({"method": "notifications/initialized"}));
        line
    }

    fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        writeln!(self.1, "{message}").unwrap();
    }

    fn pay(&mut self, id: u64) -> Value {
        self.send(json!({"id": id, "method": "tools/call", "params": {"name": "esc__pay", "arguments": {}}}));
        self.next()
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.2.read_line(&mut line).unwrap() > 0, "it left");
        serde_json::from_str(&line).unwrap()
    }

    /// The next message that is an answer or a question.
    fn next(&mut self) -> Value {
        std::iter::repeat_with(|| self.read())
            .find(|message| message.get("id").is_some())
            .unwrap()
    }

    fn end(mut self) {
        drop(self.1);
        self.0.wait().unwrap();
    }
}

#[test]
fn over_stdio_the_person_at_the_client_is_asked_and_otherwise_nobody() {
    let playground = playground(Who::ours());
    let mut line = Line::to(&playground, json!({ FORM: {} }));
    let question = line.pay(2);
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let shown = question["params"]["message"].as_str().unwrap();
    assert!(
        shown.contains("it spends money") && shown.contains("read "),
        "an operator sees all of it: {shown}"
    );
    line.send(json!({"id": question["id"], "result": yes()}));
    let paid = line.next();
    assert_eq!(
        (&paid["id"], &paid["result"]["structuredContent"]),
        (&json!(2), &json!({"paid": 1})),
        "{paid}"
    );
    let by = format!("{} (as the MCP client says)", me(playground.who));
    assert_eq!(playground.records().pop().unwrap()["approvedBy"], json!(by));
    // A call that its client cancels takes its question back.
    let question = line.pay(3);
    line.send(json!({"method": "notifications/cancelled", "params": {"requestId": 3}}));
    let cancelled = json!(["notifications/cancelled", question["id"]]);
    let back = |told: &Value| json!([told["method"], told["params"]["requestId"]]) == cancelled;
    std::iter::repeat_with(|| line.read()).find(back).unwrap();
    line.end();

    let mut line = Line::to(&playground, json!({}));
    assert!(words(&line.pay(2)).contains("no person can be asked"));
    line.end();
    assert_eq!(ran(&playground), 1);
}
