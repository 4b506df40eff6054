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
    #[serde(default, rename = "prompt_tokens", deserialize_with = "count")]
    pub input: u64,
    #[serde(default, rename = "completion_tokens", deserialize_with = "count")]
    pub output: u64,
}

/// A number that some servers write as a fraction.
fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    or_default::<D, f64>(from).map(|number| number as u64)
}

/// Null is the same as nothing.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
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
    #[serde(default, deserialize_with = "or_default")]
    choices: Few<Choice, MAX_CHOICES>,
    usage: Option<Usage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default, deserialize_with = "or_default")]
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
    #[serde(default, deserialize_with = "or_default")]
    function: FunctionDelta,
}

impl CallDelta {
    /// Some servers repeat the name with a piece that has none.
    fn has_arguments(&self) -> bool {
        let arguments = self.function.arguments.as_ref();
        let text = arguments.map_or("", |it| it.get().trim_matches('"'));
        !text.trim().is_empty()
    }
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    /// A text of JSON, or from some servers the JSON itself, which stays text.
    arguments: Option<Box<RawValue>>,
}

/// A call that is being read.
#[derive(Debug, Default)]
struct Growing {
    /// In the server's list, where it says so.
    number: u64,
    call: ModelCall,
    depth: Depth,
}

/// Where a text of JSON that comes in pieces has got to.
#[derive(Debug, Default)]
struct Depth {
    brackets: usize,
    in_text: bool,
    is_escaped: bool,
    /// Something else than blanks came.
    has_begun: bool,
}

impl Depth {
    fn pass(&mut self, piece: &str) {
        for byte in piece.bytes() {
            self.has_begun |= !byte.is_ascii_whitespace();
            match (byte, self.in_text) {
                _ if self.is_escaped => self.is_escaped = false,
                (b'\\', true) => self.is_escaped = true,
                (b'"', _) => self.in_text = !self.in_text,
                (b'{' | b'[', false) => self.brackets += 1,
                (b'}' | b']', false) => self.brackets = self.brackets.saturating_sub(1),
                _ => {}
            }
        }
    }
}

impl Growing {
    /// Its arguments are complete.
    fn is_whole(&self) -> bool {
        let Depth {
            brackets,
            in_text,
            has_begun,
            ..
        } = self.depth;
        has_begun && brackets == 0 && !in_text
    }

    fn add(&mut self, id: String, function: FunctionDelta) {
        let call = &mut self.call;
        if call.id.is_empty() {
            call.id = id;
        }
        let name = function.name.unwrap_or_default();
        // It may come in pieces, and some servers say all of it again each time.
        if call.arguments.is_empty() && call.name != name {
            call.name += &name;
        }
        if let Some(arguments) = function.arguments {
            let text = serde_json::from_str(arguments.get());
            let text = text.unwrap_or_else(|_| arguments.get().to_owned());
            self.depth.pass(&text);
            call.arguments += &text;
        }
    }
}

/// Reads an answer as it comes.
#[derive(Debug, Default)]
pub struct ChatReader {
    line: Vec<u8>,
    bytes: usize,
    is_over: bool,
    finish: Option<String>,
    calls: Vec<Growing>,
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
            self.take_calls(delta.tool_calls.unwrap_or_default().0)?;
            self.finish = choice.finish_reason.or(self.finish.take());
        }
        Ok(())
    }

    /// A list of calls, or of pieces of them. No two of one list are of the same call, whatever
    /// numbers and ids the server gives them: some give all the same.
    fn take_calls(&mut self, list: Vec<CallDelta>) -> Result<(), Fault> {
        let mut taken = Vec::new();
        for delta in list {
            let place = match self.continued(&delta, &taken) {
                Some(place) => place,
                None => self.begin_call(&delta)?,
            };
            taken.push(place);
            if let Some(growing) = self.calls.get_mut(place) {
                growing.add(delta.id.unwrap_or_default(), delta.function);
            }
        }
        Ok(())
    }

    /// The call that this is a piece of: the last that its number and id allow, unless that is
    /// whole and a name comes again.
    fn continued(&self, delta: &CallDelta, taken: &[usize]) -> Option<usize> {
        let number = self.number(delta);
        let id = delta.id.as_deref().unwrap_or_default();
        let place = self.calls.iter().rposition(
            |Growing {
                 number: at, call, ..
             }| {
                *at == number && (id.is_empty() || call.id.is_empty() || call.id == id)
            },
        )?;
        let name = delta.function.name.as_deref().unwrap_or_default();
        // A piece with nothing but its number goes on where it says.
        let is_piece = delta.index.is_some() && id.is_empty() && name.is_empty();
        let is_next = !name.is_empty() && delta.has_arguments() && self.calls[place].is_whole();
        let begins = taken.contains(&place) && !is_piece || is_next;
        (!begins).then_some(place)
    }

    /// Without a number it is that of the last call.
    fn number(&self, delta: &CallDelta) -> u64 {
        let last = self.calls.last().map_or(0, |last| last.number);
        delta.index.unwrap_or(last)
    }

    fn begin_call(&mut self, delta: &CallDelta) -> Result<usize, Fault> {
        if self.calls.len() == MAX_CALLS {
            return Err(wrong("asked for too many calls at once"));
        }
        let number = self.number(delta);
        self.calls.push(Growing {
            number,
            ..Growing::default()
        });
        Ok(self.calls.len() - 1)
    }

    /// The turn, once nothing more comes.
    pub fn finish(self) -> Result<ModelTurn, Fault> {
        if !self.is_over && self.finish.is_none() {
            return Err(wrong("ended its answer too early"));
        }
        let calls: Vec<ModelCall> = self.calls.into_iter().map(|one| one.call).collect();
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
        bytes(&self.text, self.calls.iter().map(|one| &one.call))
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
