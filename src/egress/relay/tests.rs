//! The whole relay in this process, over loopback, with a host that dials what a test says.

use super::serve;
use crate::base::messages;
use crate::egress::protocol::{EVENTS, Event, FromRelay, Refusal, Served, ToRelay, Totals, TrafficKind};
use crate::egress::tls;
use crate::manifest::host::pattern;
use crate::policy::{HeaderRule, HostGrant};
use crate::quantity::Limit;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use proptest::prelude::*;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
    over: Vec<Limit>,
    dialled: Vec<String>,
    ended: Vec<Totals>,
}

/// A relay, its host, and the hosts of the world by port.
struct Rig {
    socket: Arc<UnixDatagram>,
    heard: Arc<Mutex<RelayLog>>,
    world: Arc<Mutex<HashMap<u16, SocketAddr>>>,
    relay: tokio::task::JoinHandle<io::Result<()>>,
    stub: SocketAddr,
    stub_tcp: SocketAddr,
    ports: HashMap<u16, u16>,
}

fn grant(asked: &str) -> HostGrant {
    let pattern = pattern(asked).expect("a pattern");
    HostGrant { pattern, ranges: Vec::new(), asked: asked.to_owned(), rule: String::new(), why: String::new() }
}

async fn rig(grants: &[&str], limits: &[(Limit, u64)]) -> Rig {
    rig_with(grants, limits, Vec::new(), None)
}

/// `headers`: what the relay adds; the call has not begun if there are any.
fn rig_with(
    grants: &[&str],
    limits: &[(Limit, u64)],
    headers: Vec<(String, HeaderRule)>,
    trust: Option<tls::Trust>,
) -> Rig {
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
    let limits = limits.iter().copied().collect();
    let lease = Served { grants, ports, headers, limits, authorities: Default::default() };
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
            FromRelay::Ready => {}
            FromRelay::Saw(event) => heard.lock().expect("heard").events.push(event),
            FromRelay::Over { limit } => heard.lock().expect("heard").over.push(limit),
            FromRelay::Ended(totals) => heard.lock().expect("heard").ended.push(totals),
            FromRelay::Dial { id, host, port } => {
                heard.lock().expect("heard").dialled.push(format!("{host:?}:{port}"));
                let address = world.lock().expect("the world").get(&port).copied();
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
                if let Some(found) = what(&self.heard.lock().expect("heard")) {
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
        let before = self.heard.lock().expect("heard").ended.len();
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
        self.world.lock().expect("the world").insert(port, listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
    }

    async fn echo(&self, port: u16) {
        self.upstream(port, |mut stream| async move {
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        })
        .await;
    }

    /// A host that keeps what it gets, and answers each head with `ok`.
    async fn web(&self) -> Arc<Mutex<String>> {
        let kept: Arc<Mutex<String>> = Arc::default();
        let own = Arc::clone(&kept);
        self.upstream(80, move |mut stream| {
            let own = Arc::clone(&own);
            async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    own.lock().expect("kept").push_str(&text);
                    for _ in text.matches("\r\nhost: ").chain(text.matches("\r\nHost: ")) {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                    }
                }
            }
        })
        .await;
        kept
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

    async fn connect_to(&self, address: impl Into<IpAddr>, port: u16) -> TcpStream {
        TcpStream::connect((address.into(), self.ports[&port])).await.expect("connected")
    }

    async fn connect(&self, name: &str, port: u16) -> TcpStream {
        self.connect_to(self.resolve(name).await, port).await
    }

    /// What a connection to this port answers to these bytes, until its end.
    async fn exchange(&self, name: &str, port: u16, bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let mut stream = self.connect(name, port).await;
        // The other end may close first.
        let _ = stream.write_all(bytes).await;
        read_all(&mut stream).await
    }

    async fn http(&self, bytes: &str) -> String {
        String::from_utf8(self.exchange("a.test", 80, bytes.as_bytes()).await.0).expect("text")
    }
}

async fn read_all(stream: &mut TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("an end in time");
    (all, end.map(drop))
}

fn is_reset<T: std::fmt::Debug>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
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
        seen.lock().expect("seen").push(line);
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
    let address = runtime.block_on(rig.resolve("a.test."));
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
            let mut stream = rig.connect_to(address, 80).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let _ = read_all(&mut stream).await;
        });
        let seen = std::mem::take(&mut *seen.lock().expect("seen"));
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

mod connections;
mod secrets;
mod stub;
mod web;
