//! A link receives from one subscription of a broker and publishes to one topic. It reconnects
//! until it is dropped.
//!
//! The client libraries' own reconnection is off: after any error the link opens a new connection
//! and declares everything again. It sends nothing twice.

use super::delivery::{
    CONFIRMED, Delivery, Ends, Incoming, MAX_BODY_BYTES, MAX_ID_BYTES, Outgoing, PublishError,
    Subscription, Trace,
};
#[cfg(feature = "pulsar")]
use super::pulsar;
#[cfg(feature = "rabbitmq")]
use super::rabbitmq;
use super::terms::{Terms, Topic};
use crate::base::text;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Deliveries that may wait to be read.
const MAX_DELIVERIES: usize = 16;
/// Time limit for connecting and declaring. Each timeout doubles it, up to `MAX_CONNECT_TIMEOUT`: a
/// broker that has just started, or is busy, may need longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Why a connection was ended because of one message.
const BROKEN: &str = "a message could not be published or acknowledged on it";
/// First and longest pause between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// After `stop`: how long to wait for messages that the broker has already sent.
const LAST: Duration = Duration::from_secs(1);

/// Why a link is away until it first connects.
const FIRST: &str = "it is not connected yet";

/// Whether a link is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    Connected { since: Timestamp },
    Away { since: Timestamp, why: String },
}

#[derive(Clone)]
struct LinkStatus {
    state: LinkState,
    out: Option<Out>,
}

/// The publisher of one connection, and the token that ends that connection.
type Out = (Arc<dyn Outgoing>, CancellationToken);

/// A handle to a link. Dropping it closes the connection.
pub struct Link {
    standing: watch::Receiver<LinkStatus>,
    stop: CancellationToken,
    _end: DropGuard,
}

impl Link {
    /// Starts a task that connects and reconnects. Received messages are read from the receiver,
    /// which ends after `stop`.
    pub fn open(terms: Terms, source: Subscription, to: Topic) -> (Link, mpsc::Receiver<Delivery>) {
        let (deliveries, receiver) = mpsc::channel(MAX_DELIVERIES);
        let state = LinkState::Away {
            since: Timestamp::now(),
            why: FIRST.to_owned(),
        };
        let (sender, standing) = watch::channel(LinkStatus { state, out: None });
        let stop = CancellationToken::new();
        let end = CancellationToken::new();
        let kept = Connector {
            terms,
            source,
            to,
            standing: sender,
            stop: stop.clone(),
        };
        let until = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = until.cancelled() => {}
                () = kept.up(deliveries) => {}
            }
        });
        (
            Link {
                standing,
                stop,
                _end: end.drop_guard(),
            },
            receiver,
        )
    }

    pub fn state(&self) -> LinkState {
        self.standing.borrow().state.clone()
    }

    /// Waits until it is connected.
    pub async fn connected(&self) {
        let mut standing = self.standing.clone();
        if standing
            .wait_for(|standing| standing.out.is_some())
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the link is in another state than this one.
    pub async fn wait_for_change(&self, state: &LinkState) {
        let mut standing = self.standing.clone();
        let _ = standing.wait_for(|standing| standing.state != *state).await;
    }

    /// Stops receiving. Messages that have already arrived are still delivered, and may be
    /// answered.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Publishes a reply once, as soon as the link is connected. Returns when the broker has
    /// confirmed it.
    pub async fn publish(&self, id: &[u8], body: &[u8]) -> Result<(), PublishError> {
        self.ask(id, body, &Trace::default()).await.map(drop)
    }

    /// Publishes a request in the same way. Returns the state of the connection that carried it.
    pub async fn ask(
        &self,
        id: &[u8],
        body: &[u8],
        trace: &Trace,
    ) -> Result<LinkState, PublishError> {
        if body.len() > MAX_BODY_BYTES || id.len() > MAX_ID_BYTES {
            return Err(PublishError::TooLarge);
        }
        let mut standing = self.standing.clone();
        let connected = standing
            .wait_for(|standing| standing.out.is_some())
            .await
            .map(|standing| standing.clone());
        let Ok(LinkStatus {
            state,
            out: Some((outgoing, broken)),
        }) = connected
        else {
            return Err(PublishError::Failed("the link is closed".to_owned()));
        };
        let sent = tokio::time::timeout(CONFIRMED, outgoing.publish(id, body, trace)).await;
        let sent = sent.unwrap_or_else(|_| {
            Err(PublishError::Failed(
                "the broker did not confirm in time".to_owned(),
            ))
        });
        // A message that is too large for this broker has ended the connection, too.
        if let Err(PublishError::Failed(_) | PublishError::TooLarge) = sent {
            broken.cancel();
        }
        sent.map(|()| state)
    }
}

/// The task that keeps a link connected.
struct Connector {
    terms: Terms,
    source: Subscription,
    to: Topic,
    standing: watch::Sender<LinkStatus>,
    stop: CancellationToken,
}

impl Connector {
    async fn up(self, deliveries: mpsc::Sender<Delivery>) {
        let mut pause = RETRY_DELAY;
        let mut patience = CONNECT_TIMEOUT;
        while !self.stop.is_cancelled() {
            let connecting =
                tokio::time::timeout(patience, connect(&self.terms, &self.source, &self.to));
            let connected = tokio::select! {
                connected = connecting => connected,
                () = self.stop.cancelled() => break,
            };
            let began = Instant::now();
            let why = match connected {
                Ok(Ok((mut incoming, outgoing))) => {
                    patience = CONNECT_TIMEOUT;
                    let why = self.pump(&mut *incoming, outgoing, &deliveries).await;
                    if self.stop.is_cancelled() {
                        // Deliveries that were read may still be answered and acknowledged on this
                        // connection.
                        drop(deliveries);
                        return std::future::pending().await;
                    }
                    why
                }
                Ok(Err(why)) => why,
                Err(_) => {
                    let why = format!("no connection within {} s", patience.as_secs());
                    patience = (patience * 2).min(MAX_CONNECT_TIMEOUT);
                    why
                }
            };
            if began.elapsed() > MAX_RETRY_DELAY {
                pause = RETRY_DELAY;
            }
            self.is_away(&why);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => break,
            }
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
        drop(deliveries);
        std::future::pending().await
    }

    fn is_away(&self, why: &str) {
        // The reason may quote the broker.
        let why = text::printable(&text::head(why, 300));
        self.standing.send_modify(|standing| {
            standing.out = None;
            let since = match &standing.state {
                LinkState::Away { since, why: before } if *before == why => *since,
                LinkState::Away { since, .. } => {
                    tracing::warn!(target: "toolhost::broker", "{} is away: {why}", self.terms);
                    *since
                }
                LinkState::Connected { .. } => {
                    tracing::warn!(target: "toolhost::broker", "{} is away: {why}", self.terms);
                    Timestamp::now()
                }
            };
            standing.state = LinkState::Away { since, why };
        });
    }

    /// Forwards messages until the connection ends. Returns why it ended.
    async fn pump(
        &self,
        incoming: &mut dyn Incoming,
        outgoing: Arc<dyn Outgoing>,
        deliveries: &mpsc::Sender<Delivery>,
    ) -> String {
        let broken = CancellationToken::new();
        let out = Some((outgoing, broken.clone()));
        if self.terms.keeps_nothing()
            && !matches!(&self.standing.borrow().state, LinkState::Away { why, .. } if why == FIRST)
        {
            tracing::warn!(target: "toolhost::broker", "{}: messages published while it was away \
                are lost", self.terms);
        }
        self.standing.send_replace(LinkStatus {
            state: LinkState::Connected {
                since: Timestamp::now(),
            },
            out,
        });
        tracing::info!(target: "toolhost::broker", "{} is connected", self.terms);
        loop {
            let came = tokio::select! {
                came = incoming.next() => came,
                () = broken.cancelled() => return BROKEN.to_owned(),
                () = self.stop.cancelled() => break,
            };
            match came {
                Some(Ok(mut delivery)) => {
                    delivery.broken = broken.clone();
                    let handed = tokio::select! {
                        handed = deliveries.send(delivery) => handed,
                        // The reader of the channel may be waiting to publish on this very link.
                        () = broken.cancelled() => return BROKEN.to_owned(),
                    };
                    if handed.is_err() {
                        return "this host no longer reads its messages".to_owned();
                    }
                }
                Some(Err(why)) => return why,
                None => return "the broker closed the connection".to_owned(),
            }
        }
        let rest = async {
            incoming.stop().await;
            while let Some(Ok(mut delivery)) = incoming.next().await {
                delivery.broken = broken.clone();
                let _ = deliveries.send(delivery).await;
            }
        };
        let _ = tokio::time::timeout(LAST, rest).await;
        "it is stopping".to_owned()
    }
}

/// The one place that knows which brokers are compiled in; `Terms` are only made for those.
async fn connect(terms: &Terms, source: &Subscription, to: &Topic) -> Result<Ends, String> {
    #[cfg(feature = "rabbitmq")]
    if terms.kind == super::terms::BrokerKind::RabbitMq {
        return rabbitmq::connect(terms, source, to).await;
    }
    #[cfg(feature = "pulsar")]
    if terms.kind == super::terms::BrokerKind::Pulsar {
        return pulsar::connect(terms, source, to).await;
    }
    Err(format!(
        "{:?} is not compiled in: {source:?} and {to} cannot be reached",
        terms.kind
    ))
}
