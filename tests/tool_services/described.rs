//! Descriptors: what is wrong with one is told at its place, and policy says who may call.

use super::{POLICY, change, granted, playground, send_user};
use crate::prelude::*;

const SERVICE: &str = "tool-defs/s.tool-service.json";
const TOOL: &str = "tool-defs/t.tool.json";

fn service() -> Value {
    json!({
        "id": "rag",
        "request-queue": "non-persistent://tg/request/rag", "response-queue": "non-persistent://tg/response/rag",
        "config-params": [{"name": "collection", "required": true}, {"name": "style"}],
    })
}

fn tool() -> Value {
    json!({
        "type": "tool-service", "name": "query", "description": "Queries.", "service": "rag", "collection": "customers",
        "arguments": [{"name": "question", "type": "string", "description": "d"}],
    })
}

/// What `check` says of both.
fn check(service: &Value, tool: &Value) -> (i32, String) {
    let host = host();
    host.put(SERVICE, service.to_string());
    host.put(TOOL, tool.to_string());
    let (code, out, _) = host.run(&["check"]);
    (code, out)
}

#[test]
fn a_fault_of_a_descriptor_is_reported_with_its_fix() {
    let (code, out) = check(&service(), &tool());
    assert!(
        code == 0 && out.contains("t.tool.json: unavailable, rag:query@1.0.0"),
        "the control: {out}"
    );
    assert!(
        out.contains("'rag' ([[tool_services]] of the configuration)"),
        "where it is fixed: {out}"
    );
    let argument = json!([{"name": "a", "type": "strin", "description": "d"}]);
    // file, key, another value of it (null: none), whether that refuses the file, words
    let unnamed = json!([{"required": true}]);
    for (file, key, value, refuses, words) in [
        (SERVICE, "id", Value::Null, true, "`id` is missing"),
        (
            SERVICE,
            "request-queue",
            Value::Null,
            true,
            "`request-queue` is missing",
        ),
        (
            SERVICE,
            "response-queue",
            service()["request-queue"].clone(),
            true,
            "two of the queues are the same",
        ),
        (
            SERVICE,
            "request-queue",
            json!("a b"),
            true,
            "the full name of a topic",
        ),
        (
            SERVICE,
            "config-params",
            unnamed,
            true,
            "/config-params/0: `config-params` has the wrong form",
        ),
        (
            SERVICE,
            "id",
            json!("a b"),
            true,
            "/id: the tools of a service are known here as ID:NAME",
        ),
        (
            TOOL,
            "type",
            json!("tool-servic"),
            true,
            "/type: `type` must be \"tool-service\"",
        ),
        (TOOL, "name", Value::Null, true, "`name` is missing"),
        (
            TOOL,
            "service",
            json!("rga"),
            true,
            "/service: unknown tool service 'rga': did you mean 'rag'? (known: rag)",
        ),
        (
            TOOL,
            "collection",
            Value::Null,
            true,
            "rag:query sets no 'collection', which the service 'rag' requires",
        ),
        (
            TOOL,
            "styel",
            json!("pun"),
            false,
            "'styel' is not a parameter of the service 'rag', and is not sent",
        ),
        (
            TOOL,
            "arguments",
            argument,
            false,
            "not a type of JSON Schema",
        ),
    ] {
        let [mut service, mut tool] = [service(), tool()];
        let of = if file == SERVICE {
            &mut service
        } else {
            &mut tool
        }
        .as_object_mut()
        .unwrap();
        match value {
            Value::Null => drop(of.shift_remove(key)),
            value => drop(of.insert(key.to_owned(), value)),
        }
        let (code, out) = check(&service, &tool);
        assert!(
            (code != 0) == refuses && out.contains(words),
            "{words}: {out}"
        );
    }
}

#[test]
fn one_file_may_hold_both_and_models_get_the_arguments_as_a_schema() {
    let host = host();
    host.put(
        SERVICE,
        json!({"tool-service/rag": service(), "tool/any": tool()}).to_string(),
    );
    let listed = || {
        let all = host.json(&["list"]);
        all.as_array()
            .unwrap()
            .iter()
            .find(|tool| tool["toolId"] == "rag:query")
            .expect("loaded")["parameters"]
            .clone()
    };
    let parameters = json!({"type": "object", "required": ["question"], "properties": {
        "question": {"description": "d", "type": "string"}}});
    assert_eq!(listed(), parameters);
    host.put(SERVICE, json!({"tool-service/rag": service()}).to_string());
    host.put(
        "tool-defs/q.tool.json",
        json!({"tool/any": tool()}).to_string(),
    );
    assert_eq!(
        listed(),
        parameters,
        "each in a file of its own, under its key"
    );
    fs::remove_file(host.path("tool-defs/q.tool.json")).unwrap();
    // An argument that says so may be left out.
    let mut optional = tool();
    optional["arguments"][0]["required"] = json!(false);
    host.put(
        SERVICE,
        json!({"tool-service/rag": service(), "tool/any": optional}).to_string(),
    );
    assert_eq!(listed()["required"], json!([]));
    for (wrong, words) in [
        (
            json!({"tool-service/other": service()}),
            "its key is 'other'",
        ),
        (
            json!({"tool-service/rag": service(), "tools": {}}),
            "not a key of a descriptor",
        ),
    ] {
        host.put(SERVICE, wrong.to_string());
        let (code, out, _) = host.run(&["check"]);
        assert!(code != 0 && out.contains(words), "{out}");
    }
    // Two descriptors of one id: which was meant is not known.
    host.put(SERVICE, service().to_string());
    host.put("tool-defs/again.tool-service.json", service().to_string());
    let (code, out, _) = host.run(&["check"]);
    assert!(
        code != 0 && out.contains("the service 'rag' is described more than once"),
        "{out}"
    );
    fs::rename(host.path(SERVICE), host.path("tool-defs/s.tool.json")).unwrap();
    let (_, out, _) = host.run(&["check"]);
    assert!(out.contains("name the file *.tool-service.json"), "{out}");
}

#[test]
fn what_leaves_this_host_is_audited_compared_and_asked_for() {
    let host = playground(Who::ours(), "audited", "amqp://127.0.0.1:9");
    let run = |more: &[&str]| {
        let mut command = super::host(&host);
        command.args(more);
        String::from_utf8(finish(command, b"").stdout).unwrap()
    };
    let text = run(&["audit", "audited:ask", "--all"]);
    let service = "audited at request:tg:audited of amqp://127.0.0.1:9, answers from \
                   response:tg:audited; the arguments and {\"style\":\"pun\"} and the trace of the \
                   call leave this host, the caller's name does not";
    assert!(
        text.contains(service) && text.contains("remote: audited"),
        "{text}"
    );
    assert!(
        !text.contains("  system ") && text.contains("an answer on a fanout is read by all"),
        "{text}"
    );
    assert!(
        run(&["audit", "--who-can", "service:audited"])
            .contains("audited:ask@1.0.0: without the caller's name")
    );
    assert!(
        run(&["audit", "--who-can", "service:other"])
            .contains("No tool can call the service other.")
    );
    let before = run(&["audit", "audited:ask", "--json"]);
    fs::write(host.path("before.json"), before).unwrap();
    let (policy, old) = (host.path(POLICY), send_user(&host));
    fs::write(
        host.path("after.json"),
        run(&["audit", "audited:ask", "--json"]),
    )
    .unwrap();
    let diff = run(&["diff", "before.json", "after.json"]);
    assert!(
        diff.contains("service") && diff.contains("so does the caller's name"),
        "{diff}"
    );
    // The virtual host decides who is asked, too.
    let config = change(&host, "config.toml", "127.0.0.1:9", "127.0.0.1:9/other");
    fs::write(
        host.path("elsewhere.json"),
        run(&["audit", "audited:ask", "--json"]),
    )
    .unwrap();
    let diff = run(&["diff", "after.json", "elsewhere.json"]);
    assert!(
        diff.contains("of amqp://127.0.0.1:9/other, answers"),
        "{diff}"
    );
    fs::write(host.path("config.toml"), config).unwrap();
    // A cap that names another queue of answers leaves nothing.
    let cap = |response: &str| {
        let cap = "name = \"cap\"\nwhy = \"w\"\n".to_owned()
            + &granted("audited", "request:tg:audited", response);
        fs::write(host.path("sandbox-policies/host.policy.toml"), cap).unwrap();
        fs::create_dir_all(host.path("none")).unwrap();
        fs::write(
            host.path("none/remote.policy.toml"),
            old.split("[services]").next().unwrap(),
        )
        .unwrap();
        let both =
            ["none", "sandbox-policies"].map(|folder| host.path(folder).display().to_string());
        run(&["diff", &both[0], &both[1]])
    };
    assert!(
        cap("response:tg:audited").contains("audited at request:tg:audited"),
        "the control"
    );
    let other = cap("response:tg:other");
    assert!(
        !other.contains("audited at request:tg:audited") && !other.is_empty(),
        "{other}"
    );
    assert!(run(&["audit", "audited:ask"]).contains("answers from response:tg:audited"));
    fs::remove_file(host.path("sandbox-policies/host.policy.toml")).unwrap();
    fs::remove_file(&policy).unwrap();
    let suggested = run(&["audit", "audited:ask", "--suggest-policy"]);
    assert!(
        suggested.contains("service = \"audited\", request = [\"request:tg:audited\"]"),
        "{suggested}"
    );
    fs::write(&policy, suggested.replace("why = \"\"", "why = \"w\"")).unwrap();
    assert!(
        run(&["audit", "audited:ask"]).contains(service),
        "what is suggested is enough"
    );
}
