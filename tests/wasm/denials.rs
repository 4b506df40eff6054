//! Denials: what the host functions refuse a module is in the outcome, as data, by the whole
//! binary.

use crate::harness::components;
use crate::prelude::*;

const PROBE: &str = include_str!("../engines/probe.wat");

fn told(outcome: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let line = |denial: &Value| {
        let [operation, target, rule, narrower] =
            ["operation", "target", "rule", "narrower"].map(|name| text(&denial[name]));
        format!("{operation} {target}: {rule}; {narrower}")
    };
    outcome["denials"]["observed"]
        .as_array()
        .unwrap()
        .iter()
        .map(line)
        .collect()
}

#[test]
fn what_a_module_is_refused_is_told_and_counted_and_whether_a_file_exists_is_not() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/*.csv"]}}});
    let own = playground.tool("probe", "wasm", PROBE, asks);
    fs::create_dir(own.join("data")).unwrap();
    fs::write(own.join("data/in.csv"), "in\n").unwrap();
    fs::write(own.join("data/there.txt"), "there\n").unwrap();
    playground.tool("flood", "wasm", include_str!("flood.wat"), json!({}));
    playground.tool("grow", "wasm", include_str!("grow.wat"), json!({}));
    let host = "api.example.com";
    for (name, deed) in [
        (
            "tcp",
            json!({"do": "connect", "path": "45.20.0.1", "n": 80}),
        ),
        ("udp", json!({"do": "datagram"})),
        ("name", json!({"do": "connect", "path": host, "n": 80})),
    ] {
        playground.tool(
            name,
            "wasm",
            &components::sockets(&deed).unwrap(),
            json!({}),
        );
    }
    playground.tool("request", "wasm", &components::request(host), json!({}));
    playground.settle();

    let call = |path: &str, word: &str| {
        let input = json!({"do": "read", "path": path}).to_string();
        playground
            .expect("esc:probe", &input, &format!("ok {{\"did\":\"{word}\"}}"))
            .out
    };
    let outcome = call("data/in.csv", "ok");
    assert_eq!(told(&outcome), Vec::<String>::new(), "the control");
    let unseen = outcome["denials"]["notObserved"].to_string();
    assert!(
        unseen.contains("a path outside the opened folders"),
        "{unseen}"
    );
    for (word, there, missing) in [
        ("ENOENT", "data/there.txt", "data/gone.txt"),
        ("ENOENT", "probe.tool.json", "gone.json"),
        ("EPERM", "data/../probe.tool.json", "data/../gone.json"),
        ("EPERM", "/etc/passwd", "/etc/gone"),
    ] {
        for path in [there, missing] {
            assert_eq!(
                told(&call(path, word)),
                [format!("read {path}: wasm: not granted; manifest")]
            );
        }
    }

    // A failed call says what it was refused, and proposes nothing: only the caller names that
    // file.
    let input = json!({"do": "write", "path": "data/new.csv", "exit": 3});
    let failed = "ScriptError: write data/new.csv (wasm: read-only).";
    let said = playground
        .expect("esc:probe", &input.to_string(), failed)
        .stderr;
    assert!(!said.contains("allowWrite"), "{said}");
    let kept = playground.cli(&["audit", "esc:probe", "--all"]).text();
    assert!(
        kept.contains("refused lately: write data/new.csv"),
        "{kept}"
    );
    // An agent hears what it asked for itself: no host path, and nothing to copy into a manifest.
    let answer = Server::start(&playground)
        .called("esc:probe", input)
        .to_string();
    assert!(answer.contains("write data/new.csv"), "{answer}");
    let own = playground.base.display().to_string();
    assert!(
        !answer.contains(&own) && !answer.contains("allowWrite"),
        "{answer}"
    );

    // Refusals are bounded, and the rest is counted.
    let flood = playground.expect("esc:flood", "{}", "ok 1").out;
    let seen = told(&flood);
    assert_eq!(
        (seen.len(), &*seen[49]),
        (50, "write 049: wasm: read-only; manifest")
    );
    let unseen = flood["denials"]["notObserved"].to_string();
    assert!(
        unseen.contains("950 more refusals of the host functions, past the first 50"),
        "{unseen}"
    );

    for (tool, answer, denial) in [
        (
            "grow",
            "ok 0",
            "grow a table of the module: wasm: more elements than a module may have; built-in",
        ),
        (
            "tcp",
            "ok {\"did\":\"access-denied\"}",
            "connect by a TCP socket: not granted; manifest",
        ),
        (
            "udp",
            "ok {\"did\":\"access-denied\"}",
            "connect by a UDP socket: no tool has UDP, but for names; built-in",
        ),
        (
            "name",
            "ok {\"did\":\"permanent-resolver-failure\"}",
            "resolve api.example.com: not granted; manifest",
        ),
        (
            "request",
            "ok 10115",
            "request api.example.com: not granted; manifest",
        ),
    ] {
        let ended = playground.call_with(&format!("esc:{tool}"), "{}", &["--explain"]);
        fits(answer, &ended).unwrap();
        assert_eq!(told(&ended.out), [denial]);
        let ask = ended.out["denials"]["observed"][0]["ask"]
            .as_str()
            .unwrap_or_default();
        let by_name = ask.contains("\"api.example.com\" in securityContext");
        assert_eq!(by_name, ["name", "request"].contains(&tool), "{ask}");
    }
}
