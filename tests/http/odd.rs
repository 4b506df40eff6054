//! Odd requests, as data, of a caller that is known: what is sent, the statuses that come back, and whom the record
//! names.

use super::hostile::{answers, status};
use super::{Web, adder, bearer, private, request, token};
use crate::harness::{Playground, Who, within};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const BODY: &str = "{\"a\":1,\"b\":2}";
const NEW: &str = "2026-07-28";

/// A server for alice and bob, and their tokens.
fn scene() -> (Playground, Web, [String; 2]) {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let [(alice, one), (bob, other)] = ["alice", "bob"].map(|name| token(&playground, name, &[]));
    let file = private(&playground, "state/tokens", &format!("{one}\n{other}\n"));
    let web = Web::start(&playground, &["--token-file", &file]);
    (playground, web, [alice, bob])
}

/// (what, the lines of the head but the first and the last, what follows, the statuses of all answers).
type Row = (&'static str, &'static str, String, &'static str, &'static [u16]);

const READ: &str = "GET /v1/tools/esc:add HTTP/1.1";
const CALL: &str = "POST /v1/tools/esc:add/calls HTTP/1.1";
const TYPE: &str = "Content-Type: application/json\r\nContent-Length: 13\r\n";

/// HOST, ALICE and BOB stand for the server's own and for headers with tokens; each is sent on a connection of its own.
fn rows() -> Vec<Row> {
    let own = |rest: &str| format!("Host: HOST\r\nALICE\r\n{rest}");
    let posted = |rest: &str| own(&format!("{TYPE}{rest}"));
    let lengths = |lines: &str| own(&format!("Content-Type: application/json\r\n{lines}"));
    let host = |name: &str| format!("Host: {name}\r\nALICE\r\nConnection: close\r\n");
    let origin = |origin: &str| own(&format!("Origin: {origin}\r\nConnection: close\r\n"));
    let close = "Connection: close\r\n";
    vec![
        ("a good call", CALL, posted(close), BODY, &[200]),
        ("two good calls", CALL, posted(""), "{\"a\":1,\"b\":2}AGAIN", &[200, 200]),
        (
            "another user, said by a proxy",
            CALL,
            posted("X-Remote-User: bob\r\nX-Forwarded-User: bob\r\nFrom: bob\r\nConnection: close\r\n"),
            BODY,
            &[200],
        ),
        (
            "another user, in the body",
            CALL,
            own("Content-Type: application/json\r\nContent-Length: 40\r\nConnection: close\r\n"),
            "{\"user\":\"bob\",\"arguments\":{\"a\":1,\"b\":2}}",
            &[200],
        ),
        (
            "another method, said by a header",
            READ,
            own("X-HTTP-Method-Override: DELETE\r\nConnection: close\r\n"),
            "",
            &[200],
        ),
        (
            "another host, said by a proxy",
            READ,
            own("X-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\nConnection: close\r\n"),
            "",
            &[200],
        ),
        ("an upgrade", READ, own("Connection: upgrade, close\r\nUpgrade: h2c\r\n"), "", &[200]),
        ("no token", CALL, format!("Host: HOST\r\n{TYPE}{close}"), BODY, &[401]),
        (
            "a token in the query",
            "POST /v1/tools/esc:add/calls?access_token=SECRET HTTP/1.1",
            format!("Host: HOST\r\n{TYPE}{close}"),
            BODY,
            &[400],
        ),
        (
            "a token behind the path",
            "POST /v1/tools/esc:add/calls/SECRET HTTP/1.1",
            format!("Host: HOST\r\n{TYPE}{close}"),
            BODY,
            &[401],
        ),
        (
            "a token for a proxy",
            CALL,
            format!("Host: HOST\r\nProxy-Authorization: Bearer SECRET\r\n{TYPE}{close}"),
            BODY,
            &[401],
        ),
        ("two tokens", CALL, posted("BOB\r\nConnection: close\r\n"), BODY, &[401]),
        (
            "the same length twice",
            CALL,
            lengths("Content-Length: 13\r\nContent-Length: 13\r\nConnection: close\r\n"),
            BODY,
            &[200],
        ),
        ("an empty length", CALL, lengths("Content-Length: \r\n"), BODY, &[400]),
        ("a length of two words", CALL, lengths("Content-Length: 1 3\r\n"), BODY, &[400]),
        ("a negative length", CALL, lengths("Content-Length: -1\r\n"), BODY, &[400]),
        ("chunks that are no chunks", CALL, posted("Transfer-Encoding: chunked, identity\r\n"), BODY, &[400]),
        (
            "chunks twice",
            CALL,
            lengths("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            "0\r\n\r\nAGAIN",
            &[411],
        ),
        (
            "chunks of HTTP/1.0",
            "POST /v1/tools/esc:add/calls HTTP/1.0",
            lengths("Transfer-Encoding: chunked\r\n"),
            "0\r\n\r\nAGAIN",
            &[400],
        ),
        ("a length hidden behind a bare line feed", CALL, posted("X-A: b\nContent-Length: 1\r\n"), BODY, &[400]),
        (
            "a coding hidden behind a bare line feed",
            CALL,
            posted("X-A: b\nTransfer-Encoding: chunked\r\n"),
            BODY,
            &[411],
        ),
        ("a reading with a call for its body", READ, own("Content-Length: LENGTH\r\n"), "AGAINLAST", &[200, 200]),
        ("a call behind one that is refused", CALL, lengths("Content-Length: 900000000\r\n"), "AGAIN", &[413]),
        ("a body longer than it says", CALL, posted(""), "{\"a\":1,\"b\":2}garbage\r\n\r\n", &[200, 400]),
        ("a space in a name", READ, own("X A: b\r\n"), "", &[400]),
        ("a line without a name", READ, own(": b\r\n"), "", &[400]),
        ("a line without a colon", READ, own("chunked\r\n"), "", &[400]),
        ("a carriage return in a value", READ, own("X-A: b\rHost: evil.example\r\n"), "", &[400]),
        ("a NUL in the path", "GET /v1/tools/esc:add\0 HTTP/1.1", own(""), "", &[400]),
        ("a written NUL in the path", "GET /v1/tools/esc:add%00 HTTP/1.1", own(close), "", &[404]),
        ("a written way up", "GET /v1/tools/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1", own(close), "", &[404]),
        ("a lower method", "get /v1/tools/esc:add HTTP/1.1", own(close), "", &[405]),
        ("HTTP/3", "GET /v1/tools/esc:add HTTP/3.0", own(""), "", &[400]),
        ("the short form of our address", READ, host("127.1"), "", &[403]),
        ("our address as a number", READ, host("2130706433"), "", &[403]),
        ("our address in hexadecimal", READ, host("0x7f000001"), "", &[403]),
        ("every address", READ, host("0.0.0.0"), "", &[403]),
        ("a name that starts as ours", READ, host("127.0.0.1.evil.example"), "", &[403]),
        ("a name that ends with a dot", READ, host("evil.example."), "", &[403]),
        ("half an address", READ, host("[::1"), "", &[400]),
        ("our address in another family", READ, host("[::ffff:127.0.0.1]"), "", &[200]),
        ("an origin that starts as ours", READ, origin("http://HOST.evil.example"), "", &[403]),
        ("an origin with a user", READ, origin("http://HOST@evil.example"), "", &[403]),
        ("our origin of another scheme", READ, origin("https://HOST"), "", &[403]),
        ("an origin of a file", READ, origin("file://"), "", &[403]),
        ("an empty origin", READ, origin(""), "", &[403]),
        ("our own origin", READ, origin("HTTP://HOST"), "", &[200]),
    ]
}

fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split("HTTP/1.1 ").skip(1).map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn what_a_known_caller_sends_is_read_in_one_way_and_as_that_callers() {
    let (playground, web, [alice, bob]) = scene();
    let again = format!("{CALL}\r\nHost: HOST\r\nBOB\r\n{TYPE}Connection: close\r\n\r\n{BODY}");
    let last = format!("{READ}\r\nHost: HOST\r\nALICE\r\nConnection: close\r\n\r\n");
    let named = |text: &str| {
        let text = text.replace("HOST", &web.address).replace("SECRET", &alice);
        text.replace("ALICE", &bearer(&alice)).replace("BOB", &bearer(&bob))
    };
    let again = named(&again);
    let (mut calls, mut faults) = (Vec::new(), Vec::new());
    for (what, first, lines, rest, wanted) in rows() {
        let lines = lines.replace("LENGTH", &again.len().to_string());
        let text = named(&format!("{first}\r\n{lines}\r\n{}", rest.replace("LAST", &last).replace("AGAIN", &again)));
        let answer = web.raw(text.as_bytes());
        if statuses(&answer) != wanted {
            faults.push(format!("{what}: {wanted:?}: {}", String::from_utf8_lossy(&answer)));
        }
        if first == CALL {
            calls.extend(wanted.iter().filter(|status| **status == 200).map(|_| what));
        }
    }
    assert_eq!(faults, [""; 0]);
    // Those that were refused have records, too.
    let ran = |record: &Value| record["decision"] == "allowed";
    let records: Vec<Value> = playground.records().into_iter().filter(ran).collect();
    let users: Vec<_> = records.iter().map(|record| record["user"].as_str().unwrap_or_default()).collect();
    // Bob's is the second of the two good ones.
    assert_eq!(users, ["alice", "alice", "bob", "alice", "alice", "alice", "alice"], "{calls:?}: {users:?}");
    assert_eq!(records[4]["label"], "bob");
    for secret in [&alice, &bob] {
        assert!(!web.said().contains(secret.as_str()), "a token stands in the log: {}", web.said());
    }
}

/// (what, the `id` as it is written, the status, the code of the error).
const IDS: &[(&str, &str, u16, i64)] = &[
    ("a number", "7", 200, 0),
    ("a text", "\"seven\"", 200, 0),
    ("an empty text", "\"\"", 200, 0),
    ("a negative number", "-7", 200, 0),
    ("the number of before", "7", 200, 0),
    ("nothing", "null", 400, -32600),
    ("a truth", "true", 400, -32600),
    ("a part of a number", "7.5", 400, -32600),
    ("a list", "[7]", 400, -32600),
    ("an object", "{\"id\":7}", 400, -32600),
    ("a number beyond 64 bits", "99999999999999999999999", 400, -32700),
    ("two of them", "7,\"id\":8", 400, -32700),
    ("two spellings", "7,\"\\u0069d\":8", 400, -32700),
    ("half a character", "\"\\ud800\"", 400, -32700),
];

#[test]
fn an_odd_id_is_refused_or_comes_back_as_it_was() {
    let (_playground, web, [alice, bob]) = scene();
    let said = |who: Option<&str>, path: &str, body: &str| {
        let (token, era) = (who.map(bearer), format!("MCP-Protocol-Version: {NEW}"));
        let mut headers = vec!["Accept: application/json, text/event-stream", &era, "Mcp-Method: tools/list"];
        headers.extend(token.as_deref());
        web.ask("POST", path, &headers, body)
    };
    let message = |id: &str, more: &str| {
        let meta =
            json!({"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}});
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\",\"params\":{{\"_meta\":{meta}{more}}}}}")
    };
    let answer = |body: &str| -> Value {
        let data = body.lines().find_map(|line| line.strip_prefix("data: ").filter(|data| data.starts_with('{')));
        serde_json::from_str(data.unwrap_or(body)).unwrap_or_else(|e| panic!("{e}: {body}"))
    };
    for (what, id, status, code) in IDS {
        let reply = said(Some(&alice), "/mcp", &message(id, ""));
        assert_eq!(reply.status, *status, "{what}: {reply:?}");
        let told = answer(&reply.body);
        match code {
            0 => assert_eq!(told["id"], serde_json::from_str::<Value>(id).unwrap(), "{what}"),
            code => assert_eq!(told["error"]["code"], *code, "{what}: {told}"),
        }
    }
    // What a terminal would obey comes back written out.
    let reply = said(Some(&alice), "/mcp", &message("\"\\u202e\\u001b[31m\"", ""));
    assert_eq!(answer(&reply.body)["id"], "\u{202e}\u{1b}[31m");
    assert!(!reply.body.contains(['\u{202e}', '\u{1b}']), "{reply:?}");
    // A token is a header, and nothing else.
    let inside = format!(",\"authorization\":{},\"token\":{}", json!(bearer(&alice)), json!(alice));
    assert_eq!(said(None, "/mcp", &message("1", &inside)).status, 401, "in the body");
    assert_eq!(said(None, &format!("/mcp?token={alice}"), &message("1", "")).status, 400, "in the query");
    assert_eq!(said(Some(&bob), "/mcp", &message("1", "")).status, 200, "control");
}

/// A body that drips, and a reader that does not read: each loses its connection, and costs little until then.
#[test]
fn who_sends_or_reads_too_slowly_is_let_go() {
    let (_playground, web, [alice, _]) = scene();
    let lines = [&bearer(&alice), "Connection: keep-alive"];
    let asked = request("GET", "/v1/tools", &web.address, &lines, "");
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", web.child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
        kib.unwrap_or(0_u64)
    };
    let (before, began) = (resident(), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut drips = web.connect();
            let whole = request("POST", "/v1/tools/esc:add/calls", &web.address, &[&bearer(&alice)], &" ".repeat(1000));
            let (head, _) = whole.split_once("\r\n\r\n").unwrap();
            drips.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
            drips.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let mut answer = Vec::new();
            within(Duration::from_secs(90), "a body that drips is not waited for", || {
                let _ = drips.write_all(b" ");
                let mut piece = [0; 4096];
                let length = drips.read(&mut piece).unwrap_or_default();
                answer.extend(&piece[..length]);
                !answer.is_empty()
            });
            assert_eq!((status(&answer), answers(&answer)), (408, 1), "{}", String::from_utf8_lossy(&answer));
        });
        scope.spawn(|| {
            let mut deaf = web.connect();
            deaf.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let many = asked.repeat(100);
            within(Duration::from_secs(150), "who reads nothing is not written to", || {
                match deaf.write_all(many.as_bytes()) {
                    Err(why) => !matches!(why.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                    Ok(()) => false,
                }
            });
        });
    });
    assert!(began.elapsed() > Duration::from_secs(20), "control: they were waited for: {:?}", began.elapsed());
    let after = resident();
    assert!(after < before + 32 * 1024, "{before} KiB became {after} KiB");
    assert_eq!(web.get("/v1/tools", &[&bearer(&alice)]).status, 200);
}
