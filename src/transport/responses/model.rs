//! The one model server that the operator names: what it may be asked for, and one turn of it.
//!
//! It is spoken to by Chat Completions. It is not trusted: its answer is bounded in bytes and time,
//! its own words in an error reach nobody but the run log, and the key is masked in whatever it
//! says.

use super::chat::{ChatReader, ModelTurn, Usage, wrong};
use crate::base::lock;
use crate::base::mask::Mask;
use crate::base::semaphore::{FairSemaphore, Permit};
use crate::egress::{PostError, Posted};
use crate::fault::{Fault, Kind};
use crate::service::endpoint::{Answered, Endpoint, EndpointError};
use http::header;
use http_body_util::BodyExt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long the server may send nothing.
const STALL: Duration = Duration::from_secs(120);
/// Runs at once: in all, of one principal.
const MAX_RUNS: usize = 64;
const MAX_RUNS_PER_PRINCIPAL: usize = 16;
/// Over which time the tokens of a caller are counted.
const HOUR: Duration = Duration::from_secs(3600);

/// What the operator says of the server.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Where chat completions are.
    pub endpoint: Endpoint,
    /// The models that a request may name.
    pub names: Vec<String>,
    pub bounds: Bounds,
}

/// What one run may take, and the runs of one principal in an hour.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Turns of the model.
    pub steps: u32,
    pub time: Duration,
    pub tokens: u64,
    pub tokens_per_hour: u64,
}

pub struct ModelServer {
    pub settings: ModelSettings,
    runs: Arc<FairSemaphore>,
    hours: Mutex<HashMap<String, Hour>>,
}

/// The tokens of one principal.
#[derive(Clone, Copy)]
struct Hour {
    since: Instant,
    spent: u64,
    /// What the turns that are asked for may still spend.
    reserved: u64,
}

impl Hour {
    fn begin() -> Hour {
        Hour {
            since: Instant::now(),
            spent: 0,
            reserved: 0,
        }
    }

    fn of<'a>(hours: &'a mut HashMap<String, Hour>, principal: &str) -> &'a mut Hour {
        let hour = hours.entry(principal.to_owned());
        hour.or_insert_with(Hour::begin)
    }

    fn taken(&self) -> u64 {
        self.spent.saturating_add(self.reserved)
    }
}

impl ModelServer {
    pub fn new(settings: ModelSettings) -> ModelServer {
        ModelServer {
            settings,
            runs: FairSemaphore::new(MAX_RUNS, MAX_RUNS_PER_PRINCIPAL),
            hours: Mutex::default(),
        }
    }

    /// Begins a run of a principal.
    pub fn enter(&self, principal: &str) -> Result<Permit, Fault> {
        let words = "Too many runs of a model are open.";
        self.runs
            .try_enter(principal, 1)
            .ok_or_else(|| Fault::new(Kind::RateLimitError, words).retryable())
    }

    /// Refuses a principal that has used up its hour.
    pub fn check_hour(&self, principal: &str) -> Result<(), Fault> {
        self.left(&mut lock(&self.hours), principal).map(drop)
    }

    /// What is left to a principal of its hour: at least one token.
    fn left(&self, hours: &mut HashMap<String, Hour>, principal: &str) -> Result<u64, Fault> {
        hours.retain(|_, hour| {
            if hour.since.elapsed() >= HOUR {
                *hour = Hour {
                    reserved: hour.reserved,
                    ..Hour::begin()
                };
            }
            hour.taken() > 0
        });
        let hour = hours.get(principal).copied().unwrap_or_else(Hour::begin);
        let limit = self.settings.bounds.tokens_per_hour;
        let left = limit.saturating_sub(hour.taken());
        if left > 0 {
            return Ok(left);
        }
        let words =
            format!("The {limit} tokens of this hour are used up, or reserved by open runs.");
        let wait = HOUR.saturating_sub(hour.since.elapsed());
        Err(Fault {
            // Nobody knows when a run gives back what it reserved.
            retry_after_ms: (hour.spent >= limit).then(|| crate::base::millis(wait)),
            ..Fault::new(Kind::RateLimitError, words).retryable()
        })
    }

    /// Reserves the answer of a turn: `output` tokens, or what is left of the hour.
    pub fn reserve(self: &Arc<Self>, principal: &str, output: u64) -> Result<Reserved, Fault> {
        let mut hours = lock(&self.hours);
        let output = output.min(self.left(&mut hours, principal)?);
        let hour = Hour::of(&mut hours, principal);
        hour.reserved = hour.reserved.saturating_add(output);
        Ok(Reserved {
            server: self.clone(),
            principal: principal.to_owned(),
            output,
            tokens: output,
            asked: 0,
            used: Usage::default(),
        })
    }

    /// Asks for one turn.
    pub async fn ask(&self, mut reserved: Reserved, body: String) -> Result<Answering, Fault> {
        reserved.ask(body.len() as u64);
        let endpoint = &self.settings.endpoint;
        let principal = reserved.principal.clone();
        let asked = timeout(STALL, endpoint.post(&principal, "model", body)).await;
        let Answered { posted, key } = asked.map_err(|_| stalled())?.map_err(|why| {
            if matches!(why, EndpointError::Unreached(PostError::Refused(_))) {
                reserved.used = Usage::default();
            }
            unreached(why)
        })?;
        let mut mask = Mask::default();
        if !key.is_empty() {
            mask.add(&key);
        }
        let filter = KeyFilter {
            key,
            ..KeyFilter::default()
        };
        let status = posted.answer.status();
        if !status.is_success() {
            reserved.used = Usage::default();
            let fault = wrong(&format!("answered {}", status.as_u16()));
            let is_busy = status.as_u16() == 429 || status.is_server_error();
            return Err(if is_busy { fault.retryable() } else { fault });
        }
        let kind = posted.answer.headers().get(header::CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        Ok(Answering {
            posted,
            reader: ChatReader::default(),
            whole: (!is_stream).then(Vec::new),
            mask,
            filter,
            text: String::new(),
            reserved,
        })
    }
}

/// The tokens that a turn may take, from before it is asked for. Dropped, it gives back all but
/// those of what was received: whoever leaves early has read it all the same.
pub struct Reserved {
    server: Arc<ModelServer>,
    principal: String,
    /// Most tokens of the answer.
    pub output: u64,
    /// All that is reserved.
    tokens: u64,
    /// Bytes of the request.
    asked: u64,
    used: Usage,
}

impl Reserved {
    /// Reserves what is asked as well. This may pass the hour, by one turn: how many tokens it is,
    /// a picture above all, only the server knows.
    fn ask(&mut self, bytes: u64) {
        self.asked = bytes;
        self.used.input = bytes / 3;
        self.tokens = self.tokens.saturating_add(self.used.input);
        let mut hours = lock(&self.server.hours);
        let hour = Hour::of(&mut hours, &self.principal);
        hour.reserved = hour.reserved.saturating_add(self.used.input);
    }

    /// A server that goes on far beyond what it was asked for is stopped. Bytes are a rough measure
    /// of tokens, so there is much room.
    fn check(&self, bytes: u64) -> Result<(), Fault> {
        if bytes <= self.output.saturating_mul(12).saturating_add(4096) {
            return Ok(());
        }
        let words = format!(
            "The model server sent far more than {} tokens.",
            self.output
        );
        Err(Fault::new(Kind::ResourceLimitError, words))
    }

    /// Counts what was received until now: by the server's word, and without it three bytes are a
    /// token.
    fn count(&mut self, said: Option<Usage>, bytes: u64) {
        let usage = said.unwrap_or(Usage {
            input: self.asked / 3,
            output: bytes / 3,
        });
        self.used = Usage {
            // No token is less than a byte.
            input: usage.input.min(self.asked),
            // It was asked for no more, but may have sent more.
            output: usage.output.min(self.output.max(bytes)),
        };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut hours = lock(&self.server.hours);
        let hour = Hour::of(&mut hours, &self.principal);
        hour.reserved = hour.reserved.saturating_sub(self.tokens);
        hour.spent = hour.spent.saturating_add(self.used.total());
    }
}

fn stalled() -> Fault {
    Fault::new(
        Kind::TimeoutError,
        "The model server said nothing for too long.",
    )
    .retryable()
}

fn unreached(error: EndpointError) -> Fault {
    match error {
        EndpointError::Key(why) => wrong("cannot be asked: its key cannot be used").person(why),
        other => wrong("cannot be reached").person(other.words()).retryable(),
    }
}

/// Hides the key in a text that is shown as it comes. The server has the key, and could write it in
/// any form: this is for a plain reflection, and holds back no more than what may become the key.
#[derive(Default)]
struct KeyFilter {
    /// ASCII, since it stands in a header.
    key: String,
    held: String,
}

impl KeyFilter {
    /// Takes the next piece, and returns what can be shown. `None`: the text is over.
    fn piece(&mut self, text: Option<&str>) -> String {
        let mut all = std::mem::take(&mut self.held) + text.unwrap_or_default();
        if self.key.is_empty() {
            return all;
        }
        all = all.replace(&self.key, "***");
        let may_become = |length: &usize| all.ends_with(&self.key[..*length]);
        let held = (1..self.key.len()).rev().find(may_become);
        let held = held.filter(|_| text.is_some()).unwrap_or_default();
        self.held = all.split_off(all.len() - held);
        all
    }
}

/// A turn that is being answered.
pub struct Answering {
    posted: Posted,
    reader: ChatReader,
    /// The bytes of an answer that is not a stream.
    whole: Option<Vec<u8>>,
    mask: Mask,
    filter: KeyFilter,
    /// What was handed out.
    text: String,
    reserved: Reserved,
}

/// Longest answer that is not a stream, bytes.
const MAX_WHOLE_BYTES: usize = 8 * 1024 * 1024;

impl Answering {
    /// The next text of the model, perhaps empty. `None`: the turn is over.
    pub async fn next(&mut self) -> Result<Option<String>, Fault> {
        if self.reader.is_over() {
            return Ok(None);
        }
        let frame = timeout(STALL, self.posted.answer.body_mut().frame());
        let Some(frame) = frame.await.map_err(|_| stalled())? else {
            return Ok(None);
        };
        let frame = frame.map_err(|why| wrong("broke off").person(why.to_string()))?;
        let Ok(bytes) = frame.into_data() else {
            return Ok(Some(String::new()));
        };
        let new = match &mut self.whole {
            None => self.reader.push(&bytes),
            Some(whole) if whole.len() + bytes.len() > MAX_WHOLE_BYTES => {
                Err(wrong("sent more than one turn may have"))
            }
            Some(whole) => {
                whole.extend_from_slice(&bytes);
                Ok(String::new())
            }
        };
        self.count();
        self.reserved.check(self.held() as u64)?;
        Ok(Some(self.shown(Some(&new?))))
    }

    /// The bytes that are held of what was received.
    pub fn held(&self) -> usize {
        self.whole.as_ref().map_or(0, Vec::len) + self.reader.said()
    }

    fn count(&mut self) {
        let bytes = self.held() as u64;
        self.reserved.count(self.reader.usage(), bytes);
    }

    /// The tokens of what was received until now.
    pub fn usage(&self) -> Usage {
        self.reserved.used
    }

    fn shown(&mut self, text: Option<&str>) -> String {
        let shown = self.filter.piece(text);
        self.text.push_str(&shown);
        shown
    }

    /// The last of the text, where the turn does not end well.
    pub fn rest(mut self) -> String {
        self.shown(None)
    }

    /// The turn, and the last of its text.
    pub async fn finish(&mut self) -> Result<(ModelTurn, String), Fault> {
        let mut last = String::new();
        if let Some(whole) = self.whole.take() {
            let mut reader = std::mem::take(&mut self.reader);
            let read = tokio::task::spawn_blocking(move || {
                let mut new = String::new();
                reader.take(&whole, &mut new).map(|()| (reader, new))
            });
            let read = read
                .await
                .map_err(|why| wrong("cannot be read").person(why.to_string()))?;
            let (reader, new) = read?;
            self.reader = reader;
            self.count();
            last = self.shown(Some(&new));
        }
        let mut turn = std::mem::take(&mut self.reader).finish()?;
        last += &self.shown(None);
        turn.text = std::mem::take(&mut self.text);
        for call in &mut turn.calls {
            call.arguments = self.mask.text(&call.arguments);
            call.name = self.mask.text(&call.name);
        }
        Ok((turn, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hidden_however_it_is_cut_and_nothing_else_waits() {
        let key = "sk-0123456789".to_owned();
        let text = "a sk-0123 sk-0123456789sk-0123456789, sk-01234567";
        for length in [1, 3, 100] {
            let mut filter = KeyFilter {
                key: key.clone(),
                ..KeyFilter::default()
            };
            let pieces = text.as_bytes().chunks(length);
            let mut shown = String::new();
            for piece in pieces {
                shown += &filter.piece(std::str::from_utf8(piece).ok());
                assert!(filter.held.is_empty() || key.starts_with(&filter.held));
            }
            shown += &filter.piece(None);
            assert_eq!(shown, "a sk-0123 ******, sk-01234567");
        }
    }
}
