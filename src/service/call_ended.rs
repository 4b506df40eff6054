//! The one value that a call leaves, made at its end, with its line of the audit log. All parts of
//! that line fit into `audit::MAX_RECORD_BYTES` together, even if every byte is escaped.

use super::alerts::{Alert, AlertedCall, Ended};
use super::artifacts::FileRecord;
use super::redaction::line;
use super::report::{Digests, Report, Verbose};
use crate::base::mask::Mask;
use crate::base::sha256_hex;
use crate::base::text::{cut as cut_to, printable, printable_block};
use crate::egress::Traffic;
use crate::fault::{Kind, Origin};
use crate::manifest::ToolPaths;
use crate::{executor, policy};
use executor::Denial;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Longest text of a caller or tool in a record, bytes.
pub(super) const CUT: usize = 2048;
/// Longest part where a record has several, bytes. Names of callers are as long at most, and never
/// cut. Even with each byte as `\u00XX` all fit into `audit::MAX_RECORD_BYTES`.
pub(super) const PART: usize = 256;
/// Most violations in a record; if there were more, the last says how many more.
const VIOLATIONS: usize = 10;
/// Most files in each list of a record; if there were more, the last entry has one digest for the
/// rest.
const FILES: usize = 32;
/// The kind of that entry.
pub(super) const MORE: &str = "more";
/// Most notes in a record or a report; if there were more, the last says how many more.
const NOTES: usize = 20;
/// Longest text of a network event, bytes.
const EVENT: usize = 80;
/// Longest text of `--verbose`, bytes.
const VERBOSE_TEXT: usize = 16 * 1024;

/// A call that is over, secrets hidden and texts bounded. The audit log, the run log, traces,
/// metrics, `--verbose` and the states of calls read this and nothing else.
pub(super) struct CallEnded {
    /// What its caller gets.
    pub report: Report,
    pub line: AuditRecord,
    pub caller: String,
    /// `id@version`; the requested name, if no tool was found.
    pub tool: String,
    pub policy: String,
    /// Which executors the call leads to; empty: none.
    pub executor: String,
    /// What was called: a command line, `service.method`, or an `x-…` type.
    pub command: String,
    /// The packages that it has.
    pub dependencies: String,
    /// The first bytes of a stdout that is not one JSON document.
    pub bad_output: String,
    /// Each stage: when it began, measured from the call's arrival, and how long it took.
    pub stages: Vec<(Stage, Duration, Duration)>,
    pub took: Duration,
}

impl CallEnded {
    /// What the end of the call gives reason for.
    pub fn alert(&self) -> Option<Alert> {
        let last = AlertedCall {
            call: self.line.call.clone(),
            // A name of none of our tools is the caller's text.
            tool: self.line.version.is_some().then(|| self.tool.clone()),
            caller: printable(&self.caller),
        };
        let denied = !self.report.observed.denials.observed.is_empty();
        let what = match self.report.outcome.fault().map(|fault| fault.kind) {
            Some(Kind::SecurityError) => return Some(Alert::SecurityError(last)),
            Some(Kind::InternalError) => return Some(Alert::HostFailed(last)),
            Some(Kind::TimeoutError) => Ended::Timeouts,
            Some(Kind::ResourceLimitError) => Ended::Limits,
            Some(kind) if kind.origin() == Origin::Policy => Ended::Refusals,
            _ if denied => Ended::Refusals,
            Some(Kind::ScriptError) => Ended::Crashes,
            _ => return None,
        };
        Some(Alert::TooMany { what, last })
    }

    /// The output of `--verbose`: cut, and without control characters. `known`: what was noted
    /// before the end.
    pub fn verbose(&self, known: &Verbose) -> Verbose {
        fn block(text: &str) -> String {
            printable_block(&cut_to(text, VERBOSE_TEXT))
        }
        // What runs in this process has no standard output.
        let answer = self
            .report
            .outcome
            .answer()
            .filter(|_| known.stdout.is_empty());
        let mut timing: Vec<(&'static str, f64)> = Vec::new();
        for (stage, _, took) in &self.stages {
            let ms = (took.as_secs_f64() * 1e5).round() / 100.0;
            match timing.iter_mut().find(|(name, _)| *name == stage.name()) {
                Some((_, all)) => *all += ms,
                None => timing.push((stage.name(), ms)),
            }
        }
        Verbose {
            command: printable(&cut_to(&self.command, VERBOSE_TEXT)),
            stdin: block(&known.stdin),
            stdout: block(answer.map_or(&known.stdout, |answer| answer.head(usize::MAX))),
            stderr: block(&self.report.logs.join("\n")),
            grants: known.grants.clone(),
            timing,
        }
    }
}

/// The audit record of a call.
#[derive(Clone, Default, Serialize)]
pub(super) struct AuditRecord {
    pub time: String,
    pub call: String,
    /// The call whose code made this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    pub user: String,
    /// Who authenticated, if not `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// The user whom the request names: not an identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Who agreed to the call, where a policy has a person asked.
    #[serde(rename = "approvedBy", skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// What the caller groups calls by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    /// The id of the trace that the call is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    pub tool: String,
    pub version: Option<String>,
    /// The file of the tool's manifest: the same id and version may be loaded from elsewhere
    /// another time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The root of the host that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    pub digests: Digests,
    pub decision: Decision,
    pub rule: String,
    /// The place of the tool service that was called. `digests` cover nothing of its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub limits: Option<policy::Limits>,
    pub outcome: String,
    pub message: Option<String>,
    pub arguments: String,
    pub usage: executor::Usage,
    /// What the call brought, and what it left in the store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Value>,
    pub notes: Vec<String>,
    pub violations: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Decision {
    Allowed,
    #[default]
    Refused,
}

/// What a call goes through, in this order; some calls skip some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The call waits for a slot.
    Turn,
    /// The tool is found, arguments are checked, policy decides.
    Decide,
    Confirm,
    /// Packages, grants and secrets are made ready.
    Prepare,
    Run,
    /// The answer is checked and the record written.
    Answer,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Turn => "turn",
            Stage::Decide => "decide",
            Stage::Confirm => "confirm",
            Stage::Prepare => "prepare",
            Stage::Run => "run",
            Stage::Answer => "answer",
        }
    }
}

/// The first violations, and how many more there are.
pub(super) fn violations(fault: Option<(Kind, &str)>, denials: &[Denial]) -> Vec<Value> {
    fn part(text: &str) -> String {
        cut_to(text, PART)
    }
    let broken = fault.filter(|(kind, _)| {
        matches!(kind.origin(), Origin::Policy)
            || matches!(kind, Kind::TimeoutError | Kind::ResourceLimitError)
    });
    let own = broken.map(|(kind, message)| json!({"kind": kind, "what": part(message)}));
    let denied = denials.iter().map(|denial| {
        let Denial { operation, target, rule, narrower, .. } = denial;
        json!({"kind": "denied", "operation": part(operation), "target": part(target), "rule": part(rule),
               "narrower": narrower})
    });
    let mut violations: Vec<Value> = own.into_iter().chain(denied).collect();
    if let Some(more) = violations
        .len()
        .checked_sub(VIOLATIONS)
        .filter(|more| *more > 0)
    {
        violations.truncate(VIOLATIONS - 1);
        violations.push(json!({"kind": MORE, "count": more + 1}));
    }
    violations
}

/// The first of these files, and how many more there are.
pub(super) fn files(files: &[FileRecord], mask: &Mask) -> Vec<Value> {
    let (first, rest) = files.split_at(files.len().min(FILES));
    let mut shown: Vec<Value> = first
        .iter()
        .map(|file| {
            let name = cut_to(&line(mask, &file.name), PART);
            json!({"name": name, "bytes": file.bytes, "sha256": file.sha256})
        })
        .collect();
    if !rest.is_empty() {
        let digests: String = rest.iter().map(|file| file.sha256.as_str()).collect();
        let digest = sha256_hex(digests.as_bytes());
        shown.push(json!({"kind": MORE, "count": rest.len(), "sha256": digest}));
    }
    shown
}

/// The file of a manifest; `None`: it is compiled in.
pub(super) fn manifest(site: &ToolPaths) -> Option<String> {
    (!site.manifest.as_os_str().is_empty()).then(|| cut_to(&site.manifest.to_string_lossy(), CUT))
}

/// What a call did with its network: the first events, each cut, and all counts.
pub(super) fn events(traffic: &Traffic) -> Value {
    let events = traffic.events.iter().map(|event| {
        let refused = event
            .refused
            .as_ref()
            .map(|refusal| match refusal.detail() {
                Some(detail) => cut_to(&format!("{refusal}: {detail}"), EVENT),
                None => cut_to(&refusal.to_string(), EVENT),
            });
        json!({"what": event.what, "target": cut_to(&event.target, EVENT), "refused": refused})
    });
    json!({"events": events.collect::<Vec<_>>(), "totals": traffic.totals, "counted": traffic.counted})
}

/// Which stage refused.
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
    let kept = notes
        .iter()
        .take(NOTES - usize::from(more > 0))
        .map(|note| cut_to(note, PART));
    kept.chain((more > 0).then(|| format!("and {} more", more + 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::protocol;
    use crate::quantity::Limit;
    use crate::service::audit;

    #[test]
    fn the_longest_record_fits() {
        // The worst case: each byte is written as six; texts of events are printable, at worst two
        // bytes as six.
        let (worst, long) = ("\u{1}".repeat(100_000), "é".repeat(1000));
        let (part, digest, text) = (
            cut_to(&worst, PART),
            Some("0".repeat(64)),
            Some(cut_to(&worst, CUT)),
        );
        let (operation, target, rule) = (worst.clone(), worst.clone(), worst.clone());
        let denial = Denial {
            operation,
            target,
            rule,
            ..Denial::default()
        };
        let refused = Some(protocol::RefusalReason::Content { why: long.clone() });
        let file = FileRecord {
            name: long.clone(),
            bytes: u64::MAX,
            sha256: "0".repeat(64),
        };
        let worst_files = vec![file; 128];
        let event = protocol::TrafficEvent {
            what: protocol::TrafficKind::Connection,
            target: long,
            refused,
        };
        let line = AuditRecord {
            time: "2026-11-21T00:00:00.000000000Z".to_owned(),
            call: "0".repeat(36),
            parent: Some("0".repeat(36)),
            user: part.clone(),
            through: Some(part.clone()),
            label: Some(part.clone()),
            approved_by: Some(format!("{part} (as the MCP client says)")),
            transaction: Some(part.clone()),
            trace: Some("0".repeat(32)),
            tool: part.clone(),
            manifest: text.clone(),
            root: text.clone(),
            digests: Digests {
                manifest: digest.clone(),
                script: digest.clone(),
                policy: digest.clone(),
                confinement: digest,
            },
            rule: part.clone(),
            service: Some(part),
            limits: Some(policy::Limits(
                Limit::ALL
                    .into_iter()
                    .map(|limit| (limit, u64::MAX))
                    .collect(),
            )),
            message: text,
            files: files(&worst_files, &Mask::default()),
            artifacts: files(&worst_files, &Mask::default()),
            arguments: cut_to(&worst, CUT),
            notes: few(vec![worst; 1000]),
            violations: violations(None, &vec![denial; 2 * VIOLATIONS]),
            network: Some(events(&Traffic {
                events: vec![event; 2 * protocol::EVENTS + 1],
                ..Traffic::default()
            })),
            ..AuditRecord::default()
        };
        assert!(
            line.notes.len() == NOTES
                && line.notes.last().is_some_and(|last| last == "and 981 more")
        );
        let length = audit::ascii(&line).expect("JSON").len() as u64;
        assert!(
            (audit::MAX_RECORD_BYTES / 2..audit::MAX_RECORD_BYTES).contains(&length),
            "{length} bytes"
        );
    }
}
