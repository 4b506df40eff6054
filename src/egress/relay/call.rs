//! What a relay knows of one call: names, totals, limits, events, sockets that were asked for, tasks.

use super::Control;
use super::names::Names;
use super::secrets::Secrets;
use super::stream::Stream;
use crate::base::{lock, mask, text};
use crate::egress::protocol::{EVENTS, Event, FromRelay, Refusal, Served, TEXT, Totals, TrafficKind};
use crate::egress::tls::Trust;
use crate::manifest::host::Host;
use crate::quantity::Limit;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

/// Longest text of a tool in a reason, bytes.
const QUOTED: usize = 80;

/// A place among the connections that a call has at one time.
pub type Slot = Arc<OwnedSemaphorePermit>;

pub struct Call {
    pub lease: Arc<Served>,
    pub secrets: Secrets,
    /// Whom it trusts to vouch for each host that gets a secret.
    pub trust: BTreeMap<String, Trust>,
    control: Arc<Control>,
    state: Mutex<State>,
    /// Its connections, each on its own.
    tasks: Mutex<JoinSet<()>>,
    slots: Arc<Semaphore>,
    sent_limit: u64,
    received_limit: u64,
    cpu_limit: u64,
    cpu_before: u64,
    passed: OnceLock<Limit>,
    passing: Notify,
}

#[derive(Default)]
pub struct State {
    pub totals: Totals,
    pub names: Names,
    told: Vec<Event>,
    /// Sockets that were asked for. The slot is held until the answer, also when the tool went away before.
    dials: HashMap<u64, (oneshot::Sender<TcpStream>, Slot)>,
}

impl Call {
    pub(super) fn new(
        lease: Arc<Served>,
        control: Arc<Control>,
        secrets: Secrets,
        trust: BTreeMap<String, Trust>,
    ) -> Arc<Call> {
        let limit = |limit: Limit| lease.limits.get(&limit).copied().unwrap_or_else(|| limit.house_default());
        let slots = usize::try_from(limit(Limit::Connections)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Arc::new(Call {
            sent_limit: limit(Limit::SentBytes),
            received_limit: limit(Limit::ReceivedBytes),
            cpu_limit: limit(Limit::CpuMs),
            cpu_before: cpu_ms(),
            lease,
            secrets,
            trust,
            control,
            state: Mutex::default(),
            tasks: Mutex::default(),
            slots: Arc::new(Semaphore::new(slots)),
            passed: OnceLock::new(),
            passing: Notify::new(),
        })
    }

    /// Never held across a wait.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether any grant has this host, at this port or at some port.
    pub fn granted(&self, host: &Host, port: Option<u16>) -> bool {
        self.lease.grants.iter().any(|grant| match port {
            Some(port) => grant.reaches(host, port),
            None => grant.pattern.host.covers(host),
        })
    }

    /// A place for one connection more, or the limit that is in the way.
    pub fn slot(&self) -> Result<Slot, Limit> {
        match self.passed.get() {
            Some(limit) => Err(*limit),
            None => Arc::clone(&self.slots).try_acquire_owned().map(Arc::new).map_err(|_| Limit::Connections),
        }
    }

    /// Runs something that ends with the call.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Counts an event, and tells it if it is one of the first. The same lookup or header is told once.
    pub async fn saw(&self, what: TrafficKind, target: &str, refused: Option<Refusal>) {
        let refused = refused.map(|refusal| refusal.with_text(bounded));
        let event = Event { what, target: bounded(target), refused };
        {
            let state = &mut *self.state();
            let count = match what {
                TrafficKind::Lookup => &mut state.totals.lookups_refused,
                TrafficKind::Connection | TrafficKind::Listener => &mut state.totals.connections_refused,
                TrafficKind::Request | TrafficKind::Replaced => &mut state.totals.requests_refused,
            };
            *count += u64::from(event.refused.is_some());
            let again = matches!(what, TrafficKind::Lookup | TrafficKind::Replaced) && state.told.contains(&event);
            let alike = state.told.iter().filter(|told| told.refused.is_some() == event.refused.is_some()).count();
            if again || alike >= EVENTS {
                return;
            }
            state.told.push(event.clone());
        }
        // Without a host there is nobody to tell, and the relay ends.
        let _ = self.control.say(&FromRelay::Saw(event)).await;
    }

    /// Has the host connect. `None`: it did not, and says why itself.
    pub async fn dial(self: &Arc<Call>, host: &Host, port: u16, slot: &Slot) -> Option<Stream> {
        let (answer, answered) = oneshot::channel();
        let id = self.control.number();
        self.state().dials.insert(id, (answer, Arc::clone(slot)));
        let _ = self.control.say(&FromRelay::Dial { id, host: host.clone(), port }).await;
        Stream::of_upstream(answered.await.ok()?, Arc::clone(self)).ok()
    }

    /// The answer to `Dial`.
    pub fn dialled(&self, id: u64, socket: Option<TcpStream>) {
        let Some((answer, _slot)) = self.state().dials.remove(&id) else { return };
        match socket {
            Some(socket) => drop(answer.send(socket)),
            None => self.state().totals.connections_refused += 1,
        }
    }

    /// How many of these bytes may still be sent. Asking for more than the call has passes its limit.
    pub fn may_send(&self, bytes: usize) -> usize {
        let left = self.sent_limit.saturating_sub(self.state().totals.sent_bytes);
        if left == 0 && bytes > 0 {
            self.pass(Limit::SentBytes);
        }
        bytes.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    pub fn sent(&self, bytes: usize) {
        self.state().totals.sent_bytes += bytes as u64;
    }

    /// Counts bytes that came; false: they pass the limit.
    pub fn received(&self, bytes: usize) -> bool {
        let total = &mut self.state().totals.received_bytes;
        *total += bytes as u64;
        let good = *total <= self.received_limit;
        if !good {
            self.pass(Limit::ReceivedBytes);
        }
        good
    }

    /// Compares the CPU time of this process with what the call may use.
    pub fn look_at_cpu(&self) {
        if cpu_ms().saturating_sub(self.cpu_before) > self.cpu_limit {
            self.pass(Limit::CpuMs);
        }
    }

    fn pass(&self, limit: Limit) {
        if self.passed.set(limit).is_ok() {
            self.passing.notify_one();
        }
    }

    /// Returns once for a call, when it passes a limit.
    pub async fn limit_passed(&self) {
        self.passing.notified().await;
    }

    /// Resets all connections, and says which limit was passed.
    pub async fn over(&self) -> io::Result<()> {
        self.stop().await;
        match self.passed.get() {
            Some(limit) => self.control.say(&FromRelay::Over { limit: *limit }).await,
            None => Ok(()),
        }
    }

    /// Resets all connections.
    pub async fn end(&self) -> Totals {
        self.stop().await;
        self.state().dials.clear();
        Totals { cpu_ms: cpu_ms().saturating_sub(self.cpu_before), ..self.state().totals }
    }

    async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }
}

/// CPU time of this process so far.
fn cpu_ms() -> u64 {
    let ms = |time: TimeVal| time.num_milliseconds().max(0) as u64;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| ms(usage.user_time()) + ms(usage.system_time()))
}

/// The first `TEXT` bytes.
fn bounded(text: &str) -> String {
    mask::head(text, TEXT)
}

/// Text of a tool for a reason: printable and short.
pub fn quoted(bytes: &[u8]) -> String {
    text::printable(&mask::head(&String::from_utf8_lossy(bytes), QUOTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixDatagram;

    #[tokio::test]
    async fn a_panic_of_one_connection_ends_no_other() {
        let (socket, _host) = UnixDatagram::pair().expect("a pair");
        let control = Arc::new(Control { socket, next: Default::default() });
        let lease = Served::default();
        let call = Call::new(Arc::new(lease), control, Secrets::default(), BTreeMap::new());
        let (say, said) = oneshot::channel();
        let own = Arc::clone(&call);
        call.spawn(async move {
            let _held = own.state();
            panic!("of a test");
        });
        let own = Arc::clone(&call);
        call.spawn(async move {
            tokio::task::yield_now().await;
            own.sent(1);
            let _ = say.send(());
        });
        said.await.expect("the other goes on");
        assert_eq!(call.end().await.sent_bytes, 1);
    }
}
