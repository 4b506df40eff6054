//! MCP over HTTP: what clients have the server keep for them is bounded.

use super::mcp::{BOTH, Client, tasks};
use super::{Reply, caller, exchanged, heard, request, served, served_to, write_callers};
use crate::prelude::*;
use std::sync::Barrier;

#[test]
fn sessions_subscriptions_and_what_a_task_keeps_are_bounded() {
    let (_playground, web) = served(|it| {
        let parameters =
            json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
        for (name, uri, text, more) in [
            ("rules", "docs://rules", "x", json!({})),
            (
                "item",
                "docs://items/{id}/x",
                "{{id}}",
                json!({ "parameters": parameters }),
            ),
        ] {
            let handler = json!({"type": "resource", "uri": uri, "text": text});
            let file = it.path(&format!("user_scripts/{name}.resource.json"));
            fs::write(
                file,
                manifest(format!("docs:{name}"), handler, more).to_string(),
            )
            .unwrap();
        }
        let script = "import json, sys\nn = json.load(sys.stdin)['n']\nprint('{\"all\":[' + \
            ','.join(['{}'] * n) + ']}')\n";
        let any = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        it.tool(
            "many",
            "python",
            script,
            json!({"parameters": any, "execution": {"task": "optional"}}),
        );
    });
    // A client that says again and again that it is ready hears of a change once.
    let mut client = Client::new(&web, false, &[]);
    for _ in 0..20 {
        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }
    // What is not there, or as long as nothing of use, is not kept to be told of.
    let mut subscribe = |uri: &str| client.asked("resources/subscribe", json!({ "uri": uri }));
    assert_eq!(subscribe("docs://nothing")["error"]["code"], -32002);
    assert_eq!(
        subscribe(&format!("docs://items/{}/x", "y".repeat(2000)))["error"]["code"],
        -32002
    );
    assert!(subscribe("docs://items/7/x")["error"].is_null());
    assert!(subscribe("docs://rules")["error"].is_null(), "control");
    let mut stream = web.send("GET", "/mcp", &[BOTH, client.session()], "");
    heard(&mut stream, "\r\n\r\n");
    web.signal(Signal::SIGHUP);
    let told = heard(&mut stream, "docs://rules");
    // Were it told more often, the answers to others would follow.
    assert_eq!(
        told.matches("notifications/tools/list_changed").count(),
        1,
        "{told}"
    );
    assert_eq!(told.matches("docs://items/7/x").count(), 1, "{told}");
    // The body of a call that is refused is charged while it is read, and not as long as its answer
    // is kept.
    let long = json!({"name": "esc__none", "arguments": {"text": "x".repeat(7 << 20)}});
    for _ in 0..7 {
        assert_eq!(
            client.asked("tools/call", long.clone())["error"]["code"],
            -32602
        );
    }
    // What a task keeps of an answer.
    let ask = |method: &str, params: Value, can: &Value| {
        Client::that_can(&web, true, &[], can).asked(method, params)
    };
    let ended = |n: usize| {
        let begun = ask(
            "tools/call",
            json!({"name": "esc__many", "arguments": {"n": n}}),
            &tasks(),
        );
        let task = json!({"taskId": begun["result"]["taskId"]});
        let now = || ask("tasks/get", task.clone(), &tasks())["result"].clone();
        wait_for("its end", || now()["status"] == "completed");
        now()["result"].clone()
    };
    let small = ended(1000);
    assert_eq!(
        small["structuredContent"]["all"].as_array().map(Vec::len),
        Some(1000),
        "control"
    );
    let large = ended(50_000);
    assert_eq!(
        (&large["isError"], &large["structuredContent"]),
        (&json!(true), &Value::Null)
    );
    let told = large["content"][0]["text"].as_str().unwrap();
    assert!(
        told.contains("ResourceLimitError") && told.contains("call it without a task"),
        "{told}"
    );
    let whole = ask(
        "tools/call",
        json!({"name": "esc__many", "arguments": {"n": 50_000}}),
        &json!({}),
    );
    assert_eq!(
        whole["result"]["structuredContent"]["all"]
            .as_array()
            .map(Vec::len),
        Some(50_000),
        "control"
    );
    // Sessions, however they begin.
    let ready = Barrier::new(240);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let begin = || {
        let mut stream = web.connect();
        let text = request("POST", "/mcp", &web.address, &[BOTH], &hello.to_string());
        ready.wait();
        stream.write_all(text.as_bytes()).unwrap();
        let reply = Reply::of(&exchanged(stream, b"")).expect("an answer");
        reply.header("mcp-session-id").map(str::to_owned)
    };
    let sessions: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..240).map(|_| scope.spawn(begin)).collect();
        all.into_iter()
            .filter_map(|one| one.join().unwrap())
            .collect()
    });
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    let lives = |id: &&String| {
        web.ask(
            "POST",
            "/mcp",
            &[BOTH, &format!("Mcp-Session-Id: {id}")],
            &ping,
        )
        .status
            == 200
    };
    let alive = sessions.iter().filter(lives).count();
    assert!(
        alive > 192,
        "the only user has no share: {alive} of {}",
        sessions.len()
    );
    // One more is there in place of the one that was used least lately.
    assert!(
        Client::new(&web, false, &[]).asked("tools/list", json!({}))["result"]["tools"].is_array()
    );
}

#[test]
fn whoever_brings_many_names_leaves_others_room_for_tasks() {
    let (_playground, web, [gateway, alice]) = served_to(["gateway", "alice"], |it| {
        it.tool(
            "quick",
            "python",
            "print('{}')\n",
            json!({"execution": {"task": "optional"}}),
        );
        write_callers(
            it,
            &(caller("gateway", "act_as = [\"*\"]\n") + &caller("*", "")),
        );
    });
    let task = |header: &str, label: &str| {
        let call =
            json!({"name": "esc__quick", "arguments": {}, "_meta": {"dev.toolhost/user": label}});
        Client::that_can(&web, true, &[header], &tasks()).asked("tools/call", call)
    };
    let begun: Vec<Value> = (0..30)
        .map(|n| task(&gateway, &format!("user-{}", n % 3)))
        .collect();
    let has_begun = |answer: &&Value| answer["result"]["taskId"].is_string();
    assert_eq!(
        begun.iter().filter(has_begun).count(),
        24,
        "three quarters: {}",
        begun[29]
    );
    assert_eq!(
        begun[29]["result"]["structuredContent"],
        json!({}),
        "beyond them a call runs at once: {}",
        begun[29]
    );
    let own = task(&alice, "alice");
    assert!(has_begun(&&own), "others have room: {own}");
}

#[test]
fn two_callers_without_rights_leave_room_for_the_sessions_of_others() {
    let (_playground, web, [alice, mallory, bob]) = served_to(["alice", "mallory", "bob"], |it| {
        write_callers(it, &caller("bob", ""));
    });
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    let begun = [&alice, &mallory].map(|header| {
        (0..140)
            .map(|_| Client::new(&web, false, &[header]))
            .collect::<Vec<_>>()
    });
    let alive = begun.each_ref().map(|clients| {
        clients
            .iter()
            .filter(|one| one.post(&ping).status == 200)
            .count()
    });
    assert_eq!(
        alive,
        [128, 64],
        "each has as many as it leaves free; its own oldest go"
    );
    assert!(
        Client::new(&web, false, &[&bob]).asked("tools/list", json!({}))["result"]["tools"]
            .is_array()
    );
}
