//! The signed message by which a host announces its tool services for a limited time. No field of a
//! body is used before the signature is verified.

use super::terms::Secret;
use crate::base::json::{Dialect, parse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Largest body that is read, bytes.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// Shortest key, bytes.
const MIN_KEY_BYTES: usize = 32;
/// Part of the signed text, so that no signature made for another purpose is valid here.
const SIGNATURE_PURPOSE: &str = "toolhost-announcement-1";

/// The HMAC key that an announcer shares with its listeners.
#[derive(Clone, Debug)]
pub struct AnnouncerKey(hmac::Key);

impl AnnouncerKey {
    pub async fn read(secret: &Secret) -> Result<AnnouncerKey, String> {
        AnnouncerKey::parse(&secret.read().await?)
    }

    fn parse(text: &str) -> Result<AnnouncerKey, String> {
        if text.len() < MIN_KEY_BYTES {
            Err(format!(
                "it has fewer than {MIN_KEY_BYTES} bytes: make one with `openssl rand -hex 32`"
            ))
        } else {
            Ok(AnnouncerKey(hmac::Key::new(
                hmac::HMAC_SHA256,
                text.as_bytes(),
            )))
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// When it was signed, milliseconds since 1970.
    pub time: i64,
    /// How many seconds after `time` the announcement is valid.
    pub ttl: i64,
    /// Descriptors by key. An empty map means that the announcer stops.
    pub descriptors: Map<String, Value>,
}

impl Announcement {
    /// Encodes and signs the announcement. Fails if it is larger than listeners accept.
    pub fn sign(&self, announcer: &str, key: &AnnouncerKey) -> Result<Vec<u8>, String> {
        let said = json!({ "time": self.time, "ttl": self.ttl, "descriptors": self.descriptors })
            .to_string();
        let signature = STANDARD.encode(hmac::sign(&key.0, &signed_text(announcer, &said)));
        let signed = SignedAnnouncement {
            announcer: announcer.to_owned(),
            said,
            signature,
        };
        let body = serde_json::to_vec(&signed).unwrap_or_default();
        if body.len() > MAX_BODY_BYTES {
            Err(format!("it is larger than {MAX_BODY_BYTES} bytes"))
        } else {
            Ok(body)
        }
    }
}

/// A received announcement whose signature is not verified yet.
#[derive(Serialize, Deserialize)]
pub struct SignedAnnouncement {
    /// The announcer that the message claims to come from.
    pub announcer: String,
    /// The announcement as JSON text, which the signature covers.
    said: String,
    signature: String,
}

impl SignedAnnouncement {
    pub fn read(body: &[u8]) -> Result<SignedAnnouncement, String> {
        if body.len() > MAX_BODY_BYTES {
            return Err(format!("it is larger than {MAX_BODY_BYTES} bytes"));
        }
        let shape =
            "it is not a JSON object with the strings \"announcer\", \"said\" and \"signature\"";
        serde_json::from_slice(body).map_err(|_| shape.to_owned())
    }

    /// Verifies the signature with the announcer's key, and returns the announcement.
    pub fn verify(self, key: &AnnouncerKey) -> Result<Announcement, String> {
        let signature = STANDARD.decode(&self.signature).unwrap_or_default();
        hmac::verify(
            &key.0,
            &signed_text(&self.announcer, &self.said),
            &signature,
        )
        .map_err(|_| "its signature is not valid for the key of its announcer".to_owned())?;
        let read = parse(self.said.as_bytes(), Dialect::Strict)
            .map_err(|why| why.message)?
            .value;
        match (
            read["time"].as_i64(),
            read["ttl"].as_i64(),
            &read["descriptors"],
        ) {
            (Some(time), Some(ttl), Value::Object(found)) => Ok(Announcement {
                time,
                ttl,
                descriptors: found.clone(),
            }),
            _ => Err(
                "\"time\" and \"ttl\" must be integers, and \"descriptors\" an object".to_owned(),
            ),
        }
    }
}

fn signed_text(announcer: &str, said: &str) -> Vec<u8> {
    format!(
        "{SIGNATURE_PURPOSE}\n{}\n{announcer}\n{said}",
        announcer.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_of_what_was_signed_is_opened() {
        let key = |of: &str| AnnouncerKey::parse(&of.repeat(40)).unwrap();
        let descriptors = json!({"tool/x": {"a": 1}}).as_object().unwrap().clone();
        let announcement = Announcement {
            time: 7,
            ttl: 3,
            descriptors,
        };
        let body = String::from_utf8(announcement.sign("me", &key("k")).unwrap()).unwrap();
        let verified =
            |body: &str, key: &AnnouncerKey| SignedAnnouncement::read(body.as_bytes())?.verify(key);
        assert_eq!(
            verified(&body, &key("k")).unwrap(),
            announcement,
            "the control"
        );
        let changed = [
            body.replace("\"me\"", "\"you\""),
            body.replace("\\\"ttl\\\":3", "\\\"ttl\\\":9"),
        ];
        for (body, key) in [
            (&body, key("l")),
            (&changed[0], key("k")),
            (&changed[1], key("k")),
        ] {
            assert!(
                verified(body, &key).unwrap_err().contains("signature"),
                "{body}"
            );
        }
        let long = Map::from_iter([("tool/x".to_owned(), json!("x".repeat(MAX_BODY_BYTES)))]);
        let long = Announcement {
            descriptors: long,
            ..announcement
        };
        assert!(
            long.sign("me", &key("k"))
                .unwrap_err()
                .contains("larger than")
        );
        assert!(changed.iter().all(|other| *other != body));
        assert!(
            AnnouncerKey::parse("short")
                .unwrap_err()
                .contains("fewer than 32")
        );
        assert!(verified("[]", &key("k")).is_err());
        assert!(SignedAnnouncement::read(&vec![b' '; MAX_BODY_BYTES + 1]).is_err());
    }
}
