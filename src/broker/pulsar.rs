//! Pulsar's non-persistent topics, as TrustGraph uses them: what no consumer takes at once is lost.

use super::delivery::{Delivery, Ends, Incoming, Outgoing, PublishError, Subscription, Trace};
use super::terms::{Terms, Topic};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use pulsar::{
    Authentication, ConnectionRetryOptions, Consumer, ConsumerOptions, Producer, ProducerOptions,
    Pulsar, SubType, TokioExecutor,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// The property that holds the id.
const ID: &str = "id";
/// Messages that the broker may send ahead. It drops further ones, so this number cannot limit how
/// many calls run.
const PERMITS: u32 = 1000;

pub async fn connect(terms: &Terms, source: &Subscription, to: &Topic) -> Result<Ends, String> {
    made(terms, terms.credential().await?, source, to)
        .await
        .map_err(|why| reason(&why))
}

/// The client library does not tell why the broker refused a new connection, so this adds the
/// likely reasons.
fn reason(why: &pulsar::Error) -> String {
    let words = why.to_string();
    if words.contains("fatal error when connecting") {
        format!(
            "{words}: its certificate is not trusted (`ca`), or it refuses the token \
            (`credentials`)"
        )
    } else {
        words
    }
}

/// Opens one connection.
async fn client(
    terms: &Terms,
    token: Option<String>,
) -> Result<Pulsar<TokioExecutor>, pulsar::Error> {
    let retry = ConnectionRetryOptions {
        // No retries here: the link reconnects.
        max_retries: 0,
        connection_timeout: Duration::from_secs(10),
        keep_alive: Duration::from_secs(20),
        ..ConnectionRetryOptions::default()
    };
    let mut builder =
        Pulsar::builder(terms.to_string(), TokioExecutor).with_connection_retry_options(retry);
    if let Some(token) = token {
        builder = builder.with_auth(Authentication {
            name: "token".to_owned(),
            data: token.into_bytes(),
        });
    }
    if let Some(ca) = &terms.ca {
        builder = builder.with_certificate_chain(ca.clone().into_bytes());
    }
    builder.build().await
}

/// One connection for each direction. The broker does not answer an acknowledgement. On a shared
/// connection the kernel would hold back the next reply (Nagle, RFC 896) until the broker's kernel
/// confirms the acknowledgement, up to 40 ms later (delayed ACK, RFC 1122, section 4.2.3.2).
async fn made(
    terms: &Terms,
    token: Option<String>,
    source: &Subscription,
    to: &Topic,
) -> Result<Ends, pulsar::Error> {
    let out = client(terms, token.clone()).await?;
    let options = ProducerOptions {
        block_queue_if_full: true,
        ..ProducerOptions::default()
    };
    let producer = out
        .producer()
        .with_topic(to.uri())
        .with_options(options)
        .build()
        .await?;
    let (topic, subscription, kind) = match source {
        Subscription::Shared {
            topic,
            subscription,
            ..
        } => (topic, subscription.clone(), SubType::Shared),
        Subscription::All { topic } => (
            topic,
            format!("toolhost-{}", uuid::Uuid::now_v7()),
            SubType::Exclusive,
        ),
    };
    let into = client(terms, token).await?;
    let consumer: Consumer<Vec<u8>, TokioExecutor> = into
        .consumer()
        .with_topic(topic.uri())
        .with_subscription(subscription)
        .with_subscription_type(kind)
        .with_batch_size(PERMITS)
        .with_options(ConsumerOptions::default().durable(true))
        .build()
        .await?;
    Ok((
        Box::new(Messages {
            _client: into,
            consumer,
        }),
        Arc::new(Publisher {
            _client: out,
            producer: Mutex::new(producer),
        }),
    ))
}

struct Messages {
    _client: Pulsar<TokioExecutor>,
    consumer: Consumer<Vec<u8>, TokioExecutor>,
}

impl Incoming for Messages {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Delivery, String>>> {
        Box::pin(async move {
            let message = match self.consumer.next().await? {
                Ok(message) => message,
                Err(why) => return Some(Err(why.to_string())),
            };
            // The broker sends nothing again on these topics. The acknowledgement only keeps its
            // counts right.
            if let Err(why) = self.consumer.ack(&message).await {
                return Some(Err(why.to_string()));
            }
            let properties = &message.payload.metadata.properties;
            let property = |name: &str| properties.iter().find(|property| property.key == name);
            let text = |name: &str| property(name).map(|property| property.value.clone());
            let id = text(ID).unwrap_or_default().into_bytes();
            let trace = Trace::new(text);
            let body = message.payload.data;
            let broken = CancellationToken::new();
            Some(Ok(Delivery {
                id,
                body,
                redelivered: false,
                attempt: 0,
                trace,
                hold: None,
                broken,
            }))
        })
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.consumer.close().await;
        })
    }
}

/// The publisher. It has one producer, so that messages arrive in the order in which they were
/// published.
struct Publisher {
    _client: Pulsar<TokioExecutor>,
    producer: Mutex<Producer<TokioExecutor>>,
}

impl Outgoing for Publisher {
    fn publish<'a>(
        &'a self,
        id: &'a [u8],
        body: &'a [u8],
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            let failed = |why: pulsar::Error| PublishError::Failed(why.to_string());
            // Properties are text, so a request of Pulsar has no other id. No other id is expected.
            let id = String::from_utf8(id.to_vec()).map_err(|_| PublishError::NoListener)?;
            let mut properties = HashMap::from([(ID.to_owned(), id)]);
            properties.extend(
                trace
                    .texts()
                    .map(|(name, text)| (name.to_owned(), text.to_owned())),
            );
            let message = pulsar::producer::Message {
                payload: body.to_vec(),
                properties,
                ..Default::default()
            };
            let receipt = self
                .producer
                .lock()
                .await
                .send_non_blocking(message)
                .await
                .map_err(failed)?;
            receipt.await.map(drop).map_err(failed)
        })
    }
}
