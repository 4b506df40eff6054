//! Connections at ports that are copied, and at the one of TLS.

use super::*;

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
    let (alert, hello_of_host) = ([21, 3, 3, 0, 2, 1, 0], server_hello([7; 32]));
    let begun = [&alert[..], &hello_of_host].concat();
    let first = begun.clone();
    rig.upstream(443, move |mut stream| {
        let first = first.clone();
        async move {
            let _ = stream.write_all(&first).await;
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        }
    })
    .await;
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
        assert!(back == [&begun[..], &bytes].concat() && end.is_ok());
    }
}

/// A ServerHello with this random.
fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let body = [&[3, 3], &random[..], &[0, 0x13, 1, 0]].concat();
    let message = [&[2, 0, 0, body.len() as u8], &body[..]].concat();
    [&[22, 3, 3, 0, message.len() as u8], &message[..]].concat()
}

#[tokio::test]
async fn a_host_is_watched_until_its_server_hello_whatever_it_sends_before() {
    let own = records(&hello(&["a.test"], &[]), 1 << 14);
    let evil = records(&hello(&["evil.test"], &[]), 1 << 14);
    let retry = server_hello(super::super::hello::RETRY);
    let change = vec![20, 3, 3, 0, 1, 1];
    let alert = vec![21, 3, 3, 0, 2, 1, 0];
    let (nothing, twice) = (Vec::new(), [&own[..], &evil].concat());
    // What the host says at once, the tool's second hello, and why the connection ends, if it does.
    let cases: [(Vec<u8>, &Vec<u8>, &str); 9] = [
        (retry.clone(), &own, ""),
        ([&alert[..], &change, &retry].concat(), &own, ""),
        (retry.clone(), &evil, "names the server evil.test"),
        ([&alert[..], &retry].concat(), &evil, "names the server evil.test"),
        ([&change[..], &alert, &change, &retry].concat(), &evil, "names the server evil.test"),
        ([&retry[..], &retry].concat(), &twice, "names the server evil.test"),
        ([&[22, 3, 3, 0, 4, 0, 0, 0, 0], &retry[..]].concat(), &evil, "does not answer with a TLS ServerHello"),
        ([&[23, 3, 3, 0, 1, 0], &retry[..]].concat(), &evil, "does not answer with a TLS ServerHello"),
        ([&[22, 3, 3, 0, 4], &retry[5..9]].concat(), &nothing, "split over records"),
    ];
    for (said, second, why) in cases {
        let rig = rig(&["a.test"], &[]).await;
        let got: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = Arc::clone(&got);
        rig.upstream(443, move |mut stream| {
            let (said, kept) = (said.clone(), Arc::clone(&kept));
            async move {
                let _ = stream.write_all(&said).await;
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    kept.lock().expect("kept").extend_from_slice(&buffer[..length]);
                }
            }
        })
        .await;
        let mut stream = rig.connect("a.test.", 443).await;
        stream.write_all(&own).await.expect("sent");
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(second).await;
        if why.is_empty() {
            let wanted = [&own[..], second].concat();
            rig.until(|_| (*got.lock().expect("kept") == wanted).then_some(())).await;
            continue;
        }
        let (_, refusal) = rig.refusal(TrafficKind::Connection).await;
        let told = match &refusal {
            Refusal::Content { why } | Refusal::Tls { why } => why.as_str(),
            _ => "",
        };
        assert!(told.contains(why), "{why}: {refusal:?}");
        assert!(!got.lock().expect("kept").windows(9).any(|part| part == b"evil.test"), "{why}");
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
        let (target, refusal) = rig.refusal(TrafficKind::Connection).await;
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
