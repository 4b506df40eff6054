//! Serve: a tool service written in Rust: one method, and a function that answers by it.
//!
//! For: programs that embed this library (`examples/joke.rs`). In: terms, two topics, a `ToolService`. Out: a reply for every
//! request, also where the method fails or panics. Never: more requests at once than it was told.

use super::{Delivery, Link, Request, Response, Source, Terms, Topic, Unsent};
use crate::base::json::{Dialect, parse};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One request. What was sent as an empty text is an empty map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Whoever asks; empty: the client does not say. A label.
    pub user: String,
    /// What the tool's descriptor sets.
    pub config: Map<String, Value>,
    pub arguments: Map<String, Value>,
}

/// A tool service.
pub trait ToolService: Send + Sync + 'static {
    /// Answers one request. A text is sent as it is, anything else as JSON. What goes to `parts` is sent at once, before
    /// the answer, which is the last part then.
    fn invoke(&self, asked: Asked, parts: &Parts) -> impl Future<Output = Result<Value, String>> + Send;
}

/// Where an answer that streams goes.
pub struct Parts {
    link: Arc<Link>,
    id: Vec<u8>,
}

impl Parts {
    pub async fn send(&self, part: impl Into<String>) {
        let reply = Response::part(part.into());
        let body = reply.encode().or_else(|| Response::failed("A part is larger than a broker takes.").encode());
        put(&self.link, &self.id, &body.unwrap_or_default()).await;
    }
}

/// Answers requests until it is dropped. Services of one `id` share them. With RabbitMQ a request counts as answered once its reply
/// is out: one that was being answered when this ended is asked again.
pub async fn serve(terms: Terms, requests: Topic, replies: Topic, id: &str, at_once: u16, service: impl ToolService) {
    let source = Source::Shared { topic: requests, subscription: format!("{id}-request"), at_once };
    let (link, mut came) = Link::open(terms, source, replies);
    let (link, service) = (Arc::new(link), Arc::new(service));
    let (places, mut running) = (Arc::new(Semaphore::new(at_once.into())), JoinSet::new());
    while let Some(delivery) = came.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while running.try_join_next().is_some() {}
        let (link, service) = (link.clone(), service.clone());
        running.spawn(async move {
            answered(&link, delivery, service).await;
            drop(place);
        });
    }
}

async fn answered(link: &Arc<Link>, delivery: Delivery, service: Arc<impl ToolService>) {
    let parts = Parts { link: link.clone(), id: delivery.id.clone() };
    let reply = match asked(&delivery.body) {
        Ok(asked) => {
            // A task of its own, so that a panic ends nothing else; it ends with this one.
            let mut work = JoinSet::new();
            work.spawn(async move { service.invoke(asked, &parts).await });
            match work.join_next().await {
                Some(Ok(Ok(Value::String(text)))) => Response::whole(text),
                Some(Ok(Ok(value))) => Response::whole(value.to_string()),
                Some(Ok(Err(why))) => Response::failed(why),
                Some(Err(_)) | None => Response::failed("The service failed unexpectedly."),
            }
        }
        Err(why) => Response::failed(why),
    };
    let body = reply.encode().or_else(|| Response::failed("The answer is larger than a broker takes.").encode());
    put(link, &delivery.id, &body.unwrap_or_default()).await;
    if let Err(why) = delivery.done().await {
        tracing::warn!(target: "toolhost::broker", "a request was answered, and may come again: {why}");
    }
}

async fn put(link: &Link, id: &[u8], body: &[u8]) {
    match link.publish(id, body).await {
        // Whoever asked may have stopped listening.
        Ok(()) | Err(Unsent::Nobody) => {}
        Err(why) => tracing::warn!(target: "toolhost::broker", "a reply was not sent: {why:?}"),
    }
}

fn asked(body: &[u8]) -> Result<Asked, String> {
    let Request { user, config, arguments } = Request::decode(body)?;
    let map = |what: &str, text: &str| match text.trim().is_empty() {
        true => Ok(Map::new()),
        false => match parse(text.as_bytes(), Dialect::Strict).map(|document| document.value) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(format!("The {what} are no JSON object.")),
            Err(why) => Err(format!("The {what} are no JSON object: {}", why.message)),
        },
    };
    Ok(Asked { user, config: map("values of \"config\"", &config)?, arguments: map("arguments", &arguments)? })
}
