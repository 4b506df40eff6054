//! Requests at port 80.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

const GOOD: &str = "GET /x?y=1 HTTP/1.1\r\nHost: a.test\r\nX-Case: Kept\r\n\r\n";

/// The good request as the last one of a connection.
fn last(request: &str) -> String {
    request.replacen("\r\n", "\r\nConnection: close\r\n", 1)
}

#[tokio::test]
async fn a_request_for_the_name_is_passed_on() {
    let rig = rig(&["a.test"], &[]).await;
    let kept = rig.web().await;
    assert!(rig.http(&last(GOOD)).await.ends_with("\r\n\r\nok"));
    let got = std::mem::take(&mut *kept.lock().expect("kept"));
    let mut lines: Vec<&str> = got.split("\r\n").collect();
    lines[1..3].sort_unstable();
    assert_eq!(lines.join("\r\n"), GOOD);
    let same = [
        "GET / HTTP/1.1\r\nHost: A.Test:80\r\n\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET http://a.test HTTP/1.1\r\nHost: a.test\r\nConnection: X-One, Host, TE\r\nX-One: 1\r\nTE: trailers\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.test\n\n",
    ];
    for request in same {
        let request =
            if request.contains("\r\n") { last(request) } else { request.replacen('\n', "\nConnection: close\n", 1) };
        assert!(rig.http(&request).await.ends_with("\r\n\r\nok"), "{request}");
        let got = std::mem::take(&mut *kept.lock().expect("kept"));
        assert!(got.starts_with("GET / HTTP/1.1\r\n"), "{got}");
        let lower = got.to_ascii_lowercase();
        assert!(lower.matches("host: a.test").count() == 1 && lower.lines().count() == 3, "{got}");
    }
    let totals = rig.end().await;
    assert_eq!((totals.requests, totals.requests_refused, totals.connections), (7, 0, 7));
    assert!(totals.sent_bytes > 0 && totals.received_bytes == 7 * 40);
}

#[tokio::test]
async fn an_address_that_is_granted_is_named_as_an_address() {
    let rig = rig(&["127.0.0.1", "[::1]"], &[]).await;
    let _kept = rig.web().await;
    for (host, status) in
        [("127.0.0.1", 200), ("127.0.0.1:80", 200), ("127.1", 421), ("[::1]", 421), ("[::ffff:127.0.0.1]", 200)]
    {
        let mut stream = rig.connect_to([127, 0, 0, 1], 80).await;
        stream.write_all(last(&GOOD.replace("a.test", host)).as_bytes()).await.expect("sent");
        let answer = String::from_utf8(read_all(&mut stream).await.0).expect("text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn each_request_of_a_connection_is_judged() {
    let rig = rig(&["a.test", "b.test"], &[]).await;
    let kept = rig.web().await;
    for (host, refusal) in [("evil.test", Some(Refusal::NotGranted)), ("b.test", None)] {
        let mut stream = rig.connect("a.test.", 80).await;
        for _ in 0..2 {
            stream.write_all(GOOD.as_bytes()).await.expect("sent");
            let mut answer = [0; 40];
            stream.read_exact(&mut answer).await.expect("an answer");
        }
        stream.write_all(GOOD.replace("a.test", host).as_bytes()).await.expect("sent");
        let answer = String::from_utf8(read_all(&mut stream).await.0).expect("text");
        assert!(
            answer.starts_with("HTTP/1.1 421 ") && answer.contains("\r\n\r\ntoolhost: the Host header"),
            "{answer}"
        );
        let told = |event: &&Event| match &refusal {
            Some(refusal) => event.target == format!("{host}:80") && event.refused.as_ref() == Some(refusal),
            None => event.target == "a.test:80" && matches!(event.refused, Some(Refusal::Content { .. })),
        };
        rig.until(|heard| heard.events.iter().filter(|e| e.what == What::Request).find(told).map(drop)).await;
    }
    assert!(!kept.lock().expect("kept").contains("evil"));
    let totals = rig.end().await;
    assert_eq!((totals.requests, totals.requests_refused), (6, 2));
    assert_eq!(rig.heard.lock().expect("heard").dialled.len(), 2);
}

#[tokio::test]
async fn a_request_for_anything_else_is_refused() {
    let rig = rig(&["a.test"], &[]).await;
    let kept = rig.web().await;
    #[rustfmt::skip]
    let bad = [
        ("421", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        ("421", "GET / HTTP/1.1\r\nHost: a.test:8080\r\n\r\n"),
        ("421", "GET / HTTP/1.1\r\nHost: a.test@evil.test\r\n\r\n"),
        ("421", "GET / HTTP/1.1\r\nHost: a.test, evil.test\r\n\r\n"),
        ("421", "GET / HTTP/1.1\r\nHost:\r\n\r\n"),
        ("421", "GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("421", "GET http://a.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        ("421", "GET http://a.test@evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("421", "GET http://evil.test@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("400", "GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("400", "GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\n\r\n"),
        ("400", "GET / HTTP/1.0\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\nHost: a.test\r\n\tevil.test\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\nHost : a.test\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\n Host: evil.test\r\nHost: a.test\r\n\r\n"),
        ("400", "GET / HTTP/1.1\r\nHost: a.test\r\nX: \0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3, 3\r\n\r\nabc"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +3\r\n\r\nabc"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0x3\r\n\r\nabc"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
        ("403", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("403", "TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("400", "\x16\x03\x01 / HTTP/1.1\r\n\r\n"),
    ];
    for (count, (status, request)) in bad.into_iter().enumerate() {
        // A second request in the same packet is never answered.
        let answer = rig.http(&format!("{request}{GOOD}")).await;
        if !status.is_empty() {
            assert!(answer[8..].starts_with(&format!(" {status} ")), "{request}\n{answer}");
        }
        assert!(answer.matches("HTTP/1.").count() <= 1, "{request}\n{answer}");
        if count < EVENTS {
            let refused = rig.until(|heard| {
                let count_now = heard.events.iter().filter(|event| event.what == What::Request).count();
                (count_now > count).then_some(count_now)
            });
            assert_eq!(refused.await, count + 1, "{request}");
        }
    }
    assert_eq!(*kept.lock().expect("kept"), "");
    assert!(rig.heard.lock().expect("heard").dialled.is_empty());
    let totals = rig.end().await;
    assert_eq!((totals.requests, totals.requests_refused), (bad.len() as u64, bad.len() as u64));
}

#[tokio::test]
async fn a_host_never_sees_two_lengths() {
    let rig = rig(&["a.test"], &[]).await;
    let kept = rig.web().await;
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for lengths in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked", hidden.len()),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {}", hidden.len()),
        format!("Content-Length: {0}\r\nContent-Length: {0}", hidden.len()),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{lengths}\r\nConnection: close\r\n\r\n{hidden}");
        assert!(rig.http(&request).await.ends_with("ok"), "{lengths}");
        let got = std::mem::take(&mut *kept.lock().expect("kept"));
        let (head, body) = got.split_once("\r\n\r\n").expect("a head");
        let (long, chunked) = (head.matches("Content-Length: ").count(), head.matches("Transfer-Encoding: ").count());
        assert_eq!(long + chunked, 1, "{got}");
        assert_eq!(body, if chunked == 1 { "0\r\n\r\n" } else { hidden });
    }
}

#[tokio::test]
async fn bodies_and_answers_pass_in_both_framings() {
    let rig = rig(&["a.test"], &[]).await;
    rig.upstream(80, |mut stream| async move {
        let mut buffer = [0; 4096];
        let mut got = String::new();
        while !got.ends_with("0\r\n\r\n") {
            let length = stream.read(&mut buffer).await.expect("a read");
            got.push_str(std::str::from_utf8(&buffer[..length]).expect("text"));
        }
        let answer = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.expect("sent");
    })
    .await;
    let request = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answer = rig.http(request).await;
    assert!(
        answer.starts_with("HTTP/1.1 201 Made\r\n") && answer.ends_with("\r\n\r\n4\r\nbody\r\n0\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_switch_to_websocket_is_passed_on_and_no_other() {
    let rig = rig(&["a.test"], &[]).await;
    rig.upstream(80, |mut stream| async move {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).await.expect("a head");
        let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst";
        stream.write_all(answer.as_bytes()).await.expect("sent");
        assert!(!head.contains("WebSocket") || head.contains("Upgrade: websocket\r\n"), "{head}");
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let switch = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
    let mut stream = rig.connect("a.test.", 80).await;
    stream.write_all(switch.as_bytes()).await.expect("sent");
    let mut buffer = vec![0; 4096];
    let mut got = String::new();
    while !got.ends_with("first") {
        let length = stream.read(&mut buffer).await.expect("an answer");
        assert!(length > 0, "{got}");
        got.push_str(std::str::from_utf8(&buffer[..length]).expect("text"));
    }
    assert!(got.starts_with("HTTP/1.1 101 "), "{got}");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").await.expect("sent");
    stream.shutdown().await.expect("half closed");
    assert_eq!(read_all(&mut stream).await.0, b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n");
    // The host switches though nobody asked.
    let (back, end) = rig.exchange("a.test.", 80, GOOD.as_bytes()).await;
    assert!(back.is_empty() && end.is_err());
    let (back, end) = rig.exchange("a.test.", 80, switch.replace("WebSocket", "h2c").as_bytes()).await;
    assert!(back.is_empty() && end.is_err());
}

#[tokio::test]
async fn a_host_that_is_not_dialled_or_breaks_off_is_a_reset() {
    let rig = rig(&["a.test"], &[]).await;
    let (back, end) = rig.exchange("a.test.", 80, GOOD.as_bytes()).await;
    assert!(back.is_empty() && is_reset(&end));
    rig.upstream(80, |mut stream| async move {
        let _ = stream.read_u8().await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
    })
    .await;
    let (back, end) = rig.exchange("a.test.", 80, GOOD.as_bytes()).await;
    assert!(back.ends_with(b"half") || back.is_empty());
    assert!(is_reset(&end));
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    rig.upstream(80, move |mut stream| {
        let long = long.clone();
        async move {
            let _ = stream.read_u8().await;
            let _ = stream.write_all(long.as_bytes()).await;
            let _ = stream.read(&mut [0; 4096]).await;
        }
    })
    .await;
    assert!(rig.exchange("a.test.", 80, GOOD.as_bytes()).await.1.is_err());
    assert!(!rig.heard.lock().expect("heard").events.iter().any(|event| event.what == What::Request));
}

#[tokio::test]
async fn the_head_of_a_request_is_bounded() {
    let rig = rig(&["a.test"], &[]).await;
    let kept = rig.web().await;
    let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    assert!(!rig.http(&long).await.contains("200 OK"));
    let many = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{}\r\n", "X: 1\r\n".repeat(100));
    assert!(rig.http(&many).await.starts_with("HTTP/1.1 4"));
    assert_eq!(*kept.lock().expect("kept"), "");
}

#[test]
fn whatever_a_tool_sends_the_host_sees_requests_for_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rig = runtime.block_on(rig(&["a.test"], &[]));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    runtime.block_on(judge(&rig, Arc::clone(&seen)));
    let address = runtime.block_on(rig.resolve("a.test."));
    let pick = |parts: &'static [&'static str]| prop::sample::select(parts);
    let lines = [
        "GET / HTTP/1.1\r\n",
        "POST /p HTTP/1.1\r\n",
        "GET http://a.test/ HTTP/1.1\r\n",
        "GET http://evil.test/ HTTP/1.1\r\n",
    ];
    let headers: &[&str] = &[
        "Host: a.test\r\n",
        "Host: evil.test\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 40\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\tchunked\n",
        "Transfer-Encoding: chunked, x\r\n",
        "Connection: keep-alive\r\n",
        "Connection: Upgrade, Content-Length\r\nUpgrade: websocket\r\n",
        "Expect: 100-continue\r\n",
        " folded\r\n",
        "X: \r\r\n",
        "\r\n",
    ];
    let bodies: &[&str] = &[
        "",
        "",
        "abcde",
        "5\r\nabcde\r\n0\r\n\r\n",
        "5;x=\"\r\nabcde\r\n0\r\nHost: evil.test\r\n\r\n",
        "0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\n",
    ];
    let headers = prop::collection::vec(pick(headers), 0..3).prop_map(|headers| headers.concat());
    let host = prop_oneof![4 => Just("Host: a.test\r\n"), 1 => Just("")];
    let request = (prop::sample::select(lines.to_vec()), host, headers, pick(bodies))
        .prop_map(|(line, host, headers, body)| format!("{line}{host}{headers}\r\n{body}"));
    let bytes = prop_oneof![
        6 => prop::collection::vec(request, 1..5).prop_map(|requests| requests.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let passed = AtomicUsize::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let outcome = runner.run(&bytes, |bytes| {
        runtime.block_on(async {
            let mut stream = rig.connect_to(address, 80).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let _ = read_all(&mut stream).await;
        });
        let seen = std::mem::take(&mut *seen.lock().expect("seen"));
        passed.fetch_add(seen.len(), Ordering::Relaxed);
        prop_assert!(seen.iter().all(|host| host == "a.test"), "{seen:?}");
        Ok(())
    });
    outcome.expect("no other host, no panic");
    let passed = passed.into_inner();
    assert!(!rig.relay.is_finished() && passed > 20, "{passed} requests passed");
}

/// A host that notes the Host of each request it parses.
async fn judge(rig: &Rig, seen: Arc<Mutex<Vec<String>>>) {
    rig.upstream(80, move |stream| {
        let seen = Arc::clone(&seen);
        let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let hosts = request.headers().get_all("host").iter().map(|host| host.to_str().expect("text"));
            seen.lock().expect("seen").push(hosts.collect::<Vec<_>>().join(" and "));
            async { Ok::<_, std::convert::Infallible>(hyper::Response::new(String::new())) }
        });
        async move {
            let stream = hyper_util::rt::TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
        }
    })
    .await;
}
