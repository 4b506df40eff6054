//! How to reach a broker (address, user, credential, certificates), and its topics. A credential is
//! never part of a URL, and crosses a network unencrypted only if the operator allows it.

use futures_util::future::BoxFuture;
use http::Uri;
use percent_encoding::{AsciiSet, percent_decode_str, utf8_percent_encode};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// What is escaped in the name of a virtual host.
const ESCAPED: &AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
    RabbitMq,
    Pulsar,
}

impl BrokerKind {
    /// The cargo feature, and whether this build has it.
    fn feature(self) -> (&'static str, bool) {
        match self {
            BrokerKind::RabbitMq => ("rabbitmq", cfg!(feature = "rabbitmq")),
            BrokerKind::Pulsar => ("pulsar", cfg!(feature = "pulsar")),
        }
    }
}

/// A credential, read again for each connection, so that a change takes effect.
#[derive(Clone)]
pub struct Secret(Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>);

impl Secret {
    pub fn new(
        read: impl Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync + 'static,
    ) -> Secret {
        Secret(Arc::new(read))
    }

    pub(super) async fn read(&self) -> Result<String, String> {
        self.0().await
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// How a broker is reached.
#[derive(Clone, Debug)]
pub struct Terms {
    pub kind: BrokerKind,
    pub tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// RabbitMQ: the virtual host.
    pub vhost: String,
    /// RabbitMQ: the user whose password the secret is.
    pub user: Option<String>,
    /// RabbitMQ: a password. Pulsar: a token.
    pub secret: Option<Secret>,
    /// Certificates (PEM) that vouch for the broker, beside the machine's own.
    pub ca: Option<String>,
}

impl Terms {
    /// Whether this broker keeps no message and does not report a missing listener.
    pub fn keeps_nothing(&self) -> bool {
        self.kind == BrokerKind::Pulsar
    }

    /// `insecure`: allows an unencrypted connection over a network that the operator trusts.
    pub fn new(
        url: &str,
        user: Option<String>,
        secret: Option<Secret>,
        insecure: bool,
    ) -> Result<Terms, String> {
        let shape = "write \"amqp://host:port/vhost\", \"amqps://…\", \"pulsar://host:port\" or \
            \"pulsar+ssl://…\"";
        // The URL may contain a password, so messages never repeat it.
        let uri: Uri = url.parse().map_err(|_| format!("not a URL: {shape}"))?;
        let (kind, tls, port) = match uri.scheme_str() {
            Some("amqp") => (BrokerKind::RabbitMq, false, 5672),
            Some("amqps") => (BrokerKind::RabbitMq, true, 5671),
            Some("pulsar") => (BrokerKind::Pulsar, false, 6650),
            Some("pulsar+ssl") => (BrokerKind::Pulsar, true, 6651),
            _ => return Err(format!("unknown scheme: {shape}")),
        };
        if let (feature, false) = kind.feature() {
            return Err(format!(
                "this toolhost was built without {feature}: build with `--features {feature}`"
            ));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(
                "logs show the url, so it must hold no user or password: write `user` and \
                `credentials`"
                    .to_owned(),
            );
        }
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let vhost = match (kind, uri.path()) {
            (_, "" | "/") => "/".to_owned(),
            (BrokerKind::RabbitMq, path) if !path[1..].contains('/') => {
                let name = percent_decode_str(&path[1..]).decode_utf8();
                name.map_err(|_| "the virtual host is not UTF-8".to_owned())?
                    .into_owned()
            }
            _ => {
                return Err(format!(
                    "its path is not supported: {shape}; write `/` in a virtual host as `%2f`"
                ));
            }
        };
        if host.is_empty() || uri.query().is_some() {
            return Err(format!("no host, or a query: {shape}"));
        }
        if kind == BrokerKind::Pulsar && user.is_some() {
            return Err("Pulsar takes a token as `credentials`, and no `user`".to_owned());
        }
        if kind == BrokerKind::RabbitMq && user.is_some() != secret.is_some() {
            return Err(
                "RabbitMQ takes a `user` and its password as `credentials`, or neither".to_owned(),
            );
        }
        if !tls && !insecure && !is_local(&host) {
            return Err(
                "others on the network could read and write what crosses it: write amqps:// or \
                        pulsar+ssl://, or `insecure = true` where something else encrypts or the \
                        network is the broker's own"
                    .to_owned(),
            );
        }
        let port = match uri.port_u16() {
            Some(port @ 1..) => port,
            None if authority.ends_with(&host) || authority.ends_with(']') => port,
            _ => {
                return Err(format!(
                    "its port must be a number from 1 to 65535: {shape}"
                ));
            }
        };
        Ok(Terms {
            kind,
            tls,
            host,
            port,
            vhost,
            user,
            secret,
            ca: None,
        })
    }

    /// The credential as it is now.
    pub async fn credential(&self) -> Result<Option<String>, String> {
        match &self.secret {
            None => Ok(None),
            Some(secret) => secret
                .read()
                .await
                .map(Some)
                .map_err(|why| format!("the credentials: {why}")),
        }
    }
}

/// The broker's address, as shown to people.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.kind, self.tls) {
            (BrokerKind::RabbitMq, false) => "amqp",
            (BrokerKind::RabbitMq, true) => "amqps",
            (BrokerKind::Pulsar, false) => "pulsar",
            (BrokerKind::Pulsar, true) => "pulsar+ssl",
        };
        fn bracket(on: bool, it: &str) -> &str {
            if on { it } else { "" }
        }
        let six = self.host.contains(':');
        write!(
            f,
            "{scheme}://{}{}{}:{}",
            bracket(six, "["),
            self.host,
            bracket(six, "]"),
            self.port
        )?;
        match self.vhost.as_str() {
            "/" => Ok(()),
            vhost => write!(f, "/{}", utf8_percent_encode(vhost, ESCAPED)),
        }
    }
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// A topic, in the two spellings that TrustGraph has (`request:tg:x`,
/// `non-persistent://tg/request/x`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Pulsar: the tenant.
    space: String,
    /// `request`, `response`; Pulsar: the namespace.
    class: String,
    name: String,
}

/// Longest name of all parts, bytes: RabbitMQ allows 255 for a queue, whose name also contains the
/// subscription.
const MAX_TOPIC_BYTES: usize = 120;

impl Topic {
    pub fn parse(text: &str) -> Result<Topic, String> {
        let shape = "write \"request:tg:NAME\" or \"non-persistent://tg/request/NAME\"";
        let parts = match text.strip_prefix("non-persistent://") {
            Some(rest) => {
                let mut parts = rest.splitn(3, '/');
                (parts.next(), parts.next(), parts.next())
            }
            None if text.contains("://") => return Err(format!("not a supported topic: {shape}")),
            None => {
                let mut parts = text.splitn(3, ':');
                let class = parts.next();
                (parts.next(), class, parts.next())
            }
        };
        let (Some(space), Some(class), Some(name)) = parts else {
            return Err(format!("a topic has three parts: {shape}"));
        };
        if ![space, class, name].into_iter().all(|part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
        }) || text.len() > MAX_TOPIC_BYTES
        {
            return Err(format!(
                "no part may be empty; plain characters, at most {MAX_TOPIC_BYTES} in all: {shape}"
            ));
        }
        Ok(Topic {
            space: space.to_owned(),
            class: class.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Where requests to a service and its replies go, as TrustGraph's own services name them.
    pub fn of_service(name: &str) -> Result<(Topic, Topic), String> {
        Ok((
            Topic::parse(&format!("request:tg:{name}"))?,
            Topic::parse(&format!("response:tg:{name}"))?,
        ))
    }

    /// Its last part.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fanout exchange of RabbitMQ.
    pub fn exchange(&self) -> String {
        let Topic { space, class, name } = self;
        format!("{space}.{class}.{name}")
    }

    /// The topic of Pulsar.
    pub fn uri(&self) -> String {
        let Topic { space, class, name } = self;
        format!("non-persistent://{space}/{class}/{name}")
    }
}

/// In TrustGraph's spelling that holds for both brokers.
impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topic { space, class, name } = self;
        write!(f, "{class}:{space}:{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Terms::new(url, None, None, false).expect_err(url)
    }

    #[test]
    #[cfg(feature = "rabbitmq")]
    fn a_url_says_where_and_nothing_secret() {
        let terms = |url: &str| Terms::new(url, None, None, true).expect(url);
        let plain = terms("amqp://localhost");
        assert_eq!(
            (plain.port, plain.vhost.as_str(), plain.tls),
            (5672, "/", false)
        );
        let other = terms("amqps://mq.example/a%2fb%1b");
        assert_eq!(
            (other.vhost.as_str(), other.to_string().as_str()),
            ("a/b\u{1b}", "amqps://mq.example:5671/a%2Fb%1B")
        );
        assert_eq!(
            terms("amqp://localhost/%2f").to_string(),
            "amqp://localhost:5672",
            "the usual one"
        );
        assert_eq!(terms("amqp://[::1]:99").to_string(), "amqp://[::1]:99");
        for port in ["99999", "0", "", "-1"] {
            refused(&format!("amqp://localhost:{port}"));
        }
    }

    #[test]
    #[cfg(not(feature = "pulsar"))]
    fn what_is_not_built_is_said() {
        assert!(refused("pulsar://localhost").contains("--features pulsar"));
    }

    #[test]
    fn both_spellings_are_one_topic() {
        let topic = Topic::parse("request:tg:calc:ws1").unwrap();
        assert_eq!(topic.exchange(), "tg.request.calc:ws1");
        assert_eq!(topic.uri(), "non-persistent://tg/request/calc:ws1");
        assert_eq!(Topic::parse(&topic.uri()).unwrap(), topic);
        assert_eq!(topic.to_string(), "request:tg:calc:ws1");
        for wrong in [
            "",
            "joke",
            "request:tg",
            "request::x",
            "persistent://tg/request/x",
            "request:tg:a b",
            "a://b",
        ] {
            assert!(Topic::parse(wrong).is_err(), "{wrong}");
        }
    }
}
