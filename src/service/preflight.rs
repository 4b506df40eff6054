//! Finds out why every call of a tool would be refused, whatever its arguments: for `list`,
//! `check`, `audit` and the tools that agents are offered. The messages are those of the call
//! pipeline; nothing is started.

use super::ledger::{self, Ledger};
use crate::executor::method::Methods;
use crate::executor::process::grants;
use crate::executor::remote::queues;
use crate::manifest::Handler;
use crate::policy::{self, Need};
use crate::{fault, registry};
use fault::{Fault, Kind};

#[derive(Clone, Debug)]
pub struct Obstacle {
    pub need: Need,
    pub kind: Kind,
    /// The words of the need are a whole sentence; otherwise they follow the word "needs".
    sentence: bool,
}

impl Obstacle {
    fn from_need(kind: Kind, need: Need) -> Obstacle {
        Obstacle {
            need,
            kind,
            sentence: false,
        }
    }

    fn from_fault(fault: &Fault, pointer: &str, mistake: bool) -> Obstacle {
        let mark = if fault.message.ends_with('.') {
            " "
        } else {
            ": "
        };
        let causes = fault
            .details
            .iter()
            .map(|more| mark.to_owned() + &more.lines().collect::<Vec<_>>().join("; "));
        let words = fault.message.clone() + &causes.collect::<String>();
        Obstacle {
            need: Need {
                mistake,
                ..Need::new(pointer, words)
            },
            kind: fault.kind,
            sentence: true,
        }
    }

    /// The text that follows "unavailable: ".
    pub fn words(&self) -> String {
        if self.sentence {
            self.need.words.clone()
        } else {
            format!("needs {}", self.need.words)
        }
    }
}

/// The obstacles of a tool. `runs`: whether this host can run its handler.
pub fn obstacles(
    tool: &registry::Tool,
    decision: &policy::Decision,
    runs: Result<(), Fault>,
) -> Vec<Obstacle> {
    let lacks = registry::needs_of(tool, decision);
    let below = decision.lacks_below.iter().cloned();
    let mut found: Vec<Obstacle> = lacks
        .into_iter()
        .chain(below)
        .map(|need| Obstacle::from_need(Kind::CapabilityError, need))
        .collect();
    let pointer = match tool.manifest.handler {
        Handler::ServiceMethod { .. } => "/handler/serviceName",
        _ => "/handler/type",
    };
    // An `x-…` type needs a host that provides it; an unknown service is more likely misspelt.
    let mistake = pointer == "/handler/serviceName";
    found.extend(
        runs.err()
            .map(|fault| Obstacle::from_fault(&fault, pointer, mistake)),
    );
    found.extend(
        registry::unsatisfied(tool, decision)
            .map(|need| Obstacle::from_need(Kind::SecurityError, need)),
    );
    if found.is_empty() {
        found.extend(
            decision
                .refused()
                .map(|why| Obstacle::from_fault(why, "", why.kind == Kind::DependencyError)),
        );
    }
    found
}

/// The fault that every call with good arguments ends with, if there is one.
fn fault(
    tool: &registry::Tool,
    decision: &policy::Decision,
    runs: Result<(), Fault>,
) -> Option<Fault> {
    let lacking = |needs: &[Need]| (!needs.is_empty()).then(|| unavailable(tool, needs));
    lacking(&registry::needs_of(tool, decision))
        .or_else(|| decision.refused().cloned())
        .or(runs.err())
        .or_else(|| lacking(&decision.lacks_below))
}

/// Puts the fault that every call would end with in place of a decision's shape: also a fault that
/// is not policy's (a service that is not registered, the state of granted files). `written`: where
/// tools may write; without a ledger, also where they could.
pub fn foresee(
    tool: &registry::Tool,
    decision: &mut policy::Decision,
    runs: Result<(), Fault>,
    ledger: Option<&Ledger>,
    written: &policy::WritablePaths,
) {
    if let Some(fault) = fault(tool, decision, runs) {
        decision.shape = Err(fault);
    }
    if let Ok(shape) = &mut decision.shape
        && let Err(fault) = ledger::look_back(shape, ledger, written)
    {
        decision.shape = Err(fault);
    }
    if let Some((fault, _)) = decision
        .shape
        .as_ref()
        .ok()
        .and_then(|shape| grants::foresee(shape))
    {
        decision.shape = Err(fault);
    }
}

/// Refuses a tool that lacks something on this machine, before its arguments are read.
pub(super) fn available(tool: &registry::Tool, decision: &policy::Decision) -> Result<(), Fault> {
    let needs = registry::needs_of(tool, decision);
    if needs.is_empty() {
        Ok(())
    } else {
        Err(unavailable(tool, &needs))
    }
}

/// The refusal of a tool that is loaded, but lacks something on this machine.
fn unavailable(tool: &registry::Tool, needs: &[Need]) -> Fault {
    let message = format!(
        "Tool {} is not available in this host: it needs {}.",
        tool.manifest.id,
        needs.join("; ")
    );
    let fault = Fault::new(Kind::CapabilityError, message);
    if needs.iter().any(|need| need.pointer == "/handler/language") {
        fault.person(
            "`toolhost doctor` shows which runtimes were found, and why others were passed over",
        )
    } else {
        fault
    }
}

/// Whether a host that has only what this binary ships can run the handler.
pub fn shipped(handler: &Handler) -> Result<(), Fault> {
    match handler {
        Handler::ServiceMethod { .. } => Methods::new().find(handler).map(drop),
        Handler::Extension { kind, .. } => Err(no_extension(kind)),
        // `policy::needs_of` reports that `DefinitionOnly` is not supported yet.
        Handler::ToolService(remote) => remote
            .descriptor
            .iter()
            .try_for_each(|service| queues(service)),
        Handler::DefinitionOnly | Handler::Script { .. } | Handler::Document(_) => Ok(()),
    }
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
