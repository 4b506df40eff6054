//! The circuit breaker: a tool that keeps failing for a caller is not called for that one for a while.
//!
//! For: the road. In: a caller and what it calls; how its calls end. Out: an attempt, or how long to wait. Never: lets the
//! failures of one caller hold back another; counts what the caller or a policy did wrong.

use super::rates::Clock;
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::policy::Breaker;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most pairs of caller and tool that are remembered; the one that changed longest ago is forgotten first, of one who
/// authenticated its own once it has half of them.
const PAIRS: usize = 10_000;
/// While the one call that tries again runs, the others are told to wait so long.
const PROBING: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Breakers {
    clock: Clock,
    known: Mutex<HashMap<Pair, State>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pair {
    caller: String,
    tool: String,
}

#[derive(Debug)]
struct State {
    /// In a row.
    failures: u32,
    /// Who authenticated when it failed first.
    through: String,
    /// Calls are held back until then.
    until: Option<Duration>,
    /// One call is trying again.
    probing: bool,
    changed: Duration,
}

/// The breaker of one caller and tool that has failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerState {
    pub caller: String,
    pub tool: String,
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    pub failures: u32,
    /// When one call may try again.
    pub retry_after_ms: Option<u64>,
}

/// One call that was let through. Dropped without an end it counts as nothing.
#[derive(Debug)]
pub(super) struct Attempt {
    breakers: Arc<Breakers>,
    pair: Pair,
    through: String,
    rule: Breaker,
    probe: bool,
}

impl Breakers {
    #[cfg(test)]
    fn new(clock: Clock) -> Breakers {
        Breakers { clock, known: Mutex::default() }
    }

    /// Lets a call through, or refuses it. `through`: who authenticated. `tool`: what runs.
    pub fn enter(
        self: &Arc<Self>,
        (caller, through): (&str, &str),
        tool: &str,
        rule: Breaker,
    ) -> Result<Attempt, Fault> {
        let pair = Pair { caller: caller.to_owned(), tool: tool.to_owned() };
        let now = self.clock.time();
        let mut probe = false;
        if let Some(state) = lock(&self.known).get_mut(&pair)
            && let Some(until) = state.until
        {
            let left = until.saturating_sub(now);
            if state.probing || !left.is_zero() {
                return Err(open(tool, state.failures, if left.is_zero() { PROBING } else { left }));
            }
            state.probing = true;
            probe = true;
        }
        Ok(Attempt { breakers: self.clone(), pair, through: through.to_owned(), rule, probe })
    }

    /// The breakers with failures, of one caller or of all.
    pub fn states(&self, caller: Option<&str>) -> Vec<BreakerState> {
        let now = self.clock.time();
        let known = lock(&self.known);
        let shown = known.iter().filter(|(pair, _)| caller.is_none_or(|caller| pair.caller == caller));
        let mut states: Vec<BreakerState> = shown
            .map(|(pair, state)| {
                let left = state.until.map(|until| until.saturating_sub(now));
                BreakerState {
                    caller: pair.caller.clone(),
                    tool: pair.tool.clone(),
                    state: match left {
                        None => "closed",
                        Some(left) if left.is_zero() => "half-open",
                        Some(_) => "open",
                    },
                    failures: state.failures,
                    retry_after_ms: left.map(crate::base::millis),
                }
            })
            .collect();
        states.sort_by(|a, b| (&a.tool, &a.caller).cmp(&(&b.tool, &b.caller)));
        states
    }
}

fn open(tool: &str, failures: u32, wait: Duration) -> Fault {
    let seconds = wait.as_millis().div_ceil(1000);
    let message =
        format!("Circuit breaker open for {tool}: its last {failures} calls failed. Try again in {seconds} s.");
    Fault::new(Kind::CircuitOpenError, message).retry_after(wait)
}

impl Attempt {
    /// How the call ended: `None`: well.
    pub fn ended(self, fault: Option<&Fault>) {
        let now = self.breakers.clock.time();
        let mut known = lock(&self.breakers.known);
        match fault {
            // A call that began before the breaker opened does not close it.
            None if self.probe || known.get(&self.pair).is_some_and(|state| state.until.is_none()) => {
                known.remove(&self.pair);
            }
            Some(fault) if counts(fault) => {
                if !known.contains_key(&self.pair) && known.len() >= PAIRS {
                    let many = known.values().filter(|state| state.through == self.through).count() >= PAIRS / 2;
                    let own = known.iter().filter(|(_, state)| !many || state.through == self.through);
                    let oldest = own.min_by_key(|(_, state)| state.changed).map(|(pair, _)| pair.clone());
                    oldest.and_then(|pair| known.remove(&pair));
                }
                let fresh =
                    State { through: self.through.clone(), failures: 0, until: None, probing: false, changed: now };
                let state = known.entry(self.pair.clone()).or_insert(fresh);
                if state.until.is_none() || self.probe {
                    state.failures = state.failures.saturating_add(1);
                    state.changed = now;
                    state.until = (state.failures >= self.rule.failures).then(|| now + self.rule.wait);
                }
            }
            _ => {}
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(state) = lock(&self.breakers.known).get_mut(&self.pair).filter(|_| self.probe) {
            state.probing = false;
        }
    }
}

/// The tool's own failures. What may be tried again is the host's, and what the caller can mend the caller's.
fn counts(fault: &Fault) -> bool {
    let own = matches!(
        fault.kind,
        Kind::ScriptError | Kind::TimeoutError | Kind::ResourceLimitError | Kind::DependencyError | Kind::ServiceError
    );
    own && !fault.by_caller && !fault.retryable
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Breaker = Breaker { failures: 5, wait: Duration::from_secs(60) };

    struct Under(Arc<Breakers>);

    impl Under {
        fn call(&self, caller: &str, kind: Option<Kind>) -> bool {
            let Ok(attempt) = self.0.enter((caller, caller), "t", RULE) else { return false };
            attempt.ended(kind.map(|kind| Fault::new(kind, "f")).as_ref());
            true
        }
        fn state(&self, caller: &str) -> &'static str {
            self.0.states(Some(caller)).first().map_or("none", |state| state.state)
        }
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_one_probe_decides() {
        let (clock, pass) = Clock::standing();
        let under = Under(Arc::new(Breakers::new(clock)));
        let failed = Some(Kind::ScriptError);
        for _ in 0..4 {
            assert!(under.call("a", failed));
        }
        assert!(under.call("a", None), "a success before the fifth");
        for kind in [Kind::ScriptError, Kind::TimeoutError, Kind::ResourceLimitError, Kind::DependencyError] {
            assert!(under.call("a", Some(kind)));
            // Neither counts, nor ends the row.
            for kind in [Kind::ParameterValidationError, Kind::SecurityError, Kind::CancelledError] {
                assert!(under.call("a", Some(kind)));
            }
        }
        assert_eq!(under.state("a"), "closed");
        assert!(under.call("a", Some(Kind::ServiceError)));
        assert_eq!(under.state("a"), "open");
        let fault = under.0.enter(("a", "a"), "t", RULE).expect_err("open");
        assert_eq!((fault.kind, fault.retryable, fault.retry_after_ms), (Kind::CircuitOpenError, true, Some(60_000)));
        assert!(under.call("b", None), "another caller's failures are its own");

        pass(Duration::from_secs(60));
        assert_eq!(under.state("a"), "half-open");
        let probe = under.0.enter(("a", "a"), "t", RULE).expect("one tries");
        assert!((0..9).all(|_| under.0.enter(("a", "a"), "t", RULE).is_err()), "and no other meanwhile");
        drop(probe);
        assert!(under.call("a", failed), "one that was cancelled decided nothing");
        assert_eq!(under.state("a"), "open", "a failure opens it again");
        pass(Duration::from_secs(60));
        assert!(under.call("a", None));
        assert_eq!(under.state("a"), "none", "a success closes it");
    }

    #[test]
    fn whoever_brings_many_names_has_no_breaker_of_others_forgotten() {
        let under = Under(Arc::default());
        let failed = Fault::new(Kind::ScriptError, "f");
        assert!(under.call("a", Some(Kind::ScriptError)));
        for name in 0..PAIRS + 100 {
            let attempt = under.0.enter((&format!("label {name}"), "gateway"), "t", RULE).expect("closed");
            attempt.ended(Some(&failed));
        }
        assert_eq!((under.state("a"), lock(&under.0.known).len()), ("closed", PAIRS));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let under = Under(Arc::default());
        for caller in 0..=PAIRS {
            under.call(&caller.to_string(), Some(Kind::ScriptError));
        }
        assert_eq!(lock(&under.0.known).len(), PAIRS);
    }
}
