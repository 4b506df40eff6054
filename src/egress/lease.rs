//! Lease: the host's end of one relay: dials for it, and keeps what it tells of each call.
//!
//! For: executor, beside a running tool. In: a control socket, the messages of a relay. Out: sockets for the relay; the
//! traffic of a call. Never: believes a count without a bound, or waits for a relay that does not answer.

use super::dial::Dialler;
use super::protocol::{EVENTS, Event, FromRelay, Lease as Served, Refusal, TEXT, ToRelay, Totals, What};
use crate::base::messages;
use crate::base::text;
use crate::manifest::host::HostPattern;
use crate::quantity::Limit;
use nix::errno::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest wait for an answer of the relay, which needs microseconds.
const ANSWER: Duration = Duration::from_secs(2);

/// What one call did with its network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// The first `EVENTS` that were served, and as many that were refused.
    pub events: Vec<Event>,
    pub totals: Totals,
    /// The limit that it passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Limit>,
}

impl Traffic {
    fn saw(&mut self, mut event: Event) {
        let alike = self.events.iter().filter(|other| other.refused.is_some() == event.refused.is_some()).count();
        if alike < EVENTS {
            event.target = text::printable(&text::head(&event.target, TEXT));
            self.events.push(event);
        }
    }
}

/// Why a call cannot go on with its network.
#[derive(Debug)]
pub enum Stopped {
    /// It passed a limit.
    Over(Limit),
    /// The relay is gone, or says what makes no sense.
    Lost(io::Error),
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
    /// Gives a relay what it serves, and waits until it does. `control`: a non-blocking socket of messages. `sockets`: the
    /// stub's two, and one for each port.
    pub async fn serve(control: OwnedFd, served: &Served, sockets: &[OwnedFd], dialler: Dialler) -> io::Result<Lease> {
        let most = served.limits.get(&Limit::Connections).copied().unwrap_or_default();
        let control = UnixDatagram::from_std(control.into())?;
        let lease = Lease { control, dialler, most: usize::try_from(most).unwrap_or(usize::MAX) };
        let text = messages::memory_file(&serde_json::to_vec(served)?)?;
        let beside: Vec<BorrowedFd> = std::iter::once(&text).chain(sockets).map(AsFd::as_fd).collect();
        lease.say(&ToRelay::Serve, &beside)?;
        match timeout(ANSWER, lease.hear()).await?? {
            FromRelay::Ready => Ok(lease),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// A call begins. `secrets`: the values of the lease's headers, by name.
    pub fn begin(&self, secrets: &BTreeMap<String, String>) -> io::Result<()> {
        let values = match secrets.is_empty() {
            true => None,
            false => Some(messages::memory_file(&serde_json::to_vec(secrets)?)?),
        };
        let beside: Vec<BorrowedFd> = values.iter().map(AsFd::as_fd).collect();
        self.say(&ToRelay::Begin, &beside)
    }

    /// Dials for the relay for as long as it is polled; returns only where the call cannot go on. Cancel-safe.
    pub async fn attend(&self, traffic: &mut Traffic) -> Stopped {
        let mut dials: JoinSet<(u64, HostPattern, Result<TcpStream, Refusal>)> = JoinSet::new();
        loop {
            let done = tokio::select! {
                message = self.hear() => message.and_then(|message| self.take(message, &mut dials, traffic)),
                Some(done) = dials.join_next() => match done {
                    Ok((id, target, dialled)) => self.dialled(id, &target, dialled, traffic).map(|()| None),
                    Err(failed) => Err(io::Error::other(failed)),
                },
            };
            match done {
                Ok(None) => {}
                Ok(Some(limit)) => return Stopped::Over(limit),
                Err(error) => {
                    let target = String::new();
                    traffic.saw(Event { what: What::Connection, target, refused: Some(Refusal::RelayEnded) });
                    return Stopped::Lost(error);
                }
            }
        }
    }

    fn take(
        &self,
        message: FromRelay,
        dials: &mut JoinSet<(u64, HostPattern, Result<TcpStream, Refusal>)>,
        traffic: &mut Traffic,
    ) -> io::Result<Option<Limit>> {
        match message {
            FromRelay::Dial { id, host, port } => {
                let target = HostPattern { host: host.clone(), port: Some(port) };
                if dials.len() >= self.most {
                    let refusal = Refusal::Limit { limit: Limit::Connections };
                    return self.dialled(id, &target, Err(refusal), traffic).map(|()| None);
                }
                let dialler = self.dialler.clone();
                dials.spawn(async move { (id, target, dialler.dial(&host, port).await) });
                Ok(None)
            }
            FromRelay::Saw(event) => {
                traffic.saw(event);
                Ok(None)
            }
            FromRelay::Over { limit } => {
                traffic.over = Some(limit);
                Ok(Some(limit))
            }
            FromRelay::Ready | FromRelay::Ended(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn dialled(
        &self,
        id: u64,
        target: &HostPattern,
        dialled: Result<TcpStream, Refusal>,
        traffic: &mut Traffic,
    ) -> io::Result<()> {
        match dialled {
            Ok(stream) => {
                let socket = OwnedFd::from(stream.into_std()?);
                self.say(&ToRelay::Dialled { id }, &[socket.as_fd()])
            }
            Err(refusal) => {
                traffic.saw(Event { what: What::Connection, target: target.to_string(), refused: Some(refusal) });
                self.say(&ToRelay::Undialled { id }, &[])
            }
        }
    }

    /// The call's processes are gone: takes what the relay still tells of it. After an error the relay is of no more use.
    pub async fn end(&self, traffic: &mut Traffic) -> io::Result<()> {
        self.say(&ToRelay::End, &[])?;
        let ended = async {
            loop {
                match self.hear().await? {
                    FromRelay::Ended(totals) => return Ok(totals),
                    FromRelay::Saw(event) => traffic.saw(event),
                    FromRelay::Over { limit } => traffic.over = Some(limit),
                    FromRelay::Dial { .. } => {}
                    FromRelay::Ready => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        };
        let totals: io::Result<Totals> = timeout(ANSWER, ended).await?;
        traffic.totals = totals?;
        Ok(())
    }

    /// Whether it still serves. Between calls it says nothing, so anything to read is its end.
    pub fn serves(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        poll(&mut [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
    }

    fn say(&self, message: &ToRelay, beside: &[BorrowedFd]) -> io::Result<()> {
        messages::send(self.control.as_fd(), message, beside)
    }

    /// The next message. Cancel-safe: a message is taken whole or not at all.
    async fn hear(&self) -> io::Result<FromRelay> {
        let receive = || messages::receive(self.control.as_fd());
        let message: Option<(FromRelay, Vec<OwnedFd>)> = self.control.async_io(Interest::READABLE, receive).await?;
        // What comes beside it is closed: a relay sends no descriptors.
        message.map(|(message, _)| message).ok_or_else(|| Errno::EPIPE.into())
    }
}
