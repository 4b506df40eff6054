//! The line of the audit log that a call leaves.
//!
//! For: the record. In: what the stages found out, the fault that ended the call. Out: one `Record`. Never: shows a secret.

use super::super::record::{self, PART, Record, cut, cut_to, few, rule};
use super::super::report::Digests;
use super::CallRecord;
use crate::fault::{Fault, Kind, Origin};
use serde_json::{Value, json};

impl CallRecord {
    /// Writes the record this call owes, once.
    pub(super) fn record(&mut self, fault: Option<&Fault>) -> Result<(), Fault> {
        let Some(entry) = self.entry.take() else { return Ok(()) };
        self.notes.all = few(std::mem::take(&mut self.notes.all));
        entry.write(&self.line(fault, &self.digests()))
    }

    pub(super) fn line<'a>(&'a self, fault: Option<&'a Fault>, digests: &'a Digests) -> Record<'a> {
        let refused = !self.ran;
        Record {
            time: self.began.to_string(),
            call: &self.id,
            user: cut_to(&self.caller.user, PART),
            through: self.through.as_deref().map(|user| cut_to(user, PART)),
            label: self.label.as_deref(),
            transaction: self.transaction.as_deref(),
            trace: self.trace(),
            approved_by: self.approved_by.as_deref().map(|person| cut_to(person, PART)),
            tool: self.tool.as_ref().map_or(&self.asked, |tool| &tool.manifest.id),
            version: self.tool.as_ref().map(|tool| tool.manifest.version.to_string()),
            manifest: self.tool.as_ref().and_then(|tool| record::manifest(&tool.site)),
            digests,
            decision: match self.replayed {
                Some(_) => "replayed",
                None if refused => "refused",
                None => "allowed",
            },
            rule: fault.filter(|_| refused).map_or_else(|| self.ran_under(), |fault| self.refused_by(fault.kind)),
            service: self.asks_of().filter(|_| self.ran),
            limits: self.confined.as_ref().map(|confined| &confined.limits),
            outcome: fault.map_or_else(|| "success".to_owned(), |fault| fault.kind.to_string()),
            message: fault.map(|fault| cut(&fault.message)),
            arguments: cut(&self.shown_arguments()),
            usage: &self.seen.usage,
            notes: &self.notes.all,
            violations: self.violations(fault),
            network: self.network().as_ref().map(record::network),
        }
    }

    /// Where the work of a service elsewhere is asked for.
    pub(super) fn asks_of(&self) -> Option<String> {
        self.decided.as_ref()?.service.as_deref().map(|service| cut_to(service, PART))
    }

    pub(super) fn ran_under(&self) -> String {
        if let Some(rule) = &self.replayed {
            return cut_to(rule, PART);
        }
        self.decided.as_ref().map_or_else(|| "in-process".to_owned(), |decided| format!("policy {}", decided.policy))
    }

    fn refused_by(&self, kind: Kind) -> String {
        if let Some(rule) = self.replayed.as_ref().or(self.denied_by.as_ref()) {
            return cut_to(rule, PART);
        }
        match (rule(kind), &self.decided) {
            ("policy", Some(decided)) => format!("policy {}", decided.policy),
            (rule, _) => rule.to_owned(),
        }
    }

    fn violations(&self, fault: Option<&Fault>) -> Vec<Value> {
        let broken = fault.filter(|fault| {
            matches!(fault.kind.origin(), Origin::Policy)
                || matches!(fault.kind, Kind::TimeoutError | Kind::ResourceLimitError)
        });
        let own = broken.map(|fault| json!({"kind": fault.kind, "what": cut_to(&fault.message, PART)}));
        let seen = self.seen.denials.observed.iter().map(record::denied);
        record::first(own.into_iter().chain(seen).collect())
    }
}
