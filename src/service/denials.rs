//! Denials: what a networked call was refused, and what failed on its way to a host, as data and in words.
//!
//! For: the road. In: the traffic of a call, what was decided about its tool. Out: denials for the outcome; words for
//! whoever called, and for the person. Never: says anything of a host that the tool did not name itself.

use crate::base::text::{path, printable};
use crate::egress::Traffic;
use crate::egress::protocol::{Event, Refusal, What};
use crate::executor::Denial;
use crate::manifest::host::{self, HostPattern};
use crate::policy::{self, Narrower};
use crate::registry;

/// Most events of which an error speaks.
const TOLD: usize = 3;

/// The refusals among these events, each once.
pub(super) fn observed(traffic: &Traffic, decision: &policy::Decision) -> Vec<Denial> {
    let mut found: Vec<Denial> = Vec::new();
    for event in &traffic.events {
        let Some(refusal) = event.refused.as_ref().filter(|refusal| refusal.is_a_rule()) else { continue };
        let narrower = narrower(event, refusal, decision);
        let rule = printable(&refusal.to_string());
        let denial =
            Denial { operation: operation(event.what).to_owned(), target: event.target.clone(), rule, narrower };
        if !found.contains(&denial) {
            found.push(denial);
        }
    }
    found
}

fn operation(what: What) -> &'static str {
    match what {
        What::Lookup => "resolve",
        What::Connection => "connect",
        What::Request => "request",
        What::Replaced => "replace",
    }
}

fn narrower(event: &Event, refusal: &Refusal, decision: &policy::Decision) -> String {
    let narrower = match refusal {
        Refusal::NotGranted => match asked(&event.target, decision) {
            Some(verdict) => verdict.narrower.unwrap_or(Narrower::Policy),
            None => Narrower::Manifest,
        },
        Refusal::Address { .. } | Refusal::Secret { .. } => Narrower::Policy,
        _ => Narrower::House,
    };
    narrower.name().to_owned()
}

/// What was decided about this target, where the manifest asks for it.
fn asked<'d>(target: &str, decision: &'d policy::Decision) -> Option<&'d policy::Verdict> {
    let target = host::pattern(target).ok()?;
    let mut hosts = decision.verdicts.iter().filter(|verdict| verdict.what == policy::What::Host);
    hosts.find(|verdict| host::pattern(&verdict.asked).is_ok_and(|ask| reaches(&ask, &target)))
}

fn reaches(ask: &HostPattern, target: &HostPattern) -> bool {
    ask.host.covers(&target.host) && target.ports().iter().any(|port| ask.ports().contains(port))
}

/// What went wrong with hosts, for whoever called: the first few of what was refused or failed.
pub(super) fn words(traffic: &Traffic) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    for event in &traffic.events {
        let Some(refusal) = &event.refused else { continue };
        let line = format!("{} {}: {refusal}", operation(event.what), event.target);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.sort_by_key(|line| line.starts_with("resolve"));
    let more = lines.len().saturating_sub(TOLD);
    lines.truncate(TOLD);
    let more = (more > 0).then(|| format!("and {more} more of the kind"));
    let lines: Vec<String> = lines.into_iter().map(|line| printable(&line)).chain(more).collect();
    (!lines.is_empty()).then(|| format!("The network said: {}.", lines.join("; ")))
}

/// What failed in detail, and the lines that would ask for what was not granted, for the person.
pub(super) fn mend(traffic: &Traffic, tool: &registry::Tool, decision: &policy::Decision) -> Option<String> {
    let details = traffic.events.iter().filter_map(|event| {
        let detail = event.refused.as_ref()?.detail()?;
        Some(format!("{}: {}", event.target, printable(detail)))
    });
    let mut details: Vec<String> = details.collect();
    details.dedup();
    details.truncate(TOLD);
    details.extend(grant(traffic, tool, decision));
    (!details.is_empty()).then(|| details.join("\n"))
}

fn grant(traffic: &Traffic, tool: &registry::Tool, decision: &policy::Decision) -> Option<String> {
    let refused = traffic.events.iter().find(|event| event.refused == Some(Refusal::NotGranted))?;
    let target = printable(&host::pattern(&refused.target).ok()?.to_string());
    let policy = match decision.policy_file.as_os_str().is_empty() {
        true => format!("a policy that names {}", tool.manifest.id),
        false => path(&decision.policy_file),
    };
    let allow = format!("[network] hosts = [{{ host = \"{target}\", why = \"…\" }}] in {policy}");
    if let Some(verdict) = asked(&refused.target, decision) {
        return Some(match (verdict.narrower, &verdict.reason) {
            (Some(Narrower::Host), Some(reason)) => printable(&format!("{target}: {reason}")),
            _ => format!("{target} is asked for and not allowed: {allow}"),
        });
    }
    let pointer = "/securityContext/networkAccess/allowHosts";
    let (line, column) = registry::position(&tool.site.manifest, pointer);
    let manifest = path(&tool.site.manifest);
    let place = if line > 0 { format!("{manifest}:{line}:{column}") } else { manifest };
    Some(format!(
        "if the tool should reach {target}: \"{target}\" in securityContext.networkAccess.allowHosts ({place}), and {allow}"
    ))
}
