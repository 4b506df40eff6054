//! A caller that is known: odd ids of its messages, and how slowly it may send and read.

use super::hostile::{answers, status};
use super::mcp::{Client, borrowed, messages};
use super::soak::resident_kib;
use super::{adder, request, served_to};
use crate::prelude::*;

#[test]
fn an_odd_id_is_refused_or_comes_back_as_it_was_and_who_is_too_slow_is_let_go() {
    let (_playground, web, [alice]) = served_to(["alice"], adder);
    let said = |id: &str| {
        let (headers, message) =
            Client::new(&web, true, &[&alice]).message("tools/list", json!({}));
        let text = message
            .to_string()
            .replacen("\"id\":1", &format!("\"id\":{id}"), 1);
        web.ask("POST", "/mcp", &borrowed(&headers), &text)
    };
    // The `id` as it is written, the status, the code of the error.
    for (what, id, status, code) in [
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
        (
            "a number beyond 64 bits",
            "99999999999999999999999",
            400,
            -32700,
        ),
        ("two of them", "7,\"id\":8", 400, -32700),
        ("two spellings", "7,\"\\u0069d\":8", 400, -32700),
        ("half a character", "\"\\ud800\"", 400, -32700),
    ] {
        let reply = said(id);
        assert_eq!(reply.status, status, "{what}: {reply:?}");
        let told = messages(&reply).pop().unwrap();
        match code {
            0 => assert_eq!(
                told["id"],
                serde_json::from_str::<Value>(id).unwrap(),
                "{what}"
            ),
            code => assert_eq!(told["error"]["code"], code, "{what}: {told}"),
        }
    }
    // What a terminal would obey comes back written out.
    let reply = said("\"\\u202e\\u001b[31m\"");
    assert_eq!(messages(&reply)[0]["id"], "\u{202e}\u{1b}[31m");
    assert!(!reply.body.contains(['\u{202e}', '\u{1b}']), "{reply:?}");
    // A body that drips, and a reader that does not read: each loses its connection, and costs
    // little until then.
    let asked = request(
        "GET",
        "/v1/tools",
        &web.address,
        &[&alice, "Connection: keep-alive"],
        "",
    );
    let resident = || resident_kib(web.child.id());
    let (before, began) = (resident(), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut drips = web.connect();
            let whole = request(
                "POST",
                "/v1/tools/esc:add/calls",
                &web.address,
                &[&alice],
                &" ".repeat(1000),
            );
            drips
                .write_all(whole.trim_end_matches(' ').as_bytes())
                .unwrap();
            drips
                .set_read_timeout(Some(Duration::from_secs(1)))
                .unwrap();
            let mut answer = Vec::new();
            within(
                Duration::from_secs(90),
                "a body that drips is not waited for",
                || {
                    let _ = drips.write_all(b" ");
                    let mut piece = [0; 4096];
                    let length = drips.read(&mut piece).unwrap_or_default();
                    answer.extend(&piece[..length]);
                    !answer.is_empty()
                },
            );
            assert_eq!(
                (status(&answer), answers(&answer)),
                (408, 1),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        });
        scope.spawn(|| {
            let mut deaf = web.connect();
            deaf.set_write_timeout(Some(Duration::from_secs(1)))
                .unwrap();
            let many = asked.repeat(100);
            within(
                Duration::from_secs(150),
                "who reads nothing is not written to",
                || match deaf.write_all(many.as_bytes()) {
                    Err(why) => !matches!(
                        why.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ),
                    Ok(()) => false,
                },
            );
        });
    });
    assert!(
        began.elapsed() > Duration::from_secs(20),
        "control: they were waited for: {:?}",
        began.elapsed()
    );
    let after = resident();
    assert!(
        after < before + 32 * 1024,
        "{before} KiB became {after} KiB"
    );
    assert_eq!(web.get("/v1/tools", &[&alice]).status, 200);
}
