//! Names: what is answered, what is not, and how much of it.

use super::*;
use hickory_proto::op::OpCode;
use hickory_proto::rr::DNSClass;

#[tokio::test]
async fn granted_names_get_an_address_and_others_do_not_exist() {
    let rig = rig(&["a.test", "*.wild.test", "db.test:5432"], Vec::new(), None);
    let first = rig.resolve("a.test.").await;
    let answer = rig.ask(&raw_query(&[b"A", b"TesT"])).await.expect("an answer");
    assert_eq!(answer.answers.first().map(|record| &record.data), Some(&RData::A(first.into())));
    for name in ["x.wild.test.", "x.y.wild.test.", "_x.wild.test.", "db.test."] {
        assert_ne!(rig.resolve(name).await, first);
    }
    for kind in ["AAAA", "HTTPS", "SVCB", "SRV", "MX", "TXT", "ANY", "AXFR", "CNAME", "PTR"] {
        let answer = rig.ask(&query("a.test.", RecordType::from_str(kind).expect("a type"))).await.expect("an answer");
        assert_eq!((answer.response_code, answer.answers.len()), (ResponseCode::NoError, 0), "{kind}");
    }
    for name in ["wild.test.", "b.test.", "a.test.evil.test.", ".", "localhost.", "1.0.0.127.in-addr.arpa."] {
        let answer = rig.ask(&query(name, RecordType::A)).await.expect("an answer");
        assert_eq!((answer.response_code, answer.answers.len()), (ResponseCode::NXDomain, 0), "{name}");
    }
    let odd: [&[&[u8]]; 9] = [
        &[b"a.test"],
        &[b"x.wild", b"test"],
        &[b"x\0", b"wild", b"test"],
        &[b"*", b"wild", b"test"],
        &[b"b\xc3\xbc", b"wild", b"test"],
        &[b"x\\.y", b"wild", b"test"],
        &[b"x y", b"wild", b"test"],
        &[b"-x", b"wild", b"test"],
        &[b"127", b"0", b"0", b"1"],
    ];
    for labels in odd {
        assert_eq!(rig.ask(&raw_query(labels)).await.expect("an answer").response_code, ResponseCode::NXDomain);
    }
    let totals = rig.end().await;
    assert_eq!((totals.lookups, totals.lookups_refused), (31, 15));
}

#[tokio::test]
async fn what_is_no_plain_query_is_refused_or_dropped() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let with = |change: fn(&mut Message)| {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_str("a.test.").expect("a name"), RecordType::A));
        change(&mut message);
        message.to_vec().expect("bytes")
    };
    let cases: [(Vec<u8>, ResponseCode); 5] = [
        (with(|m| m.metadata.op_code = OpCode::Status), ResponseCode::NotImp),
        (with(|m| m.queries.clear()), ResponseCode::FormErr),
        (with(|m| m.queries.push(m.queries[0].clone())), ResponseCode::FormErr),
        (with(|m| _ = m.queries[0].set_query_class(DNSClass::CH)), ResponseCode::Refused),
        (vec![1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 63], ResponseCode::FormErr),
    ];
    for (bytes, code) in cases {
        let answer = rig.ask(&bytes).await.expect("an answer");
        assert_eq!((answer.response_code, answer.answers.len()), (code, 0));
    }
    let response = with(|m| *m = m.clone().into_response());
    for dropped in [&response[..], b"", b"x", &[0; 600]] {
        assert!(rig.ask(dropped).await.is_none());
    }
    rig.resolve("a.test.").await;
}

#[tokio::test]
async fn lookups_and_names_of_a_call_are_bounded() {
    let rig = rig(&["*.test"], Vec::new(), None);
    let mut stream = TcpStream::connect(rig.stub_tcp).await.expect("connected");
    let mut codes: Vec<u8> = Vec::new();
    for number in 0..10_010 {
        let query = query(&format!("n{}.test.", number % 257), RecordType::A);
        stream.write_all(&[&[0, query.len() as u8], &query[..]].concat()).await.expect("sent");
        let length = stream.read_u16().await.expect("a length");
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await.expect("an answer");
        codes.push(answer[3] & 15);
    }
    assert!(codes[..256].iter().all(|code| *code == 0) && codes[256] == 5 && codes[257] == 0);
    assert!(codes[10_000..].iter().all(|code| *code == 5) && codes[9_999] == 0);
    let totals = rig.end().await;
    assert_eq!((totals.lookups, totals.lookups_refused), (10_010, 10_000 / 257 + 10));
    // Of those served, and of the two kinds of refusal that differ.
    assert_eq!(lock(&rig.heard).events.len(), EVENTS + 2);
}

#[tokio::test]
async fn connections_to_the_stub_are_bounded() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(rig.stub_tcp).await.expect("connected");
        let query = query("a.test.", RecordType::A);
        stream.write_all(&[&[0, query.len() as u8], &query[..]].concat()).await.expect("sent");
        assert!(stream.read_u16().await.expect("a length") > 0);
        open.push(stream);
    }
    let mut ninth = TcpStream::connect(rig.stub_tcp).await.expect("connected");
    assert_eq!(read_all(&mut ninth).await, b"");
    drop(open);
    for too_long in [&[0xFF, 0xFF][..], &[2, 1]] {
        // Places become free when the relay sees the ends.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut stream = TcpStream::connect(rig.stub_tcp).await.expect("connected");
        stream.write_all(too_long).await.expect("sent");
        stream.write_all(&[0; 600]).await.expect("sent");
        assert_eq!(read_all(&mut stream).await, b"");
    }
}

#[test]
fn no_message_panics_and_no_answer_is_for_another_name() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rig = runtime.block_on(async { rig(&["a.test"], Vec::new(), None) });
    let valid = query("a.test.", RecordType::A);
    let mutated = prop::collection::vec((0..valid.len(), any::<u8>()), 0..4).prop_map(move |changes| {
        let mut bytes = valid.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    });
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 0..600), mutated];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(500));
    let outcome = runner.run(&bytes, |bytes| {
        runtime.block_on(async {
            let mut buffer = [0; 1024];
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            socket.send_to(&bytes, rig.stub).await.expect("sent");
            socket.send_to(&query("end.test.", RecordType::A), rig.stub).await.expect("sent");
            loop {
                let got = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("the stub lives");
                let answer = Message::from_vec(&buffer[..got.expect("received")]).expect("a message");
                let name = answer.queries.first().map(|query| query.name().to_lowercase().to_string());
                if name.as_deref() == Some("end.test.") {
                    return;
                }
                assert!(answer.answers.is_empty() || name.as_deref() == Some("a.test."), "{answer:?}");
            }
        });
        Ok(())
    });
    outcome.expect("no panic");
}
