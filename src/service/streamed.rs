//! What a running tool sends to its caller: lines, messages, progress and the parts of its answer.
//! Secrets in them are hidden, also one that spans two parts.

use super::output;
use super::record::{CallRecord, add_line, lost_lines};
use super::redaction::Redaction;
use super::request::{Event, EventStream};
use super::target::Decided;
use crate::base::mask::TextStream;
use crate::executor::{self, CallDeadline, Progress, ToolReceiver};
use crate::fault::Fault;
use crate::quantity::{LARGE_TEXT_BYTES, Limit};
use std::sync::Arc;

pub(super) struct StreamedAnswer {
    /// Most bytes of all parts, and how many of them are left.
    allowed: u64,
    left: u64,
    buffer: TextStream,
    deadline: CallDeadline,
    redaction: Arc<Redaction>,
    /// The log, for an outcome that has none of its own.
    pub logs: Vec<String>,
}

impl StreamedAnswer {
    pub fn new(decided: &Decided) -> StreamedAnswer {
        let allowed = decided.output_bytes();
        StreamedAnswer {
            allowed,
            left: allowed,
            buffer: TextStream::default(),
            deadline: decided.found.deadline.clone(),
            redaction: decided.redaction.clone(),
            logs: Vec::new(),
        }
    }

    /// Parts of the answer were received.
    pub fn has_parts(&self) -> bool {
        self.left < self.allowed
    }

    /// Adds a line to the log. Returns it with its secrets hidden.
    pub fn log(&mut self, line: &str, record: &mut CallRecord) -> String {
        let line = self.redaction.line(line);
        record.add_log(&line);
        add_line(&mut self.logs, &line);
        line
    }

    /// Hands on an event of the executor as a transport may see it.
    pub async fn push(
        &mut self,
        event: executor::Event,
        record: &mut CallRecord,
        stream: &mut EventStream,
    ) -> Result<(), Fault> {
        let event = match event {
            executor::Event::Log(line) => Event::Log(self.log(&line, record)),
            executor::Event::Message(level, text) => Event::Message(level, self.log(&text, record)),
            executor::Event::Progress(progress) => {
                let message = progress
                    .message
                    .as_ref()
                    .map(|message| self.redaction.line(message));
                Event::Progress(Progress {
                    message,
                    ..progress
                })
            }
            executor::Event::Shown(json) => {
                self.charge(json.as_str().len(), record, stream).await?;
                if !stream.is_heard() {
                    return Ok(());
                }
                self.flush(record, stream).await?;
                let bytes = json.as_str().len();
                let redaction = self.redaction.clone();
                let shown = self.deadline.run(bytes > LARGE_TEXT_BYTES, move || {
                    let masked = redaction.answer(json.as_str(), false);
                    serde_json::from_str(masked.as_deref().unwrap_or(json.as_str())).ok()
                });
                match shown.await? {
                    Some(shown) => Event::Shown(shown, bytes),
                    None => return Ok(()),
                }
            }
            executor::Event::Chunk(part) => {
                self.charge(part.as_str().len(), record, stream).await?;
                let is_long = part.as_str().len() > LARGE_TEXT_BYTES;
                let text = match part.string() {
                    _ if !stream.is_heard() => return Ok(()),
                    Some(text) => text,
                    None => {
                        self.flush(record, stream).await?;
                        let redaction = self.redaction.clone();
                        let shown = self.deadline.run(is_long, move || {
                            let shown = redaction.answer(part.as_str(), false);
                            shown.unwrap_or_else(|| part.to_string())
                        });
                        stream.push(Event::Part(shown.await?));
                        return Ok(());
                    }
                };
                let is_empty = text.is_empty();
                let shown = self.shown(Some(text), is_long, record).await?;
                if shown.is_empty() && !is_empty {
                    return Ok(());
                }
                Event::Part(shown)
            }
        };
        stream.push(event);
        Ok(())
    }

    async fn charge(
        &mut self,
        bytes: usize,
        record: &mut CallRecord,
        stream: &mut EventStream,
    ) -> Result<(), Fault> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => {
                self.flush(record, stream).await?;
                return Err(output::over_limit(Limit::OutputBytes, self.allowed));
            }
        }
        Ok(())
    }

    /// Hands on what the tool has sent before its end.
    pub async fn finish(
        &mut self,
        mut received: ToolReceiver,
        record: &mut CallRecord,
        stream: &mut EventStream,
    ) -> Result<(), Fault> {
        while let Some(event) = received.try_next() {
            self.push(event, record, stream).await?;
        }
        self.flush(record, stream).await?;
        if let Some(line) = lost_lines(received.lost()) {
            self.log(&line, record);
        }
        Ok(())
    }

    /// Passes on the text that was held back, once no more text can follow it.
    pub async fn flush(
        &mut self,
        record: &mut CallRecord,
        stream: &mut EventStream,
    ) -> Result<(), Fault> {
        let shown = self.shown(None, false, record).await?;
        if !shown.is_empty() {
            stream.push(Event::Part(shown));
        }
        Ok(())
    }

    /// Takes the next text, and returns what can be shown now. `None`: returns the rest.
    async fn shown(
        &mut self,
        text: Option<String>,
        is_long: bool,
        record: &mut CallRecord,
    ) -> Result<String, Fault> {
        let redaction = self.redaction.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        let (shown, buffer) = self
            .deadline
            .run(is_long, move || {
                let shown = redaction.mask.piece(&mut buffer, text.as_deref());
                (shown, buffer)
            })
            .await?;
        self.buffer = buffer;
        if self.buffer.hid {
            record.hid_secrets();
        }
        Ok(shown)
    }
}
