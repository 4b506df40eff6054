//! One tool, four engines: Python, Node, Bun and WASI answer alike and end alike.

use crate::harness::{Playground, Who, finish, fits, has};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;

/// (engine, language, script file).
const ENGINES: [(&str, &str, &str); 4] = [
    ("python", "python", "main.py"),
    ("node", "nodejs", "main.js"),
    ("bun", "bun", "main.js"),
    ("wasi", "wasm", "main.wat"),
];

/// The same tool, three times: its name, in Python, for Node and Bun; the data of a module from address 1024, and the
/// body of its `_start`, where `$say fd length` writes that data and `$echo` copies; the rest of the manifest, the
/// input, and what is wanted.
const ROWS: &[[&str; 8]] = &[
    [
        "echo",
        "sys.stdout.write(sys.stdin.read())",
        "process.stdout.write(fs.readFileSync(0, 'utf8'))",
        "",
        "(call $echo)",
        "{}",
        r#"{"text":"äß🙂 \" \\ \n","n":[1,2.5,-3,null,true],"big":9007199254740993,"deep":{"a":{"b":[]}}}"#,
        r#"ok {"text":"äß🙂 \" \\ \n","n":[1,2.5,-3,null,true],"big":9007199254740993,"deep":{"a":{"b":[]}}}"#,
    ],
    [
        "nothing given",
        "sys.stdout.write(sys.stdin.read())",
        "process.stdout.write(fs.readFileSync(0, 'utf8'))",
        "",
        "(call $echo)",
        "{}",
        "",
        "ok {}",
    ],
    [
        "a log and an answer",
        "sys.stderr.write('a note\\n'); print(1)",
        "process.stderr.write('a note\\n'); console.log(1)",
        r#"a note\n"#,
        "(call $say (i32.const 2) (i32.const 7)) (i32.store8 (i32.const 1024) (i32.const 49)) (call $say (i32.const 1) (i32.const 1))",
        "{}",
        "{}",
        "ok 1",
    ],
    [
        "status three",
        "print(1); sys.exit(3)",
        "fs.writeSync(1, '1'); process.exit(3)",
        "1",
        "(call $say (i32.const 1) (i32.const 1)) (call $exit (i32.const 3))",
        "{}",
        "{}",
        "ScriptError: code 3",
    ],
    ["silence", "pass", ";", "", "", "{}", "{}", "ScriptError: empty"],
    [
        "prose",
        "print('hello')",
        "console.log('hello')",
        r#"hello\n"#,
        "(call $say (i32.const 1) (i32.const 6))",
        "{}",
        "{}",
        "ScriptError: not JSON at line 1",
    ],
    [
        "two documents",
        "print('{}\\n{}')",
        "console.log('{}\\n{}')",
        r#"{}\n{}\n"#,
        "(call $say (i32.const 1) (i32.const 6))",
        "{}",
        "{}",
        "ScriptError: exactly one JSON value",
    ],
    [
        "not text",
        "os.write(1, bytes([255, 49]))",
        "fs.writeSync(1, Buffer.from([255, 49]))",
        r#"\ff1"#,
        "(call $say (i32.const 1) (i32.const 2))",
        "{}",
        "{}",
        "ScriptError: not valid UTF-8 (byte 0)",
    ],
    [
        "an output that is too long",
        "os.write(1, b'[' + b' ' * 4000 + b']')",
        "fs.writeSync(1, '[' + ' '.repeat(4000) + ']')",
        "[",
        "(call $say (i32.const 1) (i32.const 4000))",
        r#"{"limits":{"outputBytes":1024}}"#,
        "{}",
        "ResourceLimitError: outputBytes",
    ],
    [
        "an output of the wrong type",
        "print('{\"sum\": \"six\"}')",
        "console.log('{\"sum\": \"six\"}')",
        r#"{\"sum\": \"six\"}"#,
        "(call $say (i32.const 1) (i32.const 14))",
        r#"{"output":{"type":"object","properties":{"sum":{"type":"integer"}}}}"#,
        "{}",
        "OutputValidationError: /sum",
    ],
    [
        "an endless loop",
        "while True: pass",
        "for (;;) {}",
        "",
        "(loop $l (br $l))",
        r#"{"execution":{"timeoutMs":700}}"#,
        "{}",
        "TimeoutError: Script execution timed out.",
    ],
    [
        "more memory than granted",
        "hold = [bytearray(b'x') * (1 << 20) for _ in range(1024)]",
        "const hold = []; for (let n = 0; n < 1024; n++) hold.push(Buffer.alloc(1 << 20, 1)); console.log(hold.length)",
        "",
        "(if (i32.eq (memory.grow (i32.const 16384)) (i32.const -1)) (then (unreachable)))",
        r#"{"limits":{"memoryBytes":268435456}}"#,
        "{}",
        "ResourceLimitError: memoryBytes",
    ],
];

fn wat(data: &str, body: &str) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 1024) "{data}")
  (func $write (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $say (param $fd i32) (param $len i32) (call $write (local.get $fd) (i32.const 1024) (local.get $len)))
  (func $echo
    (local $n i32)
    (loop $more
      (i32.store (i32.const 0) (i32.const 4096))
      (i32.store (i32.const 4) (i32.const 60000))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (local.set $n (i32.load (i32.const 8)))
      (if (local.get $n) (then
        (call $write (i32.const 1) (i32.const 4096) (local.get $n))
        (br $more)))))
  (func (export "_start") {body}))"#
    )
}

fn script([_, python, javascript, data, body, ..]: &[&str; 8], engine: &str) -> String {
    match engine {
        "python" => format!("import os, sys\n{python}\n"),
        "wasi" => wat(data, body),
        _ => format!("const fs = require('fs')\n{javascript}\n"),
    }
}

fn id(row: usize, engine: &str) -> String {
    format!("req:r{row}-{engine}")
}

/// Everything about an outcome but its numbers: names of fields, and the values that must not differ.
fn likeness(out: &Value, code: Option<i32>) -> Value {
    fn names(value: &Value) -> Vec<String> {
        value.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
    }
    let error = &out["error"];
    // A module that a limit ends leaves the engine's backtrace; a process that is killed has no last words.
    let logs = if error["type"] == "ResourceLimitError" { &Value::Null } else { &out["logs"] };
    json!({
        "fields": names(out), "errorFields": names(error), "usage": names(&out["usage"]),
        "denials": names(&out["denials"]), "digests": names(&out["digests"]),
        "success": out["success"], "outputData": out["outputData"], "logs": logs, "code": code,
        "type": error["type"], "message": error["message"], "details": error["details"],
        "origin": error["origin"], "retryable": error["retryable"], "version": out["version"],
        "artifacts": out["artifacts"],
    })
}

/// Equal answers, equal endings, equal fields of the outcome.
#[test]
fn one_tool_in_four_engines() {
    let who = Who::ours();
    let playground = Playground::new(who, "/var/tmp");
    let engines: Vec<_> = ENGINES.into_iter().filter(|engine| has(engine.1, ROWS.len())).collect();
    for (number, row) in ROWS.iter().enumerate() {
        for (engine, language, file) in &engines {
            let more = serde_json::from_str(row[5]).unwrap();
            let file = format!("{engine}-{number}/{file}");
            playground.tool_at(&id(number, engine), language, &file, &script(row, engine), more);
        }
    }
    playground.settle();
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let [name, .., input, wanted] = *row;
        let mut first: Option<(&str, Value)> = None;
        for (engine, ..) in &engines {
            let ended = playground.call(&id(number, engine), input);
            if let Err(why) = fits(wanted, &ended) {
                wrong.push(format!("{name}, {engine}: {why}"));
            }
            let ran = toolhost::base::sha256_hex(script(row, engine).as_bytes());
            if ended.out["digests"]["script"] != ran.as_str() {
                wrong.push(format!("{name}, {engine}: the digest of the script is {}", ended.out["digests"]));
            }
            let likeness = likeness(&ended.out, ended.code);
            match &first {
                None => first = Some((engine, likeness)),
                Some((other, wanted)) if *wanted != likeness => {
                    wrong.push(format!("{name}: {engine} is unlike {other}:\n  {likeness}\n  {wanted}"));
                }
                Some(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "as {}:\n{}", who.name(), wrong.join("\n"));
}

const BUN_WHOLE: &str = "const given = JSON.parse(require('fs').readFileSync(0, 'utf8'))\n\
                         console.log(JSON.stringify({bun: typeof Bun, node: typeof process.versions.bun, given}))\n";
const BUN_ENTRY: &str = "export async function run(given: {n: number}): Promise<object> {\n  console.log('a print is log')\n  \
                         return {bun: typeof Bun, twice: given.n * 2}\n}\n";

/// A Bun tool is really called, by Bun, also by its entry point; without Bun it never runs under another engine.
#[test]
fn bun_runs_bun_tools() {
    if !has("bun", 1) {
        return;
    }
    let who = Who::ours();
    let playground = Playground::new(who, "/var/tmp");
    playground.tool_at("req:whole", "bun", "whole/main.js", BUN_WHOLE, json!({}));
    let entry = json!({"handler": {"entryPoint": "run"}});
    playground.tool_at("req:entry", "bun", "entry/main.ts", BUN_ENTRY, entry);
    playground.settle();
    playground.expect("req:whole", r#"{"a":"ä"}"#, r#"ok {"bun":"object","node":"string","given":{"a":"ä"}}"#);
    let entry = playground.expect("req:entry", r#"{"n":21}"#, r#"ok {"bun":"object","twice":42}"#);
    assert_eq!(entry.out["logs"], json!(["a print is log"]));
    without_bun(&playground, who);
}

fn without_bun(playground: &Playground, who: Who) {
    let only = playground.path("only");
    std::fs::create_dir(&only).unwrap();
    for program in ["python3", "node"] {
        if let Some(path) = crate::harness::found(program) {
            symlink(path, only.join(program)).unwrap();
        }
    }
    let mut command = playground.host();
    command.env("PATH", &only).args(["call", "req:whole", "--json", "--input", "{}"]);
    let ended = finish(command, b"");
    fits("CapabilityError: bun", &ended).unwrap_or_else(|why| panic!("as {}: {why}", who.name()));
    assert_eq!((ended.code, &ended.out["walls"]), (Some(4), &json!([])), "nothing was started");
    let mut command = playground.host();
    command.env("PATH", &only).args(["list", "--json", "--namespace", "req"]);
    let listed: Value = serde_json::from_slice(&finish(command, b"").stdout).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    for tool in listed.as_array().unwrap() {
        assert_eq!(tool["available"], false);
        assert!(tool["needs"].to_string().contains("bun"), "{tool}");
    }
    let listed = playground.cli(&["list", "--json", "--namespace", "req"]).out;
    assert!(listed.as_array().unwrap().iter().all(|tool| tool["available"] == true), "the control: {listed}");
}
