//! The whole relay in this process, over loopback, with a host that dials what a test says.

use super::call::{Call, Control};
use super::hello::{self, RETRY};
use super::secrets::Secrets;
use super::serve;
use crate::base::{lock, messages};
use crate::egress::protocol::{
    FromRelay, RefusalReason, Served, ToRelay, Totals, TrafficEvent, TrafficKind,
};
use crate::egress::tls;
use crate::manifest::host::parse_pattern;
use crate::policy::{HeaderRule, HostGrant};
use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use proptest::prelude::*;
use std::collections::HashMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};

/// Longest wait for anything.
const TIMEOUT: Duration = Duration::from_secs(20);

/// After so long without a byte no answer follows.
const SILENCE: Duration = Duration::from_millis(30);

/// Messages received.
#[derive(Default)]
struct RelayLog {
    events: Vec<TrafficEvent>,
    dialled: Vec<String>,
    ended: Vec<Totals>,
}

/// A relay, its host, and remote servers by port.
struct Rig {
    socket: Arc<UnixDatagram>,
    heard: Arc<Mutex<RelayLog>>,
    world: Arc<Mutex<HashMap<u16, SocketAddr>>>,
    relay: tokio::task::JoinHandle<std::io::Result<()>>,
    stub: SocketAddr,
    ports: HashMap<u16, u16>,
}

fn grant(asked: &str) -> HostGrant {
    let pattern = parse_pattern(asked).expect("a pattern");
    HostGrant {
        pattern,
        ranges: Vec::new(),
        asked: asked.to_owned(),
        rule: String::new(),
        why: String::new(),
    }
}

/// `headers`: what the relay adds; the call has not begun if there are any.
fn rig(grants: &[&str], headers: Vec<(String, HeaderRule)>, trust: Option<tls::TlsConfig>) -> Rig {
    let grants: Vec<HostGrant> = grants.iter().map(|asked| grant(asked)).collect();
    let mut ports: Vec<u16> = grants
        .iter()
        .flat_map(|grant| grant.pattern.ports())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map(|(a, b)| {
        (
            std::os::unix::net::UnixDatagram::from(a),
            std::os::unix::net::UnixDatagram::from(b),
        )
    })
    .expect("a pair");
    ours.set_nonblocking(true).expect("non-blocking");
    theirs.set_nonblocking(true).expect("non-blocking");
    let relay = tokio::spawn(serve(
        UnixDatagram::from_std(theirs).expect("a socket"),
        trust,
    ));
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let listeners: Vec<_> = ports
        .iter()
        .map(|_| std::net::TcpListener::bind("0.0.0.0:0").expect("a listener"))
        .collect();
    let stub = udp.local_addr().expect("an address");
    let real = ports
        .iter()
        .copied()
        .zip(
            listeners
                .iter()
                .map(|listener| listener.local_addr().expect("an address").port()),
        )
        .collect();
    let begins = headers.is_empty();
    let lease = Served {
        grants,
        ports,
        headers,
        ..Served::default()
    };
    let lease =
        messages::memory_file(&serde_json::to_vec(&lease).expect("a lease")).expect("a file");
    let mut fds = vec![lease.as_fd(), udp.as_fd(), tcp.as_fd()];
    fds.extend(listeners.iter().map(AsFd::as_fd));
    messages::send(ours.as_fd(), &ToRelay::Serve, &fds).expect("sent");
    if begins {
        messages::send(ours.as_fd(), &ToRelay::Begin, &[]).expect("sent");
    }
    let socket = Arc::new(UnixDatagram::from_std(ours).expect("a socket"));
    let rig = Rig {
        socket,
        heard: Arc::default(),
        world: Arc::default(),
        relay,
        stub,
        ports: real,
    };
    tokio::spawn(host(
        Arc::clone(&rig.socket),
        Arc::clone(&rig.heard),
        Arc::clone(&rig.world),
    ));
    rig
}

async fn host(
    socket: Arc<UnixDatagram>,
    heard: Arc<Mutex<RelayLog>>,
    world: Arc<Mutex<HashMap<u16, SocketAddr>>>,
) {
    loop {
        let got = socket
            .async_io(Interest::READABLE, || {
                messages::receive::<FromRelay>(socket.as_fd())
            })
            .await;
        let Ok(Some((message, _))) = got else { return };
        match message {
            FromRelay::Ready | FromRelay::Over { .. } => {}
            FromRelay::Saw(event) => lock(&heard).events.push(event),
            FromRelay::Ended(totals) => lock(&heard).ended.push(totals),
            FromRelay::Dial { id, host, port } => {
                lock(&heard).dialled.push(format!("{host:?}:{port}"));
                let address = lock(&world).get(&port).copied();
                match address
                    .map(|address| std::net::TcpStream::connect(address).expect("connected"))
                {
                    Some(stream) => {
                        messages::send(socket.as_fd(), &ToRelay::Dialled { id }, &[stream.as_fd()])
                            .expect("sent");
                    }
                    None => messages::send(socket.as_fd(), &ToRelay::Undialled { id }, &[])
                        .expect("sent"),
                }
            }
        }
    }
}

impl Rig {
    fn say(&self, message: &ToRelay) {
        messages::send(self.socket.as_fd(), message, &[]).expect("sent");
    }

    async fn until<T>(&self, what: impl Fn(&RelayLog) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = what(&lock(&self.heard)) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("the relay says it in time")
    }

    /// The first event of this kind, with the first refusal.
    async fn refusal(&self, what: TrafficKind) -> (String, RefusalReason) {
        self.until(|heard| {
            let mut of_kind = heard.events.iter().filter(|event| event.what == what);
            of_kind.find_map(|event| Some((event.target.clone(), event.refused.clone()?)))
        })
        .await
    }

    async fn end(&self) -> Totals {
        let before = lock(&self.heard).ended.len();
        self.say(&ToRelay::End);
        self.until(|heard| heard.ended.get(before).copied()).await
    }

    /// A remote server at this port, which serves each connection like this.
    async fn upstream<F: Future<Output = ()> + Send + 'static>(
        &self,
        port: u16,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        lock(&self.world).insert(port, listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
    }

    /// A host that keeps what it gets, and answers each packet by this.
    async fn keeps(
        &self,
        port: u16,
        answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Clone + Send + Sync + 'static,
    ) -> Arc<Mutex<Vec<u8>>> {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let own = Arc::clone(&kept);
        self.upstream(port, move |stream| {
            keep(stream, Arc::clone(&own), answer.clone())
        })
        .await;
        kept
    }

    /// One that answers each head with this.
    async fn web(&self, port: u16, answer: &'static str) -> Arc<Mutex<Vec<u8>>> {
        self.keeps(port, move |bytes| Some(answers(bytes, answer)))
            .await
    }

    async fn resolve(&self, name: &str) -> Ipv4Addr {
        let answer = self.ask(&query(name), TIMEOUT).await.expect("an answer");
        match answer.answers.first().map(|record| &record.data) {
            Some(RData::A(address)) => address.0,
            other => panic!("{name}: {other:?}, {}", answer.response_code),
        }
    }

    /// None: no answer came in this time.
    async fn ask(&self, query: &[u8], time: Duration) -> Option<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        socket.send_to(query, self.stub).await.expect("sent");
        let mut buffer = [0; 1024];
        let got = tokio::time::timeout(time, socket.recv(&mut buffer)).await;
        Some(Message::from_vec(&buffer[..got.ok()?.expect("received")]).expect("a message"))
    }

    async fn connect(&self, name: &str, port: u16) -> TcpStream {
        TcpStream::connect((self.resolve(name).await, self.ports[&port]))
            .await
            .expect("connected")
    }

    /// What port 80 answers to these bytes, until its end.
    async fn http(&self, bytes: &str) -> String {
        let mut stream = self.connect("a.test", 80).await;
        // The other end may close first.
        let _ = stream.write_all(bytes.as_bytes()).await;
        String::from_utf8(read_all(&mut stream).await).expect("text")
    }
}

/// Keeps what comes, and answers each packet by this.
async fn keep<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    kept: Arc<Mutex<Vec<u8>>>,
    answer: impl Fn(&[u8]) -> Option<Vec<u8>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        lock(&kept).extend_from_slice(&buffer[..length]);
        let _ = stream
            .write_all(&answer(&buffer[..length]).unwrap_or_default())
            .await;
    }
}

/// This answer for each head among these bytes.
fn answers(bytes: &[u8], answer: &str) -> Vec<u8> {
    answer
        .repeat(
            String::from_utf8_lossy(bytes)
                .to_ascii_lowercase()
                .matches("\r\nhost: ")
                .count(),
        )
        .into_bytes()
}

fn take(kept: &Mutex<Vec<u8>>) -> String {
    String::from_utf8(std::mem::take(&mut *lock(kept))).expect("text")
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut all))
        .await
        .expect("an end in time");
    all
}

fn query(name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(
        Name::from_str(name).expect("a name"),
        RecordType::A,
    ));
    message.to_vec().expect("bytes")
}

/// Serves a connection, and notes of each request its method, path, hosts and authorization.
async fn note<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let service =
        hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let all = |name: &str| {
                let values = request
                    .headers()
                    .get_all(name)
                    .iter()
                    .map(|value| value.to_str().expect("text"));
                values.collect::<Vec<_>>().join(" and ")
            };
            let method = request.method();
            let path = request.uri().path();
            let line = format!("{method} {path} {} {}", all("host",), all("authorization",));
            lock(&seen).push(line);
            async { Ok::<_, std::convert::Infallible>(hyper::Response::new(String::new())) }
        });
    let stream = hyper_util::rt::TokioIo::new(stream);
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(stream, service)
        .await;
}

/// Sends requests made of these beginnings, headers and bodies, and judges each that the host sees.
fn fuzz(
    runtime: &tokio::runtime::Runtime,
    rig: &Rig,
    seen: &Mutex<Vec<String>>,
    parts: [&[&str]; 3],
    good: impl Fn(&str) -> bool,
) {
    let [lines, headers, bodies] = parts.map(|parts| {
        prop::sample::select(
            parts
                .iter()
                .map(|part| (*part).to_owned())
                .collect::<Vec<_>>(),
        )
    });
    let headers = prop::collection::vec(headers, 0..3).prop_map(|headers| headers.concat());
    let request = (lines, headers, bodies)
        .prop_map(|(line, headers, body)| format!("{line}{headers}\r\n{body}"));
    let bytes = prop_oneof![
        6 => prop::collection::vec(request, 1..5).prop_map(|requests| requests.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let passed = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let outcome = runner.run(&bytes, |bytes| {
        runtime.block_on(async {
            let mut stream = rig.connect("a.test.", 80).await;
            let _ = stream.write_all(&bytes).await;
            // A client that closes gets no more answers.
            let mut answer = [0; 4096];
            while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, stream.read(&mut answer)).await {}
            let _ = stream.shutdown().await;
            let _ = read_all(&mut stream).await;
        });
        let seen = std::mem::take(&mut *lock(seen));
        passed.set(passed.get() + seen.len());
        prop_assert!(seen.iter().all(|line| good(line)), "{seen:?}");
        Ok(())
    });
    outcome.expect("good requests alone, no panic");
    assert!(
        !rig.relay.is_finished() && passed.get() > 20,
        "{passed:?} requests passed"
    );
}

#[tokio::test]
async fn a_panic_of_one_connection_ends_no_other() {
    let (socket, _host) = UnixDatagram::pair().expect("a pair");
    let control = Arc::new(Control {
        socket,
        next: Default::default(),
    });
    let call = Call::new(
        Arc::default(),
        control,
        Secrets::default(),
        Default::default(),
    );
    let own = Arc::clone(&call);
    call.spawn(async move {
        let _state = own.state();
        panic!("of a test");
    });
    let own = Arc::clone(&call);
    let (say, said) = tokio::sync::oneshot::channel();
    call.spawn(async move {
        tokio::task::yield_now().await;
        own.state().totals.requests += 1;
        let _ = say.send(());
    });
    said.await.expect("the other goes on");
    assert_eq!(call.end().await.requests, 1);
}

/// A ClientHello that names these servers, and has these extensions besides.
fn client_hello(names: &[&str], more: &[(u16, &[u8])]) -> Vec<u8> {
    fn vector(width: usize, content: &[u8]) -> Vec<u8> {
        [&content.len().to_be_bytes()[8 - width..], content].concat()
    }
    let list: Vec<u8> = names
        .iter()
        .flat_map(|name| [&[0][..], &vector(2, name.as_bytes())].concat())
        .collect();
    let sni = vector(2, &list);
    let mut extensions = Vec::new();
    for (kind, content) in [(0, &sni[..])].into_iter().chain(more.iter().copied()) {
        extensions.extend_from_slice(&kind.to_be_bytes());
        extensions.extend(vector(2, content));
    }
    let start = [
        &[3, 3],
        &[7; 32][..],
        &vector(1, &[8; 32]),
        &vector(2, &[0x13, 1, 0x13, 2]),
        &vector(1, &[0]),
    ];
    [start.concat(), vector(2, &extensions)].concat()
}

/// This body as a handshake message in one record.
fn record(body: &[u8]) -> Vec<u8> {
    let message = [&[1][..], &body.len().to_be_bytes()[5..], body].concat();
    [
        &[22, 3, 1][..],
        &(message.len() as u16).to_be_bytes(),
        &message,
    ]
    .concat()
}

fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let body = [&[3, 3], &random[..], &[0, 0x13, 1, 0]].concat();
    let message = [&[2, 0, 0, body.len() as u8], &body[..]].concat();
    [&[22, 3, 3, 0, message.len() as u8], &message[..]].concat()
}

#[tokio::test]
async fn a_hello_that_can_be_read_in_two_ways_is_refused() {
    let host = parse_pattern("a.test").expect("a pattern").host;
    let good = client_hello(&["a.test"], &[(43, &[2, 3, 4])]);
    let mut followed = record(&good);
    followed.extend_from_slice(b"\x01\0\0\0");
    followed[4] += 4;
    let cases = [
        ("", record(&good)),
        (
            "",
            record(&client_hello(&["A.test"], &[(21, &[0; 14_000])])),
        ),
        (
            "names the server a.test.",
            record(&client_hello(&["a.test."], &[])),
        ),
        (
            "malformed",
            record(&client_hello(&["a.test", "evil.test"], &[])),
        ),
        ("twice", record(&client_hello(&["a.test"], &[(0, &[0, 0])]))),
        ("malformed", record(&[&good[..], &[0]].concat())),
        ("malformed", record(&good[..good.len() - 3])),
        ("followed by more", followed),
        ("does not begin", vec![22, 3, 1, 0, 5, 2, 0, 0, 1, 0]),
    ];
    for (why, bytes) in cases {
        let read = hello::read(&mut &bytes[..], std::slice::from_ref(&host)).await;
        assert_eq!(read.is_ok(), why.is_empty(), "{read:?}");
        assert!(read.err().unwrap_or_default().contains(why), "{why}");
    }
}

#[tokio::test]
async fn a_host_is_watched_until_its_server_hello_whatever_it_sends_before() {
    let own = record(&client_hello(&["a.test"], &[]));
    let evil = record(&client_hello(&["evil.test"], &[]));
    let retry = server_hello(RETRY);
    let change = [20, 3, 3, 0, 1, 1];
    let alert = [21, 3, 3, 0, 2, 1, 0];
    let twice = [&own[..], &evil].concat();
    // What the host says at once, the tool's second hello, and why the connection ends, if it does.
    let cases: [(Vec<u8>, &Vec<u8>, &str); 6] = [
        ([&alert[..], &change, &retry].concat(), &own, ""),
        (
            [&change[..], &alert, &change, &retry].concat(),
            &evil,
            "names the server evil.test",
        ),
        (
            [&retry[..], &retry].concat(),
            &twice,
            "names the server evil.test",
        ),
        (
            [&[22, 3, 3, 0, 4, 0, 0, 0, 0], &retry[..]].concat(),
            &evil,
            "does not answer with a TLS ServerHello",
        ),
        (
            [&[23, 3, 3, 0, 1, 0], &retry[..]].concat(),
            &evil,
            "does not answer with a TLS ServerHello",
        ),
        (
            [&[22, 3, 3, 0, 4], &retry[5..9]].concat(),
            &evil,
            "split over records",
        ),
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
        assert!(
            !lock(&kept).windows(9).any(|part| part == b"evil.test"),
            "{why}"
        );
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
        let host = parse_pattern("a.test").expect("a pattern").host;
        let mut mutated = record(&client_hello(&["a.test"], &[(43, &[2, 3, 4])]));
        changes.into_iter().for_each(|(at, byte)| mutated[at] = byte);
        for bytes in [bytes, mutated] {
            if let Ok(passed) = runtime.block_on(hello::read(&mut &bytes[..], std::slice::from_ref(&host))) {
                prop_assert!(passed.to_ascii_lowercase().windows(6).any(|part| part == b"a.test"));
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_plain_query_is_refused_or_dropped() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let with = |change: fn(&mut Message)| {
        let mut message = Message::query();
        message.add_query(Query::query(
            Name::from_str("a.test.").expect("a name"),
            RecordType::A,
        ));
        change(&mut message);
        message.to_vec().expect("bytes")
    };
    let cases: [(Vec<u8>, ResponseCode); 5] = [
        (
            with(|m| m.metadata.op_code = OpCode::Status),
            ResponseCode::NotImp,
        ),
        (with(|m| m.queries.clear()), ResponseCode::FormErr),
        (
            with(|m| m.queries.push(m.queries[0].clone())),
            ResponseCode::FormErr,
        ),
        (
            with(|m| _ = m.queries[0].set_query_class(DNSClass::CH)),
            ResponseCode::Refused,
        ),
        (
            vec![1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 63],
            ResponseCode::FormErr,
        ),
    ];
    for (bytes, code) in cases {
        let answer = rig.ask(&bytes, TIMEOUT).await.expect("an answer");
        assert_eq!((answer.response_code, answer.answers.len()), (code, 0));
    }
    let response = with(|m| *m = m.clone().into_response());
    for dropped in [&response[..], b"", b"x", &[0; 600]] {
        let time = Duration::from_millis(300);
        assert!(rig.ask(dropped, time).await.is_none());
    }
    rig.resolve("a.test.").await;
}

#[test]
fn no_message_panics_and_no_answer_is_for_another_name() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let rig = runtime.block_on(async { rig(&["a.test"], Vec::new(), None) });
    let valid = query("a.test.");
    let mutated =
        prop::collection::vec((0..valid.len(), any::<u8>()), 0..4).prop_map(move |changes| {
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
            socket
                .send_to(&query("end.test."), rig.stub)
                .await
                .expect("sent");
            loop {
                let got = tokio::time::timeout(TIMEOUT, socket.recv(&mut buffer))
                    .await
                    .expect("the stub lives");
                let answer =
                    Message::from_vec(&buffer[..got.expect("received")]).expect("a message");
                let name = answer
                    .queries
                    .first()
                    .map(|query| query.name().to_lowercase().to_string());
                if name.as_deref() == Some("end.test.") {
                    return;
                }
                assert!(
                    answer.answers.is_empty() || name.as_deref() == Some("a.test."),
                    "{answer:?}"
                );
            }
        });
        Ok(())
    });
    outcome.expect("no panic");
}

const GOOD: &str = "GET /x?y=1 HTTP/1.1\r\nHost: a.test\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_host_never_sees_two_lengths_or_a_long_head() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let kept = rig.web(80, OK).await;
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for lengths in [
        format!(
            "Content-Length: {}\r\nTransfer-Encoding: chunked",
            hidden.len()
        ),
        format!(
            "Transfer-Encoding: chunked\r\nContent-Length: {}",
            hidden.len()
        ),
        format!("Content-Length: {0}\r\nContent-Length: {0}", hidden.len()),
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a.test\r\n{lengths}\r\nConnection: close\r\n\r\n{hidden}"
        );
        assert!(rig.http(&request).await.ends_with("ok"), "{lengths}");
        let got = take(&kept);
        let (head, body) = got.split_once("\r\n\r\n").expect("a head");
        let long = head.matches("Content-Length: ").count();
        let chunked = head.matches("Transfer-Encoding: ").count();
        assert_eq!(long + chunked, 1, "{got}");
        assert_eq!(body, if chunked == 1 { "0\r\n\r\n" } else { hidden });
    }
    for more in ["X".repeat(70_000) + ": 1\r\n", "X: 1\r\n".repeat(100)] {
        assert!(
            !rig.http(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{more}\r\n"))
                .await
                .contains("200 OK")
        );
    }
    assert_eq!(take(&kept), "");
}

#[tokio::test]
async fn a_switch_to_websocket_is_passed_on_and_no_other() {
    let rig = rig(&["a.test"], Vec::new(), None);
    let answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let kept = rig.web(80, answer).await;
    let switch = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: \
        WebSocket\r\n\r\n";
    let mut stream = rig.connect("a.test.", 80).await;
    stream.write_all(switch.as_bytes()).await.expect("sent");
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.expect("an answer");
    assert!(buffer[..length].starts_with(b"HTTP/1.1 101 "));
    assert!(
        take(&kept)
            .to_ascii_lowercase()
            .contains("upgrade: websocket\r\n")
    );
    stream
        .write_all(b"GET / HTTP/1.1 of no HTTP")
        .await
        .expect("sent");
    rig.until(|_| lock(&kept).ends_with(b"of no HTTP").then_some(()))
        .await;
    // A host that switches though it was not asked to, and a switch to something else.
    for request in [GOOD.to_owned(), switch.replace("WebSocket", "h2c")] {
        assert_eq!(rig.http(&request).await, "");
    }
}

#[test]
fn whatever_a_tool_sends_the_host_sees_requests_for_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let rig = runtime.block_on(async { rig(&["a.test"], Vec::new(), None) });
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let own = Arc::clone(&seen);
    runtime.block_on(rig.upstream(80, move |stream| note(stream, Arc::clone(&own))));
    let lines = [
        "GET / ",
        "POST /p ",
        "GET http://a.test/ ",
        "GET http://evil.test/ ",
    ]
    .map(|l| format!("{l}HTTP/1.1\r\n"));
    let hosts = lines
        .each_ref()
        .map(|line| format!("{line}Host: a.test\r\n"));
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
    fuzz(&runtime, &rig, &seen, [&lines, &headers, &bodies], |line| {
        line.split(' ').nth(2) == Some("a.test")
    });
}

mod secrets;
