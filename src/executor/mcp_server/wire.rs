//! The messages of MCP over the pipes of a server: JSON-RPC, one document a line. All that comes is
//! parsed as hostile: a line is bounded, and nothing in it is believed.

use crate::base::json::{self, Object, Text};
use crate::base::text;
use crate::executor::frame;
use crate::quantity::KIB;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// How much of a line that is not a message goes on to where its secrets are hidden, bytes: that
/// hides more beside a cut, so less than this is shown.
const HEAD_BYTES: usize = 16 * KIB as usize;

/// The lines of a pipe.
pub struct Lines<R> {
    pub from: R,
    line: Vec<u8>,
    /// Longest line, bytes.
    most: usize,
    /// Longer ones are left out, and not an error.
    leaves_out: bool,
    /// The line that comes is left out.
    is_left_out: bool,
}

/// Stands for a line that was left out: half of it could show half a secret.
const LEFT_OUT: &[u8] = b"toolhost: a line was left out, because it is too long";

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub fn new(from: R, most: usize) -> Lines<R> {
        Lines {
            from,
            line: Vec::new(),
            most,
            leaves_out: false,
            is_left_out: false,
        }
    }

    pub fn of_log(from: R, most: usize) -> Lines<R> {
        Lines {
            leaves_out: true,
            ..Lines::new(from, most)
        }
    }

    /// How much of a line is held whose end has not come, bytes.
    pub fn held(&self) -> usize {
        self.line.len()
    }

    /// The lines that end in what comes next. `None`: the pipe was closed. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Option<Few>> {
        let buffer = self.from.fill_buf().await?;
        let length = buffer.len();
        let mut few = Few::default();
        if length == 0 {
            // The end of a log may have no end of its line.
            let rest = std::mem::take(&mut self.line);
            if rest.is_empty() || !self.leaves_out {
                return Ok(None);
            }
            few.lines.push(rest);
            return Ok(Some(few));
        }
        for part in buffer.split_inclusive(|byte| *byte == b'\n') {
            let end = part.strip_suffix(b"\n");
            self.line.extend_from_slice(end.unwrap_or(part));
            if self.line.len() > self.most {
                if !self.leaves_out {
                    return Err(frame::invalid("a line longer than allowed"));
                }
                self.is_left_out = true;
            }
            if self.is_left_out {
                self.line.clear();
            }
            if end.is_some() {
                few.bytes += part.len().max(self.line.len() + 1);
                let line = std::mem::take(&mut self.line);
                few.lines.push(match std::mem::take(&mut self.is_left_out) {
                    true => LEFT_OUT.to_vec(),
                    false => line,
                });
            }
        }
        few.lines.retain(|line| !line.trim_ascii().is_empty());
        self.from.consume(length);
        Ok(Some(few))
    }
}

/// Lines that came together.
#[derive(Default)]
pub struct Few {
    /// Without ends, and without those that are blank.
    pub lines: Vec<Vec<u8>>,
    /// How many bytes all of them are.
    pub bytes: usize,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Empty where the error has none that is a text.
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
    #[serde(borrow)]
    error: Option<&'l RawValue>,
}

/// Reads one line. An error says how the line begins, with a mark where it was cut.
pub fn read(line: &[u8]) -> Result<Received, String> {
    parse(line).ok_or_else(|| {
        let head = &line[..line.len().min(HEAD_BYTES)];
        let shown = text::printable(&String::from_utf8_lossy(head));
        let cut = if head.len() < line.len() { "…" } else { "" };
        shown + cut
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
    let number = |id: &RawValue| id.get().parse().unwrap_or(u64::MAX);
    Some(match (message.result, message.error, message.id) {
        (Some(result), None, Some(id)) => Received::Answer(number(id), Ok(part(Some(result))?)),
        // One about a message that the server could not read has no id (JSON-RPC 2.0, section 5).
        (None, Some(error), id) => {
            let words = json::member(error.get(), "/message");
            let words = words.and_then(|words| serde_json::from_str(words).ok());
            let message = words.unwrap_or_default();
            Received::Answer(id.map_or(u64::MAX, number), Err(Refusal { message }))
        }
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
            (
                r#"{"id":null,"error":{"code":-32700,"message":7}}"#,
                Some(Received::Answer(
                    u64::MAX,
                    Err(Refusal {
                        message: String::new(),
                    }),
                )),
            ),
            (r#"{"id":null,"result":1}"#, None),
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
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(few) = lines.next().await.unwrap() {
            bytes += few.bytes;
            found.extend(few.lines);
        }
        assert_eq!(
            (found, bytes),
            (vec![b"abcd".to_vec(), b"abcdef".to_vec()], 13)
        );
        let mut lines = Lines::new(pieces(b"abcdefg\n"), 6);
        while lines.next().await.is_ok_and(|few| few.is_some()) {}
        assert!(lines.next().await.is_err());
    }
}
