//! Network: a component may import sockets and `wasi:http`, and gets none of it.

use super::*;

/// Asks for a socket and answers with two digits: whether it is an error, and which.
pub const ASK: &str = r#"(component
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

/// Makes a request, sends it, waits for the response and says what came: some (1), in time (0), an error (1), which.
pub const REQUEST: &str = r#"(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:http/types@0.2.0" (instance $types
    (alias outer 1 $pollable (type $outer)) (export "pollable" (type $p (eq $outer)))
    (export "fields" (type $fields (sub resource)))
    (export "outgoing-request" (type $request (sub resource)))
    (export "request-options" (type (sub resource)))
    (export "incoming-response" (type $response (sub resource)))
    (export "future-incoming-response" (type $future (sub resource)))
    (type $dns' (record (field "rcode" (option string)) (field "info-code" (option u16))))
    (export "DNS-error-payload" (type $dns (eq $dns')))
    (type $tls' (record (field "alert-id" (option u8)) (field "alert-message" (option string))))
    (export "TLS-alert-received-payload" (type $tls (eq $tls')))
    (type $size' (record (field "field-name" (option string)) (field "field-size" (option u32))))
    (export "field-size-payload" (type $size (eq $size')))
    (type $codes (variant (case "DNS-timeout") (case "DNS-error" $dns) (case "destination-not-found")
      (case "destination-unavailable") (case "destination-IP-prohibited") (case "destination-IP-unroutable")
      (case "connection-refused") (case "connection-terminated") (case "connection-timeout")
      (case "connection-read-timeout") (case "connection-write-timeout") (case "connection-limit-reached")
      (case "TLS-protocol-error") (case "TLS-certificate-error") (case "TLS-alert-received" $tls)
      (case "HTTP-request-denied") (case "HTTP-request-length-required") (case "HTTP-request-body-size" (option u64))
      (case "HTTP-request-method-invalid") (case "HTTP-request-URI-invalid") (case "HTTP-request-URI-too-long")
      (case "HTTP-request-header-section-size" (option u32)) (case "HTTP-request-header-size" (option $size))
      (case "HTTP-request-trailer-section-size" (option u32)) (case "HTTP-request-trailer-size" $size)
      (case "HTTP-response-incomplete") (case "HTTP-response-header-section-size" (option u32))
      (case "HTTP-response-header-size" $size) (case "HTTP-response-body-size" (option u64))
      (case "HTTP-response-trailer-section-size" (option u32)) (case "HTTP-response-trailer-size" $size)
      (case "HTTP-response-transfer-coding" (option string)) (case "HTTP-response-content-coding" (option string))
      (case "HTTP-response-timeout") (case "HTTP-upgrade-failed") (case "HTTP-protocol-error")
      (case "loop-detected") (case "configuration-error") (case "internal-error" (option string))))
    (export "error-code" (type $error (eq $codes)))
    (export "[constructor]fields" (func (result (own $fields))))
    (export "[constructor]outgoing-request" (func (param "headers" (own $fields)) (result (own $request))))
    (export "[method]outgoing-request.set-authority"
      (func (param "self" (borrow $request)) (param "authority" (option string)) (result (result))))
    (export "[method]outgoing-request.set-path-with-query"
      (func (param "self" (borrow $request)) (param "path-with-query" (option string)) (result (result))))
    (export "[method]future-incoming-response.subscribe" (func (param "self" (borrow $future)) (result (own $p))))
    (export "[method]future-incoming-response.get" (func (param "self" (borrow $future))
      (result (option (result (result (own $response) (error $error)))))))))
  (alias export $types "outgoing-request" (type $request))
  (alias export $types "request-options" (type $options))
  (alias export $types "future-incoming-response" (type $future))
  (alias export $types "error-code" (type $error))
  (import "wasi:http/outgoing-handler@0.2.0" (instance $handler
    (alias outer 1 $request (type $a)) (export "outgoing-request" (type $request (eq $a)))
    (alias outer 1 $options (type $b)) (export "request-options" (type $options (eq $b)))
    (alias outer 1 $future (type $c)) (export "future-incoming-response" (type $future (eq $c)))
    (alias outer 1 $error (type $d)) (export "error-code" (type $error (eq $d)))
    (export "handle" (func (param "request" (own $request)) (param "options" (option (own $options)))
      (result (result (own $future) (error $error)))))))
  (core module $memory (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))
  (core instance $memory (instantiate $memory))
  (alias core export $memory "memory" (core memory $at))
  (core func $fields (canon lower (func $types "[constructor]fields")))
  (core func $request (canon lower (func $types "[constructor]outgoing-request")))
  (core func $to (canon lower (func $types "[method]outgoing-request.set-authority") (memory $at)))
  (core func $path (canon lower (func $types "[method]outgoing-request.set-path-with-query") (memory $at)))
  (core func $send (canon lower (func $handler "handle") (memory $at) (realloc (core func $memory "realloc"))))
  (core func $wait (canon lower (func $types "[method]future-incoming-response.subscribe")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $get (canon lower (func $types "[method]future-incoming-response.get")
    (memory $at) (realloc (core func $memory "realloc"))))
  (core module $m
    (import "h" "fields" (func $fields (result i32)))
    (import "h" "request" (func $request (param i32) (result i32)))
    (import "h" "to" (func $to (param i32 i32 i32 i32) (result i32)))
    (import "h" "path" (func $path (param i32 i32 i32 i32) (result i32)))
    (import "h" "send" (func $send (param i32 i32 i32 i32)))
    (import "h" "wait" (func $wait (param i32) (result i32)))
    (import "h" "block" (func $block (param i32)))
    (import "h" "get" (func $get (param i32 i32)))
    (import "h" "memory" (memory 1))
    (data (i32.const 599) "/127.0.0.1:PORT")
    (func $digit (param $to i32) (param $n i32) (i32.store8 (local.get $to) (i32.add (i32.const 48) (local.get $n))))
    (func (export "run") (param i32 i32) (result i32) (local $request i32) (local $future i32) (local $code i32)
      (local.set $request (call $request (call $fields)))
      (if (call $to (local.get $request) (i32.const 1) (i32.const 600) (i32.const LENGTH)) (then unreachable))
      (if (call $path (local.get $request) (i32.const 1) (i32.const 599) (i32.const 1)) (then unreachable))
      (call $send (local.get $request) (i32.const 0) (i32.const 0) (i32.const 64))
      (if (i32.load8_u (i32.const 64)) (then unreachable))
      (local.set $future (i32.load (i32.const 72)))
      (call $block (call $wait (local.get $future)))
      (call $get (local.get $future) (i32.const 128))
      (call $digit (i32.const 100) (i32.load8_u (i32.const 128)))
      (call $digit (i32.const 101) (i32.load8_u (i32.const 136)))
      (call $digit (i32.const 102) (i32.load8_u (i32.const 144)))
      (local.set $code (i32.load8_u (i32.const 152)))
      (call $digit (i32.const 103) (i32.div_u (local.get $code) (i32.const 10)))
      (call $digit (i32.const 104) (i32.rem_u (local.get $code) (i32.const 10)))
      (i32.store8 (i32.const 0) (i32.const 0))
      (i32.store (i32.const 4) (i32.const 100))
      (i32.store (i32.const 8) (i32.const 5))
      (i32.const 0)))
  (core instance $h (export "fields" (func $fields)) (export "request" (func $request)) (export "to" (func $to))
    (export "path" (func $path)) (export "send" (func $send)) (export "wait" (func $wait)) (export "block" (func $block)) (export "get" (func $get))
    (export "memory" (memory $at)))
  (core instance $i (instantiate $m (with "h" (instance $h))))
  (func (export "run") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory $at) (realloc (core func $memory "realloc")))))"#;

#[tokio::test]
async fn a_request_is_refused_as_data_and_never_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("does not wait");
    let to = listener.local_addr().expect("bound").to_string();
    let module = REQUEST.replace("127.0.0.1:PORT", &to).replace("LENGTH", &to.len().to_string());
    // Some, in time, an error, and that is 15: HTTP-request-denied.
    assert_eq!(Tool::new(module).ending(json!({})).await, Ending::answer(&json!(10_115)));
    assert!(listener.accept().is_err(), "nobody connected");
    std::net::TcpStream::connect(to).expect("control: who connects");
    assert!(listener.accept().is_ok(), "control: is heard");
}
