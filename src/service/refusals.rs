//! Refusals: each has a record, or is counted in one.
//!
//! A call that is refused leaves the record of its call. A request that leads to no call leaves one here. Of refusals
//! for the number of calls, and of requests that cannot be read, the first of a minute have a record each, and then one
//! a second, which counts those before it: whoever asks without pause pushes no record of others out of the log.

use super::call_ended::CallEnded;
use super::record::CallRecord;
use super::{CallRequest, Caller, Service, quota};
use crate::base::text::{head, printable};
use crate::fault::{Fault, Kind};

impl Service {
    /// Records that a request was refused which leads to no call. `asked`: what it was for. `Err`: it cannot be recorded.
    pub fn refuses(&self, caller: &Caller, asked: &str, fault: Fault) -> Result<(), Fault> {
        let request = CallRequest::refused(caller.clone(), asked, fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        if !self.samples(&mut record, Some(&fault)) {
            return Ok(());
        }
        record.entry = Some(self.parts.audit.open()?);
        let kind = fault.kind;
        record.finish(Err(fault)).report.error.filter(|now| now.kind != kind).map_or(Ok(()), Err)
    }

    /// Records the refusals that were counted and have no record yet, before this host ends.
    pub fn records_counted(&self) {
        self.limiter.unrecorded(None).iter().for_each(|(principal, count)| self.records(principal, *count));
    }

    /// Whether it has a record: of refusals of which there may be many some are counted, and wait a minute at most for
    /// the record that says so.
    pub(super) fn samples(&self, record: &mut CallRecord, fault: Option<&Fault>) -> bool {
        let many = record.unread || fault.is_some_and(|fault| fault.kind == Kind::RateLimitError);
        if record.ran || record.kept.is_some() || !many {
            return true;
        }
        let principal = record.principal().to_owned();
        let recorded = self.limiter.recorded(&principal);
        record.one_of_many(recorded.ok());
        if let (Err(1), Ok(runtime)) = (recorded, tokio::runtime::Handle::try_current()) {
            let service = self.me.clone();
            runtime.spawn(async move {
                tokio::time::sleep(quota::MINUTE).await;
                let Some(service) = service.upgrade() else { return };
                let counted = service.limiter.unrecorded(Some(&principal));
                counted.iter().for_each(|(principal, count)| service.records(principal, *count));
            });
        }
        recorded.is_ok()
    }

    /// The last of so many refusals, with how many were before it.
    fn records(&self, principal: &str, count: u64) {
        let fault = Fault::new(Kind::RateLimitError, "Refused, as others before it that have no record.");
        let request = CallRequest::refused(Caller::named(principal), "", fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        record.entry = self.parts.audit.open().ok();
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
