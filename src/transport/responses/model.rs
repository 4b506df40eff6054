//! The one model server that the operator names: what it may be asked for, and one turn of it.
//!
//! It is spoken to by Chat Completions. It is not trusted: its answer is bounded in bytes and time,
//! its own words in an error reach nobody but the run log, and the key is masked in whatever it
//! says.

use super::chat::{ChatReader, ModelTurn, Usage, wrong};
use crate::base::lock;
use crate::base::mask::Mask;
use crate::base::semaphore::{FairSemaphore, Permit};
use crate::egress::{self, Dialler, PostError, Posted};
use crate::fault::{Fault, Kind};
use crate::manifest::host::HostPattern;
use crate::policy::{CallbackUrl, HostGrant, SecretSource};
use crate::service;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use ipnet::IpNet;
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
    pub url: CallbackUrl,
    /// The models that a request may name.
    pub names: Vec<String>,
    pub key: Option<SecretSource>,
    /// The non-public addresses that its host may have.
    pub ranges: Vec<IpNet>,
    pub proxy: Option<String>,
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
    /// Tokens of each principal, since when.
    spent: Mutex<HashMap<String, (Instant, u64)>>,
}

impl ModelServer {
    pub fn new(settings: ModelSettings) -> ModelServer {
        ModelServer {
            settings,
            runs: FairSemaphore::new(MAX_RUNS, MAX_RUNS_PER_PRINCIPAL),
            spent: Mutex::default(),
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
        let mut spent = lock(&self.spent);
        spent.retain(|_, (since, _)| since.elapsed() < HOUR);
        let limit = self.settings.bounds.tokens_per_hour;
        match spent.get(principal) {
            Some((since, tokens)) if *tokens >= limit => {
                let words = format!("The {limit} tokens of this hour are used up.");
                let left = HOUR.saturating_sub(since.elapsed());
                let fault = Fault::new(Kind::RateLimitError, words).retryable();
                Err(Fault {
                    retry_after_ms: Some(crate::base::millis(left)),
                    ..fault
                })
            }
            _ => Ok(()),
        }
    }

    pub fn spend(&self, principal: &str, tokens: u64) {
        let mut spent = lock(&self.spent);
        let (_, sum) = spent
            .entry(principal.to_owned())
            .or_insert_with(|| (Instant::now(), 0));
        *sum = sum.saturating_add(tokens);
    }

    /// Asks for one turn.
    pub async fn ask(&self, principal: &str, body: String) -> Result<Answering, Fault> {
        let ModelSettings {
            url,
            key,
            ranges,
            proxy,
            ..
        } = &self.settings;
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let mut mask = Mask::default();
        let mut filter = KeyFilter::default();
        if let Some(from) = key {
            let key = service::credential(from.clone())
                .await
                .map_err(|why| wrong("cannot be asked: its key cannot be read").person(why))?;
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| wrong("cannot be asked: its key cannot stand in a header"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
            mask.add(&key);
            filter.key = key;
        }
        let grant = HostGrant {
            pattern: HostPattern {
                host: url.host.clone(),
                port: Some(url.port),
            },
            ranges: ranges.clone(),
            asked: String::new(),
            rule: "[model]".to_owned(),
            why: "the model server".to_owned(),
        };
        let dialler = Dialler {
            payer: [principal.to_owned(), "model".to_owned()],
            grants: vec![grant],
            headers: Vec::new(),
            proxy: proxy.clone(),
        };
        let asked = body.len();
        let posted = timeout(STALL, egress::post(&dialler, url, headers, body.into()))
            .await
            .map_err(|_| stalled())?
            .map_err(unreached)?;
        let status = posted.answer.status();
        if !status.is_success() {
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
            asked,
        })
    }
}

fn stalled() -> Fault {
    Fault::new(
        Kind::TimeoutError,
        "The model server said nothing for too long.",
    )
    .retryable()
}

fn unreached(error: PostError) -> Fault {
    let person = match error {
        PostError::Refused(refusal) => refusal
            .detail()
            .map_or_else(|| refusal.to_string(), str::to_owned),
        PostError::Broken(why) => why,
    };
    wrong("cannot be reached").person(person).retryable()
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
    asked: usize,
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
            None => self.reader.push(&bytes)?,
            Some(whole) if whole.len() + bytes.len() > MAX_WHOLE_BYTES => {
                return Err(wrong("sent more than one turn may have"));
            }
            Some(whole) => {
                whole.extend_from_slice(&bytes);
                String::new()
            }
        };
        Ok(Some(self.shown(Some(&new))))
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
            last = self.shown(Some(&new));
        }
        let mut turn = std::mem::take(&mut self.reader).finish()?;
        last += &self.shown(None);
        turn.text = std::mem::take(&mut self.text);
        for call in &mut turn.calls {
            call.arguments = self.mask.text(&call.arguments);
            call.name = self.mask.text(&call.name);
        }
        let said = turn.calls.iter().map(|call| call.arguments.len());
        let said = turn.text.len() + said.sum::<usize>();
        // Without the server's word, three bytes are a token; and no token is less than a byte.
        let usage = turn.usage.unwrap_or(Usage {
            input: (self.asked / 3) as u64,
            output: (said / 3) as u64,
        });
        turn.usage = Some(Usage {
            input: usage.input.min(self.asked as u64),
            ..usage
        });
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
