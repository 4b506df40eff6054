//! Each test raises one layer alone. The attack fails behind the layer, and succeeds without it.
//! Only tests can do that: the product cannot leave a layer out.

use super::plan::{Plan, Program, Step};
use crate::layers::{
    cgroup, descriptors, identity, landlock, limits, namespaces, privileges, seccomp, session,
};
use crate::{spawn, sys};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use toolhost_base::quantity::{Limit, Limits, MIB};

/// Runs a shell script behind the steps that `raise` adds. Returns its exit code and its output.
fn attack(script: &str, environment: &[&str], raise: impl FnOnce(&mut Plan)) -> (i32, String) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let mut plan = Plan::default();
    raise(&mut plan);
    plan.add(
        "test",
        Step::Duplicate {
            from: write.as_raw_fd(),
            to: 1,
        },
    );
    let arguments = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let environment: Vec<String> = environment.iter().map(|s| (*s).to_owned()).collect();
    plan.execute(
        Program::Path(CString::new("/bin/sh").expect("no NUL")),
        &arguments,
        &environment,
    );
    // Without an init the one process performs the tool's steps.
    let tool = std::mem::take(&mut plan.tool);
    plan.steps.extend(tool);
    let (pid, _pidfd) = spawn::spawn(&plan).unwrap_or_else(|problem| panic!("{problem:?}"));
    drop(write);
    let mut said = String::new();
    std::fs::File::from(read)
        .read_to_string(&mut said)
        .expect("its output");
    let waited = sys::wait4(pid, true).expect("wait4").expect("dead");
    let code = if waited.status & 0x7f == 0 {
        waited.status >> 8
    } else {
        128 + (waited.status & 0x7f)
    };
    (code, said.trim().to_owned())
}

const PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";

fn open(path: &str) -> OwnedFd {
    nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).expect(path)
}

#[test]
fn seccomp() {
    let script = "/usr/bin/python3 -S -E -c 'import socket,sys
try: socket.socket(); print(\"socket\")
except OSError as e: print(e.errno)'";
    assert_eq!(attack(script, &[PATH], |_| {}).1, "socket", "control");
    assert_eq!(
        attack(script, &[PATH], |plan: &mut Plan| {
            privileges::no_new(plan);
            let filter = seccomp::program(seccomp::Variant::default());
            seccomp::raise(plan, &filter, None, false);
        })
        .1,
        "1",
        "EPERM"
    );
}

#[test]
fn landlock() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("outside");
    let script = format!("echo x > {}", file.display());
    assert_eq!(attack(&script, &[PATH], |_| {}).0, 0, "control");
    std::fs::remove_file(&file).expect("the control made it");
    let mut rules = landlock::RuleBuilder::new(sys::landlock_abi(), false).expect("a ruleset");
    rules = rules
        .allow(&open("/"), true, landlock::Right::ReadRun)
        .expect("a rule");
    let ruleset = rules.done().expect("a ruleset");
    assert_ne!(
        attack(&script, &[PATH], |plan: &mut Plan| {
            privileges::no_new(plan);
            landlock::raise(plan, &ruleset);
        })
        .0,
        0
    );
    assert!(!file.exists(), "nothing was written");
}

#[test]
fn privileges() {
    let script = "grep -c -E '^Cap(Inh|Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status";
    if nix::unistd::geteuid().is_root() {
        assert_ne!(attack(script, &[PATH], |_| {}).1, "0", "control");
    }
    fn alone(plan: &mut Plan) {
        privileges::no_new(plan);
        // Without a user namespace only root may empty the bounding set.
        if nix::unistd::geteuid().is_root() {
            privileges::drop_all(plan, privileges::last_capability());
        }
    }
    let left = if nix::unistd::geteuid().is_root() {
        script.to_owned()
    } else {
        "echo 0".to_owned()
    };
    // If the bounding set were not empty, execve(2) as root would give them back (capabilities(7)).
    assert_eq!(attack(&left, &[PATH], alone).1, "0");
    assert_eq!(
        attack(
            "grep NoNewPrivs /proc/self/status",
            &[PATH],
            privileges::no_new
        )
        .1,
        "NoNewPrivs:\t1"
    );
}

#[test]
fn limits() {
    let script = "ulimit -n";
    assert_ne!(attack(script, &[PATH], |_| {}).1, "77", "control");
    let mut wanted = Limits::built_in();
    wanted.set(Limit::OpenFiles, 77);
    assert_eq!(
        attack(script, &[PATH], |plan| limits::raise(
            plan,
            &wanted,
            u64::MAX,
            limits::Usage {
                counted: true,
                serves: crate::spec::Serves::Call
            },
            1
        ))
        .1,
        "77"
    );
}

#[test]
fn descriptors() {
    // A descriptor of the host, given on purpose: no CLOEXEC.
    let leak = nix::fcntl::open("/etc/hostname", OFlag::O_RDONLY, Mode::empty()).expect("a file");
    let script = format!("test -e /proc/self/fd/{}", leak.as_raw_fd());
    assert_eq!(attack(&script, &[PATH], |_| {}).0, 0, "control");
    assert_eq!(
        attack(&script, &[PATH], |plan: &mut Plan| plan
            .add("descriptors", Step::CloseOnExecFrom(3)))
        .0,
        1
    );
    let stdio = std::fs::File::open("/dev/null").expect("null");
    assert_eq!(
        attack(&script, &[PATH], |plan: &mut Plan| descriptors::raise(
            plan,
            &[stdio.as_raw_fd(); 3]
        ))
        .0,
        1
    );
}

#[test]
fn session() {
    let script = "/usr/bin/python3 -S -E -c 'import os; print(os.getsid(0) == os.getpid() or \
        os.getsid(0) == os.getppid())'";
    assert_eq!(attack(script, &[PATH], |_| {}).1, "False", "control");
    assert_eq!(attack(script, &[PATH], session::raise).1, "True");
}

#[test]
fn environment() {
    let script = "echo ${SECRET-unset}";
    assert_eq!(
        attack(script, &[PATH, "SECRET=x"], |_| {}).1,
        "x",
        "control"
    );
    assert_eq!(
        attack(script, &[PATH], |_| {}).1,
        "unset",
        "the plan's environment is all there is"
    );
}

#[test]
fn namespaces() {
    let host = std::process::id();
    let script = format!("kill -0 {host}");
    assert_eq!(attack(&script, &[PATH], |_| {}).0, 0, "control");
    assert_ne!(
        attack(&script, &[PATH], namespaces::raise).0,
        0,
        "no such process in there"
    );
}

#[test]
fn identity() {
    let script = "id -u";
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!(
        attack(script, &[PATH], |_| {}).1,
        own.to_string(),
        "control"
    );
    assert_eq!(
        attack(script, &[PATH], |plan: &mut Plan| {
            plan.namespaces = nix::libc::CLONE_NEWUSER;
            identity::raise(plan, own);
        })
        .1,
        identity::GUEST.to_string()
    );
}

#[test]
fn cgroup() {
    let Some(groups) = cgroup::Cgroups::find() else {
        println!("SKIPPED cgroup: no writable cgroup here");
        return;
    };
    let script = "/usr/bin/python3 -S -E -c 'a = bytearray(200 << 20); print(len(a))'";
    assert_eq!(attack(script, &[PATH], |_| {}).0, 0, "control");
    let group = groups.make("", 64 * MIB, 16).expect("a group");
    let files = group
        .descriptors()
        .iter()
        .map(|f| f.try_clone_to_owned().expect("dup"))
        .collect();
    let mut counters = cgroup::Counters::from(groups.version(), files).expect("counters");
    counters.begin().expect("its counters");
    let (code, said) = attack(script, &[PATH], |plan| counters.raise(plan));
    // The shell, or the program it became, is killed.
    assert_eq!((code, said.as_str()), (137, ""));
    assert!(counters.read_usage().expect("its counters").oom_kills > 0);
}

/// The launcher raises this layer by unshare(2), which a thread of root can do for itself.
#[test]
fn network() {
    if !identity::real_root() {
        println!(
            "SKIPPED network: a thread needs root to leave the network; the escape suite shows it \
            for users"
        );
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    let script = format!(
        "/usr/bin/python3 -S -E -c 'import socket
try: socket.create_connection((\"127.0.0.1\",{port}),2); print(\"reached\")
except OSError as e: print(e.errno)'"
    );
    assert_eq!(attack(&script, &[PATH], |_| {}).1, "reached", "control");
    let alone = std::thread::spawn(move || {
        crate::layers::network::raise().expect("a network namespace");
        attack(&script, &[PATH], |_| {}).1
    });
    assert_eq!(
        alone.join().expect("no panic"),
        nix::libc::ENETUNREACH.to_string()
    );
}

/// The layer of a call with granted hosts, without Landlock and seccomp behind it.
#[test]
fn network_of_granted_hosts() {
    if !identity::real_root() {
        println!("SKIPPED network of granted hosts: a thread needs root to leave the network");
        return;
    }
    use std::net::{TcpListener, TcpStream, UdpSocket};
    let alone = std::thread::spawn(|| {
        const KEPT: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
        fn unreachable(result: std::io::Result<()>) {
            assert_eq!(
                result.expect_err("no route").raw_os_error(),
                Some(nix::libc::ENETUNREACH)
            );
        }
        crate::layers::network::raise().expect("a network namespace");
        let sockets = crate::layers::network::open(Some(&[80, 40_000]), false).expect("the layer");
        assert_eq!(sockets.len(), 4);
        let many: Vec<u16> = (100..129).collect();
        assert!(
            [&[53][..], &[0], &many]
                .iter()
                .all(|ports| crate::layers::network::open(Some(ports), false).is_err())
        );
        let reached =
            TcpStream::connect("192.0.2.1:80").expect("control: a granted port, at any address");
        assert_eq!(
            reached.peer_addr().expect("its address").to_string(),
            "192.0.2.1:80"
        );
        TcpStream::connect("198.18.0.1:53").expect("control: the stub");
        // Other listeners (a tool cannot have any) cannot be reached.
        for own in ["127.0.0.1:81", "[::1]:81", "198.18.0.1:54"] {
            let _listener = TcpListener::bind(own).expect("a listener");
            unreachable(TcpStream::connect(own).map(drop));
        }
        unreachable(TcpStream::connect("192.0.2.1:53").map(drop));
        for own in ["127.0.0.1:0", "[::1]:0", "198.18.0.1:0"] {
            let one = UdpSocket::bind(own).expect("a socket");
            let other = UdpSocket::bind(own).expect("a socket");
            unreachable(
                other
                    .send_to(b"x", one.local_addr().expect("its address"))
                    .map(drop),
            );
        }
        // Without a listener a socket can connect to itself (RFC 9293, 3.5), unless its port is
        // reserved.
        drop(sockets);
        fn own() -> Result<u16, std::io::Error> {
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000")
                .expect("one port");
            TcpStream::connect("127.0.0.1:40000")
                .map(|met| met.local_addr().expect("its address").port())
        }
        assert_eq!(
            own().expect_err("no port").raw_os_error(),
            Some(nix::libc::EADDRNOTAVAIL)
        );
        std::fs::write(KEPT, "\n").expect("control: no port is reserved");
        assert_eq!(own().expect("it reaches itself"), 40_000);
    });
    alone.join().expect("no panic");
}
