//! Denials: what the host functions refuse a module is in the outcome, as data, by the whole binary.

use crate::harness::components;
use crate::prelude::*;

const PROBE: &str = include_str!("../engines/probe.wat");

fn probe(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/*.csv"]}}});
    let own = playground.tool("probe", "wasm", PROBE, asks);
    fs::create_dir(own.join("data")).unwrap();
    fs::write(own.join("data/in.csv"), "in\n").unwrap();
    fs::write(own.join("data/there.txt"), "there\n").unwrap();
    playground.settle();
    playground
}

fn told(outcome: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let line = |denial: &Value| {
        let [operation, target, rule, narrower] =
            ["operation", "target", "rule", "narrower"].map(|name| text(&denial[name]));
        format!("{operation} {target}: {rule}; {narrower}")
    };
    outcome["denials"]["observed"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn a_refused_file_is_told_and_whether_it_exists_is_not() {
    let who = Who::ours();
    let playground = probe(who);
    let call = |path: &str| {
        let ended = playground.expect("esc:probe", &json!({"do": "read", "path": path}).to_string(), "ok");
        (ended.out["outputData"]["did"].as_str().unwrap().to_owned(), told(&ended.out), ended.out)
    };
    let (did, seen, outcome) = call("data/in.csv");
    assert_eq!((did.as_str(), seen.len()), ("ok", 0), "{who:?}: the control: {seen:?}");
    let unseen = outcome["denials"]["notObserved"].to_string();
    assert!(unseen.contains("a path that lies in none of the opened folders"), "{who:?}: {unseen}");
    for (word, there, missing) in [
        ("ENOENT", "data/there.txt", "data/gone.txt"),
        ("ENOENT", "probe.tool.json", "gone.json"),
        ("EPERM", "data/../probe.tool.json", "data/../gone.json"),
        ("EPERM", "/etc/passwd", "/etc/gone"),
    ] {
        for path in [there, missing] {
            let (did, seen, _) = call(path);
            let wanted = format!("read {path}: wasm: not granted; manifest");
            assert_eq!((did.as_str(), seen), (word, vec![wanted]), "{who:?}");
        }
    }
}

#[test]
fn a_failed_call_says_what_it_was_refused_and_the_person_what_would_ask() {
    let who = Who::ours();
    let playground = probe(who);
    let input = json!({"do": "write", "path": "data/new.csv", "exit": 3});
    let ended =
        playground.expect("esc:probe", &input.to_string(), "ScriptError: write data/new.csv (wasm: read-only).");
    let ask = "\"data/new.csv\" in securityContext.fileAccess.allowWrite (";
    assert!(ended.stderr.contains(ask) && ended.stderr.contains("probe.tool.json"), "{who:?}: {}", ended.stderr);
    let kept = playground.cli(&["audit", "esc:probe", "--all"]).text();
    let line = "refused lately: write data/new.csv";
    assert!(kept.contains(line), "{who:?}: {kept}");

    // An agent hears what it asked for itself: no host path, and nothing to copy into a manifest.
    let mut server = Server::start(&playground);
    let answer = server.called("esc:probe", input).to_string();
    assert!(answer.contains("write data/new.csv"), "{who:?}: {answer}");
    let own = playground.base.display().to_string();
    assert!(!answer.contains(&own) && !answer.contains("allowWrite"), "{who:?}: {answer}");
}

/// Makes 1,000 folders where it may write none, each of another name.
const FLOOD: &str = r#"(module
  (import "wasi_snapshot_preview1" "path_create_directory" (func $make (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00\01\00\00\001")
  (data (i32.const 16) "1")
  (func $digit (param $n i32) (result i32) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
  (func (export "_start") (local $n i32)
    (loop $more
      (i32.store8 (i32.const 100) (call $digit (i32.div_u (local.get $n) (i32.const 100))))
      (i32.store8 (i32.const 101) (call $digit (i32.div_u (local.get $n) (i32.const 10))))
      (i32.store8 (i32.const 102) (call $digit (local.get $n)))
      (drop (call $make (i32.const 3) (i32.const 100) (i32.const 3)))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $n) (i32.const 1000))))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))))"#;

/// Asks for two million elements of a table, and says whether it got them.
const GROW: &str = r#"(component
  (core module $m
    (memory (export "memory") 1) (table $t 1 funcref)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
    (func (export "run") (param i32 i32) (result i32)
      (i32.store8 (i32.const 100)
        (select (i32.const 48) (i32.const 49) (i32.eq (i32.const -1) (table.grow $t (ref.null func) (i32.const 2000000)))))
      (i32.store8 (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 100))
      (i32.store (i32.const 8) (i32.const 1)) (i32.const 0)))
  (core instance $i (instantiate $m))
  (func (export "run") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc")))))"#;

#[test]
fn refusals_are_bounded_and_the_rest_is_counted() {
    let who = Who::ours();
    let playground = Playground::new(who, "/var/tmp");
    playground.tool("flood", "wasm", FLOOD, json!({}));
    playground.tool("grow", "wasm", GROW, json!({}));
    playground.settle();
    let ended = playground.expect("esc:flood", "{}", "ok 1");
    let seen = told(&ended.out);
    assert_eq!(seen.len(), 50, "{who:?}: {seen:?}");
    assert!(seen[49] == "write 049: wasm: read-only; manifest", "{who:?}: {}", seen[49]);
    let unseen = ended.out["denials"]["notObserved"].to_string();
    assert!(unseen.contains("950 more refusals of the host functions, past the first 50"), "{who:?}: {unseen}");
    let ended = playground.expect("esc:grow", "{}", "ok 0");
    let rule = "grow a table of the module: wasm: more elements than a module may have; house";
    assert_eq!(told(&ended.out), [rule], "{who:?}");
}

#[test]
fn a_module_without_hosts_is_told_of_its_sockets_and_requests() {
    let who = Who::ours();
    let playground = Playground::new(who, "/var/tmp");
    let host = "api.example.com";
    let deeds = [
        ("tcp", json!({"do": "connect", "path": "45.20.0.1", "n": 80})),
        ("udp", json!({"do": "datagram"})),
        ("name", json!({"do": "connect", "path": host, "n": 80})),
    ];
    for (name, deed) in deeds {
        playground.tool(name, "wasm", &components::sockets(&deed).unwrap(), json!({}));
    }
    playground.tool("request", "wasm", &components::request(host), json!({}));
    playground.settle();
    for (tool, answer, denial) in [
        ("tcp", "ok {\"did\":\"access-denied\"}", "connect by a TCP socket: not granted; manifest"),
        ("udp", "ok {\"did\":\"access-denied\"}", "connect by a UDP socket: no tool has UDP, but for names; house"),
        ("name", "ok {\"did\":\"permanent-resolver-failure\"}", "resolve api.example.com: not granted; manifest"),
        ("request", "ok 10115", "request api.example.com: not granted; manifest"),
    ] {
        let ended = playground.call_with(&format!("esc:{tool}"), "{}", &["--explain"]);
        fits(answer, &ended).unwrap();
        assert_eq!(told(&ended.out), [denial], "{who:?}");
        let ask = ended.out["denials"]["observed"][0]["ask"].as_str().unwrap_or_default();
        assert_eq!(
            ask.contains("\"api.example.com\" in securityContext"),
            ["name", "request"].contains(&tool),
            "{who:?}: {ask}"
        );
    }
}
