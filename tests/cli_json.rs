//! `call --json`: whatever goes wrong, one outcome on standard output, with its type and exit code.

use crate::harness::host;
use serde_json::Value;
use std::fs;

#[test]
fn every_failure_before_a_call_is_one_outcome() {
    let host = host();
    let put = |name: &str, text: &str| fs::write(host.folder.path().join(name), text).unwrap();
    put("binary.json", "x");
    fs::write(host.folder.path().join("binary.json"), b"\xff\xfe\x00").unwrap();
    let binary = format!("@{}", host.folder.path().join("binary.json").display());
    let cases: [(&[&str], &str, i32); 8] = [
        (&["x=1", "x=2"], "ParameterValidationError", 2),
        (&["no-equals"], "ParameterValidationError", 2),
        (&["x=1", "--input", "{}"], "ParameterValidationError", 2),
        (&["--input", " "], "ParameterValidationError", 2),
        (&["--input", "@/does/not/exist"], "ParameterValidationError", 2),
        (&["--input", &binary], "ParameterValidationError", 2),
        (&["--input", "{\"scriptPath\":"], "ParameterValidationError", 2),
        (&["--tools", "/does/not/exist"], "ParameterValidationError", 2),
    ];
    for (more, kind, code) in cases {
        outcome(&host, more, kind, code);
    }
    fs::create_dir_all(host.folder.path().join("config/toolhost")).unwrap();
    put("config/toolhost/config.toml", "surprise = 1\n");
    outcome(&host, &[], "InternalError", 4);
    put("config/toolhost/config.toml", "");
    fs::create_dir(host.folder.path().join("sandbox-policies")).unwrap();
    put("sandbox-policies/x.policy.toml", "surprise = 1\n");
    outcome(&host, &[], "SecurityError", 3);
}

fn outcome(host: &crate::harness::Host, more: &[&str], kind: &str, code: i32) {
    let arguments = [&["call", "core:execute-python-script", "--json"], more].concat();
    let (exit, out, err) = host.run(&arguments);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{more:?}: {e}: {out:?} {err}"));
    assert_eq!((report["error"]["type"].as_str(), exit), (Some(kind), code), "{more:?}: {report}");
    assert_eq!((&report["success"], out.lines().count()), (&Value::Bool(false), 1), "{more:?}");
    for field in ["id", "tool", "version", "logs", "usage", "walls", "denials", "artifacts", "digests"] {
        assert!(report.get(field).is_some(), "{field} is missing: {report}");
    }
    assert!(!out.contains(host.folder.path().to_str().unwrap()) || more.concat().contains('@'), "{out}");
    assert!(!err.is_empty(), "the person is told too");
}
