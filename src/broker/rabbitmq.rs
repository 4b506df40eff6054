//! RabbitMQ: declares exchanges and queues exactly as TrustGraph does, so that either side may
//! start first. A message counts as published once the broker confirms it.

use super::delivery::{
    Delivery, Ends, Hold, Incoming, Outgoing, PublishError, Settlement, Subscription, Trace,
};
use super::terms::{Terms, Topic};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer,
    ExchangeKind,
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The header that holds the id, and the one that counts how often a message was put back.
const ID: &str = "id";
const ATTEMPT: &str = "toolhost-attempt";
/// Heartbeat interval, seconds. A broker that is silent for two intervals counts as gone.
const HEARTBEAT: u16 = 20;
/// How many replies the broker may send before the first is read.
const REPLIES: u16 = 64;
/// Most messages in a dead-letter queue. The oldest are dropped first.
const MAX_DEAD_LETTERS: i32 = 1000;

type Failed = lapin::Error;

pub async fn connect(terms: &Terms, source: &Subscription, to: &Topic) -> Result<Ends, String> {
    let uri = uri(terms).await?;
    let tls = OwnedTLSConfig {
        identity: None,
        cert_chain: terms.ca.clone(),
    };
    let runtime = lapin::runtime::default_runtime().map_err(|why| why.to_string())?;
    let named = ConnectionProperties::default().with_connection_name("toolhost".into());
    let connecting = Connection::connect_uri_with_config(uri, named, tls, runtime);
    let connection = Arc::new(connecting.await.map_err(|why| why.to_string())?);
    made(connection, source, to)
        .await
        .map_err(|why| why.to_string())
}

/// The URI, made from its parts: a URL parser would read an IPv6 address as `localhost`.
async fn uri(terms: &Terms) -> Result<AMQPUri, String> {
    let guest = || "guest".to_owned();
    let userinfo = AMQPUserInfo {
        username: terms.user.clone().unwrap_or_else(guest),
        password: terms.credential().await?.unwrap_or_else(guest),
    };
    Ok(AMQPUri {
        scheme: if terms.tls {
            AMQPScheme::AMQPS
        } else {
            AMQPScheme::AMQP
        },
        authority: AMQPAuthority {
            userinfo,
            host: terms.host.clone(),
            port: terms.port,
        },
        vhost: terms.vhost.clone(),
        query: AMQPQueryString {
            heartbeat: Some(HEARTBEAT),
            ..AMQPQueryString::default()
        },
    })
}

async fn made(
    connection: Arc<Connection>,
    source: &Subscription,
    to: &Topic,
) -> Result<Ends, Failed> {
    let out = connection.create_channel().await?;
    out.confirm_select(ConfirmSelectOptions::default()).await?;
    fanout(&out, to).await?;
    let channel = connection.create_channel().await?;
    let (topic, queue, options, at_once) = match source {
        Subscription::Shared {
            topic,
            subscription,
            at_once,
        } => {
            let queue = format!("{}.{subscription}", topic.exchange());
            (topic, queue, QueueDeclareOptions::default(), *at_once)
        }
        Subscription::All { topic } => {
            let own = QueueDeclareOptions {
                exclusive: true,
                auto_delete: true,
                ..QueueDeclareOptions::default()
            };
            (topic, String::new(), own, REPLIES)
        }
    };
    fanout(&channel, topic).await?;
    let queue = channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await?
        .name()
        .to_string();
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(
            queue.clone().into(),
            topic.exchange().into(),
            "".into(),
            bind,
            FieldTable::default(),
        )
        .await?;
    channel
        .basic_qos(at_once, BasicQosOptions::default())
        .await?;
    let consumer = channel
        .basic_consume(
            queue.clone().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let shared = matches!(source, Subscription::Shared { .. });
    let way = Arc::new(Publisher {
        connection,
        channel: out,
        exchange: to.exchange(),
    });
    Ok((
        Box::new(Messages {
            consumer,
            channel,
            shared,
            queue: queue.into(),
            way: way.clone(),
        }),
        way,
    ))
}

async fn fanout(channel: &Channel, topic: &Topic) -> Result<(), Failed> {
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            topic.exchange().into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await
}

struct Messages {
    consumer: Consumer,
    channel: Channel,
    shared: bool,
    queue: Arc<str>,
    way: Arc<Publisher>,
}

impl Incoming for Messages {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Delivery, String>>> {
        Box::pin(async move {
            let message = match self.consumer.next().await? {
                Ok(message) => message,
                Err(why) => return Some(Err(why.to_string())),
            };
            let headers = message.properties.headers().as_ref().map(FieldTable::inner);
            let header = |name: &str| headers.and_then(|headers| headers.get(name));
            let id = match header(ID) {
                Some(AMQPValue::LongString(id)) => id.as_bytes().to_vec(),
                Some(AMQPValue::ByteArray(id)) => id.as_slice().to_vec(),
                _ => Vec::new(),
            };
            let attempt = header(ATTEMPT)
                .and_then(AMQPValue::as_long_uint)
                .unwrap_or(0);
            let trace = Trace::new(|name| match header(name)? {
                AMQPValue::LongString(text) => {
                    std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned)
                }
                _ => None,
            });
            let hold: Option<Box<dyn Hold>> = if self.shared {
                let queue = self.queue.clone();
                let way = self.way.clone();
                Some(Box::new(UnackedDelivery {
                    acker: message.acker,
                    queue,
                    way,
                }))
            } else {
                if let Err(why) = message.acker.ack(BasicAckOptions::default()).await {
                    return Some(Err(why.to_string()));
                }
                None
            };
            Some(Ok(Delivery {
                id,
                body: message.data,
                redelivered: message.redelivered,
                attempt,
                trace,
                hold,
                broken: CancellationToken::new(),
            }))
        })
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self
                .channel
                .basic_cancel(self.consumer.tag(), BasicCancelOptions::default())
                .await;
        })
    }
}

/// The publisher. It has one channel, so that messages arrive in the order in which they were
/// published.
struct Publisher {
    /// Closes once nothing holds it any more.
    connection: Arc<Connection>,
    channel: Channel,
    exchange: String,
}

impl Publisher {
    async fn put(
        &self,
        exchange: &str,
        key: &str,
        body: &[u8],
        headers: FieldTable,
        mode: u8,
    ) -> Result<(), PublishError> {
        // If a message is too large, the broker closes the channel, and all pending publishes fail
        // with one error. The size in its text tells which message was too large.
        let large = format!("message size {} is larger", body.len());
        let failed = |why: Failed| match why.to_string() {
            why if why.contains(&large) => PublishError::TooLarge,
            why => PublishError::Failed(why),
        };
        // `mandatory`: the broker returns a message that no queue takes.
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(mode)
            .with_headers(headers);
        let sent = self
            .channel
            .basic_publish(exchange.into(), key.into(), options, body, properties)
            .await;
        match sent.map_err(failed)?.await.map_err(failed)? {
            Confirmation::Ack(None) | Confirmation::NotRequested => Ok(()),
            Confirmation::Ack(Some(_)) => Err(PublishError::NoListener),
            Confirmation::Nack(_) => Err(PublishError::Failed(
                "the broker rejected the message".to_owned(),
            )),
        }
    }
}

/// The id is a long string (`S`), because TrustGraph's clients fail for good on any other type.
fn headers(id: &[u8], attempt: Option<u32>, trace: &Trace) -> FieldTable {
    let mut headers = FieldTable::default();
    for (name, text) in trace.texts() {
        headers.insert(name.into(), AMQPValue::LongString(text.into()));
    }
    headers.insert(ID.into(), AMQPValue::LongString(id.to_vec().into()));
    if let Some(attempt) = attempt {
        headers.insert(ATTEMPT.into(), AMQPValue::LongUInt(attempt));
    }
    headers
}

impl Outgoing for Publisher {
    fn publish<'a>(
        &'a self,
        id: &'a [u8],
        body: &'a [u8],
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        Box::pin(self.put(&self.exchange, "", body, headers(id, None, trace), 1))
    }
}

struct UnackedDelivery {
    acker: lapin::Acker,
    queue: Arc<str>,
    way: Arc<Publisher>,
}

impl Hold for UnackedDelivery {
    fn settle<'a>(
        &'a self,
        delivery: &'a Delivery,
        how: Settlement,
    ) -> BoxFuture<'a, Result<(), String>> {
        let UnackedDelivery { acker, queue, way } = self;
        let headers = |attempt| headers(&delivery.id, Some(attempt), &delivery.trace);
        Box::pin(async move {
            let put = match how {
                Settlement::Done => {
                    return match acker.ack(BasicAckOptions::default()).await {
                        Ok(true) => Ok(()),
                        Ok(false) => Err("the channel on which it came is closed".to_owned()),
                        Err(why) => Err(why.to_string()),
                    };
                }
                Settlement::Requeue => {
                    way.put(
                        "",
                        queue,
                        &delivery.body,
                        headers(delivery.attempt.saturating_add(1)),
                        1,
                    )
                    .await
                }
                Settlement::Bury => {
                    let name = format!("{queue}.dead");
                    // On a channel of its own: if the queue exists with other arguments, the broker
                    // closes the channel.
                    let channel = way
                        .connection
                        .create_channel()
                        .await
                        .map_err(|why| why.to_string())?;
                    let mut arguments = FieldTable::default();
                    arguments.insert("x-max-length".into(), AMQPValue::LongInt(MAX_DEAD_LETTERS));
                    let _ = channel
                        .queue_declare(
                            name.as_str().into(),
                            QueueDeclareOptions::durable(),
                            arguments,
                        )
                        .await;
                    let _ = channel.close(200, "".into()).await;
                    way.put("", &name, &delivery.body, headers(delivery.attempt), 2)
                        .await
                }
            };
            put.map_err(|why| format!("{why:?}"))
        })
    }
}
