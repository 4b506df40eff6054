//! MCP over HTTP: both protocol eras, owners of sessions, messages while a tool runs, clients that
//! leave.

use super::{Reply, Web, adder, exchanged, heard, served, served_to, sleeper};
use crate::prelude::*;

pub const BOTH: &str = "Accept: application/json, text/event-stream";
const NEW: &str = "2026-07-28";
pub const SLEEPER: &str = "user_scripts/sleep/main.py";

/// A client of one era.
pub struct Client<'w> {
    web: &'w Web,
    pub headers: Vec<String>,
    modern: bool,
    can: Value,
    next: u64,
}

impl<'w> Client<'w> {
    pub fn new(web: &'w Web, modern: bool, headers: &[&str]) -> Client<'w> {
        Client::that_can(web, modern, headers, &json!({}))
    }

    /// With these capabilities.
    pub fn that_can(web: &'w Web, modern: bool, headers: &[&str], can: &Value) -> Client<'w> {
        let headers = headers
            .iter()
            .map(|line| (*line).to_owned())
            .chain([BOTH.to_owned()])
            .collect();
        let mut client = Client {
            web,
            headers,
            modern,
            can: can.clone(),
            next: 0,
        };
        if !modern {
            let who = json!({"name": "t", "version": "1"});
            let hello =
                json!({"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": who});
            let welcome = client.ask("initialize", hello);
            assert_eq!(
                messages(&welcome)[0]["result"]["protocolVersion"],
                "2025-11-25",
                "{welcome:?}"
            );
            client.headers.push(format!(
                "Mcp-Session-Id: {}",
                welcome.header("mcp-session-id").unwrap()
            ));
            let ready =
                client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
            assert_eq!(ready.status, 202, "{ready:?}");
        }
        client
    }

    pub fn session(&self) -> &str {
        self.headers.last().unwrap()
    }

    pub fn message(&mut self, method: &str, mut params: Value) -> (Vec<String>, Value) {
        self.next += 1;
        let mut headers = self.headers.clone();
        if self.modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(NEW);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.can.clone();
            headers.extend([
                format!("MCP-Protocol-Version: {NEW}"),
                format!("Mcp-Method: {method}"),
            ]);
            headers.extend(
                params["name"]
                    .as_str()
                    .or(params["taskId"].as_str())
                    .map(|name| format!("Mcp-Name: {name}")),
            );
        }
        (
            headers,
            json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}),
        )
    }

    /// A connection on which this was requested.
    pub fn send(&mut self, method: &str, params: Value) -> TcpStream {
        let (headers, message) = self.message(method, params);
        self.web
            .send("POST", "/mcp", &borrowed(&headers), &message.to_string())
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Reply {
        let (headers, message) = self.message(method, params);
        self.web
            .ask("POST", "/mcp", &borrowed(&headers), &message.to_string())
    }

    /// The last message of the answer.
    pub fn asked(&mut self, method: &str, params: Value) -> Value {
        messages(&self.ask(method, params)).pop().unwrap()
    }

    pub fn post(&self, message: &Value) -> Reply {
        self.web.ask(
            "POST",
            "/mcp",
            &borrowed(&self.headers),
            &message.to_string(),
        )
    }

    /// The answer to a call, and the messages before it.
    pub fn call(&mut self, name: &str, arguments: Value) -> (Value, Vec<Value>) {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
        let mut all = messages(&self.ask("tools/call", params));
        let answer = all.pop().unwrap();
        assert_eq!(answer["id"], self.next, "{answer}");
        (answer, all)
    }

    /// A connection on which a call was requested.
    pub fn begin(&mut self, name: &str) -> TcpStream {
        self.send(
            "tools/call",
            json!({"name": name, "arguments": {}, "_meta": {"progressToken": "p"}}),
        )
    }
}

pub fn borrowed(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

/// The capabilities of a client with tasks.
pub fn tasks() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
}

/// The messages of a stream, or of a JSON body.
pub fn messages(reply: &Reply) -> Vec<Value> {
    if reply
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("application/json"))
    {
        return vec![reply.json()];
    }
    let lines = reply
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| !data.is_empty());
    lines
        .map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {reply:?}")))
        .collect()
}

/// A handler for this function of a script.
pub fn of_function(name: &str) -> Value {
    json!({"handler": {"entryPoint": name}})
}

#[test]
fn a_tool_is_called_in_both_eras_and_what_it_tells_and_answers_is_shown_as_it_is() {
    let (playground, web) = served(|it| {
        adder(it);
        it.tool(
            "long",
            "python",
            "print('\"' + 'x\\u202e' * 100000 + '\"')\n",
            json!({}),
        );
        let script = "import json, sys\nprint(json.dumps(json.load(sys.stdin)['say']))\n";
        let any = json!({"type": "object", "properties": {"say": {"description": "d"}}});
        it.tool("says", "python", script, json!({"parameters": any}));
        let sum = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
        it.tool(
            "sums",
            "python",
            script,
            json!({"parameters": any, "output": sum}),
        );
        let script = "import toolhost, time\ndef run():\n    for n in (1, 2, 2, 3):\n        \
                      toolhost.progress(n, 3, f'step {n}')\n        time.sleep(0.1)\n    \
                      toolhost.log('\\x1b[31mlow', 'warning')\n    toolhost.log('quiet', \
                      'debug')\n    print('plain')\n    return 7\n";
        it.tool("tells", "python", script, of_function("run"));
    });
    let png = "iVBORw0KGgo=";
    let blocks = json!([
        {"type": "text", "text": "first"},
        {"type": "image", "data": png, "mimeType": "image/png"},
        {"type": "resource_link", "uri": "https://example.com/x", "name": "x"},
        {"type": "resource", "resource": {"uri": "x://y", "mimeType": "text/plain", "text": "z"}},
    ]);
    for modern in [true, false] {
        let mut client = Client::new(&web, modern, &[]);
        assert!(
            client
                .asked("tools/list", json!({}))
                .to_string()
                .contains("esc__add")
        );
        let before = playground.records().len();
        let (answer, _) = client.call("esc__add", json!({"a": 2, "b": 3}));
        let result = &answer["result"];
        assert_eq!(
            (&result["isError"], &result["structuredContent"]),
            (&json!(false), &json!({"sum": 5}))
        );
        let records = playground.records().split_off(before);
        assert_eq!(
            (records.len(), &records[0]["call"]),
            (1, &result["_meta"]["dev.toolhost/callId"])
        );
        // Encoded while it is sent, without invisible characters.
        let reply = client.ask("tools/call", json!({"name": "esc__long", "arguments": {}}));
        assert!(!reply.body.contains('\u{202e}'));
        assert_eq!(
            words(&messages(&reply).pop().unwrap()).chars().count(),
            200_000
        );
        // The pipeline refuses an unreadable request, and records it.
        let before = playground.records().len();
        let (headers, message) =
            client.message("tools/call", json!({"name": "esc__add", "arguments": {}}));
        let twice = message.to_string().replace(
            "\"arguments\":{}",
            "\"arguments\":{\"a\":1,\"a\":2,\"b\":3}",
        );
        let reply = web.ask("POST", "/mcp", &borrowed(&headers), &twice);
        assert!(reply.body.contains("ParameterValidationError"), "{reply:?}");
        assert_eq!(playground.records().len(), before + 1);
        let mut say =
            |tool: &str, say: Value| client.call(tool, json!({ "say": say })).0["result"].clone();
        let shown = say("esc__says", json!({"$content": blocks}));
        assert_eq!(
            (&shown["content"], &shown["structuredContent"]),
            (&blocks, &Value::Null),
            "{shown}"
        );
        let shown = say(
            "esc__sums",
            json!({"$content": blocks, "structured": {"sum": 3}}),
        );
        assert_eq!(shown["structuredContent"], json!({"sum": 3}), "{shown}");
        assert_eq!(
            shown["content"][4]["text"], "{\"sum\":3}",
            "its twin is the last"
        );
        let shown = say("esc__sums", json!({"$content": blocks}));
        assert!(
            shown.to_string().contains("OutputValidationError"),
            "{shown}"
        );
        let shown = say(
            "esc__says",
            json!({"$content": [{"type": "image", "data": png, "mimeType": "image/gif"}]}),
        );
        assert!(
            shown["isError"] == true && shown.to_string().contains("its data is not image/gif"),
            "{shown}"
        );
    }
    // A tool's messages arrive before its answer.
    let mut client = Client::new(&web, true, &[]);
    let (answer, told) = client.call("esc__tells", json!({}));
    assert_eq!(words(&answer), "7", "{answer}");
    let progress: Vec<_> = told
        .iter()
        .map(|told| told["params"]["progress"].as_f64().unwrap())
        .collect();
    assert_eq!(
        progress,
        [1.0, 2.0, 3.0],
        "it grows, and no message was asked for: {told:?}"
    );
    assert_eq!(
        [
            &told[0]["params"]["message"],
            &told[0]["params"]["progressToken"]
        ],
        ["step 1", "p"]
    );
    let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
    let heard = messages(&client.ask(
        "tools/call",
        json!({"name": "esc__tells", "arguments": {}, "_meta": meta}),
    ));
    let said: Vec<_> = heard
        .iter()
        .filter(|told| told["method"] == "notifications/message")
        .collect();
    assert_eq!(said.len(), 1, "one is severe enough: {heard:?}");
    assert_eq!(
        [&said[0]["params"]["level"], &said[0]["params"]["data"]],
        ["warning", "\\u{1b}[31mlow"]
    );
    let reply = web.call("esc:tells", &json!({}), &["Accept: text/event-stream"]);
    let first = "event: progress\ndata: {\"progress\":1.0,\"total\":3.0,\"message\":\"step 1\"}";
    assert!(reply.body.contains(first), "{reply:?}");
    let report = web.call("esc:tells", &json!({}), &[]).json();
    assert_eq!(
        report["logs"],
        json!(["\\u{1b}[31mlow", "quiet", "plain"]),
        "progress is no line of the log"
    );
}

#[test]
fn a_session_is_its_callers_alone_and_its_calls_are_cancelled_with_it() {
    let (playground, web, [alice, bob]) =
        served_to(["alice", "bob"], |it| [adder(it), sleeper(it)]);
    let mut own = Client::new(&web, false, &[&alice]);
    let session = own.session().to_owned();
    assert_eq!(
        own.call("esc__add", json!({"a": 1, "b": 1})).0["result"]["structuredContent"],
        json!({"sum": 2})
    );
    assert_eq!(playground.records().last().unwrap()["user"], "alice");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
    for (method, session, header, status) in [
        ("POST", &*session, &*bob, 404),
        ("GET", &session, &bob, 404),
        ("DELETE", &session, &bob, 404),
        ("POST", &session, "X-A: b", 401),
        ("POST", &session, "Authorization: Bearer th_x", 401),
        ("POST", &session, &alice, 200),
        ("DELETE", &session, &alice, 204),
        ("POST", "Mcp-Session-Id: made-up", &alice, 404),
    ] {
        assert_eq!(
            web.ask(method, "/mcp", &[BOTH, session, header], &list)
                .status,
            status,
            "{method} {header}"
        );
    }
    let token = super::token_of(&alice);
    let inside = json!({"token": token, "authorization": alice});
    let inside =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": inside}).to_string();
    assert_eq!(
        web.ask("POST", "/mcp", &[BOTH], &inside).status,
        401,
        "in the body"
    );
    assert_eq!(
        web.ask("POST", &format!("/mcp?token={token}"), &[BOTH], &list)
            .status,
        400,
        "in the query"
    );
    // A second request under an open id; a call that is cancelled, and one that ends with its
    // session.
    let cancelled = || {
        playground
            .records()
            .iter()
            .filter(|record| record["outcome"] == "CancelledError")
            .count()
    };
    for (ends, way) in ["cancel", "delete"].into_iter().enumerate() {
        let mut client = Client::new(&web, false, &[&alice]);
        let _stream = client.begin("esc__sleep");
        playground.runs(SLEEPER, 1);
        client.next -= 1;
        let twice = client.ask("tools/list", json!({}));
        assert_eq!(
            (twice.status, &messages(&twice)[0]["error"]["code"]),
            (400, &json!(-32600)),
            "{twice:?}"
        );
        if way == "cancel" {
            let params = json!({"requestId": client.next});
            let cancel =
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
            assert_eq!(client.post(&cancel).status, 202);
        } else {
            assert_eq!(
                web.ask("DELETE", "/mcp", &[client.session(), &alice], "")
                    .status,
                204
            );
            assert_eq!(
                client.ask("tools/list", json!({})).status,
                404,
                "the session is over"
            );
        }
        wait_for("its record", || cancelled() == ends + 1);
        playground.runs(SLEEPER, 0);
    }
}

/// Both a subscription of the newer era and an older session's open stream listen.
#[test]
fn what_is_no_message_is_refused_and_a_reload_is_told_to_those_who_listen() {
    let (_playground, web) = served(|_| ());
    let newer = format!("MCP-Protocol-Version: {NEW}");
    let list = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}";
    for (method, header, body, status, code) in [
        ("POST", "X-A: b", "garbage", 400, Some(-32700)),
        (
            "POST",
            "X-A: b",
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            400,
            Some(-32600),
        ),
        ("POST", "Content-Type: text/plain", "{}", 415, None),
        ("POST", "MCP-Protocol-Version: 1900-01-01", list, 400, None),
        ("POST", "Origin: http://evil.example", "{}", 403, None),
        ("POST", "Host: evil.example", "{}", 403, None),
        ("GET", &newer, "", 405, None),
        ("DELETE", &newer, "", 405, None),
    ] {
        let reply = web.ask(method, "/mcp", &[header, BOTH], body);
        assert_eq!(reply.status, status, "{method} {header} {body}: {reply:?}");
        assert!(
            code.is_none_or(|code| reply.json()["error"]["code"] == code),
            "{body}: {reply:?}"
        );
    }
    let listens = json!({"notifications": {"toolsListChanged": true}});
    let mut first = Client::new(&web, true, &[]).send("subscriptions/listen", listens);
    let older = Client::new(&web, false, &[]);
    let mut second = web.send("GET", "/mcp", &[BOTH, older.session()], "");
    heard(&mut first, "notifications/subscriptions/acknowledged");
    heard(&mut second, "\r\n\r\n");
    web.signal(Signal::SIGHUP);
    heard(&mut first, "notifications/tools/list_changed");
    heard(&mut second, "notifications/tools/list_changed");
    // They do not delay a stopping server.
    web.signal(Signal::SIGTERM);
    let stopped = Stopwatch::start();
    drop([exchanged(first, b""), exchanged(second, b"")]);
    assert!(
        stopped.elapsed() < Duration::from_secs(15),
        "{:?}",
        stopped.elapsed()
    );
}

/// A prompt and resources in a folder of their own; one reads through a link, two are wrong.
fn documents(playground: &Playground) {
    let folder = playground.path("user_scripts/docs");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("rules.md"), "# Rules\n").unwrap();
    symlink("/etc/passwd", folder.join("linked.md")).unwrap();
    let words =
        json!({"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]});
    let file = |name: &str, file: &str| {
        let uri = format!("docs://{name}");
        json!({"type": "resource", "uri": uri, "mimeType": "text/markdown", "file": file})
    };
    let greet =
        json!({"type": "prompt", "messages": [{"role": "user", "content": "Greet {{who}}."}]});
    for (name, handler, more) in [
        ("hello.prompt", greet, json!({"parameters": words})),
        ("rules.resource", file("rules", "rules.md"), json!({})),
        ("linked.resource", file("linked", "linked.md"), json!({})),
        ("out.resource", file("out", "../other/main.py"), json!({})),
        (
            "wrong.prompt",
            json!({"type": "resource", "uri": "docs://wrong", "text": "x"}),
            json!({}),
        ),
    ] {
        let document = manifest(
            format!("docs:{}", name.split('.').next().unwrap()),
            handler,
            more,
        );
        fs::write(folder.join(format!("{name}.json")), document.to_string()).unwrap();
    }
}

#[test]
fn prompts_and_resources_are_files_that_answer_to_policy() {
    let (playground, web) = served(|it| [documents(it), adder(it)]);
    for modern in [true, false] {
        let mut client = Client::new(&web, modern, &[]);
        let mut asked = |method: &str, params: Value| client.asked(method, params);
        let prompts = asked("prompts/list", json!({}));
        let prompt = &prompts["result"]["prompts"][0];
        assert_eq!(
            (&prompt["name"], &prompt["arguments"][0]["required"]),
            (&json!("docs__hello"), &json!(true))
        );
        let prompt = asked(
            "prompts/get",
            json!({"name": "docs__hello", "arguments": {"who": "{{who}}"}}),
        );
        assert_eq!(
            prompt["result"]["messages"][0]["content"]["text"], "Greet {{who}}.",
            "{prompt}"
        );
        assert_eq!(
            asked(
                "prompts/get",
                json!({"name": "docs__hello", "arguments": {}})
            )["error"]["code"],
            -32602
        );
        assert_eq!(
            asked("prompts/get", json!({"name": "esc__add"}))["error"]["code"],
            -32602,
            "a tool is no prompt"
        );
        let listed = asked("resources/list", json!({}))["result"]["resources"].to_string();
        assert!(
            listed.contains("docs://rules")
                && !listed.contains("docs://out")
                && !listed.contains("docs://wrong")
        );
        assert!(
            !asked("tools/list", json!({}))
                .to_string()
                .contains("docs__"),
            "no document is a tool"
        );
    }
    let read = |name: &str| {
        Client::new(&web, false, &[])
            .asked("resources/read", json!({"uri": format!("docs://{name}")}))
    };
    let rules = read("rules");
    assert_eq!(
        rules["result"]["contents"][0]["text"], "# Rules\n",
        "{rules}"
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        [&record["tool"], &record["outcome"]],
        ["docs:rules", "success"]
    );
    let linked = read("linked");
    let refused = linked["error"]["message"]
        .as_str()
        .unwrap()
        .contains("cannot be read");
    assert!(refused && !linked.to_string().contains("root:"), "{linked}");
    assert_eq!(read("nothing")["error"]["code"], -32002);
    // A file that policy does not grant is not listed, and returns with the grant.
    for (path, there) in [("./other/**", false), ("./rules.md", true)] {
        playground.allow("docs", "docs:*", &[path], &[]);
        web.signal(Signal::SIGHUP);
        let list = || {
            Client::new(&web, true, &[])
                .asked("resources/list", json!({}))
                .to_string()
        };
        wait_for("the policy is read", || {
            list().contains("docs://rules") == there
        });
        assert_eq!(
            web.call("docs:rules", &json!({}), &[]).status == 403,
            !there
        );
    }
    let check = playground.cli(&["check"]);
    let told = check.text() + &check.stderr;
    assert!(
        told.contains("must be one file below this folder")
            && told.contains("is named *.resource.json"),
        "{told}"
    );
}

/// A tool that asks for a name.
fn asker(playground: &Playground, asks: &Value) {
    let script = "import toolhost\ndef run(n=0):\n    if 'who' not in toolhost.answers:\n        \
                  return toolhost.ask({'n': n}, who=toolhost.form('Who?', {'name': \
                  {'type': 'string'}}))\n    return [toolhost.answers['who']['content']['name'], \
                  toolhost.state['n']]\n";
    let may = json!({"handler": {"entryPoint": "run"}, "securityContext": {"requiredCapabilities": asks}});
    playground.tool("asks", "python", script, may);
}

#[test]
fn a_tool_asks_only_where_policy_says_so_and_its_state_is_sealed() {
    let (playground, web, [alice, bob]) = served_to(["alice", "bob"], |it| {
        asker(it, &json!(["ask:elicitation"]))
    });
    let form = json!({"elicitation": {}});
    let ask = |who: &str, n: u64, back: &Value, can: &Value| {
        let mut params = json!({"name": "esc__asks", "arguments": {"n": n}});
        params
            .as_object_mut()
            .unwrap()
            .extend(back.as_object().cloned().unwrap());
        Client::that_can(&web, true, &[who], can).asked("tools/call", params)
    };
    let none = json!({});
    let first = || ask(&alice, 7, &none, &form);
    let refused = first();
    assert!(
        refused
            .to_string()
            .contains("asks for more than this host allows"),
        "no policy grants it: {refused}"
    );
    let grant = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                 [capabilities]\ngrant = [{ name = \"ask:elicitation\", why = \"a test\" }]\n";
    playground.policy("asks", "esc:asks", grant);
    web.signal(Signal::SIGHUP);
    wait_for("the policy", || {
        first()["result"]["resultType"] == "input_required"
    });
    let asked = first();
    let question = &asked["result"]["inputRequests"]["who"];
    assert_eq!(
        question["params"]["message"], "esc:asks asks: Who?",
        "the person sees which tool asks"
    );
    let state = &asked["result"]["requestState"];
    let answers = json!({"who": {"action": "accept", "content": {"name": "Al"}}});
    let back = json!({"requestState": state, "inputResponses": answers});
    let answered = ask(&alice, 7, &back, &form);
    assert_eq!(words(&answered), "[\n  \"Al\",\n  7\n]", "{answered}");
    // Another caller, other arguments, another text.
    let forged =
        json!({"requestState": format!("{}x", state.as_str().unwrap()), "inputResponses": answers});
    for (who, n, back) in [(&bob, 7, &back), (&alice, 8, &back), (&alice, 7, &forged)] {
        assert_eq!(
            ask(who, n, back, &form)["error"]["code"],
            -32602,
            "{n} {back}"
        );
    }
    let stateless = ask(&alice, 7, &json!({"inputResponses": answers}), &form);
    assert_eq!(
        stateless["result"]["resultType"], "input_required",
        "answers without their state are not looked at"
    );
    // A client that cannot be asked.
    let lacking = ask(&alice, 7, &none, &none)["error"].clone();
    let lacks = &lacking["data"]["requiredCapabilities"]["elicitation"];
    assert_eq!((&lacking["code"], lacks), (&json!(-32021), &none));
    web.call("esc:asks", &none, &[&alice])
        .is(501, "CapabilityError");
    // A manifest that does not require it.
    asker(&playground, &json!([]));
    web.signal(Signal::SIGHUP);
    wait_for("the manifest", || {
        first().to_string().contains("may not ask its client")
    });
}

#[test]
fn a_task_is_its_callers_alone_and_cancelling_it_kills() {
    let (playground, web, [alice, bob]) = served_to(["alice", "bob"], |it| {
        it.tool(
            "sleep",
            "python",
            "import time\ntime.sleep(600)\n",
            json!({"execution": {"task": "required"}}),
        );
        it.policy("sleep", "esc:sleep", "[limits]\ntimeout_ms = 120_000\n");
        it.tool(
            "quick",
            "python",
            "print('{\"n\": 7}')\n",
            json!({"execution": {"task": "optional"}}),
        );
    });
    let ask = |who: &str, method: &str, params: &Value| {
        Client::that_can(&web, true, &[who], &tasks()).asked(method, params.clone())
    };
    // A client without tasks gets an error, or waits.
    let mut plain = Client::new(&web, true, &[&alice]);
    assert_eq!(
        plain.call("esc__sleep", json!({})).0["error"]["code"],
        -32021
    );
    assert_eq!(
        plain.call("esc__quick", json!({})).0["result"]["structuredContent"],
        json!({"n": 7})
    );
    let begin = |tool: &str| {
        let begun = ask(
            &alice,
            "tools/call",
            &json!({"name": tool, "arguments": {}}),
        );
        json!({"taskId": begun["result"]["taskId"]})
    };
    let quick = begin("esc__quick");
    let ended = || ask(&alice, "tasks/get", &quick)["result"].clone();
    wait_for("it is done", || ended()["status"] == "completed");
    assert_eq!(ended()["result"]["structuredContent"], json!({"n": 7}));
    let slow = begin("esc__sleep");
    playground.runs(SLEEPER, 1);
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(
            ask(&bob, method, &slow)["error"]["code"],
            -32602,
            "{method} of another's task"
        );
    }
    assert_eq!(
        ask(&alice, "tasks/get", &slow)["result"]["status"],
        "working"
    );
    assert!(ask(&alice, "tasks/cancel", &slow)["error"].is_null());
    playground.runs(SLEEPER, 0);
    wait_for("it says so", || {
        ask(&alice, "tasks/get", &slow)["result"]["status"] == "cancelled"
    });
}
