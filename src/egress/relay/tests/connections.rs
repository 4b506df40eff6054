//! Connections at ports that are copied, and at the one of TLS.

use super::*;

#[tokio::test]
async fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    let rig = rig(&["a.test:7"], &[]).await;
    rig.upstream(7, |mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("all of it");
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).await.expect("sent");
    })
    .await;
    let mut stream = rig.connect("a.test.", 7).await;
    stream.write_all(&vec![1; 300_000]).await.expect("sent");
    stream.shutdown().await.expect("half closed");
    let (answer, end) = read_all(&mut stream).await;
    assert_eq!((&answer[..], end.is_ok()), (&b"300000 bytes"[..], true));
    let totals = rig.end().await;
    assert_eq!((totals.sent_bytes, totals.received_bytes), (300_000, 12));
    assert_eq!((totals.connections, totals.connections_refused), (1, 0));
    let heard = rig.heard.lock().expect("heard");
    assert_eq!(heard.dialled, ["Name(\"a.test\"):7"]);
    assert!(heard.events.contains(&Event { what: What::Connection, target: "a.test:7".to_owned(), refused: None }));
}

#[tokio::test]
async fn a_reset_of_one_side_resets_the_other() {
    let rig = rig(&["a.test:7"], &[]).await;
    rig.upstream(7, |mut stream| async move {
        let _ = stream.read_u8().await;
        stream.set_zero_linger().expect("set");
    })
    .await;
    let mut stream = rig.connect("a.test.", 7).await;
    stream.write_all(b"x").await.expect("sent");
    assert!(is_reset(&read_all(&mut stream).await.1));
}

#[tokio::test]
async fn what_is_not_granted_or_not_dialled_is_reset() {
    let rig = rig(&["a.test:7", "b.test:8", "127.0.0.1:7"], &[]).await;
    rig.echo(7).await;
    let name = rig.resolve("a.test.").await;
    let cases: [(IpAddr, u16, &str, Option<Refusal>); 4] = [
        (name.into(), 8, "a.test:8", Some(Refusal::NotGranted)),
        ([127, 0, 0, 2].into(), 7, "127.0.0.2:7", Some(Refusal::NotGranted)),
        ([127, 0, 0, 1].into(), 8, "127.0.0.1:8", Some(Refusal::NotGranted)),
        ([127, 19, 0, 9].into(), 7, "127.19.0.9:7", Some(Refusal::NoName)),
    ];
    for (address, port, target, refused) in cases {
        let mut stream = rig.connect_to(address, port).await;
        assert!(is_reset(&read_all(&mut stream).await.1), "{target}");
        let event = Event { what: What::Connection, target: target.to_owned(), refused };
        rig.until(|heard| heard.events.contains(&event).then_some(())).await;
    }
    let mut stream = rig.connect("b.test.", 8).await;
    assert!(is_reset(&read_all(&mut stream).await.1));
    let mut literal = rig.connect_to([127, 0, 0, 1], 7).await;
    literal.write_all(b"x").await.expect("sent");
    assert_eq!(literal.read_u8().await.expect("a byte"), b'x');
    let totals = rig.end().await;
    assert_eq!((totals.connections, totals.connections_refused), (6, 5));
    let heard = rig.heard.lock().expect("heard");
    assert_eq!(heard.dialled, ["Name(\"b.test\"):8", "Address(127.0.0.1):7"]);
    assert!(!heard.events.iter().any(|event| event.target == "b.test:8"));
}

#[tokio::test]
async fn two_hundred_connections_at_once_and_no_more_than_the_limit() {
    let small = rig(&["a.test:7"], &[(Limit::Connections, 1)]).await;
    small.echo(7).await;
    let _one = small.connect("a.test.", 7).await;
    let mut two = small.connect("a.test.", 7).await;
    assert!(is_reset(&read_all(&mut two).await.1));
    let (target, refusal) = small.refusal(What::Connection).await;
    assert_eq!((target.as_str(), refusal), ("a.test:7", Refusal::Limit { limit: Limit::Connections }));
    let rig = rig(&["a.test:7"], &[(Limit::Connections, 200)]).await;
    rig.echo(7).await;
    let address = rig.resolve("a.test.").await;
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(rig.connect_to(address, 7).await);
    }
    for stream in &mut open {
        stream.write_all(b"hello").await.expect("sent");
    }
    let mut more = rig.connect_to(address, 7).await;
    assert!(is_reset(&read_all(&mut more).await.1));
    for stream in &mut open {
        stream.shutdown().await.expect("half closed");
        assert_eq!(read_all(stream).await.0, b"hello");
    }
    // Places become free again.
    let mut again = rig.connect_to(address, 7).await;
    again.write_all(b"x").await.expect("sent");
    assert_eq!(again.read_u8().await.expect("a byte"), b'x');
    let totals = rig.end().await;
    assert_eq!((totals.connections, totals.connections_refused, totals.sent_bytes), (202, 1, 1001));
    assert_eq!(rig.heard.lock().expect("heard").events.len(), EVENTS + 1);
}

#[tokio::test]
async fn bytes_beyond_a_limit_reset_everything_once() {
    for (limit, sent) in [(Limit::SentBytes, 100_000), (Limit::ReceivedBytes, 100_001)] {
        let rig = rig(&["a.test:7"], &[(limit, 100_000)]).await;
        rig.echo(7).await;
        let mut other = rig.connect("a.test.", 7).await;
        let mut stream = rig.connect("a.test.", 7).await;
        let _ = stream.write_all(&vec![1; if sent == 100_000 { 100_001 } else { sent }]).await;
        assert!(read_all(&mut stream).await.1.is_err());
        assert!(is_reset(&read_all(&mut other).await.1));
        rig.until(|heard| heard.over.first().copied()).await;
        let mut later = rig.connect("a.test.", 7).await;
        assert!(is_reset(&read_all(&mut later).await.1));
        let (_, refusal) = rig.refusal(What::Connection).await;
        assert_eq!(refusal, Refusal::Limit { limit });
        let totals = rig.end().await;
        assert!(totals.sent_bytes == sent as u64, "{totals:?}");
        assert_eq!(rig.heard.lock().expect("heard").over, [limit]);
    }
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    const BYTES: u64 = 64 * 1024 * 1024;
    let rig = rig(&["a.test:7"], &[]).await;
    rig.upstream(7, |stream| async move {
        let _ = tokio::io::copy(&mut tokio::io::repeat(1).take(BYTES), &mut { stream }).await;
    })
    .await;
    let mut stream = rig.connect("a.test.", 7).await;
    let mut buffer = vec![0; 64 * 1024];
    let mut all = 0;
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        all += length as u64;
    }
    assert_eq!(all, BYTES);
    assert_eq!(rig.end().await.received_bytes, BYTES);
}

/// Extensions of a ClientHello: SNI of these names, then others.
fn hello(names: &[&str], more: &[(u16, &[u8])]) -> Vec<u8> {
    let vector = |width: usize, content: &[u8]| [&content.len().to_be_bytes()[8 - width..], content].concat();
    let mut extensions = Vec::new();
    let list: Vec<u8> = names.iter().flat_map(|name| [&[0][..], &vector(2, name.as_bytes())].concat()).collect();
    let sni = vector(2, &list);
    let named = (!names.is_empty()).then_some((0, &sni[..]));
    for (kind, content) in named.into_iter().chain(more.iter().copied()) {
        extensions.extend_from_slice(&kind.to_be_bytes());
        extensions.extend(vector(2, content));
    }
    let start = [&[3, 3], &[7; 32][..], &vector(1, &[8; 32]), &vector(2, &[0x13, 1, 0x13, 2]), &vector(1, &[0])];
    [start.concat(), vector(2, &extensions)].concat()
}

/// This body as a handshake message, in records of at most this length.
fn records(body: &[u8], most: usize) -> Vec<u8> {
    let message = [&[1][..], &body.len().to_be_bytes()[5..], body].concat();
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(most).flat_map(record).collect()
}

#[tokio::test]
async fn tls_for_the_name_passes_unchanged() {
    let rig = rig(&["a.test", "127.0.0.1"], &[]).await;
    rig.echo(443).await;
    let address = rig.resolve("a.test.").await;
    let whole = |body: Vec<u8>| [records(&body, 1 << 14), b"and what follows".to_vec()].concat();
    let cases: [(IpAddr, Vec<u8>); 4] = [
        (address.into(), whole(hello(&["A.test"], &[(43, &[2, 3, 4]), (51, &[0; 1300])]))),
        (address.into(), whole(hello(&["a.test"], &[(0xFA, &[]), (21, &[0; 14_000])]))),
        ([127, 0, 0, 1].into(), whole(hello(&[], &[(43, &[2, 3, 4])]))),
        ([127, 0, 0, 1].into(), whole(hello(&["127.0.0.1"], &[]))),
    ];
    for (address, bytes) in cases {
        let mut stream = rig.connect_to(address, 443).await;
        // In pieces, as slow programs send it.
        for piece in bytes.chunks(1000) {
            stream.write_all(piece).await.expect("sent");
            tokio::task::yield_now().await;
        }
        stream.shutdown().await.expect("half closed");
        let (back, end) = read_all(&mut stream).await;
        assert!(back == bytes && end.is_ok());
    }
}

#[tokio::test]
async fn tls_for_anything_else_is_reset_with_the_reason() {
    let good = hello(&["a.test"], &[]);
    let record = records(&good, 1 << 14);
    let mut longer = good.clone();
    longer.push(0);
    let mut after = record.clone();
    after.extend_from_slice(b"\x01\0\0\0");
    after[4] += 4;
    let cases: [(&str, Vec<u8>); 15] = [
        ("names the server evil.test", records(&hello(&["evil.test"], &[]), 1 << 14)),
        ("names the server a.test.", records(&hello(&["a.test."], &[]), 1 << 14)),
        ("names the server a.test\\u{0}", records(&hello(&["a.test\0"], &[]), 1 << 14)),
        ("names no server", records(&hello(&[], &[]), 1 << 14)),
        ("malformed", records(&hello(&["a.test", "evil.test"], &[]), 1 << 14)),
        ("twice", records(&hello(&["a.test"], &[(0, &[0, 0])]), 1 << 14)),
        ("Encrypted Client Hello", records(&hello(&["a.test"], &[(0xFE0D, &[0; 40])]), 1 << 14)),
        ("split over several", records(&good, 60)),
        ("split over several", records(&hello(&["a.test"], &[(21, &[0; 20_000])]), 1 << 14)),
        ("longer than a TLS record", records(&hello(&["a.test"], &[(21, &[0; 20_000])]), 60_000)),
        ("malformed", records(&longer, 1 << 14)),
        ("followed by more", after),
        ("malformed", records(&good[..good.len() - 3], 1 << 14)),
        ("does not begin", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec()),
        ("does not begin", vec![22, 3, 1, 0, 5, 2, 0, 0, 1, 0]),
    ];
    for (why, bytes) in cases {
        let rig = rig(&["a.test"], &[]).await;
        rig.echo(443).await;
        let (back, end) = rig.exchange("a.test.", 443, &bytes).await;
        assert!(back.is_empty() && is_reset(&end), "{why}");
        let (target, refusal) = rig.refusal(What::Connection).await;
        assert_eq!(target, "a.test:443");
        assert!(matches!(&refusal, Refusal::Content { why: told } if told.contains(why)), "{why}: {refusal:?}");
        assert!(rig.heard.lock().expect("heard").dialled.is_empty());
    }
}

proptest! {
    /// Whatever passes holds the name; nothing panics.
    #[test]
    fn no_hello_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), changes in prop::collection::vec((0..90usize, any::<u8>()), 0..4)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let host = pattern("a.test").expect("a pattern").host;
        let mut mutated = records(&hello(&["a.test"], &[(43, &[2, 3, 4])]), 1 << 14);
        changes.into_iter().for_each(|(at, byte)| mutated[at] = byte);
        for bytes in [bytes, mutated] {
            if let Ok(passed) = runtime.block_on(super::super::hello::read(&mut &bytes[..], &host)) {
                prop_assert!(passed.to_ascii_lowercase().windows(6).any(|part| part == b"a.test"));
            }
        }
    }
}
