//! The circuit breaker: what keeps failing is not called for a while.
//!
//! Failures of this host or of a service count against what ran, for all callers. Timeouts, limits
//! and crashes, which arguments can cause, count for one caller. Errors of a script, mistakes of a
//! caller or a policy, and retryable faults do not count.

use super::quota::held_back;
use super::request::Caller;
use crate::base::lock;
use crate::base::semaphore;
use crate::base::shares::{Charge, Shares, now};
use crate::fault::{Fault, Kind};
use crate::policy::Breaker;
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most rows that are remembered; one principal has half of them at most. The row that changed
/// longest ago goes first.
const ROWS: usize = 10_000;

/// What ran, and for whom its failures count: one caller, or all.
type Key = (Option<String>, String);

#[derive(Debug, Default)]
pub struct Breakers(Mutex<Shares<Key, Row>>);

#[derive(Debug)]
struct Row {
    failures: u32,
    /// The tool of the first failed call.
    tool: String,
    /// Calls are refused until then.
    until: Option<Duration>,
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
pub(super) struct BreakerCall {
    pub caller: String,
    pub principal: String,
    pub tool: String,
    /// Identifies what runs, independent of the tool that names it.
    pub runs: String,
    /// The caller wrote the code that runs, or has a process of its own that goes on: failures count
    /// for it alone.
    pub is_own: bool,
    pub rule: Breaker,
}

/// A call that was admitted. Dropped without `ended`, it does not count.
#[derive(Debug)]
pub(super) struct Attempt {
    breakers: Arc<Breakers>,
    call: BreakerCall,
    /// The keys of all callers and of this one, each with whether this call probes it.
    keys: Vec<(Key, bool)>,
}

impl Breakers {
    /// Refuses a call whose breaker is open. `runs`: the call is about to run. When the wait is
    /// over one call probes; others are refused until it has ended.
    pub(super) fn enter(self: &Arc<Self>, call: BreakerCall, runs: bool) -> Result<Attempt, Fault> {
        let all = (None, call.runs.clone());
        let own = (Some(call.caller.clone()), call.runs.clone());
        let wanted = if call.is_own {
            vec![own]
        } else {
            vec![all, own]
        };
        let mut attempt = Attempt {
            breakers: self.clone(),
            call,
            keys: Vec::new(),
        };
        for key in wanted {
            let mut rows = lock(&self.0);
            let now = now();
            let mut probe = false;
            if let Some(row) = rows.get_mut(&key)
                && let Some(until) = row.until
            {
                if until > now {
                    let tool = &attempt.call.tool;
                    let failures = row.failures;
                    let words = format!(
                        "Circuit breaker open for {tool}: its last {failures} calls failed."
                    );
                    return Err(held_back(Kind::CircuitOpenError, &words, until - now));
                }
                probe = runs;
                row.until = Some(if runs {
                    now + attempt.call.rule.wait
                } else {
                    until
                });
            }
            attempt.keys.push((key, probe));
        }
        Ok(attempt)
    }

    /// The breakers with failures: those of one caller, or all.
    pub fn states(&self, caller: Option<&str>) -> Vec<BreakerState> {
        let now = now();
        let rows = lock(&self.0);
        let shown = rows
            .iter()
            .filter(|((of, _), _)| caller.is_none_or(|caller| of.as_deref() == Some(caller)));
        let mut states: Vec<BreakerState> = shown
            .map(|((caller, _), row): (&Key, &Row)| {
                let left = row.until.map(|until| until.saturating_sub(now));
                let state =
                    left.map_or(
                        "closed",
                        |left| if left.is_zero() { "half-open" } else { "open" },
                    );
                let caller = caller.clone();
                let tool = row.tool.clone();
                let retry_after_ms = left.map(crate::base::millis);
                BreakerState {
                    caller,
                    tool,
                    state,
                    failures: row.failures,
                    retry_after_ms,
                }
            })
            .collect();
        states.sort_by(|a, b| (&a.tool, &a.caller).cmp(&(&b.tool, &b.caller)));
        states
    }
}

impl Breakers {
    /// The breakers that hold failures: the caller's own (`Catalog::who`), or everybody's for an
    /// operator.
    pub fn of(&self, caller: &Caller) -> Vec<BreakerState> {
        self.states((!caller.operator).then_some(&caller.user))
    }
}

impl Attempt {
    /// Counts how the call ended. `None`: successfully. `crashed`: by a signal or a trap.
    pub fn ended(mut self, fault: Option<&Fault>, crashed: bool) {
        let mut rows = lock(&self.breakers.0);
        let now = now();
        let own = self.keys.len() - 1;
        let Some(fault) = fault else {
            for (key, probe) in std::mem::take(&mut self.keys) {
                // A call that began before the breaker opened does not close it.
                if probe || rows.get(&key).is_some_and(|row| row.until.is_none()) {
                    rows.remove(&key);
                }
            }
            return;
        };
        let counted = match fault.kind {
            _ if fault.by_caller || fault.retryable => None,
            Kind::ServiceError | Kind::DependencyError | Kind::InternalError => Some(0),
            Kind::TimeoutError | Kind::ResourceLimitError => Some(own),
            _ => crashed.then_some(own),
        };
        let Some((key, probe)) = counted.map(|at| self.keys.remove(at)) else {
            return;
        };
        if rows.get(&key).is_none() {
            let row = Row {
                failures: 0,
                tool: self.call.tool.clone(),
                until: None,
            };
            // Any row may be removed to make room for another, so there is always room.
            let claim = semaphore::claim(ROWS, [(self.call.principal.clone(), ROWS / 2)]);
            rows.put(key.clone(), Charge { claim, size: 1 }, now, row);
        }
        rows.keep(&key, now);
        if let Some(row) = rows
            .get_mut(&key)
            .filter(|row| row.until.is_none() || probe)
        {
            row.failures = row.failures.saturating_add(1);
            row.until =
                (row.failures >= self.call.rule.failures).then(|| now + self.call.rule.wait);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // After a probe that decided nothing, the next call probes.
        for (key, _) in self.keys.iter().filter(|(_, probe)| *probe) {
            lock(&self.breakers.0)
                .get_mut(key)
                .into_iter()
                .for_each(|row| row.until = Some(now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(under: &Arc<Breakers>, caller: &str, is_own: bool) -> Result<Attempt, Fault> {
        let rule = Breaker {
            failures: 5,
            wait: Duration::from_secs(60),
        };
        let (caller, principal) = (
            caller.to_owned(),
            caller.split(' ').next().unwrap_or_default().to_owned(),
        );
        let call = BreakerCall {
            caller,
            principal,
            tool: "t".to_owned(),
            runs: "a.py".to_owned(),
            is_own,
            rule,
        };
        under.enter(call, true)
    }

    fn call(under: &Arc<Breakers>, caller: &str, kind: Option<Kind>) -> bool {
        let Ok(attempt) = enter(under, caller, false) else {
            return false;
        };
        attempt.ended(kind.map(|kind| Fault::new(kind, "f")).as_ref(), false);
        true
    }

    /// What `tests/callers/often.rs` does not show: whose failures count for all, and that one call
    /// tries.
    #[tokio::test(start_paused = true)]
    async fn failures_count_for_whoever_they_are_of_and_one_probe_decides() {
        let under = Arc::<Breakers>::default();
        assert!((0..5).all(|n| call(&under, &format!("c{n}"), Some(Kind::ServiceError))));
        assert!(
            !call(&under, "d", None) && enter(&under, "d", true).is_ok(),
            "for all, but never for source text"
        );
        (0..5).for_each(|_| {
            enter(&under, "a", true)
                .unwrap()
                .ended(Some(&Fault::new(Kind::InternalError, "f")), false)
        });
        assert!(
            enter(&under, "a", true).is_err() && enter(&under, "b", true).is_ok(),
            "whose source text it is"
        );
        for ends in [Some(Kind::ServiceError), None] {
            tokio::time::advance(Duration::from_secs(60)).await;
            let probe = enter(&under, "d", false).expect("one tries");
            let fault = enter(&under, "d", false).expect_err("and no other meanwhile");
            assert_eq!(
                (fault.kind, fault.retry_after_ms),
                (Kind::CircuitOpenError, Some(60_000))
            );
            drop(probe);
            let probe = enter(&under, "d", false).expect("one that was cancelled decided nothing");
            probe.ended(ends.map(|kind| Fault::new(kind, "f")).as_ref(), false);
            assert_eq!(call(&under, "d", None), ends.is_none());
        }
        call(&under, "b", Some(Kind::TimeoutError));
        (0..ROWS).for_each(|n| {
            assert!(call(
                &under,
                &format!("gateway {n}"),
                Some(Kind::TimeoutError)
            ))
        });
        assert_eq!(
            (under.states(Some("b")).len(), under.states(None).len()),
            (1, ROWS / 2 + 2),
            "b's is not pushed out"
        );
    }
}
