//! What every call of a tool is refused for: `check`, `list` and `audit` say so before any call, in the call's words.

use crate::harness::host;
use serde_json::{Value, json};

const CAPABILITY: &str = "/securityContext/requiredCapabilities/0";

/// What the manifest says | what a call ends with | severity | words that all of them say
const REFUSED: &str = "
method NoSuch run|ServiceError|warning|Service 'NoSuch' is not registered in this host.
method ExternalScriptExecutionService no|ServiceError|warning|'ExternalScriptExecutionService' has no method 'no'.
needs frobnicate|CapabilityError|warning|unknown capability 'frobnicate'
needs env:PATH|CapabilityError|warning|may not be set: it changes how the interpreter starts
needs env:LD_PRELOAD|CapabilityError|warning|may not be set: it changes how the interpreter starts
needs env:1X|CapabilityError|warning|is not a variable name
needs gpu|CapabilityError|note|the capability 'gpu': `capabilities` in this host's configuration
requires t:nobody *|CapabilityError|warning|the tool t:nobody * (requires), which is not loaded
requires t:fine ^2|CapabilityError|warning|t:fine ^2 (requires); loaded: 1.0.0
type definition-only|CapabilityError|note|a client that runs the tool
type x-mine|CapabilityError|note|This host cannot run tools of type 'x-mine'.
";

/// A row: what the manifest has, where it says so, and the rest.
fn refused(row: &str) -> (Value, String, [&str; 3]) {
    let [more, kind, severity, words] = row.split('|').collect::<Vec<_>>()[..] else { panic!("{row}") };
    let more: Vec<&str> = more.split(' ').collect();
    let (manifest, pointer) = match more[..] {
        ["method", service, method] => {
            let handler = json!({ "type": "service-method", "serviceName": service, "methodName": method });
            (json!({ "handler": handler }), "/handler/serviceName".to_owned())
        }
        ["needs", word] => (json!({ "securityContext": { "requiredCapabilities": [word] } }), CAPABILITY.to_owned()),
        ["requires", id, range] => (json!({ "requires": { id: range } }), format!("/requires/{id}")),
        ["type", kind] => (json!({ "handler": { "type": kind } }), "/handler/type".to_owned()),
        _ => panic!("{row}"),
    };
    (manifest, pointer, [kind, severity, words])
}

#[test]
fn what_no_call_could_do_is_told_by_check_list_and_audit() {
    let host = host();
    host.tool("t:fine", json!({}));
    let rows: Vec<_> = REFUSED.trim().lines().map(refused).collect();
    for (at, (more, ..)) in rows.iter().enumerate() {
        host.tool(&format!("t:r{at}"), more.clone());
    }
    let (_, out, _) = host.run(&["list", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&out).unwrap();
    let (_, table, _) = host.run(&["list"]);
    let of = |id: &str| listed.iter().find(|tool| tool["toolId"] == id).unwrap_or_else(|| panic!("{id}: {listed:?}"));
    assert_eq!(of("t:fine")["available"], true, "the control");
    assert_eq!(host.problems("fine.tool.json").1, Vec::<Value>::new(), "the control");
    let audit: Value = serde_json::from_str(&host.run(&["audit", "t:fine", "--json"]).1).unwrap();
    assert_eq!(audit["refused"], Value::Null, "the control");
    for (at, (more, pointer, [kind, severity, words])) in rows.iter().enumerate() {
        let id = format!("t:r{at}");
        let (code, _, err) = host.run(&["call", &id, "--input", "{}"]);
        assert_eq!(code, 4, "{more}: {err}");
        assert!(err.contains(kind) && err.replace('\n', " ").contains(words), "{more}: {err}");
        let tool = of(&id);
        assert!(tool["available"] == false && tool["needs"].to_string().contains(&escaped(words)), "{more}: {tool}");
        assert!(table.contains(words), "{more}: {table}");
        let (_, problems) = host.problems(&format!("r{at}.tool.json"));
        let told = problems.iter().find(|problem| problem["message"].as_str().unwrap().contains(words));
        let told = told.unwrap_or_else(|| panic!("{more}: {problems:?}"));
        assert!(told["message"].as_str().unwrap().starts_with("unavailable here: "), "{told}");
        assert_eq!((&told["pointer"], &told["severity"]), (&json!(pointer), &json!(severity)), "{told}");
        assert!(told["line"].as_u64() > Some(0), "{told}");
        let (_, text, _) = host.run(&["audit", &id]);
        assert!(text.contains("a call is refused") && text.contains(words), "{more}: {text}");
        let audit: Value = serde_json::from_str(&host.run(&["audit", &id, "--json"]).1).unwrap();
        assert_eq!(audit["refused"]["type"], *kind, "{more}: {audit}");
    }
}

fn escaped(words: &str) -> String {
    words.replace('"', "\\\"")
}
