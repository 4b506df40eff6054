//! A tool service written in Rust (`examples/joke.rs`): one method answers every request, also where it fails or
//! panics.

use super::delivery::{Delivery, LONGEST_ID, PublishError, Subscription};
use super::envelope::{ToolServiceRequest, ToolServiceResponse};
use super::link::Link;
use super::terms::{Terms, Topic};
use crate::base::json::{Dialect, parse};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One request. What was sent as an empty text is an empty map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRequest {
    /// Whoever asks; empty: the client does not say. A label.
    pub user: String,
    /// What the tool's descriptor sets.
    pub config: Map<String, Value>,
    pub arguments: Map<String, Value>,
}

/// A tool service.
pub trait ToolService: Send + Sync + 'static {
    /// Answers one request. A text is sent as it is, anything else as JSON. What goes to `stream` is sent at once,
    /// before the answer, which is the last part then.
    fn invoke(&self, asked: ServiceRequest, stream: &ReplyStream)
    -> impl Future<Output = Result<Value, String>> + Send;
}

/// Sends the parts of a streamed answer.
pub struct ReplyStream {
    replies: Arc<Replies>,
    id: Vec<u8>,
}

/// The way out.
struct Replies {
    link: Link,
    /// The smallest that the broker refused, bytes.
    refused: AtomicUsize,
}

impl ReplyStream {
    pub async fn send(&self, part: impl Into<String>) {
        self.replies.put(&self.id, ToolServiceResponse::part(part.into())).await;
    }
}

/// Answers requests until it is dropped. Services of one `id` share them. With RabbitMQ a request counts as answered
/// once its reply is out: one that was being answered when this ended is asked again.
pub async fn serve(terms: Terms, requests: Topic, replies: Topic, id: &str, at_once: u16, service: impl ToolService) {
    let source = Subscription::Shared { topic: requests, subscription: format!("{id}-request"), at_once };
    let (link, mut came) = Link::open(terms, source, replies);
    let replies = Arc::new(Replies { link, refused: AtomicUsize::new(usize::MAX) });
    let service = Arc::new(service);
    let (places, mut running) = (Arc::new(Semaphore::new(at_once.into())), JoinSet::new());
    while let Some(delivery) = came.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while running.try_join_next().is_some() {}
        let (replies, service) = (replies.clone(), service.clone());
        running.spawn(async move {
            answer(&replies, delivery, service).await;
            drop(place);
        });
    }
}

async fn answer(replies: &Arc<Replies>, delivery: Delivery, service: Arc<impl ToolService>) {
    let stream = ReplyStream { replies: replies.clone(), id: delivery.id.clone() };
    let reply = match parse_request(&delivery.body) {
        // Neither has an answer: what is a reply itself, and what asks under an id that no message may have.
        Ok(None) => None,
        _ if delivery.id.len() > LONGEST_ID => None,
        Ok(Some(asked)) => {
            // A task of its own, so that a panic ends nothing else; it ends with this one.
            let mut work = JoinSet::new();
            work.spawn(async move { service.invoke(asked, &stream).await });
            Some(match work.join_next().await {
                Some(Ok(Ok(Value::String(text)))) => ToolServiceResponse::whole(text),
                Some(Ok(Ok(value))) => ToolServiceResponse::whole(value.to_string()),
                Some(Ok(Err(why))) => ToolServiceResponse::failed(why),
                Some(Err(_)) | None => ToolServiceResponse::failed("The service failed unexpectedly."),
            })
        }
        Err(why) => Some(ToolServiceResponse::failed(why)),
    };
    if let Some(reply) = reply {
        replies.put(&delivery.id, reply).await;
    }
    if let Err(why) = delivery.done().await {
        tracing::warn!(target: "toolhost::broker", "a request was answered, and may come again: {why}");
    }
}

impl Replies {
    async fn put(&self, id: &[u8], reply: ToolServiceResponse) {
        for reply in [reply, ToolServiceResponse::failed("The answer is larger than the broker takes.")] {
            let refused = self.refused.load(Ordering::Relaxed);
            let Some(body) = reply.encode().filter(|body| body.len() < refused) else { continue };
            let before = self.link.state();
            match self.link.publish(id, &body).await {
                // Whoever asked may have stopped listening.
                Ok(()) | Err(PublishError::NoListener) => return,
                // The broker takes less than is sent here, and has ended the connection: what was being answered on it
                // comes again, and must not end the next one.
                Err(PublishError::TooLarge) => {
                    self.refused.fetch_min(body.len(), Ordering::Relaxed);
                    self.link.other_than(&before).await;
                }
                Err(why) => return tracing::warn!(target: "toolhost::broker", "a reply was not sent: {why:?}"),
            }
        }
    }
}

/// `None`: it is a reply, and no request.
fn parse_request(body: &[u8]) -> Result<Option<ServiceRequest>, String> {
    let ToolServiceRequest { user, config, arguments, is_reply } = ToolServiceRequest::decode(body)?;
    if is_reply {
        return Ok(None);
    }
    let map = |what: &str, text: &str| match text.trim().is_empty() {
        true => Ok(Map::new()),
        false => match parse(text.as_bytes(), Dialect::Strict).map(|document| document.value) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(format!("The {what} are no JSON object.")),
            Err(why) => Err(format!("The {what} are no JSON object: {}", why.message)),
        },
    };
    let (config, arguments) = (map("values of \"config\"", &config)?, map("arguments", &arguments)?);
    Ok(Some(ServiceRequest { user, config, arguments }))
}
