//! Aliases: another name, description or fixed arguments for a tool, with the rights of both.

use super::*;

fn alias(playground: &Playground, id: &str, tool: &str, more: Value) {
    let handler = json!({"type": "alias", "tool": tool});
    let file = format!("tool-defs/{}.tool.json", id.replace(':', "-"));
    fs::write(
        playground.path(&file),
        manifest(id, handler, more).to_string(),
    )
    .unwrap();
}

#[test]
fn an_alias_fixes_arguments_and_audit_and_the_record_show_its_tool() {
    let (playground, web) = served(|it| {
        adder(it);
        alias(
            it,
            "easy:next",
            "esc:add@^1",
            json!({"handler": {"arguments": {"b": 1}}}),
        );
        alias(it, "easy:same", "esc:add", json!({}));
        let parameters = json!({"type": "object", "properties": {
            "n": {"type": "integer", "description": "d"}}});
        let echo = "import sys\nprint(sys.stdin.read())\n";
        it.tool("echo", "python", echo, json!({"parameters": parameters}));
        let fixed = json!({"handler": {"arguments": {"n": 7}}});
        alias(it, "easy:seven", "esc:echo", fixed);
    });
    let seven = web.call("easy:seven", &json!({}), &[]).json();
    assert_eq!(seven["outputData"], json!({"n": 7}), "{seven}");
    let next = web.get("/v1/tools/easy:next", &[]).json();
    let open = next["parameters"]["properties"].as_object().unwrap();
    assert_eq!(open.keys().collect::<Vec<_>>(), ["a"], "{next}");
    let reply = web
        .call("easy:next", &json!({"a": 41}), &[])
        .is(200, "none")
        .json();
    assert_eq!(
        (&reply["outputData"], &reply["tool"]),
        (&json!({"sum": 42}), &json!("esc:add"))
    );
    web.call("easy:next", &json!({"a": 1, "b": 5}), &[]).is(
        422,
        "ParameterValidationError: 'b' is not a known parameter",
    );
    assert_eq!(
        web.call("easy:same", &json!({"a": 1, "b": 2}), &[]).json()["outputData"]["sum"],
        3
    );
    let mut mcp = Server::start(&playground);
    assert!(mcp.names().contains(&"easy__next".to_owned()));
    let said = mcp.called("easy:next", json!({"a": 2}));
    assert_eq!(said["result"]["structuredContent"]["sum"], 3, "{said}");
    let records = playground.records();
    let record = records
        .iter()
        .find(|it| it["notes"].to_string().contains("easy:next"))
        .unwrap();
    assert_eq!(record["tool"], "esc:add", "{record}");
    assert!(
        record["arguments"].as_str().unwrap().contains("\"b\":1"),
        "{record}"
    );
    let audit = playground.cli(&["audit", "easy:next"]).text();
    assert!(
        audit.contains("esc:add@1.0.0")
            && audit.contains("easy:next@1.0.0 is an alias of esc:add@1.0.0"),
        "{audit}"
    );
    assert_eq!(playground.cli(&["check"]).code, Some(0));
}

#[test]
fn an_alias_that_leads_nowhere_or_in_a_circle_is_refused_at_load() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    alias(&playground, "c:one", "c:two", json!({}));
    alias(&playground, "c:two", "c:one", json!({}));
    alias(&playground, "c:self", "c:self", json!({}));
    alias(&playground, "c:gone", "c:nobody", json!({}));
    alias(&playground, "c:long", "c:good", json!({}));
    alias(&playground, "c:good", "esc:add", json!({}));
    alias(
        &playground,
        "c:type",
        "esc:add",
        json!({"handler": {"arguments": {"a": "x"}}}),
    );
    alias(
        &playground,
        "c:name",
        "esc:add",
        json!({"handler": {"arguments": {"z": 1}}}),
    );
    alias(
        &playground,
        "c:more",
        "esc:add",
        json!({"parameters": {"type": "object"}}),
    );
    let text = playground.cli(&["check"]).text();
    for wanted in [
        "it is an alias itself",
        "Unknown tool 'c:nobody'",
        "does not fit the parameter 'a'",
        "has no parameter 'z'",
        "an alias has what its tool has",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let listed = playground.cli(&["list"]).text();
    let loaded = ["one", "two", "self", "gone", "long", "type", "name", "more"];
    assert!(
        loaded
            .iter()
            .all(|name| !listed.contains(&format!("c:{name}"))),
        "{listed}"
    );
    let ended = playground.call("c:good", "{\"a\": 1, \"b\": 2}");
    assert!(ended.text().contains("{\"sum\":3}"), "{ended:?}");
}

#[test]
fn a_call_by_an_alias_has_the_rights_of_both() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    alias(
        &playground,
        "easy:next",
        "esc:add",
        json!({"handler": {"arguments": {"b": 1}}}),
    );
    alias(&playground, "easy:ask", "esc:add", json!({}));
    playground.policy("asks", "easy:ask", "confirm = \"a person looks at it\"\n");
    let entries = [
        entry("both", "\"esc:add\", \"easy:next\", \"easy:ask\"", ""),
        entry("alias", "\"easy:next\"", ""),
        entry("tool", "\"esc:add\"", ""),
        entry("ops", "", "role = \"operator\"\n"),
    ];
    write_callers(&playground, &entries.concat());
    let (file, [headers @ .., ops]) = tokens(&playground, ["both", "alias", "tool", "ops"]);
    let web = Web::start(&playground, &["--token-file", &file]);
    let call = |caller: &str| web.call("easy:next", &json!({"a": 1}), &[caller]);
    assert_eq!(
        call(&headers[0]).is(200, "none").json()["outputData"]["sum"],
        2
    );
    for caller in &headers[1..] {
        call(caller).is(404, "ToolNotFoundError");
        let listed = web.get("/v1/tools", &[caller]).body;
        assert!(!listed.contains("easy:next"), "{listed}");
    }
    // The policy of the alias has a person asked, who sees what its tool would get.
    let body = json!({"a": 1, "b": 2});
    assert_eq!(
        web.call("esc:add", &body, &[&headers[0]]).json()["outputData"]["sum"],
        3
    );
    let denied = std::thread::scope(|scope| {
        let asked = scope.spawn(|| web.call("easy:ask", &body, &[&headers[0]]));
        let mut open = Value::Null;
        wait_for("a person is asked", || {
            open = web.get("/v1/approvals", &[&ops]).json()["approvals"][0].clone();
            !open.is_null()
        });
        assert_eq!(open["tool"], "esc:add@1.0.0", "{open}");
        let path = format!("/v1/approvals/{}", open["call"].as_str().unwrap());
        web.ask("POST", &path, &[&ops], "{\"approve\": false}")
            .is(200, "none");
        asked.join().unwrap()
    });
    denied.is(403, "AuthorizationError");
}

/// A limit that the policy of an alias sets holds as well; one that it leaves out does not.
#[test]
fn the_narrower_limit_of_an_alias_and_its_tool_holds() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let long = "print('\"' + 'x' * 300 + '\"')\n";
    playground.tool("long", "python", long, json!({}));
    for name in ["narrow", "wide", "plain"] {
        alias(&playground, &format!("easy:{name}"), "esc:long", json!({}));
    }
    playground.policy("long", "esc:long", "[limits]\noutput_bytes = 3000\n");
    playground.policy("narrow", "easy:narrow", "[limits]\noutput_bytes = 256\n");
    playground.policy("wide", "easy:wide", "[limits]\noutput_bytes = 4000\n");
    playground.settle();
    let limit = |tool: &str| {
        let audit = playground.cli(&["audit", tool, "--json"]);
        let limits = audit.out["limits"].as_array().unwrap();
        let limit = limits.iter().find(|it| it["limit"] == "outputBytes");
        limit.unwrap()["effective"].clone()
    };
    for (tool, most) in [
        ("esc:long", 3000),
        ("easy:narrow", 256),
        ("easy:wide", 3000),
        ("easy:plain", 3000),
    ] {
        assert_eq!(limit(tool), most, "{tool}");
    }
    let ended = playground.call("easy:narrow", "{}");
    assert!(ended.text().contains("ResourceLimitError"), "{ended:?}");
    let ended = playground.call("easy:plain", "{}");
    assert!(ended.text().contains("xxx"), "control: {ended:?}");
}

#[test]
fn code_needs_a_grant_for_an_alias_and_for_its_tool_and_cannot_call_what_its_client_runs() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    client_tools(&playground);
    let fixed = json!({"handler": {"arguments": {"b": 1}}});
    alias(&playground, "easy:next", "esc:add", fixed);
    let code = "import json, toolhost\ndef tried(tool, given):\n    try:\n        return \
                toolhost.call(tool, given)\n    except toolhost.ToolError as e:\n        return \
                e.type\nprint(json.dumps([tried('easy:next', {'a': 1}), tried('own:local', \
                {'command': ['ls']})]))\n";
    let grant = |tool: &str| format!("{{ tool = \"{tool}\", why = \"w\" }}");
    for (name, tools, wanted) in [
        (
            "alone",
            vec!["easy:next"],
            json!(["SecurityError", "SecurityError"]),
        ),
        (
            "both",
            vec!["easy:next", "esc:add", "own:local"],
            json!([{"sum": 2}, "SecurityError"]),
        ),
    ] {
        playground.tool(name, "python", code, json!({ "calls": tools }));
        let grants: Vec<String> = tools.iter().map(|tool| grant(tool)).collect();
        let allow = format!("[calls]\nallow = [{}]\n", grants.join(", "));
        playground.policy(name, &format!("esc:{name}"), &allow);
        playground.settle();
        let ended = playground.call(&format!("esc:{name}"), "{}");
        assert_eq!(ended.out["outputData"], wanted, "{name}: {ended:?}");
    }
}
