//! Outputs as data: what a script may print or how it may end → the exact type, and a part of the message.

use crate::harness::fake;
use crate::http::Web;
use crate::prelude::*;

struct Output {
    name: &'static str,
    script: &'static str,
    /// The output, or `Type: part of message or details`.
    wanted: &'static str,
}

const fn output(name: &'static str, script: &'static str, wanted: &'static str) -> Output {
    Output { name, script, wanted }
}

const OUTPUTS: &[Output] = &[
    // One JSON document, whatever it is and whatever blank space is around it.
    output("object", "print('{\"a\": 1}')", r#"{"a":1}"#),
    output("list", "print('[1, 2]')", "[1,2]"),
    output("text", "print('\"x\"')", "\"x\""),
    output("null", "print('null')", "OutputValidationError: tool call output is null"),
    output("blank space around", "print('\\n\\t  {\"a\": 1} \\r\\n\\n')", r#"{"a":1}"#),
    output("no end of line", "sys.stdout.write('7')", "7"),
    output("warnings on stderr", "sys.stderr.write('Warning: x\\n'); print(1)", "1"),
    output("slowly", "for c in '[1, 2]':\n    sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.02)", "[1,2]"),
    output(
        "answer, then a closed stdout",
        "print(1); sys.stdout.flush(); os.close(1); time.sleep(0.1); os._exit(0)",
        "1",
    ),
    output("surrogate pair", "print('\"\\\\ud83d\\\\ude00\"')", "\"😀\""),
    output("a NUL that is escaped", "print('\"a\\\\u0000b\"')", "\"a\\u0000b\""),
    output("control characters that are escaped", "print('\"\\\\u001b[31m\"')", "\"\\u001b[31m\""),
    // Everything else.
    output("nothing", "pass", "ScriptError: stdout"),
    output("only blank space", "print('  ')", "ScriptError: stdout"),
    output("stdout closed at once", "os.close(1); os._exit(0)", "ScriptError: stdout"),
    output("a stray print before", "print('Loading'); print('{\"a\": 1}')", "ScriptError: stderr"),
    output("a stray print after", "print('{\"a\": 1}'); print('done')", "ScriptError: InvalidOutput"),
    output("two documents", "print('1 2')", "ScriptError: InvalidOutput"),
    output("half a document", "print('{\"a\": [1, 2')", "ScriptError: InvalidOutput"),
    output("NaN", "print('{\"a\": NaN}')", "ScriptError: InvalidOutput"),
    output("duplicate keys", "print('{\"a\": 1, \"a\": 2}')", "ScriptError: InvalidOutput"),
    output("too deep", "print('[' * 2000 + ']' * 2000)", "ScriptError: InvalidOutput"),
    output("a number too large", "print('123456789012345678901234567890')", "ScriptError: InvalidOutput"),
    output("not UTF-8", "os.write(1, b'\"\\xff\\xfe\"')", "ScriptError: UTF-8"),
    output("UTF-16", "os.write(1, '{}'.encode('utf-16'))", "ScriptError: UTF-"),
    output("a lone surrogate", "print('\"\\\\ud800\"')", "ScriptError: InvalidOutput"),
    output("raw control characters", "print('\"\\x1b[31m\"')", "ScriptError: InvalidOutput"),
    output("a NUL", "os.write(1, b'\\0')", "ScriptError: InvalidOutput"),
    output("an answer and exit code 3", "print('{\"a\": 1}'); sys.exit(3)", "ScriptError: code 3"),
    output("an answer and an exception", "print('{\"a\": 1}'); raise ValueError('no good')", "ScriptError: no good"),
    output(
        "an answer and a signal",
        "print('{}'); sys.stdout.flush(); import ctypes; ctypes.string_at(8)",
        "ScriptError: SIGSEGV",
    ),
    output("a syntax error", "print((", "ScriptError: SyntaxError"),
    output("a missing module", "import no_such_module", "ScriptError: no_such_module"),
    output("a flood", "while True: os.write(1, b'[' * 65536)", "ResourceLimitError: outputBytes"),
    output("a flood of blank space", "while True: os.write(1, b' ' * 65536)", "ResourceLimitError: outputBytes"),
    output(
        "a flood after the answer",
        "print(1)\nsys.stdout.flush()\nwhile True: os.write(1, b' ' * 65536)",
        "ResourceLimitError: outputBytes",
    ),
];

#[test]
fn every_output_ends_as_it_says() {
    let playground = Playground::new(Who::ours(), "/tmp");
    let tool = |at: usize| format!("out{at}");
    for (at, case) in OUTPUTS.iter().enumerate() {
        let more = json!({"limits": {"outputBytes": 262_144}, "execution": {"timeoutMs": 10_000}});
        playground.tool(&tool(at), "python", &format!("import os, sys, time, json\n{}\n", case.script), more);
    }
    playground.settle();
    let web = Web::start(&playground, &[]);
    let mut wrong = Vec::new();
    for (at, case) in OUTPUTS.iter().enumerate() {
        let outcome = web.call(&format!("esc:{}", tool(at)), &json!({}), &[]).json();
        let (error, answer) = (&outcome["error"], &outcome["outputData"]);
        let good = match case.wanted.split_once("Error: ") {
            None => {
                let wanted: Value = serde_json::from_str(case.wanted).unwrap_or_else(|e| panic!("{}: {e}", case.name));
                outcome["success"] == true && *answer == wanted
            }
            Some((wanted, part)) => {
                let told = format!("{} {}", error["message"], error["details"]);
                answer.is_null() && error["type"] == format!("{wanted}Error") && told.contains(part)
            }
        };
        if !good {
            wrong.push(format!("{}: wanted {}: {error} {answer}", case.name, case.wanted));
        }
    }
    assert!(wrong.is_empty(), "{} outputs:\n{}", wrong.len(), wrong.join("\n"));
}

/// Prints a line that is not JSON.
const PRINTS: &str = r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 16) "hi there\0a") (data (i32.const 0) "\10\00\00\00\09\00\00\00")
  (func (export "_start") (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

#[test]
fn text_and_null_are_answers_where_the_manifest_says_so() {
    let playground = Playground::new(Who::ours(), "/tmp");
    let chunks = "print('@toolhost {\"chunk\": \"a\"}\\n@toolhost {\"chunk\": \"b\"}";
    let own = format!("{chunks}\\nmine')");
    let list = format!("{chunks}\\n@toolhost {{\"end\": true}}')");
    let text = json!({"execution": {"output": "text"}});
    let nullable = json!({"output": {"type": ["integer", "null"]}});
    let none = json!({});
    let cases = [
        ("line", "python", "print('hi there')", &text, json!("hi there"), &none, "ScriptError"),
        ("nothing", "python", "pass", &text, json!(""), &none, "ScriptError"),
        ("module", "wasm", PRINTS, &text, json!("hi there"), &none, "ScriptError"),
        ("chunks", "python", &own, &text, json!("mine"), &none, "ScriptError"),
        ("null", "python", "print('null')", &nullable, json!(null), &none, "OutputValidationError"),
    ];
    for (name, language, script, with, wanted, without, kind) in cases {
        playground.tool(name, language, script, with.clone());
        playground.tool(&format!("{name}-control"), language, script, without.clone());
        playground.settle();
        let ended = playground.call(&format!("esc:{name}"), "{}");
        let told = (&ended.out["success"], &ended.out["outputData"]);
        assert_eq!(told, (&json!(true), &wanted), "{name}: {ended:?}");
        assert_eq!(playground.call(&format!("esc:{name}-control"), "{}").kind(), kind, "{name}");
    }
    playground.tool("list", "python", &list, text.clone());
    playground.settle();
    assert_eq!(playground.call("esc:list", "{}").out["outputData"], "ab", "chunks of text are one text");
}

/// A tool may give back a secret that it was given: it is hidden in the answer too, and the notes say so.
#[tokio::test]
async fn a_secret_argument_is_hidden_in_a_successful_answer() {
    let secret = json!({ "type": "string", "description": "d", "writeOnly": true });
    let parameters = json!({ "type": "object", "properties": {
        "token": secret, "plain": { "type": "string", "description": "d" },
    }});
    let world = fake::world_with(|root, _| {
        let more = json!({ "parameters": parameters });
        fake::define(root, "fake:confided", script("examples/whole.py", "python"), more);
    });
    let report =
        world.call("fake:confided", json!({ "token": "hunter2-hunter2", "plain": "say hunter2-hunter2" })).await;
    assert_eq!(report.output(), Some(json!({ "token": "***", "plain": "say ***" })));
    assert!(report.notes.iter().any(|note| note.contains("held a secret argument")), "{:?}", report.notes);
    assert!(!serde_json::to_string(&report).unwrap().contains("hunter2"), "{report:?}");
    assert!(!report.observation().contains("hunter2") && report.success, "{}", report.observation());
    let report = world.call("fake:confided", json!({ "token": "another-one", "plain": "hunter2" })).await;
    assert_eq!(report.output(), Some(json!({ "token": "***", "plain": "hunter2" })), "the control");
    // For a script that a call names, the script's own manifest says what is secret.
    let input = json!({ "scriptPath": "examples/whole.py", "inputData": { "token": "hunter2-hunter2" } });
    let report = world.call("core:execute-python-script", input).await;
    assert!(!serde_json::to_string(&report).unwrap().contains("hunter2"), "{report:?}");
}
