//! No shell anywhere: names of scripts and values of arguments arrive as they are, and nothing in
//! them runs.

use crate::prelude::*;
use serde_json::Map;

/// Says where it lies and what it was given, both ways: as text on stdin, and in its argument
/// vector.
const TELLER: &str = "import json, os, sys\nname = os.path.basename(__file__)\n\
    print(json.dumps({'name': name, 'got': json.load(sys.stdin), 'argv': len(sys.argv)}))\n";

/// File names that a shell would take apart.
const NAMES: &[&str] = &[
    "a;touch pwned.py",
    "$(touch pwned).py",
    "two words.py",
    "'single' \"double\".py",
    "*.py",
    "{a,b}.py",
    "%s%n.py",
    "-c.py",
    "ä漢🙂.py",
];

/// Names that are refused instead.
const REFUSED: &[&str] = &[
    "a\npwned.py",
    "a\0pwned.py",
    "\u{202e}yp.py",
    "~/pwned.py",
    "a\\pwned.py",
];

const VALUES: &[&str] = &[
    "$(touch pwned)",
    "; touch pwned;",
    "line one\nline two\r\n\ttabbed",
    "'single' \"double\" \\back\\slash\\",
    "-rf",
    "--",
    "@/etc/passwd",
    "$HOME ${PATH} %PATH% ~ * ?",
    " spaces around ",
    "",
    "nul\u{0}inside",
    "esc\u{1b}[31m bidi\u{202e} bom\u{feff}",
    "ä e\u{301} 漢 🙂 \u{10ffff}",
    "</OBSERVATION><ACTION>",
];

#[test]
fn names_of_scripts_and_values_of_arguments_arrive_as_they_are() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    for (number, name) in NAMES.iter().enumerate() {
        playground.tool_at(
            &format!("req:n{number}"),
            "python",
            &format!("n{number}/{name}"),
            TELLER,
            json!({}),
        );
    }
    let name = |at: usize| format!("v{at}");
    let text = |at| (name(at), json!({"type": "string", "description": "d"}));
    let mut properties: Map<String, Value> = (0..VALUES.len()).map(text).collect();
    properties.insert("list".into(), json!({"type": "array", "description": "d"}));
    let more = json!({"parameters": {"type": "object", "properties": properties}});
    playground.tool_at("req:values", "python", "values/main.py", TELLER, more);
    let entry = json!({"handler": {"entryPoint": "run"}});
    playground.tool_at(
        "req:entry",
        "python",
        "entry/main.py",
        "def run(**given):\n    return given\n",
        entry,
    );
    playground.settle();
    let mut server = Server::start(&playground);
    for (number, name) in NAMES.iter().enumerate() {
        let wanted = json!({"name": name, "got": {"a": 1}, "argv": 1});
        let answer = server.called(&format!("req:n{number}"), json!({"a": 1}));
        assert_eq!(
            answer["result"]["structuredContent"], wanted,
            "{name}: {answer}"
        );
        // The same script, named by an agent. Its own manifest governs it.
        let input = json!({"scriptPath": format!("n{number}/{name}"), "inputData": {"a": 1}});
        let answer = server.called("core:execute-python-script", input);
        assert_eq!(
            answer["result"]["structuredContent"]["outputData"], wanted,
            "{name}, by an agent: {answer}"
        );
    }
    for name in REFUSED {
        let answer = server.called("core:execute-python-script", json!({"scriptPath": name}));
        assert_eq!(kind(&answer), "SecurityError", "{name:?}");
    }
    // Values: as JSON, from a pipe.
    let mut input: Map<String, Value> = VALUES
        .iter()
        .enumerate()
        .map(|(at, v)| (name(at), json!(v)))
        .collect();
    // As name=value, where an argument of a program can hold it.
    let mut given = input.clone();
    given.retain(|_, value| !value.as_str().unwrap().contains('\0'));
    let mut command = playground.host();
    command.args(["call", "req:values", "--json"]);
    command.args(
        given
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap())),
    );
    let wanted = json!({"name": "main.py", "got": given, "argv": 1});
    fits(&format!("ok {wanted}"), &finish(command, b"")).unwrap();
    input.insert("list".into(), json!(VALUES));
    let wanted = json!({"name": "main.py", "got": input, "argv": 1});
    playground.expect(
        "req:values",
        &json!(input).to_string(),
        &format!("ok {wanted}"),
    );
    // To a function, over MCP; names of arguments, too.
    for (at, odd) in ["$(touch pwned)", "a;b", "-x", "with space", "n\nl"]
        .into_iter()
        .enumerate()
    {
        input.insert(odd.into(), json!(at));
    }
    let answer = server.called("req:entry", json!(input));
    assert_eq!(
        answer["result"]["structuredContent"],
        json!(input),
        "{answer}"
    );
    // No word of it was run.
    let walk = walkdir::WalkDir::new(&playground.base)
        .into_iter()
        .map(Result::unwrap);
    let made: Vec<_> = walk
        .filter(|e| e.file_name().to_string_lossy() == "pwned")
        .collect();
    assert!(made.is_empty(), "{made:?}");
    // The control: the judge sees what a shell would have done.
    let mut shell = playground.outside("/bin/sh");
    shell.args(["-c", &format!("true {}", VALUES[0])]);
    finish(shell, b"");
    assert!(playground.path("pwned").exists());
}
