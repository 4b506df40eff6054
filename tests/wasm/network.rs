//! Network: a component may import sockets, and gets none.

use super::*;

/// Asks for a socket and answers with two digits: whether it is an error, and which.
const ASK: &str = r#"(component
  (import "wasi:sockets/network@0.2.0" (instance $net
    (export "network" (type (sub resource)))
    (type $codes (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
      "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit"
      "address-not-bindable" "address-in-use" "remote-unreachable" "connection-refused" "connection-reset"
      "connection-aborted" "datagram-too-large" "name-unresolvable" "temporary-resolver-failure"
      "permanent-resolver-failure"))
    (export "error-code" (type (eq $codes)))
    (type $families (enum "ipv4" "ipv6"))
    (export "ip-address-family" (type (eq $families)))))
  (alias export $net "error-code" (type $code))
  (alias export $net "ip-address-family" (type $family))
  (import "wasi:sockets/KIND@0.2.0" (instance $kind (export "KIND-socket" (type (sub resource)))))
  (alias export $kind "KIND-socket" (type $socket))
  (import "wasi:sockets/KIND-create-socket@0.2.0" (instance $create
    (alias outer 1 $socket (type $s)) (export "KIND-socket" (type $own (eq $s)))
    (alias outer 1 $code (type $c)) (export "error-code" (type $error (eq $c)))
    (alias outer 1 $family (type $f)) (export "ip-address-family" (type $which (eq $f)))
    (export "create-KIND-socket"
      (func (param "address-family" $which) (result (result (own $own) (error $error)))))))
  (core module $memory (memory (export "memory") 1))
  (core instance $memory (instantiate $memory))
  (core func $create
    (canon lower (func $create "create-KIND-socket") (memory (core memory $memory "memory"))))
  (core module $m
    (import "host" "create" (func $create (param i32 i32)))
    (import "host" "memory" (memory 1))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
    (func (export "run") (param i32 i32) (result i32)
      (call $create (i32.const 0) (i32.const 64))
      (i32.store8 (i32.const 100) (i32.add (i32.const 48) (i32.load8_u (i32.const 64))))
      (i32.store8 (i32.const 101) (i32.add (i32.const 48) (i32.load8_u (i32.const 68))))
      (i32.store8 (i32.const 0) (i32.const 0))
      (i32.store (i32.const 4) (i32.const 100))
      (i32.store (i32.const 8) (i32.const 2))
      (i32.const 0)))
  (core instance $host (export "create" (func $create)) (export "memory" (memory $memory "memory")))
  (core instance $i (instantiate $m (with "host" (instance $host))))
  (func (export "run") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run")
      (memory (core memory $memory "memory")) (realloc (core func $i "realloc")))))"#;

#[tokio::test]
async fn no_socket_is_ever_made() {
    for kind in ["tcp", "udp"] {
        // 1: an error; 1: access denied.
        let tool = Tool::new(ASK.replace("KIND", kind));
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(11)), "{kind}");
    }
}
