//! A secret that a tool cuts into several parts of its answer: it shows in none of them, nor in all
//! together.

use crate::dressed_secrets::keyed;
use crate::http::calls::events;
use crate::http::{Web, exchanged, request};
use crate::prelude::*;

const STREAM: &str = "Accept: text/event-stream";
const KEY: &str = "hunter2-äöü-swordfish";

/// Yields the parts that it is given; with `wait` it waits before the last one until a file is
/// there.
const SCRIPT: &str = "import os, time\nHERE = os.path.dirname(__file__)\ndef go(parts, key='', \
                      wait=False):\n  for n, part in enumerate(parts):\n    while wait and n == \
                      len(parts) - 1 and not os.path.exists(HERE + '/made'): time.sleep(0.01)\n    \
                      yield part\n";

fn put(playground: &Playground, name: &str, mut more: Value) {
    more["parameters"] = json!({"type": "object", "required": ["parts"], "properties": {
        "parts": {"type": "array", "items": {}, "description": "d"},
        "key": {"type": "string", "writeOnly": true, "description": "d"},
        "wait": {"type": "boolean", "description": "d"},
    }});
    more["handler"] = json!({"entryPoint": "go"});
    playground.tool(name, "python", SCRIPT, more);
}

/// The texts of the chunks, and the outcome.
fn told(web: &Web, tool: &str, arguments: &Value) -> (Vec<String>, Value) {
    let all = events(&web.call(tool, arguments, &[STREAM]).body);
    let chunks = all.iter().filter(|(name, _)| name == "chunk");
    let texts = chunks
        .map(|(_, data)| data["text"].as_str().unwrap().to_owned())
        .collect();
    (texts, all.last().unwrap().1.clone())
}

/// Pieces of `length` characters.
fn cut(text: &str, length: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(length)
        .map(|piece| piece.iter().collect())
        .collect()
}

#[test]
fn a_secret_that_is_cut_into_parts_is_in_none_of_them() {
    as_everyone("secrets cut into parts", |who| {
        let playground = Playground::new(who, "/var/tmp");
        put(&playground, "tells", json!({}));
        put(&playground, "text", json!({"output": {"type": "string"}}));
        playground.settle();
        let web = Web::start(&playground, &[]);
        let whole = format!("before {KEY} between hunter2 {KEY}{KEY} after hunter");
        let masked = "before *** between hunter2 ****** after hunter";
        for length in [1, 3, 7, 20, 1000] {
            let parts = cut(&whole, length);
            let (texts, end) = told(&web, "esc:tells", &json!({"parts": parts, "key": KEY}));
            assert_eq!(texts.concat(), masked, "{who:?} {length}");
            let list: Vec<String> = serde_json::from_value(end["outputData"].clone()).unwrap();
            assert_eq!(
                (list.concat().as_str(), list.len()),
                (masked, parts.len()),
                "{who:?} {length}: {end}"
            );
            assert!(
                end["notes"].to_string().contains("held a secret"),
                "{who:?}: {end}"
            );
            let (texts, end) = told(&web, "esc:text", &json!({"parts": parts, "key": KEY}));
            assert_eq!(
                (texts.concat().as_str(), &end["outputData"]),
                (masked, &json!(masked)),
                "{who:?} {length}"
            );
            // The control: in another call it is not a secret, and no part changes.
            let (texts, end) = told(&web, "esc:tells", &json!({"parts": parts, "key": "QQQQ"}));
            assert_eq!(
                (&texts, &end["outputData"]),
                (&parts, &json!(parts)),
                "{who:?} {length}"
            );
        }
        // What only looked like a secret is sent later, and no part is lost at the end or before an
        // object.
        for (parts, wanted) in [
            (json!(["hunter", "2-", "x"]), vec!["hunter2-x"]),
            (json!(["a hunter2"]), vec!["a hunter2"]),
            (
                json!(["hunt", {"n": 1}, "er"]),
                vec!["hunt", "{\"n\":1}", "er"],
            ),
            (json!(["", "a", ""]), vec!["", "", "a"]),
        ] {
            let (texts, end) = told(&web, "esc:tells", &json!({"parts": parts, "key": KEY}));
            assert!(
                texts == wanted && end["outputData"] == parts,
                "{who:?}: {texts:?} {end}"
            );
        }
    });
}

/// A caller can guess a secret of the host. That a part is held back must not show whether it
/// begins as the secret does.
#[test]
fn what_stays_back_tells_nothing_of_a_secret_of_the_host() {
    as_everyone("secrets of the host cut into parts", |who| {
        let (playground, secret) = (Playground::new(who, "/var/tmp"), "Zq7-swordfish-4711");
        put(
            &playground,
            "keyed",
            json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}}),
        );
        keyed(&playground, secret);
        let web = Web::start(&playground, &[]);
        let (texts, end) = told(
            &web,
            "esc:keyed",
            &json!({"parts": cut(&format!("a{secret}b"), 4)}),
        );
        assert_eq!(texts.concat(), "a***b", "{who:?}: {end}");
        let made = playground.path("user_scripts/keyed/made");
        // How much is shown of a guess before the next part comes: until nothing came for a while
        // after the first part.
        let early = &|guess: &str| {
            let body =
                json!({"parts": ["x".repeat(4000) + guess, "end"], "wait": true}).to_string();
            let mut stream = web.connect();
            let asked = request(
                "POST",
                "/v1/tools/esc:keyed/calls",
                &web.address,
                &[STREAM],
                &body,
            );
            stream.write_all(asked.as_bytes()).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_millis(1500)))
                .unwrap();
            let (mut heard, mut piece, began) = (Vec::new(), [0; 4096], Instant::now());
            while began.elapsed() < PATIENCE {
                match stream.read(&mut piece) {
                    Ok(length @ 1..) => heard.extend(&piece[..length]),
                    _ if String::from_utf8_lossy(&heard).contains("xxx") => break,
                    _ => {}
                }
            }
            (
                stream,
                String::from_utf8(heard).unwrap().matches('x').count(),
            )
        };
        let [right, wrong] = std::thread::scope(|scope| {
            [&secret[..7], "Aq8_swo"]
                .map(|guess| scope.spawn(move || early(guess)))
                .map(|one| one.join().unwrap())
        });
        fs::write(&made, "").unwrap();
        for (stream, _) in [&right, &wrong] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let rest = String::from_utf8(exchanged(stream.try_clone().unwrap(), b"")).unwrap();
            assert!(rest.contains("event: end"), "{who:?}: {rest}");
        }
        assert!(
            right.1 > 0,
            "{who:?}: the control: something is told at once"
        );
        assert_eq!(right.1, wrong.1, "{who:?}: as much as of a wrong guess");
    });
}
