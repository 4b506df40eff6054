//! Whether the source text of calls may go on in a session.

use super::ceiling::Ceilings;
use super::decision::{Conditions, Grants};
use crate::manifest::{Handler, Language, Manifest};
use crate::policy::grammar::{Access, SessionGrant};

/// What sessions there may be, or why there are none. `None`: no policy allows any, or the tool
/// takes no source text.
pub fn grant_of(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    grants: &Grants,
    conditions: &Conditions,
) -> Option<Result<SessionGrant, String>> {
    let entry = ceilings.policy.sessions.as_ref()?;
    if !takes_source(manifest) {
        return None;
    }
    if let Some(why) = refusal(grants, conditions) {
        return Some(Err(why.to_owned()));
    }
    let granted = ceilings.granted("sessions", "it", |policy| policy.sessions.as_ref());
    Some(granted.map_err(|refusal| refusal.reason).map(|_| {
        let least = |value: fn(&SessionGrant) -> u64| {
            let all = ceilings
                .policies()
                .filter_map(|policy| policy.sessions.as_ref());
            all.map(|entry| value(&entry.grant)).min().unwrap_or(0)
        };
        SessionGrant {
            max: least(|grant| grant.max as u64) as usize,
            idle_ms: least(|grant| grant.idle_ms),
            rule: format!("{}: sessions", ceilings.policy.name),
            why: entry.grant.why.clone(),
        }
    }))
}

/// Whether source text of this language can go on in sessions.
pub fn are_in(language: Language) -> bool {
    matches!(language, Language::Python | Language::Nodejs)
}

/// Whether the code of the tool comes with its calls.
pub fn takes_source(manifest: &Manifest) -> bool {
    matches!(&manifest.handler, Handler::ServiceMethod { method, .. } if method == "runCode")
}

fn refusal(grants: &Grants, conditions: &Conditions) -> Option<&'static str> {
    let has_variable = grants.variables.values().any(|it| it.host().is_some());
    let has_secret = grants.secrets.iter().any(|grant| grant.header.is_none());
    // What lies in the scratch of a call is not published.
    let mut files = grants.files.iter();
    let writes =
        files.any(|it| it.access == Access::Write && !crate::sandbox::is_late(it.area.path()));
    if has_variable || has_secret {
        Some("a variable holds a secret, which code of a session could keep")
    } else if writes {
        Some("it may write files, which are published when its process ends")
    } else if conditions.observe {
        Some("its calls are recorded (`observe`) until their process ends")
    } else {
        None
    }
}
