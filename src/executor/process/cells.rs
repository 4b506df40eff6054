//! What the interpreter of a session sends of one cell, parsed as hostile, and the answer that is
//! made of it.

use super::tool_calls::{self, Request};
use crate::base::json::{self, Text};
use crate::base::messages::memory_file;
use crate::executor::LeftFile;
use crate::executor::frame::{self, FrameLimits};
use crate::policy::PerCall;
use crate::quantity::KIB;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::collections::BTreeMap;
use std::{fmt, io};
use tokio::io::{AsyncBufRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

/// Longest head of a frame.
const MAX_HEAD_BYTES: u64 = 4 * KIB;
/// Longest text that stands in an answer; what is longer is an artifact.
const MAX_SHOWN: usize = 32 * 1024;
/// Most values that a cell shows.
const MAX_RESULTS: usize = 100;
/// Most forms of a value.
const MAX_FORMS: usize = 32;

/// A frame to the interpreter, beside the answers to its calls.
#[derive(Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Order<'c> {
    /// Payload: the source text of the cell.
    Cell {
        id: u64,
        /// Longest payload of an answer.
        most_bytes: u64,
        /// What tells of this call alone.
        variables: &'c BTreeMap<String, String>,
        /// The tools that it may call, and what they take.
        tools: &'c [String],
        stubs: &'c str,
    },
    Interrupt,
}

impl Order<'_> {
    pub fn cell(id: u64, most_bytes: u64, call: &PerCall) -> Vec<u8> {
        let offer = call.offer.as_ref();
        let order = Order::Cell {
            id,
            most_bytes,
            variables: &call.about,
            tools: offer.map_or(&[], |offer| &offer.tools),
            stubs: offer.map_or("", |offer| &offer.stubs),
        };
        let source = call.source.as_deref().unwrap_or_default();
        frame::encode(&order, source.as_bytes()).unwrap_or_default()
    }

    pub fn interrupt() -> Vec<u8> {
        frame::encode(&Order::Interrupt, &[]).unwrap_or_default()
    }
}

/// A frame from the interpreter.
#[derive(Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum Report {
    /// Payload: the forms of a value, by media type.
    Result { is_main_result: bool },
    /// Payload: the arguments.
    Call(Request),
    /// Payload: the error, or nothing.
    Ended { id: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// A value that a cell showed.
#[derive(Debug)]
struct ShownValue {
    is_main_result: bool,
    forms: Forms,
}

/// Texts by name, of which no tree is made: that can be forty times as large.
type Texts = BTreeMap<String, Box<RawValue>>;

/// The forms of a value by media type.
#[derive(Debug)]
struct Forms(Texts);

impl<'de> Deserialize<'de> for Forms {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Forms, D::Error> {
        from.deserialize_map(FewForms)
    }
}

struct FewForms;

impl<'de> Visitor<'de> for FewForms {
    type Value = Forms;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "at most {MAX_FORMS} forms")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Forms, A::Error> {
        let mut forms = Texts::new();
        while let Some((media, form)) = members.next_entry()? {
            forms.insert(media, form);
            if forms.len() > MAX_FORMS {
                return Err(A::Error::invalid_length(forms.len(), &self));
            }
        }
        Ok(Forms(forms))
    }
}

/// What came of one cell.
#[derive(Debug, Default)]
pub struct Shown {
    values: Vec<ShownValue>,
    bytes: u64,
    /// Values for which there was no room.
    dropped: usize,
    pub error: Option<CellError>,
}

impl Shown {
    /// Reads what comes until the cell ends. `None`: the interpreter has closed its pipe.
    pub async fn read(
        from: &mut (impl AsyncBufRead + Unpin),
        cell: u64,
        most: u64,
        calls: &mpsc::Sender<(Request, String)>,
    ) -> io::Result<Option<Shown>> {
        let limits = FrameLimits {
            head: MAX_HEAD_BYTES,
            payload: most,
        };
        let mut shown = Shown::default();
        while let Some((report, payload)) = frame::read_async::<Report>(from, limits).await? {
            match report {
                Report::Result { is_main_result } => {
                    shown.bytes += payload.len() as u64;
                    if shown.bytes > most || shown.values.len() >= MAX_RESULTS {
                        shown.dropped += 1;
                        continue;
                    }
                    let forms = serde_json::from_slice(&payload)
                        .map_err(|_| frame::invalid("forms that are not JSON"))?;
                    shown.values.push(ShownValue {
                        is_main_result,
                        forms,
                    });
                }
                Report::Call(request) => {
                    // While as many run as may, nothing more is read.
                    let _ = calls.send((request, tool_calls::text(payload)?)).await;
                }
                Report::Ended { id } if id == cell => {
                    let error = serde_json::from_slice(&payload);
                    shown.error = error.map_err(|_| frame::invalid("an error that is not one"))?;
                    return Ok(Some(shown));
                }
                Report::Ended { .. } => return Err(frame::invalid("the end of another cell")),
            }
        }
        Ok(None)
    }

    /// Of a cell that was interrupted at its time limit.
    pub fn late(self, limit_ms: u64) -> Shown {
        let traceback = self.error.map_or_else(String::new, |error| error.traceback);
        let error = CellError {
            name: "TimeoutError".to_owned(),
            value: format!("interrupted after {limit_ms} ms; the session goes on"),
            traceback,
        };
        Shown {
            error: Some(error),
            ..self
        }
    }
}

/// What a cell prints to one stream.
#[derive(Debug)]
pub struct Printed {
    kept: Vec<u8>,
    total: u64,
    most: usize,
}

impl Printed {
    pub fn new(most: u64) -> Printed {
        Printed {
            kept: Vec::new(),
            total: 0,
            most: usize::try_from(most).unwrap_or(usize::MAX),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.most - self.kept.len();
        self.kept.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    /// Reads what comes next. Never returns once the stream is closed.
    pub async fn read(&mut self, from: &mut Receiver) {
        let mut buffer = [0; 16 * 1024];
        match from.read(&mut buffer).await {
            Ok(length @ 1..) => self.push(&buffer[..length]),
            _ => std::future::pending().await,
        }
    }

    /// Reads what is there. Whoever could write is stopped.
    pub fn drain(&mut self, from: &Receiver) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.try_read(&mut buffer) {
            self.push(&buffer[..length]);
        }
    }
}

/// What an answer says of its session.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    pub name: String,
    /// It started empty with this call.
    pub new: bool,
    /// Why an earlier session of this name has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_because: Option<String>,
}

/// The de facto result model of code interpreters.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CellAnswer {
    results: Vec<Texts>,
    logs: Logs,
    error: Option<CellError>,
    execution_count: u64,
    session: SessionState,
}

#[derive(Serialize)]
struct Logs {
    stdout: Vec<String>,
    stderr: Vec<String>,
}

/// Makes the answer of one cell, and the files beside it.
pub struct AnswerMaker {
    cell: u64,
    /// What is too long for the answer, or not text.
    pub files: Vec<LeftFile>,
}

impl AnswerMaker {
    pub fn new(cell: u64) -> AnswerMaker {
        AnswerMaker {
            cell,
            files: Vec::new(),
        }
    }

    pub fn answer(
        &mut self,
        shown: Shown,
        printed: [Printed; 2],
        session: SessionState,
    ) -> io::Result<Text> {
        let mut results = Vec::new();
        for (number, value) in shown.values.into_iter().enumerate() {
            results.push(self.value(number + 1, value)?);
        }
        if shown.dropped > 0 {
            let text = format!("{} more results are too long to be shown", shown.dropped);
            let forms = Texts::from([("text".to_owned(), to_raw_value(&text)?)]);
            results.push(with_main(forms, false)?);
        }
        let [stdout, stderr] = printed;
        let answer = CellAnswer {
            results,
            logs: Logs {
                stdout: self.stream("stdout", stdout)?,
                stderr: self.stream("stderr", stderr)?,
            },
            error: shown.error,
            execution_count: self.cell,
            session,
        };
        Ok(Text::of(&answer)?)
    }

    fn value(&mut self, number: usize, value: ShownValue) -> io::Result<Texts> {
        let mut shown = Texts::new();
        let mut extra = Texts::new();
        for (media, form) in value.forms.0 {
            let known = FORMS.iter().find(|form| form[0] == media);
            let [_, name, ending] = known.copied().unwrap_or([&media, "extra", "json"]);
            let text = serde_json::from_str::<String>(form.get());
            let text = text.unwrap_or_else(|_| form.get().to_owned());
            let file = format!("result-{}-{number}.{ending}", self.cell);
            if BINARY.contains(&name) {
                // A picture is base64.
                if let Ok(bytes) = STANDARD.decode(text.as_bytes()) {
                    self.keep(&file, &bytes)?;
                    shown.insert(name.to_owned(), to_raw_value(&file)?);
                }
                continue;
            }
            let form = if text.len() > MAX_SHOWN {
                self.keep(&file, text.as_bytes())?;
                to_raw_value(&cut(&text, &format!("{} bytes in all", text.len()), &file))?
            } else {
                let form = json::compact(form.get().as_bytes());
                form.map_err(|problem| frame::invalid(&problem.message))?
                    .into()
            };
            if name == "extra" {
                extra.insert(media, form);
            } else {
                shown.insert(name.to_owned(), form);
            }
        }
        if !extra.is_empty() {
            shown.insert("extra".to_owned(), to_raw_value(&extra)?);
        }
        with_main(shown, value.is_main_result)
    }

    fn stream(&mut self, name: &str, printed: Printed) -> io::Result<Vec<String>> {
        let text = String::from_utf8_lossy(&printed.kept);
        if text.is_empty() {
            return Ok(Vec::new());
        }
        if text.len() <= MAX_SHOWN {
            return Ok(vec![text.into_owned()]);
        }
        let file = format!("{name}-{}.txt", self.cell);
        self.keep(&file, &printed.kept)?;
        let kept = printed.kept.len();
        let mut size = format!("{} bytes in all", printed.total);
        if printed.total > kept as u64 {
            size += &format!(", the first {kept}");
        }
        Ok(vec![cut(&text, &size, &file)])
    }

    fn keep(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.files.push(LeftFile {
            name: name.to_owned(),
            file: memory_file(bytes)?.into(),
            bytes: bytes.len() as u64,
        });
        Ok(())
    }
}

fn with_main(mut forms: Texts, is_main_result: bool) -> io::Result<Texts> {
    forms.insert("isMainResult".to_owned(), to_raw_value(&is_main_result)?);
    Ok(forms)
}

/// The beginning of a long text, its size, and the file with all of it.
fn cut(text: &str, size: &str, file: &str) -> String {
    let head = &text[..text.floor_char_boundary(MAX_SHOWN)];
    format!("{head}\n[… {size}: {file}]")
}

/// The forms of a value that have a name of their own: media type, name, ending of a file.
const FORMS: [[&str; 3]; 10] = [
    ["text/plain", "text", "txt"],
    ["text/html", "html", "html"],
    ["text/markdown", "markdown", "md"],
    ["text/latex", "latex", "tex"],
    ["image/svg+xml", "svg", "svg"],
    ["image/png", "png", "png"],
    ["image/jpeg", "jpeg", "jpg"],
    ["application/pdf", "pdf", "pdf"],
    ["application/json", "json", "json"],
    ["application/javascript", "javascript", "js"],
];
const BINARY: [&str; 3] = ["png", "jpeg", "pdf"];
