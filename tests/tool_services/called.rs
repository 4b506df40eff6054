//! Calls of services elsewhere, over a real broker, through the real binary.

use super::peer::Peer;
use super::{POLICY, call, change, describe, output, playground, send_user, served, terms};
use crate::brokers::Node;
use crate::prelude::*;

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn a_service_gets_the_arguments_its_config_and_the_trace_and_nothing_else_where_policy_and_cap_allow_it()
 {
    let (name, tool) = ("plain", "plain:ask");
    let Some((_mq, host, peer)) = served(name) else {
        return;
    };
    let echo = json!({"what": "echo", "more": [1, {"ö": null}]});
    let told: Value = serde_json::from_str(&output(&call(&host, tool, &echo, &[]))).unwrap();
    assert_eq!(
        told,
        json!({"user": "", "config": "{\"style\":\"pun\"}", "arguments": echo.to_string()})
    );
    // The trace of the call goes with it.
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (variables, told) in [
        (
            vec![("TRACEPARENT", parent), ("TRACESTATE", "vendor=opaque")],
            json!([parent, "vendor=opaque"]),
        ),
        (vec![("TRACEPARENT", parent)], json!([parent, null])),
        (vec![], json!([null, null])),
    ] {
        let mut command = super::host(&host);
        command
            .args(["call", tool, "--json", "--input", "{\"what\": \"trace\"}"])
            .envs(variables);
        assert_eq!(output(&finish(command, b"")), told.to_string());
    }
    send_user(&host);
    let told: Value =
        serde_json::from_str(&output(&call(&host, tool, &echo, &["--user", "bob"]))).unwrap();
    let own = host.outside("/usr/bin/id").arg("-un").output().unwrap();
    let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
    let own = if own.is_empty() {
        host.who.uid().unwrap().to_string()
    } else {
        own
    };
    assert_eq!(told["user"], json!(own), "who called, and no label");
    // The cap of the host holds calls too.
    let text = fs::read_to_string(host.path(POLICY)).unwrap();
    let granted = text.split("[services]").nth(1).unwrap();
    let cap = |rest: &str| {
        let text = format!("name = \"cap\"\nwhy = \"w\"\n{rest}");
        fs::write(host.path("sandbox-policies/host.policy.toml"), text).unwrap();
        call(&host, tool, &json!({"what": "echo"}), &[])
    };
    let user = |own: &str| {
        let told: Value = serde_json::from_str(&output(&cap(&format!("[services]{own}")))).unwrap();
        told["user"].as_str().unwrap().to_owned()
    };
    assert_ne!(user(granted), "", "the control");
    assert_eq!(
        user(&granted.replace("user = true, ", "")),
        "",
        "the name stays here"
    );
    let before = peer.calls();
    for (rest, words) in [
        (String::new(), "no entry of [services] call in policy"),
        (
            format!(
                "[services]{}",
                granted.replace("response:tg:", "response:tg:other-")
            ),
            "answers from response:tg:",
        ),
    ] {
        let ended = cap(&rest);
        let said = format!("{}{}", ended.stderr, ended.text());
        assert_eq!(
            (ended.kind(), peer.calls()),
            ("SecurityError", before),
            "{ended:?}"
        );
        assert!(
            said.contains(words) && said.contains("cap"),
            "{words}: {said}"
        );
    }
    fs::remove_file(host.path("sandbox-policies/host.policy.toml")).unwrap();
    // The control: what the policy does not name is not called.
    change(&host, POLICY, "request:tg:", "request:tg:other-");
    let refused = call(&host, tool, &json!({"what": "echo"}), &[]);
    assert_eq!((refused.kind(), peer.calls()), ("SecurityError", before));
    let person = format!("covers {name} at request:tg:{name}");
    assert!(
        refused.stderr.contains(&person) || refused.text().contains(&person),
        "{refused:?}"
    );
    fs::remove_file(host.path(POLICY)).unwrap();
    assert_eq!(
        (
            call(&host, tool, &json!({"what": "echo"}), &[]).kind(),
            peer.calls()
        ),
        ("SecurityError", before)
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn answers_are_told_as_they_come_and_bad_ones_end_one_call() {
    let Some((_mq, host, peer)) = served("badly") else {
        return;
    };
    let mut server = Server::of(super::host(&host));
    let mut said = |what: &str| {
        let answer = server.called("ask", json!({"what": what}));
        (answer["result"]["isError"] == true, words(&answer))
    };
    assert_eq!(said("stream"), (false, "one two three".to_owned()));
    assert_eq!(said("object"), (false, "{\"a\":[1]}".to_owned()));
    assert_eq!(said("nothing"), (false, String::new()));
    let over = ["ResourceLimitError", "outputBytes"];
    for (what, parts) in [
        (
            "fail",
            &["no such table", "ScriptError", "SecurityError"][..],
        ),
        ("garbage", &["an invalid reply"]),
        ("big", &over),
        ("bigger by parts", &over),
    ] {
        let (bad, ended) = said(what);
        assert!(
            bad && parts.iter().all(|part| ended.contains(part)),
            "{what}: {ended}"
        );
        assert!(!ended.contains('\u{1b}'), "{what}: {ended:?}");
    }
    assert_eq!(said("stream").1, "one two three", "it lives on");
    assert_eq!(peer.calls(), 8, "each was sent once");
    // Each part is told, the last one too.
    let streamed = call(
        &host,
        "badly:ask",
        &json!({"what": "stream"}),
        &["--verbose"],
    );
    let chunks = streamed
        .stderr
        .lines()
        .filter_map(|line| line.trim().strip_prefix("chunk "))
        .map(str::trim);
    assert_eq!(
        chunks.collect::<Vec<_>>(),
        ["one", "two", "three"],
        "{}",
        streamed.stderr
    );
    let late = call(
        &host,
        "badly:ask",
        &json!({"what": "half"}),
        &["--timeout-ms", "1500"],
    );
    assert_eq!(late.kind(), "TimeoutError", "{late:?}");
    assert!(
        late.error()
            .1
            .contains("sent parts of an answer, but did not end it (`end_of_stream`)"),
        "{late:?}"
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn instances_take_turns_and_one_that_is_away_is_skipped() {
    let Some(mq) = Node::shared() else { return };
    let host = playground(Who::ours(), "turns", &mq.url());
    let names: Vec<String> = (0..3).map(|n| format!("request:tg:turns-{n}")).collect();
    describe(&host, "turns", json!(names), json!(["style"]));
    change(
        &host,
        POLICY,
        "[\"request:tg:turns\"]",
        &json!(names).to_string(),
    );
    host.settle();
    let mut server = Server::of(super::host(&host));
    let none = server.called("ask", json!({"what": "echo"})).to_string();
    assert!(
        none.contains("No instances available for tool ask"),
        "{none}"
    );
    // A queue outlives its reader: only an instance that never was is seen to be away.
    let peers: Vec<Peer> = names[..2]
        .iter()
        .map(|queue| Peer::of(terms(&mq.url()), "turns", queue))
        .collect();
    for _ in 0..6 {
        server.called("ask", json!({"what": "echo"}));
    }
    let calls = |peers: &[Peer]| peers.iter().map(Peer::calls).collect::<Vec<_>>();
    assert_eq!(calls(&peers).iter().sum::<usize>(), 6);
    assert!(
        calls(&peers).iter().all(|calls| *calls >= 2),
        "{:?}",
        calls(&peers)
    );
    let third = Peer::of(terms(&mq.url()), "turns", &names[2]);
    let before = calls(&peers);
    let ids: Vec<u64> = (0..9)
        .map(|_| server.call("ask", json!({"what": "echo"})))
        .collect();
    server.answers(&ids);
    assert_eq!(third.calls(), 3);
    assert!(
        calls(&peers)
            .iter()
            .zip(before)
            .all(|(now, before)| now - before == 3),
        "{:?}",
        calls(&peers)
    );
}

#[test]
fn a_broker_that_is_away_is_a_fault_of_its_own() {
    let host = playground(Who::ours(), "gone", "amqp://127.0.0.1:1");
    let ended = call(&host, "gone:ask", &json!({"what": "echo"}), &[]);
    assert_eq!(
        ended.error(),
        ("ServiceError", "No instances available for tool gone:ask"),
        "{ended:?}"
    );
    let error = &ended.out["error"];
    assert_eq!(
        (&error["retryable"], &error["details"]),
        (&json!(true), &json!("Its broker is away."))
    );
    fs::write(host.path("config.toml"), "").unwrap();
    let ended = call(&host, "gone:ask", &json!({"what": "echo"}), &[]);
    assert_eq!(ended.kind(), "CapabilityError", "{ended:?}");
    assert!(
        ended.error().1.contains("a broker for the service 'gone'"),
        "{ended:?}"
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn a_manifest_holds_the_answers_of_a_service_to_its_schema() {
    let Some((mq, host, _peer)) = served("schema") else {
        return;
    };
    let handler = json!({"type": "tool-service", "service": "schema"});
    for (name, output) in [
        ("object", json!({"type": "object", "required": ["a"]})),
        ("text", json!({"type": "string"})),
        ("either", json!({"type": ["object", "string"]})),
    ] {
        let parameters = json!({"type": "object", "additionalProperties": true});
        let more = json!({"output": output, "parameters": parameters});
        let file = host.path(&format!("tool-defs/remote/{name}.tool.json"));
        fs::write(
            file,
            manifest(format!("schema:{name}"), handler.clone(), more).to_string(),
        )
        .unwrap();
    }
    host.settle();
    let said = |tool: &str, what: &str| {
        call(
            &host,
            &format!("schema:{tool}"),
            &json!({"what": what}),
            &[],
        )
    };
    let object = json!({"a": [1]});
    for (tool, answer) in [
        ("object", &object),
        ("text", &json!("{\"a\":[1]}")),
        ("either", &json!("{\"a\":[1]}")),
    ] {
        let ended = said(tool, "object");
        assert_eq!(
            (&ended.out["outputData"], &ended.out["usage"]["outputBytes"]),
            (answer, &json!(9)),
            "{ended:?}"
        );
    }
    for what in ["stream", "nothing"] {
        let ended = said("object", what);
        assert_eq!(
            ended.error(),
            ("OutputValidationError", "Output must be an object."),
            "{what}: {ended:?}"
        );
    }
    // Where it was asked stands in the record, and of what was not asked nothing.
    fs::remove_file(host.path(POLICY)).unwrap();
    assert_eq!(said("object", "object").kind(), "SecurityError");
    let records = host.records();
    let place = json!(format!("schema at request:tg:schema of {}", mq.url()));
    let asked: Vec<bool> = records
        .iter()
        .map(|record| record.get("service") == Some(&place))
        .collect();
    assert_eq!(asked, [true, true, true, true, true, false], "{records:#?}");
    let call = records[0]["call"].as_str().unwrap();
    let told = host.cli(&["audit", "--call", call]).text();
    assert!(
        told.contains("a service elsewhere did the work, which nothing here confines"),
        "{told}"
    );
}
