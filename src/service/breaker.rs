//! The circuit breaker: what keeps failing is not called for a while.
//!
//! Failures of this host or of a service count against what ran, for all callers. Timeouts, limits and crashes, which arguments can
//! cause, count for one caller. A script that ends with an error, what a caller or a policy did wrong, and what may be tried again
//! count for nothing.

use super::quota::Clock;
use crate::base::lock;
use crate::base::shares::Shares;
use crate::fault::{Fault, Kind};
use crate::policy::Breaker;
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most rows that are remembered; one principal has half of them at most. The row that changed longest ago goes first.
const ROWS: usize = 10_000;
/// While the one call that tries again runs, the others are told to wait so long.
const PROBING: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Breakers {
    clock: Clock,
    rows: Mutex<Shares<Key, Row>>,
}

/// What ran, and for whom its failures count: one caller, or all.
type Key = (Option<String>, String);

#[derive(Debug)]
struct Row {
    /// In a row.
    failures: u32,
    /// Which was called when it failed first.
    tool: String,
    /// Calls are held back until then.
    until: Option<Duration>,
    /// One call is trying again.
    probing: bool,
}

/// One breaker that has failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerState {
    /// For whom; absent: for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    pub tool: String,
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    pub failures: u32,
    /// When one call may try again.
    pub retry_after_ms: Option<u64>,
}

/// One call, as the breaker sees it.
#[derive(Clone, Debug)]
pub(super) struct BreakerCall<'a> {
    pub caller: &'a str,
    pub principal: &'a str,
    /// As it is shown.
    pub tool: String,
    /// What runs; the same whatever tool names it.
    pub runs: String,
    /// The caller brought it: all its failures are that one's.
    pub is_own: bool,
}

/// One call that was let through. Dropped without an end it counts as nothing.
#[derive(Debug)]
pub(super) struct Attempt {
    breakers: Arc<Breakers>,
    /// Of all callers, then of this one; and whether the call is the one that tries again.
    keys: Vec<(Key, bool)>,
    principal: String,
    tool: String,
    rule: Breaker,
}

impl Breakers {
    /// Lets a call through, or refuses it.
    pub fn enter(self: &Arc<Self>, called: BreakerCall<'_>, rule: Breaker) -> Result<Attempt, Fault> {
        let BreakerCall { caller, principal, tool, runs, is_own } = called;
        let (all, own) = ((None, runs.clone()), (Some(caller.to_owned()), runs));
        let wanted = if is_own { vec![own] } else { vec![all, own] };
        let (breakers, keys, principal) = (self.clone(), Vec::new(), principal.to_owned());
        let mut attempt = Attempt { breakers, keys, principal, tool, rule };
        for key in wanted {
            let mut probe = false;
            if let Some(row) = lock(&self.rows).get_mut(&key)
                && let Some(until) = row.until
            {
                let left = until.saturating_sub(self.clock.now());
                if row.probing || !left.is_zero() {
                    return Err(open(&attempt.tool, row.failures, if left.is_zero() { PROBING } else { left }));
                }
                (row.probing, probe) = (true, true);
            }
            attempt.keys.push((key, probe));
        }
        Ok(attempt)
    }

    /// The breakers with failures: of one caller, or every one.
    pub fn states(&self, caller: Option<&str>) -> Vec<BreakerState> {
        let now = self.clock.now();
        let rows = lock(&self.rows);
        let shown = rows.iter().filter(|((of, _), _)| caller.is_none_or(|caller| of.as_deref() == Some(caller)));
        let state = |((caller, _), row): (&Key, &Row)| {
            let left = row.until.map(|until| until.saturating_sub(now));
            let state = left.map_or("closed", |left| if left.is_zero() { "half-open" } else { "open" });
            let (caller, tool, retry_after_ms) = (caller.clone(), row.tool.clone(), left.map(crate::base::millis));
            BreakerState { caller, tool, state, failures: row.failures, retry_after_ms }
        };
        let mut states: Vec<BreakerState> = shown.map(state).collect();
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
    /// How the call ended; `None`: well. `crashed`: by a signal or a trap.
    pub fn ended(self, fault: Option<&Fault>, crashed: bool) {
        let mut rows = lock(&self.breakers.rows);
        let Some(fault) = fault else {
            for (key, probe) in &self.keys {
                // A call that began before the breaker opened does not close it.
                if *probe || rows.get(key).is_some_and(|row| row.until.is_none()) {
                    rows.remove(key);
                }
            }
            return;
        };
        let counted = if fault.by_caller || fault.retryable { None } else { self.counts(fault.kind, crashed) };
        let Some((key, probe)) = counted else { return };
        let now = self.breakers.clock.now();
        if rows.get(key).is_none() {
            let claim = vec![(String::new(), ROWS), (format!("principal {}", self.principal), ROWS / 2)];
            let fresh = Row { failures: 0, tool: self.tool.clone(), until: None, probing: false };
            // Each row may go for another one.
            let _ = rows.put(now, key.clone(), (claim, 1), now, fresh);
        }
        rows.keep(key, now);
        if let Some(row) = rows.get_mut(key).filter(|row| row.until.is_none() || *probe) {
            row.failures = row.failures.saturating_add(1);
            row.until = (row.failures >= self.rule.failures).then(|| now + self.rule.wait);
        }
    }

    fn counts(&self, kind: Kind, crashed: bool) -> Option<&(Key, bool)> {
        match kind {
            Kind::ServiceError | Kind::DependencyError | Kind::InternalError => self.keys.first(),
            Kind::TimeoutError | Kind::ResourceLimitError => self.keys.last(),
            _ if crashed => self.keys.last(),
            _ => None,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut rows = lock(&self.breakers.rows);
        for (key, _) in self.keys.iter().filter(|(_, probe)| *probe) {
            rows.get_mut(key).into_iter().for_each(|row| row.probing = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Breaker = Breaker { failures: 5, wait: Duration::from_secs(60) };

    fn enter(under: &Arc<Breakers>, caller: &str, is_own: bool) -> Result<Attempt, Fault> {
        let (tool, runs) = ("t".to_owned(), "a.py".to_owned());
        under.enter(BreakerCall { caller, principal: "gateway", tool, runs, is_own }, RULE)
    }

    fn call(under: &Arc<Breakers>, caller: &str, kind: Option<Kind>) -> bool {
        let Ok(attempt) = enter(under, caller, false) else { return false };
        attempt.ended(kind.map(|kind| Fault::new(kind, "f")).as_ref(), false);
        true
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_one_probe_decides() {
        let (clock, pass) = Clock::standing();
        let under = Arc::new(Breakers { clock, rows: Mutex::default() });
        let failed = Some(Kind::TimeoutError);
        assert!((0..4).all(|_| call(&under, "a", failed)) && call(&under, "a", None), "a success before the fifth");
        for kind in [Kind::ScriptError, Kind::ParameterValidationError, Kind::SecurityError, Kind::CancelledError] {
            assert!((0..6).all(|_| call(&under, "a", Some(kind))), "{kind} does not count");
        }
        assert!((0..5).all(|_| call(&under, "a", failed)));
        let fault = enter(&under, "a", false).expect_err("open");
        assert_eq!((fault.kind, fault.retryable, fault.retry_after_ms), (Kind::CircuitOpenError, true, Some(60_000)));
        assert!(call(&under, "b", None), "another caller's timeouts are its own");
        pass(Duration::from_secs(60));
        let probe = enter(&under, "a", false).expect("one tries");
        assert!((0..9).all(|_| enter(&under, "a", false).is_err()), "and no other meanwhile");
        drop(probe);
        assert!(call(&under, "a", failed), "one that was cancelled decided nothing");
        assert!(!call(&under, "a", None), "a failure opens it again");
        pass(Duration::from_secs(60));
        assert!(call(&under, "a", None) && under.states(None).is_empty(), "a success closes it");
    }

    #[test]
    fn what_this_host_or_a_service_fails_at_counts_for_all_and_never_for_source_text() {
        let under = Arc::<Breakers>::default();
        for kind in [Kind::ServiceError, Kind::DependencyError, Kind::InternalError] {
            assert!(call(&under, "a", Some(kind)) && enter(&under, "a", true).is_ok());
        }
        assert!(call(&under, "b", Some(Kind::ServiceError)) && call(&under, "c", Some(Kind::ServiceError)));
        assert!(!call(&under, "d", None), "whoever calls");
        for _ in 0..5 {
            enter(&under, "a", true).expect("closed").ended(Some(&Fault::new(Kind::InternalError, "f")), false);
        }
        assert!(enter(&under, "a", true).is_err() && enter(&under, "b", true).is_ok(), "the caller's own");
    }

    #[test]
    fn many_names_of_one_principal_push_out_no_breaker_of_others() {
        let under = Arc::<Breakers>::default();
        let fail = |principal: &str, caller: &str| {
            let called =
                BreakerCall { caller, principal, tool: "t".to_owned(), runs: "a.py".to_owned(), is_own: false };
            let attempt = under.enter(called, RULE).expect("closed");
            attempt.ended(Some(&Fault::new(Kind::TimeoutError, "f")), false);
        };
        fail("a", "a");
        (0..ROWS).for_each(|n| fail("gateway", &format!("label {n}")));
        assert_eq!((under.states(Some("a")).len(), under.states(None).len()), (1, ROWS / 2 + 1));
    }
}
