//! Messages of a broker, and what a connection to one is made of.

use super::terms::Topic;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Largest body that is published, bytes: Pulsar's brokers cut the connection at 5 MiB, metadata included.
pub const LARGEST: usize = 5_000_000;
/// Longest `id`, bytes; it counts to the same message.
pub const LONGEST_ID: usize = 1024;

/// How long a confirmation of the broker may take.
pub const CONFIRMED: Duration = Duration::from_secs(30);
/// The same of a request that goes back, which a broker that is short of memory holds up meanwhile. On another
/// connection it would look as if it were lost once more.
const PUT_BACK: Duration = Duration::from_secs(600);

/// Which messages a link receives.
#[derive(Clone, Debug)]
pub enum Subscription {
    /// A queue that several hosts share: each message goes to one of them. RabbitMQ hands out at most `at_once` that
    /// are not done.
    Shared { topic: Topic, subscription: String, at_once: u16 },
    /// All that is published there from now on.
    All { topic: Topic },
}

/// What a message says of the trace that it is part of, unread (W3C Trace Context): properties of these names, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub parent: Option<String>,
    pub state: Option<String>,
}

#[cfg(any(feature = "rabbitmq", feature = "pulsar"))]
impl Trace {
    /// Of a message whose texts are found by their names.
    pub(super) fn new(text: impl Fn(&str) -> Option<String>) -> Trace {
        Trace { parent: text("traceparent"), state: text("tracestate") }
    }

    /// What is there, by its name.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let both = [("traceparent", &self.parent), ("tracestate", &self.state)];
        both.into_iter().filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }
}

/// One message that came. From a shared queue of RabbitMQ it comes again unless it is `done`.
pub struct Delivery {
    /// As it came; empty where there was none.
    pub id: Vec<u8>,
    pub body: Vec<u8>,
    /// Somebody had it before, and may have acted on it.
    pub redelivered: bool,
    /// How often it was put back by `again`.
    pub attempt: u32,
    pub trace: Trace,
    pub(super) hold: Option<Box<dyn Hold>>,
    /// Ends the connection on which it came.
    pub(super) broken: CancellationToken,
}

impl Delivery {
    /// It needs no more.
    pub async fn done(self) -> Result<(), String> {
        self.settle(Settlement::Done).await
    }

    /// Puts it back into its queue, counted.
    pub async fn again(self) -> Result<(), String> {
        self.settle(Settlement::Again).await?;
        self.done().await
    }

    /// Puts it into the queue beside its own that keeps what is not run.
    pub async fn bury(self) -> Result<(), String> {
        self.settle(Settlement::Bury).await?;
        self.done().await
    }

    /// What is not settled in time, or fails, ends its connection: the broker would else take the message to be in hand
    /// for ever.
    async fn settle(&self, how: Settlement) -> Result<(), String> {
        let (within, hold) = match (how, &self.hold) {
            (Settlement::Done, None) => return Ok(()),
            (_, None) => return Err("this broker takes nothing back".to_owned()),
            (Settlement::Done, Some(hold)) => (CONFIRMED, hold),
            (_, Some(hold)) => (PUT_BACK, hold),
        };
        let ended = tokio::time::timeout(within, hold.settle(self, how)).await;
        let ended = ended.unwrap_or_else(|_| Err("the broker confirms nothing".to_owned()));
        if ended.is_err() {
            self.broken.cancel();
        }
        ended
    }
}

/// Why something was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// It is more than a broker takes.
    TooLarge,
    /// No client listens there.
    NoListener,
    /// The connection failed; it may have arrived.
    Failed(String),
}

/// What becomes of a message that a broker handed out.
#[derive(Clone, Copy)]
pub enum Settlement {
    Done,
    Again,
    Bury,
}

/// The broker's own hold on a message that is not done.
pub trait Hold: Send + Sync {
    fn settle<'a>(&'a self, delivery: &'a Delivery, how: Settlement) -> BoxFuture<'a, Result<(), String>>;
}

/// One connection: what comes in.
pub trait Incoming: Send {
    /// `None`: it ended, and says no reason.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Delivery, String>>>;
    /// Asks for no more; what was on its way still comes.
    fn stop(&mut self) -> BoxFuture<'_, ()>;
}

/// One connection: what goes out, in the order in which it is given.
pub trait Outgoing: Send + Sync {
    fn publish<'a>(&'a self, id: &'a [u8], body: &'a [u8], trace: &'a Trace)
    -> BoxFuture<'a, Result<(), PublishError>>;
}

/// What comes in and what goes out by one connection.
pub type Ends = (Box<dyn Incoming>, Arc<dyn Outgoing>);
