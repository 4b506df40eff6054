//! The list of error types is closed and documented; each has one origin and one exit code.

use crate::harness::{Playground, Who, fits, repository};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use toolhost::cli::refusal::Exit;
use toolhost::fault::{Fault, Kind};

/// (type, origin, exit code).
const KINDS: [(&str, &str, i32); 17] = [
    ("ToolNotFoundError", "caller", 2),
    ("ActionParseError", "caller", 2),
    ("ParameterValidationError", "caller", 2),
    ("VersionMismatchError", "caller", 2),
    ("CancelledError", "caller", 2),
    ("AuthorizationError", "policy", 3),
    ("RateLimitError", "policy", 3),
    ("SecurityError", "policy", 3),
    ("TimeoutError", "tool", 1),
    ("ResourceLimitError", "tool", 1),
    ("ScriptError", "tool", 1),
    ("OutputValidationError", "tool", 1),
    ("CircuitOpenError", "host", 4),
    ("CapabilityError", "host", 4),
    ("DependencyError", "host", 4),
    ("ServiceError", "host", 4),
    ("InternalError", "host", 4),
];

#[test]
fn the_list_is_closed_and_each_type_has_one_origin() {
    let known: BTreeSet<String> = Kind::ALL.iter().map(Kind::to_string).collect();
    let wanted: BTreeSet<String> = KINDS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(known, wanted);
    assert_eq!(known.len(), Kind::ALL.len(), "one name each");
    for kind in Kind::ALL {
        let (_, origin, code) = KINDS.iter().find(|row| row.0 == kind.to_string()).unwrap();
        let told = serde_json::to_value(Fault::new(kind, "m")).unwrap();
        assert_eq!((&told["type"], &told["origin"]), (&json!(kind.to_string()), &json!(origin)));
        assert_eq!(Exit::for_origin(kind.origin()) as i32, *code, "{kind}");
        assert!(serde_json::from_value::<Kind>(json!(kind.to_string())).is_ok_and(|back| back == kind));
    }
    for stranger in ["Error", "scriptError", "ScriptError ", ""] {
        assert!(serde_json::from_value::<Kind>(json!(stranger)).is_err(), "{stranger}");
    }
}

/// docs/CALLS.md has the same table.
#[test]
fn the_list_is_documented() {
    let document = fs::read_to_string(repository("docs/CALLS.md")).unwrap();
    let mut told = BTreeSet::new();
    for line in document.lines().filter(|line| line.starts_with("| `") && line.contains("Error`")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let origin = cells[2].trim_matches('`').to_owned();
        let code: i32 = cells[3].parse().unwrap();
        told.insert((cells[1].trim_matches('`').to_owned(), origin, code));
    }
    let wanted: BTreeSet<_> = KINDS.iter().map(|row| (row.0.to_owned(), row.1.to_owned(), row.2)).collect();
    assert_eq!(told, wanted);
}

/// Types that real calls of the binary lead to. (tool, input, type).
const CALLS: &[(&str, &str, &str)] = &[
    ("req:none", "{}", "ToolNotFoundError"),
    ("req:answers@^2", "{}", "VersionMismatchError"),
    ("req:answers", r#"{"n":"x"}"#, "ParameterValidationError"),
    ("core:execute-python-script", r#"{"scriptPath":"../x.py"}"#, "SecurityError"),
    ("req:greedy", "{}", "SecurityError"),
    ("req:answers", r#"{"n":1}"#, "ScriptError"),
    ("req:answers", r#"{"n":2}"#, "OutputValidationError"),
    ("req:answers", r#"{"n":3}"#, "TimeoutError"),
    ("req:answers", r#"{"n":4}"#, "ResourceLimitError"),
    ("req:gpu", "{}", "CapabilityError"),
    ("req:method", "{}", "ServiceError"),
];

const ANSWERS: &str = "import json, os, sys, time\nn = json.load(sys.stdin).get('n')\n\
    if n == 1:\n    sys.exit(3)\nif n == 2:\n    print('\"text\"')\nif n == 3:\n    time.sleep(60)\n\
    while n == 4:\n    os.write(1, b' ' * 65536)\nif n is None:\n    print('{}')\n";

#[test]
fn real_calls_tell_type_origin_and_exit_code() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let more = json!({"execution": {"timeoutMs": 1500}, "output": {"type": "object"}, "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "description": "d"}}}});
    playground.tool_at("req:answers", "python", "answers/main.py", ANSWERS, more);
    let greedy = json!({"securityContext": {"fileAccess": {"allowWrite": ["/srv/**"]}}});
    playground.tool_at("req:greedy", "python", "greedy/main.py", ANSWERS, greedy);
    let gpu = json!({"securityContext": {"requiredCapabilities": ["gpu"]}});
    playground.tool_at("req:gpu", "python", "gpu/main.py", ANSWERS, gpu);
    let handler = json!({"type": "service-method", "serviceName": "Nobody", "methodName": "nothing"});
    let text = crate::harness::manifest("req:method", handler, json!({})).to_string();
    fs::write(playground.path("tool-defs/method.tool.json"), text).unwrap();
    playground.settle();
    playground.expect("req:answers", "{}", "ok {}");
    for (tool, input, kind) in CALLS {
        let ended = playground.call(tool, input);
        let (_, origin, code) = KINDS.iter().find(|row| row.0 == *kind).unwrap();
        fits(kind, &ended).unwrap_or_else(|why| panic!("{tool} {input}: {why}"));
        assert_eq!((&ended.out["error"]["origin"], ended.code), (&json!(origin), Some(*code)), "{tool} {input}");
        // Without --json: nothing on stdout, the type on stderr.
        let plain = playground.cli(&["call", tool, "--input", input]);
        assert!(plain.stdout.is_empty() && plain.code == Some(*code) && plain.stderr.contains(kind), "{plain:?}");
    }
    let log = playground.path("state/audit.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let ended = playground.expect("req:answers", "{}", "InternalError");
    assert_eq!((ended.code, &ended.out["success"]), (Some(4), &Value::Bool(false)));
}
