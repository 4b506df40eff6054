//! Runs: what they hand out, what they take back, and what stays of them.

use super::*;

/// A host with tokens for alice and bob.
struct Scene {
    playground: Playground,
    file: String,
    alice: String,
    bob: String,
}

impl Scene {
    fn new() -> Scene {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        adder(&playground);
        client_tools(&playground);
        write_callers(
            &playground,
            &(entry("alice", "\"*\"", "") + &entry("bob", "\"esc:*\"", "")),
        );
        let (file, [alice, bob]) = tokens(&playground, ["alice", "bob"]);
        Scene {
            playground,
            file,
            alice,
            bob,
        }
    }

    fn serve(&self) -> Web {
        Web::start(&self.playground, &["--token-file", &self.file])
    }
}

fn begin(web: &Web, caller: &str, body: &Value) -> Reply {
    web.ask("POST", "/v1/runs", &[caller], &body.to_string())
}

fn submit(web: &Web, caller: &str, run: &str, outputs: Value) -> Reply {
    let path = format!("/v1/runs/{run}/submit_tool_outputs");
    let body = json!({ "tool_outputs": outputs });
    web.ask("POST", &path, &[caller], &body.to_string())
}

/// A mixed batch: one tool of this host, and two that the client runs.
fn mixed() -> Value {
    json!({"calls": [
        {"id": "call_1", "name": "own__local", "arguments": "{\"command\": \"ls\", \"timeout_ms\": \"soon\"}"},
        {"id": "call_2", "name": "esc__add", "arguments": {"a": 1, "b": 2}},
        {"id": "call_3", "name": "own__function", "arguments": {"place": "here", "key": "hunter2hunter2"}},
    ]})
}

fn id_of(run: &Reply) -> String {
    run.json()["id"].as_str().unwrap().to_owned()
}

fn required(run: &Value) -> &Value {
    &run["required_action"]["submit_tool_outputs"]["tool_calls"]
}

fn output(id: &str, text: &str) -> Value {
    json!({"tool_call_id": id, "output": text})
}

#[test]
fn a_mixed_turn_runs_what_is_of_this_host_and_waits_for_exactly_the_rest() {
    let scene = Scene::new();
    let web = scene.serve();
    let run = begin(&web, &scene.alice, &mixed()).is(200, "none");
    let (id, run) = (id_of(&run), run.json());
    assert_eq!(run["status"], "requires_action");
    assert_eq!(
        required(&run),
        &json!([
            {"id": "call_1", "type": "function", "function": {"name": "own__local",
                "arguments": "{\"command\":[\"ls\"],\"env\":{}}"}},
            {"id": "call_3", "type": "function", "function": {"name": "own__function",
                "arguments": "{\"place\":\"here\",\"key\":\"hunter2hunter2\",\"unit\":\"C\"}"}},
        ])
    );
    let added = &run["steps"][1];
    assert_eq!(
        (&added["status"], &added["output"]),
        (&json!("completed"), &json!("{\"sum\":3}"))
    );
    // Nothing was started for the client's calls, and each has its record.
    let records = scene.playground.records();
    let of = |tool: &str| {
        records
            .iter()
            .filter(|it| it["tool"] == tool)
            .collect::<Vec<_>>()
    };
    let handed = of("own:function");
    let last = handed.last().unwrap();
    assert_eq!(
        (&last["outcome"], &last["decision"]),
        (&json!("requires_action"), &json!("allowed"))
    );
    assert!(!last.to_string().contains("hunter2"), "{last}");
    // All ids, no others, once.
    let both = |first: &str| json!([output(first, "{\"files\": 3}"), output("call_3", " \n")]);
    let refused = "ParameterValidationError: ";
    submit(&web, &scene.alice, &id, json!([output("call_1", "x")]))
        .is(422, &format!("{refused}not provided, with id: call_3"));
    submit(&web, &scene.alice, &id, both("call_9")).is(422, &format!("{refused}with id: call_9"));
    submit(&web, &scene.alice, &id, both("call_2")).is(422, &format!("{refused}with id: call_2"));
    let path = format!("/v1/runs/{id}");
    assert_eq!(
        web.get(&path, &[&scene.alice]).json()["steps"],
        run["steps"]
    );
    let over = submit(&web, &scene.alice, &id, both("call_1"))
        .is(200, "none")
        .json();
    let outputs: Vec<&Value> = (0..3).map(|at| &over["steps"][at]["output"]).collect();
    assert_eq!(over["status"], "completed");
    assert_eq!(
        outputs,
        [
            "{\"files\": 3}",
            "{\"sum\":3}",
            "The tool call has no result."
        ]
    );
    assert!(over["required_action"].is_null());
    // It was not to be stored.
    submit(&web, &scene.alice, &id, both("call_1")).is(404, refused);
    web.get(&path, &[&scene.alice]).is(404, refused);
    assert!(
        !scene.playground.path("state/background.redb").exists()
            || !stored(&scene).contains("hunter2")
    );
}

/// What the store holds, as text.
fn stored(scene: &Scene) -> String {
    let path = scene.playground.path("state/background.redb");
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

#[test]
fn a_stored_run_outlives_its_host_for_its_owner_alone() {
    let scene = Scene::new();
    let mut web = scene.serve();
    let mut body = mixed();
    body["store"] = json!(true);
    let run = begin(&web, &scene.alice, &body).is(200, "none");
    let id = id_of(&run);
    let path = format!("/v1/runs/{id}");
    web.signal(Signal::SIGKILL);
    drop(web);
    // Secrets are not on the disk, and nobody else reads it.
    let text = stored(&scene);
    assert!(text.contains("call_3") && !text.contains("hunter2"));
    let mode = fs::metadata(scene.playground.path("state/background.redb"))
        .unwrap()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    web = scene.serve();
    let again = web.get(&path, &[&scene.alice]).is(200, "none").json();
    assert_eq!(again["status"], "requires_action");
    assert_eq!(required(&again).as_array().unwrap().len(), 2);
    let refused = "ParameterValidationError: You have no such run.";
    let outputs = || json!([output("call_1", "1"), output("call_3", "2")]);
    web.get(&path, &[&scene.bob]).is(404, refused);
    submit(&web, &scene.bob, &id, outputs()).is(404, refused);
    web.ask("DELETE", &path, &[&scene.bob], "").is(404, refused);
    web.ask("POST", &format!("{path}/cancel"), &[&scene.bob], "")
        .is(404, refused);
    let none = web.get("/v1/runs", &[&scene.bob]).json();
    assert_eq!(none, json!({"runs": []}));
    submit(&web, &scene.alice, &id, outputs()).is(200, "none");
    submit(&web, &scene.alice, &id, outputs()).is(
        422,
        "ParameterValidationError: does not wait for outputs: it is completed",
    );
    let own = web.get("/v1/runs", &[&scene.alice]).json();
    assert_eq!(own["runs"][0]["id"], *id);
    let own = web.get(&path, &[&scene.alice]).json();
    assert_eq!(own["steps"][2]["output"], "2");
    web.ask("DELETE", &path, &[&scene.alice], "")
        .is(200, "none");
    web.get(&path, &[&scene.alice]).is(404, refused);
}

/// What a client submits is stored without the secrets of the calls, and has a record.
#[test]
fn submitted_outputs_are_recorded_and_a_run_tells_how_it_goes_on() {
    let scene = Scene::new();
    let web = scene.serve();
    let mut body = mixed();
    body["store"] = json!(true);
    let id = id_of(&begin(&web, &scene.alice, &body));
    let path = format!("/v1/runs/{id}/submit_tool_outputs");
    let outputs = [
        output("call_1", "{\"said\": \"hunter2hunter2\"}"),
        output("call_3", "hunter2hunter2"),
    ];
    let body = json!({"tool_outputs": outputs, "stream": true});
    let told = web.ask("POST", &path, &[&scene.alice], &body.to_string());
    let body = told.body.strip_suffix("data: [DONE]\n\n").unwrap();
    let events = crate::http::calls::events(body);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "thread.run.step.completed",
            "thread.run.step.completed",
            "thread.run.queued",
            "thread.run.in_progress",
            "thread.run.completed"
        ]
    );
    assert_eq!(events[1].1["output"], "hunter2hunter2");
    assert_eq!(events[2].1["status"], "queued");
    let run = web.get(&format!("/v1/runs/{id}"), &[&scene.alice]).json();
    assert_eq!(events[4].1, run);
    let text = stored(&scene);
    assert!(text.contains("call_3") && !text.contains("hunter2"));
    let records = scene.playground.records();
    let submitted = records
        .iter()
        .filter(|it| it["files"][0]["name"] == "output");
    let submitted: Vec<&Value> = submitted.collect();
    let digest = toolhost::base::sha256_hex(b"hunter2hunter2");
    assert_eq!(
        (submitted.len(), &submitted[1]["files"][0]["sha256"]),
        (2, &json!(digest))
    );
    for record in submitted {
        let parent = records.iter().find(|it| it["call"] == record["parent"]);
        let parent = parent.unwrap();
        assert_eq!(
            (&parent["tool"], &parent["outcome"], &record["user"]),
            (&record["tool"], &json!("requires_action"), &json!("alice"))
        );
    }
    let verified = scene.playground.cli(&["log", "verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn a_cancelled_run_ends_its_calls() {
    let scene = Scene::new();
    crate::http::sleeper(&scene.playground);
    let web = scene.serve();
    let body = json!({"store": true, "calls": [
        {"id": "a", "name": "esc__add", "arguments": {"a": 1, "b": 2}},
        {"id": "b", "name": "esc__sleep", "arguments": {}}]});
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| begin(&web, &scene.alice, &body));
        scene.playground.runs("user_scripts/sleep/main.py", 1);
        wait_for("the first has ended", || {
            scene.playground.records().len() == 1
        });
        let runs = web.get("/v1/runs", &[&scene.alice]).json();
        let path = format!("/v1/runs/{}", runs["runs"][0]["id"].as_str().unwrap());
        let cancelled = web.ask("POST", &format!("{path}/cancel"), &[&scene.alice], "");
        assert_eq!(cancelled.json()["status"], "cancelling");
        let run = begun.join().unwrap().json();
        assert_eq!(run["status"], "cancelled", "{run}");
        let output = run["steps"][1]["output"].as_str().unwrap();
        assert!(output.contains("CancelledError"), "{output}");
        assert_eq!(run["steps"][0]["output"], "{\"sum\":3}");
        assert_eq!(web.get(&path, &[&scene.alice]).json(), run);
    });
    scene.playground.runs("user_scripts/sleep/main.py", 0);
}

#[test]
fn a_run_can_be_cancelled_and_then_takes_nothing() {
    let scene = Scene::new();
    let web = scene.serve();
    let mut body = mixed();
    body["store"] = json!(true);
    let id = id_of(&begin(&web, &scene.alice, &body));
    let cancelled = web.ask(
        "POST",
        &format!("/v1/runs/{id}/cancel"),
        &[&scene.alice],
        "",
    );
    let cancelled = cancelled.is(200, "none").json();
    assert_eq!(
        (
            &cancelled["status"],
            &cancelled["steps"][0]["status"],
            &cancelled["steps"][1]["status"]
        ),
        (
            &json!("cancelled"),
            &json!("cancelled"),
            &json!("completed")
        )
    );
    submit(
        &web,
        &scene.alice,
        &id,
        json!([output("call_1", ""), output("call_3", "")]),
    )
    .is(422, "ParameterValidationError: it is cancelled");
}

#[test]
fn a_request_brings_tools_of_its_own_and_takes_no_name_of_this_host() {
    let scene = Scene::new();
    let web = scene.serve();
    let function = |name: &str| {
        json!({"type": "function", "name": name, "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}})
    };
    let sql = json!({"type": "custom", "name": "sql", "format": {"type": "text"}});
    let calls = json!([
        {"id": "a", "name": "weather", "arguments": {"city": "Ulm"}},
        {"id": "b", "name": "sql", "arguments": {"input_data": "SELECT 1"}},
        {"id": "c", "name": "weather", "arguments": {"town": "Ulm"}},
        {"id": "d", "name": "nobody", "arguments": {}},
    ]);
    let tools = json!([function("weather"), sql]);
    // Whatever tools of this host a caller may call.
    for caller in [&scene.alice, &scene.bob] {
        let run = begin(&web, caller, &json!({"calls": calls, "tools": tools}))
            .is(200, "none")
            .json();
        assert_eq!(
            required(&run),
            &json!([
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Ulm\"}"}},
                {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
            ])
        );
        let failed = |at: usize| run["steps"][at]["output"].as_str().unwrap().to_owned();
        assert!(failed(2).contains("ParameterValidationError"), "{run}");
        assert!(failed(3).contains("ToolNotFoundError"), "{run}");
    }
    for (tool, wanted) in [
        (
            function("esc__add"),
            "tools[0].name: a tool of this host has the name 'esc__add'.",
        ),
        (json!({"type": "web_search"}), "tools[0].type"),
        (function("a b"), "tools[0].name"),
    ] {
        begin(
            &web,
            &scene.alice,
            &json!({"calls": calls, "tools": [tool]}),
        )
        .is(400, &format!("ParameterValidationError: {wanted}"));
    }
    // A tool that a caller may not call does not exist for it.
    let run = begin(
        &web,
        &scene.bob,
        &json!({"calls": [{"id": "a", "name": "own__shell", "arguments": {"commands": ["ls"]}}]}),
    );
    let run = run.is(200, "none").json();
    assert_eq!(run["status"], "completed");
    assert!(
        run["steps"][0]["output"]
            .as_str()
            .unwrap()
            .contains("ToolNotFoundError"),
        "{run}"
    );
}

#[test]
fn what_is_no_run_is_refused_by_its_member() {
    let scene = Scene::new();
    let web = scene.serve();
    let call = |id: &str| json!({"id": id, "name": "esc__add", "arguments": {"a": 1, "b": 2}});
    for (body, wanted) in [
        (json!({"calls": []}), "1 to 64 calls"),
        (json!({"calls": [call("a"), call("a")]}), "calls[1].id"),
        (json!({"calls": [call(&"x".repeat(129))]}), "calls[0].id"),
        (
            json!({"calls": [call("a")], "shop": true}),
            "unknown field `shop`",
        ),
        (json!({"calls": [{"id": "a"}]}), "missing field `name`"),
    ] {
        begin(&web, &scene.alice, &body).is(400, &format!("ParameterValidationError: {wanted}"));
    }
}

#[test]
fn runs_that_wait_are_bounded_and_take_no_slot() {
    let scene = Scene::new();
    let web = scene.serve();
    let waits = json!({"calls": [{"name": "own__local", "arguments": {"command": ["ls"]}}]});
    for _ in 0..128 {
        begin(&web, &scene.alice, &waits).is(200, "none");
    }
    begin(&web, &scene.alice, &waits).is(429, "RateLimitError: Too many runs");
    // Of one principal alone, and calls go on.
    let sum = json!({"a": 1, "b": 2});
    web.call("esc:add", &sum, &[&scene.alice]).is(200, "none");
    let later = "Prefer: respond-async";
    web.call("esc:add", &sum, &[&scene.alice, later])
        .is(429, "RateLimitError");
    let own = json!({"calls": waits["calls"], "tools": [{"type": "local_shell"}]});
    begin(&web, &scene.bob, &own).is(200, "none");
    let runs = web.get("/v1/runs", &[&scene.alice]).json();
    let first = runs["runs"][0]["id"].as_str().unwrap();
    let outputs = begin_again(&web, &scene.alice, first);
    outputs.is(200, "none");
    begin(&web, &scene.alice, &waits).is(200, "none");
}

/// Submits an output for every call that a run waits for.
/// What has no room when its calls have ended is a run that failed: none waits for ever.
#[test]
fn a_run_that_cannot_be_kept_has_failed() {
    let scene = Scene::new();
    let web = scene.serve();
    let numbers = vec![0; 450_000];
    let body = json!({"calls": [{"name": "any", "arguments": {"numbers": numbers}}],
        "tools": [{"type": "function", "name": "any", "parameters": {"type": "object"}}]});
    let replies: Vec<Reply> = (0..8).map(|_| begin(&web, &scene.alice, &body)).collect();
    assert_eq!(replies[0].json()["status"], "requires_action");
    assert!(replies.iter().any(|reply| reply.status == 429));
    let runs = web.get("/v1/runs", &[&scene.alice]).json().to_string();
    assert!(!runs.contains("in_progress"), "{runs}");
}

fn begin_again(web: &Web, caller: &str, run: &str) -> Reply {
    let shown = web.get(&format!("/v1/runs/{run}"), &[caller]).json();
    let calls = required(&shown).as_array().unwrap().iter();
    let outputs = calls.map(|call| output(call["id"].as_str().unwrap(), "done"));
    submit(web, caller, run, outputs.collect())
}

#[test]
fn a_run_whose_client_leaves_has_failed_and_its_calls_end() {
    let scene = Scene::new();
    crate::http::sleeper(&scene.playground);
    let web = scene.serve();
    let body = json!({"store": true, "calls": [
        {"name": "own__local", "arguments": {"command": ["ls"]}},
        {"name": "esc__sleep", "arguments": {}}]});
    let stream = web.send("POST", "/v1/runs", &[&scene.alice], &body.to_string());
    scene.playground.runs("user_scripts/sleep/main.py", 1);
    let state = || web.get("/v1/runs", &[&scene.alice]).json()["runs"][0].clone();
    assert_eq!(state()["status"], "in_progress");
    let id = state()["id"].as_str().unwrap().to_owned();
    submit(&web, &scene.alice, &id, json!([]))
        .is(422, "ParameterValidationError: it is in_progress");
    drop(stream);
    wait_for("the run has failed", || state()["status"] == "failed");
    scene.playground.runs("user_scripts/sleep/main.py", 0);
}

#[test]
fn a_person_is_asked_before_a_call_is_handed_out_and_a_run_is_its_own_callers_alone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    client_tools(&playground);
    playground.policy("asks", "own:shell", "confirm = \"a person looks at it\"\n");
    let entries = [
        entry("gateway", "\"*\"", "act_as = [\"alice\"]\n"),
        entry("alice", "\"*\"", ""),
        entry("ops", "\"*\"", "role = \"operator\"\n"),
    ];
    write_callers(&playground, &entries.concat());
    let (file, [gateway, alice, ops]) = tokens(&playground, ["gateway", "alice", "ops"]);
    let web = Web::start(&playground, &["--token-file", &file]);
    let body = json!({"user": "alice", "calls": [{"id": "a", "name": "own__shell", "arguments": {"commands": ["ls"]}}]});
    let answered = |approve: bool| {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| begin(&web, &gateway, &body));
            let mut open = Value::Null;
            wait_for("a person is asked", || {
                open = web.get("/v1/approvals", &[&ops]).json()["approvals"][0].clone();
                !open.is_null()
            });
            assert!(open["arguments"].as_str().unwrap().contains("ls"), "{open}");
            let path = format!("/v1/approvals/{}", open["call"].as_str().unwrap());
            let answer = json!({"approve": approve}).to_string();
            web.ask("POST", &path, &[&ops], &answer).is(200, "none");
            asked.join().unwrap().is(200, "none").json()
        })
    };
    let denied = answered(false);
    assert!(
        denied["steps"][0]["output"]
            .as_str()
            .unwrap()
            .contains("AuthorizationError")
    );
    assert_eq!(denied["required_action"], Value::Null);
    let run = answered(true);
    assert_eq!(
        required(&run)[0]["function"]["arguments"],
        "{\"commands\":[\"ls\"]}"
    );
    let path = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    for caller in [&gateway, &alice, &ops] {
        web.get(&path, &[caller])
            .is(404, "ParameterValidationError: You have no such run.");
    }
    web.get(&format!("{path}?as=alice"), &[&gateway])
        .is(200, "none");
}

/// A call that has ended is seen at once, and left where the host ends before the run does.
#[test]
fn a_step_that_has_ended_is_kept_at_once() {
    let scene = Scene::new();
    crate::http::sleeper(&scene.playground);
    let web = scene.serve();
    let body = json!({"store": true, "calls": [
        {"id": "one", "name": "esc__sleep", "arguments": {}},
        {"id": "two", "name": "esc__add", "arguments": {"a": 1, "b": 2}},
    ]});
    let stream = web.send("POST", "/v1/runs", &[&scene.alice], &body.to_string());
    let get = |web: &Web, path: &str| web.get(path, &[&scene.alice]).json();
    let mut run = Value::Null;
    wait_for("the second has ended", || {
        let id = get(&web, "/v1/runs")["runs"][0]["id"].clone();
        run = get(&web, &format!("/v1/runs/{}", id.as_str().unwrap_or("none")));
        run["steps"][1]["status"] == "completed"
    });
    assert_eq!(run["status"], "in_progress", "{run}");
    assert_eq!(run["steps"][1]["output"], "{\"sum\":3}", "{run}");
    web.signal(Signal::SIGKILL);
    drop((stream, web));
    let web = scene.serve();
    let left = get(&web, &format!("/v1/runs/{}", run["id"].as_str().unwrap()));
    assert_eq!(left["status"], "failed", "{left}");
    assert_eq!(left["steps"][1], run["steps"][1], "{left}");
}
