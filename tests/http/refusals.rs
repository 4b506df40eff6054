//! A refusal of a known caller's request has its own record, whether it leads to a call or not.

use super::mcp::{Client, messages};
use super::{adder, caller, served, write_callers};
use crate::prelude::*;

#[test]
fn each_refusal_of_a_known_caller_has_one_record() {
    let (playground, web) = served(|it| {
        adder(it);
        write_callers(it, &caller("*", ""));
    });
    for (method, path, header, body, status) in [
        ("PUT", "/v1/tools", "X-A: b", "", 405),
        ("GET", "/v1/status", "X-A: b", "", 403),
        ("GET", "/metrics", "X-A: b", "", 403),
        ("GET", "/v1/approvals", "X-A: b", "", 403),
        (
            "POST",
            "/v1/approvals/x",
            "X-A: b",
            "{\"approve\": true}",
            403,
        ),
        ("GET", "/v1/tools/esc:add/audit", "X-A: b", "", 403),
        ("GET", "/v1/tools?as=bob", "X-A: b", "", 403),
        ("GET", "/v1/tools?format=odd", "X-A: b", "", 400),
        ("POST", "/v1/calls", "X-A: b", "{\"calls\": []}", 400),
        (
            "POST",
            "/v1/tools/esc:add/calls",
            "X-A: b",
            "{\"a\": 1, \"a\": 2}",
            400,
        ),
        ("POST", "/v1/tools/esc:none/calls", "X-A: b", "{}", 404),
        ("POST", "/mcp", "X-A: b", "[", 400),
    ] {
        let before = playground.records().len();
        let reply = web.ask(method, path, &[header], body);
        let records = playground.records().split_off(before);
        assert_eq!(
            (reply.status, records.len()),
            (status, 1),
            "{method} {path}: {reply:?} {records:?}"
        );
        assert_eq!(records[0]["decision"], "refused", "{method} {path}");
    }
    // Protocol errors of MCP, which come in an answer of status 200.
    for (modern, method, params) in [
        (true, "resources/read", json!({})),
        (false, "prompts/get", json!({"name": 1})),
        (false, "tools/call", json!({"name": 1})),
        (
            true,
            "tools/call",
            json!({"name": "esc__add", "arguments": {"a": 1, "b": 2}, "requestState": "x"}),
        ),
    ] {
        let mut client = Client::new(&web, modern, &[]);
        let before = playground.records().len();
        let reply = client.ask(method, params);
        let records = playground.records().split_off(before);
        assert_eq!(records.len(), 1, "{method}: {reply:?} {records:?}");
        assert_eq!(
            (
                &records[0]["decision"],
                messages(&reply)[0]["error"].is_null()
            ),
            (&json!("refused"), false)
        );
    }
    let before = playground.records().len();
    for (path, status) in [
        ("/v1/tools", 200),
        ("/v1/calls", 200),
        ("/healthz", 200),
        ("/v1/calls/none", 404),
    ] {
        assert_eq!(web.get(path, &[]).status, status);
    }
    let stranger = web.raw(b"GET /v1/status HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n");
    assert!(stranger.starts_with(b"HTTP/1.1 403"));
    assert_eq!(
        playground.records().len(),
        before,
        "control: what is answered, and who is not known, have none"
    );
    assert_eq!(
        web.call("esc:add", &json!({"a": 1, "b": 2}), &[]).status,
        200
    );
    assert_eq!(
        playground.records().len(),
        before + 1,
        "control: a call has one"
    );
}
