//! A client of RabbitMQ that can say anything: other headers, other bodies, no id.

use crate::prelude::*;
use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

pub struct Raw {
    connection: Connection,
    channel: Channel,
    replies: Consumer,
    service: String,
}

impl Raw {
    /// The exchanges are declared by the host.
    pub async fn to(url: &str, service: &str) -> Raw {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let own = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel
            .queue_declare("".into(), own, FieldTable::default())
            .await
            .unwrap()
            .name()
            .clone();
        let exchange = format!("tg.response.{service}");
        let (bind, none) = (QueueBindOptions::default(), FieldTable::default);
        channel
            .queue_bind(queue.clone(), exchange.into(), "".into(), bind, none())
            .await
            .unwrap();
        let consume = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let replies = channel
            .basic_consume(queue, "".into(), consume, none())
            .await
            .unwrap();
        Raw {
            connection,
            channel,
            replies,
            service: service.to_owned(),
        }
    }

    pub async fn send(&self, id: Option<AMQPValue>, body: &[u8]) {
        self.send_with(id.into_iter().map(|id| ("id", id)), body)
            .await;
    }

    pub async fn send_with(&self, given: impl IntoIterator<Item = (&str, AMQPValue)>, body: &[u8]) {
        let mut headers = FieldTable::default();
        given
            .into_iter()
            .for_each(|(name, value)| _ = headers.insert(name.into(), value));
        let properties = BasicProperties::default().with_headers(headers);
        let exchange = format!("tg.request.{}", self.service);
        let options = BasicPublishOptions::default();
        self.channel
            .basic_publish(exchange.into(), "".into(), options, body, properties)
            .await
            .unwrap();
    }

    /// A request as TrustGraph makes it.
    pub async fn ask(&self, id: &str, config: &Value, arguments: &Value) {
        let body =
            json!({"config": config.to_string(), "arguments": arguments.to_string()}).to_string();
        self.send(Some(AMQPValue::LongString(id.into())), body.as_bytes())
            .await;
    }

    /// A call of `esc:NAME`.
    pub async fn call(&self, id: &str, name: &str, arguments: Value) {
        self.ask(id, &json!({"tool": format!("esc:{name}")}), &arguments)
            .await;
    }

    /// A call of `esc:NAME` that a host was lost with: taken before any other consumer has it, and
    /// never settled.
    pub async fn lost(&self, id: &str, name: &str, arguments: Value) {
        let channel = self.connection.create_channel().await.unwrap();
        let mut first = FieldTable::default();
        first.insert("x-priority".into(), AMQPValue::LongInt(10));
        let queue = format!("tg.request.{}.toolhost-request", self.service);
        let options = BasicConsumeOptions::default();
        let mut taken = channel
            .basic_consume(queue.into(), "".into(), options, first)
            .await
            .unwrap();
        self.call(id, name, arguments).await;
        let taken = tokio::time::timeout(PATIENCE, taken.next())
            .await
            .expect("it comes here first");
        assert!(!taken.unwrap().unwrap().redelivered);
        channel.close(200, "".into()).await.unwrap();
    }

    /// The next reply: the bytes of its id, and its body.
    pub async fn reply(&mut self) -> (Vec<u8>, Value) {
        let next = tokio::time::timeout(PATIENCE, self.replies.next());
        let message = next
            .await
            .expect("no reply")
            .expect("the connection lives")
            .unwrap();
        let headers = message.properties.headers().as_ref().unwrap().inner();
        let Some(AMQPValue::LongString(id)) = headers.get("id") else {
            panic!("no long string: {headers:?}")
        };
        (
            id.as_bytes().to_vec(),
            serde_json::from_slice(&message.data).unwrap(),
        )
    }

    /// The reply of one request, the only one that is open.
    pub async fn answer(&mut self, id: &str) -> Value {
        let (told, body) = self.reply().await;
        assert_eq!(String::from_utf8_lossy(&told), id);
        assert_eq!(body["end_of_stream"], true, "{body}");
        body
    }

    /// Whether no reply is on its way: one of a call that is made now comes first.
    pub async fn is_quiet(&mut self) {
        self.call("quiet", "echo", json!({"quiet": 1})).await;
        assert_eq!(self.answer("quiet").await["response"], "{\"quiet\":1}");
    }

    pub async fn delete_queue(&self) {
        let queue = format!("tg.request.{}.toolhost-request", self.service);
        self.channel
            .queue_delete(queue.into(), QueueDeleteOptions::default())
            .await
            .unwrap();
    }

    /// What was set aside.
    pub async fn dead(&self) -> Option<Vec<u8>> {
        let queue = format!("tg.request.{}.toolhost-request.dead", self.service);
        let message = self
            .channel
            .basic_get(queue.into(), BasicGetOptions::default())
            .await
            .unwrap()?;
        message.ack(BasicAckOptions::default()).await.unwrap();
        Some(message.delivery.data)
    }
}
