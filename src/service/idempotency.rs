//! Idempotency: a request that its caller sends twice under one key runs once; the second gets the outcome of the
//! first.

use super::quota::Limiter;
use super::report::Report;
use crate::base::semaphore::Permit;
use crate::base::{lock, sha256_hex};
use crate::fault::{Fault, Kind};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

const RESULT_TTL: Duration = Duration::from_secs(600);
/// Longest key, bytes.
const MAX_KEY_BYTES: usize = 255;
/// About what a key and its outcome take beside the outcome's texts, bytes.
const OUTCOME: usize = 4096;

/// By caller and key: the digest of the request, and its outcome.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<Name, (String, Outcome)>>);

type Name = (String, String);

/// The outcome of the first call under a key, once it is over.
type Outcome = watch::Receiver<Option<Arc<Report>>>;

pub(super) enum KeyState {
    /// This call is the first, and provides the outcome for the others.
    First(KeyPlace),
    Open(Outcome),
    Ended(Arc<Report>),
}

/// The place of the first call under a key. Once it is dropped, the key is free again.
#[derive(Debug)]
pub(super) struct KeyPlace {
    keys: Arc<Keys>,
    name: Name,
    outcome: watch::Sender<Option<Arc<Report>>>,
    bytes: Permit,
}

/// Tool, version and arguments as one digest, whatever the order of members.
pub(super) fn digest(tool: &str, input: &Value, timeout_ms: Option<u64>) -> String {
    let mut whole = serde_json::json!([tool, input, timeout_ms]);
    whole.sort_all_objects();
    sha256_hex(whole.to_string().as_bytes())
}

/// Refuses a malformed key.
pub fn check_key(key: &str) -> Result<(), Fault> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(());
    }
    let message = format!("An idempotency key is 1 to {MAX_KEY_BYTES} characters of ASCII without spaces.");
    Err(Fault::new(Kind::ParameterValidationError, message))
}

impl Keys {
    /// Takes the place under a key, or returns the state of the first request under it.
    pub fn find(
        self: &Arc<Self>,
        limiter: &Limiter,
        (caller, principal): (&str, &str),
        key: &str,
        asked: String,
    ) -> Result<KeyState, Fault> {
        check_key(key)?;
        let name = (caller.to_owned(), key.to_owned());
        let mut known = lock(&self.0);
        if let Some((earlier, outcome)) = known.get(&name) {
            if *earlier != asked {
                let message = "This idempotency key was used for another request: make a new key for a new request.";
                return Err(Fault::new(Kind::ParameterValidationError, message).conflict());
            }
            let ended = outcome.borrow().clone();
            return Ok(ended.map_or_else(|| KeyState::Open(outcome.clone()), KeyState::Ended));
        }
        let full = || Fault::new(Kind::RateLimitError, "Too many idempotency keys are kept.").retry_after(RESULT_TTL);
        let bytes = limiter.outcomes.try_enter(principal, OUTCOME).ok_or_else(full)?;
        let (sender, outcome) = watch::channel(None);
        known.insert(name.clone(), (asked, outcome));
        Ok(KeyState::First(KeyPlace { keys: self.clone(), name, outcome: sender, bytes }))
    }
}

impl KeyPlace {
    /// Keeps the outcome of a call whose tool ran.
    pub fn keep(mut self, report: &Report) {
        // The size as JSON, and the texts for the person.
        let words = report.error.iter().flat_map(|fault| fault.person.iter().chain(&fault.flaws)).map(String::len);
        let bytes = OUTCOME + serde_json::to_vec(report).map_or(0, |json| json.len()) + words.sum::<usize>();
        let report = match self.bytes.resize(bytes) {
            true => Report { slot: None, questions: None, ..report.clone() },
            false => {
                let words = "This call ran under its idempotency key, and there was no room to keep its outcome.";
                Report::of_fault(report.id.clone(), &report.tool, Fault::new(Kind::ResourceLimitError, words))
            }
        };
        self.outcome.send_replace(Some(Arc::new(report)));
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    tokio::time::sleep(RESULT_TTL).await;
                    drop(self);
                });
            }
            // This host ends: what ran under the key never runs again.
            Err(_) => std::mem::forget(self),
        }
    }
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        lock(&self.keys.0).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn outcomes_are_kept_for_their_time_and_within_their_quota() {
        let one = digest("t", &json!({"a": [1, {"b": 2, "c": 3}], "d": 4}), None);
        assert_eq!(one, digest("t", &json!({"d": 4, "a": [1, {"c": 3, "b": 2}]}), None));
        assert_ne!(one, digest("t", &json!({"d": 4, "a": [{"c": 3, "b": 2}, 1]}), None));
        let keys = Arc::<Keys>::default();
        let limiter = Limiter::new(1, 1);
        let find = |caller: &str, key: &str| keys.find(&limiter, (caller, "p"), key, "x".to_owned());
        let first = |key: &str| match find("a", key).expect("room") {
            KeyState::First(place) => place,
            _ => panic!("{key} is not the first"),
        };
        first("large").keep(&Report { logs: vec!["x".repeat(limiter.outcomes.each)], ..Report::default() });
        let Ok(KeyState::Ended(report)) = find("a", "large") else { panic!("it ran, and is not run again") };
        assert_eq!(report.error.as_ref().map(|fault| fault.kind), Some(Kind::ResourceLimitError));
        let held: Vec<_> = (0..).map(|n| find(&format!("label {n}"), "k")).map_while(Result::ok).collect();
        assert!(
            held.len() > 1000 && keys.find(&limiter, ("a", "q"), "other", String::new()).is_ok(),
            "whatever names it brings"
        );
        drop(held);
        tokio::time::sleep(2 * RESULT_TTL).await;
        drop(first("large"));
    }
}
