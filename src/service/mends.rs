//! What the person is told beside a tool's failure: who set the limit, what a file that it missed would need.
//!
//! For: the road. In: a tool, what was decided about it, how its call ended. Out: words for `Fault::person`.
//! Never: words for an agent; a claim about a file: what a tool was not granted looks to it as if it were not there,
//! and no mechanism of this host observes that, so it is said as "if".

use crate::manifest::text::{path, printable};
use crate::quantity::Limit;
use crate::{executor, fault, policy, registry};
use executor::Ending;
use fault::{Fault, Kind};

/// How runtimes say that a file could not be opened, made or written.
const REFUSED_WORDS: [&str; 10] = [
    "PermissionError",
    "Permission denied",
    "EACCES",
    "EPERM",
    "Operation not permitted",
    "EROFS",
    "Read-only file system",
    "FileNotFoundError",
    "No such file or directory",
    "ENOENT",
];

/// The limit that ended a call.
pub(super) fn limit_of(ending: &Ending) -> Option<Limit> {
    match ending {
        Ending::TimedOut { .. } => Some(Limit::TimeoutMs),
        Ending::OverLimit { limit, .. } => Some(*limit),
        Ending::Answered(_)
        | Ending::Exited { .. }
        | Ending::Signalled { .. }
        | Ending::BadOutput { .. }
        | Ending::Raised { .. }
        | Ending::Cancelled
        | Ending::Envelope { .. } => None,
    }
}

/// Who set a limit, and who may set a larger one. `asked_ms`: the call's own time limit.
pub(super) fn limit(limit: Limit, decision: &policy::Decision, asked_ms: Option<u64>) -> Option<String> {
    let verdict = decision.limit(limit)?;
    let name = limit.name();
    let field = if limit == Limit::TimeoutMs { "execution.timeoutMs".to_owned() } else { format!("limits.{name}") };
    let most = format!("the most is {}, set by the {}", verdict.ceiling, source(verdict));
    Some(match (verdict.asked, asked_ms.filter(|_| limit == Limit::TimeoutMs)) {
        (_, Some(asked)) if asked <= verdict.ceiling => format!("{name} was set by this call; {most}"),
        (_, Some(asked)) => format!("{name} was set by the {} (this call asked for {asked})", source(verdict)),
        (Some(asked), None) if verdict.clamped => {
            format!("{name} was set by the {} (the manifest asks for {asked})", source(verdict))
        }
        (Some(_), None) => format!("{name} was set by the manifest ({field}); {most}"),
        (None, None) if verdict.effective == verdict.ceiling => format!("{name} was set by the {}", source(verdict)),
        (None, None) => format!("{name} was set by the house default; the manifest may ask for more ({field}): {most}"),
    })
}

/// `policy at file:line`, or the house default.
fn source(verdict: &policy::LimitVerdict) -> String {
    match verdict.from.as_str() {
        "house default" => "house default, which a policy may raise ([limits])".to_owned(),
        from => format!("policy {from}"),
    }
}

/// What a file would need, where the tool's words speak of one that it could not open.
pub(super) fn files(fault: &Fault, tool: &registry::Tool, decision: &policy::Decision) -> Option<String> {
    let manifest = &tool.site.manifest;
    let words = [Some(&fault.message), fault.details.as_ref()];
    let spoken = |text: &String| REFUSED_WORDS.iter().any(|word| text.contains(word));
    if fault.kind != Kind::ScriptError || manifest.as_os_str().is_empty() || !words.into_iter().flatten().any(spoken) {
        return None;
    }
    let pointer = "/securityContext/fileAccess";
    let (line, column) = registry::Places::of(manifest).one(pointer);
    let file = printable(&manifest.display().to_string());
    let place = match (tool.manifest.raw.pointer(pointer), line) {
        (Some(_), 1..) => format!("in securityContext.fileAccess ({file}:{line}:{column})"),
        _ => format!("by a securityContext.fileAccess in {file}"),
    };
    let policy = match decision.policy_file.as_os_str().is_empty() {
        true => format!("the policy `{}`", decision.policy),
        false => format!("the policy `{}` ({})", decision.policy, path(&decision.policy_file)),
    };
    Some(format!(
        "if it needs a file or folder that it was not granted (to a tool such a one is not there, or cannot be changed):\n\
         ask for it {place}; {policy} must allow it too. `toolhost audit {}` shows what it has now",
        tool.manifest.id
    ))
}
