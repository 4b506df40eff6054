//! The messages of MCP over the pipes of a server: JSON-RPC, one document a line. All that comes is
//! parsed as hostile: a line is bounded, and nothing in it is believed.

use crate::base::json::{self, Object, Text};
use crate::base::text;
use crate::executor::frame;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// How much of a line that is not a message is shown, bytes.
const SHOWN_BYTES: usize = 200;

/// The lines of a pipe.
pub struct Lines<R> {
    pub from: R,
    line: Vec<u8>,
    /// Longest line, bytes.
    most: usize,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub fn new(from: R, most: usize) -> Lines<R> {
        Lines {
            from,
            line: Vec::new(),
            most,
        }
    }

    /// The next line, without its end. `None`: the pipe was closed. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let buffer = self.from.fill_buf().await?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let length = end.unwrap_or(buffer.len());
            if self.line.len() + length > self.most {
                return Err(frame::invalid("a line longer than allowed"));
            }
            self.line.extend_from_slice(&buffer[..length]);
            self.from.consume(end.map_or(length, |end| end + 1));
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }
}

/// What a server sent.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// To a request of ours, by its number.
    Answer(u64, Result<Text, Refusal>),
    Request {
        id: Text,
        method: String,
        params: Text,
    },
    Notification {
        method: String,
        params: Text,
    },
}

/// The error of a JSON-RPC answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Refusal {
    #[serde(default)]
    pub message: String,
}

#[derive(Deserialize)]
struct Message<'l> {
    #[serde(borrow)]
    id: Option<&'l RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'l, str>>,
    #[serde(borrow)]
    params: Option<&'l RawValue>,
    #[serde(borrow)]
    result: Option<&'l RawValue>,
    error: Option<Refusal>,
}

/// Reads one line. An error says how the line begins.
pub fn read(line: &[u8]) -> Result<Received, String> {
    parse(line).ok_or_else(|| {
        let head = &line[..line.len().min(SHOWN_BYTES)];
        text::printable(&String::from_utf8_lossy(head))
    })
}

fn parse(line: &[u8]) -> Option<Received> {
    let document = json::compact(line).ok()?;
    let Object(message) = serde_json::from_str::<Object<Message>>(document.as_str()).ok()?;
    fn part(raw: Option<&RawValue>) -> Option<Text> {
        Text::checked(raw.map_or("null", RawValue::get))
    }
    if let Some(method) = message.method {
        let method = method.into_owned();
        let params = part(message.params)?;
        return Some(match message.id {
            Some(id) => Received::Request {
                id: part(Some(id))?,
                method,
                params,
            },
            None => Received::Notification { method, params },
        });
    }
    // An error about a message that the server could not read has no number.
    let id = message.id?.get().parse().unwrap_or(u64::MAX);
    Some(match (message.result, message.error) {
        (Some(result), None) => Received::Answer(id, Ok(part(Some(result))?)),
        (None, Some(error)) => Received::Answer(id, Err(error)),
        _ => return None,
    })
}

pub fn request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

pub fn notification(method: &str, params: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// The answer to a request of the server.
pub fn answer(id: &Text, result: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// The answer to a request of the server that is not served.
pub fn unserved(id: &Text) -> Vec<u8> {
    let error = json!({"code": -32601, "message": "This client does not serve the method."});
    line(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_message_or_is_named() {
        let text = |json: Value| Text::from(&json);
        let cases = [
            (
                r#"{"id":7,"result":{"a":1}}"#,
                Some(Received::Answer(7, Ok(text(json!({"a": 1}))))),
            ),
            (
                r#"{"id":"7","result":1}"#,
                Some(Received::Answer(u64::MAX, Ok(text(json!(1))))),
            ),
            (
                r#"{"id":7,"error":{"code":-32601,"message":"no"}}"#,
                Some(Received::Answer(
                    7,
                    Err(Refusal {
                        message: "no".into(),
                    }),
                )),
            ),
            (
                r#"{"id":"q","method":"ping"}"#,
                Some(Received::Request {
                    id: text(json!("q")),
                    method: "ping".into(),
                    params: text(Value::Null),
                }),
            ),
            ("Server is running", None),
            ("[]", None),
            (r#"[null,"ping",null,null,null]"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":7,"id":8,"result":1}"#, None),
            (r#"{"id":7,"result":1,"error":{"message":"x"}}"#, None),
        ];
        for (line, wanted) in cases {
            assert_eq!(read(line.as_bytes()).ok(), wanted, "{line}");
        }
        assert_eq!(read(b"\x1b[31mhi").unwrap_err(), "\\u{1b}[31mhi");
    }

    #[tokio::test]
    async fn a_line_is_bounded_and_comes_in_any_pieces() {
        let pieces = |text: &'static [u8]| tokio::io::BufReader::with_capacity(3, text);
        let mut lines = Lines::new(pieces(b"abcd\n\nabcdef\nx"), 6);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(found, ["abcd", "", "abcdef"]);
        let mut lines = Lines::new(pieces(b"abcdefg\n"), 6);
        assert!(lines.next().await.is_err());
    }
}
