//! MCP over HTTP: both eras, sessions and whose they are, what is told while a tool runs, clients that leave.

use super::{Reply, Web, adder, exchanged, heard, sleeper};
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
        let headers = headers.iter().map(|line| (*line).to_owned()).chain([BOTH.to_owned()]).collect();
        let mut client = Client { web, headers, modern, can: can.clone(), next: 0 };
        if !modern {
            let who = json!({"name": "t", "version": "1"});
            let hello = json!({"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": who});
            let welcome = client.ask("initialize", hello);
            assert_eq!(messages(&welcome)[0]["result"]["protocolVersion"], "2025-11-25", "{welcome:?}");
            client.headers.push(format!("Mcp-Session-Id: {}", welcome.header("mcp-session-id").unwrap()));
            let ready = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
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
            headers.push(format!("MCP-Protocol-Version: {NEW}"));
            headers.push(format!("Mcp-Method: {method}"));
            if let Some(name) = params["name"].as_str().or(params["taskId"].as_str()) {
                headers.push(format!("Mcp-Name: {name}"));
            }
        }
        (headers, json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}))
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Reply {
        let (headers, message) = self.message(method, params);
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.web.ask("POST", "/mcp", &headers, &message.to_string())
    }

    pub fn post(&self, message: &Value) -> Reply {
        let headers: Vec<&str> = self.headers.iter().map(String::as_str).collect();
        self.web.ask("POST", "/mcp", &headers, &message.to_string())
    }

    /// The answer to a call, and what was told before it.
    pub fn call(&mut self, name: &str, arguments: Value) -> (Value, Vec<Value>) {
        let id = self.next + 1;
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
        let mut all = messages(&self.ask("tools/call", params));
        let answer = all.pop().unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        (answer, all)
    }

    /// A connection on which a call has been asked for.
    pub fn begin(&mut self, name: &str) -> std::net::TcpStream {
        let meta = json!({"progressToken": "p"});
        let (headers, message) = self.message("tools/call", json!({"name": name, "arguments": {}, "_meta": meta}));
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.web.send("POST", "/mcp", &headers, &message.to_string())
    }
}

/// What a client says that knows tasks.
pub fn tasks() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
}

/// The messages of a stream, or of a JSON body.
pub fn messages(reply: &Reply) -> Vec<Value> {
    if reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
        return vec![reply.json()];
    }
    let lines = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty());
    lines.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {reply:?}"))).collect()
}

#[test]
fn a_tool_is_listed_and_called_in_both_eras() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    playground.tool("long", "python", "print('\"' + 'x\\u202e' * 100000 + '\"')\n", json!({}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let mut lists = Vec::new();
    for modern in [true, false] {
        let mut client = Client::new(&web, modern, &[]);
        let listed = messages(&client.ask("tools/list", json!({}))).pop().unwrap();
        let tools = listed["result"]["tools"].clone();
        assert!(tools.to_string().contains("esc__add"), "{listed}");
        lists.push(tools);
        let before = playground.records().len();
        let (answer, _) = client.call("esc__add", json!({"a": 2, "b": 3}));
        let result = &answer["result"];
        assert_eq!((&result["isError"], &result["structuredContent"]), (&json!(false), &json!({"sum": 5})));
        assert_eq!(result["resultType"], if modern { json!("complete") } else { Value::Null });
        let records = playground.records();
        assert_eq!((records.len(), &records[before]["call"]), (before + 1, &result["_meta"]["dev.toolhost/callId"]));
        // Made while it is sent, and with nothing hidden in it.
        let reply = client.ask("tools/call", json!({"name": "esc__long", "arguments": {}}));
        assert!(!reply.body.contains('\u{202e}'));
        let text = messages(&reply).pop().unwrap()["result"]["content"][0]["text"].as_str().map(|t| t.chars().count());
        assert_eq!(text, Some(200_000));
        let (answer, _) = client.call("esc__add", json!({"a": "x"}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        // The road judges what cannot be read, and keeps a record of it.
        let before = playground.records().len();
        let (headers, message) = client.message("tools/call", json!({"name": "esc__add", "arguments": {}}));
        let twice = message.to_string().replace("\"arguments\":{}", "\"arguments\":{\"a\":1,\"a\":2,\"b\":3}");
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let reply = web.ask("POST", "/mcp", &headers, &twice);
        assert!(reply.body.contains("ParameterValidationError"), "{reply:?}");
        assert_eq!(playground.records().len(), before + 1);
        let (unknown, _) = client.call("esc__ad", json!({}));
        assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    }
    assert_eq!(lists[0], lists[1]);
}

#[test]
fn what_a_tool_tells_is_heard_before_its_answer() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import toolhost, time\ndef run():\n    for n in (1, 2, 2, 3):\n        toolhost.progress(n, 3, f'step {n}')\n        \
                  time.sleep(0.1)\n    toolhost.log('\\x1b[31mlow', 'warning')\n    toolhost.log('quiet', 'debug')\n    print('plain')\n    return 7\n";
    let handler =
        json!({"type": "external-script", "scriptPath": "tells/main.py", "language": "python", "entryPoint": "run"});
    playground.tool("tells", "python", script, json!({"handler": handler}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let (answer, told) = Client::new(&web, true, &[]).call("esc__tells", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "7", "{answer}");
    let progress: Vec<_> = told.iter().map(|told| told["params"]["progress"].as_f64().unwrap()).collect();
    assert_eq!(progress, [1.0, 2.0, 3.0], "it grows, and no message was asked for: {told:?}");
    assert_eq!(told[0]["params"]["message"], "step 1");
    assert_eq!(told[0]["params"]["progressToken"], "p");
    let mut client = Client::new(&web, true, &[]);
    let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
    let heard = messages(&client.ask("tools/call", json!({"name": "esc__tells", "arguments": {}, "_meta": meta})));
    let said: Vec<_> = heard.iter().filter(|told| told["method"] == "notifications/message").collect();
    assert_eq!(said.len(), 1, "one is grave enough: {heard:?}");
    assert_eq!(
        (&said[0]["params"]["level"], &said[0]["params"]["data"]),
        (&json!("warning"), &json!("\\u{1b}[31mlow"))
    );
    let reply = web.call("esc:tells", &json!({}), &["Accept: text/event-stream"]);
    assert!(
        reply.body.contains("event: progress\ndata: {\"progress\":1.0,\"total\":3.0,\"message\":\"step 1\"}"),
        "{reply:?}"
    );
    let report = web.call("esc:tells", &json!({}), &[]).json();
    assert_eq!(report["logs"], json!(["\\u{1b}[31mlow", "quiet", "plain"]), "progress is no line of the log");
}

#[test]
fn a_client_that_leaves_or_cancels_ends_its_call_in_both_eras() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    sleeper(&playground);
    let web = Web::start(&playground, &[]);
    let endings = || playground.records().iter().filter(|r| r["outcome"] == "CancelledError").count();
    for modern in [true, false] {
        let before = endings();
        let mut client = Client::new(&web, modern, &[]);
        let stream = client.begin("esc__sleep");
        playground.runs(SLEEPER, 1);
        let left = Instant::now();
        drop(stream);
        within(PATIENCE, "its record", || endings() == before + 1);
        playground.runs(SLEEPER, 0);
        assert!(left.elapsed() < Duration::from_secs(24));
    }
    // Cancelled, and ended with its session.
    for ends in ["cancel", "delete"] {
        let before = endings();
        let mut client = Client::new(&web, false, &[]);
        let stream = client.begin("esc__sleep");
        playground.runs(SLEEPER, 1);
        let (id, session) = (client.next, client.session().to_owned());
        if ends == "cancel" {
            let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
            assert_eq!(client.post(&cancel).status, 202);
        } else {
            assert_eq!(web.ask("DELETE", "/mcp", &[&session], "").status, 204);
            assert_eq!(client.ask("tools/list", json!({})).status, 404, "the session is over");
        }
        within(PATIENCE, "its record", || endings() == before + 1);
        playground.runs(SLEEPER, 0);
        drop(stream);
    }
}

#[test]
fn a_session_is_its_callers_alone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    sleeper(&playground);
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let mut own = Client::new(&web, false, &[&alice]);
    let session = own.session().to_owned();
    assert_eq!(own.call("esc__add", json!({"a": 1, "b": 1})).0["result"]["structuredContent"], json!({"sum": 2}));
    assert_eq!(playground.records().last().unwrap()["user"], "alice");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
    let ask = |method, session: &str, token: &str| web.ask(method, "/mcp", &[BOTH, session, token], &list).status;
    assert_eq!(ask("POST", &session, &bob), 404, "not bob's");
    assert_eq!(ask("GET", &session, &bob), 404);
    assert_eq!(ask("DELETE", &session, &bob), 404);
    assert_eq!(ask("POST", &session, &alice), 200, "it is there still");
    assert_eq!(ask("DELETE", &session, &alice), 204, "control");
    assert_eq!(ask("POST", "Mcp-Session-Id: made-up", &alice), 404);
    assert_eq!(web.ask("POST", "/mcp", &[BOTH, &session], &list).status, 401);
    assert_eq!(web.ask("POST", "/mcp", &[BOTH, &session, "Authorization: Bearer th_x"], &list).status, 401);
    // Two open requests under one id.
    let mut client = Client::new(&web, false, &[&alice]);
    let stream = client.begin("esc__sleep");
    playground.runs(SLEEPER, 1);
    client.next -= 1;
    let twice = client.ask("tools/list", json!({}));
    assert_eq!((twice.status, &messages(&twice)[0]["error"]["code"]), (400, &json!(-32600)), "{twice:?}");
    drop(stream);
}

#[test]
fn what_is_no_message_is_refused_and_the_gate_stands_before_it() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let web = Web::start(&playground, &[]);
    for (headers, body, status, code) in [
        (vec![], "garbage", 400, json!(-32700)),
        (vec![], "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", 400, json!(-32600)),
        (vec!["Origin: http://evil.example"], "{}", 403, Value::Null),
        (vec!["Host: evil.example"], "{}", 403, Value::Null),
        (vec!["Content-Type: text/plain"], "{}", 415, Value::Null),
        (
            vec!["MCP-Protocol-Version: 1900-01-01"],
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}",
            400,
            Value::Null,
        ),
    ] {
        let headers: Vec<&str> = headers.into_iter().chain([BOTH]).collect();
        let reply = web.ask("POST", "/mcp", &headers, body);
        assert_eq!(reply.status, status, "{headers:?} {body}: {reply:?}");
        if !code.is_null() {
            assert_eq!(reply.json()["error"]["code"], code, "{body}");
        }
    }
    assert_eq!(web.ask("GET", "/mcp", &[BOTH, &format!("MCP-Protocol-Version: {NEW}")], "").status, 405);
    assert_eq!(web.ask("DELETE", "/mcp", &[&format!("MCP-Protocol-Version: {NEW}")], "").status, 405);
}

/// A subscription of the newer era, and the open stream of an older session.
#[test]
fn a_reload_is_told_to_those_who_listen() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.settle();
    let web = Web::start(&playground, &[]);
    let mut modern = Client::new(&web, true, &[]);
    let (headers, message) =
        modern.message("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut first = web.send("POST", "/mcp", &headers, &message.to_string());
    let older = Client::new(&web, false, &[]);
    let mut second = web.send("GET", "/mcp", &[BOTH, older.session()], "");
    heard(&mut first, "notifications/subscriptions/acknowledged");
    heard(&mut second, "\r\n\r\n");
    web.signal(nix::sys::signal::Signal::SIGHUP);
    heard(&mut first, "notifications/tools/list_changed");
    heard(&mut second, "notifications/tools/list_changed");
    // They hold up no server that is told to stop.
    web.signal(nix::sys::signal::Signal::SIGTERM);
    let stopped = Instant::now();
    drop(exchanged(first, b""));
    drop(exchanged(second, b""));
    assert!(stopped.elapsed() < Duration::from_secs(15), "{:?}", stopped.elapsed());
}

/// A prompt and two resources in a folder of their own; the second reads through a link.
fn documents(playground: &Playground) {
    let folder = playground.path("user_scripts/docs");
    std::fs::create_dir_all(&folder).unwrap();
    let put = |name: &str, handler: Value, more: Value| {
        let id = format!("docs:{}", name.split('.').next().unwrap());
        let document = crate::harness::manifest(id, handler, more);
        std::fs::write(folder.join(name), document.to_string()).unwrap();
    };
    std::fs::write(folder.join("rules.md"), "# Rules\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("linked.md")).unwrap();
    let words =
        json!({"type": "object", "properties": {"who": {"type": "string", "description": "d"}}, "required": ["who"]});
    put(
        "hello.prompt.json",
        json!({"type": "prompt", "messages": [{"role": "user", "content": "Greet {{who}}."}]}),
        json!({"parameters": words}),
    );
    for name in ["rules", "linked"] {
        let (uri, file) = (format!("docs://{name}"), format!("{name}.md"));
        let handler = json!({"type": "resource", "uri": uri, "mimeType": "text/markdown", "file": file});
        put(&format!("{name}.resource.json"), handler, json!({}));
    }
    put("out.resource.json", json!({"type": "resource", "uri": "docs://out", "file": "../other/main.py"}), json!({}));
    put("wrong.prompt.json", json!({"type": "resource", "uri": "docs://wrong", "text": "x"}), json!({}));
}

#[test]
fn prompts_and_resources_are_files_that_answer_to_policy() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    documents(&playground);
    adder(&playground);
    let web = Web::start(&playground, &[]);
    for modern in [true, false] {
        let mut client = Client::new(&web, modern, &[]);
        let mut asked = |method: &str, params: Value| messages(&client.ask(method, params)).pop().unwrap();
        let prompts = asked("prompts/list", json!({}));
        assert_eq!(prompts["result"]["prompts"][0]["name"], "docs__hello", "{prompts}");
        assert_eq!(prompts["result"]["prompts"][0]["arguments"][0]["required"], true);
        let prompt = asked("prompts/get", json!({"name": "docs__hello", "arguments": {"who": "{{who}}"}}));
        assert_eq!(prompt["result"]["messages"][0]["content"]["text"], "Greet {{who}}.", "{prompt}");
        assert_eq!(asked("prompts/get", json!({"name": "docs__hello", "arguments": {}}))["error"]["code"], -32602);
        assert_eq!(asked("prompts/get", json!({"name": "esc__add"}))["error"]["code"], -32602, "a tool is no prompt");
        let listed = asked("resources/list", json!({}))["result"]["resources"].to_string();
        assert!(listed.contains("docs://rules") && !listed.contains("docs://out") && !listed.contains("docs://wrong"));
        assert!(!asked("tools/list", json!({})).to_string().contains("docs__"), "no document is a tool");
    }
    let read = |uri: &str| {
        let mut client = Client::new(&web, false, &[]);
        let before = playground.records().len();
        let answer = messages(&client.ask("resources/read", json!({ "uri": uri }))).pop().unwrap();
        (answer, playground.records().split_off(before))
    };
    let (rules, records) = read("docs://rules");
    assert_eq!(rules["result"]["contents"][0]["text"], "# Rules\n", "{rules}");
    assert_eq!((&records[0]["tool"], &records[0]["outcome"]), (&json!("docs:rules"), &json!("success")));
    let (linked, _) = read("docs://linked");
    assert!(
        linked["error"]["message"].as_str().unwrap().contains("cannot be read")
            && !linked.to_string().contains("root:")
    );
    assert_eq!(read("docs://nothing").0["error"]["code"], -32002);
    // What policy does not let it read is not there, and comes back with the policy.
    let listed = || messages(&Client::new(&web, true, &[]).ask("resources/list", json!({})))[0].to_string();
    playground.allow("docs", "docs:*", &["./other/**"], &[]);
    web.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("policy to hold", || !listed().contains("docs://rules"));
    assert_eq!(web.call("docs:rules", &json!({}), &[]).status, 403);
    playground.allow("docs", "docs:*", &["./rules.md"], &[]);
    web.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("policy to hold", || listed().contains("docs://rules"));
    let check = playground.cli(&["check"]);
    let told = check.text() + &check.stderr;
    assert!(told.contains("must be one file below this folder"), "{told}");
    assert!(told.contains("is named *.resource.json"), "{told}");
}

/// A tool that asks for a name.
fn asker(playground: &Playground, asks: &Value) {
    let script = "import toolhost\ndef run(n=0):\n    if 'who' not in toolhost.answers:\n        \
                  return toolhost.ask({'n': n}, who=toolhost.form('Who?', {'name': {'type': 'string'}}))\n    \
                  return [toolhost.answers['who']['content']['name'], toolhost.state['n']]\n";
    let handler =
        json!({"type": "external-script", "scriptPath": "asks/main.py", "language": "python", "entryPoint": "run"});
    let asks = json!({"handler": handler, "securityContext": {"requiredCapabilities": asks}});
    playground.tool("asks", "python", script, asks);
}

const GRANT: &str = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                     [capabilities]\ngrant = [{ name = \"ask:elicitation\", why = \"a test\" }]\n";

#[test]
fn a_tool_asks_only_where_policy_says_so_and_its_state_is_sealed() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    asker(&playground, &json!(["ask:elicitation"]));
    playground.settle();
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let ask = |who: &str, arguments: &Value, back: &Value, can: &Value| {
        let mut params = json!({"name": "esc__asks", "arguments": arguments});
        params.as_object_mut().unwrap().extend(back.as_object().cloned().unwrap_or_default());
        messages(&Client::that_can(&web, true, &[who], can).ask("tools/call", params)).pop().unwrap()
    };
    let form = json!({"elicitation": {}});
    let none = json!({});
    let refused = ask(&alice, &none, &none, &form);
    assert!(refused.to_string().contains("asks for more than this host allows"), "no policy grants it: {refused}");
    playground.policy("asks", "esc:asks", GRANT);
    web.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the policy", || ask(&alice, &none, &none, &form)["result"]["resultType"] == "input_required");
    let asked = ask(&alice, &json!({"n": 7}), &none, &form);
    let question = &asked["result"]["inputRequests"]["who"];
    assert_eq!(question["params"]["message"], "esc:asks asks: Who?", "the person sees which tool asks");
    let state = &asked["result"]["requestState"];
    let answers = json!({"who": {"action": "accept", "content": {"name": "Al"}}});
    let back = json!({"requestState": state, "inputResponses": answers});
    let answered = ask(&alice, &json!({"n": 7}), &back, &form);
    assert_eq!(answered["result"]["content"][0]["text"], "[\n  \"Al\",\n  7\n]", "{answered}");
    // Another caller, other arguments, another text.
    assert_eq!(ask(&bob, &json!({"n": 7}), &back, &form)["error"]["code"], -32602);
    assert_eq!(ask(&alice, &json!({"n": 8}), &back, &form)["error"]["code"], -32602);
    let forged = json!({"requestState": format!("{}x", state.as_str().unwrap()), "inputResponses": answers});
    assert_eq!(ask(&alice, &json!({"n": 7}), &forged, &form)["error"]["code"], -32602);
    let stateless = ask(&alice, &json!({"n": 7}), &json!({"inputResponses": answers}), &form);
    assert_eq!(stateless["result"]["resultType"], "input_required", "answers without their state are not looked at");
    // What nobody can be asked.
    let lacking = ask(&alice, &none, &none, &none);
    assert_eq!(
        (&lacking["error"]["code"], &lacking["error"]["data"]["requiredCapabilities"]["elicitation"]),
        (&json!(-32021), &none)
    );
    let plain = web.call("esc:asks", &none, &[&alice]);
    assert_eq!(plain.json()["error"]["type"], "CapabilityError", "{plain:?}");
    // A manifest that does not require it.
    asker(&playground, &json!([]));
    web.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the manifest", || ask(&alice, &none, &none, &form).to_string().contains("which it may not"));
}

#[test]
fn content_of_every_kind_is_shown_as_it_is_and_no_other() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, sys\nprint(json.dumps(json.load(sys.stdin)['say']))\n";
    let any = json!({"type": "object", "properties": {"say": {"description": "d"}}});
    playground.tool("says", "python", script, json!({"parameters": any}));
    let sum = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    playground.tool("sums", "python", script, json!({"parameters": any, "output": sum}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let png = "iVBORw0KGgo=";
    let blocks = json!([
        {"type": "text", "text": "first"},
        {"type": "image", "data": png, "mimeType": "image/png"},
        {"type": "resource_link", "uri": "https://example.com/x", "name": "x"},
        {"type": "resource", "resource": {"uri": "x://y", "mimeType": "text/plain", "text": "z"}},
    ]);
    for modern in [true, false] {
        let mut client = Client::new(&web, modern, &[]);
        let (answer, _) = client.call("esc__says", json!({"say": {"$content": blocks}}));
        assert_eq!(
            (&answer["result"]["content"], &answer["result"]["structuredContent"]),
            (&blocks, &Value::Null),
            "{answer}"
        );
        let (answer, _) = client.call("esc__sums", json!({"say": {"$content": blocks, "structured": {"sum": 3}}}));
        assert_eq!(answer["result"]["structuredContent"], json!({"sum": 3}), "{answer}");
        assert_eq!(answer["result"]["content"][4]["text"], "{\"sum\":3}", "its twin is the last");
        let (answer, _) = client.call("esc__sums", json!({"say": {"$content": blocks}}));
        assert!(answer.to_string().contains("OutputValidationError"), "{answer}");
        let lies = json!([{"type": "image", "data": png, "mimeType": "image/gif"}]);
        let (answer, _) = client.call("esc__says", json!({"say": {"$content": lies}}));
        assert_eq!(answer["result"]["isError"], true);
        assert!(answer.to_string().contains("its data is not image/gif"), "{answer}");
    }
}

#[test]
fn a_task_is_its_callers_alone_and_cancelling_it_kills() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("sleep", "python", "import time\ntime.sleep(25)\n", json!({"execution": {"task": "required"}}));
    playground.tool("quick", "python", "print('{\"n\": 7}')\n", json!({"execution": {"task": "optional"}}));
    playground.settle();
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let ask = |who: &str, method: &str, params: Value, knows: bool| {
        let can = if knows { tasks() } else { json!({}) };
        messages(&Client::that_can(&web, true, &[who], &can).ask(method, params)).pop().unwrap()
    };
    let call = |tool: &str| json!({"name": tool, "arguments": {}});
    assert_eq!(ask(&alice, "tools/call", call("esc__sleep"), false)["error"]["code"], -32021);
    let waited = ask(&alice, "tools/call", call("esc__quick"), false);
    assert_eq!(waited["result"]["structuredContent"], json!({"n": 7}), "who knows no tasks waits");
    let begun = ask(&alice, "tools/call", call("esc__quick"), true);
    let quick = json!({"taskId": begun["result"]["taskId"]});
    let ended = || ask(&alice, "tasks/get", quick.clone(), true)["result"].clone();
    wait_for("it is done", || ended()["status"] == "completed");
    assert_eq!(ended()["result"]["structuredContent"], json!({"n": 7}));
    let begun = ask(&alice, "tools/call", call("esc__sleep"), true);
    let slow = json!({"taskId": begun["result"]["taskId"]});
    playground.runs(SLEEPER, 1);
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(ask(&bob, method, slow.clone(), true)["error"]["code"], -32602, "{method} of another's task");
    }
    assert_eq!(ask(&alice, "tasks/get", slow.clone(), true)["result"]["status"], "working");
    assert!(ask(&alice, "tasks/cancel", slow.clone(), true)["error"].is_null());
    playground.runs(SLEEPER, 0);
    wait_for("it says so", || ask(&alice, "tasks/get", slow.clone(), true)["result"]["status"] == "cancelled");
}
