//! Relay: this binary behind the layers of a tool, serving the network namespace of one tool, one
//! call at a time. It makes no socket itself. A panic in one connection resets that connection;
//! anywhere else it ends the process.

mod answers;
mod call;
mod connections;
mod hello;
mod http;
mod message;
mod secrets;
mod stream;
mod stub;

use super::protocol::{FromRelay, Served, ToRelay};
use super::tls;
use crate::base::messages::{self, adopt};
pub(super) use call::SyntheticAddresses;
use call::{Call, Control};
use nix::sys::socket::{MsgFlags, SockFlag, accept4, recv};
use secrets::Secrets;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{io, net};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};
use tokio::task::JoinSet;

/// The descriptor of the control socket.
const CONTROL: i32 = 3;
/// Largest lease that is read, bytes.
const LEASE: u64 = 1024 * 1024;
/// How often the CPU time of a call is checked.
const CPU_LOOK: Duration = Duration::from_millis(50);

/// The whole life of a relay.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toolhost-relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let control = std::os::unix::net::UnixDatagram::from(adopt(CONTROL));
    control.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    runtime.block_on(async { serve(UnixDatagram::from_std(control)?, None).await })
}

/// What a relay serves for as long as it lives.
struct Relay {
    control: Arc<Control>,
    lease: Arc<Served>,
    udp: Arc<UdpSocket>,
    tcp: Arc<TcpListener>,
    listeners: Vec<(u16, Arc<TcpListener>)>,
    /// Root certificates, if not the machine's.
    trust: Option<tls::TlsConfig>,
}

/// A call, the loops that accept for it, and what reports to the host that it passed a limit.
struct Running {
    call: Arc<Call>,
    loops: JoinSet<()>,
    reports: JoinSet<io::Result<()>>,
}

/// Serves until the host closes its end. `trust`: instead of the machine's roots.
async fn serve(socket: UnixDatagram, trust: Option<tls::TlsConfig>) -> io::Result<()> {
    let control = Arc::new(Control {
        socket,
        next: Default::default(),
    });
    let relay = match control.receive().await? {
        None => return Ok(()),
        Some((ToRelay::Serve, descriptors)) => {
            Relay::new(Arc::clone(&control), descriptors, trust)?
        }
        Some(_) => return Err(io::Error::other("the first order was not serve")),
    };
    control.send(&FromRelay::Ready).await?;
    let mut running = None;
    loop {
        tokio::select! {
            heard = control.receive() => match heard? {
                Some((order, descriptors)) => relay.handle_order(&mut running, order, descriptors).await?,
                None => return Ok(()),
            },
            over = over_limit(&mut running) => {
                let call = over?;
                // In a task of its own: orders must be received even while the host does not take
                // this.
                running.as_mut().map(|running| running.reports.spawn(async move { call.over().await }));
            }
        }
    }
}

/// The call, once it passes a limit.
async fn over_limit(running: &mut Option<Running>) -> io::Result<Arc<Call>> {
    let Some(Running { call, loops, .. }) = running else {
        return std::future::pending().await;
    };
    // Frequent orders must not starve the timer below.
    call.check_cpu();
    loop {
        tokio::select! {
            () = call.meter.limit_exceeded() => return Ok(Arc::clone(call)),
            _ = loops.join_next() => return Err(io::Error::other("an accept loop ended")),
            () = tokio::time::sleep(CPU_LOOK) => call.check_cpu(),
        }
    }
}

impl Relay {
    fn new(
        control: Arc<Control>,
        descriptors: Vec<OwnedFd>,
        trust: Option<tls::TlsConfig>,
    ) -> io::Result<Relay> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            descriptors
                .next()
                .ok_or_else(|| io::Error::other("the lease lacks a descriptor"))
        };
        let lease = messages::read_memory_file(next()?, LEASE)?;
        let lease: Served = serde_json::from_slice(&lease)?;
        let udp = net::UdpSocket::from(next()?);
        udp.set_nonblocking(true)?;
        let mut listener = || {
            let listener = net::TcpListener::from(next()?);
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener).map(Arc::new)
        };
        let tcp = listener()?;
        let listeners = lease
            .ports
            .iter()
            .map(|port| Ok((*port, listener()?)))
            .collect::<io::Result<_>>()?;
        let lease = Arc::new(lease);
        let udp = Arc::new(UdpSocket::from_std(udp)?);
        Ok(Relay {
            control,
            lease,
            udp,
            tcp,
            listeners,
            trust,
        })
    }

    async fn handle_order(
        &self,
        running: &mut Option<Running>,
        order: ToRelay,
        fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        match (order, running.as_ref()) {
            (ToRelay::Begin, None) => {
                *running = Some(self.begin(Secrets::read(fds.into_iter().next())?))
            }
            (ToRelay::Dialled { id }, Some(Running { call, .. })) => {
                let socket = fds
                    .into_iter()
                    .next()
                    .ok_or_else(|| io::Error::other("no socket was handed over"))?;
                let socket = net::TcpStream::from(socket);
                socket.set_nonblocking(true)?;
                call.dialled(id, Some(TcpStream::from_std(socket)?));
            }
            (ToRelay::Undialled { id }, Some(Running { call, .. })) => call.dialled(id, None),
            // An answer for a call that has ended.
            (ToRelay::Dialled { .. } | ToRelay::Undialled { .. }, None) => {}
            (ToRelay::End, _) => {
                let totals = match running.take() {
                    Some(Running {
                        call,
                        mut loops,
                        mut reports,
                    }) => {
                        loops.shutdown().await;
                        reports.shutdown().await;
                        let totals = call.end().await;
                        // The reset may have ended the tool before its cause was reported.
                        call.over().await?;
                        totals
                    }
                    None => Default::default(),
                };
                self.drain();
                self.control.send(&FromRelay::Ended(totals)).await?;
            }
            _ => return Err(io::Error::other("an unexpected order")),
        }
        Ok(())
    }

    fn begin(&self, secrets: Secrets) -> Running {
        // The roots are read for each call that may need them: a root that was removed counts no
        // longer.
        let machine_roots = LazyCell::new(|| self.trust.clone().unwrap_or_else(tls::machine_roots));
        let of_host = |host: &String| match self.lease.authorities.get(host) {
            Some(pem) => tls::with_resumption(&tls::authority_roots(pem)),
            None => tls::with_resumption(&machine_roots),
        };
        let hosts: BTreeSet<&String> = self
            .lease
            .headers
            .iter()
            .map(|(_, rule)| &rule.host)
            .collect();
        let trust = hosts
            .into_iter()
            .map(|host| (host.clone(), of_host(host)))
            .collect();
        let call = Call::new(
            Arc::clone(&self.lease),
            Arc::clone(&self.control),
            secrets,
            trust,
        );
        let mut loops = JoinSet::new();
        loops.spawn(stub::serve_udp(Arc::clone(&call), Arc::clone(&self.udp)));
        loops.spawn(stub::serve_tcp(Arc::clone(&call), Arc::clone(&self.tcp)));
        for (port, listener) in &self.listeners {
            loops.spawn(connections::accept(
                Arc::clone(&call),
                Arc::clone(listener),
                *port,
            ));
        }
        Running {
            call,
            loops,
            reports: JoinSet::new(),
        }
    }

    /// Drops what waits in the sockets. Not through tokio, which asks the kernel only after an
    /// event.
    fn drain(&self) {
        let mut byte = [0];
        while recv(self.udp.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_ok() {}
        for listener in self
            .listeners
            .iter()
            .map(|(_, listener)| listener)
            .chain([&self.tcp])
        {
            while let Ok(socket) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                let socket = adopt(socket);
                let _ = stream::reset_on_close(&socket, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;
