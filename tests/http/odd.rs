//! A caller that is known: odd ids of its messages, and how slowly it may send and read.

use super::hostile::{answers, status};
use super::{Web, adder, request, token_of};
use crate::prelude::*;

const NEW: &str = "2026-07-28";

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
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (web, [alice, bob]) = Web::for_callers(&playground, ["alice", "bob"]);
    let era = format!("MCP-Protocol-Version: {NEW}");
    let said = |who: Option<&str>, path: &str, body: &str| {
        let mut headers = vec!["Accept: application/json, text/event-stream", &era, "Mcp-Method: tools/list"];
        headers.extend(who);
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
    let token = token_of(&alice);
    let inside = format!(",\"authorization\":{},\"token\":{}", json!(format!("Bearer {token}")), json!(token));
    assert_eq!(said(None, "/mcp", &message("1", &inside)).status, 401, "in the body");
    assert_eq!(said(None, &format!("/mcp?token={token}"), &message("1", "")).status, 400, "in the query");
    assert_eq!(said(Some(&bob), "/mcp", &message("1", "")).status, 200, "control");
}

/// A body that drips, and a reader that does not read: each loses its connection, and costs little until then.
#[test]
fn who_sends_or_reads_too_slowly_is_let_go() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let (web, [alice]) = Web::for_callers(&playground, ["alice"]);
    let lines = [alice.as_str(), "Connection: keep-alive"];
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
            let whole = request("POST", "/v1/tools/esc:add/calls", &web.address, &[&alice], &" ".repeat(1000));
            drips.write_all(whole.trim_end_matches(' ').as_bytes()).unwrap();
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
    assert_eq!(web.get("/v1/tools", &[&alice]).status, 200);
}
