//! Where others may knock: sockets and a pipe of the host, which tell whether somebody did.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where others may knock, and whether they did.
pub struct Listeners {
    tcp: TcpListener,
    udp: UdpSocket,
    streams: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    pipe: fs::File,
    pub abstract_name: String,
}

impl Listeners {
    pub fn open(folder: &Path) -> Listeners {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "toolhost-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::SeqCst)
        );
        let address = |text: &str| SocketAddr::from_abstract_name(text).unwrap();
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = fs::OpenOptions::new()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&pipe)
            .unwrap();
        let listeners = Listeners {
            pipe: reader,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            streams: vec![
                UnixListener::bind_addr(&address(&name)).unwrap(),
                UnixListener::bind(folder.join("stream.sock")).unwrap(),
            ],
            datagrams: vec![
                UnixDatagram::bind_addr(&address(&format!("{name}-d"))).unwrap(),
                UnixDatagram::bind(folder.join("dgram.sock")).unwrap(),
            ],
            abstract_name: name,
        };
        for socket in ["stream.sock", "dgram.sock", "pipe"] {
            fs::set_permissions(folder.join(socket), fs::Permissions::from_mode(0o777)).unwrap();
        }
        listeners.tcp.set_nonblocking(true).unwrap();
        listeners.udp.set_nonblocking(true).unwrap();
        listeners
            .streams
            .iter()
            .for_each(|l| l.set_nonblocking(true).unwrap());
        listeners
            .datagrams
            .iter()
            .for_each(|l| l.set_nonblocking(true).unwrap());
        listeners
    }

    pub fn ports(&self) -> (u16, u16) {
        (
            self.tcp.local_addr().unwrap().port(),
            self.udp.local_addr().unwrap().port(),
        )
    }

    /// How many knocked since the last look.
    pub fn heard(&self) -> usize {
        let mut bytes = [0; 64];
        let mut count = usize::from((&self.pipe).read(&mut bytes).is_ok_and(|bytes| bytes > 0));
        count += std::iter::from_fn(|| self.tcp.accept().ok()).count();
        count += std::iter::from_fn(|| self.udp.recv(&mut bytes).ok()).count();
        let streams = self
            .streams
            .iter()
            .flat_map(|one| std::iter::from_fn(|| one.accept().ok()))
            .count();
        let datagrams = self
            .datagrams
            .iter()
            .flat_map(|one| std::iter::from_fn(|| one.recv(&mut [0; 64]).ok()));
        count + streams + datagrams.count()
    }
}
