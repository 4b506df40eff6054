//! Stdout: what a tool answers: one JSON document, or lines that each bring a part of it, and then their end.
//!
//! For: process and wasm executors. In: bytes as they arrive. Out: each part as an event, as soon as whoever hears them
//! has room; in the end the bytes, or the whole of the parts. Never: holds more than the output limit; takes a line for
//! a part once anything else was printed.

use super::{Ending, Events, answer};
use crate::base::json::{self, Text};

/// What a line of a stream begins with; one JSON object follows: `{"chunk": …}`, and last `{"end": true}`.
pub const MARK: &[u8] = b"@toolhost ";
/// Longest line that brings a part, bytes.
pub const LONGEST: usize = 256 * 1024;

pub struct Stdout<'a> {
    answer: Answer,
    /// Most bytes in all.
    most: usize,
    reading: Reading,
    events: &'a Events,
}

/// What was printed.
#[derive(Debug, Default)]
pub struct Answer {
    /// All bytes that came, also those that were not kept.
    pub total: u64,
    /// They passed the limit.
    pub flooded: bool,
    /// What is printed and is no part of a stream.
    pub rest: Vec<u8>,
    /// The parts, as a JSON list without its brackets, and how many.
    parts: (String, usize),
    ended: bool,
    bad: Option<Ending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The next line may bring a part.
    Lines,
    /// A document, or whatever else.
    Document,
}

impl<'a> Stdout<'a> {
    pub fn new(most: u64, events: &'a Events) -> Stdout<'a> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Stdout { answer: Answer::default(), most, reading: Reading::Lines, events }
    }

    /// Takes bytes; waits where a part finds no room. True: the tool need not go on.
    pub async fn push(&mut self, bytes: &[u8]) -> bool {
        let own = &mut self.answer;
        let room = self.most.saturating_sub(usize::try_from(own.total).unwrap_or(usize::MAX));
        own.total += bytes.len() as u64;
        own.flooded |= bytes.len() > room;
        if own.bad.is_none() {
            own.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
            self.read_lines(false).await;
        }
        self.answer.flooded || self.answer.bad.is_some()
    }

    /// Nothing more comes: what has no line break yet is a line, too.
    pub async fn close(&mut self) {
        self.read_lines(true).await;
    }

    pub fn finish(self) -> Answer {
        self.answer
    }

    async fn read_lines(&mut self, last: bool) {
        let mut from = 0;
        while self.reading == Reading::Lines && self.answer.bad.is_none() {
            let rest = &self.answer.rest[from..];
            let known = rest.len().min(MARK.len());
            if rest[..known] != MARK[..known] {
                self.reading = Reading::Document;
                break;
            }
            let length = match rest.iter().position(|byte| *byte == b'\n') {
                Some(at) => at + 1,
                None if rest.len() > LONGEST || last && !rest.is_empty() => rest.len(),
                None => break,
            };
            let line = rest[..length].to_vec();
            from += length;
            self.take(&line).await;
        }
        self.answer.rest.drain(..from);
    }

    async fn take(&mut self, line: &[u8]) {
        let own = &mut self.answer;
        match read(line) {
            Ok(_) if own.ended => own.spoil("comes after the end of the stream", line),
            Ok(Line::End) => own.ended = true,
            Ok(Line::Part(part)) => {
                let (whole, count) = &mut own.parts;
                *count += 1;
                whole.push_str(if whole.is_empty() { "" } else { "," });
                whole.push_str(part.as_str());
                self.events.part(part).await;
            }
            Err(why) => own.spoil(&why, line),
        }
    }
}

impl Answer {
    fn spoil(&mut self, why: &str, line: &[u8]) {
        let reason = format!("line {} of the stream {why}", self.parts.1 + 1);
        self.bad = Some(Ending::BadOutput { reason, head: answer::head(line) });
    }

    /// A line that cannot be read, after which nothing was.
    pub fn bad(&self) -> Option<&Ending> {
        self.bad.as_ref()
    }

    /// The answer is the list of the parts of a stream.
    pub fn is_list(&self) -> bool {
        self.ended && self.bad.is_none()
    }

    /// What it means where the tool ended well. `is_text`: the answer may be text.
    pub fn judged(&self, is_text: bool) -> Ending {
        let bad = |reason: &str| Ending::BadOutput { reason: reason.to_owned(), head: answer::head(&self.rest) };
        match (&self.bad, self.ended, self.rest.trim_ascii().is_empty()) {
            (Some(bad), ..) => bad.clone(),
            (None, true, false) => bad("something was printed after the end of the stream"),
            (None, true, true) => match json::compact(format!("[{}]", self.parts.0).as_bytes()) {
                Ok(whole) => Ending::Answered(whole),
                Err(problem) => bad(&format!("the parts of the stream are no list: {}", problem.message)),
            },
            (None, false, true) if self.parts.1 > 0 => bad(
                "the stream has no end: after its last chunk print @toolhost {\"end\": true}, or the whole answer as one JSON \
                 value",
            ),
            (None, false, _) => answer::judge("stdout", &self.rest, is_text),
        }
    }
}

enum Line {
    Part(Text),
    End,
}

fn read(line: &[u8]) -> Result<Line, String> {
    if line.len() > LONGEST {
        return Err(format!("is longer than {} KiB: send more and smaller chunks", LONGEST / 1024));
    }
    let line = json::compact(&line[MARK.len().min(line.len())..])
        .map_err(|problem| format!("is not JSON: {}", problem.message))?;
    let whole = line.as_str();
    if whole == "{\"end\":true}" {
        return Ok(Line::End);
    }
    // The only member is the whole line.
    let part = json::member(whole, "/chunk").filter(|part| part.len() + "{\"chunk\":}".len() == whole.len());
    let part = part.and_then(|part| json::compact(part.as_bytes()).ok());
    part.map(Line::Part).ok_or_else(|| "is neither {\"chunk\": …} nor {\"end\": true}".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Event;
    use serde_json::{Value, json};

    /// The parts, and the ending, of what comes in pieces of this many bytes.
    async fn told(text: &str, piece: usize) -> (Vec<Value>, Ending) {
        let (events, mut heard) = crate::executor::events();
        let mut stdout = Stdout::new(1 << 20, &events);
        for piece in text.as_bytes().chunks(piece) {
            stdout.push(piece).await;
        }
        stdout.close().await;
        let answer = stdout.finish();
        let mut parts = Vec::new();
        while let Some(Event::Chunk(part)) = heard.sent() {
            parts.push(part.value());
        }
        (parts, answer.judged(false))
    }

    #[tokio::test]
    async fn parts_are_told_however_they_come_and_a_document_is_one() {
        let two = "@toolhost {\"chunk\": \"a\"}\n@toolhost {\"chunk\":{\"n\": [null]}}\n";
        let parts = vec![json!("a"), json!({"n": [null]})];
        let list = Ending::answer(&json!(["a", {"n": [null]}]));
        for piece in [1, 7, 1000] {
            assert_eq!(told(&format!("{two}@toolhost {{\"end\": true}}"), piece).await, (parts.clone(), list.clone()));
            let own = (parts.clone(), Ending::answer(&json!({"own": 1})));
            assert_eq!(told(&format!("{two}{{\"own\": 1}}\n"), piece).await, own);
            assert_eq!(told("@toolhost {\"end\": true}\n", piece).await, (vec![], Ending::answer(&json!([]))));
            assert_eq!(told(" [1, 2]\n", piece).await, (vec![], Ending::answer(&json!([1, 2]))));
            assert_eq!(told("@toolhost {\"chunk\": null}\nnull", piece).await.0, [Value::Null]);
        }
    }

    #[tokio::test]
    async fn a_stream_that_is_not_one_says_why() {
        let long = format!("@toolhost {{\"chunk\": \"{}\"}}\n", "x".repeat(LONGEST));
        for (text, why, parts) in [
            ("@toolhost {\"chunk\": 1}\n", "the stream has no end", 1),
            ("@toolhost {\"chunk\": 1}\n@toolhost {\"chunk\": NaN}\n{}", "line 2 of the stream is not JSON: NaN", 1),
            ("@toolhost {\"chunk\": 1, \"x\": 2}\n", "is neither", 0),
            ("@toolhost {\"chunk\": 1} 2\n", "is not JSON", 0),
            ("@toolhost {\"end\": false}\n", "is neither", 0),
            ("@toolhost {\"progress\": 1}\n", "is neither", 0),
            ("@toolhost {\"end\": true}\n@toolhost {\"chunk\": 1}\n", "after the end", 0),
            ("@toolhost {\"end\": true}\n7\n", "after the end", 0),
            ("print\n@toolhost {\"chunk\": 1}\n", "a single JSON value", 0),
            ("{\"a\": 1}\n@toolhost {\"chunk\": 1}\n", "line 2, column 1", 0),
            (&long, "longer than 256 KiB", 0),
        ] {
            let (seen, ending) = told(text, 4096).await;
            let Ending::BadOutput { reason, .. } = ending else { panic!("{ending:?}") };
            assert!(reason.contains(why) && seen.len() == parts, "{text:.80}: {reason}, {seen:?}");
        }
    }
}
