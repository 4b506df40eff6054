//! What a relay knows of one call: names, totals, limits, events, sockets that it asked for,
//! connections.

use super::secrets::Secrets;
use super::stream::{MeteredStream, TrafficMeter, target};
use crate::base::{cpu_time, lock, mask, messages, millis};
use crate::egress::protocol::{
    EVENTS, FromRelay, RefusalReason, Served, TEXT, ToRelay, Totals, TrafficEvent, TrafficKind,
};
use crate::egress::tls::TlsConfig;
use crate::manifest::host::Host;
use crate::quantity::Limit;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

/// How long a loop waits after an error that may pass, such as too few descriptors.
pub const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The socket to the host, and the number of the next `Dial`.
pub struct Control {
    pub socket: UnixDatagram,
    pub next: AtomicU64,
}

impl Control {
    pub async fn send(&self, message: &FromRelay) -> io::Result<()> {
        self.socket
            .async_io(Interest::WRITABLE, || {
                messages::send(self.socket.as_fd(), message, &[])
            })
            .await
    }

    /// The next message. Cancel-safe: a message is taken whole or not at all.
    pub async fn receive(&self) -> io::Result<Option<(ToRelay, Vec<OwnedFd>)>> {
        self.socket
            .async_io(Interest::READABLE, || {
                messages::receive(self.socket.as_fd())
            })
            .await
    }
}

/// One of the connections that a call may have at one time.
pub type Slot = Arc<OwnedSemaphorePermit>;

pub struct Call {
    pub lease: Arc<Served>,
    pub secrets: Secrets,
    /// The certificates that are trusted for each host that gets a secret.
    pub trust: BTreeMap<String, TlsConfig>,
    control: Arc<Control>,
    state: Mutex<State>,
    /// A task for each connection of the call.
    tasks: Mutex<JoinSet<()>>,
    slots: Arc<Semaphore>,
    pub meter: Arc<TrafficMeter>,
    cpu_limit: u64,
    cpu_before: u64,
}

#[derive(Default)]
pub struct State {
    pub totals: Totals,
    pub names: SyntheticAddresses,
    reported: Vec<TrafficEvent>,
    /// Sockets that were asked for. The slot is held until the answer, also when the tool went away
    /// before.
    dials: HashMap<u64, (oneshot::Sender<TcpStream>, Slot)>,
}

impl Call {
    pub fn new(
        lease: Arc<Served>,
        control: Arc<Control>,
        secrets: Secrets,
        trust: BTreeMap<String, TlsConfig>,
    ) -> Arc<Call> {
        fn limit(limit: Limit, lease: &Arc<Served>) -> u64 {
            lease
                .limits
                .get(&limit)
                .copied()
                .unwrap_or_else(|| limit.built_in_default())
        }
        let slots = usize::try_from(limit(Limit::Connections, &lease))
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Arc::new(Call {
            meter: Arc::new(TrafficMeter::new(
                limit(Limit::SentBytes, &lease),
                limit(Limit::ReceivedBytes, &lease),
            )),
            cpu_limit: limit(Limit::CpuMs, &lease),
            cpu_before: millis(cpu_time()),
            lease,
            secrets,
            trust,
            control,
            state: Mutex::default(),
            tasks: Mutex::default(),
            slots: Arc::new(Semaphore::new(slots)),
        })
    }

    /// Do not hold the lock across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether any grant covers this host, at this port or, without one, at any port.
    pub fn granted(&self, host: &Host, port: Option<u16>) -> bool {
        self.lease.grants.iter().any(|grant| match port {
            Some(port) => grant.reaches(host, port),
            None => grant.pattern.host.covers(host),
        })
    }

    /// Takes a slot for one more connection, or returns the limit that is reached.
    pub fn slot(&self) -> Result<Slot, Limit> {
        match self.meter.exceeded() {
            Some(limit) => Err(limit),
            None => Arc::clone(&self.slots)
                .try_acquire_owned()
                .map(Arc::new)
                .map_err(|_| Limit::Connections),
        }
    }

    /// Runs something that ends with the call.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Counts an event, and reports it if it is one of the first. The same lookup or header is
    /// reported once.
    pub async fn report(&self, what: TrafficKind, target: &str, refused: Option<RefusalReason>) {
        fn bounded(text: &str) -> String {
            mask::head(text, TEXT)
        }
        let refused = refused.map(|refusal| refusal.with_text(bounded));
        let event = TrafficEvent {
            what,
            target: bounded(target),
            refused,
        };
        {
            let state = &mut *self.state();
            if event.refused.is_some() {
                state.totals.refuse(what);
            }
            let again = matches!(what, TrafficKind::Lookup | TrafficKind::Replaced)
                && state.reported.contains(&event);
            let alike = state
                .reported
                .iter()
                .filter(|other| other.refused.is_some() == event.refused.is_some());
            if again || alike.count() >= EVENTS {
                return;
            }
            state.reported.push(event.clone());
        }
        // An error means that the host is gone, and then the relay ends anyway.
        let _ = self.control.send(&FromRelay::Saw(event)).await;
    }

    /// Asks the host to connect. `None`: the host did not connect, and reports the reason itself.
    pub async fn dial(&self, host: &Host, port: u16, slot: &Slot) -> Option<MeteredStream> {
        let (answer, answered) = oneshot::channel();
        let id = self.control.next.fetch_add(1, Relaxed);
        self.state().dials.insert(id, (answer, Arc::clone(slot)));
        let _ = self
            .control
            .send(&FromRelay::Dial {
                id,
                host: host.clone(),
                port,
            })
            .await;
        MeteredStream::new(answered.await.ok()?, Some(Arc::clone(&self.meter))).ok()
    }

    /// Handles the host's answer to a `Dial`.
    pub fn dialled(&self, id: u64, socket: Option<TcpStream>) {
        let Some((answer, _slot)) = self.state().dials.remove(&id) else {
            return;
        };
        match socket {
            Some(socket) => drop(answer.send(socket)),
            None => self.state().totals.connections_refused += 1,
        }
    }

    /// Compares the CPU time of this process with what the call may use.
    pub fn check_cpu(&self) {
        if millis(cpu_time()).saturating_sub(self.cpu_before) > self.cpu_limit {
            self.meter.exceed(Limit::CpuMs);
        }
    }

    /// Resets all connections, and reports which limit was exceeded.
    pub async fn over(&self) -> io::Result<()> {
        self.stop().await;
        match self.meter.exceeded() {
            Some(limit) => self.control.send(&FromRelay::Over { limit }).await,
            None => Ok(()),
        }
    }

    /// Resets all connections.
    pub async fn end(&self) -> Totals {
        self.stop().await;
        let mut state = self.state();
        state.dials.clear();
        let sent_bytes = self.meter.sent.load(Relaxed);
        let received_bytes = self.meter.received.load(Relaxed);
        Totals {
            cpu_ms: millis(cpu_time()).saturating_sub(self.cpu_before),
            sent_bytes,
            received_bytes,
            ..state.totals
        }
    }

    async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }
}

/// A connection of the tool that is granted.
pub struct Connection {
    pub call: Arc<Call>,
    /// The names by which the tool reaches the host. The first is dialled: a granted loopback
    /// address before localhost.
    pub hosts: Vec<Host>,
    pub port: u16,
    pub slot: Slot,
}

impl Connection {
    pub fn host(&self) -> &Host {
        &self.hosts[0]
    }

    pub async fn dial(&self) -> Option<MeteredStream> {
        let stream = self.call.dial(self.host(), self.port, &self.slot).await?;
        self.call
            .report(
                TrafficKind::Connection,
                &target(self.host(), self.port),
                None,
            )
            .await;
        Some(stream)
    }

    /// Reports refused traffic with one of the hosts.
    pub async fn refuse(&self, what: TrafficKind, host: &Host, refusal: RefusalReason) {
        self.call
            .report(what, &target(host, self.port), Some(refusal))
            .await;
    }
}

/// Most names of one call.
pub const NAMES: usize = 256;

/// First byte of the range. Tests use the loopback range, where addresses need no setting up.
const RANGE: u8 = if cfg!(test) { 127 } else { 198 };

/// The synthetic address of each name that a call looked up, from 198.18.0.0/15 (RFC 2544), which
/// no host has.
#[derive(Default)]
pub struct SyntheticAddresses(Vec<String>);

impl SyntheticAddresses {
    /// The address of a name: always the same. `None`: there are `NAMES` others.
    pub fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        let known = self.0.iter().position(|known| known == name);
        if known.is_none() && self.0.len() < NAMES {
            self.0.push(name.to_owned());
        }
        let index = u8::try_from(known.unwrap_or(self.0.len() - 1)).ok()?;
        (self.0.get(usize::from(index))? == name).then_some(Ipv4Addr::new(RANGE, 18, 1, index))
    }

    pub fn name(&self, address: IpAddr) -> Option<&str> {
        self.0.get(Self::index(address)?).map(String::as_str)
    }

    /// Which name it stands for, in the order of the first lookups.
    pub fn index(address: IpAddr) -> Option<usize> {
        match address {
            IpAddr::V4(address) => match address.octets() {
                [RANGE, 18, 1, index] => Some(index.into()),
                _ => None,
            },
            IpAddr::V6(_) => None,
        }
    }
}

/// Whether an address is one of those that stand for names.
pub fn synthetic(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if matches!(address.octets(), [RANGE, 18 | 19, ..]))
}
