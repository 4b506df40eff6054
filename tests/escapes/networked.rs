//! Calls with granted hosts: what the walls alone let such a call reach, with a stub and listeners but without a relay.

use super::Attack;
use crate::harness::{Listeners, PYTHON, SEARCH_PATH, Who, binary, finish, made_of, script};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use toolhost::executor::process::{Extra, Launchers, Scripts, examine};
use toolhost::executor::{Call, Context, Ending, Events, Executor, Outcome};
use toolhost::manifest::host::{self, HostPattern};
use toolhost::manifest::{Language, Site};
use toolhost::policy::{Confinement, HostGrant, Network, PerCall, Shape};
use toolhost::quantity::Limit;
use toolhost::{runtimes, sandbox};

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "a networked call knocks where nothing was granted", wall: "network", promises: "P6 P7" },
    Attack { name: "a networked call fills connections that nobody reads", wall: "cgroup", promises: "P16" },
    Attack { name: "a networked call makes sockets of other kinds", wall: "seccomp", promises: "P6 P18" },
];

/// As whom this process runs the tests of this file alone.
const ALONE: &str = "TOOLHOST_TEST_NETWORKED";
/// The second lies where the kernel takes ports from for sockets that have none.
const PORTS: [u16; 2] = [80, 40_000];

/// Runs the ignored test of this name as everybody, from this very binary.
fn as_everyone(name: &str) {
    for who in Who::both() {
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        let mut command = match who.uid() {
            None => Command::new("/proc/self/fd/0"),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
                command.args([&user, &group, "--clear-groups", "/proc/self/fd/0"]);
                command
            }
        };
        let name = format!("escapes::networked::{name}");
        command.args(["--exact", &name, "--ignored", "--nocapture"]).env(ALONE, binary()).stdin(Stdio::from(own));
        let ended = command.current_dir("/").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said.contains("1 passed"), "as {}: {said}", who.name());
    }
}

/// Serves the sockets of one namespace: an address for `name.test`, and a line or an HTTP answer for each connection.
struct Neighbour {
    /// Address and port that connections arrived at.
    landed: Arc<Mutex<BTreeSet<(IpAddr, u16)>>>,
}

impl Neighbour {
    fn of(sockets: Vec<OwnedFd>) -> Neighbour {
        let mut sockets = sockets.into_iter();
        let udp = UdpSocket::from(sockets.next().unwrap());
        udp.set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                if length > 16 {
                    let _ = udp.send_to(&answer(&buffer[..length]), from);
                }
            }
        });
        let landed: Arc<Mutex<BTreeSet<(IpAddr, u16)>>> = Arc::default();
        for socket in sockets.skip(1) {
            let (listener, landed) = (TcpListener::from(socket), Arc::clone(&landed));
            listener.set_nonblocking(false).unwrap();
            std::thread::spawn(move || {
                while let Ok((mut connection, _)) = listener.accept() {
                    let at = connection.local_addr().unwrap();
                    let at = (at.ip().to_canonical(), at.port());
                    landed.lock().unwrap().insert(at);
                    std::thread::spawn(move || {
                        if at.0.to_string() == "198.18.0.5" {
                            let _ = connection.read(&mut [0; 4096]);
                            let _ = connection
                                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n\"ok\"");
                        } else {
                            let _ = connection.write_all(format!("at {} {}", at.0, at.1).as_bytes());
                        }
                    });
                }
            });
        }
        Neighbour { landed }
    }
}

/// 198.18.0.5 for type A of `name.test`, nothing for its other types, NXDOMAIN for other names.
fn answer(asked: &[u8]) -> Vec<u8> {
    let end = 12 + asked[12..].iter().position(|byte| *byte == 0).unwrap_or(0) + 5;
    let question = &asked[12..end];
    let known = question.starts_with(b"\x04name\x04test\0");
    let address = known && question.ends_with(&[0, 1, 0, 1]);
    let mut out = asked[..2].to_vec();
    out.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(address), 0, 0, 0, 0]);
    out.extend(question);
    if address {
        out.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 198, 18, 0, 5]);
    }
    out
}

fn shape(language: Language, ports: &[u16]) -> Option<Shape> {
    let found = runtimes::discover(SEARCH_PATH.as_ref(), &runtimes::OffLimits::default());
    let runtime = found.runtimes.get(&language)?.clone();
    let host = host::pattern("name.test").unwrap().host;
    let grants = ports.iter().map(|port| HostGrant {
        pattern: HostPattern { host: host.clone(), port: Some(*port) },
        ranges: Vec::new(),
        asked: "name.test".into(),
        rule: "test: name.test".into(),
        why: "a test".into(),
    });
    let name = match language {
        Language::Python => "main.py",
        Language::Nodejs => "main.mjs",
        _ => "main.ts",
    };
    let grants: Vec<HostGrant> = grants.collect();
    let network = if grants.is_empty() { Network::None } else { Network::Hosts(grants) };
    let script = Some(PathBuf::from("/tmp").join(name));
    Some(Shape { network, script, ..examine::bare(runtime) })
}

/// Runs a script with this network, beside a neighbour.
async fn run(shape: Shape, source: &str, input: Value) -> (Outcome, Neighbour) {
    run_beside(shape, source, input, Neighbour::of).await
}

/// The same; `beside` takes the sockets, and what it returns is kept until the end.
async fn run_beside<T>(
    shape: Shape,
    source: &str,
    input: Value,
    beside: impl FnOnce(Vec<OwnedFd>) -> T,
) -> (Outcome, T) {
    let own = std::fs::File::open(std::env::var_os(ALONE).unwrap()).unwrap();
    let launchers = Arc::new(Launchers::new(own.into(), sandbox::identity::POOL));
    let extra = Extra { own_source: true, ..Extra::default() };
    let mut launcher = launchers.ready(&shape, &extra).await.unwrap();
    let sockets = std::mem::take(&mut launcher.sockets);
    assert_eq!(sockets.len(), shape.network.ports().len() + 2);
    let neighbour = beside(sockets);
    // The call takes it, since it is of the same shape.
    launchers.put(launcher);
    let per_call = PerCall { timeout_ms: 30_000, source: Some(source.to_owned()), ..PerCall::default() };
    let call = Call {
        manifest: Arc::new(made_of("esc:networked", script("main.py", "python"), json!({}))),
        site: Site { manifest: PathBuf::new(), base: PathBuf::new(), script: None, folder: "/tmp".into() },
        input,
        confinement: Some(Confinement { shape: Shape { script: None, ..shape }.into(), per_call }),
    };
    let context = Context {
        id: "test".into(),
        user: "test".into(),
        cancel: Default::default(),
        came: Instant::now(),
        ran: Default::default(),
        ledger: None,
    };
    let outcome = Scripts::new(launchers).run(&context, call, &Events::unheard()).await.unwrap();
    (outcome, neighbour)
}

fn answered(outcome: &Outcome) -> Value {
    let Ending::Answered(text) = &outcome.ending else { panic!("{:?} {:?}", outcome.ending, outcome.logs) };
    serde_json::from_str(&text.to_string()).unwrap()
}

const SCRIPT: &str = include_str!("networked.py");
const ADDRESSES: [&str; 11] = [
    "198.18.0.1",
    "198.18.3.4",
    "198.19.255.255",
    "1.1.1.1",
    "10.0.0.1",
    "169.254.169.254",
    "127.0.0.1",
    "0.0.0.0",
    "::1",
    "2001:db8::1",
    "::ffff:1.1.1.1",
];
const SETTINGS: [&str; 4] = ["tcp_rmem", "tcp_wmem", "tcp_fastopen", "ip_local_reserved_ports"];

/// What is tried, the answer inside, and the answer outside where it can be had there: by everybody, or by root.
const REFUSED: [(&str, &[&str], Option<bool>); 25] = [
    ("host tcp", &["EACCES", "ENETUNREACH"], Some(true)),
    ("host tcp mapped", &["EACCES", "ENETUNREACH"], Some(true)),
    ("host udp", &["ENETUNREACH"], Some(true)),
    ("udp elsewhere", &["ENETUNREACH"], Some(true)),
    ("own datagrams", &["ENETUNREACH"], Some(true)),
    ("icmp datagram", &["EPROTONOSUPPORT"], None),
    ("raw", &["EPERM"], Some(false)),
    ("packet", &["EPERM"], Some(false)),
    ("netlink", &["EPERM"], Some(true)),
    ("vsock", &["EPERM"], None),
    ("unix", &["EPERM"], Some(true)),
    ("mptcp", &["EPROTONOSUPPORT"], None),
    // A pair is connected for good.
    ("pair to abstract", &["ECONNREFUSED", "EISCONN"], None),
    ("bind tcp", &["EPERM"], Some(true)),
    ("bind udp", &["EPERM"], Some(true)),
    ("listen", &["EPERM"], Some(true)),
    ("data with the first packet", &["ENOTSUP", "EOPNOTSUPP"], None),
    ("many with the first packet", &["ENOTSUP", "EOPNOTSUPP"], None),
    ("to a device", &["ENOPROTOOPT"], None),
    ("filter", &["ENOPROTOOPT"], None),
    ("congestion", &["ENOPROTOOPT"], Some(true)),
    ("options of packets", &["ENOPROTOOPT"], Some(true)),
    ("multicast", &["ENOPROTOOPT"], Some(true)),
    ("receive buffer", &["65536 stays"], Some(true)),
    ("asks the stub", &["198.18.0.5"], None),
];

#[test]
fn a_networked_call_reaches_its_listeners_and_nothing_else() {
    as_everyone("alone");
}

#[tokio::test]
#[ignore = "started by the test above, as each user"]
async fn alone() {
    let folder = tempfile::tempdir().unwrap();
    let listeners = Listeners::open(folder.path());
    let (tcp, udp) = listeners.ports();
    let mut input = json!({"outside": false, "addresses": ADDRESSES, "ports": PORTS, "tcp": tcp, "udp": udp,
        "abstract": listeners.abstract_name, "settings": SETTINGS});
    let (outcome, neighbour) = run(shape(Language::Python, &PORTS).unwrap(), SCRIPT, input.clone()).await;
    let said = answered(&outcome);
    for (what, inside, _) in REFUSED {
        assert!(inside.iter().any(|answer| said[what] == *answer), "{what}: {}", said[what]);
    }
    let mut places = BTreeSet::new();
    for address in ADDRESSES {
        let at: IpAddr = address.parse::<IpAddr>().unwrap().to_canonical();
        let at = if at.is_unspecified() { "127.0.0.1".parse().unwrap() } else { at };
        for port in PORTS {
            assert_eq!(said[format!("{address} {port}")], format!("at {at} {port}"), "{address}");
            places.insert((at, port));
        }
    }
    assert_eq!(*neighbour.landed.lock().unwrap(), places);
    assert_eq!(said["tcp_rmem"], json!(["4096", "65536", "65536"]));
    assert_eq!(said["tcp_wmem"], json!(["4096", "65536", "65536"]));
    assert_eq!((&said["tcp_fastopen"], &said["ip_local_reserved_ports"]), (&json!(["0"]), &json!(["80,40000"])));
    assert_eq!(said["resolv"], "nameserver 198.18.0.1\noptions ndots:1 timeout:2 attempts:2\n");
    assert_eq!(listeners.heard(), 0, "the host's listeners");

    // The control: outside, by the same user.
    (input["outside"], input["addresses"], input["settings"]) = (json!(true), json!([]), json!([]));
    let mut python = Command::new(PYTHON);
    python.args(["-c", SCRIPT]);
    let ended = finish(python, input.to_string().as_bytes());
    let root = nix::unistd::geteuid().is_root();
    for (what, _, outside) in REFUSED {
        if outside.is_some_and(|everybody| everybody || root) {
            assert_eq!(ended.out[what], "done", "outside, {what}: {}", ended.stderr);
        }
    }
    assert!(listeners.heard() >= 3, "the listeners hear");
}

/// Programs as they are. Each answers `ok` when all that it does worked.
const CLIENTS: [(Language, &str); 3] = [
    (
        Language::Python,
        r#"
import asyncio, http.client, json, socket, subprocess, urllib.request
URL = "http://name.test/"
got = {"urllib": urllib.request.urlopen(URL, timeout=9).read().decode()}
connection = http.client.HTTPConnection("name.test", timeout=9)
connection.request("GET", "/")
got["http"] = connection.getresponse().read().decode()
async def streams():
    reader, writer = await asyncio.open_connection("name.test", 80)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    return (await reader.read()).decode()[-4:]
got["asyncio"] = asyncio.run(streams())
got["curl"] = subprocess.run(["curl", "-sS", "-m9", URL], capture_output=True, text=True).stdout
try:
    import requests
    got["requests"] = requests.get(URL, timeout=9).text
except ImportError:
    pass
for config in [{"family": socket.AF_INET}, {"flags": socket.AI_ADDRCONFIG}, {}]:
    assert {a[4][0] for a in socket.getaddrinfo("name.test", 80, **config)} == {"198.18.0.5"}
try:
    socket.getaddrinfo("other.test", 80)
except socket.gaierror as e:
    got["other"] = e.errno == socket.EAI_NONAME and '"ok"'
print(json.dumps("ok" if set(got.values()) == {'"ok"'} else got))
"#,
    ),
    (
        Language::Nodejs,
        r#"
import dns from "node:dns/promises"; import http from "node:http";
const url = "http://name.test/", got = {};
got.fetch = await (await fetch(url)).text();
got.http = await new Promise((done, failed) => http.get(url, (r) => { let t = ""; r.on("data", (d) => t += d); r.on("end", () => done(t)); }).on("error", failed));
got.lookup = (await dns.lookup("name.test")).address; got.resolve = (await dns.resolve4("name.test"))[0];
got.other = (await dns.resolve4("other.test").catch((e) => e)).code; got.other2 = (await dns.lookup("other.test").catch((e) => e)).code;
const wanted = '{"fetch":"\\"ok\\"","http":"\\"ok\\"","lookup":"198.18.0.5","resolve":"198.18.0.5","other":"ENOTFOUND","other2":"ENOTFOUND"}';
console.log(JSON.stringify(JSON.stringify(got) === wanted ? "ok" : got));
"#,
    ),
    (
        Language::Bun,
        r#"
const got = await (await fetch("http://name.test/")).text();
const other = await fetch("http://other.test/").then((r) => r.text(), (e) => e.code);
console.log(JSON.stringify(got === '"ok"' && other !== got ? "ok" : [got, other]));
"#,
    ),
];

#[test]
fn unmodified_clients_work() {
    as_everyone("clients");
}

#[tokio::test]
#[ignore = "started by the test above, as each user"]
async fn clients() {
    for (language, source) in CLIENTS {
        let Some(shape) = shape(language, &[80]) else {
            crate::harness::missing(1, language.name());
            continue;
        };
        let (outcome, _neighbour) = run(shape, source, json!({})).await;
        assert_eq!(answered(&outcome), "ok", "{language:?} {:?}", outcome.logs);
    }
}

/// Connections that nobody reads, each filled until it takes no more. Answers how many bytes wait to be sent.
const FILLS: &str = r#"
import array, fcntl, json, socket, sys, termios, time
kept, waiting = [], array.array("i", [0])
for n in range(json.load(sys.stdin)):
    s = socket.create_connection(("192.0.2.1", 80))
    s.setblocking(False)
    kept.append(s)
    try:
        while True:
            s.send(bytes(65536))
    except BlockingIOError:
        pass
total = 0
for s in kept:
    fcntl.ioctl(s, termios.TIOCOUTQ, waiting)
    total += waiting[0]
time.sleep(0.2)
print(total)
"#;

#[test]
fn full_buffers_of_connections_are_held() {
    as_everyone("fills");
}

#[tokio::test]
#[ignore = "started by the test above, as each user"]
async fn fills() {
    const MEMORY: u64 = 32 << 20;
    let fill = |memory| {
        let mut shape = shape(Language::Python, &[80]).unwrap();
        shape.limits.set(Limit::MemoryBytes, memory);
        shape.limits.set(Limit::OpenFiles, 1200);
        run_beside(shape, FILLS, json!(1000), |sockets| {
            let listener = TcpListener::from(sockets.into_iter().last().unwrap());
            listener.set_nonblocking(false).unwrap();
            std::thread::spawn(move || listener.incoming().collect::<Vec<_>>())
        })
    };
    let waits = |outcome: &Outcome| answered(outcome).as_u64().unwrap();
    let much = waits(&fill(1 << 30).await.0);
    assert!(much > MEMORY / 4, "control: {much}");
    let outcome = fill(MEMORY).await.0;
    let sampled = outcome.walls.iter().any(|wall| wall.state == "sampled");
    match &outcome.ending {
        Ending::OverLimit { limit: Limit::MemoryBytes, .. } => {}
        // Each socket may always hold a little (tcp_wmem).
        _ if !sampled => assert!(waits(&outcome) < MEMORY / 4 + 1000 * 8192, "{} of {much}", waits(&outcome)),
        other => panic!("{other:?} {:?}", outcome.logs),
    }
}
