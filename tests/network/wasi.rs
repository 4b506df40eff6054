//! WASI guests reach what scripts reach: the same relay decides.

use super::{World, allow, in_both_worlds};
use crate::harness::{Playground, Who, fits};
use crate::wasm::network::REQUEST;
use serde_json::json;

/// Connects to an IPv4 address by `wasi:sockets` and answers with two digits: whether it is an error, and which.
const CONNECT: &str = r#"(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "input-stream" (type (sub resource))) (export "output-stream" (type (sub resource)))))
  (alias export $streams "input-stream" (type $input))
  (alias export $streams "output-stream" (type $output))
  (import "wasi:sockets/network@0.2.0" (instance $net
    (export "network" (type (sub resource)))
    (type $codes (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
      "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit"
      "address-not-bindable" "address-in-use" "remote-unreachable" "connection-refused" "connection-reset"
      "connection-aborted" "datagram-too-large" "name-unresolvable" "temporary-resolver-failure"
      "permanent-resolver-failure"))
    (export "error-code" (type (eq $codes)))
    (type $families (enum "ipv4" "ipv6")) (export "ip-address-family" (type (eq $families)))
    (type $four' (tuple u8 u8 u8 u8)) (export "ipv4-address" (type $four (eq $four')))
    (type $eight' (tuple u16 u16 u16 u16 u16 u16 u16 u16)) (export "ipv6-address" (type $eight (eq $eight')))
    (type $at4' (record (field "port" u16) (field "address" $four)))
    (export "ipv4-socket-address" (type $at4 (eq $at4')))
    (type $at6' (record (field "port" u16) (field "flow-info" u32) (field "address" $eight) (field "scope-id" u32)))
    (export "ipv6-socket-address" (type $at6 (eq $at6')))
    (type $at' (variant (case "ipv4" $at4) (case "ipv6" $at6))) (export "ip-socket-address" (type (eq $at')))))
  (alias export $net "network" (type $network))
  (alias export $net "error-code" (type $code))
  (alias export $net "ip-address-family" (type $family))
  (alias export $net "ip-socket-address" (type $address))
  (import "wasi:sockets/instance-network@0.2.0" (instance $own
    (alias outer 1 $network (type $n)) (export "network" (type $net (eq $n)))
    (export "instance-network" (func (result (own $net))))))
  (import "wasi:sockets/tcp@0.2.0" (instance $tcp
    (export "tcp-socket" (type $socket (sub resource)))
    (alias outer 1 $network (type $n')) (export "network" (type $n (eq $n')))
    (alias outer 1 $code (type $c')) (export "error-code" (type $c (eq $c')))
    (alias outer 1 $address (type $a')) (export "ip-socket-address" (type $a (eq $a')))
    (alias outer 1 $pollable (type $p')) (export "pollable" (type $p (eq $p')))
    (alias outer 1 $input (type $i')) (export "input-stream" (type $i (eq $i')))
    (alias outer 1 $output (type $o')) (export "output-stream" (type $o (eq $o')))
    (export "[method]tcp-socket.start-connect" (func (param "self" (borrow $socket)) (param "network" (borrow $n))
      (param "remote-address" $a) (result (result (error $c)))))
    (export "[method]tcp-socket.finish-connect" (func (param "self" (borrow $socket))
      (result (result (tuple (own $i) (own $o)) (error $c)))))
    (export "[method]tcp-socket.subscribe" (func (param "self" (borrow $socket)) (result (own $p))))))
  (alias export $tcp "tcp-socket" (type $socket))
  (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $create
    (alias outer 1 $socket (type $s')) (export "tcp-socket" (type $s (eq $s')))
    (alias outer 1 $code (type $c')) (export "error-code" (type $c (eq $c')))
    (alias outer 1 $family (type $f')) (export "ip-address-family" (type $f (eq $f')))
    (export "create-tcp-socket" (func (param "address-family" $f) (result (result (own $s) (error $c)))))))
  (core module $memory (memory (export "memory") 1))
  (core instance $memory (instantiate $memory))
  (alias core export $memory "memory" (core memory $at))
  (core func $instance (canon lower (func $own "instance-network")))
  (core func $create (canon lower (func $create "create-tcp-socket") (memory $at)))
  (core func $start (canon lower (func $tcp "[method]tcp-socket.start-connect") (memory $at)))
  (core func $finish (canon lower (func $tcp "[method]tcp-socket.finish-connect") (memory $at)))
  (core func $subscribe (canon lower (func $tcp "[method]tcp-socket.subscribe")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core module $m
    (import "h" "instance" (func $instance (result i32)))
    (import "h" "create" (func $create (param i32 i32)))
    (import "h" "start"
      (func $start (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "h" "finish" (func $finish (param i32 i32)))
    (import "h" "subscribe" (func $subscribe (param i32) (result i32)))
    (import "h" "block" (func $block (param i32)))
    (import "h" "memory" (memory 1))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
    (func $answer (param $error i32) (param $code i32) (result i32)
      (i32.store8 (i32.const 100) (i32.add (i32.const 49) (local.get $error)))
      (i32.store8 (i32.const 101) (i32.add (i32.const 48) (i32.div_u (local.get $code) (i32.const 10))))
      (i32.store8 (i32.const 102) (i32.add (i32.const 48) (i32.rem_u (local.get $code) (i32.const 10))))
      (i32.store8 (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 100))
      (i32.store (i32.const 8) (i32.const 3)) (i32.const 0))
    (func (export "run") (param i32 i32) (result i32) (local $socket i32)
      (call $create (i32.const 0) (i32.const 64))
      (if (i32.load8_u (i32.const 64))
        (then (return (call $answer (i32.const 1) (i32.load8_u (i32.const 68))))))
      (local.set $socket (i32.load (i32.const 68)))
      (call $start (local.get $socket) (call $instance) (i32.const 0) (i32.const PORT) (i32.const A) (i32.const B)
        (i32.const C) (i32.const D) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 80))
      (if (i32.load8_u (i32.const 80))
        (then (return (call $answer (i32.const 1) (i32.load8_u (i32.const 81))))))
      (call $block (call $subscribe (local.get $socket)))
      (call $finish (local.get $socket) (i32.const 112))
      (if (i32.load8_u (i32.const 112))
        (then (return (call $answer (i32.const 1) (i32.load8_u (i32.const 116))))))
      (call $answer (i32.const 0) (i32.const 0))))
  (core instance $h (export "instance" (func $instance)) (export "create" (func $create)) (export "start" (func $start))
    (export "finish" (func $finish)) (export "subscribe" (func $subscribe)) (export "block" (func $block))
    (export "memory" (memory $at)))
  (core instance $i (instantiate $m (with "h" (instance $h))))
  (func (export "run") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory $at) (realloc (core func $i "realloc")))))"#;

fn request(authority: &str) -> String {
    REQUEST.replace("127.0.0.1:PORT", authority).replace("LENGTH", &authority.len().to_string())
}

fn answered(world: &World, script: &str, asked: &[&str], allowed: &str) -> (String, Vec<String>) {
    world.tool("guest", "wasm", script, asked, allowed);
    let mut ended = None;
    let heard = world.heard(|| ended = Some(world.call("esc:guest", &json!({}))));
    let ended = ended.unwrap();
    fits("ok", &ended).unwrap();
    (ended.out["outputData"].to_string(), heard)
}

#[test]
fn wasi_http_reaches_the_granted_host_and_no_other() {
    in_both_worlds("wasi:http", |world| {
        let api = allow("api.example.com");
        let (out, heard) = answered(world, &request("api.example.com"), &["api.example.com"], &api);
        assert!(out.starts_with("100"), "a response: {out}, {heard:?}");
        assert!(heard.iter().any(|line| line.starts_with("https 45.20.0.1")), "{heard:?}");
        for refused in ["other.example.com", "45.20.0.2", "127.0.0.1:22"] {
            let (out, heard) = answered(world, &request(refused), &["api.example.com"], &api);
            assert!(out.starts_with("101"), "{refused}: an error: {out}");
            assert_eq!(heard, Vec::<String>::new(), "{refused}");
        }
    });
}

#[test]
fn wasi_sockets_reach_the_granted_host_and_no_other() {
    in_both_worlds("wasi:sockets", |world| {
        let to = |[a, b, c, d]: [u8; 4], port: u16| {
            let texts = [("PORT", port.to_string()), (" A)", format!(" {a})")), (" B)", format!(" {b})"))];
            let more = [(" C)", format!(" {c})")), (" D)", format!(" {d})"))];
            texts.iter().chain(&more).fold(CONNECT.to_owned(), |text, (from, to)| text.replace(from, to))
        };
        let api = allow("45.20.0.1:7000");
        let (out, heard) = answered(world, &to([45, 20, 0, 1], 7000), &["45.20.0.1:7000"], &api);
        assert_eq!(out, "100", "{heard:?}");
        for (address, port) in [([45, 20, 0, 1], 5432), ([127, 0, 0, 1], 22), ([10, 1, 0, 5], 22)] {
            let (out, heard) = answered(world, &to(address, port), &["45.20.0.1:7000"], &api);
            assert!(out.starts_with('2'), "{address:?}:{port}: an error: {out}");
            assert_eq!(heard, Vec::<String>::new(), "{address:?}:{port}");
        }
    });
}

#[test]
fn a_preview_1_module_that_asks_for_hosts_is_told_that_it_cannot_connect() {
    let world = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    let module = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    world.tool("old", "wasm", module, asks.clone());
    world.tool("new", "wasm", &request("api.example.com"), asks);
    world.settle();
    let said = world.cli(&["check"]);
    let lines: Vec<&str> = said.stderr.lines().chain(std::str::from_utf8(&said.stdout).unwrap().lines()).collect();
    let told: Vec<&&str> = lines.iter().filter(|line| line.contains("preview 1 module cannot connect")).collect();
    assert!(told.len() == 1 && told[0].contains("old.tool.json:"), "{lines:?}");
}
