//! Ways round the stub and the relay: each is refused, and nobody outside sees it.

use super::{World, allow, in_both_worlds};
use crate::harness::{Ended, Server, finish, fits};
use serde_json::{Value, json};

/// Sends bytes (hex) to a port of the granted host and answers with the beginning of what comes back; "reset" or
/// "closed" where nothing does. A list of texts is sent with pauses between them. At port 80 who closes its half is gone.
const SEND: &str = "import json,socket,sys,time\nout=[]\nfor port,pieces in json.load(sys.stdin)['cases']:\n \
    s=socket.create_connection(('api.example.com',port),8)\n s.settimeout(8)\n \
    try:\n  for piece in pieces:\n   s.sendall(bytes.fromhex(piece)); time.sleep(0.05)\n  port==80 or s.shutdown(socket.SHUT_WR)\n  b=b''\n  \
    while len(b)<65536:\n   try: d=s.recv(65536)\n   except socket.timeout: d=b''\n   if not d: break\n   \
    b+=d; s.settimeout(1 if port==80 else 8)\n  out.append(b.decode('latin1') or 'closed')\n \
    except OSError: out.append('reset')\nprint(json.dumps(out))\n";

fn input(cases: &[(u16, Vec<Vec<u8>>)]) -> Value {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let cases = cases.iter().map(|(port, pieces)| json!([port, pieces.iter().map(hex).collect::<Vec<_>>()]));
    json!({"cases": cases.collect::<Vec<_>>()})
}

fn send(world: &World, cases: &[(u16, Vec<Vec<u8>>)]) -> (Vec<String>, Ended, Vec<String>) {
    world.tool("send", "python", SEND, &["api.example.com"], &allow("api.example.com"));
    let mut ended = None;
    let heard = world.heard(|| ended = Some(world.call("esc:send", &input(cases))));
    let ended = ended.unwrap();
    fits("ok", &ended).unwrap();
    let heard = heard.into_iter().filter(|line| !line.starts_with("dns")).collect();
    (serde_json::from_value(ended.out["outputData"].clone()).unwrap(), ended, heard)
}

#[test]
fn every_request_on_port_80_is_for_the_host_of_its_connection() {
    in_both_worlds("requests", |world| {
        let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let good = get("api.example.com");
        // What follows is no request of its own, whatever length is believed.
        let with = |method: &str, header: &str| {
            format!("{method} / HTTP/1.1\r\nHost: api.example.com\r\n{header}\r\n\r\n3\r\nabc\r\n0\r\n\r\n{good}")
        };
        // (what, bytes, whether the first answer is the host's, requests that reach a host)
        let cases: Vec<(&str, String, bool, usize)> = vec![
            ("control", good.clone(), true, 1),
            ("control: two requests", good.clone() + &good, true, 2),
            ("control: with its port", get("api.example.com:80"), true, 1),
            ("control: upper case", get("API.Example.COM"), true, 1),
            ("control: absolute form", "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), true, 1),
            ("another host", get("evil.example.net"), false, 0),
            ("another host, second request", good.clone() + &get("evil.example.net"), true, 1),
            ("another port", get("api.example.com:8080"), false, 0),
            ("no host", "GET / HTTP/1.1\r\n\r\n".into(), false, 0),
            ("two hosts", "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.net\r\n\r\n".into(), false, 0),
            ("absolute form of another", "GET http://evil.example.net/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("userinfo", "GET http://api.example.com@evil.example.net/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("CONNECT", "CONNECT evil.example.net:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("TRACE", "TRACE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), false, 0),
            ("not HTTP", "\x16\x03\x01\x02\x00\x01\x00".into(), false, 0),
            ("both lengths", format!("POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}", get("evil.example.net")), true, 1),
            ("two lengths", "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nxxxxx".into(), false, 0),
            ("odd encoding", "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n".into(), false, 0),
            ("folded header", "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n".into(), false, 0),
            ("space before colon", "GET / HTTP/1.1\r\nHost : evil.example.net\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("a request in a body", format!("POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: {}\r\n\r\n{}", get("evil.example.net").len(), get("evil.example.net")), true, 1),
            ("two hosts in one header", get("api.example.com, evil.example.net"), false, 0),
            ("userinfo in the header", get("api.example.com@evil.example.net"), false, 0),
            ("an empty host", get(""), false, 0),
            ("absolute form, another header", "GET http://api.example.com/ HTTP/1.1\r\nHost: evil.example.net\r\n\r\n".into(), false, 0),
            ("userinfo before the own host", "GET http://evil.example.net@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("absolute form of TLS", "GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("a target without a slash", "GET api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("HTTP/1.0", "GET / HTTP/1.0\r\n\r\n".into(), false, 0),
            ("a first header that is folded", "GET / HTTP/1.1\r\n Host: evil.example.net\r\nHost: api.example.com\r\n\r\n".into(), false, 0),
            ("NUL in a header", with("GET", "X: \0"), false, 0),
            ("a switch by POST", with("POST", "Connection: upgrade\r\nUpgrade: websocket"), false, 0),
            ("a body of an unknown method", with("X", "Content-Length: 3"), false, 0),
            ("a chunked body of DELETE", with("DELETE", "Transfer-Encoding: chunked"), false, 0),
            ("a list of lengths", with("POST", "Content-Length: 3, 3"), false, 0),
            ("a length with a sign", with("POST", "Content-Length: +3"), false, 0),
            ("a length in hex", with("POST", "Content-Length: 0x3"), false, 0),
            ("gzip, chunked", with("POST", "Transfer-Encoding: gzip, chunked"), false, 0),
            ("chunked twice", with("POST", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), false, 0),
            ("chunked, identity", with("POST", "Transfer-Encoding: chunked, identity"), false, 0),
            ("a control character before chunked", with("POST", "Transfer-Encoding: \x0bchunked"), false, 0),
            // It goes on as HTTP/1.1.
            ("h2c upgrade", "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n".into(), true, 1),
        ];
        for (what, bytes, answered, requests) in &cases {
            let (out, ended, heard) = send(world, &[(80, vec![bytes.clone().into_bytes()])]);
            let first = out[0].starts_with("HTTP/1.1 200") && out[0].contains("45.20.0.1");
            assert_eq!(first, *answered, "{what}: {out:?}, {heard:?}");
            assert_eq!(heard.len(), *requests, "{what}: {heard:?}");
            assert!(
                heard.iter().all(|line| line.to_ascii_lowercase().contains("host: api.example.com")),
                "{what}: {heard:?}"
            );
            if *requests == 0 {
                let events = ended.out["network"]["events"].as_array().unwrap();
                assert!(events.iter().any(|event| !event["refused"].is_null()), "{what}: {events:?}");
            }
        }
        world.control("http://evil.example.net/");
    });
}

/// A ClientHello of TLS 1.2 with these extensions.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let extensions: Vec<u8> = extensions
        .iter()
        .flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat())
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
    (0, [&(entry.len() as u16).to_be_bytes()[..], &entry].concat())
}

fn record(body: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

#[test]
fn tls_on_port_443_names_the_host_of_its_connection() {
    in_both_worlds("hellos", |world| {
        let own = hello(&[server_name("api.example.com")]);
        let (first, second) = own.split_at(20);
        let cases: Vec<(&str, Vec<Vec<u8>>, usize)> = vec![
            ("control", vec![record(&own)], 1),
            ("control: in two segments", vec![record(&own)[..9].to_vec(), record(&own)[9..].to_vec()], 1),
            ("another name", vec![record(&hello(&[server_name("evil.example.net")]))], 0),
            ("a longer name", vec![record(&hello(&[server_name("api.example.com.evil.example.net")]))], 0),
            ("NUL in the name", vec![record(&hello(&[server_name("api.example.com\0.evil.example.net")]))], 0),
            ("no name", vec![record(&hello(&[]))], 0),
            ("two names", vec![record(&hello(&[server_name("api.example.com"), server_name("evil.example.net")]))], 0),
            ("split over records", vec![record(first), record(second)], 0),
            ("encrypted hello", vec![record(&hello(&[server_name("api.example.com"), (0xFE0D, vec![0; 40])]))], 0),
            ("over 16 KiB", vec![record(&hello(&[server_name("api.example.com"), (21, vec![0; 16400])]))], 0),
            ("not TLS", vec![b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_vec()], 0),
            ("SSL 2", vec![vec![0x80, 0x2E, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80]], 0),
        ];
        for (what, pieces, reached) in &cases {
            // The server's log is of requests, which these hellos never get to: whoever connects is dialled for.
            let (_, ended, _) = send(world, &[(443, pieces.clone())]);
            let events = ended.out["network"]["events"].as_array().unwrap();
            let connected = events.iter().filter(|e| e["what"] == "connection" && e["refused"].is_null()).count();
            assert_eq!(connected, *reached, "{what}: {events:?}");
            if *reached == 0 {
                let refused = events.iter().any(|e| e["what"] == "connection" && e["refused"]["rule"] == "content");
                assert!(refused, "{what}: {events:?}");
            }
        }
    });
}

#[test]
fn the_hello_after_a_retry_names_the_host_as_well() {
    in_both_worlds("second hellos", |world| {
        let share = |key: &[u8]| (51, [&(key.len() as u16).to_be_bytes()[..], key].concat());
        let hello = |name: &str, key: &[u8]| {
            let groups = (10, vec![0, 2, 0, 0x1D]);
            let algorithms = (13, vec![0, 4, 4, 3, 8, 4]);
            record(&hello(&[server_name(name), (43, vec![2, 3, 4]), groups, algorithms, share(key)]))
        };
        let key = [&[0, 0x1D, 0, 32, 9][..], &[0; 31]].concat();
        let change = vec![20, 3, 3, 0, 1, 1];
        // Without a key in the first one the host asks for a second.
        let pieces = |second: &str| vec![hello("api.example.com", &[]), change.clone(), hello(second, &key)];
        let (own, evil) = (pieces("api.example.com"), pieces("evil.example.net"));
        let at_once = vec![evil.concat()];
        let reached = |answer: &str| answer.len() > 500;
        for (what, pieces, passes) in
            [("control", own, true), ("another name", evil.clone(), false), ("at once", at_once, false)]
        {
            let (out, ended, heard) = send(world, &[(443, pieces)]);
            assert_eq!((reached(&out[0]), heard), (passes, Vec::new()), "{what}");
            let events = ended.out["network"]["events"].to_string();
            assert_eq!(events.contains("names the server evil.example.net"), !passes, "{what}: {events}");
        }
        // The control: the host takes the second name.
        let mut python = world.inside("/usr/bin/python3");
        python.args(["-c", SEND]);
        let heard = world.heard(|| {
            let ended = finish(python, input(&[(443, evil)]).to_string().as_bytes());
            assert!(reached(&ended.out[0].to_string()), "{ended:?}");
        });
        assert!(heard.iter().any(|line| line == "sni evil.example.net"), "{heard:?}");
    });
}

#[test]
fn a_redirect_leads_to_no_other_host() {
    in_both_worlds("redirects", |world| {
        let script = "import json,sys,urllib.request as r\nprint(json.dumps(json.load(r.urlopen(json.load(sys.stdin)['url'],timeout=5))['at']))\n";
        world.tool("go", "python", script, &["api.example.com"], &allow("api.example.com"));
        let call = |to: &str| world.call("esc:go", &json!({"url": format!("http://api.example.com/redirect?to={to}")}));
        fits("ok \"45.20.0.1\"", &call("http://api.example.com/there")).unwrap();
        let mut ended = None;
        let heard = world.heard(|| ended = Some(call("http://evil.example.net/")));
        fits("ScriptError: evil.example.net", &ended.unwrap()).unwrap();
        assert!(
            heard.iter().all(|line| !line.contains("evil.example.net HTTP") && !line.contains("45.20.0.2")),
            "{heard:?}"
        );
    });
}

#[test]
fn nothing_of_a_lease_is_left_for_the_next_call() {
    in_both_worlds("leases", |world| {
        // The first call learns an address; the second uses it without asking for the name.
        let script = "import json,socket,sys\ninput=json.load(sys.stdin)\n\
            if 'ask' in input: print(json.dumps({'got': socket.gethostbyname(input['ask'])}))\n\
            else:\n try:\n  s=socket.create_connection((input['use'],80),5); s.sendall(b'GET / HTTP/1.1\\r\\nHost: b.wild.example\\r\\n\\r\\n'); s.settimeout(5)\n  print(json.dumps({'got': s.recv(9).decode() or 'closed'}))\n \
            except OSError: print(json.dumps({'got': 'reset'}))\n";
        world.tool("two", "python", script, &["*.wild.example"], &allow("*.wild.example"));
        let mut server = Server::of(world.host());
        let mut call = |input: Value| server.called("esc:two", input)["result"]["structuredContent"]["got"].clone();
        let address = call(json!({"ask": "a.wild.example"}));
        let answer = call(json!({"use": address}));
        assert_eq!(answer, "reset", "{address}");
    });
}
