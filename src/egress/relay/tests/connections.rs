//! TLS of a tool: the hellos that tests/network does not send.

use super::super::hello::{self, RETRY};
use super::*;

/// A ClientHello that names these servers, and has these extensions besides.
fn client_hello(names: &[&str], more: &[(u16, &[u8])]) -> Vec<u8> {
    let vector = |width: usize, content: &[u8]| [&content.len().to_be_bytes()[8 - width..], content].concat();
    let list: Vec<u8> = names.iter().flat_map(|name| [&[0][..], &vector(2, name.as_bytes())].concat()).collect();
    let sni = vector(2, &list);
    let mut extensions = Vec::new();
    for (kind, content) in [(0, &sni[..])].into_iter().chain(more.iter().copied()) {
        extensions.extend_from_slice(&kind.to_be_bytes());
        extensions.extend(vector(2, content));
    }
    let start = [&[3, 3], &[7; 32][..], &vector(1, &[8; 32]), &vector(2, &[0x13, 1, 0x13, 2]), &vector(1, &[0])];
    [start.concat(), vector(2, &extensions)].concat()
}

/// This body as a handshake message in one record.
fn record(body: &[u8]) -> Vec<u8> {
    let message = [&[1][..], &body.len().to_be_bytes()[5..], body].concat();
    [&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat()
}

fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let body = [&[3, 3], &random[..], &[0, 0x13, 1, 0]].concat();
    let message = [&[2, 0, 0, body.len() as u8], &body[..]].concat();
    [&[22, 3, 3, 0, message.len() as u8], &message[..]].concat()
}

#[tokio::test]
async fn a_hello_that_can_be_read_in_two_ways_is_refused() {
    let host = pattern("a.test").expect("a pattern").host;
    let good = client_hello(&["a.test"], &[(43, &[2, 3, 4])]);
    let mut followed = record(&good);
    followed.extend_from_slice(b"\x01\0\0\0");
    followed[4] += 4;
    let cases = [
        ("", record(&good)),
        ("", record(&client_hello(&["A.test"], &[(21, &[0; 14_000])]))),
        ("names the server a.test.", record(&client_hello(&["a.test."], &[]))),
        ("malformed", record(&client_hello(&["a.test", "evil.test"], &[]))),
        ("twice", record(&client_hello(&["a.test"], &[(0, &[0, 0])]))),
        ("malformed", record(&[&good[..], &[0]].concat())),
        ("malformed", record(&good[..good.len() - 3])),
        ("followed by more", followed),
        ("does not begin", vec![22, 3, 1, 0, 5, 2, 0, 0, 1, 0]),
    ];
    for (why, bytes) in cases {
        let read = hello::read(&mut &bytes[..], &host).await;
        assert_eq!(read.is_ok(), why.is_empty(), "{read:?}");
        assert!(read.err().unwrap_or_default().contains(why), "{why}");
    }
}

#[tokio::test]
async fn a_host_is_watched_until_its_server_hello_whatever_it_sends_before() {
    let (own, evil) = (record(&client_hello(&["a.test"], &[])), record(&client_hello(&["evil.test"], &[])));
    let (retry, change, alert) = (server_hello(RETRY), [20, 3, 3, 0, 1, 1], [21, 3, 3, 0, 2, 1, 0]);
    let twice = [&own[..], &evil].concat();
    // What the host says at once, the tool's second hello, and why the connection ends, if it does.
    let cases: [(Vec<u8>, &Vec<u8>, &str); 6] = [
        ([&alert[..], &change, &retry].concat(), &own, ""),
        ([&change[..], &alert, &change, &retry].concat(), &evil, "names the server evil.test"),
        ([&retry[..], &retry].concat(), &twice, "names the server evil.test"),
        ([&[22, 3, 3, 0, 4, 0, 0, 0, 0], &retry[..]].concat(), &evil, "does not answer with a TLS ServerHello"),
        ([&[23, 3, 3, 0, 1, 0], &retry[..]].concat(), &evil, "does not answer with a TLS ServerHello"),
        ([&[22, 3, 3, 0, 4], &retry[5..9]].concat(), &evil, "split over records"),
    ];
    for (said, second, why) in cases {
        let rig = rig(&["a.test"], Vec::new(), None);
        let kept = rig.keeps(443, move |_| Some(said.clone())).await;
        let mut stream = rig.connect("a.test.", 443).await;
        stream.write_all(&own).await.expect("sent");
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(second).await;
        if why.is_empty() {
            let wanted = [&own[..], second].concat();
            rig.until(|_| (*lock(&kept) == wanted).then_some(())).await;
            continue;
        }
        let refusal = rig.refusal(TrafficKind::Connection).await.1;
        assert!(format!("{refusal:?}").contains(why), "{why}: {refusal:?}");
        assert!(!lock(&kept).windows(9).any(|part| part == b"evil.test"), "{why}");
    }
}

proptest! {
    /// Whatever passes holds the name; nothing panics.
    #[test]
    fn no_hello_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        changes in prop::collection::vec((0..90usize, any::<u8>()), 0..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let host = pattern("a.test").expect("a pattern").host;
        let mut mutated = record(&client_hello(&["a.test"], &[(43, &[2, 3, 4])]));
        changes.into_iter().for_each(|(at, byte)| mutated[at] = byte);
        for bytes in [bytes, mutated] {
            if let Ok(passed) = runtime.block_on(hello::read(&mut &bytes[..], &host)) {
                prop_assert!(passed.to_ascii_lowercase().windows(6).any(|part| part == b"a.test"));
            }
        }
    }
}
