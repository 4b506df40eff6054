//! MCP over HTTP: what clients have the server keep for them is bounded.

use super::mcp::{BOTH, Client, messages, tasks};
use super::{Web, caller, heard, request, write_callers};
use crate::prelude::*;
use std::sync::Barrier;

#[test]
fn sessions_are_no_more_than_a_caller_may_have_however_they_begin() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let web = Web::start(&playground, &[]);
    let ready = Barrier::new(240);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let begin = || {
        let mut stream = web.connect();
        let text = request("POST", "/mcp", &web.address, &[BOTH], &hello.to_string());
        ready.wait();
        stream.write_all(text.as_bytes()).unwrap();
        let reply = super::Reply::of(&super::exchanged(stream, b"")).expect("an answer");
        reply.header("mcp-session-id").map(str::to_owned)
    };
    let sessions: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..240).map(|_| scope.spawn(begin)).collect();
        all.into_iter().filter_map(|one| one.join().unwrap()).collect()
    });
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    let lives = |id: &&String| web.ask("POST", "/mcp", &[BOTH, &format!("Mcp-Session-Id: {id}")], &ping).status == 200;
    let alive = sessions.iter().filter(lives).count();
    assert!((100..=192).contains(&alive), "{alive} of {}", sessions.len());
    // One more is there in place of the one that was used least lately.
    let mut another = Client::new(&web, false, &[]);
    assert!(messages(&another.ask("tools/list", json!({})))[0]["result"]["tools"].is_array());
}

#[test]
fn a_client_that_says_it_is_ready_again_and_again_is_told_of_a_change_once() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let put = |name: &str, handler: Value, more: Value| {
        std::fs::write(
            playground.path(&format!("user_scripts/{name}.resource.json")),
            manifest(format!("docs:{name}"), handler, more).to_string(),
        )
        .unwrap();
    };
    put("rules", json!({"type": "resource", "uri": "docs://rules", "text": "x"}), json!({}));
    put(
        "item",
        json!({"type": "resource", "uri": "docs://items/{id}/x", "text": "{{id}}"}),
        json!({"parameters":
        {"type": "object", "properties": {"id": {"type": "string", "description": "d"}}, "required": ["id"]}}),
    );
    playground.settle();
    let web = Web::start(&playground, &[]);
    let mut client = Client::new(&web, false, &[]);
    for _ in 0..20 {
        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }
    // What is not there, or as long as nothing of use, is not kept to be told of.
    let mut subscribe = |uri: &str| messages(&client.ask("resources/subscribe", json!({ "uri": uri })))[0].clone();
    assert_eq!(subscribe("docs://nothing")["error"]["code"], -32002);
    assert_eq!(subscribe(&format!("docs://items/{}/x", "y".repeat(2000)))["error"]["code"], -32002);
    assert!(subscribe("docs://items/7/x")["error"].is_null());
    assert!(subscribe("docs://rules")["error"].is_null(), "control");
    let mut stream = web.send("GET", "/mcp", &[BOTH, client.session()], "");
    heard(&mut stream, "\r\n\r\n");
    web.signal(nix::sys::signal::Signal::SIGHUP);
    let told = heard(&mut stream, "docs://rules");
    // Were it told more often, the answers to others would follow.
    assert_eq!(told.matches("notifications/tools/list_changed").count(), 1, "{told}");
    assert_eq!(told.matches("docs://items/7/x").count(), 1, "{told}");
}

#[test]
fn what_a_task_keeps_of_an_answer_is_bounded() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, sys\nn = json.load(sys.stdin)['n']\nprint('{\"all\":[' + ','.join(['{}'] * n) + ']}')\n";
    let any = json!({"type": "object", "properties": {"n": {"type": "integer", "description": "d"}}});
    playground.tool("many", "python", script, json!({"parameters": any, "execution": {"task": "optional"}}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let ask = |method: &str, params: Value, can: &Value| {
        messages(&Client::that_can(&web, true, &[], can).ask(method, params)).pop().unwrap()
    };
    let ended = |n: usize| {
        let begun = ask("tools/call", json!({"name": "esc__many", "arguments": {"n": n}}), &tasks());
        let task = json!({"taskId": begun["result"]["taskId"]});
        let now = || ask("tasks/get", task.clone(), &tasks())["result"].clone();
        wait_for("its end", || now()["status"] == "completed");
        now()["result"].clone()
    };
    let small = ended(1000);
    assert_eq!(small["structuredContent"]["all"].as_array().map(Vec::len), Some(1000), "control");
    let large = ended(50_000);
    assert_eq!((&large["isError"], &large["structuredContent"]), (&json!(true), &Value::Null));
    let words = large["content"][0]["text"].as_str().unwrap();
    assert!(words.contains("ResourceLimitError") && words.contains("call it without a task"), "{words}");
    let whole = ask("tools/call", json!({"name": "esc__many", "arguments": {"n": 50_000}}), &json!({}));
    assert_eq!(whole["result"]["structuredContent"]["all"].as_array().map(Vec::len), Some(50_000), "control");
}

/// A tool's task of this client, or the error.
fn task(web: &Web, headers: &[&str], label: &str) -> Value {
    let mut client = Client::that_can(web, true, headers, &tasks());
    let call = json!({"name": "esc__quick", "arguments": {}, "_meta": {"dev.toolhost/user": label}});
    messages(&client.ask("tools/call", call)).pop().unwrap()
}

#[test]
fn whoever_brings_many_names_leaves_others_room_for_tasks() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("quick", "python", "print('{}')\n", json!({"execution": {"task": "optional"}}));
    write_callers(&playground, &(caller("gateway", "act_as = [\"*\"]\n") + &caller("*", "")));
    let (web, [gateway, alice]) = Web::for_callers(&playground, ["gateway", "alice"]);
    let begun: Vec<Value> = (0..30).map(|n| task(&web, &[&gateway], &format!("user-{}", n % 3))).collect();
    let has_begun = |answer: &&Value| answer["result"]["taskId"].is_string();
    assert_eq!(begun.iter().filter(has_begun).count(), 24, "three quarters: {}", begun[29]);
    assert_eq!(begun[29]["result"]["structuredContent"], json!({}), "beyond them a call runs at once: {}", begun[29]);
    let own = task(&web, &[&alice], "alice");
    assert!(has_begun(&&own), "others have room: {own}");
}
