//! Hostile requests, as data: what is sent, and the status that must come back, or none.

use super::{Web, adder, bearer, exchanged, private, request, token};
use crate::harness::{PATIENCE, Playground, Who, is_root, skipped, within};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use toolhost::base::files;

/// A status; or 0: the connection is closed without an answer.
pub fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).filter(|_| text.starts_with("HTTP/1.")).map_or(0, |status| status.parse().unwrap())
}

/// How many answers came.
pub fn answers(answer: &[u8]) -> usize {
    String::from_utf8_lossy(answer).matches("HTTP/1.").count()
}

const GET: &str = "GET /v1/tools/esc:add HTTP/1.1\r\n";
const POST: &str = "POST /v1/tools/esc:add/calls HTTP/1.1\r\nContent-Type: application/json\r\n";

#[test]
fn no_request_is_read_in_two_ways() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let web = Web::start(&playground, &[]);
    let host = format!("Host: {}\r\n", web.address);
    let body = "{\"a\":1,\"b\":2}";
    let length = format!("Content-Length: {}\r\n", body.len());
    let smuggled = format!("GET /healthz HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
    let many = |line: &str, count| line.repeat(count);
    let big = "x".repeat(20_000);
    let cases: Vec<(&str, String, u16)> = vec![
        ("a good one", format!("{GET}{host}Connection: close\r\n\r\n"), 200),
        ("a good call", format!("{POST}{host}{length}Connection: close\r\n\r\n{body}"), 200),
        (
            "length and chunks",
            format!("{POST}{host}{length}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"),
            411,
        ),
        (
            "chunks and length",
            format!("{POST}{host}Transfer-Encoding: chunked\r\n{length}\r\n0\r\n\r\n{smuggled}"),
            411,
        ),
        (
            "chunks",
            format!("{POST}{host}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nd\r\n{body}\r\n0\r\n\r\n"),
            411,
        ),
        (
            "a huge chunk extension",
            format!("{POST}{host}Transfer-Encoding: chunked\r\n\r\nd;{big}\r\n{body}\r\n0\r\n\r\n"),
            411,
        ),
        ("an unknown coding", format!("{POST}{host}Transfer-Encoding: gzip\r\n\r\n{body}"), 400),
        ("a hidden coding", format!("{POST}{host}Transfer-Encoding: xchunked\r\n{length}\r\n{body}"), 400),
        ("a space before the colon", format!("{POST}{host}Transfer-Encoding : chunked\r\n{length}\r\n{body}"), 400),
        ("two lengths", format!("{POST}{host}{length}Content-Length: 1\r\n\r\n{body}"), 400),
        ("a list of lengths", format!("{POST}{host}Content-Length: 13, 13\r\n\r\n{body}"), 400),
        ("a signed length", format!("{POST}{host}Content-Length: +13\r\n\r\n{body}"), 400),
        ("a hexadecimal length", format!("{POST}{host}Content-Length: 0xd\r\n\r\n{body}"), 400),
        ("an endless length", format!("{POST}{host}Content-Length: 99999999999999999999999\r\n\r\n{body}"), 400),
        ("a large length", format!("{POST}{host}Content-Length: 900000000\r\n\r\n"), 413),
        (
            "a large length, asked first",
            format!("{POST}{host}Expect: 100-continue\r\nContent-Length: 900000000\r\n\r\n"),
            413,
        ),
        ("a folded line", format!("{GET}{host}X-A: b\r\n c\r\n\r\n"), 400),
        ("a bare line feed in a value", format!("{GET}{host}X-A: b\nX-C: d\r\rX\r\n\r\n"), 400),
        ("a NUL", format!("{GET}{host}X-A: b\0c\r\n\r\n"), 400),
        ("HTTP/0.9", "GET /v1/tools\r\n\r\n".into(), 400),
        ("HTTP/2 in the clear", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 0),
        ("HTTP/1.0 without a host", "GET /v1/tools HTTP/1.0\r\n\r\n".into(), 400),
        ("no host", format!("{GET}\r\n"), 400),
        ("two hosts", format!("{GET}{host}Host: evil.example\r\n\r\n"), 400),
        ("a host with a user", format!("{GET}Host: localhost@evil.example\r\n\r\n"), 400),
        ("another host", format!("{GET}Host: evil.example\r\n\r\n"), 403),
        ("another host with our port", format!("{GET}Host: evil.example:80\r\n\r\n"), 403),
        ("a name that looks local", format!("{GET}Host: localhost.evil.example\r\n\r\n"), 403),
        ("an address that is not ours", format!("{GET}Host: 169.254.169.254\r\n\r\n"), 403),
        (
            "a whole URL",
            format!("GET http://{}/v1/tools/esc:add HTTP/1.1\r\n{host}Connection: close\r\n\r\n", web.address),
            200,
        ),
        ("a whole URL of another host", format!("GET http://evil.example/v1/tools HTTP/1.1\r\n{host}\r\n"), 400),
        ("a tunnel", "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n".to_owned(), 403),
        ("a tunnel to ourselves", format!("CONNECT {} HTTP/1.1\r\n{host}Connection: close\r\n\r\n", web.address), 405),
        ("half a path", format!("GET /v1/tools/esc:%ff HTTP/1.1\r\n{host}\r\n"), 400),
        ("a parameter twice", format!("GET /v1/tools?namespace=a&namespace=b HTTP/1.1\r\n{host}\r\n"), 400),
        ("a parameter of nothing", format!("GET /v1/tools?namespace HTTP/1.1\r\n{host}\r\n"), 400),
        ("a parameter that is no text", format!("GET /v1/tools?namespace=%ff HTTP/1.1\r\n{host}\r\n"), 400),
        ("a path upwards", format!("GET /v1/../../etc/passwd HTTP/1.1\r\n{host}Connection: close\r\n\r\n"), 404),
        ("another origin", format!("{GET}{host}Origin: http://evil.example\r\n\r\n"), 403),
        ("no origin at all", format!("{GET}{host}Origin: null\r\n\r\n"), 403),
        (
            "two origins",
            format!("{GET}{host}Origin: http://{0}\r\nOrigin: http://evil.example\r\n\r\n", web.address),
            403,
        ),
        ("another local origin", format!("{GET}{host}Origin: http://localhost:1\r\n\r\n"), 403),
        ("its own origin", format!("{GET}{host}Origin: http://{}\r\nConnection: close\r\n\r\n", web.address), 200),
        (
            "a form of a web page",
            format!(
                "POST /v1/tools/esc:add/calls HTTP/1.1\r\n{host}Content-Type: text/plain\r\n{length}Connection: close\r\n\r\n{body}"
            ),
            415,
        ),
        (
            "no type",
            format!("POST /v1/tools/esc:add/calls HTTP/1.1\r\n{host}{length}Connection: close\r\n\r\n{body}"),
            415,
        ),
        (
            "a packed body",
            format!("{POST}{host}Content-Encoding: gzip\r\n{length}Connection: close\r\n\r\n{body}"),
            415,
        ),
        ("a wrong method", format!("PATCH /v1/tools/esc:add HTTP/1.1\r\n{host}Connection: close\r\n\r\n"), 405),
        ("a made-up method", format!("JUMP /v1/tools HTTP/1.1\r\n{host}Connection: close\r\n\r\n"), 405),
        ("a preflight", format!("OPTIONS /v1/tools HTTP/1.1\r\n{host}Origin: http://evil.example\r\n\r\n"), 403),
        ("many headers", format!("{GET}{host}{}\r\n", many("X-A: b\r\n", 100)), 431),
        ("a long header", format!("{GET}{host}X-A: {}\r\n\r\n", big), 431),
        ("a long path", format!("GET /{} HTTP/1.1\r\n{host}\r\n", big), 431),
        ("a path that is no text", format!("GET /v1/tools/%ff%fe HTTP/1.1\r\n{host}Connection: close\r\n\r\n"), 400),
    ];
    for (what, bytes, wanted) in cases {
        let answer = web.raw(bytes.as_bytes());
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(status(&answer), wanted, "{what}: {text}");
        assert_eq!(answers(&answer), usize::from(wanted > 0), "{what}: {text}");
        assert!(!text.to_ascii_lowercase().contains("access-control"), "{what}: {text}");
        // What hyper could not read as HTTP has no body; all else is JSON.
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let json = serde_json::from_str::<serde_json::Value>(body).is_ok();
        assert!(json && head.contains("application/json") || body.is_empty(), "{what}: {text}");
    }
    // The one good call above ran; bodies that were refused left their records.
    let records = playground.records();
    let (ran, refused): (Vec<_>, Vec<_>) = records.iter().partition(|record| record["decision"] == "allowed");
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert!(refused.iter().all(|record| record["outcome"] == "ParameterValidationError"), "{refused:?}");
    assert!((1..=15).contains(&refused.len()), "{refused:?}");
}

#[test]
fn a_body_is_one_strict_document() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let web = Web::start(&playground, &[]);
    let call = |body: &str| web.ask("POST", "/v1/tools/core:nothing/calls", &[], body);
    for body in [
        "{\"a\":1,\"a\":2}",
        "{\"user\":\"a\",\"user\":\"b\",\"arguments\":{}}",
        "{\"arguments\":{\"a\":1,\"a\":2}}",
        "{\"a\":1} {\"b\":2}",
        "{\"a\":NaN}",
        "{\"a\":1e999}",
        "{\"a\":123456789012345678901234567890}",
        "{\"a\":\"\\ud800\"}",
        "{'a':1}",
        "\u{feff}\u{feff}{}",
        &format!("{}1{}", "[".repeat(30_000), "]".repeat(30_000)),
        &format!("{{\"a\":{}1{}}}", "[".repeat(5000), "]".repeat(5000)),
    ] {
        let reply = call(body);
        let head: String = body.chars().take(50).collect();
        assert_eq!(
            (reply.status, reply.json()["error"]["type"].as_str()),
            (400, Some("ParameterValidationError")),
            "{head}: {reply:?}"
        );
    }
    // The control: the same road, and a document that can be read.
    assert_eq!(call("{\"a\":1}").status, 404);
    let asked = request("POST", "/v1/tools/core:nothing/calls", &web.address, &["Content-Length: 3"], "");
    let mut cut = web.connect();
    cut.write_all(asked.replace("Content-Length: 0\r\n", "").as_bytes()).unwrap();
    cut.write_all(b"\xff\xfe{").unwrap();
    assert_eq!(status(&exchanged(cut, b"")), 400, "not UTF-8");
}

#[test]
fn long_bodies_hold_up_nobody_else() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let web = Web::start(&playground, &[]);
    let long = format!("{{\"any\":[0{}]}}", ",0".repeat(4 * 1024 * 1024 - 8));
    let began = Instant::now();
    let asked = request("POST", "/v1/tools/esc:add/calls", &web.address, &[], &long);
    let streams = [0; 3].map(|_| {
        let mut stream = web.connect();
        stream.write_all(asked.as_bytes()).unwrap();
        stream
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(web.get("/healthz", &[]).status, 200);
    assert_eq!(web.call("esc:add", &json!({"a": 1, "b": 2}), &[]).json()["outputData"]["sum"], 3, "quick calls go on");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    drop((streams, web));
    // To a tool that is not there for its caller nothing long is read: this one stands twice in it.
    let caller = "[[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"esc:other\"]\n";
    std::fs::write(playground.path("sandbox-policies/callers.policy.toml"), caller).unwrap();
    playground.settle();
    let web = Web::start(&playground, &[]);
    let call = |filler: usize| {
        let body = format!("{{\"a\":1,\"a\":\"{}\"}}", "x".repeat(filler));
        web.ask("POST", "/v1/tools/esc:add/calls", &[], &body).status
    };
    assert_eq!([call(70_000), call(10)], [404, 400], "control: a short one is");
    let rules: Vec<_> = playground.records().iter().map(|record| record["rule"].clone()).collect();
    assert!(rules.contains(&json!("callers.policy.toml: *")), "{rules:?}");
}

#[test]
fn requests_behind_one_another_are_answered_in_order_and_apart() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let web = Web::start(&playground, &[]);
    let path = "/v1/tools/esc:add/calls";
    let call =
        |a: u64| request("POST", path, &web.address, &["Connection: keep-alive"], &json!({"a": a, "b": 0}).to_string());
    let last = request("GET", "/healthz", &web.address, &[], "");
    let answer = web.raw((call(1) + &call(2) + &call(3) + &last).as_bytes());
    let text = String::from_utf8(answer).unwrap();
    let places: Vec<_> = [1, 2, 3].iter().map(|n| text.find(&format!("{{\"sum\":{n}}}")).expect("a sum")).collect();
    assert!(places.is_sorted() && text.matches("HTTP/1.1 200").count() == 4, "{text}");
    // With `Expect` the body is asked for only where it is wanted.
    let body = "{\"a\":1,\"b\":2}";
    let head = |length: usize| {
        let lines = ["Expect: 100-continue", "Connection: keep-alive"];
        request("POST", path, &web.address, &lines, &"x".repeat(length)).split("\r\n\r\n").next().unwrap().to_owned()
            + "\r\n\r\n"
    };
    let mut stream = web.connect();
    stream.write_all(head(body.len()).as_bytes()).unwrap();
    let mut piece = [0; 256];
    let length = stream.read(&mut piece).unwrap();
    assert!(piece[..length].starts_with(b"HTTP/1.1 100 "), "{:?}", String::from_utf8_lossy(&piece[..length]));
    stream.write_all(body.as_bytes()).unwrap();
    let length = stream.read(&mut piece).unwrap();
    assert!(piece[..length].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&piece[..length]));
}

/// A connection as another user of this machine, which has an address of its own for each.
fn from_elsewhere(web: &Web, n: u8) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    let made = || Ok(socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?);
    let fd = files::as_owner((12399, 12399), made).unwrap();
    bind(fd.as_raw_fd(), &SockaddrIn::new(127, 9, 0, n, 0)).unwrap();
    let port = web.address.rsplit(':').next().unwrap().parse().unwrap();
    connect(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Connections of one known caller that stay open, until one is refused; what it was told.
fn filled(web: &Web, most: usize, asked: &str) -> (Vec<TcpStream>, Option<String>) {
    let mut open = Vec::new();
    for _ in 0..most {
        let (mut stream, mut head) = (web.connect(), vec![0; 1024]);
        stream.write_all(asked.as_bytes()).unwrap();
        let length = stream.read(&mut head).unwrap();
        let told = String::from_utf8_lossy(&head[..length]).into_owned();
        if !told.starts_with("HTTP/1.1 200") {
            return (open, Some(told));
        }
        open.push(stream);
    }
    (open, None)
}

#[test]
fn who_shows_no_token_or_one_token_keeps_nobody_else_out() {
    if !is_root() {
        return skipped(1, "another user's connection needs root");
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let made = ["alice", "bob"].map(|name| token(&playground, name, &[]));
    let file = private(&playground, "state/tokens", &made.each_ref().map(|(_, line)| line.as_str()).join("\n"));
    let [alice, bob] = made.each_ref().map(|(token, _)| bearer(token));
    let web = Web::start(&playground, &["--token-file", &file]);
    // A user of this machine has one share, whatever its addresses: beyond it its own oldest connection is closed.
    let mut silent: Vec<_> = (1..=250).chain(1..=140).map(|n| from_elsewhere(&web, n)).collect();
    let healthy = request("GET", "/healthz", &web.address, &[], "");
    assert_eq!(status(&exchanged(from_elsewhere(&web, 251), healthy.as_bytes())), 200, "health answers always");
    within(Duration::from_secs(5), "its oldest connection is closed", || {
        silent[0].set_nonblocking(true).unwrap();
        matches!(silent[0].read(&mut [0]), Ok(0))
    });
    assert_eq!(web.get("/v1/tools", &[&bob]).status, 200, "others come in");
    drop(silent);
    // One token has its share of the connections that are known.
    let lines = ["Connection: keep-alive", &alice];
    let (known, told) = filled(&web, 400, &request("GET", "/v1/tools", &web.address, &lines, ""));
    let told = told.expect("a refusal");
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("retry-after: 1"), "{} open: {told}", known.len());
    assert!((300..=384).contains(&known.len()), "{}", known.len());
    assert_eq!((web.get("/v1/tools", &[&bob]).status, web.get("/readyz", &[]).status), (200, 200), "others come in");
    drop(known);
    // What is answered without a token keeps no connection open.
    let kept = request("GET", "/healthz", &web.address, &["Connection: keep-alive"], "");
    let answer = web.raw((kept.clone() + &kept).as_bytes());
    assert_eq!(answers(&answer), 1, "{}", String::from_utf8_lossy(&answer));
    let own = Web::start(&playground, &[]);
    let known = request("GET", "/v1/tools", &own.address, &["Connection: keep-alive"], "");
    let last = request("GET", "/v1/tools", &own.address, &[], "");
    assert_eq!(answers(&own.raw((known + &last).as_bytes())), 2, "the control: one that is known");
}

#[test]
fn who_is_slow_or_many_keeps_nobody_else_out() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let web = Web::start(&playground, &[]);
    // Heads that never end.
    let mut slow: Vec<_> = (0..400).map(|_| web.connect()).collect();
    slow.iter_mut().for_each(|stream| drop(stream.write_all(b"GET /healthz HTTP/1.1\r\nX-A:")));
    for path in ["/healthz", "/v1/tools"] {
        let answer = web.raw(request("GET", path, &web.address, &[], "").as_bytes());
        assert_eq!(status(&answer), 200, "{path}: the oldest that sent nothing whole makes room");
    }
    // Where the server had not read the bytes that were sent, its end arrives as a reset.
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    let mut closed = || slow.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count();
    within(Duration::from_secs(5), "the oldest make room", || closed() >= 10);
    assert!(closed() <= 40, "{} made room, and no more", closed());
}
