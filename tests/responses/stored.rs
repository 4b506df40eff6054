//! Stored responses: whose they are, what they take, and what is left of them after a restart.

use super::models::{Model, Said, asks, body, chunk, says};
use super::{check, told};
use crate::client_tools::client_tools;
use crate::http::{Reply, Web, adder, tokens};
use crate::prelude::*;

/// `store`: a response goes on without its client, is read again from any event, continued,
/// cancelled and deleted, each by its owner alone.
#[test]
fn a_stored_response_is_its_owners_until_it_is_deleted() {
    let long = Said::Stalls(chunk(&json!({"content": "x".repeat(200)}), None));
    let model = Model::new(vec![
        asks(&[
            ("esc__add", json!({"a": 1, "b": 2})),
            ("weather", json!({"city": "Ulm"})),
        ]),
        says(&["sunny"]),
        long,
    ]);
    let (_playground, web, [alice, bob]) = model.host_for(["alice", "bob"], adder);
    let ask = |method: &str, path: &str, who: &str, body: &str| web.ask(method, path, &[who], body);
    let mut asked = body(json!("weather?"));
    asked["store"] = json!(true);
    asked["tools"] = json!([{"type": "function", "name": "weather"}]);
    let first = told(&ask("POST", "/v1/responses", &alice, &asked.to_string()));
    let response = check(&first);
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(ask("GET", &path, &alice, "").json(), response);
    for from in [0, 3, first.len() - 1] {
        let rest = told(&ask(
            "GET",
            &format!("{path}?stream=true&starting_after={from}"),
            &alice,
            "",
        ));
        assert_eq!(rest, first[from + 1..], "from {from}");
    }
    assert_eq!(
        told(&ask("GET", &format!("{path}?stream=true"), &alice, "")),
        first
    );
    for (method, path) in [
        ("GET", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/cancel")),
    ] {
        assert_eq!(ask(method, &path, &bob, "").status, 404, "{method} {path}");
    }
    // What the client ran comes first; then it goes on where it was.
    let call = &response["output"][1]["call_id"];
    let mut next = json!({"model": "tiny", "previous_response_id": response["id"], "input": "and?", "stream": true});
    ask("POST", "/v1/responses", &alice, &next.to_string())
        .is(400, "ParameterValidationError: No tool output found");
    next["input"] =
        json!([{"type": "function_call_output", "call_id": call, "output": "18 degrees"}]);
    ask("POST", "/v1/responses", &bob, &next.to_string())
        .is(400, "ParameterValidationError: previous_response_id");
    let second = check(&told(&ask(
        "POST",
        "/v1/responses",
        &alice,
        &next.to_string(),
    )));
    assert_eq!(second["output"][0]["content"][0]["text"], "sunny");
    let heard = model.heard();
    let roles: Vec<&str> = heard[1].1["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
    assert_eq!(heard[1].1["messages"][3]["content"], "18 degrees");
    // Its client leaves, and it goes on until it is cancelled.
    asked["input"] = json!("long");
    let request = crate::http::request(
        "POST",
        "/v1/responses",
        &web.address,
        &[&alice],
        &asked.to_string(),
    );
    let mut stream = web.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let seen = crate::http::heard(&mut stream, "output_text.delta");
    drop(stream);
    let (_, id) = seen.split_once("\"id\":\"resp_").unwrap();
    let path = format!("/v1/responses/resp_{}", id.split('"').next().unwrap());
    let now = ask("GET", &path, &alice, "").json();
    assert_eq!(now["status"], "in_progress", "{now}");
    let cancelled = ask("POST", &format!("{path}/cancel"), &alice, "{}").json();
    assert_eq!(
        (&cancelled["status"], &cancelled["error"]["code"]),
        (&json!("failed"), &json!("CancelledError"))
    );
    let events = told(&ask("GET", &format!("{path}?stream=true"), &alice, ""));
    assert_eq!(check(&events)["output"][0]["status"], "incomplete");
    assert_eq!(ask("DELETE", &path, &alice, "").json()["deleted"], true);
    assert_eq!(ask("GET", &path, &alice, "").status, 404);
}

/// What continues a stored response is charged for all that it pulls in, before that is read.
#[test]
fn short_requests_cannot_fill_the_memory_with_what_they_continue() {
    let stalls = Said::Stalls(chunk(&json!({"content": "hm"}), None));
    let model = Model::new(vec![says(&["yes"]), says(&["yes"]), stalls]);
    let (_playground, web, [alice]) = model.host_for(["alice"], |_| {});
    let ask = |body: &Value| web.ask("POST", "/v1/responses", &[&alice], &body.to_string());
    let store = |x: Value| {
        let item = json!({"role": "user", "content": "go", "x": x});
        let body = json!({"model": "tiny", "input": [item], "store": true});
        let stored = ask(&body).json();
        assert_eq!(stored["status"], "completed", "{stored}");
        stored["id"].clone()
    };
    let [small, large] = [json!([0]), json!(vec![0; 1_500_000])].map(store);
    let go_on = |id: &Value| json!({"model": "tiny", "input": "on", "previous_response_id": id, "stream": true});
    let mut begun = Vec::new();
    let refused = loop {
        let (mut stream, body) = (web.connect(), go_on(&large).to_string());
        let request = crate::http::request("POST", "/v1/responses", &web.address, &[&alice], &body);
        stream.write_all(request.as_bytes()).unwrap();
        let seen = crate::http::heard(&mut stream, "\r\n\r\n");
        if !seen.starts_with("HTTP/1.1 200") {
            break seen;
        }
        begun.push(stream);
        assert!(begun.len() < 12, "no end");
    };
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(!begun.is_empty());
    let mut stream = web.connect();
    let body = go_on(&small).to_string();
    let request = crate::http::request("POST", "/v1/responses", &web.address, &[&alice], &body);
    stream.write_all(request.as_bytes()).unwrap();
    let seen = crate::http::heard(&mut stream, "\r\n\r\n");
    assert!(seen.starts_with("HTTP/1.1 200"), "control: {seen}");
}

/// A stored response has an end that always has room.
#[test]
fn a_response_without_room_says_so() {
    let long = "x".repeat(200_000);
    let model = Model::new(vec![says(&[long.as_str(); 38])]);
    let (playground, config) = model.playground(|_| {}, "tokens = 1_000_000\n");
    let (file, [alice]) = tokens(&playground, ["alice"]);
    let web = Web::start(&playground, &["--config", &config, "--token-file", &file]);
    let ask = |method: &str, path: &str, body: &str| web.ask(method, path, &[&alice], body);
    let mut body = json!({"model": "tiny", "input": "go"});
    let whole = ask("POST", "/v1/responses", &body.to_string()).json();
    assert_eq!(whole["status"], "completed", "control");
    body["store"] = json!(true);
    let failed = ask("POST", "/v1/responses", &body.to_string()).json();
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("ResourceLimitError"))
    );
    let path = format!("/v1/responses/{}", failed["id"].as_str().unwrap());
    assert_eq!(ask("GET", &path, "").json(), failed);
    let events = told(&ask("GET", &format!("{path}?stream=true"), ""));
    for (at, (_, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], at);
    }
    let (name, data) = events.last().unwrap();
    assert_eq!((&**name, &data["response"]), ("response.failed", &failed));
}

/// A client can leave while its run or response is first written, or its outputs are taken: its place
/// is given back.
#[test]
fn clients_that_leave_at_once_keep_no_place() {
    let model = Model::new(vec![says(&["yes"])]);
    let (_playground, web, [alice]) = model.host_for(["alice"], client_tools);
    let send = |path: &str, body: &Value| {
        drop(web.send("POST", path, &[&alice], &body.to_string()));
    };
    let waiting = json!({"store": true, "calls": [
        {"id": "call", "name": "own__local", "arguments": {"command": ["ls"]}}]});
    let runs = || web.get("/v1/runs", &[&alice]).json()["runs"].clone();
    let settled = || !runs().to_string().contains("in_progress");
    (0..50).for_each(|_| send("/v1/runs", &waiting));
    wait_for("the runs have settled", settled);
    let outputs = json!({"tool_outputs": [{"tool_call_id": "call", "output": "done"}]});
    let path = |run: &Value| format!("/v1/runs/{}", run["id"].as_str().unwrap());
    for run in runs().as_array().unwrap() {
        send(&(path(run) + "/submit_tool_outputs"), &outputs);
    }
    wait_for("the runs have taken their outputs or not", settled);
    let stored = json!({"model": "tiny", "input": "go", "store": true});
    (0..50).for_each(|_| send("/v1/responses", &stored));
    let mut open = 0;
    wait_for("all places are free", || {
        for run in runs().as_array().unwrap() {
            let is_mine = run["store"] == true && run["status"] == "requires_action";
            if is_mine {
                web.ask("DELETE", &path(run), &[&alice], "").is(200, "none");
            }
        }
        let mut body = waiting.clone();
        body["store"] = json!(false);
        while open < 128 {
            let begun = web.ask("POST", "/v1/runs", &[&alice], &body.to_string());
            if begun.status != 200 {
                return false;
            }
            open += 1;
        }
        true
    });
}

const SECRET: &str = "hunter2hunter2";

/// A secret may be said before a call tells that it is one.
#[test]
fn what_was_said_before_its_secret_was_known_is_hidden_at_the_end() {
    let call = ("own__function", json!({"place": "here", "key": SECRET}));
    let model = Model::new(vec![asks(&[call])]);
    let (playground, config) = model.playground(client_tools, "");
    let (file, [alice]) = tokens(&playground, ["alice"]);
    let serve = || Web::start(&playground, &["--config", &config, "--token-file", &file]);
    let web = serve();
    let mut said = json!({"role": "user", "content": format!("log in with {SECRET}")});
    said["metadata"] = json!({SECRET: {"type": SECRET}});
    let mut asked = body(json!([said]));
    asked["store"] = json!(true);
    asked["instructions"] = json!(format!("It is {SECRET}."));
    let events = told(&web.ask("POST", "/v1/responses", &[&alice], &asked.to_string()));
    let response = check(&events);
    assert_eq!(response["instructions"], format!("It is {SECRET}."));
    web.signal(Signal::SIGKILL);
    drop(web);
    let web = serve();
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let items = web.get(&format!("{path}/input_items"), &[&alice]).json();
    assert_eq!(
        items["data"],
        json!([{"role": "user", "content": "log in with ***", "metadata": {"***": {"type": "***"}}}])
    );
    let again = web.get(&format!("{path}?stream=true"), &[&alice]);
    assert!(!again.body.contains("hunter2"), "{}", again.body);
    let again = told(&again);
    assert_eq!(again.len(), events.len());
    assert_eq!(check(&again)["instructions"], "It is ***.");
}

/// After a restart a response that had ended is as it was, but for the secrets of its calls; one
/// that ran has failed.
#[test]
fn a_stored_response_outlives_its_host() {
    let place = json!({"place": "here", "key": SECRET});
    let model = Model::new(vec![
        asks(&[
            ("own__function", place),
            ("esc__add", json!({"a": 1, "b": 2})),
        ]),
        says(&["It was hunter2", "hunter2."]),
        Said::Stalls(chunk(&json!({"content": "so far"}), None)),
        says(&["yes"]),
    ]);
    let (playground, config) = model.playground(
        |it| {
            adder(it);
            client_tools(it);
        },
        "",
    );
    let (file, [alice, bob]) = tokens(&playground, ["alice", "bob"]);
    let serve = || Web::start(&playground, &["--config", &config, "--token-file", &file]);
    let web = serve();
    let ask = |web: &Web, method: &str, path: &str, who: &str, body: &Value| {
        web.ask(method, path, &[who], &body.to_string())
    };
    let begin = |web: &Web, input: Value, before: &Value| -> Reply {
        let mut asked = body(input);
        asked["store"] = json!(true);
        asked["previous_response_id"] = before.clone();
        ask(web, "POST", "/v1/responses", &alice, &asked)
    };
    let program = json!({"type": "program", "id": "p", "code": "x", "caller": {"type": "direct"}});
    let search = json!({"type": "tool_search_call", "id": "s", "arguments": {"q": [1]}});
    let asked = json!([{"role": "user", "content": "open it"}, program, search]);
    let first = check(&told(&begin(&web, asked.clone(), &Value::Null)));
    let call = &first["output"][1];
    assert_eq!(
        call["arguments"],
        json!({"place": "here", "key": SECRET, "unit": "C"}).to_string()
    );
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": format!("with {SECRET}")});
    let events = told(&begin(&web, json!([output]), &first["id"]));
    let second = check(&events);
    let items = |web: &Web, of: &Value| {
        let path = format!(
            "/v1/responses/{}/input_items?order=asc",
            of.as_str().unwrap()
        );
        ask(web, "GET", &path, &alice, &json!({})).json()["data"].clone()
    };
    let all = items(&web, &second["id"]);
    let said: [&[Value]; 3] = [
        asked.as_array().unwrap(),
        first["output"].as_array().unwrap(),
        &[output],
    ];
    assert_eq!(all, json!(said.concat()), "what it continues, unchanged");
    // What was submitted has a record.
    let records = playground.records();
    let record = records
        .iter()
        .find(|it| it["files"][0]["name"] == "output")
        .unwrap();
    let parent = records
        .iter()
        .find(|it| it["call"] == record["parent"])
        .unwrap();
    assert_eq!(
        [&parent["outcome"], &record["tool"], &record["user"]],
        ["requires_action", "own:function", "alice"]
    );
    assert_eq!(record["files"][0]["bytes"], 19);

    let request = json!({"model": "tiny", "input": "long", "store": true, "stream": true});
    let mut stream = web.send("POST", "/v1/responses", &[&alice], &request.to_string());
    let seen = crate::http::heard(&mut stream, "output_text.delta");
    let (_, id) = seen.split_once("\"id\":\"resp_").unwrap();
    let third = json!(format!("resp_{}", id.split('"').next().unwrap()));
    web.signal(Signal::SIGKILL);
    drop(web);
    let path = playground.path("state/background.redb");
    let stored = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    assert!(stored.contains("It was ***") && !stored.contains("hunter2"));
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);

    let web = serve();
    let path = |id: &Value| format!("/v1/responses/{}", id.as_str().unwrap());
    let stream = |id: &Value, more: &str| {
        told(&ask(
            &web,
            "GET",
            &format!("{}?stream=true{more}", path(id)),
            &alice,
            &json!({}),
        ))
    };
    let again = stream(&second["id"], "");
    assert_eq!(
        check(&again)["output"][0]["content"][0]["text"],
        "It was ***."
    );
    let names = |told: &super::Events| {
        told.iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&again), names(&events));
    assert_eq!(stream(&second["id"], "&starting_after=3"), again[4..]);
    let lost = stream(&third, "");
    let end = check(&lost);
    assert_eq!(
        [&end["status"], &end["error"]["code"]],
        ["failed", "InternalError"]
    );
    assert_eq!(
        stream(&third, "&starting_after=99"),
        lost[lost.len() - 1..],
        "what was seen before is lost"
    );
    for id in [&second["id"], &third] {
        for what in ["", "/input_items"] {
            assert_eq!(
                ask(
                    &web,
                    "GET",
                    &format!("{}{what}", path(id)),
                    &bob,
                    &json!({})
                )
                .status,
                404
            );
        }
    }
    // It goes on from there.
    check(&told(&begin(&web, json!("and?"), &second["id"])));
    let heard = model.heard();
    let messages = heard.last().unwrap().1["messages"].as_array().unwrap();
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(
        roles,
        ["user", "assistant", "tool", "tool", "assistant", "user"]
    );
    assert!(messages[1].to_string().contains("***"), "{messages:?}");
    ask(&web, "DELETE", &path(&second["id"]), &alice, &json!({})).is(200, "none");
    drop(web);
    let web = serve();
    assert_eq!(
        ask(&web, "GET", &path(&second["id"]), &alice, &json!({})).status,
        404
    );
    assert_eq!(items(&web, &first["id"]), json!(asked), "the control");
}

/// Says something at once, and is never over.
const TALKS: &str = "import json, time\nprint('@toolhost ' + json.dumps({'chunk': 'so far '}), flush=True)\n\
    time.sleep(1000)\n";

fn talker(playground: &Playground) {
    adder(playground);
    let key = json!({"type": "string", "description": "d", "x-secret": true});
    let more = json!({"presentation": {"final": true}, "output": {"type": "string"},
        "parameters": {"type": "object", "properties": {"key": key}}});
    playground.tool(
        "quiet",
        "python",
        "print(1)\n",
        json!({"presentation": {"hidden": true}}),
    );
    playground.tool("talks", "python", TALKS, more);
    playground.policy("talks", "esc:talks", "[limits]\ntimeout_ms = 120_000\n");
    let later = "import time\ntime.sleep(2)\nprint('{\"sum\": 3}')\n";
    playground.tool("later", "python", later, json!({}));
}

/// The path of a response that is stored, once it was told so much.
fn begun(web: &Web, asked: &Value, until: &str) -> String {
    let mut asked = asked.clone();
    asked["store"] = json!(true);
    let mut stream = web.send("POST", "/v1/responses", &[], &asked.to_string());
    let seen = crate::http::heard(&mut stream, until);
    let (_, id) = seen.split_once("\"id\":\"resp_").unwrap();
    format!("/v1/responses/resp_{}", id.split('"').next().unwrap())
}

/// What was said and done stays where a response ends before its calls, and the model that goes on
/// from it hears all of it.
#[test]
fn calls_are_told_where_their_response_is_cancelled() {
    let model = Model::new(vec![
        asks(&[
            ("esc__talks", json!({})),
            ("esc__later", json!({})),
            ("esc__quiet", json!({})),
            ("esc__talks", json!({"key": "hunter2-hunter2"})),
        ]),
        says(&["on"]),
    ]);
    let (playground, config) = model.playground(talker, "");
    let web = Web::start(&playground, &["--config", &config]);
    let path = begun(&web, &body(json!("go")), "so far ");
    wait_for("the other calls have ended", || {
        let records = playground.records();
        let ended = |name: &str| {
            let is_it = |it: &&Value| it["tool"] == name && it["outcome"] == "success";
            records.iter().any(|it| is_it(&it))
        };
        ended("esc:later") && ended("esc:quiet")
    });
    web.ask("POST", &format!("{path}/cancel"), &[], "{}");
    let events = told(&web.get(&format!("{path}?stream=true"), &[]));
    let response = check(&events);
    assert_eq!(web.get(&path, &[]).json(), response);
    let output = response["output"].as_array().unwrap();
    let of = |kind: &'static str| output.iter().filter(move |it| it["type"] == kind);
    let message = of("message").next().unwrap();
    assert_eq!(message["status"], "incomplete", "{output:?}");
    let said = message["content"][0]["text"].as_str().unwrap();
    assert!(said.starts_with("so far \nTool esc:talks failed"), "{said}");
    assert!(said.contains("it may have run"), "{said}");
    let sums: Vec<&Value> = of("mcp_call")
        .filter(|it| it["name"] == "esc:later")
        .collect();
    assert_eq!(sums.len(), 1, "{output:?}");
    assert_eq!(
        [&sums[0]["status"], &sums[0]["output"]],
        ["completed", "{\"sum\":3}"]
    );
    assert_eq!(
        output.len(),
        3,
        "each call is told that is shown: {output:?}"
    );
    let stored = fs::read(playground.path("state/background.redb")).unwrap();
    let stored = String::from_utf8_lossy(&stored);
    assert!(stored.contains("esc:talks") && !stored.contains("hunter2"));
    let mut next = body(json!("and?"));
    next["previous_response_id"] = response["id"].clone();
    check(&told(&web.ask(
        "POST",
        "/v1/responses",
        &[],
        &next.to_string(),
    )));
    let heard = model.heard()[1].1["messages"].to_string();
    for words in ["so far ", "{\\\"sum\\\":3}", "it may have run"] {
        assert!(heard.contains(words), "{words}: {heard}");
    }
}

/// What it has is seen while it runs, and left where its host ends first.
#[test]
fn what_a_response_has_is_seen_at_once_and_after_its_host_was_killed() {
    let model = Model::new(vec![
        asks(&[("esc__add", json!({"a": 1, "b": 2}))]),
        asks(&[("esc__talks", json!({}))]),
    ]);
    let (playground, config) = model.playground(talker, "");
    let web = Web::start(&playground, &["--config", &config]);
    let mut asked = body(json!("go"));
    asked["metadata"] = json!({"k": "v"});
    asked["instructions"] = json!("I");
    let path = begun(&web, &asked, "so far ");
    let now = web.get(&path, &[]).json();
    assert_eq!(now["status"], "in_progress", "{now}");
    assert_eq!(now["output"][0]["output"], "{\"sum\":3}", "{now}");
    web.signal(Signal::SIGKILL);
    drop(web);
    let web = Web::start(&playground, &["--config", &config]);
    let left = check(&told(&web.get(&format!("{path}?stream=true"), &[])));
    assert_eq!(web.get(&path, &[]).json(), left);
    assert_eq!(left["status"], "failed", "{left}");
    for member in ["output", "metadata", "instructions", "id", "created_at"] {
        assert_eq!(left[member], now[member], "{member}: {left}");
    }
}
