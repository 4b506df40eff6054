//! Idempotency: a request that its caller sends twice under one key runs once; the second gets the outcome of the first.

use super::quota::Clock;
use super::report::Report;
use crate::base::places::Claim;
use crate::base::shares::{IN_USE, Shares};
use crate::base::{lock, sha256_hex};
use crate::fault::{Fault, Kind};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How long an outcome is kept.
const KEPT: Duration = Duration::from_secs(600);
/// Longest key, bytes.
const LONGEST: usize = 255;
/// About what a key and its outcome take beside what is told of it, bytes.
const OUTCOME: usize = 4096;
/// Bytes of all outcomes, and of those of one principal.
const OUTCOMES: [usize; 2] = [64 * 1024 * 1024, 16 * 1024 * 1024];

/// The requests that came under a key, by their caller and that key.
#[derive(Debug, Default)]
pub(super) struct Keys {
    clock: Clock,
    known: Mutex<Shares<Name, Slot>>,
}

type Name = (String, String);

#[derive(Debug)]
struct Slot {
    /// Digest of what was asked.
    asked: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Open(watch::Receiver<()>),
    Ended(Arc<Report>),
}

/// What a key leads to.
pub(super) enum KeyState {
    /// This call is the first, and owes the others its outcome.
    First(Place),
    Ended(Arc<Report>),
    /// The first one is under way.
    Open(watch::Receiver<()>),
}

/// The place of the first call under a key. Dropped before the tool ran, the key is free again.
#[derive(Debug)]
pub(super) struct Place {
    keys: Arc<Keys>,
    name: Name,
    principal: String,
    /// The call's id and tool, once something runs.
    ran: Option<(String, String)>,
    _open: watch::Sender<()>,
}

/// Tool, version and arguments as one digest, whatever the order of members.
pub(super) fn digest(tool: &str, input: &Value, timeout_ms: Option<u64>) -> String {
    sha256_hex(serde_json::json!([tool, sorted(input), timeout_ms]).to_string().as_bytes())
}

/// Members in order of name.
pub(super) fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().collect())
        }
        plain => plain.clone(),
    }
}

/// Refuses what is no key.
pub fn check_key(key: &str) -> Result<(), Fault> {
    match (1..=LONGEST).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(()),
        false => {
            let message = format!("An idempotency key is 1 to {LONGEST} characters of ASCII without spaces.");
            Err(Fault::new(Kind::ParameterValidationError, message))
        }
    }
}

impl Keys {
    /// The place of a request, or what became of the first that came under its key.
    pub fn find(
        self: &Arc<Self>,
        (caller, principal): (&str, &str),
        key: &str,
        asked: String,
    ) -> Result<KeyState, Fault> {
        check_key(key)?;
        let name = (caller.to_owned(), key.to_owned());
        let now = self.clock.now();
        let mut known = lock(&self.known);
        let stands = known.until(&name).is_some_and(|until| until > now);
        if let Some(slot) = known.get(&name).filter(|_| stands) {
            if slot.asked != asked {
                let message = "This idempotency key stands for another request: make a new key for a new request.";
                return Err(Fault::new(Kind::ParameterValidationError, message).conflict());
            }
            return Ok(match &slot.state {
                State::Open(ends) => KeyState::Open(ends.clone()),
                State::Ended(report) => KeyState::Ended(report.clone()),
            });
        }
        let (open, ends) = watch::channel(());
        let slot = Slot { asked, state: State::Open(ends) };
        known
            .put(now, name.clone(), (claim(principal), OUTCOME), IN_USE, slot)
            .map_err(|_| Fault::new(Kind::RateLimitError, "Too many idempotency keys are kept.").retry_after(KEPT))?;
        Ok(KeyState::First(Place { keys: self.clone(), name, principal: principal.to_owned(), ran: None, _open: open }))
    }
}

fn claim(principal: &str) -> Claim {
    let [all, own] = OUTCOMES;
    vec![(String::new(), all), (format!("principal {principal}"), own)]
}

/// How long a report is as JSON, with the words for the person.
fn size(report: &Report) -> usize {
    let fault = report.error.iter().flat_map(|fault| fault.person.iter().chain(&fault.flaws));
    serde_json::to_vec(report).map_or(0, |json| json.len()) + fault.map(String::len).sum::<usize>()
}

impl Place {
    /// From here on something may have been done.
    pub fn runs(&mut self, id: &str, tool: &str) {
        self.ran = Some((id.to_owned(), tool.to_owned()));
    }

    pub fn did_not_run(&mut self) {
        self.ran = None;
    }

    /// The call ended: its outcome is kept if the tool ran.
    pub fn ended(mut self, report: &Report) {
        if self.ran.is_some() {
            self.keep(Report { turn: None, ..report.clone() });
        }
    }

    fn keep(&mut self, report: Report) {
        let Some((id, tool)) = self.ran.take() else { return };
        let (bytes, now) = (OUTCOME + size(&report), self.keys.clock.now());
        let mut known = lock(&self.keys.known);
        let fits = known.charge(now, &self.name, (claim(&self.principal), bytes), IN_USE);
        let report = if fits {
            report
        } else {
            let words = "This call ran under its idempotency key, and its outcome was too large to be kept.";
            Report::of_fault(id, &tool, Fault::new(Kind::ResourceLimitError, words))
        };
        known.keep(&self.name, now + KEPT);
        if let Some(slot) = known.get_mut(&self.name) {
            slot.state = State::Ended(Arc::new(report));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((id, tool)) = self.ran.clone() {
            let words = "The call under this idempotency key was cancelled while it ran; how far it came is not known. \
                         Make a new key to run it again.";
            return self.keep(Report::of_fault(id, &tool, Fault::new(Kind::CancelledError, words)));
        }
        let mut known = lock(&self.keys.known);
        if known.get(&self.name).is_some_and(|slot| matches!(slot.state, State::Open(_))) {
            known.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn first(keys: &Arc<Keys>, caller: &str, key: &str) -> Place {
        match keys.find((caller, caller), key, "x".to_owned()).expect("room") {
            KeyState::First(place) => place,
            _ => panic!("{caller} {key} is not the first"),
        }
    }

    fn ended(mut place: Place, bytes: usize) {
        place.runs("1", "t");
        let mut report = Report::of_fault("1".into(), "t", Fault::new(Kind::ScriptError, "f"));
        report.logs = vec!["x".repeat(bytes)];
        place.ended(&report);
    }

    #[test]
    fn a_digest_is_of_what_is_asked_in_any_order() {
        let one = digest("t", &json!({"a": [1, {"b": 2, "c": 3}], "d": 4}), None);
        assert_eq!(one, digest("t", &json!({"d": 4, "a": [1, {"c": 3, "b": 2}]}), None));
        assert_ne!(one, digest("t", &json!({"d": 4, "a": [{"c": 3, "b": 2}, 1]}), None));
        assert_ne!(one, digest("u", &json!({"a": [1, {"b": 2, "c": 3}], "d": 4}), None));
    }

    #[test]
    fn outcomes_are_kept_for_their_time_and_within_their_quota() {
        let (clock, pass) = Clock::standing();
        let keys = Arc::new(Keys { clock, known: Mutex::default() });
        ended(first(&keys, "a", "k"), 10);
        let kept = |caller: &str, key: &str| match keys.find((caller, caller), key, "x".to_owned()) {
            Ok(KeyState::Ended(report)) => report.error.as_ref().map(|fault| fault.kind),
            _ => None,
        };
        assert_eq!(kept("a", "k"), Some(Kind::ScriptError));
        let other = keys.find(("a", "a"), "k", "y".to_owned());
        assert!(other.is_err_and(|fault| fault.kind == Kind::ParameterValidationError));
        drop(first(&keys, "b", "k"));
        drop(first(&keys, "b", "k"));
        ended(first(&keys, "a", "large"), 16 * 1024 * 1024);
        assert_eq!(kept("a", "large"), Some(Kind::ResourceLimitError), "it ran, and is not run again");
        let mut place = first(&keys, "a", "left");
        place.runs("1", "t");
        drop(place);
        assert_eq!(kept("a", "left"), Some(Kind::CancelledError));
        let brought = |n: usize| keys.find((&format!("label {n}"), "a"), "k", "x".to_owned());
        let held: Vec<_> = (0..).map(brought).map_while(Result::ok).collect();
        assert!(held.len() > 1000 && brought(0).is_ok(), "whatever names it brings");
        drop(first(&keys, "b", "k"));
        drop(held);
        pass(KEPT);
        drop(first(&keys, "a", "k"));
    }
}
