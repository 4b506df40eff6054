//! One tool, four engines: Python, Node, Bun and WASI answer alike and end alike.

use crate::prelude::*;
/// (engine, language, script file).
const ENGINES: [(&str, &str, &str); 4] = [
    ("python", "python", "main.py"),
    ("node", "nodejs", "main.js"),
    ("bun", "bun", "main.js"),
    ("wasi", "wasm", "main.wat"),
];

/// The same tool, three times.
struct Row {
    name: &'static str,
    python: &'static str,
    /// For Node and Bun.
    javascript: &'static str,
    /// What a module has from address 1024 on, and its `_start`: `$say fd length` writes it, `$echo` copies.
    data: &'static str,
    body: &'static str,
    /// The rest of the manifest.
    more: &'static str,
    input: &'static str,
    wanted: &'static str,
}

const ECHO: Row = Row {
    name: "echo",
    python: "sys.stdout.write(sys.stdin.read())",
    javascript: "process.stdout.write(fs.readFileSync(0, 'utf8'))",
    data: "",
    body: "(call $echo)",
    more: "{}",
    input: r#"{"text":"äß🙂 \" \\ \n","n":[1,2.5,-3,null,true],"big":9007199254740993,"deep":{"a":{"b":[]}}}"#,
    wanted: r#"ok {"text":"äß🙂 \" \\ \n","n":[1,2.5,-3,null,true],"big":9007199254740993,"deep":{"a":{"b":[]}}}"#,
};

/// Which output is an answer at all: `outputs.rs`.
const ROWS: &[Row] = &[
    ECHO,
    Row { name: "nothing given", input: "", wanted: "ok {}", ..ECHO },
    Row {
        name: "a log and an answer",
        python: "sys.stderr.write('a note\\n'); print(1)",
        javascript: "process.stderr.write('a note\\n'); console.log(1)",
        data: r"a note\n",
        body: "(call $say (i32.const 2) (i32.const 7)) (i32.store8 (i32.const 1024) (i32.const 49)) \
               (call $say (i32.const 1) (i32.const 1))",
        input: "{}",
        wanted: "ok 1",
        ..ECHO
    },
    Row {
        name: "status three",
        python: "print(1); sys.exit(3)",
        javascript: "fs.writeSync(1, '1'); process.exit(3)",
        data: "1",
        body: "(call $say (i32.const 1) (i32.const 1)) (call $exit (i32.const 3))",
        input: "{}",
        wanted: "ScriptError: code 3",
        ..ECHO
    },
    Row {
        name: "two documents",
        python: "print('{}\\n{}')",
        javascript: "console.log('{}\\n{}')",
        data: r"{}\n{}\n",
        body: "(call $say (i32.const 1) (i32.const 6))",
        input: "{}",
        wanted: "ScriptError: exactly one JSON value",
        ..ECHO
    },
    Row {
        name: "an output of the wrong type",
        python: "print('{\"sum\": \"six\"}')",
        javascript: "console.log('{\"sum\": \"six\"}')",
        data: r#"{\"sum\": \"six\"}"#,
        body: "(call $say (i32.const 1) (i32.const 14))",
        more: r#"{"output":{"type":"object","properties":{"sum":{"type":"integer"}}}}"#,
        input: "{}",
        wanted: "OutputValidationError: /sum",
    },
    Row {
        name: "an endless loop",
        python: "while True: pass",
        javascript: "for (;;) {}",
        body: "(loop $l (br $l))",
        more: r#"{"execution":{"timeoutMs":700}}"#,
        input: "{}",
        wanted: "TimeoutError: Script execution timed out.",
        ..ECHO
    },
    Row {
        name: "more memory than granted",
        python: "hold = [bytearray(b'x') * (1 << 20) for _ in range(1024)]",
        javascript: "const hold = []; for (let n = 0; n < 1024; n++) hold.push(Buffer.alloc(1 << 20, 1)); \
                     console.log(hold.length)",
        body: "(if (i32.eq (memory.grow (i32.const 16384)) (i32.const -1)) (then (unreachable)))",
        more: r#"{"limits":{"memoryBytes":268435456}}"#,
        input: "{}",
        wanted: "ResourceLimitError: memoryBytes",
        ..ECHO
    },
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

fn script(row: &Row, engine: &str) -> String {
    match engine {
        "python" => format!("import sys\n{}\n", row.python),
        "wasi" => wat(row.data, row.body),
        _ => format!("const fs = require('fs')\n{}\n", row.javascript),
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
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let engines: Vec<_> = ENGINES.into_iter().filter(|engine| has(engine.1, ROWS.len())).collect();
    for (number, row) in ROWS.iter().enumerate() {
        for (engine, language, file) in &engines {
            let more = serde_json::from_str(row.more).unwrap();
            let file = format!("{engine}-{number}/{file}");
            playground.tool_at(&id(number, engine), language, &file, &script(row, engine), more);
        }
    }
    playground.settle();
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let Row { name, input, wanted, .. } = row;
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
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool_at("req:whole", "bun", "whole/main.js", BUN_WHOLE, json!({}));
    let entry = json!({"handler": {"entryPoint": "run"}});
    playground.tool_at("req:entry", "bun", "entry/main.ts", BUN_ENTRY, entry);
    playground.settle();
    playground.expect("req:whole", r#"{"a":"ä"}"#, r#"ok {"bun":"object","node":"string","given":{"a":"ä"}}"#);
    let entry = playground.expect("req:entry", r#"{"n":21}"#, r#"ok {"bun":"object","twice":42}"#);
    assert_eq!(entry.out["logs"], json!(["a print is log"]));
    let only = playground.path("only");
    std::fs::create_dir(&only).unwrap();
    for program in ["python3", "node"] {
        if let Some(path) = crate::harness::found(program) {
            symlink(path, only.join(program)).unwrap();
        }
    }
    let without = |arguments: &[&str]| {
        let mut command = playground.host();
        command.env("PATH", &only).args(arguments);
        finish(command, b"")
    };
    let ended = without(&["call", "req:whole", "--json", "--input", "{}"]);
    fits("CapabilityError: bun", &ended).unwrap();
    assert_eq!((ended.code, &ended.out["walls"]), (Some(4), &json!([])), "nothing was started");
    let listed = without(&["list", "--json", "--namespace", "req"]).out;
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    let lacks = |tool: &Value| tool["available"] == false && tool["needs"].to_string().contains("bun");
    assert!(listed.as_array().unwrap().iter().all(lacks), "{listed}");
    let listed = playground.cli(&["list", "--json", "--namespace", "req"]).out;
    assert!(listed.as_array().unwrap().iter().all(|tool| tool["available"] == true), "the control: {listed}");
}
