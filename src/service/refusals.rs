//! Refusals: each has a record, or is counted in one.
//!
//! A call that is refused leaves the record of its call. A request that leads to no call leaves one here. Of refusals
//! for the number of calls, and of requests that cannot be read, the first of a minute have a record each, and then one
//! a second, which counts those before it. Where the log cannot be written they are counted, too.

use super::call_ended::CallEnded;
use super::record::CallRecord;
use super::{CallRequest, Caller, Service, audit, quota};
use crate::base::text::{head, printable};
use crate::fault::{Fault, Kind};

impl Service {
    /// Records that a request was refused which leads to no call. `asked`: what it was for. `Err`: it cannot be
    /// recorded.
    pub fn refuses(&self, caller: &Caller, asked: &str, fault: Fault) -> Result<(), Fault> {
        let request = CallRequest::refused(caller.clone(), asked, fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        record.entry = Some(self.open_record(&caller.user)?);
        if self.samples(&mut record, Some(&fault)) {
            record.finish(Err(fault));
        }
        Ok(())
    }

    /// The right to a record. Where there is none, the refusal is counted for the next one of this principal.
    pub(super) fn open_record(&self, principal: &str) -> Result<audit::Entry, Fault> {
        self.parts.audit.open().inspect_err(|_| self.counts(principal, 1))
    }

    /// Records the refusals that were counted and have no record yet, before this host ends.
    pub fn records_counted(&self) {
        // Also the ends of calls that could not be written.
        let _ = self.parts.audit.open();
        self.limiter.take_unrecorded(None).iter().for_each(|(principal, count)| self.records(principal, *count));
    }

    /// Whether it has a record: of refusals of which there may be many some are only counted.
    pub(super) fn samples(&self, record: &mut CallRecord, fault: Option<&Fault>) -> bool {
        let many = record.unread || fault.is_some_and(|fault| fault.kind == Kind::RateLimitError);
        let has_begun = record.entry.as_ref().is_none_or(audit::Entry::has_begun);
        if record.ran || record.kept.is_some() || has_begun || !many {
            return true;
        }
        let principal = record.principal().to_owned();
        let before = self.limiter.recorded(&principal);
        record.one_of_many(before);
        if before.is_none() {
            self.counts(&principal, 1);
        }
        before.is_some()
    }

    /// Counts refusals without a record. They wait a minute at most for the record that says so.
    fn counts(&self, principal: &str, count: u64) {
        if !self.limiter.unrecorded(principal, count) {
            return;
        }
        let (service, principal) = (self.me.clone(), principal.to_owned());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(quota::MINUTE).await;
            let Some(service) = service.upgrade() else { return };
            let counted = service.limiter.take_unrecorded(Some(&principal));
            counted.iter().for_each(|(principal, count)| service.records(principal, *count));
        });
    }

    /// The last of so many refusals, with how many were before it.
    fn records(&self, principal: &str, count: u64) {
        let Ok(entry) = self.parts.audit.open() else { return self.counts(principal, count) };
        let fault = Fault::new(Kind::RateLimitError, "Refused, as others before it that have no record.");
        let request = CallRequest::refused(Caller::named(principal), "", fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        record.entry = Some(entry);
        record.one_of_many(Some(count - 1));
        record.finish(Err(fault));
    }

    /// Tells the person who runs this host of a caller whom policy keeps refusing.
    pub(super) fn alert(&self, ended: &CallEnded, principal: &str) {
        let refused = |fault: &Fault| matches!(fault.kind, Kind::SecurityError | Kind::AuthorizationError);
        if ended.report.error.as_ref().is_some_and(refused) && self.limiter.alarms(principal) {
            let caller = printable(&head(&ended.caller, 200));
            let (call, trace) = (&ended.report.id, &ended.line.trace);
            tracing::error!(target: "toolhost::alert", caller, call, trace, "policy keeps refusing this caller");
        }
    }
}
