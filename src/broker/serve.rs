//! Serves a tool service written in Rust (`examples/joke.rs`). Every request gets a reply, even if
//! the service fails or panics.

use super::delivery::{Delivery, MAX_ID_BYTES, PublishError, Subscription};
use super::envelope::{ToolServiceRequest, ToolServiceResponse};
use super::link::Link;
use super::terms::{Terms, Topic};
use crate::base::json::{Dialect, parse};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One request. A field that was sent as an empty string is an empty map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRequest {
    /// The user that the client names; empty if it names none. A label: nothing proves it.
    pub user: String,
    /// What the tool's descriptor sets.
    pub config: Map<String, Value>,
    pub arguments: Map<String, Value>,
}

const TOO_LARGE: &str = "The answer is larger than the broker takes.";

/// A tool service.
pub trait ToolService: Send + Sync + 'static {
    /// Answers one request. A string is sent as it is, any other value as JSON. Parts that go to
    /// `stream` are sent at once; the returned answer is then the last part.
    fn invoke(
        &self,
        asked: ServiceRequest,
        stream: &ReplyStream,
    ) -> impl Future<Output = Result<Value, String>> + Send;
}

/// Sends the parts of a streamed answer.
pub struct ReplyStream {
    replies: Arc<Replies>,
    id: Vec<u8>,
    /// An error was sent in place of a reply. It ends the stream.
    failed: AtomicBool,
}

/// Publishes the replies.
struct Replies {
    link: Link,
    /// Size of the smallest reply that the broker refused, bytes.
    refused: AtomicUsize,
}

impl ReplyStream {
    pub async fn send(&self, part: impl Into<String>) {
        self.put(ToolServiceResponse::part(part.into())).await;
    }

    async fn put(&self, reply: ToolServiceResponse) {
        if !self.failed.load(Ordering::Relaxed) && !self.replies.put(&self.id, reply).await {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

/// Answers requests until the future is dropped. Services of equal `id` share requests. With
/// RabbitMQ, a request that was not answered when this ended is delivered again.
pub async fn serve(
    terms: Terms,
    requests: Topic,
    replies: Topic,
    id: &str,
    at_once: u16,
    service: impl ToolService,
) {
    let source = Subscription::Shared {
        topic: requests,
        subscription: format!("{id}-request"),
        at_once,
    };
    let (link, mut came) = Link::open(terms, source, replies);
    let replies = Arc::new(Replies {
        link,
        refused: AtomicUsize::new(usize::MAX),
    });
    let service = Arc::new(service);
    let places = Arc::new(Semaphore::new(at_once.into()));
    let mut running = JoinSet::new();
    while let Some(delivery) = came.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        while running.try_join_next().is_some() {}
        let replies = replies.clone();
        let service = service.clone();
        running.spawn(async move {
            answer(&replies, delivery, service).await;
            drop(place);
        });
    }
}

async fn answer(replies: &Arc<Replies>, delivery: Delivery, service: Arc<impl ToolService>) {
    let failed = AtomicBool::new(false);
    let stream = Arc::new(ReplyStream {
        replies: replies.clone(),
        id: delivery.id.clone(),
        failed,
    });
    let reply = match parse_request(&delivery.body) {
        // Two kinds of message get no reply: one that is a reply itself, and one whose id is too
        // long.
        Ok(None) => None,
        _ if delivery.id.len() > MAX_ID_BYTES => None,
        Ok(Some(asked)) => {
            // A separate task, so that a panic ends nothing else; this one cancels it.
            let mut work = JoinSet::new();
            let parts = stream.clone();
            work.spawn(async move { service.invoke(asked, &parts).await });
            Some(match work.join_next().await {
                Some(Ok(Ok(Value::String(text)))) => ToolServiceResponse::whole(text),
                Some(Ok(Ok(value))) => ToolServiceResponse::whole(value.to_string()),
                Some(Ok(Err(why))) => ToolServiceResponse::failed(why),
                Some(Err(_)) | None => {
                    ToolServiceResponse::failed("The service failed unexpectedly.")
                }
            })
        }
        Err(why) => Some(ToolServiceResponse::failed(why)),
    };
    if let Some(reply) = reply {
        stream.put(reply).await;
    }
    if let Err(why) = delivery.done().await {
        tracing::warn!(target: "toolhost::broker", "a request was answered, but may be delivered \
            again: {why}");
    }
}

impl Replies {
    /// Whether the reply was sent as it is. In place of one that is too large an error is sent.
    async fn put(&self, id: &[u8], reply: ToolServiceResponse) -> bool {
        for (reply, is_sent) in [
            (reply, true),
            (ToolServiceResponse::failed(TOO_LARGE), false),
        ] {
            let refused = self.refused.load(Ordering::Relaxed);
            let Some(body) = reply.encode().filter(|body| body.len() < refused) else {
                continue;
            };
            let before = self.link.state();
            match self.link.publish(id, &body).await {
                // The client may have stopped listening.
                Ok(()) | Err(PublishError::NoListener) => return is_sent,
                // The reply was too large for the broker, which ended the connection. Requests of
                // that connection come again, and a reply of this size must not end the next one.
                Err(PublishError::TooLarge) => {
                    self.refused.fetch_min(body.len(), Ordering::Relaxed);
                    self.link.wait_for_change(&before).await;
                }
                Err(why) => {
                    tracing::warn!(target: "toolhost::broker", "a reply was not sent: {why:?}");
                    return false;
                }
            }
        }
        false
    }
}

/// `None`: the message is a reply, not a request.
fn parse_request(body: &[u8]) -> Result<Option<ServiceRequest>, String> {
    let ToolServiceRequest {
        user,
        config,
        arguments,
        is_reply,
    } = ToolServiceRequest::decode(body)?;
    if is_reply {
        return Ok(None);
    }
    fn map(what: &str, text: &str) -> Result<Map<String, Value>, String> {
        if text.trim().is_empty() {
            Ok(Map::new())
        } else {
            match parse(text.as_bytes(), Dialect::Strict).map(|document| document.value) {
                Ok(Value::Object(map)) => Ok(map),
                Ok(_) => Err(format!("The {what} are not a JSON object.")),
                Err(why) => Err(format!("The {what} are not a JSON object: {}", why.message)),
            }
        }
    }
    let config = map("values of \"config\"", &config)?;
    let arguments = map("arguments", &arguments)?;
    Ok(Some(ServiceRequest {
        user,
        config,
        arguments,
    }))
}
