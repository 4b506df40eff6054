//! Requests at port 80 that tests/network does not send.

use super::*;

const GOOD: &str = "GET /x?y=1 HTTP/1.1\r\nHost: a.test\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_for_anything_else_is_refused() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let kept = rig.web(80, OK).await;
    let get = [
        ("421", "GET / HTTP/1.1\r\nHost: a.test@evil.test"),
        ("421", "GET / HTTP/1.1\r\nHost: a.test, evil.test"),
        ("421", "GET / HTTP/1.1\r\nHost:"),
        ("421", "GET http://a.test/ HTTP/1.1\r\nHost: evil.test"),
        ("421", "GET http://evil.test@a.test/ HTTP/1.1\r\nHost: a.test"),
        ("400", "GET https://a.test/ HTTP/1.1\r\nHost: a.test"),
        ("400", "GET a.test HTTP/1.1\r\nHost: a.test"),
        ("400", "GET / HTTP/1.0"),
        ("400", "GET / HTTP/1.1\r\n Host: evil.test\r\nHost: a.test"),
        ("400", "GET / HTTP/1.1\r\nHost: a.test\r\nX: \0"),
        ("400", "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket"),
        ("400", "X / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3"),
        ("400", "DELETE / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked"),
    ];
    let lengths = [
        "Content-Length: 3, 3",
        "Content-Length: +3",
        "Content-Length: 0x3",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: \x0bchunked",
    ];
    let post = lengths.map(|length| ("400", format!("POST / HTTP/1.1\r\nHost: a.test\r\n{length}")));
    let bad: Vec<_> = get.map(|(status, head)| (status, head.to_owned())).into_iter().chain(post).collect();
    for (status, head) in &bad {
        // A second request in the same packet is never answered.
        let answer = rig.http(&format!("{head}\r\n\r\n3\r\nabc\r\n0\r\n\r\n{GOOD}")).await;
        assert!(answer[8..].starts_with(&format!(" {status} ")), "{head}\n{answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{head}\n{answer}");
    }
    assert_eq!(take(&kept), "");
    let totals = rig.end().await;
    assert_eq!((totals.requests, totals.requests_refused), (bad.len() as u64, bad.len() as u64));
}

#[tokio::test]
async fn a_host_never_sees_two_lengths_or_a_long_head() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let kept = rig.web(80, OK).await;
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for lengths in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked", hidden.len()),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {}", hidden.len()),
        format!("Content-Length: {0}\r\nContent-Length: {0}", hidden.len()),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{lengths}\r\nConnection: close\r\n\r\n{hidden}");
        assert!(rig.http(&request).await.ends_with("ok"), "{lengths}");
        let got = take(&kept);
        let (head, body) = got.split_once("\r\n\r\n").expect("a head");
        let (long, chunked) = (head.matches("Content-Length: ").count(), head.matches("Transfer-Encoding: ").count());
        assert_eq!(long + chunked, 1, "{got}");
        assert_eq!(body, if chunked == 1 { "0\r\n\r\n" } else { hidden });
    }
    for more in ["X".repeat(70_000) + ": 1\r\n", "X: 1\r\n".repeat(100)] {
        assert!(!rig.http(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{more}\r\n")).await.contains("200 OK"));
    }
    assert_eq!(take(&kept), "");
}

#[tokio::test]
async fn a_switch_to_websocket_is_passed_on_and_no_other() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let kept = rig.web(80, answer).await;
    let switch = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
    let mut stream = rig.connect("a.test.", 80).await;
    stream.write_all(switch.as_bytes()).await.expect("sent");
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.expect("an answer");
    assert!(buffer[..length].starts_with(b"HTTP/1.1 101 "));
    assert!(take(&kept).to_ascii_lowercase().contains("upgrade: websocket\r\n"));
    stream.write_all(b"GET / HTTP/1.1 of no HTTP").await.expect("sent");
    rig.until(|_| lock(&kept).ends_with(b"of no HTTP").then_some(())).await;
    // A host that switches though it was not asked to, and a switch to something else.
    for request in [GOOD.to_owned(), switch.replace("WebSocket", "h2c")] {
        assert_eq!(rig.http(&request).await, "");
    }
}

#[test]
fn whatever_a_tool_sends_the_host_sees_requests_for_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rig = runtime.block_on(async { rig(&["a.test"], Vec::new(), None) });
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let own = Arc::clone(&seen);
    runtime.block_on(rig.upstream(80, move |stream| note(stream, Arc::clone(&own))));
    let lines =
        ["GET / ", "POST /p ", "GET http://a.test/ ", "GET http://evil.test/ "].map(|l| format!("{l}HTTP/1.1\r\n"));
    let hosts = lines.each_ref().map(|line| format!("{line}Host: a.test\r\n"));
    let lines: Vec<&str> = lines.iter().chain(&hosts).map(String::as_str).collect();
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
