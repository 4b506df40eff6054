//! What a record of a call is made of, and how long each part may be.
//!
//! For: a call's record. In: words of callers, tools and manifests. Out: the fields of one line of the audit log,
//! which together fit into `audit::ROOM` however they are escaped. Never: decides anything.

use super::Digests;
pub(super) use crate::base::text::cut as cut_to;
use crate::egress::Traffic;
use crate::fault::Kind;
use crate::manifest::{Language, Site};
use crate::{executor, policy};
use serde::Serialize;
use serde_json::{Value, json};

/// Longest text of a caller or tool in a record, bytes.
const CUT: usize = 2048;
/// Longest part where a record has several, bytes. Even with each byte as `\u00XX` all fit into `audit::ROOM`.
pub(super) const PART: usize = 256;
/// Most violations in a record; if there were more, the last says how many more.
const VIOLATIONS: usize = 10;
/// The kind of that last one.
pub(super) const MORE: &str = "more";
/// Most notes in a record or a report; if there were more, the last says how many more.
const NOTES: usize = 20;
/// Longest text in an event of a network, bytes.
const EVENT: usize = 80;

/// One line of the audit log.
#[derive(Serialize)]
pub(super) struct Record<'a> {
    pub time: String,
    pub call: &'a str,
    /// Who the call counts as.
    pub user: String,
    /// Who authenticated, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// On whose behalf the request said it came: not an identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<&'a str>,
    /// Who agreed to the call, where a policy has a person asked.
    #[serde(rename = "approvedBy", skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// What the caller groups calls by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<&'a str>,
    /// The id of the trace that the call is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    pub tool: &'a str,
    pub version: Option<String>,
    /// The file of the tool's manifest: the same id and version may be loaded from elsewhere another time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    pub digests: &'a Digests,
    pub decision: &'a str,
    pub rule: String,
    /// Where its work was asked for, of a tool of a service elsewhere: nothing of that is in `digests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub limits: Option<&'a policy::Limits>,
    pub outcome: String,
    pub message: Option<String>,
    pub arguments: String,
    pub usage: &'a executor::Usage,
    pub notes: &'a [String],
    pub violations: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Value>,
}

/// One denial, each part cut.
pub(super) fn denied(denial: &executor::Denial) -> Value {
    let part = |text: &str| cut_to(text, PART);
    let (operation, target, rule) = (part(&denial.operation), part(&denial.target), part(&denial.rule));
    json!({"kind": "denied", "operation": operation, "target": target, "rule": rule, "narrower": denial.narrower})
}

/// The first of these violations, and how many more there are.
pub(super) fn first(mut violations: Vec<Value>) -> Vec<Value> {
    let more = violations.len().saturating_sub(VIOLATIONS);
    if more > 0 {
        violations.truncate(VIOLATIONS - 1);
        violations.push(json!({"kind": MORE, "count": more + 1}));
    }
    violations
}

/// The file of a manifest; `None`: it is compiled in.
pub(super) fn manifest(site: &Site) -> Option<String> {
    (!site.manifest.as_os_str().is_empty()).then(|| cut(&site.manifest.to_string_lossy()))
}

/// What a call did with its network: the first events, each cut, and all counts.
pub(super) fn network(traffic: &Traffic) -> Value {
    let events = traffic.events.iter().map(|event| {
        let refused = event.refused.as_ref().map(|refusal| match refusal.detail() {
            Some(detail) => cut_to(&format!("{refusal}: {detail}"), EVENT),
            None => cut_to(&refusal.to_string(), EVENT),
        });
        json!({"what": event.what, "target": cut_to(&event.target, EVENT), "refused": refused})
    });
    json!({"events": events.collect::<Vec<_>>(), "totals": traffic.totals, "counted": traffic.counted})
}

/// Which step of the road refused.
pub(super) fn rule(kind: Kind) -> &'static str {
    match kind {
        Kind::ToolNotFoundError | Kind::VersionMismatchError => "registry",
        Kind::ParameterValidationError | Kind::ActionParseError => "parameters",
        Kind::CapabilityError | Kind::DependencyError => "availability",
        Kind::SecurityError | Kind::AuthorizationError => "policy",
        Kind::RateLimitError | Kind::CircuitOpenError => "guard",
        Kind::ResourceLimitError => "limits",
        Kind::TimeoutError
        | Kind::ScriptError
        | Kind::OutputValidationError
        | Kind::ServiceError
        | Kind::CancelledError
        | Kind::InternalError => "host",
    }
}

/// The first of these notes, each cut, and how many more there are.
pub(super) fn few(notes: Vec<String>) -> Vec<String> {
    if notes.len() <= NOTES && notes.iter().all(|note| note.len() <= PART) {
        return notes;
    }
    let more = notes.len().saturating_sub(NOTES);
    let kept = notes.iter().take(NOTES - usize::from(more > 0)).map(|note| cut_to(note, PART));
    kept.chain((more > 0).then(|| format!("and {} more", more + 1))).collect()
}

pub(super) fn cut(words: &str) -> String {
    cut_to(words, CUT)
}

/// The name of the executor for scripts of this language.
pub(super) fn executor_of(language: Language) -> &'static str {
    match language {
        Language::Wasm => "wasm",
        Language::Python | Language::Nodejs | Language::Bun => "process",
    }
}

/// What was started, as a person would type it.
pub(super) fn command(shape: &policy::Shape) -> String {
    let program = match &shape.runtime.program {
        policy::Program::Path(path) => path.display().to_string(),
        policy::Program::Ourselves { role } => format!("toolhost {role}"),
    };
    let script = shape.script.as_ref().map_or_else(|| "<source>".into(), |script| script.display().to_string());
    let mut words = vec![program];
    words.extend(shape.runtime.arguments.iter().cloned());
    words.push(script);
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::protocol;
    use crate::quantity::Limit;
    use crate::service::audit;

    #[test]
    fn the_longest_record_fits_its_room() {
        // The worst case: each byte is written as six.
        let worst = "\u{1}".repeat(100_000);
        let many = || few(vec![worst.clone(); 1000]);
        let digests = Digests {
            manifest: Some("0".repeat(64)),
            script: Some("0".repeat(64)),
            policy: Some("0".repeat(64)),
            confinement: Some("0".repeat(64)),
        };
        let part = cut_to(&worst, PART);
        let violation =
            json!({"kind": "denied", "operation": part, "target": part, "rule": part, "narrower": "policy"});
        // Texts of events are printable: at worst two bytes are written as six.
        let long = "é".repeat(1000);
        let refused = Some(protocol::Refusal::Content { why: long.clone() });
        let event = protocol::Event { what: protocol::What::Connection, target: long, refused };
        let record = Record {
            time: "2026-11-21T00:00:00.000000000Z".to_owned(),
            call: &"0".repeat(36),
            user: part.clone(),
            through: Some(part.clone()),
            label: Some(&part),
            approved_by: Some(part.clone()),
            transaction: Some(&part),
            trace: Some("0".repeat(32)),
            tool: &part,
            version: Some("1.0.0".to_owned()),
            manifest: Some(cut(&worst)),
            digests: &digests,
            decision: "allowed",
            rule: part.clone(),
            service: Some(part.clone()),
            limits: Some(&policy::Limits(Limit::ALL.into_iter().map(|limit| (limit, u64::MAX)).collect())),
            outcome: "ParameterValidationError".to_owned(),
            message: Some(cut(&worst)),
            arguments: cut(&worst),
            usage: &executor::Usage::default(),
            notes: &many(),
            violations: vec![violation; VIOLATIONS],
            network: Some(network(&Traffic { events: vec![event; 2 * protocol::EVENTS + 1], ..Traffic::default() })),
        };
        let line = audit::ascii(&record).expect("JSON");
        assert!(line.len() as u64 > audit::ROOM / 2 && (line.len() as u64) < audit::ROOM, "{} bytes", line.len());
        assert_eq!(many().len(), NOTES);
        assert!(many().last().is_some_and(|last| last == "and 981 more"));
    }
}
