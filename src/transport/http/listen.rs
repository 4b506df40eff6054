//! Listen addresses, and the authentication that each requires. An address that others can reach
//! needs tokens and TLS; a unix socket is for this user alone.

use super::peer::{self, SocketDiag};
use crate::base::{files, text};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, major, minor, umask};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Largest certificate or key file, bytes.
const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// How long to wait for other servers that start in the same folder.
const OTHERS: Duration = Duration::from_secs(5);

/// `127.0.0.1:8787`, `[::1]:8787`, `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    pub fn parse(written: &str) -> Result<Address, String> {
        match written.strip_prefix("unix:") {
            Some("") => Err("name the socket: unix:PATH".to_owned()),
            Some(path) => std::path::absolute(path).map(Address::Unix).map_err(|e| e.to_string()),
            None => written.parse().map(Address::Tcp).map_err(|_| {
                "write an address and a port (127.0.0.1:8787, [::1]:8787) or a socket (unix:PATH)".to_owned()
            }),
        }
    }

    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", text::path(path)),
        }
    }
}

pub enum Listener {
    Tcp(TcpListener),
    /// The socket, its path, and its device and inode.
    Unix(UnixListener, PathBuf, (u64, u64)),
}

/// An accepted connection, on which nothing was sent yet.
pub enum Socket {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    pub async fn bind(address: &Address) -> Result<Listener, String> {
        let bound = match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Listener::Tcp),
            Address::Unix(path) => unix(path),
        };
        bound.map_err(|e| {
            let fix = match (e.kind(), address) {
                (io::ErrorKind::AddrInUse, Address::Tcp(address)) => format!(
                    ": another program listens there; port 0 takes a free one (--http {}:0)",
                    address.ip()
                ),
                _ => String::new(),
            };
            format!("--http {address}: {e}{fix}")
        })
    }

    /// The bound address: for port 0 the kernel chose the port.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Listener::Unix(_, path, _) => Ok(Address::Unix(path.clone())),
        }
    }

    pub async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, peer)| Socket::Tcp(stream, peer)),
            Listener::Unix(listener, ..) => listener
                .accept()
                .await
                .map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may listen there by now.
        if let Listener::Unix(_, path, own) = self
            && path
                .symlink_metadata()
                .is_ok_and(|facts| (facts.dev(), facts.ino()) == *own)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Servers that start at the same moment check and bind one after another: otherwise both could
/// replace the socket of a dead server, and one would listen without clients. The lock is on the
/// folder, so no lock file is left.
fn lock_socket(path: &Path) -> io::Result<Flock<File>> {
    let until = Instant::now() + OTHERS;
    let mut folder = File::open(path.parent().unwrap_or(path))?;
    loop {
        folder = match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((folder, Errno::EWOULDBLOCK)) if Instant::now() < until => folder,
            Err((folder, Errno::EWOULDBLOCK)) => {
                let words = format!(
                    "{} keeps its folder locked (flock): end that, or name another path",
                    holder(&folder)?
                );
                return Err(io::Error::other(words));
            }
            Err((_, why)) => return Err(why.into()),
        };
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Who holds a lock of flock(2) on this file, in words (proc_locks(5)).
fn holder(file: &File) -> io::Result<String> {
    let facts = file.metadata()?;
    let id = format!(
        " {:02x}:{:02x}:{} ",
        major(facts.dev()),
        minor(facts.dev()),
        facts.ino()
    );
    let locks = std::fs::read_to_string("/proc/locks")?;
    // `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`; whoever waits has `->` before FLOCK.
    let lock = locks
        .lines()
        .find(|lock| lock.contains(": FLOCK ") && lock.contains(&id));
    let pid = lock
        .and_then(|lock| lock.split_ascii_whitespace().nth(4))
        .unwrap_or("unknown");
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(format!(
        "pid {pid} ({})",
        text::printable(program.trim_end())
    ))
}

/// A socket that only its owner may connect to, from its first moment.
fn unix(path: &Path) -> io::Result<Listener> {
    let _lock = lock_socket(path)?;
    if let Ok(facts) = path.symlink_metadata() {
        if !facts.file_type().is_socket() {
            return Err(io::Error::other(
                "something other than a socket lies there: name another path, or remove it",
            ));
        }
        if !files::is_me(facts.uid()) {
            let words = format!(
                "a socket of another user (uid {}) lies there: name another path",
                facts.uid()
            );
            return Err(io::Error::other(words));
        }
        if listens(path)? {
            return Err(io::Error::other("a server listens there already"));
        }
        // Left by a server that was killed.
        std::fs::remove_file(path)?;
    }
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let bound = bound?;
    let facts = path.symlink_metadata()?;
    Ok(Listener::Unix(
        bound,
        path.to_path_buf(),
        (facts.dev(), facts.ino()),
    ))
}

/// Only a refused connection says that no server listens; EAGAIN means a server whose queue is full
/// (unix(7)).
fn listens(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

impl Socket {
    /// The user at the other end. `None`: it is not on this machine, or has no owner. `Err`: the
    /// lookup failed.
    pub fn uid(&self, kernel: &SocketDiag) -> io::Result<Option<u32>> {
        match self {
            Socket::Unix(stream) => peer::unix_peer(stream).map(Some),
            Socket::Tcp(_, theirs) if !theirs.ip().to_canonical().is_loopback() => Ok(None),
            Socket::Tcp(stream, theirs) => {
                let owner = kernel.owner(*theirs, stream.local_addr()?)?;
                // A connection that was reset meanwhile has no peer. Its address may be somebody
                // else's now, while what the old peer sent can still be read.
                Ok(owner.filter(|_| stream.peer_addr().is_ok()))
            }
        }
    }
}

/// TLS 1.2 and 1.3 with these files; HTTP/1.1 alone.
pub fn tls(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    fn at(path: &Path, why: String) -> String {
        format!("{}: {why}", text::path(path))
    }
    let read = |path: &Path, private: bool| -> Result<Vec<u8>, String> {
        let file = files::open(path, nix::fcntl::OFlag::empty());
        let read = files::checked(file, MAX_PEM_BYTES, |facts| {
            files::not_private(facts).filter(|_| private)
        });
        read.map_err(|why| at(path, why))
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&read(certificate, false)?).collect();
    let chain = chain.map_err(|e| at(certificate, format!("not certificates in PEM: {e}")))?;
    let secret = PrivateKeyDer::from_pem_slice(&read(key, true)?);
    let secret = secret.map_err(|e| at(key, format!("no private key in PEM: {e}")))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret);
    let mut config = config.map_err(|e| at(certificate, e.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
