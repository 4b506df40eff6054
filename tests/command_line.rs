//! Command lines: arguments as words, of which no value becomes a flag or passes through a shell.

use crate::prelude::*;

const PARSER: &str = "import argparse, json, sys\n\
    p = argparse.ArgumentParser()\n\
    p.add_argument('file')\n\
    p.add_argument('rest', nargs='*')\n\
    p.add_argument('-n', type=int, default=1)\n\
    p.add_argument('--verbose', action='store_true')\n\
    p.add_argument('--tag', action='append')\n\
    p.add_argument('--data')\n\
    print(json.dumps({**vars(p.parse_args()), 'stdin': sys.stdin.read()}))\n";

fn parameters() -> Value {
    json!({"type": "object", "required": ["file"], "properties": {
        "file": {"type": "string"}, "rest": {"type": "array"}, "count": {"type": ["integer", "string"]},
        "verbose": {"type": "boolean"}, "tag": {"type": "array"}, "data": {}, "text": {"type": "string"} }})
}

fn execution() -> Value {
    json!({"input": "argv", "flags": {"count": "-n"}, "positional": ["file", "rest"], "stdin": "text"})
}

#[test]
fn arguments_are_words_and_no_value_is_a_flag_or_a_command() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let more = json!({"parameters": parameters(), "execution": execution()});
    playground.tool("parses", "python", PARSER, more.clone());
    playground.settle();
    let none = json!({"file": "a", "rest": [], "n": 1, "verbose": false, "tag": null, "data": null, "stdin": ""});
    let with = |own: Value| {
        let mut all = none.clone();
        all.as_object_mut()
            .unwrap()
            .extend(own.as_object().unwrap().clone());
        all
    };
    let long = "x".repeat(128 * 1024 - 1 - "--data=".len());
    for (input, wanted) in [
        (json!({"file": "a"}), none.clone()),
        (
            json!({"file": "a", "verbose": true}),
            with(json!({"verbose": true})),
        ),
        (
            json!({"file": "a", "verbose": false, "data": null}),
            none.clone(),
        ),
        // The same word as a value, everywhere that a value can stand.
        (
            json!({"file": "--verbose", "rest": ["-n9", "-"], "data": "--verbose", "tag": ["--verbose", "$(id)", "; id"], "count": -5}),
            with(
                json!({"file": "--verbose", "rest": ["-n9", "-"], "data": "--verbose", "tag": ["--verbose", "$(id)", "; id"], "n": -5}),
            ),
        ),
        (
            json!({"file": "a", "data": {"a": [1, "b"]}}),
            with(json!({"data": "{\"a\":[1,\"b\"]}"})),
        ),
        (
            json!({"file": "", "data": "", "text": "in\n"}),
            with(json!({"file": "", "data": "", "stdin": "in\n"})),
        ),
        (
            json!({"file": "a", "data": long}),
            with(json!({"data": long})),
        ),
        // Only what can be nothing else is a flag without a value; and an integer is written as one.
        (
            json!({"file": "a", "data": true, "count": 5.0}),
            with(json!({"data": "true", "n": 5})),
        ),
        (
            json!({"file": "a", "count": 1e17}),
            with(json!({"n": 100_000_000_000_000_000_u64})),
        ),
    ] {
        let ended = playground.call("esc:parses", &input.to_string());
        assert_eq!(ended.out["outputData"], wanted, "{ended:?}");
    }
    for (input, why) in [
        (
            json!({"file": "a", "data": format!("{long}x")}),
            "too long for a command line",
        ),
        (
            json!({"file": "a", "tag": vec!["x".repeat(10); 60_000]}),
            "too long for a command line",
        ),
        (json!({"file": "a\u{0}--verbose"}), "NUL"),
        (json!({"file": "a", "count": ""}), "is empty"),
        (json!({"file": "a", "count": "=5"}), "begins with '='"),
    ] {
        let ended = playground.call("esc:parses", &input.to_string());
        let (kind, message) = ended.error();
        assert!(
            kind == "ParameterValidationError" && message.contains(why),
            "{ended:?}"
        );
    }
}

#[test]
fn a_script_that_prints_text_is_a_tool_of_a_server_and_of_core_execute_python_script() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    let echo = "import sys\nprint('got', *sys.argv[1:])\n";
    let parameters =
        json!({"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "string"}}});
    let own = json!({"parameters": parameters, "execution": {"input": "argv", "positional": ["a", "c"], "ready": true}});
    playground.tool("echo", "python", echo, own.clone());
    let json = json!({"parameters": parameters});
    playground.tool_at("esc:mixed", "python", "mixed/main.py", echo, own);
    playground.tool_at("esc:mixed2", "python", "mixed/main.py", echo, json);
    playground.policy("warm", "esc:echo", "[ready]\nwhy = \"a test\"\n");
    if has("nodejs", 1) {
        let node = "console.log(process.argv.slice(2).join('|'))";
        let more = json!({"parameters": parameters, "execution": {"input": "argv"}});
        playground.tool("node", "nodejs", node, more);
    }
    playground.settle();
    let call = |tool: &str, input: Value| playground.call(tool, &input.to_string());
    assert_eq!(
        call("esc:echo", json!({"a": "x", "c": "y z"})).out["outputData"],
        "got x y z"
    );
    if has("nodejs", 1) {
        let ended = call("esc:node", json!({"a": "x y", "c": "--a=1"}));
        assert_eq!(ended.out["outputData"], "--a=x y|--c=--a=1", "{ended:?}");
    }
    let absent = call("esc:echo", json!({"c": "y"}));
    assert!(
        absent.error().1.contains("those in front, too: a, c"),
        "{absent:?}"
    );
    // The same words where it is a script by name.
    let named = |script: &str| {
        let input = json!({"scriptPath": script, "inputData": {"a": "x"}});
        call("core:execute-python-script", input)
    };
    assert_eq!(named("echo/main.py").out["outputData"], "got x");
    // One of two tools that name it says how it gets its arguments.
    assert_eq!(named("mixed/main.py").out["outputData"], "got x");
    let audit = playground.cli(&["audit", "esc:echo", "--json"]).out;
    assert!(
        audit["commandLine"]["positional"] == json!(["a", "c"])
            && audit["notes"].to_string().contains("on its command line"),
        "{audit}"
    );
}

#[test]
fn what_no_command_line_can_carry_is_refused_at_load() {
    let host = host();
    for (name, language, more) in [
        (
            "secret",
            "python",
            json!({"parameters": {"type": "object", "properties": {"k": {"type": "string", "x-secret": true}}}, "execution": {"input": "argv"}}),
        ),
        (
            "places",
            "python",
            json!({"parameters": {"type": "object", "properties": {"a": {}}}, "execution": {"input": "argv", "positional": ["a"], "stdin": "a"}}),
        ),
        (
            "unknown",
            "python",
            json!({"parameters": {"type": "object", "properties": {"a": {}}}, "execution": {"input": "argv", "positional": ["b"]}}),
        ),
        (
            "empty",
            "python",
            json!({"parameters": {"type": "object", "properties": {"": {}}}, "execution": {"input": "argv"}}),
        ),
        (
            "forms",
            "python",
            json!({"parameters": {"type": "object", "properties": {"a=b": {}, "-x": {}, "\u{e9}": {}}}, "execution": {"input": "argv"}}),
        ),
        (
            "shared",
            "python",
            json!({"parameters": {"type": "object", "properties": {"a": {}, "c": {}}}, "execution": {"input": "argv", "flags": {"c": "--a"}}}),
        ),
        // The control: such a name with a flag or a place of its own.
        (
            "named",
            "python",
            json!({"parameters": {"type": "object", "properties": {"": {}, "-x": {}, "a=b": {}, "k.l_m-1": {}}}, "execution": {"input": "argv", "flags": {"": "-e", "-x": "--x"}, "positional": ["a=b"]}}),
        ),
        ("module", "wasm", json!({"execution": {"input": "argv"}})),
    ] {
        let file = if language == "wasm" { "m.wat" } else { "s.py" };
        host.put(&format!("user_scripts/{name}/{file}"), "");
        let handler = script(format!("{name}/{file}"), language);
        let all = manifest(format!("custom:{name}"), handler, more);
        host.put(
            &format!("user_scripts/{name}/{name}.tool.json"),
            all.to_string(),
        );
    }
    let (code, said, _) = host.run(&["check"]);
    assert_eq!(code, 2);
    for why in [
        "no parameter of such a tool may be secret",
        "has two places",
        "'b' is not a parameter",
        "only a script in Python",
        "'' is not the name of a flag",
        "'a=b' is not the name of a flag",
        "'-x' is not the name of a flag",
        "'\u{e9}' is not the name of a flag",
        "'c' has the flag of another parameter",
    ] {
        assert!(said.contains(why), "{why}: {said}");
    }
    assert_eq!(
        said.matches(" is not the name of a flag").count(),
        4,
        "{said}"
    );
    assert_eq!(said.matches(" has the flag of").count(), 1, "{said}");
}

/// A linter ends with 1 where it found something: its manifest says that this is an answer.
#[test]
fn an_exit_status_is_an_answer_where_the_manifest_says_so() {
    let finds = "import sys\nprint('line 3: too long')\nsys.exit(int(sys.argv[1]))\n";
    let parameters = json!({"type": "object", "properties": {"status": {"type": "integer"}}});
    let with = |execution: Value| {
        let mut all = json!({"input": "argv", "positional": ["status"]});
        all.as_object_mut()
            .unwrap()
            .extend(execution.as_object().unwrap().clone());
        json!({"parameters": parameters, "execution": all})
    };
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("plain", "python", finds, with(json!({})));
    playground.tool("lint", "python", finds, with(json!({"answers": [0, 1]})));
    playground.settle();
    let call = |tool: &str, status: u8| playground.call(tool, &format!("{{\"status\": {status}}}"));
    for status in [0, 1] {
        let ended = call("esc:lint", status);
        assert_eq!(
            ended.out["outputData"], "line 3: too long",
            "{status}: {ended:?}"
        );
    }
    fits("ScriptError: exited with code 2", &call("esc:lint", 2)).unwrap();
    fits("ScriptError: exited with code 1", &call("esc:plain", 1)).unwrap();
    let told = playground.cli(&["call", "esc:plain", "status=1"]).stderr;
    assert!(told.contains("`\"answers\": [0, 1]`"), "{told}");
    let audit = playground.cli(&["audit", "esc:lint", "--json"]).out;
    assert_eq!(audit["answers"], json!([0, 1]), "{audit}");
}
