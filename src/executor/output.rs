//! What a tool writes: its answer (stdout) and its log (stderr), read as they arrive and held to
//! their limits.
//!
//! The answer is one JSON value, or text if the manifest says so, or the lines of a stream. The
//! output of every engine is checked here.

use super::{CallDeadline, Ending, Event, Showing, ToolAnswer, ToolSender};
use crate::base::json::{self, Text};
use crate::base::problem::Problem;
use crate::fault::Fault;
use crate::quantity::LARGE_TEXT_BYTES;
use std::collections::VecDeque;

/// The beginning of each line of a stream. One JSON object follows: `{"chunk": …}`, `{"event": …}`,
/// and last `{"end": true}`.
pub const STREAM_PREFIX: &[u8] = b"@toolhost ";
/// Longest line with a part of a stream, bytes.
pub const MAX_PART_BYTES: usize = 256 * 1024;
/// How many bytes of a bad output are examined: more than are shown, because secrets beside the cut
/// are masked.
const HEAD_BYTES: usize = 4096;
/// How many bytes of the stdout of a tool that failed are looked at.
const LAST_BYTES: usize = 8 * 1024;
/// The message if a tool wrote to stderr and that counts as failure. The end of stderr is added
/// later, masked.
pub const STDERR_FAILURE: &str = "the tool wrote to stderr, which this tool counts as failure";

/// Reads stdout. Each part of a stream is sent as an event, as soon as there is room for it.
pub struct OutputReader<'a> {
    output: Output,
    max_bytes: usize,
    /// Whether the next line may be a part of a stream: only parts were printed before it.
    is_stream: bool,
    events: &'a ToolSender,
}

/// What a tool printed to stdout.
#[derive(Debug, Default)]
pub struct Output {
    /// Number of bytes received, including those not kept.
    pub total: u64,
    /// Whether they exceeded the limit.
    pub is_over: bool,
    /// What was printed and is not part of a stream.
    pub rest: Vec<u8>,
    /// The parts, as a JSON list without its brackets, and how many.
    parts: (String, usize),
    ended: bool,
    /// Set by a line of the stream that cannot be read. Nothing after it was read.
    pub bad: Option<Ending>,
}

impl<'a> OutputReader<'a> {
    pub fn new(max_bytes: u64, events: &'a ToolSender) -> OutputReader<'a> {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        OutputReader {
            output: Output::default(),
            max_bytes,
            is_stream: true,
            events,
        }
    }

    /// Takes bytes, and waits until there is room for a part. True: nothing more is read, so the
    /// tool can be ended.
    pub async fn push(&mut self, bytes: &[u8]) -> bool {
        let own = &mut self.output;
        let room = self
            .max_bytes
            .saturating_sub(usize::try_from(own.total).unwrap_or(usize::MAX));
        own.total += bytes.len() as u64;
        own.is_over |= bytes.len() > room;
        if own.bad.is_none() {
            let taken = &bytes[..bytes.len().min(room)];
            // Never more memory than the limit.
            let more = own
                .rest
                .len()
                .max(taken.len())
                .min(own.rest.len().saturating_add(room) - own.rest.len());
            if own.rest.capacity() - own.rest.len() < taken.len() {
                own.rest.reserve_exact(more);
            }
            own.rest.extend_from_slice(taken);
            self.read_lines(false).await;
        }
        self.output.is_over || self.output.bad.is_some()
    }

    /// Ends the output: text without a line break is the last line.
    pub async fn close(&mut self) {
        self.read_lines(true).await;
    }

    pub fn finish(self) -> Output {
        self.output
    }

    async fn read_lines(&mut self, last: bool) {
        let mut from = 0;
        while self.is_stream && self.output.bad.is_none() {
            let rest = &self.output.rest[from..];
            let known = rest.len().min(STREAM_PREFIX.len());
            if rest[..known] != STREAM_PREFIX[..known] {
                self.is_stream = false;
                break;
            }
            let length = match rest.iter().position(|byte| *byte == b'\n') {
                Some(at) => at + 1,
                None if rest.len() > MAX_PART_BYTES || last && !rest.is_empty() => rest.len(),
                None => break,
            };
            let line = rest[..length].to_vec();
            from += length;
            self.take(line).await;
        }
        self.output.rest.drain(..from);
    }

    async fn take(&mut self, line: Vec<u8>) {
        let is_long = line.len() > LARGE_TEXT_BYTES;
        let own = &mut self.output;
        let read = self
            .events
            .deadline
            .run(is_long, move || (read_part(&line), line))
            .await;
        let Ok((part, line)) = read else {
            return own.bad = Some(Ending::Cancelled);
        };
        let why = match part {
            Ok(_) if own.ended => "comes after the end of the stream".to_owned(),
            Ok(StreamLine::End) => return own.ended = true,
            Ok(StreamLine::Event(json)) => {
                return self.events.send_whole(Event::Shown(json)).await;
            }
            Ok(StreamLine::Chunk(part)) => {
                let (whole, count) = &mut own.parts;
                *count += 1;
                whole.push_str(if whole.is_empty() { "" } else { "," });
                whole.push_str(part.as_str());
                return self.events.part(part).await;
            }
            Err(why) => why,
        };
        let reason = format!("line {} of the stream {why}", own.parts.1 + 1);
        own.bad = Some(Ending::BadOutput {
            reason,
            head: head(&line),
        });
    }
}

impl Output {
    /// Whether the answer is the list of the parts of a stream.
    pub fn is_list(&self) -> bool {
        self.ended && self.bad.is_none()
    }

    /// The ending of a call whose tool succeeded. `is_text`: the answer may be text.
    pub async fn ending(self, is_text: bool, deadline: &CallDeadline) -> Result<Ending, Fault> {
        let bytes = self.rest.len() + self.parts.0.len();
        let own = deadline.clone();
        deadline
            .run(bytes > LARGE_TEXT_BYTES, move || self.whole(is_text, &own))
            .await
    }

    fn whole(&self, is_text: bool, deadline: &CallDeadline) -> Ending {
        fn bad(reason: &str, rest: &[u8]) -> Ending {
            Ending::BadOutput {
                reason: reason.to_owned(),
                head: head(rest),
            }
        }
        match (&self.bad, self.ended, self.rest.trim_ascii().is_empty()) {
            (Some(bad), ..) => bad.clone(),
            (None, true, false) => bad(
                "something was printed after the end of the stream",
                &self.rest,
            ),
            (None, true, true) => match json::compact(format!("[{}]", self.parts.0).as_bytes()) {
                Ok(whole) => Ending::Answered(ToolAnswer::new(whole, deadline)),
                Err(problem) => bad(
                    &format!(
                        "the parts of the stream are not a list: {}",
                        problem.message
                    ),
                    &self.rest,
                ),
            },
            (None, false, true) if self.parts.1 > 0 => bad(
                "the stream has no end: after its last chunk print @toolhost {\"end\": true}, or \
                 the whole answer as one JSON value",
                &self.rest,
            ),
            (None, false, _) => ending_of("stdout", &self.rest, is_text, deadline),
        }
    }
}

/// What a line of a stream says.
enum StreamLine {
    Chunk(Text),
    /// The JSON of a `Showing`.
    Event(Text),
    End,
}

fn read_part(line: &[u8]) -> Result<StreamLine, String> {
    if line.len() > MAX_PART_BYTES {
        return Err(format!(
            "is longer than {} KiB: send more and smaller chunks",
            MAX_PART_BYTES / 1024
        ));
    }
    let line = json::compact(&line[STREAM_PREFIX.len().min(line.len())..])
        .map_err(|problem| format!("is not JSON: {}", problem.message))?;
    let whole = line.as_str();
    if whole == "{\"end\":true}" {
        return Ok(StreamLine::End);
    }
    // It must be the only member.
    let member = |name: &str| {
        let value = json::member(whole, &format!("/{name}"))?;
        let is_alone = value.len() + name.len() + "{\"\":}".len() == whole.len();
        json::compact(value.as_bytes()).ok().filter(|_| is_alone)
    };
    if let Some(part) = member("chunk") {
        return Ok(StreamLine::Chunk(part));
    }
    let event =
        member("event").ok_or("is none of {\"chunk\": …}, {\"event\": …} and {\"end\": true}")?;
    serde_json::from_str::<Showing>(event.as_str())
        .map_err(|why| format!("has no event that there is: {why}"))?;
    Ok(StreamLine::Event(event))
}

/// The ending of a call whose tool returned this text.
pub async fn returned(
    bytes: Vec<u8>,
    is_text: bool,
    deadline: &CallDeadline,
) -> Result<Ending, Fault> {
    let own = deadline.clone();
    let is_long = bytes.len() > LARGE_TEXT_BYTES;
    deadline
        .run(is_long, move || {
            ending_of("the returned text", &bytes, is_text, &own)
        })
        .await
}

/// Whether this JSON value says something else as a value than as text: a version `1.10` would be 1.1, a
/// hash `12e4567` infinite, and of a long id the last digits others (RFC 8259, section 6).
fn is_word(json: &str) -> bool {
    json == "null"
        || json
            .parse::<f64>()
            .is_ok_and(|number| number.to_string() != json)
}

/// Judges all of stdout (`what`) after exit status 0, or the text that a function or a typed
/// component returned. `is_text`: what is not one JSON value is the answer as text, without the line
/// breaks at its end; so are `null`, and a number that a client would write otherwise.
fn ending_of(what: &str, bytes: &[u8], is_text: bool, deadline: &CallDeadline) -> Ending {
    let bad = |reason: String| Ending::BadOutput {
        reason,
        head: head(bytes),
    };
    let answered = |text| Ending::Answered(ToolAnswer::new(text, deadline));
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            return bad(format!(
                "{what} is not valid UTF-8 (byte {}); write UTF-8",
                e.valid_up_to()
            ));
        }
    };
    let plain = |text: &str| answered(Text::from(&text.trim_end_matches(['\r', '\n']).into()));
    match json::compact(bytes) {
        Ok(_) if is_text && is_word(text.trim()) => plain(text),
        Ok(answer) => answered(answer),
        Err(_) if is_text => plain(text),
        Err(_) if text.trim().is_empty() => {
            bad(format!("{what} is empty; it must be a single JSON value"))
        }
        Err(_) if is_cut(text) => bad(format!(
            "{what} ends in the middle of a JSON value, after {} bytes — print all of it before \
             the script ends",
            bytes.len()
        )),
        Err(Problem {
            line,
            column,
            message,
            ..
        }) => bad(format!(
            "{what} must be a single JSON value; not JSON at line {line}, column {column}: \
             {message} — print diagnostics to stderr; \"execution\": {{\"output\": \"text\"}} in \
             the manifest takes plain text"
        )),
    }
}

/// Whether this could be the beginning of a longer JSON value.
fn is_cut(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof())
}

/// Under `stderr: error`, any visible text on stderr means that the tool failed.
pub fn ending_of_stderr(logs: &[String]) -> Option<Ending> {
    let is_quiet = logs.iter().all(|line| line.trim().is_empty());
    (!is_quiet).then(|| Ending::Raised {
        message: STDERR_FAILURE.to_owned(),
    })
}

/// The end of stdout as lines, not yet escaped: it may say why a tool failed.
pub fn last_lines(stdout: &[u8]) -> Vec<String> {
    let from = stdout.len().saturating_sub(LAST_BYTES);
    let mut lines = lines(&stdout[from..]);
    if from > 0 {
        lines
            .iter_mut()
            .take(1)
            .for_each(|first| first.insert(0, '…'));
    }
    lines
}

/// Text as lines, not yet escaped; bytes that are not UTF-8 become U+FFFD.
fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The first bytes, with everything that is not plain text escaped.
fn head(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes[..HEAD_BYTES.min(bytes.len())].utf8_chunks() {
        chunk.valid().chars().for_each(|c| match c {
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        });
        shown.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    shown + if bytes.len() > HEAD_BYTES { "…" } else { "" }
}

/// Reads stderr: keeps its beginning and its end, and sends each line on as it comes. Never waits
/// for a reader, and never holds more than twice the limit.
pub struct Log<'a> {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    /// Bytes between head and tail that were not kept.
    cut: u64,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// Bytes that may still be sent on: all lines together are held to the limit of the log.
    left: usize,
    events: &'a ToolSender,
}

impl<'a> Log<'a> {
    pub fn new(max_bytes: u64, events: &'a ToolSender) -> Log<'a> {
        let left = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let head = Vec::new();
        let tail = VecDeque::new();
        let line = Vec::new();
        Log {
            head,
            tail,
            half: left / 2,
            cut: 0,
            line,
            left,
            events,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let skipped = rest.len().saturating_sub(self.half);
        self.tail.extend(&rest[skipped..]);
        let beyond = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..beyond);
        self.cut += (skipped + beyond) as u64;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if piece.len() > self.left {
                (self.left, self.line) = (0, Vec::new());
                return;
            }
            self.left -= piece.len();
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.send_line();
            }
        }
    }

    fn send_line(&mut self) {
        lines(&self.line)
            .into_iter()
            .for_each(|line| self.events.send(Event::from_line(line)));
        self.line.clear();
    }

    /// The kept lines, not yet escaped: messages without their mark, and no progress.
    pub fn finish(mut self) -> Vec<String> {
        self.send_line();
        let mut kept = self.head;
        if self.cut > 0 {
            kept.extend_from_slice(format!("\n[… {} bytes cut …]\n", self.cut).as_bytes());
        }
        kept.extend(self.tail);
        lines(&kept)
            .into_iter()
            .filter_map(|line| match Event::from_line(line) {
                Event::Log(text) | Event::Message(_, text) => Some(text),
                Event::Progress(_) | Event::Chunk(_) | Event::Shown(_) => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::channel;
    use serde_json::{Value, json};

    /// The parts, and the ending, of what comes in pieces of this many bytes.
    async fn read_in_pieces(text: &str, piece: usize) -> (Vec<Value>, Ending) {
        let (events, mut received) = channel(CallDeadline::usual("", None));
        let mut reader = OutputReader::new(1 << 20, &events);
        for piece in text.as_bytes().chunks(piece) {
            reader.push(piece).await;
        }
        reader.close().await;
        let output = reader.finish();
        let mut parts = Vec::new();
        while let Some(Event::Chunk(part)) = received.try_next() {
            parts.push(part.value());
        }
        (
            parts,
            output
                .ending(false, &CallDeadline::usual("", None))
                .await
                .expect("in time"),
        )
    }

    #[tokio::test]
    async fn parts_are_sent_however_the_bytes_are_split() {
        let two = "@toolhost {\"chunk\": \"a\"}\n@toolhost {\"chunk\":{\"n\": [null]}}\n";
        let parts = vec![json!("a"), json!({"n": [null]})];
        let list = Ending::answer(&json!(["a", {"n": [null]}]));
        for piece in [1, 7, 1000] {
            assert_eq!(
                read_in_pieces(&format!("{two}@toolhost {{\"end\": true}}"), piece).await,
                (parts.clone(), list.clone())
            );
            let own = (parts.clone(), Ending::answer(&json!({"own": 1})));
            assert_eq!(
                read_in_pieces(&format!("{two}{{\"own\": 1}}\n"), piece).await,
                own
            );
            assert_eq!(
                read_in_pieces("@toolhost {\"end\": true}\n", piece).await,
                (vec![], Ending::answer(&json!([])))
            );
            assert_eq!(
                read_in_pieces(" [1, 2]\n", piece).await,
                (vec![], Ending::answer(&json!([1, 2])))
            );
            assert_eq!(
                read_in_pieces("@toolhost {\"chunk\": null}\nnull", piece)
                    .await
                    .0,
                [Value::Null]
            );
        }
    }

    #[tokio::test]
    async fn a_stream_that_is_not_one_says_why() {
        let long = format!(
            "@toolhost {{\"chunk\": \"{}\"}}\n",
            "x".repeat(MAX_PART_BYTES)
        );
        for (text, why, parts) in [
            ("@toolhost {\"chunk\": 1}\n", "the stream has no end", 1),
            (
                "@toolhost {\"chunk\": 1}\n@toolhost {\"chunk\": NaN}\n{}",
                "line 2 of the stream is not JSON",
                1,
            ),
            ("@toolhost {\"chunk\": 1, \"x\": 2}\n", "is none of", 0),
            ("@toolhost {\"end\": true}\n7\n", "after the end", 0),
            (&long, "longer than 256 KiB", 0),
        ] {
            let (seen, ending) = read_in_pieces(text, 4096).await;
            let Ending::BadOutput { reason, .. } = ending else {
                panic!("{ending:?}")
            };
            assert!(
                reason.contains(why) && seen.len() == parts,
                "{text:.80}: {reason}, {seen:?}"
            );
        }
    }
}
