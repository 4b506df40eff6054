//! Tools that the client runs, runs that wait for it, and aliases.

use crate::http::{Reply, Web, adder, served, tokens, write_callers};
use crate::prelude::*;
mod aliases;
mod runs;

/// Tools of every kind that a client runs: `own:function`, `own:sql`, `own:grammar`, `own:local`,
/// `own:shell`.
pub fn client_tools(playground: &Playground) {
    let grammar = |syntax: &str, definition: &str| json!({"type": "grammar", "syntax": syntax, "definition": definition});
    let secret = json!({"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "d"},
        "key": {"type": "string", "description": "d", "x-secret": true},
        "unit": {"type": "string", "description": "d", "default": "C"}}});
    for (name, more, rest) in [
        ("function", json!({}), json!({"parameters": secret})),
        (
            "sql",
            json!({"kind": "custom", "format": grammar("regex", "(?=SELECT).*")}),
            json!({}),
        ),
        (
            "grammar",
            json!({"kind": "custom", "format": grammar("lark", "start: \"a\"")}),
            json!({}),
        ),
        ("local", json!({"kind": "local_shell"}), json!({})),
        ("shell", json!({"kind": "shell"}), json!({})),
    ] {
        let mut handler = json!({"type": "definition-only"});
        let members = more.as_object().unwrap().clone();
        handler.as_object_mut().unwrap().extend(members);
        let text = manifest(format!("own:{name}"), handler, rest).to_string();
        fs::write(
            playground.path(&format!("tool-defs/{name}.tool.json")),
            text,
        )
        .unwrap();
    }
}

/// An entry of the file of callers.
fn entry(name: &str, tools: &str, more: &str) -> String {
    format!("[[caller]]\nname = \"{name}\"\nwhy = \"a test\"\ntools = [{tools}]\n{more}")
}

fn names(list: &Value, pointer: &str) -> Vec<String> {
    let entries = list.as_array().unwrap().iter();
    let name = |entry: &Value| entry.pointer(pointer)?.as_str().map(str::to_owned);
    entries.filter_map(name).collect()
}

#[test]
fn they_are_listed_in_every_shape_over_http_and_nowhere_else_and_a_call_says_who_runs_them() {
    let (playground, web) = served(client_tools);
    let get = |path: &str| web.get(path, &[]).json();
    let own = [
        "own__function",
        "own__grammar",
        "own__local",
        "own__shell",
        "own__sql",
    ];
    let find = |list: &Value, pointer: &str, name: &str| {
        let entries = list.as_array().unwrap().iter();
        let mut entries = entries.filter(|it| it.pointer(pointer) == Some(&json!(name)));
        entries
            .next()
            .unwrap_or_else(|| panic!("{name}: {list}"))
            .clone()
    };
    let openai = get("/v1/tools?format=openai&namespace=own");
    assert_eq!(names(&openai, "/function/name"), own);
    let sql = find(&openai, "/function/name", "own__sql");
    assert_eq!(
        sql.pointer("/function/parameters/properties/input_data/pattern"),
        Some(&json!("(?=SELECT).*"))
    );
    let lark = find(&openai, "/function/name", "own__grammar");
    assert!(
        lark.to_string()
            .contains("Lark grammar:\\nstart: \\\"a\\\""),
        "{lark}"
    );
    let local = find(&openai, "/function/name", "own__local");
    let command = local.pointer("/function/parameters/properties/command/type");
    assert_eq!(command, Some(&json!("array")));
    let responses = get("/v1/tools?format=openai-responses&namespace=own");
    let mut kinds = names(&responses, "/type");
    kinds.sort();
    assert_eq!(
        kinds,
        ["custom", "custom", "function", "local_shell", "shell"]
    );
    let sql = find(&responses, "/name", "own__sql");
    assert_eq!(
        sql["format"],
        json!({"type": "grammar", "syntax": "regex", "definition": "(?=SELECT).*"})
    );
    let anthropic = get("/v1/tools?format=anthropic&namespace=own");
    assert_eq!(names(&anthropic, "/name"), own);
    let gemini = get("/v1/tools?format=gemini&namespace=own");
    assert_eq!(names(&gemini[0]["functionDeclarations"], "/name"), own);
    let prompt = web.get("/v1/tools?format=prompt&namespace=own", &[]).body;
    assert!(prompt.contains("own:shell") && prompt.contains("max_output_length"));
    assert_eq!(get("/v1/tools/own:sql")["client"]["kind"], "custom");
    // Only a run hands them out.
    let input = json!({"place": "here"});
    web.call("own:function", &input, &[])
        .is(501, "CapabilityError: The client runs this tool.");
    let action = "<ACTION><tool_id>own:function</tool_id><inputs><input name=\"place\">x</input>\
        </inputs></ACTION>";
    let acted = web.ask(
        "POST",
        "/v1/actions",
        &[],
        &json!({"text": action}).to_string(),
    );
    assert!(
        acted.body.contains("The client runs this tool."),
        "{acted:?}"
    );
    let ended = playground.call("own:function", &input.to_string());
    assert!(
        ended.text().contains("The client runs this tool."),
        "{ended:?}"
    );
    let mut mcp = Server::start(&playground);
    assert!(mcp.names().iter().all(|name| !name.starts_with("own__")));
    let said = mcp.called("own:function", input).to_string();
    assert!(said.contains("The client runs this tool."), "{said}");
    // Persons see them.
    let listed = playground.cli(&["list"]).text();
    let runs = listed.matches("runs: the client of a call").count();
    assert_eq!(runs, 5, "{listed}");
    let offered = playground.cli(&["list", "--format", "openai"]).text();
    assert!(!offered.contains("own__"), "{offered}");
    let audit = playground.cli(&["audit", "own:shell"]).text();
    assert!(audit.contains("where the client of a call is"), "{audit}");
    assert_eq!(playground.cli(&["check"]).code, Some(0));
}

#[test]
fn what_such_a_tool_cannot_have_is_refused_at_load() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (more, wanted) in [
        (json!({"handler": {"kind": "program"}}), "/handler/kind"),
        (
            json!({"handler": {"kind": "shell", "format": {"type": "text"}}}),
            "only a custom tool has a format",
        ),
        (
            json!({"handler": {"kind": "custom", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}}),
            "/handler/format",
        ),
        (
            json!({"handler": {"kind": "shell"}, "parameters": {"type": "object"}}),
            "has parameters of its own",
        ),
        (
            json!({"securityContext": {"fileAccess": {"allowRead": ["./**"]}}}),
            "nothing of this tool runs in this host",
        ),
        (
            json!({"limits": {"cpuMs": 1000}}),
            "nothing of this tool runs",
        ),
        (
            json!({"output": {"type": "string"}}),
            "nothing of this tool runs",
        ),
    ] {
        let text = manifest("own:bad", json!({"type": "definition-only"}), more);
        fs::write(playground.path("tool-defs/bad.tool.json"), text.to_string()).unwrap();
        let checked = playground.cli(&["check"]);
        assert!(
            checked.code != Some(0) && checked.text().contains(wanted),
            "{wanted}: {checked:?}"
        );
    }
}
