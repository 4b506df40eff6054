//! The answer of a model server, read as hostile: a stream of chunks of a chat completion, or one
//! whole completion.

use crate::fault::{Fault, Kind};
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;

/// Longest answer, and longest line of one, bytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
const MAX_LINE_BYTES: usize = 256 * 1024;
/// Most calls of one turn, and most choices: one is asked for.
const MAX_CALLS: usize = 64;
const MAX_CHOICES: usize = 8;

/// One turn of a model.
#[derive(Debug, Default)]
pub struct ModelTurn {
    pub text: String,
    pub calls: Vec<ModelCall>,
    pub finish: Finish,
}

impl ModelTurn {
    pub fn bytes(&self) -> usize {
        bytes(&self.text, self.calls.iter())
    }
}

/// The bytes of all that a turn says.
fn bytes<'a>(text: &str, calls: impl Iterator<Item = &'a ModelCall>) -> usize {
    let calls = calls.map(|call| call.id.len() + call.name.len() + call.arguments.len());
    text.len() + calls.sum::<usize>()
}

/// A call that the model asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCall {
    pub id: String,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    #[default]
    Stop,
    Length,
    Filtered,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Usage {
    #[serde(default, rename = "prompt_tokens")]
    pub input: u64,
    #[serde(default, rename = "completion_tokens")]
    pub output: u64,
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// A list that is refused as soon as it has more members: each takes many times its bytes.
struct Few<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Default for Few<T, MOST> {
    fn default() -> Self {
        Few(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(FewVisitor(PhantomData))
    }
}

struct FewVisitor<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for FewVisitor<T, MOST> {
    type Value = Few<T, MOST>;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "a list of at most {MOST}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = from.next_element()? {
            if all.len() == MOST {
                return Err(A::Error::invalid_length(MOST + 1, &self));
            }
            all.push(one);
        }
        Ok(Few(all))
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Few<Choice, MAX_CHOICES>,
    usage: Option<Usage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    /// In a whole completion: `message`.
    #[serde(alias = "message")]
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Few<CallDelta, MAX_CALLS>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<u64>,
    id: Option<String>,
    #[serde(default)]
    function: FunctionDelta,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    /// A text of JSON, or from some servers the JSON itself, which stays text.
    arguments: Option<Box<RawValue>>,
}

/// Reads an answer as it comes.
#[derive(Debug, Default)]
pub struct ChatReader {
    line: Vec<u8>,
    bytes: usize,
    is_over: bool,
    finish: Option<String>,
    /// The calls, each with its number in the server's list.
    calls: Vec<(u64, ModelCall)>,
    text: String,
    usage: Option<Usage>,
}

/// What a model server did wrong.
pub fn wrong(words: &str) -> Fault {
    Fault::new(Kind::ServiceError, format!("The model server {words}."))
}

impl ChatReader {
    /// Takes bytes of a stream. Returns the text that is new.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, Fault> {
        self.bytes += bytes.len();
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(wrong("sent more than one turn may have"));
        }
        let mut new = String::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > MAX_LINE_BYTES {
                return Err(wrong("sent a line that is too long"));
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut new)?;
            }
        }
        Ok(new)
    }

    fn take_line(&mut self, line: &[u8], new: &mut String) -> Result<(), Fault> {
        // Other fields and comments say nothing here.
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            return Ok(());
        };
        if data == b"[DONE]" {
            self.is_over = true;
        }
        if self.is_over || data.is_empty() {
            return Ok(());
        }
        self.take(data, new)
    }

    /// Takes one chunk, or a whole completion.
    pub fn take(&mut self, json: &[u8], new: &mut String) -> Result<(), Fault> {
        // The words of the parser would show what was sent.
        let chunk: Chunk = serde_json::from_slice(json).map_err(|why| {
            let place = format!("column {}", why.column());
            wrong("sent something else than a chat completion").person(place)
        })?;
        if chunk.error.is_some() {
            return Err(wrong("reported an error"));
        }
        self.usage = chunk.usage.or(self.usage);
        for choice in chunk.choices.0.into_iter().filter(|it| it.index == 0) {
            let delta = choice.delta.unwrap_or_default();
            for text in [delta.content, delta.refusal].into_iter().flatten() {
                new.push_str(&text);
                self.text.push_str(&text);
            }
            for call in delta.tool_calls.unwrap_or_default().0 {
                self.take_call(call)?;
            }
            self.finish = choice.finish_reason.or(self.finish.take());
        }
        Ok(())
    }

    /// A call begins with a number, or with an id, that is new: some servers give all the same
    /// number.
    fn take_call(&mut self, delta: CallDelta) -> Result<(), Fault> {
        let last = self.calls.last().map_or(0, |(number, _)| *number);
        let number = delta.index.unwrap_or(last);
        let id = delta.id.unwrap_or_default();
        let is_same = |(at, call): &&mut (u64, ModelCall)| {
            *at == number && (id.is_empty() || call.id.is_empty() || call.id == id)
        };
        if self.calls.iter_mut().rev().find(is_same).is_none() {
            if self.calls.len() == MAX_CALLS {
                return Err(wrong("asked for too many calls at once"));
            }
            self.calls.push((number, ModelCall::default()));
        }
        let same = self.calls.iter_mut().rev().find(|(at, call)| {
            *at == number && (id.is_empty() || call.id.is_empty() || call.id == id)
        });
        let Some((_, call)) = same else {
            return Ok(());
        };
        if call.id.is_empty() {
            call.id = id;
        }
        if call.name.is_empty() {
            call.name = delta.function.name.unwrap_or_default();
        }
        if let Some(arguments) = delta.function.arguments {
            match serde_json::from_str::<String>(arguments.get()) {
                Ok(text) => call.arguments.push_str(&text),
                Err(_) => call.arguments.push_str(arguments.get()),
            }
        }
        Ok(())
    }

    /// The turn, once nothing more comes.
    pub fn finish(self) -> Result<ModelTurn, Fault> {
        if !self.is_over && self.finish.is_none() {
            return Err(wrong("ended its answer too early"));
        }
        let calls: Vec<ModelCall> = self.calls.into_iter().map(|(_, call)| call).collect();
        if calls.iter().any(|call| call.name.is_empty()) {
            return Err(wrong("asked for a call without a tool"));
        }
        Ok(ModelTurn {
            text: self.text,
            calls,
            finish: match self.finish.as_deref() {
                Some("length") => Finish::Length,
                Some("content_filter") => Finish::Filtered,
                _ => Finish::Stop,
            },
        })
    }

    /// The bytes of what was said until now.
    pub fn said(&self) -> usize {
        bytes(&self.text, self.calls.iter().map(|(_, call)| call))
    }

    /// `None`: the server did not say.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str, piece: usize) -> Result<(ModelTurn, Option<Usage>), String> {
        let mut reader = ChatReader::default();
        for bytes in stream.as_bytes().chunks(piece) {
            reader.push(bytes).map_err(|fault| fault.message)?;
        }
        let usage = reader.usage();
        let turn = reader.finish().map_err(|fault| fault.message)?;
        Ok((turn, usage))
    }

    #[test]
    fn an_answer_is_read_however_it_is_cut() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"so: ä\"}}]}\n\n\
            : a comment\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\"\"}}]}}]}\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"d\",\"function\":{\"name\":\"g\",\"arguments\":{\"b\":2}}}]},\"finish_reason\":\"tool_calls\"}]}\r\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n";
        for piece in [1, 7, 10_000] {
            let (turn, usage) = read(stream, piece).expect("a turn");
            let call = |id: &str, name: &str, arguments: &str| ModelCall {
                id: id.into(),
                name: name.into(),
                arguments: arguments.into(),
            };
            assert_eq!(
                turn.calls,
                [call("c", "f", "{\"a\":1}"), call("d", "g", "{\"b\":2}")]
            );
            assert_eq!(
                (&*turn.text, usage.map(|it| it.total())),
                ("so: ä", Some(12))
            );
        }
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let long = format!("data: {}", "x".repeat(MAX_LINE_BYTES));
        let nameless = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\"}]},\"finish_reason\":\"stop\"}]}\n";
        let many: String = (0..=MAX_CALLS)
            .map(|n| {
                format!(
                    "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{n}}}]}}}}]}}\n"
                )
            })
            .collect();
        for (stream, why) in [
            ("", "too early"),
            (
                "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n",
                "too early",
            ),
            (
                "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]",
                "too early",
            ),
            ("data: nonsense\n", "something else than a chat completion"),
            (
                "data: {\"error\":{\"message\":\"Bearer sk\"}}\n",
                "reported an error",
            ),
            (&*long, "too long"),
            (nameless, "without a tool"),
            (&*many, "too many calls"),
            (
                &*format!(
                    "data: {{\"choices\":[{}{{}}]}}\n",
                    "{},".repeat(MAX_CHOICES)
                ),
                "something else",
            ),
            (
                &*format!(
                    "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{}{{}}]}}}}]}}\n",
                    "{},".repeat(MAX_CALLS)
                ),
                "something else",
            ),
        ] {
            let said = read(stream, 4096).expect_err(why);
            assert!(
                said.contains(why) && !said.contains("Bearer"),
                "{why}: {said}"
            );
        }
    }
}
