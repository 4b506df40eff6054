//! `audit TOOL` shows what the tool was refused in its last calls, and no other tool's.

use crate::prelude::*;
/// Looks names up and answers with how many have an address.
const ASKS: &str = "import json,socket,sys\nfound=0\nfor name in json.load(sys.stdin)['names']:\n \
    try: socket.gethostbyname(name); found+=1\n except OSError: pass\nprint(found)\n";

fn playground() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    playground.tool("asks", "python", ASKS, asks);
    let hosts = "[network]\nhosts = [{ host = \"api.example.com\", why = \"t\" }]\n";
    playground.policy("asks", "esc:asks", hosts);
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
    assert_eq!(last(&playground), json!({"calls": 0, "denials": [], "more": 0, "notLookedAt": []}));

    call(&playground, &["api.example.com"]);
    assert_eq!(last(&playground)["calls"], 1);
    call(&playground, &["first.example.net", "second.example.net"]);
    let newest = call(&playground, &["second.example.net"]);
    let seen = last(&playground);
    let told = |at: usize, field: &str| seen["denials"][at][field].clone();
    assert_eq!((&seen["calls"], seen["denials"].as_array().unwrap().len()), (&json!(3), 2), "{seen}");
    assert_eq!((told(0, "call"), told(0, "calls")), (json!(newest), json!(2)), "{seen}");
    assert_eq!((told(0, "operation"), told(0, "narrower")), (json!("resolve"), json!("manifest")), "{seen}");
    assert_eq!((told(0, "target"), told(1, "target")), (json!("second.example.net"), json!("first.example.net")));
    assert_eq!((told(1, "calls"), told(1, "changed")), (json!(1), json!([])), "{seen}");
    assert!(told(0, "time").as_str().unwrap() > told(1, "time").as_str().unwrap(), "{seen}");

    // What a record had no room for is counted there, and here.
    let names: Vec<String> = (0..14).map(|n| format!("n{n}.example.net")).collect();
    let id = call(&playground, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["call"], &record["violations"][9]), (&json!(id), &json!({"kind": "more", "count": 5})));
    let seen = last(&playground);
    assert_eq!((seen["denials"].as_array().unwrap().len(), &seen["more"]), (10, &json!(6)), "{seen}");

    // Saved audits differ by what they allow alone.
    let saved = |name: &str| {
        let path = playground.path(name);
        fs::write(&path, playground.cli(&["audit", "esc:asks", "--json"]).stdout).unwrap();
        path.display().to_string()
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
    let tools = playground.path("user_scripts");
    let targets = |seen: &Value| {
        let all = seen["denials"].as_array().unwrap_or_else(|| panic!("{seen}"));
        all.iter().map(|denied| denied["target"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(targets(&last(&playground)), ["first.example.net"], "the control");

    // The same id and version from another file, and another version from the same file, are other tools.
    let manifest = tools.join("asks/asks.tool.json");
    let elsewhere = tools.join("asks/other.tool.json");
    fs::rename(&manifest, &elsewhere).unwrap();
    assert_eq!(last(&playground)["calls"], 0);
    fs::rename(&elsewhere, &manifest).unwrap();
    let before = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, before.replace("\"1.0.0\"", "\"1.0.1\"")).unwrap();
    assert_eq!(last(&playground)["calls"], 0);
    fs::write(&manifest, before.replacen('{', "{ ", 1)).unwrap();
    assert_eq!(last(&playground)["denials"][0]["changed"], json!(["manifest"]));
    fs::write(&manifest, before).unwrap();
    let policy = playground.path("sandbox-policies/asks.policy.toml");
    let allowed = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, format!("{allowed}# looked at\n")).unwrap();
    assert_eq!(last(&playground)["denials"][0]["changed"], json!(["policy"]));
    fs::write(&policy, allowed).unwrap();

    // A record that was damaged, and one of another tool with the same denial.
    let record = playground.records().pop().unwrap().to_string();
    let other = record.replace("\"esc:asks\"", "\"esc:other\"").replace("first.example.net", "other.example.net");
    let mut log = fs::File::options().append(true).open(playground.path("state/audit.jsonl")).unwrap();
    writeln!(log, "{other}\n{}", &record[..record.len() / 2]).unwrap();
    let seen = last(&playground);
    assert_eq!(targets(&seen), ["first.example.net"]);
    assert_eq!(seen["notLookedAt"], json!(["damaged lines: 1"]));

    // A log that cannot be read is not one without denials.
    let log = playground.path("state/audit.jsonl");
    fs::copy(&log, playground.path("state/audit.jsonl.000001")).unwrap();
    fs::set_permissions(playground.path("state/audit.jsonl.000001"), fs::Permissions::from_mode(0o666)).unwrap();
    let seen = last(&playground)["notLookedAt"].to_string();
    assert!(seen.contains("audit.jsonl.000001: others may write it"), "{seen}");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
    let why = last(&playground)["unreadable"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("others may write it"), "{why}");
    let text = playground.cli(&["audit", "esc:asks"]).text();
    assert!(text.contains("the audit log cannot be read: "), "{text}");
}
