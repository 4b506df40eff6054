//! Denials: what a call was refused, and what failed on its way to a host, as data and in words.
//!
//! For: the road. In: the traffic of a call, what a recorded call attempted, what was decided about its tool. Out:
//! denials for the outcome; words for whoever called, and for the person. Never: says anything of a host or a file that
//! the tool did not name itself.

use crate::base::text::{path, printable};
use crate::egress::Traffic;
use crate::egress::protocol::{Event, Refusal, What};
use crate::executor::{Attempt, Denial, NEVER, Operation};
use crate::manifest::Site;
use crate::manifest::host::{self, HostPattern};
use crate::policy::base_view::KERNEL;
use crate::policy::{self, Narrower, Verdict};
use crate::quantity::Limit;
use crate::registry;
use std::path::{Path, PathBuf};

/// The operation of a limit that was reached.
pub const LIMIT: &str = "limit";
/// Most events of which an error speaks.
const TOLD: usize = 3;

/// What ran, and what was decided about it.
pub(super) struct About<'a> {
    pub site: &'a Site,
    pub decision: &'a policy::Decision,
}

/// What was refused, each once. Texts are as the tool gave them: secrets are not hidden yet, nothing is cut.
pub(super) fn observed(traffic: &Traffic, attempts: &[Attempt], about: &About) -> Vec<Denial> {
    let mut found: Vec<Denial> = Vec::new();
    for event in &traffic.events {
        let Some(refusal) = event.refused.as_ref().filter(|refusal| refusal.is_a_rule()) else { continue };
        let narrower = narrower(event, refusal, about.decision);
        let rule = printable(&refusal.to_string());
        let ask = (*refusal == Refusal::NotGranted).then(|| grant(&event.target, about)).flatten();
        let (operation, target) = (operation(event.what).to_owned(), event.target.clone());
        let denial = Denial { operation, target, rule, narrower, ask };
        if !found.contains(&denial) {
            found.push(denial);
        }
    }
    found.extend(attempts.iter().map(|attempt| attempted(attempt, about)));
    found
}

fn operation(what: What) -> &'static str {
    match what {
        What::Lookup => "resolve",
        What::Connection => "connect",
        What::Request => "request",
        What::Listener => "listen",
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
fn asked<'d>(target: &str, decision: &'d policy::Decision) -> Option<&'d Verdict> {
    let target = host::pattern(target).ok()?;
    let mut hosts = decision.verdicts.iter().filter(|verdict| verdict.what == policy::What::Host);
    hosts.find(|verdict| host::pattern(&verdict.asked).is_ok_and(|ask| reaches(&ask, &target)))
}

/// A name that is looked up has no port yet.
fn reaches(ask: &HostPattern, target: &HostPattern) -> bool {
    let port = target.port.is_none_or(|port| ask.ports().contains(&port));
    ask.host.covers(&target.host) && port
}

/// The limit that ended a call, with its value. `ask`: who set it, and who may set a larger one.
pub(super) fn limit((limit, allowed): (Limit, u64), decided: &policy::Decision, ask: Option<String>) -> Option<Denial> {
    let verdict = decided.limit(limit)?;
    // More than the ceiling is the policy's to allow; up to it the manifest asks.
    let narrower = if verdict.effective < verdict.ceiling { Narrower::Manifest } else { Narrower::Policy };
    Some(Denial {
        operation: LIMIT.to_owned(),
        target: limit.name().to_owned(),
        rule: format!("at most {allowed}"),
        narrower: narrower.name().to_owned(),
        ask,
    })
}

/// What a mechanism that sees files and system calls refused the call.
fn attempted(attempt: &Attempt, about: &About) -> Denial {
    let what = match attempt.operation {
        Operation::Read | Operation::Run => policy::What::Read,
        Operation::Write => policy::What::Write,
        Operation::Call => {
            let (target, rule) = (attempt.target.clone(), format!("seccomp: {}", attempt.rule));
            let narrower = Narrower::House.name().to_owned();
            return Denial { operation: "call".to_owned(), target, rule, narrower, ask: None };
        }
    };
    let path = Path::new(attempt.path.as_deref().unwrap_or(&attempt.target));
    let decided = about.decision.asked_for(what, path).filter(|verdict| !verdict.allowed);
    let narrower = decided.and_then(|verdict| verdict.narrower).unwrap_or(Narrower::Manifest);
    let own = [Some(&about.site.manifest), about.site.script.as_ref()];
    let own = attempt.operation == Operation::Write && own.contains(&Some(&path.to_owned()));
    let never = own || NEVER.contains(&attempt.rule.as_str());
    Denial {
        operation: verb(attempt.operation).to_owned(),
        target: attempt.target.clone(),
        rule: attempt.rule.clone(),
        narrower: if never { Narrower::House } else { narrower }.name().to_owned(),
        ask: (!never).then(|| file_grant(path, what, decided, about)).flatten(),
    }
}

fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Run => "run",
        Operation::Call => "call",
    }
}

/// What went wrong with hosts, for whoever called: the first few.
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

/// Refused files and system calls among these denials: of which a script's own words speak, and the others.
pub(super) fn spoken_of<'d>(denials: &'d [Denial], words: &str) -> (Vec<&'d Denial>, Vec<&'d Denial>) {
    let operations = [Operation::Read, Operation::Write, Operation::Run, Operation::Call].map(verb);
    let files = denials.iter().filter(|denial| operations.contains(&denial.operation.as_str()));
    files.partition(|denial| words.contains(denial.target.as_str()))
}

/// A few of these denials in words, the last ones; a refused file says more than a system call, which libraries often
/// only try.
pub(super) fn few(denials: &[&Denial]) -> String {
    let call = |denial: &&&Denial| denial.operation == verb(Operation::Call);
    let mut told: Vec<&&Denial> = denials.iter().filter(call).chain(denials.iter().filter(|d| !call(d))).collect();
    let more = told.len().saturating_sub(TOLD);
    let told: Vec<String> = told
        .split_off(more)
        .into_iter()
        .map(|denial| format!("{} {} ({})", denial.operation, denial.target, denial.rule))
        .chain((more > 0).then(|| format!("and {more} more")))
        .collect();
    told.join(", ")
}

/// What failed in detail on the network, and the lines that would ask for what was not granted, for the person.
pub(super) fn mend(traffic: &Traffic, denials: &[Denial]) -> Option<String> {
    let details = traffic.events.iter().filter_map(|event| {
        let detail = event.refused.as_ref()?.detail()?;
        Some(format!("{}: {}", event.target, printable(detail)))
    });
    let mut lines: Vec<String> = details.collect();
    lines.dedup();
    lines.truncate(TOLD);
    let of_network = [What::Lookup, What::Connection, What::Request, What::Listener].map(operation);
    let of_network = denials.iter().filter(|denial| of_network.contains(&denial.operation.as_str()));
    lines.extend(of_network.filter_map(|denial| denial.ask.clone()).take(TOLD));
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The lines that would ask for a few of these, the last ones.
pub(super) fn asks(denials: &[&Denial]) -> Option<String> {
    let lines: Vec<String> = denials.iter().rev().filter_map(|denial| denial.ask.clone()).take(TOLD).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

impl About<'_> {
    /// The file of the policy that decided, or of one that would have to be made.
    fn policy_file(&self) -> String {
        let id = self.decision.tool.split('@').next().unwrap_or_default();
        match self.decision.policy_file.as_os_str().is_empty() {
            true => format!("a policy that names {id}"),
            false => path(&self.decision.policy_file),
        }
    }

    /// `file:line:column` of a part of the manifest; the file where it has no such part.
    fn place(&self, pointer: &str) -> String {
        let (line, column) = registry::position(&self.site.manifest, pointer);
        let manifest = path(&self.site.manifest);
        if line > 0 { format!("{manifest}:{line}:{column}") } else { manifest }
    }
}

/// What would ask for this host.
fn grant(target: &str, about: &About) -> Option<String> {
    let shown = printable(&host::pattern(target).ok()?.to_string());
    let allow = format!("[network] hosts = [{{ host = \"{shown}\", why = \"…\" }}] in {}", about.policy_file());
    if let Some(verdict) = asked(target, about.decision) {
        return Some(match (verdict.narrower, &verdict.reason) {
            (Some(Narrower::Host), Some(reason)) => printable(&format!("{shown}: {reason}")),
            _ => format!("{shown} is asked for and not allowed: {allow}"),
        });
    }
    let place = about.place("/securityContext/networkAccess/allowHosts");
    Some(format!(
        "if the tool should reach {shown}: \"{shown}\" in securityContext.networkAccess.allowHosts ({place}), and {allow}"
    ))
}

/// What would ask for this file. Nothing for what no policy opens, and for names that would have to be quoted or would
/// mean more than one file.
fn file_grant(file: &Path, what: policy::What, decided: Option<&Verdict>, about: &About) -> Option<String> {
    let text = file.to_str()?;
    let plain = text == printable(text) && !text.contains(['"', '\\', '*', '?', '[', ']', '{', '}', '\u{FFFD}']);
    if about.site.manifest.as_os_str().is_empty() || !plain || KERNEL.iter().any(|tree| file.starts_with(tree)) {
        return None;
    }
    let own = file.strip_prefix(&about.site.folder).ok().filter(|rest| !rest.as_os_str().is_empty());
    let manifest = path(own.unwrap_or(file));
    let rule = path(&own.map_or_else(|| file.to_owned(), |own| PathBuf::from(".").join(own)));
    let (field, key) = if what == policy::What::Write { ("allowWrite", "write") } else { ("allowRead", "read") };
    let allow = format!("[files] {key} = [{{ path = \"{rule}\", why = \"…\" }}] in {}", about.policy_file());
    if let Some(verdict) = decided {
        let reason = verdict.reason.as_deref().unwrap_or_default();
        return Some(match verdict.narrower {
            Some(Narrower::Policy) => format!("{manifest} is asked for and not allowed: {allow}"),
            _ => format!("{manifest} is asked for: {reason}"),
        });
    }
    let place = about.place(&format!("/securityContext/fileAccess/{field}"));
    Some(format!(
        "if the tool should {key} {manifest}: \"{manifest}\" in securityContext.fileAccess.{field} ({place}), and {allow}"
    ))
}
