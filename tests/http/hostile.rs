//! Hostile requests, as data: what is sent, and the status that must come back, or none.

use super::{
    Reply, Web, adder, caller, heard, request, served, served_to, token_of, write_callers,
};
use crate::prelude::*;
use std::io::ErrorKind;

/// A status; or 0: the connection is closed without an answer.
pub fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ')
        .nth(1)
        .filter(|_| text.starts_with("HTTP/1."))
        .map_or(0, |status| status.parse().unwrap())
}

/// How many answers came.
pub fn answers(answer: &[u8]) -> usize {
    String::from_utf8_lossy(answer).matches("HTTP/1.").count()
}

/// (what, the first line, the other lines of the head, what follows, the statuses of all answers).
/// `|` ends a line; a word with `$` stands for what `written` says; `%` for each of what stands
/// between `;` in the first place.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [u16],
);

const READ: &str = "GET /v1/tools/esc:add HTTP/1.1";
const CALL: &str = "POST /v1/tools/esc:add/calls HTTP/1.1";
/// How long the head of a request may take (`transport/http/connection.rs`).
const HEAD_TIME: Duration = Duration::from_secs(15);
const BODY: &str = "{\"a\":1,\"b\":2}";
const FOR_BOB: &str = "{\"user\":\"bob\",\"arguments\":{\"a\":1,\"b\":2}}";

const LENGTHS: &str = "13, 13;+13;-1;0xd;1 3;;99999999999999999999999";
const LINES: &str =
    "X-A: b| c;X-A: b\nX-C: d\r\rX;X-A: b\rHost: evil.example;X-A: b\0c;X A: b;: b;chunked";
const HOSTS: &str = "evil.example;evil.example:80;localhost.evil.example;127.0.0.1.evil.example;evil.example.;\
                     169.254.169.254;127.1;2130706433;0x7f000001;0.0.0.0";
const ORIGINS: &str = "http://evil.example;null;;file://;http://localhost:1;http://$host.evil.example;\
                       http://$host@evil.example;https://$host";

const ROWS: &[Row] = &[
    ("a good reading", READ, "$own|$close", "", &[200]),
    (
        "a good call",
        CALL,
        "$own|$json|$length|$close",
        BODY,
        &[200],
    ),
    (
        "two good calls",
        CALL,
        "$own|$json|$length",
        "{\"a\":1,\"b\":2}$again",
        &[200, 200],
    ),
    (
        "another user, said by a proxy",
        CALL,
        "$own|$json|$length|X-Remote-User: bob|From: bob|$close",
        BODY,
        &[200],
    ),
    (
        "another user, in the body",
        CALL,
        "$own|$json|Content-Length: 40|$close",
        FOR_BOB,
        &[200],
    ),
    (
        "another method, said by a header",
        READ,
        "$own|X-HTTP-Method-Override: DELETE|$close",
        "",
        &[200],
    ),
    (
        "another host, said by a proxy",
        READ,
        "$own|X-Forwarded-Host: evil|Forwarded: host=evil|$close",
        "",
        &[200],
    ),
    (
        "an upgrade",
        READ,
        "$own|Connection: upgrade, close|Upgrade: h2c",
        "",
        &[200],
    ),
    (
        "no token",
        CALL,
        "Host: $host|$json|$length|$close",
        BODY,
        &[401],
    ),
    // Where a body ends.
    (
        "length and chunks",
        CALL,
        "$own|$json|$length|$chunked",
        "0||$again",
        &[411],
    ),
    (
        "chunks and length",
        CALL,
        "$own|$json|$chunked|$length",
        "0||$again",
        &[411],
    ),
    (
        "chunks",
        CALL,
        "$own|$json|$chunked|$close",
        "d|{\"a\":1,\"b\":2}|0||",
        &[411],
    ),
    (
        "a huge chunk extension",
        CALL,
        "$own|$json|$chunked",
        "d;$big|{\"a\":1,\"b\":2}|0||",
        &[411],
    ),
    (
        "chunks twice",
        CALL,
        "$own|$json|$chunked|$chunked",
        "0||$again",
        &[411],
    ),
    (
        "chunks of HTTP/1.0",
        "POST /v1/tools/esc:add/calls HTTP/1.0",
        "$own|$json|$chunked",
        "0||$again",
        &[400],
    ),
    (
        "chunks and another coding",
        CALL,
        "$own|$json|$length|Transfer-Encoding: chunked, identity",
        BODY,
        &[400],
    ),
    (
        "an unknown coding",
        CALL,
        "$own|$json|Transfer-Encoding: gzip",
        BODY,
        &[400],
    ),
    (
        "a hidden coding",
        CALL,
        "$own|$json|Transfer-Encoding: xchunked|$length",
        BODY,
        &[400],
    ),
    (
        "a space before the colon",
        CALL,
        "$own|$json|Transfer-Encoding : chunked|$length",
        BODY,
        &[400],
    ),
    (
        "a coding behind a bare line feed",
        CALL,
        "$own|$json|$length|X-A: b\nTransfer-Encoding: chunked",
        BODY,
        &[400],
    ),
    (
        "a harmless line behind a bare line feed",
        READ,
        "$own|X-A: b\nX-C: d|$close",
        "",
        &[400],
    ),
    (
        "a first line that ends with a bare line feed",
        "GET /v1/tools HTTP/1.1\nX-A: b",
        "$own|$close",
        "",
        &[400],
    ),
    (
        "a head that ends with a bare line feed",
        READ,
        "$own|$close|\n",
        "",
        &[400],
    ),
    (
        "an empty line before a request",
        "|GET /v1/tools/esc:add HTTP/1.1",
        "$own|$close",
        "",
        &[200],
    ),
    (
        "line feeds in a body",
        CALL,
        "$own|$json|Content-Length: 15",
        "{\"a\":1,\n\"b\":2\n}$again",
        &[200, 200],
    ),
    (
        "a length behind a bare line feed",
        CALL,
        "$own|$json|$length|X-A: b\nContent-Length: 1",
        BODY,
        &[400],
    ),
    (
        "the same length twice",
        CALL,
        "$own|$json|$length|$length|$close",
        BODY,
        &[200],
    ),
    (
        "two lengths",
        CALL,
        "$own|$json|$length|Content-Length: 1",
        BODY,
        &[400],
    ),
    (LENGTHS, CALL, "$own|$json|Content-Length: %", BODY, &[400]),
    (
        "a call behind a large one",
        CALL,
        "$own|$json|Content-Length: 900000000",
        "$again",
        &[413],
    ),
    (
        "a large one, asked first",
        CALL,
        "$own|$json|Expect: 100-continue|Content-Length: 900000000",
        "",
        &[413],
    ),
    (
        "a reading with a call for its body",
        READ,
        "$own|Content-Length: $size",
        "$again$last",
        &[200, 200],
    ),
    (
        "a body longer than it says",
        CALL,
        "$own|$json|$length",
        "{\"a\":1,\"b\":2}garbage||||",
        &[200, 400],
    ),
    // Where a line ends, and what a request is.
    (LINES, READ, "$own|%", "", &[400]),
    ("HTTP/0.9", "GET /v1/tools", "", "", &[400]),
    ("HTTP/2 in the clear", "PRI * HTTP/2.0", "", "SM||", &[400]),
    (
        "HTTP/3",
        "GET /v1/tools/esc:add HTTP/3.0",
        "$own",
        "",
        &[400],
    ),
    (
        "HTTP/1.0 without a host",
        "GET /v1/tools HTTP/1.0",
        "",
        "",
        &[400],
    ),
    ("many headers", READ, "$own|$many", "", &[431]),
    ("a long header", READ, "$own|X-A: $big", "", &[431]),
    ("a long path", "GET /$big HTTP/1.1", "$own", "", &[431]),
    // Whose host and origin it is.
    ("no host", READ, "", "", &[400]),
    ("two hosts", READ, "$own|Host: evil.example", "", &[400]),
    (
        "a host with a user",
        READ,
        "Host: localhost@evil.example|$alice",
        "",
        &[400],
    ),
    (
        "half an address",
        READ,
        "Host: [::1|$alice|$close",
        "",
        &[400],
    ),
    (HOSTS, READ, "Host: %|$alice|$close", "", &[403]),
    (
        "localhost, from a page",
        READ,
        "Host: localhost|$alice|Sec-Fetch-Site: same-origin|$close",
        "",
        &[403],
    ),
    (
        "localhost, from a page with an origin",
        READ,
        "Host: localhost|$alice|Origin: http://localhost|$close",
        "",
        &[403],
    ),
    (
        "localhost, from a program",
        READ,
        "Host: localhost|$alice|$close",
        "",
        &[200],
    ),
    (
        "our address in another family",
        READ,
        "Host: [::ffff:127.0.0.1]|$alice|$close",
        "",
        &[200],
    ),
    (
        "a whole URL",
        "GET http://$host/v1/tools/esc:add HTTP/1.1",
        "$own|$close",
        "",
        &[200],
    ),
    (
        "a whole URL of another host",
        "GET http://evil.example/v1/tools HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a tunnel",
        "CONNECT evil.example:443 HTTP/1.1",
        "Host: evil.example:443|$alice",
        "",
        &[403],
    ),
    (
        "a tunnel to ourselves",
        "CONNECT $host HTTP/1.1",
        "$own|$close",
        "",
        &[405],
    ),
    (ORIGINS, READ, "$own|Origin: %|$close", "", &[403]),
    (
        "a page of another site",
        READ,
        "Host: $host|Sec-Fetch-Site: cross-site|$close",
        "",
        &[403],
    ),
    (
        "a page at another port",
        READ,
        "Host: $host|Sec-Fetch-Site: same-site|$close",
        "",
        &[403],
    ),
    (
        "a page at another port with a token",
        READ,
        "$own|Sec-Fetch-Site: same-site|$close",
        "",
        &[200],
    ),
    (
        "the health, for a page of another site",
        "GET /healthz HTTP/1.1",
        "Host: $host|Sec-Fetch-Site: cross-site",
        "",
        &[403],
    ),
    (
        "a page of another site with a token",
        READ,
        "$own|Sec-Fetch-Site: cross-site|$close",
        "",
        &[200],
    ),
    (
        "a page of this site",
        READ,
        "$own|Sec-Fetch-Site: same-origin|$close",
        "",
        &[200],
    ),
    (
        "a preflight",
        "OPTIONS /v1/tools HTTP/1.1",
        "$own|Origin: http://evil.example",
        "",
        &[403],
    ),
    (
        "two origins",
        READ,
        "$own|Origin: http://$host|Origin: http://evil.example",
        "",
        &[403],
    ),
    (
        "our own origin",
        READ,
        "$own|Origin: HTTP://$host|$close",
        "",
        &[200],
    ),
    // Paths, methods and types.
    (
        "a path that is not text",
        "GET /v1/tools/esc:%ff HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a NUL in the path",
        "GET /v1/tools/esc:add\0 HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a written NUL in the path",
        "GET /v1/tools/esc:add%00 HTTP/1.1",
        "$own|$close",
        "",
        &[404],
    ),
    (
        "a path upwards",
        "GET /v1/../../etc/passwd HTTP/1.1",
        "$own|$close",
        "",
        &[404],
    ),
    (
        "a written path upwards",
        "GET /v1/tools/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1",
        "$own|$close",
        "",
        &[404],
    ),
    (
        "a parameter twice",
        "GET /v1/tools?namespace=a&namespace=b HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a parameter without a value",
        "GET /v1/tools?namespace HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a parameter that is not text",
        "GET /v1/tools?namespace=%ff HTTP/1.1",
        "$own",
        "",
        &[400],
    ),
    (
        "a wrong method",
        "PATCH /v1/tools/esc:add HTTP/1.1",
        "$own|$close",
        "",
        &[405],
    ),
    (
        "a lower method",
        "get /v1/tools/esc:add HTTP/1.1",
        "$own|$close",
        "",
        &[405],
    ),
    (
        "a form of a web page",
        CALL,
        "$own|Content-Type: text/plain|$length|$close",
        BODY,
        &[415],
    ),
    ("no type", CALL, "$own|$length|$close", BODY, &[415]),
    (
        "a packed body",
        CALL,
        "$own|$json|Content-Encoding: gzip|$length|$close",
        BODY,
        &[415],
    ),
];

#[test]
fn a_request_is_read_in_one_way_and_as_its_callers() {
    let (playground, web, [alice, bob]) = served_to(["alice", "bob"], adder);
    let plain = |text: &str| {
        let text = text
            .replace('|', "\r\n")
            .replace("$own", "Host: $host\r\n$alice")
            .replace("$host", &web.address);
        let text = text
            .replace("$alice", &alice)
            .replace("$json", "Content-Type: application/json");
        let text = text
            .replace("$length", "Content-Length: 13")
            .replace("$close", "Connection: close");
        let text = text
            .replace("$chunked", "Transfer-Encoding: chunked")
            .replace("$big", &"x".repeat(20_000));
        text.replace("$many", "X-A: b\r\n".repeat(100).trim_end())
    };
    let again = plain(&format!(
        "{CALL}|Host: $host|{bob}|$json|$length|$close||{BODY}"
    ));
    let last = plain(&format!("{READ}|$own|$close||"));
    let size = again.len().to_string();
    let written = |text: &str| {
        plain(text)
            .replace("$again", &again)
            .replace("$last", &last)
            .replace("$size", &size)
    };
    let mut faults = Vec::new();
    for (what, first, lines, rest, wanted) in ROWS {
        let ways = if lines.contains('%') { what } else { "" };
        for way in ways.split(';') {
            let end = if lines.is_empty() { "" } else { "|" };
            let answer = web.raw(
                written(&format!("{first}|{}{end}|{rest}", lines.replace('%', way))).as_bytes(),
            );
            let text = String::from_utf8_lossy(&answer).into_owned();
            let statuses = text
                .split("HTTP/1.")
                .skip(1)
                .map(|rest| rest.split(' ').nth(1).unwrap().parse().unwrap());
            // What could not be read as HTTP has no body; all else is JSON.
            let (head, body) = text.rsplit_once("\r\n\r\n").unwrap_or_default();
            let json =
                serde_json::from_str::<Value>(body).is_ok() && head.contains("application/json");
            let lower = text.to_ascii_lowercase();
            // What hyper answers by itself says nothing.
            let open = lower.contains("access-control")
                || !body.is_empty() && !lower.contains("cross-origin-resource-policy: same-origin");
            if statuses.collect::<Vec<u16>>() != *wanted || !json && !body.is_empty() || open {
                faults.push(format!("{what}: {way}: {wanted:?}: {text}"));
            }
        }
    }
    assert_eq!(faults, [""; 0]);
    // Requests that were refused have records, too. Bob's is the second of the two good ones.
    let mut records = playground.records();
    records.retain(|record| record["decision"] == "allowed");
    let users: Vec<_> = records
        .iter()
        .map(|record| record["user"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(
        users,
        [
            "alice", "alice", "bob", "alice", "alice", "alice", "bob", "alice", "alice"
        ]
    );
    assert_eq!(records[4]["label"], "bob");
    let told = [&alice, &bob]
        .iter()
        .any(|header| web.said().contains(token_of(header)));
    assert!(!told, "a token stands in the log: {}", web.said());
}

#[test]
fn bodies_are_strict_documents_read_apart_and_long_ones_hold_up_no_other() {
    let (playground, web) = served(adder);
    let read = |body: &[u8]| {
        let length = format!("Content-Length: {}", body.len());
        let head = request(
            "POST",
            "/v1/tools/core:nothing/calls",
            &web.address,
            &[&length],
            "",
        );
        Reply::of(&web.raw(&[head.as_bytes(), body].concat())).expect("an answer")
    };
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
        read(body.as_bytes()).is(400, "ParameterValidationError");
    }
    read(b"\xff\xfe{").is(400, "ParameterValidationError");
    // The control: the same path, and a document that can be read.
    assert_eq!(read(b"{\"a\":1}").status, 404);
    // Requests behind one another are answered in order and apart.
    let post = |more: &str, body: &str| {
        request(
            "POST",
            "/v1/tools/esc:add/calls",
            &web.address,
            &["Connection: keep-alive", more],
            body,
        )
    };
    let call = |a: u64| post("X-A: b", &json!({"a": a, "b": 0}).to_string());
    let last = request("GET", "/healthz", &web.address, &[], "");
    let text =
        String::from_utf8(web.raw((call(1) + &call(2) + &call(3) + &last).as_bytes())).unwrap();
    let places: Vec<_> = [1, 2, 3]
        .iter()
        .map(|n| text.find(&format!("{{\"sum\":{n}}}")).expect("a sum"))
        .collect();
    assert!(
        places.is_sorted() && text.matches("HTTP/1.1 200").count() == 4,
        "{text}"
    );
    // With `Expect` the body is asked for only where it is wanted.
    let whole = post("Expect: 100-continue", BODY);
    let mut stream = web.connect();
    for (sent, answer) in [
        (whole.strip_suffix(BODY).unwrap(), "HTTP/1.1 100 "),
        (BODY, "HTTP/1.1 200 "),
    ] {
        stream.write_all(sent.as_bytes()).unwrap();
        let told = heard(&mut stream, "\r\n\r\n");
        assert!(told.starts_with(answer), "{answer}: {told}");
    }
    // Long bodies hold up no other request.
    let long = format!("{{\"any\":[0{}]}}", ",0".repeat(4 * 1024 * 1024 - 8));
    let began = Stopwatch::start();
    let streams = [0; 3].map(|_| web.send("POST", "/v1/tools/esc:add/calls", &[], &long));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(web.get("/healthz", &[]).status, 200);
    assert_eq!(
        web.call("esc:add", &json!({"a": 1, "b": 2}), &[]).json()["outputData"]["sum"],
        3,
        "quick calls go on"
    );
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
    drop((streams, web));
    // To a tool that is not there for its caller nothing long is read: this one stands twice in it.
    write_callers(
        &playground,
        &caller("*", "").replace("[\"*\"]", "[\"esc:other\"]"),
    );
    let web = Web::start(&playground, &[]);
    let call = |filler: usize| {
        let body = format!("{{\"a\":1,\"a\":\"{}\"}}", "x".repeat(filler));
        web.ask("POST", "/v1/tools/esc:add/calls", &[], &body)
            .status
    };
    assert_eq!(
        [call(70_000), call(10)],
        [404, 400],
        "control: a short one is"
    );
    let rules: Vec<_> = playground
        .records()
        .iter()
        .map(|record| record["rule"].clone())
        .collect();
    assert!(
        rules.contains(&json!("callers.policy.toml: *")),
        "{rules:?}"
    );
}

#[test]
fn who_shows_no_token_or_one_token_keeps_no_other_out() {
    let (playground, mut web, [alice, bob]) = served_to(["alice", "bob"], |_| ());
    let mut silent: Vec<_> = (0..512).map(|_| web.connect()).collect();
    assert_eq!(web.get("/v1/tools", &[&bob]).status, 200, "others come in");
    within(
        Duration::from_secs(5),
        "the oldest without a whole request is closed",
        || {
            silent[0].set_nonblocking(true).unwrap();
            matches!(silent[0].read(&mut [0]), Ok(0))
        },
    );
    drop(silent);
    // One token may have as many known connections as it leaves free. The first of them are closed
    // once their next heads take too long.
    let opened = |web: &Web| {
        let asked = request(
            "GET",
            "/v1/tools",
            &web.address,
            &["Connection: keep-alive", &alice],
            "",
        );
        let (mut known, mut told, began) = (Vec::new(), String::new(), Instant::now());
        while told.is_empty() && known.len() < 400 {
            let mut stream = web.connect();
            stream.write_all(asked.as_bytes()).unwrap();
            let answer = heard(&mut stream, "\r\n\r\n");
            if answer.starts_with("HTTP/1.1 200") {
                known.push(stream);
            } else {
                told = answer;
            }
        }
        (known, told, began.elapsed() < HEAD_TIME)
    };
    let tokens = playground.path("state/tokens").display().to_string();
    let (mut known, mut told, mut in_time) = opened(&web);
    for _ in 0..4 {
        if !in_time {
            web = Web::start(&playground, &["--token-file", &tokens]);
            (known, told, in_time) = opened(&web);
        }
    }
    assert!(
        told.starts_with("HTTP/1.1 503") && told.contains("retry-after: 1"),
        "{} open: {told}",
        known.len()
    );
    assert!((200..=256).contains(&known.len()), "{}", known.len());
    assert_eq!(
        (
            web.get("/v1/tools", &[&bob]).status,
            web.get("/readyz", &[]).status
        ),
        (200, 200),
        "others come in"
    );
    drop(known);
    // What is answered without a token keeps no connection open.
    let kept = request(
        "GET",
        "/healthz",
        &web.address,
        &["Connection: keep-alive"],
        "",
    );
    let answer = web.raw((kept.clone() + &kept).as_bytes());
    assert_eq!(answers(&answer), 1, "{}", String::from_utf8_lossy(&answer));
    let own = Web::start(&playground, &[]);
    let known = request(
        "GET",
        "/v1/tools",
        &own.address,
        &["Connection: keep-alive"],
        "",
    );
    let last = request("GET", "/v1/tools", &own.address, &[], "");
    assert_eq!(
        answers(&own.raw((known + &last).as_bytes())),
        2,
        "the control: one that is known"
    );
}

#[test]
fn who_is_slow_or_many_keeps_no_other_out() {
    // Later all are closed, whoever makes room.
    let in_time = (0..5).find_map(|_| slow_and_many());
    let made_room = in_time.expect("before their heads take too long");
    assert!(made_room <= 40, "{made_room} made room, and no more");
}

/// How many of them made room for others; `None`: that took longer than a head may.
fn slow_and_many() -> Option<usize> {
    let (_playground, web) = served(|_| ());
    let began = Instant::now();
    // Heads that never end.
    let mut slow: Vec<_> = (0..530).map(|_| web.connect()).collect();
    slow.iter_mut()
        .for_each(|stream| drop(stream.write_all(b"GET /healthz HTTP/1.1\r\nX-A:")));
    for path in ["/healthz", "/v1/tools"] {
        assert_eq!(
            web.get(path, &[]).status,
            200,
            "{path}: the oldest that sent nothing whole makes room"
        );
    }
    // Where the server had not read the bytes that were sent, its end arrives as a reset.
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    let mut closed = || {
        slow.iter_mut()
            .filter_map(|stream| is_closed(stream).then_some(()))
            .count()
    };
    within(Duration::from_secs(5), "the oldest make room", || {
        closed() >= 10
    });
    let made_room = closed();
    (began.elapsed() < HEAD_TIME).then_some(made_room)
}

#[test]
fn two_callers_without_rights_leave_room_for_the_bodies_of_others() {
    let (_playground, web, [alice, mallory, bob]) = served_to(["alice", "mallory", "bob"], |it| {
        write_callers(it, &caller("bob", ""));
    });
    let length = format!("Content-Length: {}", 8 << 20);
    let held = |header: &str, arrived: usize| {
        let head = request("POST", "/v1/actions", &web.address, &[&length, header], "");
        let mut stream = web.connect();
        // The server may refuse it meanwhile.
        let _ = stream.write_all(&[head.as_bytes(), &vec![b' '; arrived]].concat());
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let refused = |stream: &mut TcpStream| !matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
    let text = json!({"text": "x".repeat(4 << 20)}).to_string();
    let act = || web.ask("POST", "/v1/actions", &[&bob], &text).status;
    let mut said: Vec<_> = (0..16)
        .map(|n| held([&alice, &mallory][n % 2], 0))
        .collect();
    assert_eq!(
        (act(), said.iter_mut().any(refused)),
        (200, false),
        "what has not arrived is not charged"
    );
    drop(said);
    let mut full: Vec<_> = (0..16)
        .map(|n| held([&alice, &mallory][n / 8], (8 << 20) - 1))
        .collect();
    for (who, bodies) in full.chunks_mut(8).enumerate() {
        within(
            Duration::from_secs(20),
            "the control: each takes what it can",
            || {
                bodies
                    .iter_mut()
                    .filter_map(|body| refused(body).then_some(()))
                    .count()
                    >= 4
            },
        );
        assert!(!bodies.iter_mut().all(refused), "{who} takes a part");
    }
    assert_eq!(act(), 200, "and leaves room");
}
