//! Tools as a TrustGraph tool service over a broker: requests from a queue that hosts share,
//! replies to a topic.
//!
//! Where the broker can keep a message it is acknowledged after its answer. The caller is the
//! entry's, not the message's.
//!
//! Every call counts as the caller of its entry, no matter who published the request: the broker
//! decides who may publish, and everybody who listens to the reply topic reads every reply. An
//! entry serves only the tools that it names. Connections are encrypted unless the operator says
//! otherwise.

mod message;
mod server;

pub use server::{Announcing, BrokerSettings, Descriptors, descriptors};

use crate::base::semaphore::FairSemaphore;
use crate::broker::{Delivery, Link, LinkState, Subscription};
use crate::service::Service;
use serde_json::{Value, json};
use server::{BrokerServer, MAX_QUEUED_KIB, OpenRequests};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Most requests that are read, wait, run or are being answered. Further ones wait at the broker,
/// or are dropped there. Most of so many are refused ones.
const MAX_REQUESTS: usize = 10_000;
/// Most calls of one entry that run or wait in the host's queue. The host would refuse further
/// ones.
const ADMITTED: usize = 512;
/// How long calls may still run once the host stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long answers may take once those calls are killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The entries of this host while it serves.
#[derive(Default)]
pub struct Brokers(Vec<Arc<BrokerServer>>);

impl Brokers {
    /// Connects all entries. The tasks that serve them end when `stop` was cancelled and the calls
    /// that run have ended, or `kill` was.
    pub fn open(
        entries: &[BrokerSettings],
        service: &Arc<Service>,
        stop: &CancellationToken,
        kill: &CancellationToken,
    ) -> (Arc<Brokers>, JoinSet<()>) {
        let mut brokers = Vec::new();
        let mut served = JoinSet::new();
        for entry in entries.iter().cloned() {
            let BrokerSettings {
                request,
                subscription,
                at_once,
                ..
            } = &entry;
            let source = Subscription::Shared {
                topic: request.clone(),
                subscription: subscription.clone(),
                at_once: *at_once,
            };
            let (link, deliveries) =
                Link::open(entry.terms.clone(), source, entry.response.clone());
            let at_once = usize::from(*at_once).min(ADMITTED);
            let broker = Arc::new(BrokerServer {
                service: service.clone(),
                link,
                running: FairSemaphore::new(at_once, at_once),
                waiting: Arc::new(Semaphore::new(MAX_QUEUED_KIB)),
                open: OpenRequests::default(),
                answered: AtomicU64::new(0),
                unanswered: AtomicU64::new(0),
                kill: kill.child_token(),
                entry,
            });
            served.spawn(serve(broker.clone(), deliveries, stop.clone()));
            brokers.push(broker);
        }
        (Arc::new(Brokers(brokers)), served)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any entry is disconnected.
    pub fn is_away(&self) -> bool {
        self.0
            .iter()
            .any(|broker| matches!(broker.link.state(), LinkState::Away { .. }))
    }

    /// The entries, as `status` shows them.
    pub fn status(&self) -> Vec<Value> {
        self.0.iter().map(|broker| status(broker)).collect()
    }
}

fn status(broker: &BrokerServer) -> Value {
    let (connected, since, why) = match broker.link.state() {
        LinkState::Connected { since } => (true, since, None),
        LinkState::Away { since, why } => (false, since, Some(why)),
    };
    let mut status = json!({
        "broker": broker.entry.terms.to_string(),
        "requests": broker.entry.request.to_string(),
        "connected": connected,
        "since": since.to_string(),
    });
    why.into_iter().for_each(|why| status["why"] = json!(why));
    status["open"] = json!(broker.open.len());
    status["answered"] = json!(broker.answered.load(Ordering::Relaxed));
    status["unanswered"] = json!(broker.unanswered.load(Ordering::Relaxed));
    status
}

/// Serves one entry. Messages are read at once: Pulsar drops those that are not read, and RabbitMQ
/// sends no more than may run. Reading pauses only while `MAX_REQUESTS` requests are open.
async fn serve(
    broker: Arc<BrokerServer>,
    mut deliveries: mpsc::Receiver<Delivery>,
    stop: CancellationToken,
) {
    let mut handled = JoinSet::new();
    let mut stopped = false;
    loop {
        tokio::select! {
            delivery = deliveries.recv(), if handled.len() < MAX_REQUESTS => match delivery {
                Some(delivery) => drop(handled.spawn(message::handle(broker.clone(), delivery))),
                None => break,
            },
            Some(ended) = handled.join_next() => log_panic(ended),
            () = stop.cancelled(), if !stopped => {
                stopped = true;
                broker.link.stop();
            }
            () = broker.kill.cancelled() => break,
        }
    }
    let rest = async {
        while let Some(ended) = handled.join_next().await {
            log_panic(ended);
        }
    };
    tokio::pin!(rest);
    tokio::select! {
        () = &mut rest => return,
        () = tokio::time::sleep(DRAIN_TIMEOUT) => broker.kill.cancel(),
        () = broker.kill.cancelled() => {}
    }
    // Each request is answered with a fault: its call was ended.
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, rest).await.is_err() {
        let open = broker.open.len();
        tracing::error!(target: "toolhost::broker", "{open} requests are left unanswered: the host \
            stops");
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(why) = ended
        && why.is_panic()
    {
        tracing::error!(target: "toolhost::broker", "a request failed in toolhost itself; please \
            report it: {why}");
    }
}
