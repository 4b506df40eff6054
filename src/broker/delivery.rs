//! Messages of a broker, and the two halves of a connection: `Incoming` and `Outgoing`.

use super::terms::Topic;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Largest body that is published, bytes: over 5 MiB with metadata, Pulsar ends the connection.
pub const MAX_BODY_BYTES: usize = 5_000_000;
/// Longest `id`, bytes. It is part of the same message as the body.
pub const MAX_ID_BYTES: usize = 1024;

/// How long a confirmation of the broker may take.
pub const CONFIRMED: Duration = Duration::from_secs(30);
/// The same for a request that is put back. A broker that is short of memory delays it, and ending
/// the connection sooner would make the request count as lost once more.
const PUT_BACK: Duration = Duration::from_secs(600);

/// Which messages a link receives.
#[derive(Clone, Debug)]
pub enum Subscription {
    /// A queue that several hosts share: each message goes to one of them. RabbitMQ delivers at
    /// most `at_once` messages that are not acknowledged.
    Shared {
        topic: Topic,
        subscription: String,
        at_once: u16,
    },
    /// Every message that is published to the topic from now on.
    All { topic: Topic },
}

/// The trace context of a message, not parsed (W3C Trace Context): its properties `traceparent` and
/// `tracestate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub parent: Option<String>,
    pub state: Option<String>,
}

#[cfg(any(feature = "rabbitmq", feature = "pulsar"))]
impl Trace {
    /// Reads the context of a message. `text` looks up a property by its name.
    pub(super) fn new(text: impl Fn(&str) -> Option<String>) -> Trace {
        Trace {
            parent: text("traceparent"),
            state: text("tracestate"),
        }
    }

    /// The properties that are present, each with its name.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let both = [("traceparent", &self.parent), ("tracestate", &self.state)];
        both.into_iter()
            .filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }
}

/// A received message. RabbitMQ delivers a message of a shared queue again unless it is `done`.
pub struct Delivery {
    /// The id, byte for byte; empty if the message has none.
    pub id: Vec<u8>,
    pub body: Vec<u8>,
    /// A consumer received the message before, and may have acted on it.
    pub redelivered: bool,
    /// How often `again` put it back.
    pub attempt: u32,
    pub trace: Trace,
    pub(super) hold: Option<Box<dyn Hold>>,
    /// Ends the connection on which it came.
    pub(super) broken: CancellationToken,
}

impl Delivery {
    /// Acknowledges the message.
    pub async fn done(self) -> Result<(), String> {
        self.settle(Settlement::Done).await
    }

    /// Puts the message back into its queue, with its attempts counted.
    pub async fn again(self) -> Result<(), String> {
        self.settle(Settlement::Requeue).await?;
        self.done().await
    }

    /// Moves the message to the dead-letter queue beside its own (`QUEUE.dead`).
    pub async fn dead_letter(self) -> Result<(), String> {
        self.settle(Settlement::Bury).await?;
        self.done().await
    }

    /// If settling fails or takes too long, the connection is ended. Otherwise the broker would
    /// count the message as in progress for ever.
    async fn settle(&self, how: Settlement) -> Result<(), String> {
        let (within, hold) = match (how, &self.hold) {
            (Settlement::Done, None) => return Ok(()),
            (_, None) => return Err("this broker takes nothing back".to_owned()),
            (Settlement::Done, Some(hold)) => (CONFIRMED, hold),
            (_, Some(hold)) => (PUT_BACK, hold),
        };
        let ended = tokio::time::timeout(within, hold.settle(self, how)).await;
        let ended = ended.unwrap_or_else(|_| Err("the broker did not confirm in time".to_owned()));
        if ended.is_err() {
            self.broken.cancel();
        }
        ended
    }
}

/// Why something was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// The message is larger than the broker accepts.
    TooLarge,
    /// No client listens there.
    NoListener,
    /// The connection failed. The message may have arrived.
    Failed(String),
}

/// How a received message is settled with the broker.
#[derive(Clone, Copy)]
pub enum Settlement {
    Done,
    Requeue,
    Bury,
}

/// Settles a message that the broker keeps until then.
pub trait Hold: Send + Sync {
    fn settle<'a>(
        &'a self,
        delivery: &'a Delivery,
        how: Settlement,
    ) -> BoxFuture<'a, Result<(), String>>;
}

/// One connection: what comes in.
pub trait Incoming: Send {
    /// `None`: the connection ended without a reason.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Delivery, String>>>;
    /// Stops receiving. Messages that are on their way still arrive.
    fn stop(&mut self) -> BoxFuture<'_, ()>;
}

/// One connection: what goes out, in the order in which it is given.
pub trait Outgoing: Send + Sync {
    fn publish<'a>(
        &'a self,
        id: &'a [u8],
        body: &'a [u8],
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<(), PublishError>>;
}

/// The receiving and the sending half of one connection.
pub type Ends = (Box<dyn Incoming>, Arc<dyn Outgoing>);
