//! The envelope of a tool service: a request with two JSON texts, and replies. Unknown fields are
//! ignored, because TrustGraph adds and drops some. A body over the limit is neither parsed nor
//! sent.

use super::delivery::MAX_BODY_BYTES;
use crate::base::json;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// A request to a service. It is never shown (no `Debug`), because it may hold secrets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolServiceRequest {
    /// Sent by releases of TrustGraph before 2.4. A label.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "text_or_null"
    )]
    pub user: String,
    /// JSON text; empty text is an empty map.
    #[serde(deserialize_with = "text_or_null")]
    pub config: String,
    /// JSON text; empty text is an empty map.
    #[serde(deserialize_with = "text_or_null")]
    pub arguments: String,
    /// The message is itself a reply. Its answer could arrive as a request again, without end.
    #[serde(
        rename = "end_of_stream",
        skip_serializing,
        deserialize_with = "whatever"
    )]
    pub is_reply: bool,
}

fn text_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

fn whatever<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(from).map(|_| true)
}

/// One reply; the last of a request says `end_of_stream`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolServiceResponse {
    /// `null` on success. The member is always written.
    pub error: Option<ServiceError>,
    pub response: String,
    pub end_of_stream: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceError {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

/// A received reply. It is not parsed to a tree, which could be forty times as large. Other members
/// are skipped.
#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    end_of_stream: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Failure<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

/// A string as it is, any other value as its JSON text, and a missing one as an empty string.
fn text(raw: Option<&RawValue>) -> Result<String, String> {
    let Some(raw) = raw else {
        return Ok(String::new());
    };
    if raw.get().starts_with('"') {
        serde_json::from_str(raw.get())
            .map_err(|why| format!("a string of the reply cannot be read: {why}"))
    } else {
        Ok(json::compact(raw.get().as_bytes())
            .map_or_else(|_| raw.to_string(), |it| it.as_str().to_owned()))
    }
}

impl ToolServiceRequest {
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(body: &[u8]) -> Result<ToolServiceRequest, String> {
        if body.len() > MAX_BODY_BYTES {
            return Err(format!(
                "The request is longer than {MAX_BODY_BYTES} bytes."
            ));
        }
        fn wrong(why: &str) -> String {
            format!(
                "The request is not a JSON object with \"config\" and \"arguments\" as texts: \
                {why}."
            )
        }
        // serde would read a list as the fields in their order.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(wrong("it begins with something else"));
        }
        serde_json::from_slice(body).map_err(|why| wrong(&why.to_string()))
    }
}

impl ToolServiceResponse {
    /// An answer in one reply.
    pub fn whole(response: String) -> ToolServiceResponse {
        ToolServiceResponse {
            error: None,
            response,
            end_of_stream: true,
        }
    }

    /// A part of an answer; more parts will follow.
    pub fn part(response: String) -> ToolServiceResponse {
        ToolServiceResponse {
            error: None,
            response,
            end_of_stream: false,
        }
    }

    /// An error reply, in the form of TrustGraph's own services. The agent reads the message.
    pub fn failed(message: impl Into<String>) -> ToolServiceResponse {
        let error = ServiceError {
            kind: "tool-service-error".to_owned(),
            message: message.into(),
        };
        ToolServiceResponse {
            error: Some(error),
            response: String::new(),
            end_of_stream: true,
        }
    }

    /// `None`: the reply is larger than a broker accepts.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        (body.len() <= MAX_BODY_BYTES).then_some(body)
    }

    /// Reads a reply as TrustGraph's clients do: an absent member has its default, any `error` but
    /// null is an error.
    pub fn decode(body: &[u8]) -> Result<ToolServiceResponse, String> {
        if body.len() > MAX_BODY_BYTES {
            return Err(format!("the reply is longer than {MAX_BODY_BYTES} bytes"));
        }
        // serde would read a list as the fields in their order.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err("the reply is not a JSON object".to_owned());
        }
        let read: Reply<'_> =
            serde_json::from_slice(body).map_err(|why| format!("the reply is not JSON: {why}"))?;
        let response = text(read.response)?;
        let error = match read.error {
            None => None,
            Some(raw) => {
                let said = serde_json::from_str(raw.get()).unwrap_or(Failure {
                    kind: None,
                    message: Some(raw),
                });
                Some(ServiceError {
                    kind: text(said.kind)?,
                    message: text(said.message)?,
                })
            }
        };
        let end_of_stream = read.end_of_stream.is_some_and(|end| end.get() == "true");
        Ok(ToolServiceResponse {
            error,
            response,
            end_of_stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_say_error_null_and_stay_below_the_cap() {
        let whole = ToolServiceResponse::whole("größer".to_owned());
        let body = String::from_utf8(whole.encode().unwrap()).unwrap();
        assert_eq!(
            body,
            r#"{"error":null,"response":"größer","end_of_stream":true}"#
        );
        assert_eq!(ToolServiceResponse::decode(body.as_bytes()).unwrap(), whole);
        assert_eq!(
            ToolServiceResponse::whole("x".repeat(MAX_BODY_BYTES)).encode(),
            None
        );
        let read = ToolServiceResponse::decode(br#"{"error": {}}"#).unwrap();
        assert_eq!(
            (read.error.unwrap().message.as_str(), read.end_of_stream),
            ("", false)
        );
        assert_eq!(
            ToolServiceResponse::decode(br#"{"response": {"a": 1}}"#)
                .unwrap()
                .response,
            r#"{"a":1}"#
        );
        let odd = ToolServiceResponse::decode(
            br#" {"x": [{}], "error": "no", "response": null, "end_of_stream": 1}"#,
        )
        .unwrap();
        assert_eq!(
            (
                odd.error.unwrap().message.as_str(),
                odd.response.as_str(),
                odd.end_of_stream
            ),
            ("no", "", false)
        );
        for wrong in [
            &b"[null, \"x\", true]"[..],
            b"{",
            b"",
            b"{} {}",
            br#"{"response": "\ud800"}"#,
        ] {
            assert!(
                ToolServiceResponse::decode(wrong).is_err(),
                "{}",
                String::from_utf8_lossy(wrong)
            );
        }
    }
}
