//! Remote tool services: which one does the work of a tool, as far as every ceiling allows it.

use super::ceiling::Ceilings;
use super::machine::Machine;
use super::verdict::{Answers, Need, RequestKind, Verdict};
use crate::manifest::Manifest;
use crate::policy::grammar::services::names;
use crate::policy::grammar::{Grantable, ServiceGrant, ServiceRule};

/// The service that does a tool's work; no service: no verdict.
pub fn grant_of(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    machine: &Machine,
    answers: &mut Answers,
) -> Option<ServiceGrant> {
    let remote = manifest.remote()?;
    let service = remote.descriptor.as_ref()?;
    let broker = names(&service.id)
        .iter()
        .find_map(|name| machine.brokers.get(name))
        .cloned();
    if broker.is_none() {
        let words = format!(
            "a broker for the service '{}' ([[tool_services]] of the configuration)",
            service.id
        );
        answers.lacks.push(Need::new(&*remote.pointers.0, words));
    }
    let queues = format!(
        "{} at {}, answers from {}",
        service.id,
        service.requests.join(", "),
        service.response
    );
    let allows = |rule: &&ServiceRule| {
        let mut requests = service.requests.iter();
        rule.service == service.id
            && rule.response == service.response
            && requests.all(|queue| rule.request.contains(queue))
    };
    let granted = ceilings.granted("[services] call", &queues, |policy| {
        policy.services.iter().find(allows)
    });
    let rule = match granted {
        Ok(rule) => rule,
        Err(refusal) => {
            let verdict = refusal.verdict(RequestKind::Service, queues, &[]);
            answers.verdicts.push(verdict);
            return None;
        }
    };
    let mut rules = ceilings
        .policies()
        .filter_map(|policy| policy.services.iter().find(allows));
    let grant = ServiceGrant {
        service: service.id.clone(),
        request: service.requests.clone(),
        response: service.response.clone(),
        broker,
        config: remote.sent(),
        user: rules.all(|rule| rule.user),
        rule: format!("{}: {}", ceilings.policy.name, service.id),
        why: rule.why.clone(),
    };
    let verdict = Verdict::met(RequestKind::Service, queues, grant.text(), &[]);
    let place = ceilings.policy.place(rule.at);
    answers
        .verdicts
        .push(verdict.because(&grant.rule, &rule.why, place));
    Some(grant)
}
