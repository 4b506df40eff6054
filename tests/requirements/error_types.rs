//! Each type of error has one origin and one exit code (the closed list with its document:
//! `fault` of toolhost-base).

use super::{files, put};
use crate::prelude::*;

/// (tool, input, type, origin, exit code).
const CALLS: &[(&str, &str, &str, &str, i32)] = &[
    ("esc:none", "{}", "ToolNotFoundError", "caller", 2),
    ("esc:answers@^2", "{}", "VersionMismatchError", "caller", 2),
    (
        "esc:answers",
        r#"{"n":"x"}"#,
        "ParameterValidationError",
        "caller",
        2,
    ),
    (
        "core:execute-python-script",
        r#"{"scriptPath":"../x.py"}"#,
        "SecurityError",
        "policy",
        3,
    ),
    ("esc:greedy", "{}", "SecurityError", "policy", 3),
    ("esc:answers", r#"{"n":1}"#, "ScriptError", "tool", 1),
    (
        "esc:answers",
        r#"{"n":2}"#,
        "OutputValidationError",
        "tool",
        1,
    ),
    ("esc:sleeps", r#"{"n":3}"#, "TimeoutError", "tool", 1),
    ("esc:answers", r#"{"n":4}"#, "ResourceLimitError", "tool", 1),
    ("esc:gpu", "{}", "CapabilityError", "host", 4),
    ("esc:method", "{}", "ServiceError", "host", 4),
];

const ANSWERS: &str = "import json, os, sys, time\nn = json.load(sys.stdin).get('n')\nif n == \
    1:\n    sys.exit(3)\nif n == 2:\n    print('\"text\"')\nif n == 3:\n    time.sleep(60)\nwhile \
    n == 4:\n    os.write(1, b' ' * 65536)\nif n is None:\n    print('{}')\n";

#[test]
fn real_calls_tell_type_origin_and_exit_code() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let mut more = json!({"output": {"type": "object"}, "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "description": "d"}}}});
    playground.tool("answers", "python", ANSWERS, more.clone());
    more["execution"] = json!({"timeoutMs": 1500});
    playground.tool("sleeps", "python", ANSWERS, more);
    playground.tool("greedy", "python", ANSWERS, files(&["self"], &["/srv/**"]));
    playground.tool(
        "gpu",
        "python",
        ANSWERS,
        json!({"securityContext": {"requiredCapabilities": ["gpu"]}}),
    );
    let handler =
        json!({"type": "service-method", "serviceName": "Unknown", "methodName": "nothing"});
    put(
        &playground,
        "tool-defs/method.tool.json",
        manifest("esc:method", handler, json!({})).to_string(),
    );
    playground.settle();
    playground.expect("esc:answers", "{}", "ok {}");
    for (tool, input, kind, origin, code) in CALLS {
        let ended = playground.expect(tool, input, kind);
        assert_eq!(
            (&ended.out["error"]["origin"], ended.code),
            (&json!(origin), Some(*code)),
            "{tool} {input}"
        );
    }
    // Without --json: nothing on stdout, the type on stderr.
    let plain = playground.cli(&["call", "esc:answers", "--input", r#"{"n":1}"#]);
    assert!(
        plain.stdout.is_empty() && plain.code == Some(1) && plain.stderr.contains("ScriptError"),
        "{plain:?}"
    );
    let log = playground.path("state/audit.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let ended = playground.expect("esc:answers", "{}", "InternalError");
    assert_eq!(
        (ended.code, &ended.out["success"]),
        (Some(4), &json!(false))
    );
}
