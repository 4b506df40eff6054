//! Refusals: each has a record, or is counted in one.
//!
//! Refusals by rate limits, and of unreadable requests, have a record each at first; then one
//! record a second, which counts those before it.
//!
//! Of refusals for the number of calls, and of requests that lead to no call, a principal has 60
//! records and then one a second. A host that is killed loses their count for the last minute.
//! About a million requests push what is older out of the log (512 MiB unless configured).

use super::audit::log::{Log, RecordPermit};
use super::call_ended::CallEnded;
use super::quota::{self, Limiter};
use super::record::{CallRecord, RecordSinks};
use super::report::CallResult;
use super::request::{CallRequest, Caller, new_id};
use super::traces::spans::Traces;
use crate::base::text::{head, printable};
use crate::fault::{Fault, Kind};
use std::sync::{Arc, Weak};

pub struct Refusals {
    me: Weak<Refusals>,
    audit: Log,
    limiter: Arc<Limiter>,
    traces: Arc<Traces>,
}

impl Refusals {
    pub(super) fn new(audit: Log, limiter: Arc<Limiter>, traces: Arc<Traces>) -> Arc<Refusals> {
        Arc::new_cyclic(|me| Refusals {
            me: me.clone(),
            audit,
            limiter,
            traces,
        })
    }

    /// Records the refusal of a request that leads to no call. `asked`: what the request was for.
    /// `Err`: it cannot be recorded.
    pub fn record(&self, caller: &Caller, asked: &str, fault: Fault) -> Result<(), Fault> {
        let request = CallRequest::refused(caller.clone(), asked, fault.clone());
        let mut record = self.begin(&request, self.open_record(&caller.user)?);
        if self.sample(&mut record, Some(&fault), true) {
            let ended = record.end(CallResult::Failed(fault));
            self.send_alert(&ended);
        }
        Ok(())
    }

    fn begin(&self, request: &CallRequest, entry: RecordPermit) -> CallRecord {
        let sinks = RecordSinks::of_entry(self.traces.of_call(None), entry);
        CallRecord::begin(new_id(), request, sinks)
    }

    /// A permit to write a record. If there is none, the refusal is counted in the principal's next
    /// record.
    pub(super) fn open_record(&self, principal: &str) -> Result<RecordPermit, Fault> {
        self.audit
            .open()
            .inspect_err(|_| self.count_refusals(principal, 1))
    }

    /// Records the refusals that were counted and have no record yet: after a minute, and before
    /// this host ends.
    pub fn write_counts(&self) {
        // This also writes the ends of calls that could not be written before.
        let _ = self.audit.open();
        self.limiter
            .take_unrecorded()
            .iter()
            .for_each(|(principal, count)| self.record_counted(principal, *count));
    }

    /// Whether this call gets a record: some frequent refusals are only counted. `is_unread`: its
    /// transport could not read it as a call.
    pub(super) fn sample(
        &self,
        record: &mut CallRecord,
        fault: Option<&Fault>,
        is_unread: bool,
    ) -> bool {
        let many = is_unread || fault.is_some_and(|fault| fault.kind == Kind::RateLimitError);
        if record.has_begun() || !many {
            return true;
        }
        let principal = record.principal().to_owned();
        let before = self.limiter.recorded(&principal);
        record.one_of_many(before);
        if before.is_none() {
            self.count_refusals(&principal, 1);
        }
        before.is_some()
    }

    /// Counts refusals without a record. A record with their number follows within a minute.
    fn count_refusals(&self, principal: &str, count: u64) {
        if !self.limiter.unrecorded(principal, count) {
            return;
        }
        let me = self.me.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep(quota::MINUTE).await;
            me.upgrade().iter().for_each(|me| me.write_counts());
        });
    }

    /// Records the last of `count` refusals, with the number of those before it.
    fn record_counted(&self, principal: &str, count: u64) {
        let Ok(entry) = self.audit.open() else {
            return self.count_refusals(principal, count);
        };
        let fault = Fault::new(
            Kind::RateLimitError,
            "Refused, like others before it that have no record.",
        );
        let request = CallRequest::refused(Caller::named(principal), "", fault.clone());
        let mut record = self.begin(&request, entry);
        record.one_of_many(Some(count - 1));
        record.end(CallResult::Failed(fault));
    }

    fn send_alert(&self, ended: &CallEnded) {
        let alert = ended.alert().into_iter();
        alert.for_each(|alert| self.audit.alerts().send(alert));
    }

    /// Sends alerts about the end of a call, and logs one about a caller that policy keeps refusing.
    pub(super) fn alert(&self, ended: &CallEnded, principal: &str) {
        self.send_alert(ended);
        if ended.report.outcome.fault().is_some_and(|fault: &Fault| {
            matches!(fault.kind, Kind::SecurityError | Kind::AuthorizationError)
        }) && self.limiter.should_alert(principal)
        {
            let caller = printable(&head(&ended.caller, 200));
            let call = &ended.report.id;
            let trace = &ended.line.trace;
            tracing::error!(target: "toolhost::alert", caller, call, trace, "policy keeps refusing \
                this caller");
        }
    }
}
