//! Whether processes may be started before the calls of a tool.

use super::ceiling::Ceilings;
use super::decision::{Conditions, Grants};
use crate::manifest::{Language, Manifest};
use crate::policy::grammar::{Access, ReadyGrant, SecretSource};

/// What may wait for calls, or why every call starts cold. `None`: no policy says anything of it.
pub fn grant_of(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    grants: &Grants,
    conditions: &Conditions,
) -> Option<Result<ReadyGrant, String>> {
    let entry = ceilings.policy.ready.as_ref()?;
    if let Some(why) = cold(manifest, grants, conditions) {
        return Some(Err(why.to_owned()));
    }
    let granted = ceilings.granted("[ready]", "it", |policy| policy.ready.as_ref());
    Some(granted.map_err(|refusal| refusal.reason).map(|_| {
        let least = |value: fn(&ReadyGrant) -> u64| {
            let all = ceilings
                .policies()
                .filter_map(|policy| policy.ready.as_ref());
            all.map(|entry| value(&entry.grant)).min().unwrap_or(0)
        };
        ReadyGrant {
            processes: least(|grant| grant.processes as u64) as usize,
            idle_ms: least(|grant| grant.idle_ms),
            rule: format!("{}: [ready]", ceilings.policy.name),
            ..entry.grant.clone()
        }
    }))
}

/// Why no process can be started before its call.
fn cold(manifest: &Manifest, grants: &Grants, conditions: &Conditions) -> Option<&'static str> {
    let script = manifest.handler.language();
    let own = manifest.handler.script();
    let has_shim = own.is_none_or(|script| script.entry_point.is_some());
    let depends_on_caller = grants
        .secrets
        .iter()
        .any(|grant| matches!(grant.from, SecretSource::CallerFile(_)));
    // Copies of files are made, and what is written is counted, from the start of the process on.
    let writes = grants.files.iter().any(|it| it.access == Access::Write);
    if !manifest.execution.ready {
        Some("its manifest does not say `\"execution\": { \"ready\": true }`")
    } else if script == Some(Language::Wasm) {
        Some("a module is called in a worker, which is started already")
    } else if writes {
        Some("it may write files")
    } else if depends_on_caller {
        Some("its secrets depend on the caller")
    } else if script.is_some() && !manifest.calls.is_empty() {
        Some("its code calls tools")
    } else if conditions.command_line.is_some() {
        Some("its arguments are on its command line (`execution.input`)")
    } else if conditions.context && !has_shim {
        Some("a variable tells it of its call (`execution.context`), and it has no `entryPoint`")
    } else if !conditions.confirm.is_empty() {
        Some("a person is asked before each call")
    } else if conditions.observe {
        Some("its calls are recorded (`observe`)")
    } else {
        None
    }
}
