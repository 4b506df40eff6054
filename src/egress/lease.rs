//! The host's end of one relay: dials for the relay, and collects what the relay reports of each
//! call.

use super::dial::Dialler;
use super::protocol::{
    EVENTS, FromRelay, LIMITS, RefusalReason, Served, TEXT, ToRelay, Totals, TrafficEvent,
    TrafficKind,
};
use super::relay::SyntheticAddresses;
use crate::base::mask::{self, Mask};
use crate::base::{lock, messages, text};
use crate::manifest::host::HostPattern;
use crate::quantity::Limit;
use nix::errno::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Time limits for the start of a relay, and for its report at the end of a call (which takes
/// microseconds).
const START: Duration = Duration::from_secs(10);
const ENDED: Duration = Duration::from_millis(500);
/// Most connections of one call that are dialled.
const DIALS: u64 = 10_000;

/// A call may start this many dials at once, and then one in each `DIAL_INTERVAL`.
const DIAL_BURST: u32 = 32;
const DIAL_INTERVAL: Duration = Duration::from_millis(1);

/// A dial's result.
struct Dialled {
    id: u64,
    target: HostPattern,
    socket: Result<TcpStream, RefusalReason>,
}

/// The host's end of a relay that serves.
#[derive(Debug)]
pub struct Lease {
    control: UnixDatagram,
    dialler: Dialler,
    /// Most connections at one time.
    most: usize,
}

impl Lease {
    /// Sends a relay what to serve, and waits until it is ready. `control`: a non-blocking socket
    /// of messages. `sockets`: the stub's two, and one for each port.
    pub async fn serve(
        control: OwnedFd,
        served: &Served,
        sockets: &[OwnedFd],
        dialler: Dialler,
    ) -> io::Result<Lease> {
        let most = served
            .limits
            .get(&Limit::Connections)
            .copied()
            .unwrap_or_default();
        let control = UnixDatagram::from_std(control.into())?;
        let lease = Lease {
            control,
            dialler,
            most: usize::try_from(most).unwrap_or(usize::MAX),
        };
        let text = messages::memory_file(&serde_json::to_vec(served)?)?;
        let beside: Vec<BorrowedFd> = std::iter::once(&text)
            .chain(sockets)
            .map(AsFd::as_fd)
            .collect();
        lease.send(&ToRelay::Serve, &beside)?;
        match timeout(START, lease.receive()).await?? {
            FromRelay::Ready => Ok(lease),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// A call begins. `secrets`: the values of the lease's headers, by name.
    pub fn begin(&self, secrets: &BTreeMap<String, String>) -> io::Result<()> {
        let values = if secrets.is_empty() {
            None
        } else {
            Some(messages::memory_file(&serde_json::to_vec(secrets)?)?)
        };
        let beside: Vec<BorrowedFd> = values.iter().map(AsFd::as_fd).collect();
        self.send(&ToRelay::Begin, &beside)
    }

    /// Dials for the relay while this future is polled. Returns only if the call exceeds a limit.
    /// If the relay is lost, the tool continues, and all its connections fail.
    pub async fn attend(&self, traffic: &Mutex<Traffic>) {
        let mut dials = JoinSet::new();
        let mut next = Instant::now();
        loop {
            let done = tokio::select! {
                message = self.receive() => match message {
                    Ok(message) => self.take(message, &mut dials, &mut next, traffic).await,
                    Err(error) => Err(error),
                },
                Some(done) = dials.join_next() => match done {
                    Ok(Dialled { id, target, socket }) => {
                        self.answer(id, &target, socket, traffic).await.map(|()| false)
                    }
                    Err(failed) => Err(io::Error::other(failed)),
                },
            };
            match done {
                Ok(false) => {}
                Ok(true) => return,
                Err(_) => {
                    // Its connections fail from here on, instead of waiting for ever.
                    let _ = self.control.shutdown(std::net::Shutdown::Both);
                    lost(traffic);
                    drop(dials);
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Handles one message. True: the call exceeded a limit.
    async fn take(
        &self,
        message: FromRelay,
        dials: &mut JoinSet<Dialled>,
        next: &mut Instant,
        traffic: &Mutex<Traffic>,
    ) -> io::Result<bool> {
        match message {
            FromRelay::Dial { id, host, port } => {
                let target = HostPattern {
                    host: host.clone(),
                    port: Some(port),
                };
                let (dialled, who) = {
                    let traffic = &mut *lock(traffic);
                    traffic.totals.connections += 1;
                    (traffic.totals.connections, traffic.principal.clone())
                };
                let refusal = if dials.len() >= self.most {
                    RefusalReason::Limit {
                        limit: Limit::Connections,
                    }
                } else if dialled > DIALS {
                    RefusalReason::Bound {
                        why: format!("more than {DIALS} connections in one call"),
                    }
                } else {
                    let mut dialler = self.dialler.clone();
                    dialler.payer[0] = who;
                    let now = Instant::now();
                    let earliest = now
                        .checked_sub(DIAL_INTERVAL * (DIAL_BURST - 1))
                        .unwrap_or(now);
                    let start = (*next).max(earliest);
                    *next = start + DIAL_INTERVAL;
                    dials.spawn(async move {
                        // Timers round up to a whole millisecond.
                        if start > now {
                            tokio::time::sleep_until(start).await;
                        }
                        Dialled {
                            id,
                            target,
                            socket: dialler.dial(&host, port).await,
                        }
                    });
                    return Ok(false);
                };
                self.answer(id, &target, Err(refusal), traffic)
                    .await
                    .map(|()| false)
            }
            other => lock(traffic).receive(other),
        }
    }

    /// Answers to `Dial`, as soon as there is room.
    async fn answer(
        &self,
        id: u64,
        target: &HostPattern,
        dialled: Result<TcpStream, RefusalReason>,
        traffic: &Mutex<Traffic>,
    ) -> io::Result<()> {
        let (message, socket) = match dialled {
            Ok(stream) => (
                ToRelay::Dialled { id },
                Some(OwnedFd::from(stream.into_std()?)),
            ),
            Err(refusal) => {
                let traffic = &mut *lock(traffic);
                traffic.totals.connections_refused += 1;
                traffic.add_event(TrafficEvent {
                    what: TrafficKind::Connection,
                    target: target.to_string(),
                    refused: Some(refusal),
                });
                (ToRelay::Undialled { id }, None)
            }
        };
        let beside: Vec<BorrowedFd> = socket.iter().map(AsFd::as_fd).collect();
        self.control
            .async_io(Interest::WRITABLE, || self.send(&message, &beside))
            .await
    }

    /// Once the processes of a call are gone, reads the rest of what the relay reports of it. After
    /// an error the relay cannot be used any more.
    pub async fn end(&self, traffic: &Mutex<Traffic>) -> io::Result<()> {
        let ended = self.ended(traffic).await;
        if ended.is_err() {
            lost(traffic);
        }
        ended
    }

    async fn ended(&self, traffic: &Mutex<Traffic>) -> io::Result<()> {
        let ended = async {
            self.control
                .async_io(Interest::WRITABLE, || self.send(&ToRelay::End, &[]))
                .await?;
            loop {
                match self.receive().await? {
                    FromRelay::Ended(totals) => return Ok(totals),
                    FromRelay::Dial { .. } => {}
                    other => _ = lock(traffic).receive(other)?,
                }
            }
        };
        let totals: io::Result<Totals> = timeout(ENDED, ended).await?;
        let traffic = &mut *lock(traffic);
        (traffic.totals, traffic.counted) = (totals?, true);
        Ok(())
    }

    /// Whether the relay still serves. Between calls it sends nothing, so anything to read means
    /// that it ended.
    pub fn serves(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        poll(
            &mut [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)],
            PollTimeout::ZERO,
        ) == Ok(0)
    }

    fn send(&self, message: &ToRelay, beside: &[BorrowedFd]) -> io::Result<()> {
        messages::send(self.control.as_fd(), message, beside)
    }

    /// The next message. Cancel-safe: a message is taken whole or not at all.
    async fn receive(&self) -> io::Result<FromRelay> {
        let message: Option<(FromRelay, Vec<OwnedFd>)> = self
            .control
            .async_io(Interest::READABLE, || {
                messages::receive(self.control.as_fd())
            })
            .await?;
        // What comes beside it is closed: a relay sends no descriptors.
        message
            .map(|(message, _)| message)
            .ok_or_else(|| Errno::EPIPE.into())
    }
}

/// Reports once that the relay ended.
fn lost(traffic: &Mutex<Traffic>) {
    let traffic = &mut *lock(traffic);
    if !traffic
        .events
        .iter()
        .any(|event| event.refused == Some(RefusalReason::RelayEnded))
    {
        traffic.add_event(TrafficEvent {
            what: TrafficKind::Connection,
            target: String::new(),
            refused: Some(RefusalReason::RelayEnded),
        });
    }
}

/// What one call did with its network, as its relay and its dials report it, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Who authenticated: the call's dials count against them.
    #[serde(skip)]
    pub principal: String,
    /// The first `EVENTS` that were served, and as many that were refused.
    pub events: Vec<TrafficEvent>,
    /// Where `counted` is false, these are minimums: what the host itself saw.
    pub totals: Totals,
    /// The relay reported its counts when the call ended.
    pub counted: bool,
    /// The limit that the call exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Limit>,
}

impl Traffic {
    /// Takes a report of the relay about a running call. True: the call exceeded a limit.
    fn receive(&mut self, message: FromRelay) -> io::Result<bool> {
        match message {
            FromRelay::Saw(event)
                if event
                    .refused
                    .as_ref()
                    .is_none_or(RefusalReason::is_of_the_relay) =>
            {
                self.add_event(event)
            }
            FromRelay::Saw(_) => {}
            FromRelay::Over { limit } if LIMITS.contains(&limit) => self.over = Some(limit),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(self.over.is_some())
    }

    /// Records a refusal that no relay reports: before a request reached one, or where there is
    /// none.
    pub fn refused(&mut self, what: TrafficKind, target: &str, refusal: RefusalReason) {
        self.totals.refuse(what);
        self.add_event(TrafficEvent {
            what,
            target: target.to_owned(),
            refused: Some(refusal),
        });
    }

    /// Records a connection to a port that no granted host has. An address that stands for a name is
    /// told by that name: the relay reported its lookup.
    pub fn refused_port(&mut self, address: SocketAddr) {
        let index = SyntheticAddresses::index(address.ip());
        let mut names: Vec<&str> = Vec::new();
        for event in &self.events {
            let is_name = event.what == TrafficKind::Lookup && event.refused.is_none();
            if is_name && !names.contains(&event.target.as_str()) {
                names.push(&event.target);
            }
        }
        let target = match index.and_then(|index| names.get(index)) {
            Some(name) => format!("{}:{}", name.trim_end_matches('.'), address.port()),
            None => address.to_string(),
        };
        self.refused(TrafficKind::Connection, &target, RefusalReason::NotGranted);
    }

    /// Everything so far. From here on it starts again, for the same payer.
    pub fn take(&mut self) -> Traffic {
        let next = Traffic {
            principal: self.principal.clone(),
            over: self.over,
            ..Traffic::default()
        };
        std::mem::replace(self, next)
    }

    /// The same, secrets hidden.
    pub fn hidden(mut self, mask: &Mask) -> Traffic {
        for event in &mut self.events {
            event.target = mask.text(&event.target);
            let refused = event.refused.take();
            event.refused = refused.map(|why| why.with_text(|text| mask.text(text)));
        }
        self
    }

    /// Adds what was seen of a process that serves several calls at once: the counts of the host
    /// alone, since the relay counts until the process has ended.
    pub fn add(&mut self, seen: &Traffic) {
        self.totals.connections += seen.totals.connections;
        self.totals.connections_refused += seen.totals.connections_refused;
        seen.events
            .iter()
            .for_each(|event| self.add_event(event.clone()));
    }

    /// Adds an event, if there is room.
    fn add_event(&mut self, mut event: TrafficEvent) {
        let alike = self
            .events
            .iter()
            .filter(|other| other.refused.is_some() == event.refused.is_some())
            .count();
        if alike < EVENTS || event.refused == Some(RefusalReason::RelayEnded) {
            event.target = bounded(&event.target);
            event.refused = event.refused.map(|refusal| refusal.with_text(bounded));
            self.events.push(event);
        }
    }
}

/// The first `TEXT` bytes, on one line.
fn bounded(text: &str) -> String {
    text::printable(&mask::head(text, TEXT + mask::CUT.len()))
}
