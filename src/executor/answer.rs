//! The answer of a tool. It stays text, and is large: its text is read only inside
//! `CallDeadline::run`, off the threads that all calls share and within the time of its own call.
//! It is sent in short pieces.
//!
//! Just before a call runs, its `outputBytes` (at least 1 MiB) are charged; when it has answered,
//! what the answer takes; until it is sent. All share 256 MiB, one principal a quarter, and a call
//! without room waits before it runs, without a slot. An answer above 64 KiB is read once (parsed,
//! checked, masked) and sent as that text: nothing grows later, and no transport makes a tree of
//! it. A response has at most 32 MiB, to which `outputBytes` is clamped. Events over MCP are
//! charged one by one until they are sent or dropped. A client that takes less than 64 KiB in 30 s
//! while more waits loses its connection, not the record.

use super::deadline::CallDeadline;
use crate::base::json::Text;
use crate::fault::Fault;
use crate::quantity::LARGE_TEXT_BYTES;
use bytes::Bytes;
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// How much of an answer is sent at a time, bytes.
pub const PIECE_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub struct ToolAnswer {
    text: Arc<Text>,
    /// `None`: it was made by this host, within its call.
    deadline: Option<CallDeadline>,
    pub content: Option<ContentPlaces>,
}

/// Where the blocks of an answer of content stand, a list, and what the tool's schema describes.
pub type ContentPlaces = (Range<usize>, Option<Range<usize>>);

impl ToolAnswer {
    /// Stands for an answer in a document that is written around it. No other writer of JSON
    /// escapes an `A`.
    pub const MARK: &str = r#""\u0041nswer""#;

    pub fn new(text: Text, deadline: &CallDeadline) -> ToolAnswer {
        ToolAnswer {
            text: Arc::new(text),
            deadline: Some(deadline.clone()),
            content: None,
        }
    }

    pub fn bytes(&self) -> usize {
        self.text.as_str().len()
    }

    pub fn deadline(&self) -> Option<&CallDeadline> {
        self.deadline.as_ref()
    }

    pub fn within(self, deadline: &CallDeadline) -> ToolAnswer {
        ToolAnswer {
            deadline: Some(deadline.clone()),
            ..self
        }
    }

    /// The text, if it is not large.
    pub fn small(&self) -> Option<&str> {
        Some(self.text.as_str()).filter(|text| text.len() <= LARGE_TEXT_BYTES)
    }

    /// At most so many of its first bytes.
    pub fn head(&self, most: usize) -> &str {
        let text = self.text.as_str();
        &text[..text.floor_char_boundary(most.min(LARGE_TEXT_BYTES))]
    }

    /// Does work on the text. `is_long`: the work may take long even if the text is small.
    pub async fn read<T: Send + 'static>(
        &self,
        is_long: bool,
        work: impl FnOnce(&Text) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let text = self.text.clone();
        let deadline = self
            .deadline
            .clone()
            .unwrap_or_else(|| CallDeadline::usual("", None));
        deadline
            .run(is_long || self.small().is_none(), move || work(&text))
            .await
    }

    pub fn mark() -> ToolAnswer {
        let text = Text::checked(ToolAnswer::MARK).unwrap_or_else(|| Text::from(&Value::Null));
        ToolAnswer {
            text: Arc::new(text),
            deadline: None,
            content: None,
        }
    }

    /// A document with this answer in the place of its mark.
    pub fn put_into(&self, document: &[u8]) -> Vec<Part> {
        self.part_of(0..self.bytes()).put_into(document)
    }

    /// This range of the text as a part of a message.
    pub fn part_of(&self, range: Range<usize>) -> Part {
        struct Owner(Arc<Text>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_str().as_bytes()
            }
        }
        Part {
            bytes: Bytes::from_owner(Owner(self.text.clone())).slice(range),
            is_quoted: false,
        }
    }
}

impl PartialEq for ToolAnswer {
    fn eq(&self, other: &ToolAnswer) -> bool {
        self.text == other.text
    }
}

/// Only of small answers: a large one is sent in parts.
impl Serialize for ToolAnswer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.small() {
            Some(_) => self.text.serialize(to),
            None => Err(S::Error::custom("the answer is too large")),
        }
    }
}

impl From<&Value> for ToolAnswer {
    fn from(value: &Value) -> ToolAnswer {
        ToolAnswer {
            text: Arc::new(Text::from(value)),
            deadline: None,
            content: None,
        }
    }
}

/// A part of a message, which is handed out in short pieces.
#[derive(Clone, Debug)]
pub struct Part {
    pub(super) bytes: Bytes,
    /// The JSON text is sent as it stands inside a JSON string.
    is_quoted: bool,
}

impl From<Bytes> for Part {
    fn from(bytes: Bytes) -> Part {
        Part {
            bytes,
            is_quoted: false,
        }
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Part {
        Part {
            bytes: bytes.into(),
            is_quoted: false,
        }
    }
}

impl Part {
    /// As it stands inside a JSON string: escaped while it is sent.
    pub fn quoted(self) -> Part {
        Part {
            is_quoted: true,
            ..self
        }
    }

    /// A document with this part in the place of an answer's mark.
    pub fn put_into(self, document: &[u8]) -> Vec<Part> {
        let at = document
            .windows(ToolAnswer::MARK.len())
            .position(|part| part == ToolAnswer::MARK.as_bytes());
        let Some((before, after)) =
            at.map(|at| (&document[..at], &document[at + ToolAnswer::MARK.len()..]))
        else {
            return vec![document.to_vec().into()];
        };
        if self.bytes() <= LARGE_TEXT_BYTES {
            vec![[before, &self.bytes, after].concat().into()]
        } else {
            vec![before.to_vec().into(), self, after.to_vec().into()]
        }
    }

    /// All but its first byte.
    pub fn without_first(&self) -> Part {
        Part {
            bytes: self.bytes.slice(self.bytes.len().min(1)..),
            ..*self
        }
    }

    pub fn starts_with(&self, start: &[u8]) -> bool {
        self.bytes.starts_with(start)
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn pieces(mut self) -> impl Iterator<Item = Bytes> + Send {
        std::iter::from_fn(move || {
            let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
            let piece = if self.is_quoted { quote(&piece) } else { piece };
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// JSON text without raw control characters, as it stands inside a JSON string.
fn quote(json: &[u8]) -> Bytes {
    let mut quoted = Vec::with_capacity(json.len() * 5 / 4);
    for byte in json {
        if matches!(byte, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(*byte);
    }
    quoted.into()
}
