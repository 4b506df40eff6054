//! Topics, in the two spellings that TrustGraph has (`request:tg:x`, `non-persistent://tg/request/x`).

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Pulsar: the tenant.
    space: String,
    /// `request`, `response`; Pulsar: the namespace.
    class: String,
    name: String,
}

/// Longest name of all parts, bytes: RabbitMQ has 255 for a queue, which has a subscription in its name too.
const LONGEST: usize = 120;

impl Topic {
    pub fn parse(text: &str) -> Result<Topic, String> {
        let shape = "write \"request:tg:NAME\" or \"non-persistent://tg/request/NAME\"";
        let parts = match text.strip_prefix("non-persistent://") {
            Some(rest) => {
                let mut parts = rest.splitn(3, '/');
                (parts.next(), parts.next(), parts.next())
            }
            None if text.contains("://") => return Err(format!("it is no topic that is served here: {shape}")),
            None => {
                let mut parts = text.splitn(3, ':');
                let class = parts.next();
                (parts.next(), class, parts.next())
            }
        };
        let (Some(space), Some(class), Some(name)) = parts else {
            return Err(format!("a topic has three parts: {shape}"));
        };
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if ![space, class, name].into_iter().all(plain) || text.len() > LONGEST {
            return Err(format!("its parts are not empty, of plain characters, and at most {LONGEST} in all: {shape}"));
        }
        Ok(Topic { space: space.to_owned(), class: class.to_owned(), name: name.to_owned() })
    }

    /// Where requests to a service and its replies go, as TrustGraph's own services name them.
    pub fn of_service(name: &str) -> Result<(Topic, Topic), String> {
        Ok((Topic::parse(&format!("request:tg:{name}"))?, Topic::parse(&format!("response:tg:{name}"))?))
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

    #[test]
    fn both_spellings_are_one_topic() {
        let topic = Topic::parse("request:tg:calc:ws1").unwrap();
        assert_eq!(topic.exchange(), "tg.request.calc:ws1");
        assert_eq!(topic.uri(), "non-persistent://tg/request/calc:ws1");
        assert_eq!(Topic::parse(&topic.uri()).unwrap(), topic);
        assert_eq!(topic.to_string(), "request:tg:calc:ws1");
        for wrong in ["", "joke", "request:tg", "request::x", "persistent://tg/request/x", "request:tg:a b", "a://b"] {
            assert!(Topic::parse(wrong).is_err(), "{wrong}");
        }
    }
}
