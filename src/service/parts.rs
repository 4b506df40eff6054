//! What a tool tells while it runs, secrets hidden, also one that was cut into two texts of the answer. Together the parts
//! of an answer are at most `outputBytes`.

use super::format;
use super::record::CallRecord;
use super::request::{Event, Stream};
use crate::base::json::Text;
use crate::base::mask::TextStream;
use crate::executor::{self, Progress};
use crate::fault::Fault;
use crate::{policy, quantity};

/// The parts of a streamed answer, which together are at most `outputBytes`.
pub(super) struct Parts {
    allowed: u64,
    left: u64,
    held: TextStream,
}

impl Parts {
    pub fn of(decision: &policy::Decision) -> Parts {
        let allowed = super::pipeline::output_bytes(decision);
        Parts { allowed, left: allowed, held: TextStream::default() }
    }

    /// Tells an event of the executor as a face may see it.
    pub fn told(&mut self, event: executor::Event, record: &mut CallRecord, stream: &mut Stream) -> Result<(), Fault> {
        let event = match event {
            executor::Event::Log(line) => Event::Log(record.heard(&line)),
            executor::Event::Message(level, text) => Event::Message(level, record.heard(&text)),
            executor::Event::Progress(told) => {
                let message = told.message.as_ref().map(|message| record.shown(message));
                Event::Progress(Progress { message, ..told })
            }
            executor::Event::Chunk(part) => {
                let Some(left) = self.left.checked_sub(part.as_str().len() as u64) else {
                    self.rest(record, stream);
                    return Err(format::over_limit(quantity::Limit::OutputBytes, self.allowed));
                };
                (self.left, record.parts_came) = (left, true);
                if stream.is_heard() {
                    self.part(part, record, stream);
                }
                return Ok(());
            }
        };
        stream.push(event);
        Ok(())
    }

    fn part(&mut self, part: Text, record: &mut CallRecord, stream: &mut Stream) {
        let Some(text) = part.string() else {
            self.rest(record, stream);
            return stream.push(Event::Part(record.hidden(part).to_string()));
        };
        let shown = record.piece(&mut self.held, Some(&text));
        if !shown.is_empty() || text.is_empty() {
            stream.push(Event::Part(shown));
        }
    }

    /// Tells what stayed back, once nothing more comes that it could belong to.
    pub fn rest(&mut self, record: &mut CallRecord, stream: &mut Stream) {
        let shown = record.piece(&mut self.held, None);
        if !shown.is_empty() {
            stream.push(Event::Part(shown));
        }
    }
}
