//! Messages with the answer of a tool in them. The answer stays text and is never copied: what is
//! written around it is small, and its own text is put between the parts while they are sent.

use crate::base::text::VisibleJson;
use crate::executor::{CallDeadline, Part, ToolAnswer};
use crate::fault::{Fault, Kind};
use crate::quantity::{LARGE_TEXT_BYTES, MAX_RESPONSE_BYTES};
use crate::service::{CallResult, Report};
use serde::Serialize;
use serde_json::Serializer;
use std::io;

/// The parts of a message, in order.
pub type Parts = Vec<Part>;

/// Writes JSON with all control characters escaped.
pub fn visible(value: &impl Serialize, to: &mut dyn io::Write) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(to, VisibleJson))?)
}

/// How many bytes a value takes as JSON; `None`: more than a response may have.
pub fn size(value: &impl Serialize) -> Option<usize> {
    let mut size = Size(0);
    visible(value, &mut size).ok().map(|()| size.0)
}

/// Counts what is written, up to the largest response.
struct Size(usize);

impl io::Write for Size {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0 += part.len();
        if self.0 as u64 > MAX_RESPONSE_BYTES {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            Ok(part.len())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The message that `write` makes of a report. If it is too large, the message is a fault that says
/// so.
pub async fn of_report(
    mut report: Report,
    write: impl Fn(&Report, &mut dyn io::Write) -> io::Result<()> + Send + 'static,
) -> Parts {
    let answer = report.take_answer();
    // Only the log may be long beside the answer.
    let is_long = report.logs.iter().map(String::len).sum::<usize>() > LARGE_TEXT_BYTES;
    let written = CallDeadline::usual("", None)
        .run(is_long, move || parts(report, answer.as_ref(), &write))
        .await;
    written.unwrap_or_default()
}

fn parts(
    mut report: Report,
    answer: Option<&ToolAnswer>,
    write: &impl Fn(&Report, &mut dyn io::Write) -> io::Result<()>,
) -> Parts {
    let mut around = Vec::new();
    // A vector takes everything.
    let _ = write(&report, &mut around);
    let parts = match answer {
        Some(answer) => answer.put_into(&around),
        None => vec![around.into()],
    };
    if is_too_large(&parts) && answer.is_some() {
        report.outcome = CallResult::Failed(too_large(TOOL_ANSWER));
        return self::parts(report, None, write);
    }
    parts
}

pub fn is_too_large(parts: &Parts) -> bool {
    parts.iter().map(Part::bytes).sum::<usize>() as u64 > MAX_RESPONSE_BYTES
}

/// Why `what` is not sent.
pub fn too_large(what: &str) -> Fault {
    Fault::new(
        Kind::ResourceLimitError,
        format!("{what} is larger than {MAX_RESPONSE_BYTES} bytes: request less."),
    )
}

/// The answer of a call.
pub const TOOL_ANSWER: &str = "The tool ran, and its answer";
