//! `audit TOOL` shows what the tool was refused in its last calls, and no other tool's.

use super::{put, says, set_mode};
use crate::prelude::*;

/// Looks names up and answers with how many have an address.
const ASKS: &str = "import json,socket,sys\nfound=0\nfor name in json.load(sys.stdin)['names']:\n \
    try: socket.gethostbyname(name); found+=1\n except OSError: pass\nprint(found)\n";

fn playground() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    playground.tool("asks", "python", ASKS, asks);
    playground.policy(
        "asks",
        "esc:asks",
        "[network]\nhosts = [{ host = \"api.example.com\", why = \"t\" }]\n",
    );
    playground.settle();
    playground
}

fn call(playground: &Playground, names: &[&str]) -> String {
    let ended = playground.expect("esc:asks", &json!({ "names": names }).to_string(), "ok");
    ended.out["id"].as_str().unwrap().to_owned()
}

fn last(playground: &Playground) -> Value {
    let ended = playground.cli(&["audit", "esc:asks", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.out["lastDenials"].clone()
}

#[test]
fn audit_shows_what_was_refused_by_when_and_how_often() {
    let playground = playground();
    assert_eq!(
        last(&playground),
        json!({"calls": 0, "denials": [], "more": 0, "notLookedAt": []})
    );

    call(&playground, &["api.example.com"]);
    assert_eq!(last(&playground)["calls"], 1);
    call(&playground, &["first.example.net", "second.example.net"]);
    let newest = call(&playground, &["second.example.net"]);
    let seen = last(&playground);
    let told = |at: usize, field: &str| seen["denials"][at][field].clone();
    assert_eq!(
        (&seen["calls"], seen["denials"].as_array().unwrap().len()),
        (&json!(3), 2),
        "{seen}"
    );
    let both = ["call", "calls", "operation", "narrower", "target"].map(|field| told(0, field));
    assert_eq!(
        json!(both),
        json!([newest, 2, "resolve", "manifest", "second.example.net"]),
        "{seen}"
    );
    let once = ["calls", "changed", "target"].map(|field| told(1, field));
    assert_eq!(json!(once), json!([1, [], "first.example.net"]), "{seen}");
    assert!(
        told(0, "time").as_str().unwrap() > told(1, "time").as_str().unwrap(),
        "{seen}"
    );

    // What a record had no room for is counted there, and here.
    let names: Vec<String> = (0..14).map(|n| format!("n{n}.example.net")).collect();
    let id = call(
        &playground,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["call"], &record["violations"][9]),
        (&json!(id), &json!({"kind": "more", "count": 5}))
    );
    let seen = last(&playground);
    assert_eq!(
        (seen["denials"].as_array().unwrap().len(), &seen["more"]),
        (10, &json!(6)),
        "{seen}"
    );

    // Saved audits differ by what they allow alone.
    let saved = |name: &str| {
        let text = playground.cli(&["audit", "esc:asks", "--json"]).stdout;
        put(&playground, name, text).display().to_string()
    };
    let before = saved("before.json");
    call(&playground, &["third.example.net"]);
    let diff = playground.cli(&["diff", &before, &saved("after.json"), "--json"]);
    assert_eq!(diff.out["different"], json!([]), "{}", diff.text());
}

#[test]
fn audit_mixes_no_tools_and_says_what_it_cannot_read() {
    let playground = playground();
    call(&playground, &["first.example.net"]);
    let targets = |seen: &Value| -> Vec<Value> {
        seen["denials"]
            .as_array()
            .unwrap()
            .iter()
            .map(|denied| denied["target"].clone())
            .collect()
    };
    assert_eq!(
        targets(&last(&playground)),
        ["first.example.net"],
        "the control"
    );

    // The same id and version from another file, and another version from the same file, are other
    // tools.
    let manifest = playground.path("user_scripts/asks/asks.tool.json");
    let elsewhere = manifest.with_file_name("other.tool.json");
    fs::rename(&manifest, &elsewhere).unwrap();
    assert_eq!(last(&playground)["calls"], 0);
    fs::rename(&elsewhere, &manifest).unwrap();
    let policy = playground.path("sandbox-policies/asks.policy.toml");
    for (file, part, changed, calls, told) in [
        (&manifest, "\"1.0.0\"", "\"1.0.1\"", 0, Value::Null),
        (&manifest, "{", "{ ", 1, json!(["manifest"])),
        (&policy, "name", "# looked at\nname", 1, json!(["policy"])),
    ] {
        let before = fs::read_to_string(file).unwrap();
        fs::write(file, before.replacen(part, changed, 1)).unwrap();
        let seen = last(&playground);
        assert_eq!(
            (&seen["calls"], &seen["denials"][0]["changed"]),
            (&json!(calls), &told),
            "{seen}"
        );
        fs::write(file, before).unwrap();
    }

    // A record that was damaged, and one of another tool with the same denial.
    let record = playground.records().pop().unwrap().to_string();
    let other = record
        .replace("\"esc:asks\"", "\"esc:other\"")
        .replace("first.example.net", "other.example.net");
    let mut log = fs::File::options()
        .append(true)
        .open(playground.path("state/audit.jsonl"))
        .unwrap();
    writeln!(log, "{other}\n{}", &record[..record.len() / 2]).unwrap();
    let seen = last(&playground);
    assert_eq!(targets(&seen), ["first.example.net"]);
    assert_eq!(seen["notLookedAt"], json!(["damaged lines: 1"]));

    // A log that cannot be read is not one without denials.
    let (log, closed) = (
        playground.path("state/audit.jsonl"),
        playground.path("state/audit.jsonl.000001"),
    );
    fs::copy(&log, &closed).unwrap();
    set_mode(&closed, 0o666);
    let seen = last(&playground)["notLookedAt"].to_string();
    assert!(
        seen.contains("audit.jsonl.000001: others may write it"),
        "{seen}"
    );
    set_mode(&log, 0o666);
    let why = last(&playground)["unreadable"].to_string();
    assert!(why.contains("others may write it"), "{why}");
    says(
        &playground,
        &["audit", "esc:asks"],
        &["the audit log cannot be read: "],
    );
}
