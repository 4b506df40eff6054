//! The whole relay in this process, over loopback, with a host that dials what a test says.

use super::call::{Call, Control};
use super::secrets::Secrets;
use super::serve;
use crate::base::{lock, messages};
use crate::egress::protocol::{EVENTS, Event, FromRelay, Refusal, Served, ToRelay, Totals, TrafficKind};
use crate::egress::tls;
use crate::manifest::host::pattern;
use crate::policy::{HeaderRule, HostGrant};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
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
const PATIENCE: Duration = Duration::from_secs(20);

/// What the relay said.
#[derive(Default)]
struct RelayLog {
    events: Vec<Event>,
    dialled: Vec<String>,
    ended: Vec<Totals>,
}

/// A relay, its host, and the hosts of the world by port.
struct Rig {
    socket: Arc<UnixDatagram>,
    heard: Arc<Mutex<RelayLog>>,
    world: Arc<Mutex<HashMap<u16, SocketAddr>>>,
    relay: tokio::task::JoinHandle<std::io::Result<()>>,
    stub: SocketAddr,
    stub_tcp: SocketAddr,
    ports: HashMap<u16, u16>,
}

fn grant(asked: &str) -> HostGrant {
    let pattern = pattern(asked).expect("a pattern");
    HostGrant { pattern, ranges: Vec::new(), asked: asked.to_owned(), rule: String::new(), why: String::new() }
}

/// `headers`: what the relay adds; the call has not begun if there are any.
fn rig(grants: &[&str], headers: Vec<(String, HeaderRule)>, trust: Option<tls::Trust>) -> Rig {
    let grants: Vec<HostGrant> = grants.iter().map(|asked| grant(asked)).collect();
    let mut ports: Vec<u16> = grants.iter().flat_map(|grant| grant.pattern.ports()).collect();
    ports.sort_unstable();
    ports.dedup();
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map(|(a, b)| (std::os::unix::net::UnixDatagram::from(a), std::os::unix::net::UnixDatagram::from(b)))
        .expect("a pair");
    ours.set_nonblocking(true).expect("non-blocking");
    theirs.set_nonblocking(true).expect("non-blocking");
    let relay = tokio::spawn(serve(UnixDatagram::from_std(theirs).expect("a socket"), trust));
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let listeners: Vec<_> =
        ports.iter().map(|_| std::net::TcpListener::bind("0.0.0.0:0").expect("a listener")).collect();
    let address = |listener: &std::net::TcpListener| listener.local_addr().expect("an address");
    let (stub, stub_tcp) = (udp.local_addr().expect("an address"), address(&tcp));
    let real = ports.iter().copied().zip(listeners.iter().map(|listener| address(listener).port())).collect();
    let begins = headers.is_empty();
    let lease = Served { grants, ports, headers, ..Served::default() };
    let lease = messages::memory_file(&serde_json::to_vec(&lease).expect("a lease")).expect("a file");
    let mut fds = vec![lease.as_fd(), udp.as_fd(), tcp.as_fd()];
    fds.extend(listeners.iter().map(AsFd::as_fd));
    messages::send(ours.as_fd(), &ToRelay::Serve, &fds).expect("sent");
    if begins {
        messages::send(ours.as_fd(), &ToRelay::Begin, &[]).expect("sent");
    }
    let socket = Arc::new(UnixDatagram::from_std(ours).expect("a socket"));
    let rig = Rig { socket, heard: Arc::default(), world: Arc::default(), relay, stub, stub_tcp, ports: real };
    tokio::spawn(host(Arc::clone(&rig.socket), Arc::clone(&rig.heard), Arc::clone(&rig.world)));
    rig
}

async fn host(socket: Arc<UnixDatagram>, heard: Arc<Mutex<RelayLog>>, world: Arc<Mutex<HashMap<u16, SocketAddr>>>) {
    loop {
        let got = socket.async_io(Interest::READABLE, || messages::receive::<FromRelay>(socket.as_fd())).await;
        let Ok(Some((message, _))) = got else { return };
        match message {
            FromRelay::Ready | FromRelay::Over { .. } => {}
            FromRelay::Saw(event) => lock(&heard).events.push(event),
            FromRelay::Ended(totals) => lock(&heard).ended.push(totals),
            FromRelay::Dial { id, host, port } => {
                lock(&heard).dialled.push(format!("{host:?}:{port}"));
                let address = lock(&world).get(&port).copied();
                match address.map(|address| std::net::TcpStream::connect(address).expect("connected")) {
                    Some(stream) => {
                        messages::send(socket.as_fd(), &ToRelay::Dialled { id }, &[stream.as_fd()]).expect("sent");
                    }
                    None => messages::send(socket.as_fd(), &ToRelay::Undialled { id }, &[]).expect("sent"),
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
        tokio::time::timeout(PATIENCE, wait).await.expect("the relay says it in time")
    }

    /// The first event of this kind, with the first refusal.
    async fn refusal(&self, what: TrafficKind) -> (String, Refusal) {
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

    /// A host of the world at this port, which serves each connection like this.
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
        self.upstream(port, move |stream| keep(stream, Arc::clone(&own), answer.clone())).await;
        kept
    }

    /// One that answers each head with this.
    async fn web(&self, port: u16, answer: &'static str) -> Arc<Mutex<Vec<u8>>> {
        self.keeps(port, move |bytes| Some(answers(bytes, answer))).await
    }

    async fn resolve(&self, name: &str) -> Ipv4Addr {
        let answer = self.ask(&query(name, RecordType::A)).await.expect("an answer");
        match answer.answers.first().map(|record| &record.data) {
            Some(RData::A(address)) => address.0,
            other => panic!("{name}: {other:?}, {}", answer.response_code),
        }
    }

    async fn ask(&self, query: &[u8]) -> Option<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        socket.send_to(query, self.stub).await.expect("sent");
        let mut buffer = [0; 1024];
        let got = tokio::time::timeout(Duration::from_millis(300), socket.recv(&mut buffer)).await;
        Some(Message::from_vec(&buffer[..got.ok()?.expect("received")]).expect("a message"))
    }

    async fn connect(&self, name: &str, port: u16) -> TcpStream {
        TcpStream::connect((self.resolve(name).await, self.ports[&port])).await.expect("connected")
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
        let _ = stream.write_all(&answer(&buffer[..length]).unwrap_or_default()).await;
    }
}

/// This answer for each head among these bytes.
fn answers(bytes: &[u8], answer: &str) -> Vec<u8> {
    answer.repeat(String::from_utf8_lossy(bytes).to_ascii_lowercase().matches("\r\nhost: ").count()).into_bytes()
}

fn take(kept: &Mutex<Vec<u8>>) -> String {
    String::from_utf8(std::mem::take(&mut *lock(kept))).expect("text")
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("an end in time");
    all
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_str(name).expect("a name"), kind));
    message.to_vec().expect("bytes")
}

/// Serves a connection, and notes of each request its method, path, hosts and authorization.
async fn note<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, seen: Arc<Mutex<Vec<String>>>) {
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let all = |name: &str| {
            let values = request.headers().get_all(name).iter().map(|value| value.to_str().expect("text"));
            values.collect::<Vec<_>>().join(" and ")
        };
        let (method, path) = (request.method(), request.uri().path());
        let line = format!("{method} {path} {} {}", all("host"), all("authorization"));
        lock(&seen).push(line);
        async { Ok::<_, std::convert::Infallible>(hyper::Response::new(String::new())) }
    });
    let stream = hyper_util::rt::TokioIo::new(stream);
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
}

/// Sends requests made of these beginnings, headers and bodies, and judges each that the host sees.
fn fuzz(
    runtime: &tokio::runtime::Runtime,
    rig: &Rig,
    seen: &Mutex<Vec<String>>,
    parts: [&[&str]; 3],
    good: impl Fn(&str) -> bool,
) {
    let texts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
    let [lines, headers, bodies] = parts.map(|parts| prop::sample::select(texts(parts)));
    let headers = prop::collection::vec(headers, 0..3).prop_map(|headers| headers.concat());
    let request = (lines, headers, bodies).prop_map(|(line, headers, body)| format!("{line}{headers}\r\n{body}"));
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
            let _ = stream.shutdown().await;
            let _ = read_all(&mut stream).await;
        });
        let seen = std::mem::take(&mut *lock(seen));
        passed.set(passed.get() + seen.len());
        prop_assert!(seen.iter().all(|line| good(line)), "{seen:?}");
        Ok(())
    });
    outcome.expect("good requests alone, no panic");
    assert!(!rig.relay.is_finished() && passed.get() > 20, "{passed:?} requests passed");
}

/// A query for these labels as they are.
fn raw_query(labels: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label);
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

#[tokio::test]
async fn a_panic_of_one_connection_ends_no_other() {
    let (socket, _host) = UnixDatagram::pair().expect("a pair");
    let control = Arc::new(Control { socket, next: Default::default() });
    let call = Call::new(Arc::default(), control, Secrets::default(), Default::default());
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

mod connections;
mod secrets;
mod stub;
mod web;
