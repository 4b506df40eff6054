//! Requests at port 80.

use super::*;

const GOOD: &str = "GET /x?y=1 HTTP/1.1\r\nHost: a.test\r\nX-Case: Kept\r\n\r\n";

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
        ("400", "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"),
        ("400", "DELETE / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("400", "X / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"),
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
                let count_now = heard.events.iter().filter(|event| event.what == TrafficKind::Request).count();
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
    let own = Arc::clone(&seen);
    runtime.block_on(rig.upstream(80, move |stream| note(stream, Arc::clone(&own))));
    let lines = [
        "GET / HTTP/1.1\r\nHost: a.test\r\n",
        "POST /p HTTP/1.1\r\nHost: a.test\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
        "GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\n",
        "GET / HTTP/1.1\r\n",
        "POST /p HTTP/1.1\r\n",
        "GET http://a.test/ HTTP/1.1\r\n",
        "GET http://evil.test/ HTTP/1.1\r\n",
    ];
    let headers = [
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
    let bodies = [
        "",
        "abcde",
        "5\r\nabcde\r\n0\r\n\r\n",
        "5;x=\"\r\nabcde\r\n0\r\nHost: evil.test\r\n\r\n",
        "0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\n",
    ];
    fuzz(&runtime, &rig, &seen, [&lines, &headers, &bodies], |line| line.split(' ').nth(2) == Some("a.test"));
}
