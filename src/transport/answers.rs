//! Answers that wait to be read. Each is charged to its principal at its real size before it is built, and until it is
//! sent. If memory is short it waits, and no new call of that principal starts meanwhile.

use crate::base::semaphore::Permit;
use crate::base::text::VisibleJson;
use crate::fault::{Fault, Kind};
use crate::quantity::{LARGE_TEXT_BYTES, MAX_RESPONSE_BYTES};
use crate::service::{Limiter, Report};
use serde::Serialize;
use serde_json::Serializer;
use std::io;
use std::sync::Arc;

/// An answer's text, and the reservation of its memory.
pub type Built = (Vec<u8>, Permit);

/// Who pays for answers.
#[derive(Clone)]
pub struct Payer {
    limiter: Arc<Limiter>,
    principal: String,
}

impl Payer {
    pub fn new(limiter: &Arc<Limiter>, principal: &str) -> Payer {
        Payer { limiter: limiter.clone(), principal: principal.to_owned() }
    }

    /// Waits for memory for an answer of this size. Dropping the `Permit` frees it.
    pub async fn reserve(&self, bytes: usize) -> Permit {
        self.limiter.answer(&self.principal, bytes).await
    }

    /// Takes the memory of an answer that its client can request again. Never waits.
    pub fn try_reserve(&self, bytes: usize) -> Result<Permit, Fault> {
        self.limiter.try_answer(&self.principal, bytes)
    }

    /// Builds the answer that `write` writes. `text`: bytes of its text. `None`: it is larger than a response may be.
    pub async fn build(
        &self,
        text: usize,
        write: impl Fn(&mut dyn io::Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> Option<Built> {
        let write = Arc::new(write);
        let counts = write.clone();
        let count = move || {
            let mut size = Size(0);
            counts(&mut size).ok().map(|()| size.0)
        };
        let size = run_blocking(text, count).await?;
        let room = self.reserve(size).await;
        let build = move || {
            let mut bytes = Vec::with_capacity(size);
            write(&mut bytes).ok().map(|()| bytes)
        };
        Some((run_blocking(text, build).await?, room))
    }
}

/// Does work on a text, on another thread if the text is long.
async fn run_blocking<T: Send + 'static>(text: usize, work: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    match text > LARGE_TEXT_BYTES {
        true => tokio::task::spawn_blocking(work).await.ok().flatten(),
        false => work(),
    }
}

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
        match self.0 as u64 > MAX_RESPONSE_BYTES {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(part.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The answer that `write` makes of a report. If that is too large, the answer is a fault that says so.
pub async fn of_report(
    payer: Payer,
    report: Report,
    write: impl Fn(&Report, &mut dyn io::Write) -> io::Result<()> + Send + Sync + Clone + 'static,
) -> Option<Built> {
    let text = report.output_data.as_ref().map_or(0, |output| output.as_str().len());
    let (report, writes) = (Arc::new(report), write.clone());
    let read = report.clone();
    match payer.build(text, move |to| writes(&read, to)).await {
        Some(built) => Some(built),
        None => {
            let mut refused = Arc::into_inner(report)?;
            (refused.success, refused.error, refused.output_data) = (false, Some(too_large(TOOL_ANSWER)), None);
            payer.build(0, move |to| write(&refused, to)).await
        }
    }
}

/// Why `what` is not sent.
pub fn too_large(what: &str) -> Fault {
    Fault::new(Kind::ResourceLimitError, format!("{what} is larger than {MAX_RESPONSE_BYTES} bytes: request less."))
}

/// The answer of a call.
pub const TOOL_ANSWER: &str = "The tool ran, and its answer";
