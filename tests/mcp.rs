//! MCP over stdio, with and without an `initialize` handshake, spoken line by line.

use crate::harness::fake::{World, define, world, world_with};
use crate::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio_util::sync::CancellationToken;
use toolhost::transport::mcp;

struct Client {
    lines: Lines<BufReader<DuplexStream>>,
    to: Option<DuplexStream>,
    server: tokio::task::JoinHandle<Result<(), String>>,
    modern: bool,
    next: u64,
    raw: String,
}

impl Client {
    fn connect(world: &World, modern: bool) -> Client {
        let (to, input) = tokio::io::duplex(1 << 20);
        let (output, from) = tokio::io::duplex(1 << 20);
        let server = mcp::Mcp::new(Arc::clone(&world.service), None, mcp::ListStyle::default());
        let client = mcp::Client {
            caller: toolhost::service::Caller::named("agent"),
            label: None,
        };
        let stop = CancellationToken::new();
        let server =
            tokio::spawn(
                async move { mcp::serve(server, client, input, output, stop, || false).await },
            );
        let lines = BufReader::new(from).lines();
        Client {
            lines,
            to: Some(to),
            server,
            modern,
            next: 0,
            raw: String::new(),
        }
    }

    async fn start(world: &World, modern: bool) -> Client {
        let mut client = Client::connect(world, modern);
        if modern {
            let found = client.ask("server/discover", json!({})).await;
            assert!(
                found["result"]["supportedVersions"]
                    .as_array()
                    .unwrap()
                    .contains(&json!("2026-07-28")),
                "{found}"
            );
        } else {
            let who = json!({"name": "t", "version": "1"});
            let hello =
                json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": who});
            let welcome = client.ask("initialize", hello).await;
            assert_eq!(welcome["result"]["protocolVersion"], "2025-11-25");
            assert!(welcome["result"]["capabilities"]["tools"].is_object());
            client
                .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
                .await;
        }
        client
    }

    async fn send(&mut self, message: impl std::fmt::Display) {
        self.to
            .as_mut()
            .unwrap()
            .write_all(format!("{message}\n").as_bytes())
            .await
            .unwrap();
    }

    async fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({"requestId": id.into()});
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
            .await;
    }

    /// Begins a call that lasts; its id, and how many calls were dropped before.
    async fn lasting(&mut self, world: &World) -> (u64, usize) {
        let (runs, dropped) = (world.runs(), world.fake.dropped.load(Ordering::SeqCst));
        let id = self.request("tools/call", lasting()).await;
        until("it runs", || world.runs() > runs).await;
        (id, dropped)
    }

    /// Whether the server ends by itself, and promptly.
    async fn ended(&mut self, time: Duration) -> Result<(), String> {
        tokio::time::timeout(time, &mut self.server)
            .await
            .expect("it ends promptly")
            .unwrap()
    }

    async fn request(&mut self, method: &str, mut params: Value) -> u64 {
        self.next += 1;
        if self.modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            });
        }
        let id = self.next;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    async fn answer(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        self.raw = line
            .expect("an answer in time")
            .unwrap()
            .expect("an answer");
        serde_json::from_str(&self.raw).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        let answer = self.answer().await;
        assert_eq!(answer["id"], id);
        answer
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))
            .await
    }

    async fn tools(&mut self) -> Vec<Value> {
        self.ask("tools/list", json!({})).await["result"]["tools"]
            .as_array()
            .unwrap()
            .clone()
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
}

/// A result that a model reads as an error of this kind, and which says this.
#[track_caller]
fn fails(answer: &Value, kind: &str, words: &str) {
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(
        text(answer).contains(kind) && text(answer).contains(words),
        "{kind} {words}: {answer}"
    );
}

/// A call that lasts.
fn lasting() -> Value {
    let run = json!({"scriptPath": "examples/long_running.py", "timeoutMs": 20_000});
    json!({"name": "core__execute-python-script", "arguments": run})
}

#[tokio::test]
async fn tools_are_listed_alike_in_both_eras_and_results_are_structured_with_an_equal_text() {
    let world = world();
    let mut lists = Vec::new();
    for modern in [true, false] {
        let mut client = Client::start(&world, modern).await;
        let tools = client.tools().await;
        let names: Vec<&str> = tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert!(
            names.is_sorted() && names.contains(&"fake__echo") && names.contains(&"core__run-code"),
            "{names:?}"
        );
        assert!(
            !names.contains(&"core__execute-nodejs-script"),
            "there is no node here"
        );
        assert!(!names.contains(&"fake__greedy"), "policy refuses it");
        for tool in &tools {
            assert_eq!(tool["inputSchema"]["type"], "object");
            assert!(tool["description"].as_str().is_some_and(|d| !d.is_empty()));
            let meta = &tool["_meta"];
            assert!(
                meta["dev.toolhost/toolId"].is_string() && meta["dev.toolhost/digest"].is_string()
            );
            assert!(tool["outputSchema"].is_null() || tool["outputSchema"]["type"] == "object");
        }
        let at = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
        assert_eq!(
            at("fake__echo")["inputSchema"],
            json!({"type": "object", "properties": {}})
        );
        assert_eq!(
            at("fake__text")["outputSchema"]["properties"]["result"]["type"],
            "string"
        );
        assert_eq!(at("fake__echo")["annotations"]["readOnlyHint"], true);
        lists.push(tools);

        let answer = client.call("fake__echo", json!({"message": "hi"})).await;
        let result = &answer["result"];
        assert_eq!(result["isError"], false);
        assert_eq!(
            result["resultType"],
            if modern {
                json!("complete")
            } else {
                Value::Null
            }
        );
        assert_eq!(
            result["structuredContent"],
            json!({"received_message": "hi"})
        );
        assert_eq!(
            serde_json::from_str::<Value>(text(&answer)).unwrap(),
            result["structuredContent"]
        );
        let answer = client.call("fake__text", json!({})).await;
        assert_eq!(
            answer["result"]["structuredContent"],
            json!({"result": "plain \u{202e}text"})
        );
        assert_eq!(text(&answer), "\"plain \\u202etext\"");
        assert!(
            !client.raw.contains('\u{202e}'),
            "nothing hidden on the wire"
        );
        let answer = client.call("fake__list", json!({})).await;
        assert_eq!(answer["result"]["structuredContent"], Value::Null);
        assert_eq!(text(&answer), "[\n  1,\n  2\n]");
        let run = json!({"scriptPath": "examples/echo.py", "inputData": {"message": "m"}});
        let answer = client.call("core__execute-python-script", run).await;
        let envelope = &answer["result"]["structuredContent"];
        assert_eq!(
            (&envelope["success"], &envelope["outputData"]),
            (&json!(true), &json!({"received_message": "m"}))
        );
        assert_eq!(
            serde_json::from_str::<Value>(text(&answer)).unwrap(),
            *envelope
        );

        // What a client is given of an answer that is large, and of one that indentation would make
        // a hundred times as long.
        let rows: Value = (0..2000)
            .map(|n| json!({"n": n, "ö\u{202e}": "\"\\\n"}))
            .collect();
        let rows = json!({"inputData": {"rows": rows}});
        let answer = client.call("fake__whole", rows.clone()).await;
        let shown = client.raw.get(..500).unwrap_or(&client.raw);
        assert!(answer["result"]["structuredContent"] == rows, "{shown}");
        assert!(
            serde_json::from_str::<Value>(text(&answer)).unwrap() == rows,
            "its text says the same"
        );
        assert!(!client.raw.contains('\u{202e}') && !text(&answer).contains('\u{202e}'));
        let deep = json!({"inputData": {"deep": (0..100).fold(json!(vec![1; 2_000]), |inner, _| json!([inner]))}});
        let answer = client.call("fake__whole", deep.clone()).await;
        assert!(answer["result"]["structuredContent"] == deep && text(&answer).len() < 10_000);
    }
    assert_eq!(lists[0], lists[1]);
}

#[tokio::test]
async fn failures_are_results_a_model_can_act_on_and_malformed_calls_are_recorded() {
    let world = world();
    for modern in [true, false] {
        let mut client = Client::start(&world, modern).await;
        for (name, arguments, words) in [
            (
                "fake__whole",
                json!({"timeoutMs": "x"}),
                "ParameterValidationError",
            ),
            (
                "fake__fails",
                json!({}),
                "ScriptError. Message: Script exited with code 3. Details: Traceback",
            ),
            (
                "fake__long_running",
                json!({}),
                "TimeoutError. Message: Script execution timed out.",
            ),
            (
                "core__execute-python-script",
                json!({"scriptPath": "../x.py"}),
                "SecurityError",
            ),
        ] {
            let answer = client.call(name, arguments).await;
            fails(&answer, words, "What to do:");
            fails(&answer, words, "Call ID:");
            assert!(
                !text(&answer).contains(world.root().to_str().unwrap()),
                "{answer}"
            );
        }
        // Not offered, and whoever calls it all the same is told why.
        assert!(
            !json!(client.tools().await)
                .to_string()
                .contains("fake__greedy")
        );
        fails(
            &client.call("fake__greedy", json!({})).await,
            "SecurityError",
            "",
        );
        for (params, words) in [
            (
                json!({"name": "fake__echo", "arguments": "{}"}),
                "not its JSON text",
            ),
            (
                json!({"name": "fake__echo", "arguments": [1]}),
                "must be an object",
            ),
            (json!({"arguments": {}}), "params.name"),
            (json!({"name": 7, "arguments": {}}), "params.name"),
        ] {
            let before = world.records().len();
            let answer = client.ask("tools/call", params).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(
                answer["error"]["message"].as_str().unwrap().contains(words),
                "{answer}"
            );
            assert_eq!(
                world.records().len(),
                before + 1,
                "one record of each refusal"
            );
        }
        for method in ["prompts/get", "resources/read", "tasks/get", "tasks/update"] {
            let answer = client.ask(method, json!({"x": 1})).await;
            let words = match method {
                "resources/read" => "params.uri must be a string, as it was listed.".to_owned(),
                _ => format!("The parameters of {method} are wrong."),
            };
            assert_eq!(
                (&answer["error"]["code"], &answer["error"]["message"]),
                (&json!(-32602), &json!(words))
            );
        }
        for (method, params, code) in [
            (
                "tools/call",
                json!({"name": "no_such_tool", "arguments": {}}),
                -32602,
            ),
            ("tools/list", json!({"cursor": 5}), -32602),
            ("tools/list", json!({"cursor": "made-up"}), -32602),
            (
                "logging/setLevel",
                json!({"level": "loud"}),
                if modern { -32601 } else { -32602 },
            ),
            ("no/such", json!({}), -32601),
        ] {
            assert_eq!(
                client.ask(method, params).await["error"]["code"],
                code,
                "{method}"
            );
        }
        assert!(
            client.ask("tools/list", json!({"cursor": ""})).await["result"]["tools"].is_array()
        );
    }
}

#[tokio::test]
async fn a_second_request_under_one_id_is_refused_and_the_first_keeps_its_end() {
    let world = world();
    for modern in [true, false] {
        let mut client = Client::start(&world, modern).await;
        let (id, dropped) = client.lasting(&world).await;
        let runs = world.runs();
        for method in ["tools/call", "tools/list"] {
            client.next = id - 1;
            client.request(method, lasting()).await;
            let answer = client.answer().await;
            assert_eq!(
                (&answer["id"], &answer["error"]["code"]),
                (&json!(id), &json!(-32600)),
                "{answer}"
            );
        }
        assert_eq!(world.runs(), runs, "it did not run");
        client.cancel(id).await;
        // An id is free again once it is answered.
        for _ in 0..2 {
            client.next = 76;
            assert_eq!(
                client.call("fake__echo", json!({"message": 1})).await["result"]["isError"],
                false
            );
        }
        assert_eq!(
            world.fake.dropped.load(Ordering::SeqCst),
            dropped + 1,
            "the first was cancelled"
        );
    }
    // A call that is cancelled at once leaves its record, and its id is free again.
    let mut client = Client::start(&world, false).await;
    for n in 0..20 {
        let before = world.records().len();
        let call = |params: Value| json!({"jsonrpc": "2.0", "id": 700, "method": "tools/call", "params": params});
        client.send(call(lasting())).await;
        client.cancel(700).await;
        client
            .send(call(
                json!({"name": "fake__echo", "arguments": {"message": n}}),
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!(
            answer["result"]["structuredContent"]["received_message"], n,
            "the new call's own answer: {answer}"
        );
        until("both calls leave a record", || {
            world.records().len() - before >= 2
        })
        .await;
        assert_eq!(
            world.records().len() - before,
            2,
            "round {n}: both calls leave a record"
        );
        let records = world.records();
        let cancelled = records
            .iter()
            .rev()
            .find(|record| record["tool"] == "core:execute-python-script")
            .unwrap();
        assert!(
            cancelled["arguments"]
                .to_string()
                .contains("long_running.py"),
            "what was asked for: {cancelled}"
        );
    }
}

#[tokio::test]
async fn when_the_client_leaves_running_calls_are_killed_and_the_server_ends() {
    let world = world();
    let dropped = || world.fake.dropped.load(Ordering::SeqCst);
    for modern in [true, false] {
        let mut client = Client::start(&world, modern).await;
        let (_, before) = client.lasting(&world).await;
        client.to.take().unwrap().shutdown().await.unwrap();
        assert_eq!(client.ended(Duration::from_secs(30)).await, Ok(()));
        assert_eq!(dropped(), before + 1);
    }
    // A client that cannot be answered is gone: its reading end is closed, and then something is
    // answered.
    let mut client = Client::start(&world, false).await;
    let (_, before) = client.lasting(&world).await;
    drop(std::mem::replace(
        &mut client.lines,
        BufReader::new(tokio::io::duplex(1).0).lines(),
    ));
    client.send("garbage").await;
    assert_eq!(client.ended(Duration::from_secs(30)).await, Ok(()));
    assert_eq!(dropped(), before + 1, "what ran is killed");
    // The control: what was asked before the end of input is still answered.
    let mut client = Client::start(&world, false).await;
    let id = client
        .request(
            "tools/call",
            json!({"name": "fake__echo", "arguments": {"message": 1}}),
        )
        .await;
    client.to.take().unwrap().shutdown().await.unwrap();
    assert_eq!(client.answer().await["id"], id);
}

#[tokio::test]
async fn what_is_not_listed_answers_to_its_exact_name() {
    let world = world_with(|root, _| {
        let echo = || script("examples/echo.py", "python");
        define(
            root,
            "fake:hidden",
            echo(),
            json!({"presentation": {"listed": false}}),
        );
        define(
            root,
            "fake:early",
            echo(),
            json!({"version": "2.0.0-beta.1"}),
        );
    });
    let mut client = Client::start(&world, true).await;
    let tools = client.tools().await;
    assert!(
        tools.iter().all(|tool| tool["name"] != "fake__hidden"),
        "{tools:?}"
    );
    let answer = client.call("fake__hidden", json!({"message": "hi"})).await;
    assert_eq!(
        answer["result"]["structuredContent"],
        json!({"received_message": "hi"}),
        "{answer}"
    );
    let near = client.call("fake__hiddem", json!({})).await;
    assert!(!near.to_string().contains("fake__hidden"), "{near}");
    // So is one of which only versions before a release are there.
    fails(
        &client.call("fake__early", json!({})).await,
        "VersionMismatchError",
        "",
    );
    assert!(tools.iter().all(|tool| tool["name"] != "fake__early"));
}

/// A line before the handshake that asks for nothing, then the handshake.
#[tokio::test]
async fn what_comes_before_the_first_request_and_asks_for_nothing_is_passed_over() {
    let world = world();
    for first in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/foo"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        "garbage",
    ] {
        let mut client = Client::connect(&world, true);
        client.send(first).await;
        if first == "garbage" {
            assert_eq!(client.answer().await["id"], json!(null));
        }
        assert!(
            client.ask("tools/list", json!({})).await["result"]["tools"].is_array(),
            "{first}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_the_callers_error_with_its_record_and_the_session_goes_on() {
    let world = world();
    let mut client = Client::start(&world, false).await;
    let deep = format!("{{\"message\":{}1{}}}", "[".repeat(140), "]".repeat(140));
    // About 200 bytes each, once they are read.
    let many = format!("{{\"message\":[{}1]}}", "{},".repeat(160_000));
    for (arguments, words) in [
        (r#"{"message":123456789012345678901234567890}"#, "64 bits"),
        (r#"{"message":"\ud83d"}"#, "surrogate"),
        (r#"{"message":NaN}"#, "a JSON value is needed"),
        (r#"{"message":1,"message":2}"#, "occurs twice"),
        (deep.as_str(), "nested deeper"),
        (many.as_str(), "fewer values"),
    ] {
        let before = world.records().len();
        let head = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"fake__echo","arguments":"#;
        client.send(format!("{head}{arguments}}}}}")).await;
        let answer = client.answer().await;
        fails(&answer, "ParameterValidationError", words);
        assert_eq!(
            (&answer["id"], world.records().len()),
            (&json!(5), before + 1)
        );
    }
    for (line, id) in [
        (
            r#"{"jsonrpc":"2.0","id":78,"id":79,"method":"ping"}"#,
            json!(78),
        ),
        ("not json", json!(null)),
    ] {
        client.send(line).await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.get("id"), &answer["error"]["code"]),
            (Some(&id), &json!(-32700)),
            "{answer}"
        );
    }
    assert_eq!(world.runs(), 0);
    assert_eq!(
        client.call("fake__echo", json!({"message": 1})).await["result"]["isError"],
        false
    );
}

/// Answers that nobody reads: so many calls run, and the others wait for them.
#[tokio::test]
async fn a_client_that_does_not_read_holds_back_its_own_calls_and_leaves_when_it_closes() {
    let world = world();
    let mut client = Client::start(&world, false).await;
    let runs = world.runs();
    let message = "x".repeat(140_000);
    let mut to = client.to.take().unwrap();
    let asking = async {
        for id in 0..80 {
            let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                "params": {"name": "fake__echo", "arguments": {"message": message}}});
            to.write_all(format!("{call}\n").as_bytes()).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("all are taken in");
    let (mut begun, asked) = (0, Instant::now());
    while world.runs() - runs > begun || begun < 48 && asked.elapsed() < PATIENCE {
        begun = world.runs() - runs;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // One tool has 48 of the 64 places, and the pipe of this test holds 1 MiB: two or three
    // answers.
    assert!(
        (48..=54).contains(&begun),
        "{begun} of 80 calls ran, and nobody had read an answer"
    );
    to.shutdown().await.unwrap();
    let ended = client.ended(Duration::from_secs(30)).await;
    assert!(ended.expect_err("answers are lost").contains("unread"));
}

/// A change is sent under the client's own id, which may be any, to the request that is open under
/// it and to no other.
#[tokio::test]
async fn a_listener_is_sent_changes_under_its_own_id() {
    let world = world();
    let mut client = Client::start(&world, true).await;
    let listen = |id: &str| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
        json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})
    };
    let of = |message: &Value| {
        message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone()
    };
    for id in ["first", "second"] {
        client.send(listen(id)).await;
        let acknowledged = client.answer().await;
        assert_eq!(
            acknowledged["method"],
            "notifications/subscriptions/acknowledged"
        );
        assert_eq!(of(&acknowledged), id, "{acknowledged}");
    }
    client.cancel("first").await;
    client.tools().await;
    fs::create_dir(world.root().join("late")).unwrap();
    let files =
        toolhost::registry::DirectToolLoader::new(vec![world.root().join("late")], Vec::new());
    world
        .service
        .catalog
        .add_source(Arc::new(crate::registry::Elsewhere(files)))
        .expect("another folder");
    let changed = client.answer().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(of(&changed), "second", "{changed}");
}
