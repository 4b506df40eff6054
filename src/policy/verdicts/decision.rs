//! The decision about one tool: every request with its answer, and the shape that enforces exactly
//! those answers.

use super::approved::Approval;
use super::limits::of_shape;
use super::packages::Allowance;
use super::shape::{Runtime, Shape, Variable};
use super::verdict::{Confirm, LimitVerdict, Need, Notes, RequestKind, Verdict};
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::manifest::CommandLine;
use crate::policy::grammar::capability::kind;
use crate::policy::grammar::hosts::risks;
use crate::policy::grammar::{
    Access, ApprovedCode, CallGrant, CallerGrant, CapabilityKind, Ecosystem, Grant, HostGrant,
    McpGrant, Network, PackageGrant, PackageRequirements, PassedOver, ReadyGrant, SecretGrant,
    ServiceGrant, SessionGrant,
};
use crate::quantity::Limit;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything decided about one tool on this machine.
#[derive(Clone, Debug)]
pub struct Decision {
    pub identity: Identity,
    pub governing: Governing,
    pub grants: Grants,
    pub packages: PackageDecision,
    pub limits: Vec<LimitVerdict>,
    pub conditions: Conditions,
    /// `None`: it runs whether or not a person approved it.
    pub approval: Option<Approval>,
    pub verdicts: Vec<Verdict>,
    pub notes: Notes,
    pub lacks: Vec<Need>,
    /// What this machine lacks for the scripts that the tool is asked to run. A call looks at the
    /// script's path first.
    pub lacks_below: Vec<Need>,
    pub shape: Result<Arc<Shape>, Fault>,
}

/// Which tool it is, and what runs for it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `id@version`
    pub tool: String,
    pub script: Option<PathBuf>,
    pub folder: PathBuf,
    /// `metadata.permissions`: words of the author, which nothing enforces.
    pub labels: Vec<String>,
    /// Runs inside the host: a service method or an extension. It has no shape of its own.
    pub in_process: bool,
    /// The client of a call runs it: nothing of it runs here.
    pub at_client: bool,
    /// Runs inside the host and starts scripts, which this decision bounds.
    pub starts_scripts: bool,
}

/// The policy that governs the tool.
#[derive(Clone, Debug)]
pub struct Governing {
    pub policy: String,
    /// That policy's file; empty for the built-in default.
    pub file: PathBuf,
    /// The policy names the tool by its exact id. A second policy that does so would not load.
    pub exact: bool,
    /// Denied requests are dropped and refuse no call: by the policy's `mode`, or because a builtin
    /// tool runs scripts.
    pub narrow: bool,
    pub passed_over: Vec<PassedOver>,
    /// The tool runs source text, so a policy must name it by its exact id, but none does.
    pub unnamed: bool,
    /// Of all policies that bound the tool.
    pub digest: String,
}

/// What a call gets, also where the shape is refused for another reason.
#[derive(Clone, Debug)]
pub struct Grants {
    pub files: Vec<Grant>,
    pub hosts: Vec<HostGrant>,
    pub secrets: Vec<SecretGrant>,
    pub service: Option<ServiceGrant>,
    /// Tools that its code may call.
    pub calls: Vec<CallGrant>,
    /// `None`: no packages are required, or none are granted.
    pub packages: Option<PackageGrant>,
    pub runtime: Option<Runtime>,
    /// Literals of the manifest, and the host's own that were granted.
    pub variables: BTreeMap<String, Variable>,
}

/// What is decided about packages, whether or not they are granted.
#[derive(Clone, Debug, Default)]
pub struct PackageDecision {
    /// What the tool's policies would allow, required or not.
    pub allowed: BTreeMap<Ecosystem, Allowance>,
    /// What the script's files require.
    pub required: Option<Arc<PackageRequirements>>,
    /// What is decided about source text that a builtin tool runs, where a policy names the lock of
    /// its packages.
    pub runs: Vec<Decision>,
}

/// What holds for every call of the tool.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Who may call it; `None`: whoever this host serves.
    pub callers: Option<Vec<CallerGrant>>,
    /// Not empty: a person agrees to each call before anything of it runs.
    pub confirm: Vec<Confirm>,
    pub require_cgroup: bool,
    pub observe: bool,
    pub stderr_is_error: bool,
    pub text_output: bool,
    pub answers: BTreeSet<i32>,
    /// How its script gets its arguments, if not as JSON.
    pub command_line: Option<CommandLine>,
    /// A variable tells the script of its call.
    pub context: bool,
    /// What may be started before calls, or why every call starts cold. `None`: no policy has
    /// `[ready]`.
    pub ready: Option<Result<ReadyGrant, String>>,
    /// The sessions of its source text, or why there are none. `None`: no policy allows any.
    pub sessions: Option<Result<SessionGrant, String>>,
    /// How its process serves calls, if it is an MCP server.
    pub mcp: Option<McpGrant>,
}

impl Grants {
    pub fn network(&self) -> Network {
        if self.hosts.is_empty() {
            Network::None
        } else {
            Network::Hosts(self.hosts.clone())
        }
    }

    /// The risks of the hosts that a call may reach: pattern and sentence.
    pub fn high_risks(&self) -> impl Iterator<Item = (String, String)> {
        self.hosts.iter().flat_map(|grant: &HostGrant| {
            let pattern = grant.pattern.to_string();
            risks(&grant.pattern, &grant.ranges)
                .into_iter()
                .map(move |risk| (pattern.clone(), risk))
        })
    }

    /// The secrets that the relay adds to requests, each with its host.
    pub fn added(&self) -> impl Iterator<Item = (&SecretGrant, &str)> {
        self.secrets
            .iter()
            .filter_map(|grant| Some((grant, grant.header.as_ref()?.host.as_str())))
    }
}

impl Decision {
    pub fn limit(&self, limit: Limit) -> Option<&LimitVerdict> {
        self.limits.iter().find(|l| l.limit == limit)
    }

    /// The decision about a tool of this server. Who may call it is its own matter.
    pub fn called_as_tool(mut self, own: Decision) -> Decision {
        let policy = &own.governing.policy;
        if *policy != self.governing.policy {
            let words = "says who may call it and who must agree; the server's gives the rest";
            self.notes
                .all
                .push(format!("policy `{}` {words}", printable(policy)));
        }
        let passed_over = own.governing.passed_over.iter();
        let passed_over: Vec<String> = passed_over.map(|it| it.words.clone()).collect();
        self.notes.all.extend(passed_over);
        self.conditions.callers = own.conditions.callers.clone();
        self.called_as(own, "a tool")
    }

    /// The decision about a call of this tool by an alias: of each limit that a policy of either sets,
    /// the smallest holds.
    pub fn called_as_alias(mut self, alias: Decision) -> Decision {
        for (own, of_alias) in self.limits.iter_mut().zip(&alias.limits) {
            own.narrow(of_alias);
        }
        if let Ok(shape) = &mut self.shape {
            Arc::make_mut(shape).limits = of_shape(&self.limits);
        }
        self.called_as(alias, "an alias")
    }

    /// The decision about a call of this tool by an alias, or of a tool of this server. What it may
    /// touch is decided here; who must agree, who may call, and what is refused or lacking count of
    /// both. `what`: an alias, or a tool.
    fn called_as(mut self, alias: Decision, what: &str) -> Decision {
        let refused = alias.refused().cloned();
        let Decision {
            identity,
            conditions,
            approval,
            lacks,
            ..
        } = alias;
        let words = format!("{} is {what} of {}", identity.tool, self.identity.tool);
        self.notes.all.push(words);
        self.identity.tool = identity.tool;
        for why in conditions.confirm {
            if !self.conditions.confirm.contains(&why) {
                self.conditions.confirm.push(why);
            }
        }
        if let (Some(callers), Some(of_alias)) = (&mut self.conditions.callers, conditions.callers)
        {
            callers.retain(|caller| of_alias.iter().any(|other| other.name == caller.name));
        }
        self.lacks.extend(lacks);
        if let Some(unmet) = approval.filter(|approval| !approval.is_met()) {
            self.approval = Some(unmet);
        }
        if let Some(fault) = refused {
            self.shape = Err(fault);
        }
        self
    }

    /// The copy of its code that runs in place of what lies there now.
    pub fn approved_code(&self) -> Option<&Arc<ApprovedCode>> {
        self.approval.as_ref()?.code()
    }

    /// A write below the call's own scratch, because of which the scratch has fewer rights.
    pub fn write_below_scratch(&self) -> Option<&Grant> {
        let mut writes = self.grants.files.iter();
        writes.find(|it| it.access == Access::Write && crate::sandbox::is_late(it.area.path()))
    }

    /// The time of a call that requests so much, or nothing, in milliseconds.
    pub fn time(&self, requested_ms: Option<u64>) -> u64 {
        let built_in = Limit::TimeoutMs.built_in_default();
        let (usual, most) = self
            .limit(Limit::TimeoutMs)
            .map_or((built_in, built_in), |limit| {
                (limit.effective, limit.ceiling)
            });
        requested_ms.unwrap_or(usual).min(most)
    }

    /// Whether the tool may ask the person at the client that called it.
    pub fn may_ask(&self) -> bool {
        self.has(CapabilityKind::Ask)
    }

    /// What may be started before its calls.
    pub fn ready(&self) -> Option<&ReadyGrant> {
        self.conditions.ready.as_ref()?.as_ref().ok()
    }

    pub fn sessions(&self) -> Option<&SessionGrant> {
        self.conditions.sessions.as_ref()?.as_ref().ok()
    }

    /// Whether the tool requires this capability and has it.
    pub fn has(&self, wanted: CapabilityKind<'_>) -> bool {
        self.verdicts.iter().any(|verdict| {
            verdict.what == RequestKind::Capability
                && verdict.allowed
                && kind(&verdict.asked) == wanted
        })
    }

    /// The verdict on a request of this kind whose area holds the path.
    pub fn verdict_for(&self, what: RequestKind, path: &Path) -> Option<&Verdict> {
        self.verdicts.iter().find(|v: &&Verdict| {
            v.what == what && v.area.as_ref().is_some_and(|area| area.holds(path))
        })
    }

    /// The fault with which every call is refused. That a tool inside the host has no shape
    /// (`InternalError`) is not a refusal.
    pub fn refused(&self) -> Option<&Fault> {
        self.shape
            .as_ref()
            .err()
            .filter(|fault| !(self.identity.in_process && fault.kind == Kind::InternalError))
    }

    /// Whether policy refuses every call.
    pub fn is_denied(&self) -> bool {
        self.refused()
            .is_some_and(|fault| fault.kind == Kind::SecurityError)
    }

    /// Whether a call changes or reaches anything outside itself. What runs inside this host
    /// counts, too: no layer says what it does.
    pub fn has_effects(&self) -> bool {
        let grants = &self.grants;
        self.identity.in_process
            || self.identity.starts_scripts
            || !grants.hosts.is_empty()
            || !grants.secrets.is_empty()
            || !grants.calls.is_empty()
            || grants.service.is_some()
            || grants
                .files
                .iter()
                .any(|grant| grant.access == Access::Write)
    }

    /// The grant by which code of this tool may call the other one.
    pub fn grant_to_call(&self, other: &Decision) -> Option<&CallGrant> {
        let id = other.identity.tool.split('@').next().unwrap_or_default();
        let mut calls = self.grants.calls.iter();
        calls.find(|grant| grant.allows(id, other.has_effects()))
    }

    pub fn denied(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|v| !v.allowed)
    }
}
