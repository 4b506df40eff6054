//! Remote tool services: which one does the work of a tool, as far as every ceiling allows it.

use super::ceiling::{Ceiling, granted};
use super::machine::{Machine, Need};
use super::verdict::{RequestKind, Verdict};
use crate::manifest::Manifest;
use crate::policy::grammar::grantable::Grantable;
use crate::policy::grammar::services::{ServiceGrant, ServiceRule, names};

/// Judges the service that does a tool's work: its grant, and what this machine lacks. No service:
/// no verdict.
pub fn judge(
    manifest: &Manifest,
    ceilings: &[Ceiling<'_>],
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
) -> (Option<ServiceGrant>, Option<Need>) {
    let remote = manifest.remote();
    let Some((remote, service)) =
        remote.and_then(|remote| Some((remote, remote.descriptor.as_ref()?)))
    else {
        return (None, None);
    };
    let broker = names(&service.id)
        .iter()
        .find_map(|name| machine.brokers.get(name))
        .cloned();
    let need = broker.is_none().then(|| {
        let words = format!(
            "a broker for the service '{}' ([[tool_services]] of the configuration)",
            service.id
        );
        Need::new(&*remote.pointers.0, words)
    });
    let queues = format!(
        "{} at {}, answers from {}",
        service.id,
        service.requests.join(", "),
        service.response
    );
    let allows = |rule: &&ServiceRule| {
        let named = service
            .requests
            .iter()
            .all(|queue| rule.request.contains(queue));
        rule.service == service.id && rule.response == service.response && named
    };
    let granted = granted(ceilings, "[services] call", &queues, |policy| {
        policy.services.iter().find(allows)
    });
    let (rule, policy) = match granted {
        Ok(granted) => granted,
        Err((narrower, reason)) => {
            verdicts.push(Verdict::denied(
                RequestKind::Service,
                queues,
                narrower,
                reason,
                &[],
            ));
            return (None, need);
        }
    };
    let mut rules = ceilings
        .iter()
        .filter_map(|ceiling| ceiling.policy.services.iter().find(allows));
    let grant = ServiceGrant {
        service: service.id.clone(),
        request: service.requests.clone(),
        response: service.response.clone(),
        broker,
        config: remote.sent(),
        user: rules.all(|rule| rule.user),
        rule: format!("{}: {}", policy.name, service.id),
        why: rule.why.clone(),
    };
    let verdict = Verdict::met(RequestKind::Service, queues, grant.text(), &[]);
    verdicts.push(verdict.because(&grant.rule, &rule.why, policy.place(rule.at)));
    (Some(grant), need)
}
