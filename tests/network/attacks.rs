//! Ways round the stub and the relay: each is refused, and nobody outside sees it.

use super::{World, allow, in_both_worlds};
use crate::prelude::*;

const SEND: &str = include_str!("send.py");
const LONG: &str = "[limits]\ntimeout_ms = 110_000\n";

fn input(port: u16, cases: &[Vec<Vec<u8>>]) -> Value {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let cases = cases
        .iter()
        .map(|pieces| json!([port, pieces.iter().map(hex).collect::<Vec<_>>()]));
    json!({"cases": cases.collect::<Vec<_>>()})
}

/// What each case was answered, how the call ended, and who came but to ask for a name.
fn send(world: &World, port: u16, cases: &[Vec<Vec<u8>>]) -> (Vec<String>, Ended, Vec<String>) {
    world.tool_with(
        "send",
        "python",
        SEND,
        &["api.example.com"],
        &allow("api.example.com"),
        LONG,
    );
    let (ended, heard) = world.called("esc:send", &input(port, cases));
    fits("ok", &ended).unwrap();
    let heard = heard
        .into_iter()
        .filter(|line| !line.starts_with("dns"))
        .collect();
    (
        serde_json::from_value(ended.out["outputData"].clone()).unwrap(),
        ended,
        heard,
    )
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A request to the granted host with these lines beside its `Host`.
fn request(line: &str, headers: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: api.example.com\r\n{headers}\r\n")
}

/// A body, and behind it what is no request of its own, whatever length is believed.
fn with(method: &str, header: &str) -> String {
    let good = get("api.example.com");
    request(&format!("{method} /"), &format!("{header}\r\n")) + "3\r\nabc\r\n0\r\n\r\n" + &good
}

#[test]
fn every_request_on_port_80_is_for_the_host_of_its_connection() {
    let (good, evil) = (get("api.example.com"), get("evil.example.net"));
    let own = "Host: api.example.com\r\n";
    let length = format!("Content-Length: {}\r\n", evil.len());
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \
        AAMAAABkAAQCAAAAAAIAAAAA\r\n";
    // What is sent, and how many requests reach the host; the first answer is the host's.
    let reaching = [
        ("control", good.clone(), 1),
        ("control: two requests", good.clone() + &good, 2),
        ("control: with its port", get("api.example.com:80"), 1),
        ("control: upper case", get("API.Example.COM"), 1),
        (
            "control: absolute form",
            request("GET http://api.example.com/", ""),
            1,
        ),
        ("another host, second request", good.clone() + &evil, 1),
        (
            "both lengths",
            request("POST /", both) + "0\r\n\r\n" + &evil,
            1,
        ),
        ("a request in a body", request("POST /", &length) + &evil, 1),
        // It goes on as HTTP/1.1.
        ("h2c upgrade", request("GET /", h2c), 1),
    ];
    let refused = [
        ("another host", evil.clone()),
        ("another port", get("api.example.com:8080")),
        ("no host", "GET / HTTP/1.1\r\n\r\n".into()),
        ("two hosts", request("GET /", "Host: evil.example.net\r\n")),
        (
            "absolute form of another",
            request("GET http://evil.example.net/", ""),
        ),
        (
            "userinfo",
            request("GET http://api.example.com@evil.example.net/", ""),
        ),
        ("CONNECT", request("CONNECT evil.example.net:443", "")),
        ("TRACE", request("TRACE /", "")),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into()),
        ("not HTTP", "\x16\x03\x01\x02\x00\x01\x00".into()),
        (
            "two lengths",
            request("POST /", "Content-Length: 4\r\nContent-Length: 5\r\n") + "xxxxx",
        ),
        (
            "odd encoding",
            request("POST /", "Transfer-Encoding: xchunked\r\n") + "0\r\n\r\n",
        ),
        ("folded header", request("GET /", "X: a\r\n b\r\n")),
        (
            "space before colon",
            format!("GET / HTTP/1.1\r\nHost : evil.example.net\r\n{own}\r\n"),
        ),
        (
            "two hosts in one header",
            get("api.example.com, evil.example.net"),
        ),
        (
            "userinfo in the header",
            get("api.example.com@evil.example.net"),
        ),
        ("an empty host", get("")),
        (
            "absolute form, another header",
            evil.replace("/ ", "http://api.example.com/ "),
        ),
        (
            "userinfo before the own host",
            request("GET http://evil.example.net@api.example.com/", ""),
        ),
        (
            "absolute form of TLS",
            request("GET https://api.example.com/", ""),
        ),
        (
            "a target without a slash",
            request("GET api.example.com", ""),
        ),
        ("HTTP/1.0", "GET / HTTP/1.0\r\n\r\n".into()),
        (
            "a first header that is folded",
            format!("GET / HTTP/1.1\r\n Host: evil.example.net\r\n{own}\r\n"),
        ),
        ("NUL in a header", with("GET", "X: \0")),
        (
            "a switch by POST",
            with("POST", "Connection: upgrade\r\nUpgrade: websocket"),
        ),
        (
            "a body of an unknown method",
            with("X", "Content-Length: 3"),
        ),
        (
            "a chunked body of DELETE",
            with("DELETE", "Transfer-Encoding: chunked"),
        ),
        ("a list of lengths", with("POST", "Content-Length: 3, 3")),
        ("a length with a sign", with("POST", "Content-Length: +3")),
        ("a length in hex", with("POST", "Content-Length: 0x3")),
        (
            "gzip, chunked",
            with("POST", "Transfer-Encoding: gzip, chunked"),
        ),
        (
            "chunked twice",
            with(
                "POST",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            ),
        ),
        (
            "chunked, identity",
            with("POST", "Transfer-Encoding: chunked, identity"),
        ),
        (
            "a control character before chunked",
            with("POST", "Transfer-Encoding: \x0bchunked"),
        ),
    ];
    let bytes = |text: &String| vec![text.clone().into_bytes()];
    in_both_worlds("requests", |world| {
        // The host writes down the number of the row with each request.
        let numbered = |n: usize, text: &str| text.replace("/ HTTP/1.1", &format!("/{n} HTTP/1.1"));
        let cases: Vec<_> = reaching
            .iter()
            .enumerate()
            .map(|(n, row)| bytes(&numbered(n, &row.1)))
            .collect();
        let (out, _, heard) = send(world, 80, &cases);
        for (n, (what, _, requests)) in reaching.iter().enumerate() {
            let answered = out[n].starts_with("HTTP/1.1 200") && out[n].contains("45.20.0.1");
            assert!(answered, "{what}: {}, {heard:?}", out[n]);
            let of_row = heard
                .iter()
                .filter(|line| line.contains(&format!("/{n} HTTP/1.1")));
            assert_eq!(of_row.count(), *requests, "{what}: {heard:?}");
        }
        let for_the_host =
            |line: &String| line.to_ascii_lowercase().contains("host: api.example.com");
        assert!(heard.iter().all(for_the_host), "{heard:?}");
        assert_eq!(
            heard.len(),
            reaching.iter().map(|row| row.2).sum::<usize>(),
            "{heard:?}"
        );

        let (out, ended, heard) = send(world, 80, &refused.each_ref().map(|row| bytes(&row.1)));
        for ((what, _), out) in refused.iter().zip(out) {
            assert!(!out.starts_with("HTTP/1.1 200"), "{what}: {out}");
        }
        assert_eq!(heard, Vec::<String>::new());
        let totals = &ended.out["network"]["totals"];
        assert_eq!(
            totals["requestsRefused"],
            refused.len(),
            "each is reported: {totals}"
        );
        world.control("http://evil.example.net/");
    });
}

/// A ClientHello of TLS 1.2 with these extensions.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let extensions: Vec<u8> = extensions
        .iter()
        .flat_map(|(kind, body)| {
            [
                &kind.to_be_bytes()[..],
                &(body.len() as u16).to_be_bytes(),
                body,
            ]
            .concat()
        })
        .collect();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

fn server_name(name: &str) -> (u16, Vec<u8>) {
    let length = name.len() as u16;
    let entry = [&[0][..], &length.to_be_bytes(), name.as_bytes()].concat();
    (
        0,
        [&(entry.len() as u16).to_be_bytes()[..], &entry].concat(),
    )
}

fn record(body: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

#[test]
fn tls_on_port_443_names_the_host_of_its_connection() {
    let of = |names: &[&str], more: &[(u16, Vec<u8>)]| {
        record(&hello(
            &[
                &names
                    .iter()
                    .map(|name| server_name(name))
                    .collect::<Vec<_>>()[..],
                more,
            ]
            .concat(),
        ))
    };
    let own = of(&["api.example.com"], &[]);
    let body = hello(&[server_name("api.example.com")]);
    let (first, second) = body.split_at(20);
    let passing = [
        vec![own.clone()],
        vec![own[..9].to_vec(), own[9..].to_vec()],
    ];
    let refused = [
        ("another name", vec![of(&["evil.example.net"], &[])]),
        (
            "a longer name",
            vec![of(&["api.example.com.evil.example.net"], &[])],
        ),
        (
            "NUL in the name",
            vec![of(&["api.example.com\0.evil.example.net"], &[])],
        ),
        ("no name", vec![of(&[], &[])]),
        (
            "two names",
            vec![of(&["api.example.com", "evil.example.net"], &[])],
        ),
        ("split over records", vec![record(first), record(second)]),
        (
            "encrypted hello",
            vec![of(&["api.example.com"], &[(0xFE0D, vec![0; 40])])],
        ),
        (
            "over 16 KiB",
            vec![of(&["api.example.com"], &[(21, vec![0; 16400])])],
        ),
        ("not TLS", vec![get("api.example.com").into_bytes()]),
        (
            "SSL 2",
            vec![vec![
                0x80, 0x2E, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80,
            ]],
        ),
    ];
    in_both_worlds("hellos", |world| {
        // The host writes down requests, which these hellos never get to: whoever connects is
        // dialled for.
        let (_, ended, _) = send(world, 443, &passing);
        let dialled = |network: &Value| {
            let events = network["events"].as_array().unwrap().iter();
            events
                .filter(|event| event["what"] == "connection" && event["refused"].is_null())
                .count()
        };
        let network = &ended.out["network"];
        // Both were let through. What is counted as refused beside them ended for want of the answer
        // that the target never gives.
        assert_eq!(
            network["totals"]["connections"], 2,
            "control: also in two segments: {network}"
        );
        assert!(dialled(network) > 0, "{network}");
        let (out, ended, heard) = send(world, 443, &refused.each_ref().map(|row| row.1.clone()));
        for ((what, _), out) in refused.iter().zip(out) {
            assert!(["closed", "reset"].contains(&out.as_str()), "{what}: {out}");
        }
        let network = &ended.out["network"];
        assert_eq!(
            network["totals"]["connectionsRefused"],
            refused.len(),
            "each is reported: {network}"
        );
        assert_eq!((dialled(network), heard), (0, Vec::new()), "{network}");
        let refused = network["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| !event["refused"].is_null());
        assert!(
            refused
                .into_iter()
                .all(|event| event["refused"]["rule"] == "content"),
            "{network}"
        );
    });
}

#[test]
fn the_hello_after_a_retry_names_the_host_as_well() {
    in_both_worlds("second hellos", |world| {
        let share = |key: &[u8]| (51, [&(key.len() as u16).to_be_bytes()[..], key].concat());
        let hello = |name: &str, key: &[u8]| {
            let groups = (10, vec![0, 2, 0, 0x1D]);
            let algorithms = (13, vec![0, 4, 4, 3, 8, 4]);
            record(&hello(&[
                server_name(name),
                (43, vec![2, 3, 4]),
                groups,
                algorithms,
                share(key),
            ]))
        };
        let key = [&[0, 0x1D, 0, 32, 9][..], &[0; 31]].concat();
        let change = vec![20, 3, 3, 0, 1, 1];
        // Without a key in the first one the host asks for a second.
        let pieces = |second: &str| {
            vec![
                hello("api.example.com", &[]),
                change.clone(),
                hello(second, &key),
            ]
        };
        let (own, evil) = (pieces("api.example.com"), pieces("evil.example.net"));
        let at_once = vec![evil.concat()];
        let reached = |answer: &str| answer.len() > 500;
        for (what, pieces, passes) in [
            ("control", own, true),
            ("another name", evil.clone(), false),
            ("at once", at_once, false),
        ] {
            let (out, ended, heard) = send(world, 443, &[pieces]);
            assert_eq!((reached(&out[0]), heard), (passes, Vec::new()), "{what}");
            let events = ended.out["network"]["events"].to_string();
            assert_eq!(
                events.contains("names the server evil.example.net"),
                !passes,
                "{what}: {events}"
            );
        }
        // The control: the host takes the second name.
        let mut python = world.inside("/usr/bin/python3");
        python.args(["-c", SEND]);
        let (ended, heard) =
            world.watched(|| finish(python, input(443, &[evil]).to_string().as_bytes()));
        assert!(reached(&ended.out[0].to_string()), "{ended:?}");
        assert!(
            heard.iter().any(|line| line == "sni evil.example.net"),
            "{heard:?}"
        );
    });
}

#[test]
fn neither_a_redirect_nor_the_lease_of_another_call_leads_to_a_host() {
    in_both_worlds("redirects and leases", |world| {
        let script = "import json,sys,urllib.request as r\nurl=json.load(sys.stdin)['url']\n\
            print(json.dumps(json.load(r.urlopen(url,timeout=60))['at']))\n";
        world.tool_with(
            "go",
            "python",
            script,
            &["api.example.com"],
            &allow("api.example.com"),
            LONG,
        );
        let to = |to: &str| json!({"url": format!("http://api.example.com/redirect?to={to}")});
        fits(
            "ok \"45.20.0.1\"",
            &world.call("esc:go", &to("http://api.example.com/there")),
        )
        .unwrap();
        let (ended, heard) = world.called("esc:go", &to("http://evil.example.net/"));
        fits("ScriptError: evil.example.net", &ended).unwrap();
        let evil =
            |line: &String| line.contains("evil.example.net HTTP") || line.contains("45.20.0.2");
        assert!(!heard.iter().any(evil), "{heard:?}");

        // One call learns an address; another uses it without asking for the name, and sees none of
        // its connections.
        let script = "import json,socket,sys\ninput=json.load(sys.stdin); got='reset'\ndef \
            seen():\n all=[l.split() for f in ('tcp','tcp6') for l in \
            open('/proc/net/'+f).readlines()[1:]]\n return [l[2] for l in all if \
            l[3]!='0A']\nbefore=seen()\nat=socket.gethostbyname('a.wild.example') if 'ask' in \
            input else input['use']\ntry:\n s=socket.create_connection((at,80),60); \
            s.settimeout(60)\n s.sendall(b'GET / HTTP/1.1\\r\\nHost: a.wild.example\\r\\n\\r\\n'); \
            got=s.recv(12).decode() or 'closed'\nexcept OSError: \
            pass\nprint(json.dumps({'at': at, 'got': got, 'before': before, 'now': seen()}))\n";
        world.tool_with(
            "two",
            "python",
            script,
            &["*.wild.example"],
            &allow("*.wild.example"),
            LONG,
        );
        let mut server = Server::of(world.host());
        let mut call =
            |input: Value| server.called("esc:two", input)["result"]["structuredContent"].clone();
        let first = call(json!({"ask": true}));
        assert_eq!(first["got"], "HTTP/1.1 200", "control: {first}");
        assert_ne!(first["now"], json!([]), "control: a call sees its own");
        let second = call(json!({"use": first["at"]}));
        assert_eq!(
            (&second["got"], &second["before"]),
            (&json!("reset"), &json!([])),
            "{first} {second}"
        );
    });
}
