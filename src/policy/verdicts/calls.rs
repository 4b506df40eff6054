//! Calls from code: the tools that a manifest names in `calls` ∩ the entries of `[calls]`.

use super::ceiling::Ceilings;
use super::verdict::{Answers, RequestKind, Verdict};
use crate::policy::grammar::grantable::least;
use crate::policy::grammar::{CallGrant, Grantable, PolicyEntry, Selector};

pub fn grants_of(
    requests: &[Selector],
    ceilings: &Ceilings<'_>,
    answers: &mut Answers,
) -> Vec<CallGrant> {
    let mut grants = Vec::new();
    for request in requests {
        let whole = CallGrant {
            tool: request.clone(),
            by_name: true,
            rule: String::new(),
            why: String::new(),
        };
        let parts = ceilings.narrowed(
            whole,
            |policy| &policy.calls,
            |part: &CallGrant, entry: &PolicyEntry<CallGrant>| part.intersection(&entry.grant),
            CallGrant::covers,
        );
        answers.verdicts.push(verdict(request, &parts, ceilings));
        grants.extend(parts);
    }
    least(grants)
}

fn verdict(request: &Selector, parts: &[CallGrant], ceilings: &Ceilings<'_>) -> Verdict {
    let asked = request.text();
    let holds = |grant: &CallGrant| grant.tool.clone().max(request.clone()) == *request;
    let ceiling = ceilings.refusing(|ceiling| {
        let mut entries = ceiling.policy.calls.iter();
        entries.any(|entry| entry.grant.tool.meets(request) && holds(&entry.grant))
    });
    let refusal = ceiling.refusal("[calls] allow", &asked);
    let Some(first) = parts.first() else {
        return refusal.verdict(RequestKind::Call, asked, &[]);
    };
    let entry = ceilings
        .policy
        .calls
        .iter()
        .find(|entry| entry.grant.rule == first.rule);
    let place = entry.map_or_else(String::new, |entry| ceilings.policy.place(entry.at));
    let effective: Vec<String> = parts.iter().map(CallGrant::text).collect();
    let verdict = Verdict::met(RequestKind::Call, asked, effective.join("; "), &[]);
    let verdict = verdict.because(&first.rule, &first.why, place);
    if parts.iter().any(holds) {
        verdict
    } else {
        verdict.only_in_part(refusal)
    }
}
