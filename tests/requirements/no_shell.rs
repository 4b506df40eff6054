//! No shell anywhere: names of scripts and values of arguments arrive as they are, and nothing in them runs.

use crate::harness::{Playground, Server, Who, finish, fits};
use serde_json::json;

/// Says where it lies and what it was given, both ways: as text on stdin, and in its argument vector.
const TELLER: &str = "import json, os, sys\nprint(json.dumps({'name': os.path.basename(__file__), 'got': json.load(sys.stdin), 'argv': len(sys.argv)}))\n";

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

/// Names that are refused instead, and by whom.
const REFUSED: &[(&str, &str)] = &[
    ("a\npwned.py", "SecurityError"),
    ("a\0pwned.py", "SecurityError"),
    ("\u{202e}yp.py", "SecurityError"),
    ("~/pwned.py", "SecurityError"),
    ("a\\pwned.py", "SecurityError"),
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

/// Nobody ran a word of it.
fn nothing_ran(playground: &Playground) {
    let walk = walkdir::WalkDir::new(&playground.base).into_iter().map(Result::unwrap);
    let made: Vec<_> = walk.filter(|e| e.file_name().to_string_lossy() == "pwned").collect();
    assert!(made.is_empty(), "{made:?}");
}

#[test]
fn script_names_are_names() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    for (number, name) in NAMES.iter().enumerate() {
        playground.tool_at(&format!("req:n{number}"), "python", &format!("n{number}/{name}"), TELLER, json!({}));
    }
    playground.settle();
    for (number, name) in NAMES.iter().enumerate() {
        let wanted = json!({"name": name, "got": {"a": 1}, "argv": 1});
        let ended = playground.call(&format!("req:n{number}"), r#"{"a":1}"#);
        fits(&format!("ok {wanted}"), &ended).unwrap_or_else(|why| panic!("{name}: {why}"));
        // The same script, named by an agent. Its own manifest governs it.
        let input = json!({"scriptPath": format!("n{number}/{name}"), "inputData": {"a": 1}}).to_string();
        let ended = playground.call("core:execute-python-script", &input);
        fits(&format!("ok {wanted}"), &ended).unwrap_or_else(|why| panic!("{name}, by an agent: {why}"));
    }
    for (name, kind) in REFUSED {
        let input = json!({"scriptPath": name}).to_string();
        let ended = playground.call("core:execute-python-script", &input);
        fits(kind, &ended).unwrap_or_else(|why| panic!("{name:?}: {why}"));
    }
    nothing_ran(&playground);
}

#[test]
fn values_arrive_as_they_are() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let text = json!({"parameters": {"type": "object", "properties": {
        "text": {"type": "string", "description": "d"}, "list": {"type": "array", "description": "d"}}}});
    playground.tool_at("req:values", "python", "values/main.py", TELLER, text.clone());
    let entry = json!({"handler": {"entryPoint": "run"}});
    let script = "def run(**given):\n    return given\n";
    playground.tool_at("req:entry", "python", "entry/main.py", script, entry);
    playground.settle();
    let mut server = Server::start(&playground);
    for value in VALUES {
        let input = json!({"text": value, "list": [value, value]});
        let wanted = json!({"name": "main.py", "got": input, "argv": 1});
        // As JSON, from a pipe.
        let ended = playground.call("req:values", &input.to_string());
        fits(&format!("ok {wanted}"), &ended).unwrap_or_else(|why| panic!("{value:?}: {why}"));
        // To a function, over MCP.
        let answer = server.called("req:entry", input.clone());
        assert_eq!(answer["result"]["structuredContent"], input, "{value:?}: {answer}");
        if value.contains('\0') {
            continue; // no argument of a program can hold it
        }
        // As name=value.
        let mut command = playground.host();
        command.args(["call", "req:values", "--json", &format!("text={value}")]);
        let ended = finish(command, b"");

        let wanted = json!({"name": "main.py", "got": {"text": value}, "argv": 1});
        fits(&format!("ok {wanted}"), &ended).unwrap_or_else(|why| panic!("{value:?}, as a pair: {why}"));
    }
    // Names of arguments, too.
    let odd = json!({"$(touch pwned)": 1, "a;b": 2, "-x": 3, "with space": 4, "n\nl": 5});
    let answer = server.called("req:entry", odd.clone());
    assert_eq!(answer["result"]["structuredContent"], odd, "{answer}");
    nothing_ran(&playground);
    // The control: the judge sees what a shell would have done.
    let mut shell = playground.outside("/bin/sh");
    shell.args(["-c", &format!("true {}", VALUES[0])]);
    finish(shell, b"");
    assert!(playground.path("pwned").exists());
    assert_eq!(playground.cli(&["list", "--json", "--namespace", "req"]).out.as_array().map(Vec::len), Some(2));
}
