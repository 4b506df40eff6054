//! Idempotency: a request that its caller sends twice under one key runs once.
//!
//! For: the road. In: a caller, a key, what is asked. Out: the first's place, or its outcome. Never: gives one request the
//! outcome of another; forgets, before its time, that something ran.

use super::rates::Clock;
use super::report::Report;
use crate::base::{lock, sha256_hex};
use crate::fault::{Fault, Kind};
use serde_json::Value;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How long an outcome is kept.
const KEPT: Duration = Duration::from_secs(600);
/// Most keys, and most bytes of their outcomes; a quarter of each for one caller, half for one who authenticated.
const KEYS: usize = 10_000;
const BYTES: usize = 64 * 1024 * 1024;
/// Longest key, bytes.
const LONGEST: usize = 255;
/// About what an outcome takes beside what is told of it, bytes.
const OUTCOME: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Keys {
    clock: Clock,
    known: Mutex<HashMap<Name, Slot>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    caller: String,
    key: String,
}

#[derive(Debug)]
struct Slot {
    /// Who authenticated.
    through: String,
    /// Digest of what was asked.
    asked: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Open(watch::Receiver<()>),
    Ended { report: Arc<Report>, bytes: usize, at: Duration },
}

/// What a key leads to.
pub(super) enum Found {
    /// This call is the first, and owes the others its outcome.
    First(Place),
    Kept(Arc<Report>),
    /// The first one is under way.
    Open(watch::Receiver<()>),
}

/// The place of the first call under a key. Dropped before the tool ran, the key is free again.
#[derive(Debug)]
pub(super) struct Place {
    keys: Arc<Keys>,
    name: Name,
    /// Who authenticated.
    through: String,
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

impl Keys {
    /// The place of a request, or what became of the first that came under its key.
    pub fn find(self: &Arc<Self>, (caller, through): (&str, &str), key: &str, asked: String) -> Result<Found, Fault> {
        if key.is_empty() || key.len() > LONGEST || !key.bytes().all(|b| b.is_ascii_graphic()) {
            let message = format!("An idempotency key is 1 to {LONGEST} characters of ASCII without spaces.");
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        let name = Name { caller: caller.to_owned(), key: key.to_owned() };
        let now = self.clock.time();
        let mut known = lock(&self.known);
        known.retain(|_, slot| !matches!(slot.state, State::Ended { at, .. } if now.saturating_sub(at) >= KEPT));
        if let Some(slot) = known.get(&name) {
            if slot.asked != asked {
                let message = "This idempotency key stands for another request: make a new key for a new request.";
                return Err(Fault::new(Kind::ParameterValidationError, message).conflict());
            }
            return Ok(match &slot.state {
                State::Open(ends) => Found::Open(ends.clone()),
                State::Ended { report, .. } => Found::Kept(report.clone()),
            });
        }
        let own = known.keys().filter(|name| name.caller == caller).count();
        let brought = known.values().filter(|slot| slot.through == through).count();
        if own >= KEYS / 4 || brought >= KEYS / 2 || known.len() >= KEYS {
            let message = "Too many idempotency keys are kept.";
            return Err(Fault::new(Kind::RateLimitError, message).retry_after(KEPT));
        }
        let (open, ends) = watch::channel(());
        known.insert(name.clone(), Slot { through: through.to_owned(), asked, state: State::Open(ends) });
        Ok(Found::First(Place { keys: self.clone(), name, through: through.to_owned(), ran: None, _open: open }))
    }
}

/// How long a report is as JSON, with the words for the person.
fn size(report: &Report) -> usize {
    #[derive(Default)]
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length::default();
    // A counter takes everything.
    let _ = serde_json::to_writer(&mut length, report);
    let fault = report.error.iter().flat_map(|fault| fault.person.iter().chain(&fault.flaws));
    length.0 + fault.map(String::len).sum::<usize>()
}

impl Place {
    /// From here on something may have been done.
    pub fn runs(&mut self, id: &str, tool: &str) {
        self.ran = Some((id.to_owned(), tool.to_owned()));
    }

    /// The call ended: its outcome is kept if the tool ran.
    pub fn ended(mut self, report: &Report) {
        if self.ran.is_some() {
            self.keep(Report { turn: None, ..report.clone() });
        }
    }

    fn keep(&mut self, report: Report) {
        let Some((id, tool)) = self.ran.take() else { return };
        let bytes = OUTCOME + size(&report);
        let mut known = lock(&self.keys.known);
        let sum = |own: &dyn Fn(&Name, &Slot) -> bool| -> usize {
            let slots = known.iter().filter(|(name, slot)| own(name, slot));
            slots.map(|(_, slot)| if let State::Ended { bytes, .. } = slot.state { bytes } else { 0 }).sum()
        };
        let fits = sum(&|_, _| true) + bytes <= BYTES
            && sum(&|_, slot| slot.through == self.through) + bytes <= BYTES / 2
            && sum(&|name, _| name.caller == self.name.caller) + bytes <= BYTES / 4;
        let (report, bytes) = match fits {
            true => (report, bytes),
            false => {
                let words = "This call ran under its idempotency key, and its outcome was too large to be kept.";
                (Report::of_fault(id, &tool, Fault::new(Kind::ResourceLimitError, words)), OUTCOME)
            }
        };
        if let Some(slot) = known.get_mut(&self.name) {
            slot.state = State::Ended { report: Arc::new(report), bytes, at: self.keys.clock.time() };
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
            Found::First(place) => place,
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
    fn everything_of_an_outcome_is_counted() {
        let mut report = Report::of_fault("1".into(), "t", Fault::new(Kind::ScriptError, "f"));
        let (small, text) = (size(&report), "x".repeat(1000));
        let grown = |what: &str, report: &Report| assert!(size(report) >= small + 1000, "{what}: {}", size(report));
        let artifact = crate::executor::Artifact {
            path: text.clone(),
            bytes: 1,
            published: true,
            dropped_because: None,
            failed: false,
            over: None,
        };
        grown("files", &Report { artifacts: vec![artifact], ..report.clone() });
        grown("notes", &Report { notes: vec![text.clone()], ..report.clone() });
        grown("logs", &Report { logs: vec![text.clone()], ..report.clone() });
        grown("output", &Report { output_data: Some((&json!(text)).into()), ..report.clone() });
        let denials = crate::executor::Denials { not_observed: vec![text.clone()], ..Default::default() };
        grown("denials", &Report { denials, ..report.clone() });
        let fault = report.error.take().expect("a fault");
        grown("details", &Report { error: Some(fault.clone().details(&text)), ..report.clone() });
        grown("person", &Report { error: Some(fault.person(&text)), ..report });
    }

    #[test]
    fn outcomes_are_kept_for_their_time_and_within_their_room() {
        let (clock, pass) = Clock::standing();
        let keys = Arc::new(Keys { clock, known: Mutex::default() });
        ended(first(&keys, "a", "k"), 10);
        let kept = |caller: &str, key: &str| match keys.find((caller, caller), key, "x".to_owned()) {
            Ok(Found::Kept(report)) => report.error.as_ref().map(|fault| fault.kind),
            _ => None,
        };
        assert_eq!(kept("a", "k"), Some(Kind::ScriptError));
        assert!(
            keys.find(("a", "a"), "k", "y".to_owned()).is_err_and(|fault| fault.kind == Kind::ParameterValidationError)
        );
        drop(first(&keys, "b", "k"));
        drop(first(&keys, "b", "k"));
        ended(first(&keys, "a", "large"), BYTES / 4);
        assert_eq!(kept("a", "large"), Some(Kind::ResourceLimitError), "it ran, and is not run again");
        let mut place = first(&keys, "a", "left");
        place.runs("1", "t");
        drop(place);
        assert_eq!(kept("a", "left"), Some(Kind::CancelledError));
        let held: Vec<Place> = (0..KEYS / 4 - 3).map(|n| first(&keys, "a", &n.to_string())).collect();
        assert!(keys.find(("a", "a"), "more", "x".to_owned()).is_err_and(|fault| fault.kind == Kind::RateLimitError));
        drop(first(&keys, "b", "k"));
        drop(held);
        let brought = |n: usize| keys.find((&format!("label {n}"), "gateway"), "k", "x".to_owned());
        let held: Vec<_> = (0..KEYS / 2).map(|n| brought(n).expect("room")).collect();
        assert!(brought(KEYS).is_err_and(|fault| fault.kind == Kind::RateLimitError), "whatever names it brings");
        drop(first(&keys, "b", "k"));
        drop(held);
        pass(KEPT);
        drop(first(&keys, "a", "k"));
    }
}
