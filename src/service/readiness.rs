//! Whether a tool can run on this host now, whatever the arguments of a call, and why not: for the
//! call pipeline, `list`, `check`, `audit` and the tools that agents are offered. Nothing is
//! started.

use super::ledger::{self, Ledger};
use crate::executor::method::Methods;
use crate::executor::process::grants;
use crate::executor::remote::queues;
use crate::fault::{Fault, Kind};
use crate::manifest::Handler;
use crate::policy::{self, Decision};
use crate::registry::Tool;
use std::borrow::Borrow;
use std::ops::Deref;

#[derive(Clone, Debug)]
pub enum Readiness {
    Ready,
    /// It is ready where clients run tools; nothing of it runs here.
    AtClient,
    /// The tool needs what it does not have here.
    Unavailable(Vec<Need>),
    /// No call of any tool is accepted.
    Refused(Fault),
}

/// What keeps a tool from running. Any caller may read the words.
#[derive(Clone, Debug)]
pub enum Need {
    /// This machine or this version of toolhost lacks it.
    Machine(policy::Need),
    /// This machine lacks it for the scripts that the tool is asked to run. A call looks at them
    /// itself.
    Scripts(policy::Need),
    Policy(policy::Need),
    /// Calls end with this fault. The words are a sentence.
    Fault(policy::Need, Fault),
}

impl Deref for Need {
    type Target = policy::Need;

    fn deref(&self) -> &policy::Need {
        match self {
            Need::Machine(need)
            | Need::Scripts(need)
            | Need::Policy(need)
            | Need::Fault(need, _) => need,
        }
    }
}

/// Lets `join` work on a list of needs.
impl Borrow<str> for Need {
    fn borrow(&self) -> &str {
        &self.words
    }
}

impl Need {
    fn of_fault(fault: Fault, pointer: &str, mistake: bool) -> Need {
        let mark = if fault.message.ends_with('.') {
            " "
        } else {
            ": "
        };
        let causes = fault.details.iter();
        let causes =
            causes.map(|more| mark.to_owned() + &more.lines().collect::<Vec<_>>().join("; "));
        let words = fault.message.clone() + &causes.collect::<String>();
        let need = policy::Need {
            mistake,
            ..policy::Need::new(pointer, words)
        };
        Need::Fault(need, fault)
    }

    /// The text that follows "unavailable: ".
    pub fn text(&self) -> String {
        match self {
            Need::Fault(need, _) => need.words.clone(),
            _ => format!("needs {}", self.words),
        }
    }
}

impl Readiness {
    /// `runs`: whether this host can run the tool's handler.
    pub fn of(tool: &Tool, decision: &Decision, runs: Result<(), Fault>) -> Readiness {
        let machine = tool.needs.iter().chain(&decision.lacks).cloned();
        let scripts = decision.lacks_below.iter().cloned();
        // An `x-…` type needs a host that provides it; an unknown service is more likely misspelt.
        let handler = runs.err().map(|fault| match tool.manifest.handler {
            Handler::ServiceMethod { .. } => Need::of_fault(fault, "/handler/serviceName", true),
            _ => Need::of_fault(fault, "/handler/type", false),
        });
        let needs = machine.map(Need::Machine).chain(scripts.map(Need::Scripts));
        let mut needs: Vec<Need> = needs.chain(handler).collect();
        let refused = decision.refused();
        if decision.is_denied() {
            let approval = decision.approval.as_ref();
            let words = if approval.is_some_and(|it| !it.is_met()) {
                "a person's approval of what it is now"
            } else if decision.denied().any(policy::Verdict::never) {
                "a manifest that requests less, since no policy can allow this"
            } else {
                "a policy that allows its requests"
            };
            let words = format!("{words}: see `toolhost audit {}`", tool.manifest.id);
            needs.push(Need::Policy(policy::Need::new("", words)));
        } else if let Some(fault) = refused.filter(|_| needs.is_empty()) {
            let mistake = fault.kind == Kind::DependencyError;
            needs.push(Need::of_fault(fault.clone(), "", mistake));
        }
        if !needs.is_empty() {
            Readiness::Unavailable(needs)
        } else if tool.manifest.client_tool().is_some() {
            Readiness::AtClient
        } else {
            Readiness::Ready
        }
    }

    /// On a host that has only what this binary ships.
    pub fn shipped(tool: &Tool, decision: &Decision) -> Readiness {
        let runs = match &tool.manifest.handler {
            handler @ Handler::ServiceMethod { .. } => Methods::new().find(handler).map(drop),
            Handler::Extension { kind, .. } => Err(no_extension(kind)),
            Handler::ToolService(remote) => remote
                .descriptor
                .iter()
                .try_for_each(|service| queues(service)),
            Handler::Script(_)
            | Handler::McpServer(_)
            | Handler::McpTool(_)
            | Handler::Document(_)
            | Handler::Client(_)
            | Handler::Alias(_)
            | Handler::Skill(_) => Ok(()),
        };
        Readiness::of(tool, decision, runs)
    }

    /// Everything that keeps the tool from running.
    pub fn needs(self) -> Vec<Need> {
        match self {
            Readiness::Unavailable(needs) => needs,
            Readiness::Ready | Readiness::AtClient | Readiness::Refused(_) => Vec::new(),
        }
    }

    /// What this machine lacks.
    pub fn lacks(self) -> Vec<Need> {
        let mut needs = self.needs();
        needs.retain(|need| matches!(need, Need::Machine(_)));
        needs
    }
}

/// Puts the fault that every call with good arguments would end with in place of a decision's
/// shape: also a fault that is not policy's (a service that is not registered, the state of granted
/// files). `written`: where tools may write; without a ledger, also where they could.
pub fn foresee(
    tool: &Tool,
    decision: &mut Decision,
    readiness: Readiness,
    ledger: Option<&Ledger>,
    written: &policy::WritablePaths,
) {
    let needs = readiness.clone().needs();
    let handler = needs.iter().find_map(|need| match need {
        Need::Fault(_, fault) => Some(fault.clone()),
        _ => None,
    });
    let fault = unavailable(tool, decision, &readiness.lacks())
        .or_else(|| decision.refused().cloned())
        .or(handler)
        .or_else(|| unavailable(tool, decision, &needs));
    if let Some(fault) = fault {
        decision.shape = Err(fault);
    }
    if let Ok(shape) = &mut decision.shape {
        let looked = ledger::look_back(shape, ledger, written).err();
        let fault = looked.or_else(|| grants::foresee(shape).map(|(fault, _)| fault));
        let required = decision.packages.required.as_ref();
        let granted = required.zip(decision.grants.packages.as_ref());
        let unlocked = granted.and_then(|(required, grant)| {
            policy::unlocked(required, &grant.rules, &tool.manifest.id)
        });
        let fault = fault.or(unlocked);
        decision.shape = fault.map_or_else(|| Ok(shape.clone()), Err);
    }
}

/// The refusal of a tool that is loaded, but lacks these on this machine.
pub(super) fn unavailable(tool: &Tool, decision: &Decision, needs: &[Need]) -> Option<Fault> {
    let message = format!(
        "Tool {} is not available in this host: it needs {}.",
        tool.manifest.id,
        needs.join("; ")
    );
    let fault = Fault::new(Kind::CapabilityError, message);
    let is_runtime = needs.iter().any(|need| need.pointer == "/handler/language");
    let denied = decision
        .denied()
        .find(|verdict| verdict.what == policy::RequestKind::Runtime);
    let reason = denied.and_then(|verdict| verdict.reason.as_deref());
    let person = format!(
        "{}\n`toolhost doctor` shows which runtimes were found, and why others were passed over",
        reason.unwrap_or_default()
    );
    (!needs.is_empty()).then(|| {
        if is_runtime {
            fault.person(person.trim_start())
        } else {
            fault
        }
    })
}

pub(super) fn no_extension(kind: &str) -> Fault {
    Fault::new(
        Kind::CapabilityError,
        format!(
            "This host cannot run tools of type '{}'.",
            kind.escape_debug()
        ),
    )
}
