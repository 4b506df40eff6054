//! One road: the same call through every face; what comes from the handler and what from the
//! caller, checked again by the service itself.

use super::put;
use crate::prelude::*;
use toolhost::executor::method::Methods;
use toolhost::service::{Arguments, CallRequest, Caller, Sink};

const SUM: &str = "import json, sys\ngiven = json.load(sys.stdin)\nif given.get('fail'):\n    \
    print('why it failed', file=sys.stderr)\n    sys.exit(4)\n\
    print(json.dumps({'sum': sum(given.get('numbers', []))}))\n";

/// (tool, input).
const CALLS: &[(&str, &str)] = &[
    ("req:sum", r#"{"numbers":[1,2,3]}"#),
    ("req:sum", "{}"),
    ("req:sum", r#"{"fail":true}"#),
    ("req:sum", r#"{"numbers":["x"]}"#),
    ("req:sum", r#"{"nmbers":[1]}"#),
    ("req:slow", "{}"),
    (
        "core:execute-python-script",
        r#"{"scriptPath":"sum/main.py","inputData":{"numbers":[4]}}"#,
    ),
    (
        "core:execute-python-script",
        r#"{"scriptPath":"sum/main.py","inputData":{"fail":true}}"#,
    ),
    (
        "core:execute-python-script",
        r#"{"scriptPath":"../sum/main.py"}"#,
    ),
    (
        "core:execute-python-script",
        r#"{"scriptPath":"sum/none.py"}"#,
    ),
];

/// Whether a call had no time to begin its tool, on a busy machine. It is made again.
fn is_early(message: &str) -> bool {
    message.contains("; try again") || message.contains("before the tool could be started")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_face_gives_the_same_outcome() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let more = json!({"parameters": {"type": "object", "properties": {
        "numbers": {"type": "array", "description": "d", "items": {"type": "integer"}},
        "fail": {"type": "boolean", "description": "d"}}}});
    playground.tool_at("req:sum", "python", "sum/main.py", SUM, more);
    let slow = json!({"execution": {"timeoutMs": 2000}});
    playground.tool_at(
        "req:slow",
        "python",
        "slow/main.py",
        "import time\ntime.sleep(60)\n",
        slow,
    );
    playground.settle();
    let service = service(&playground, Methods::new());
    let mut server = Server::start(&playground);
    for (tool, input) in CALLS {
        let what = format!("{tool} {input}");
        let over = Instant::now() + PATIENCE;
        let told = loop {
            let told = playground.call(tool, input).out;
            let message = told["error"]["message"].as_str().unwrap_or_default();
            if !is_early(message) || Instant::now() > over {
                break told;
            }
        };
        let spoken = loop {
            let spoken = server.called(tool, serde_json::from_str(input).unwrap());
            if !is_early(&words(&spoken)) || Instant::now() > over {
                break spoken;
            }
        };
        let replied = loop {
            let request = CallRequest::new(
                Caller::named("u"),
                *tool,
                Arguments::Text((*input).to_owned()),
            );
            let replied = service.call(request, Sink::none()).await;
            let fault = replied.outcome.fault();
            if !fault.is_some_and(|fault| is_early(&fault.message)) || Instant::now() > over {
                break replied;
            }
        };
        let words = spoken["result"]["content"][0]["text"].as_str().unwrap();
        let envelope = tool.starts_with("core:");
        if told["success"] == true {
            let structured = &spoken["result"]["structuredContent"];
            let spoken = if envelope {
                &structured["outputData"]
            } else {
                structured
            };
            assert_eq!(
                (spoken, &replied.output().unwrap()),
                (&told["outputData"], &told["outputData"]),
                "{what}"
            );
            assert!(
                replied.outcome.is_success() && !told["outputData"].is_null(),
                "{what}"
            );
            continue;
        }
        let (kind, message) = (
            told["error"]["type"].as_str().unwrap(),
            told["error"]["message"].as_str().unwrap(),
        );
        // An MCP client is told in words; a core tool's envelope comes beside them.
        let named = tool.replace(':', "__");
        let failed = format!("Tool {named} failed. Error type: {kind}. Message: {message}");
        assert!(
            spoken["result"]["isError"] == true && words.starts_with(&failed),
            "{what}: {words}"
        );
        // The message of arguments that do not fit says what the details say.
        if let Some(details) = told["error"]["details"]
            .as_str()
            .filter(|_| kind != "ParameterValidationError")
        {
            assert!(
                words.contains(&format!("Details: {details}")),
                "{what}: {words}"
            );
        }
        let error = replied
            .outcome
            .fault()
            .unwrap_or_else(|| panic!("{what}: no error"));
        assert_eq!(
            (error.kind.to_string().as_str(), &*error.message),
            (kind, message),
            "{what}"
        );
        assert!(replied.outcome.answer().is_none(), "{what}");
        if envelope {
            assert_eq!(
                spoken["result"]["structuredContent"]["error"]["type"], kind,
                "{what}"
            );
        }
    }
    let mut records = playground.records();
    records.retain(|record| !is_early(record["message"].as_str().unwrap_or_default()));
    assert_eq!(records.len(), CALLS.len() * 3, "one record for each face");
    for (at, record) in records.chunks(3).enumerate() {
        for field in [
            "tool",
            "version",
            "decision",
            "outcome",
            "rule",
            "arguments",
            "message",
        ] {
            assert!(
                record.iter().all(|r| r[field] == record[0][field]),
                "{:?}: {field}: {record:?}",
                CALLS[at]
            );
        }
    }
}

/// The handler names the script: a `scriptPath` from the caller is refused or, where declared, mere
/// data. A manifest without a schema lets everything through to the service, which checks for
/// itself.
#[test]
fn the_handler_wins_and_the_service_checks_again() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, os, \
        sys\nprint(json.dumps({'ran': os.path.basename(__file__), 'got': json.load(sys.stdin)}))\n";
    let schema = |names: &[&str]| {
        let fields = names.iter().map(|name| {
            (
                (*name).to_owned(),
                json!({"type": "string", "description": "d"}),
            )
        });
        json!({"parameters": {"type": "object", "properties": Value::Object(fields.collect())}})
    };
    playground.tool_at(
        "req:closed",
        "python",
        "closed/main.py",
        script,
        schema(&["n"]),
    );
    playground.tool_at(
        "req:open",
        "python",
        "open/main.py",
        script,
        schema(&["n", "scriptPath", "language"]),
    );
    put(&playground, "user_scripts/open/other.py", script);
    let method = |name: &str, method: &str, more: Value| {
        let service = "ExternalScriptExecutionService";
        let handler =
            json!({"type": "service-method", "serviceName": service, "methodName": method});
        let text = manifest(format!("req:{name}"), handler, more).to_string();
        put(&playground, format!("tool-defs/{name}.tool.json"), text);
    };
    // Both sources for a method: the language from the handler, the path from the caller.
    let mut fixed = schema(&["scriptPath", "language"]);
    fixed["handler"] = json!({"language": "python"});
    method("fixed", "executeScript", fixed);
    method("execute", "executeScript", json!({}));
    method("code", "runCode", json!({}));
    playground.policy("code", "req:code", "");
    playground.settle();
    for row in include_str!("one_pipeline.txt")
        .lines()
        .filter(|row| !row.starts_with('#'))
    {
        let [tool, wanted, input] = row.splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let ended = playground.expect(tool, input, wanted);
        if !wanted.starts_with("ok") {
            let record = playground.records().pop().unwrap();
            assert_eq!(
                (&record["decision"], &ended.out["layers"]),
                (&json!("refused"), &json!([])),
                "{input}"
            );
        }
    }
}
