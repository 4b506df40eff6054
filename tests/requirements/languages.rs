//! One tool, four engines: Python, Node, Bun and WASI answer alike and end alike.

use crate::prelude::*;

/// (engine, language, script file).
const ENGINES: [(&str, &str, &str); 4] = [
    ("python", "python", "main.py"),
    ("node", "nodejs", "main.js"),
    ("bun", "bun", "main.js"),
    ("wasi", "wasm", "main.wat"),
];

/// The same tool, three times: in Python, for Node and Bun, and as a module, which has `data` from
/// address 1024 on (`$say fd length` writes it, `$echo` copies). Which output is an answer at all:
/// `outputs.rs`.
type Row = BTreeMap<&'static str, &'static str>;

fn rows() -> Vec<Row> {
    let usual = [("input", "{}"), ("manifest", "{}"), ("data", "")];
    let lines = |row: &'static str| {
        row.lines()
            .map(|line| line.split_once(':').unwrap_or_else(|| panic!("{line}")))
    };
    let row = |row| {
        usual
            .into_iter()
            .chain(lines(row))
            .map(|(key, value)| (key, value.trim()))
            .collect()
    };
    include_str!("languages.txt")
        .split("\n\n")
        .map(row)
        .collect()
}

fn script(row: &Row, engine: &str) -> String {
    match engine {
        "python" => format!("import sys\n{}\n", row["python"]),
        "wasi" => include_str!("languages.wat")
            .replace("DATA", row["data"])
            .replace("BODY", row["module"]),
        _ => format!("const fs = require('fs')\n{}\n", row["javascript"]),
    }
}

/// Everything about an outcome but its numbers: names of fields, and the values that must not
/// differ.
fn likeness(ended: &Ended) -> Value {
    fn names(value: &Value) -> Vec<String> {
        value
            .as_object()
            .map(|fields| fields.keys().cloned().collect())
            .unwrap_or_default()
    }
    let (out, error) = (&ended.out, &ended.out["error"]);
    // A module that a limit ends leaves the engine's backtrace; a process that is killed has no
    // last words.
    let logs = if error["type"] == "ResourceLimitError" {
        &Value::Null
    } else {
        &out["logs"]
    };
    json!({
        "fields": names(out), "errorFields": names(error), "usage": names(&out["usage"]),
        "denials": names(&out["denials"]), "digests": names(&out["digests"]),
        "success": out["success"], "outputData": out["outputData"], "logs": logs, "code": ended.code,
        "type": error["type"], "message": error["message"], "details": error["details"],
        "origin": error["origin"], "retryable": error["retryable"], "version": out["version"],
        "artifacts": out["artifacts"],
    })
}

/// Equal answers, equal endings, equal fields of the outcome.
#[test]
fn one_tool_in_four_engines() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let rows = rows();
    let engines: Vec<_> = ENGINES
        .into_iter()
        .filter(|engine| has(engine.1, rows.len()))
        .collect();
    let id = |number: usize, engine: &str| format!("req:r{number}-{engine}");
    for (number, row) in rows.iter().enumerate() {
        for (engine, language, file) in &engines {
            let file = format!("{engine}-{number}/{file}");
            let more = serde_json::from_str(row["manifest"]).unwrap();
            playground.tool_at(
                &id(number, engine),
                language,
                &file,
                &script(row, engine),
                more,
            );
        }
    }
    playground.settle();
    let mut wrong = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let mut first = None;
        for (engine, ..) in &engines {
            let mut fault = |why: String| wrong.push(format!("{}, {engine}: {why}", row["name"]));
            let ended = playground.call(&id(number, engine), row["input"]);
            fits(row["wanted"], &ended).unwrap_or_else(&mut fault);
            let ran = toolhost::base::sha256_hex(script(row, engine).as_bytes());
            if ended.out["digests"]["script"] != ran.as_str() {
                fault(format!(
                    "the digest of the script is {}",
                    ended.out["digests"]
                ));
            }
            let likeness = likeness(&ended);
            let (other, wanted) = first.get_or_insert_with(|| (*engine, likeness.clone()));
            if *wanted != likeness {
                fault(format!("is unlike {other}:\n  {likeness}\n  {wanted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const BUN_WHOLE: &str = "const given = JSON.parse(require('fs').readFileSync(0, \
                         'utf8'))\nconsole.log(JSON.stringify({bun: typeof Bun, node: typeof process.versions.bun, given}))\n";
const BUN_ENTRY: &str = "export async function run(given: {n: number}): Promise<object> {\n  \
                         console.log('a print is log')\n  return \
                         {bun: typeof Bun, twice: given.n * 2}\n}\n";

/// A Bun tool is really called, by Bun, also by its entry point; without Bun it never runs under
/// another engine.
#[test]
fn bun_runs_bun_tools() {
    if !has("bun", 1) {
        return;
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool_at("req:whole", "bun", "whole/main.js", BUN_WHOLE, json!({}));
    playground.tool_at(
        "req:entry",
        "bun",
        "entry/main.ts",
        BUN_ENTRY,
        json!({"handler": {"entryPoint": "run"}}),
    );
    playground.settle();
    playground.expect(
        "req:whole",
        r#"{"a":"ä"}"#,
        r#"ok {"bun":"object","node":"string","given":{"a":"ä"}}"#,
    );
    let entry = playground.expect(
        "req:entry",
        r#"{"n":21}"#,
        r#"ok {"bun":"object","twice":42}"#,
    );
    assert_eq!(entry.out["logs"], json!(["a print is log"]));
    let only = playground.path("only");
    fs::create_dir(&only).unwrap();
    for path in ["python3", "node"]
        .iter()
        .filter_map(|program| found(program))
    {
        symlink(&path, only.join(path.file_name().unwrap())).unwrap();
    }
    let with = |path: &Path, arguments: &[&str]| {
        let mut command = playground.host();
        command.env("PATH", path).args(arguments);
        finish(command, b"")
    };
    let ended = with(&only, &["call", "req:whole", "--json", "--input", "{}"]);
    fits("CapabilityError: bun", &ended).unwrap();
    assert_eq!(
        (ended.code, &ended.out["layers"]),
        (Some(4), &json!([])),
        "nothing was started"
    );
    // The control: with the usual PATH they are there.
    for (path, there) in [(&*only, false), (Path::new(SEARCH_PATH), true)] {
        let listed = with(path, &["list", "--json", "--namespace", "req"]).out;
        let tools = listed.as_array().unwrap();
        let good = |tool: &Value| {
            tool["available"] == there && (there || tool["needs"].to_string().contains("bun"))
        };
        assert!(tools.len() == 2 && tools.iter().all(good), "{listed}");
    }
}
