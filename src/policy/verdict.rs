//! Verdict: the decision about one tool: every ask with its answer, and the shape that enforces them.
//!
//! For: service (`shape`), the reports. In: from `decide`. Out: plain data.
//! Never: an answer that differs from what the shape holds: both come from one judgement.

use super::area::Area;
use super::callers::CallerGrant;
use super::capability::{self, Ask};
use super::load::PassedOver;
use super::needs::Need;
use super::packages::{Allowance, Ecosystem, PackageGrant, PackageRequirements};
use super::{Grant, HostGrant, Network, Runtime, SecretGrant, ServiceGrant, Shape, Variable, hosts};
use crate::fault::{Fault, Kind};
use crate::quantity::Limit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The walls, by the names they have in `sandbox`'s table.
pub mod wall {
    pub const CGROUP: &str = "cgroup";
    pub const VIEW: &str = "view";
    pub const SCRATCH: &str = "scratch";
    pub const NETWORK: &str = "network";
    pub const ENVIRONMENT: &str = "environment";
    pub const LIMITS: &str = "limits";
    pub const LANDLOCK: &str = "landlock";
    pub const SECCOMP: &str = "seccomp";

    /// All of them, in the order of the table in docs/SECURITY.md.
    pub const ALL: [&str; 13] = [
        CGROUP,
        "namespaces",
        "identity",
        VIEW,
        SCRATCH,
        NETWORK,
        "session",
        "descriptors",
        ENVIRONMENT,
        LIMITS,
        "privileges",
        LANDLOCK,
        SECCOMP,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    Read,
    Write,
    Host,
    Capability,
    Env,
    Runtime,
    Package,
    /// A tool service elsewhere.
    Service,
}

impl RequestKind {
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Host => "reach",
            RequestKind::Capability => "capability",
            RequestKind::Env => "env",
            RequestKind::Runtime => "runtime",
            RequestKind::Package => "packages",
            RequestKind::Service => "call",
        }
    }
}

/// Who denied an ask or gave less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Narrower {
    Manifest,
    Policy,
    /// `host.policy.toml`
    Host,
    /// A built-in rule, which no policy can lift.
    House,
    Machine,
}

impl Narrower {
    pub fn name(self) -> &'static str {
        match self {
            Narrower::Manifest => "manifest",
            Narrower::Policy => "policy",
            Narrower::Host => "host",
            Narrower::House => "house",
            Narrower::Machine => "machine",
        }
    }
}

/// One ask and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub what: RequestKind,
    /// As written in the manifest, or `(default)`.
    pub asked: String,
    /// What a call gets, in words; `None` = nothing.
    pub effective: Option<String>,
    /// The whole ask is met.
    pub allowed: bool,
    /// `policy: rule`; empty if none.
    pub rule: String,
    pub why: String,
    /// `file:line` of the rule, or the policy's name.
    pub place: String,
    /// Why not, or why less.
    pub reason: Option<String>,
    pub narrower: Option<Narrower>,
    /// Walls; empty for what is checked before a call starts.
    pub enforced_by: Vec<String>,
    /// The files that are asked for.
    #[serde(skip)]
    pub area: Option<Area>,
}

impl Verdict {
    pub(super) fn met(
        what: RequestKind,
        asked: impl Into<String>,
        effective: impl Into<String>,
        walls: &[&str],
    ) -> Verdict {
        Verdict {
            what,
            asked: asked.into(),
            effective: Some(effective.into()),
            allowed: true,
            rule: String::new(),
            why: String::new(),
            place: String::new(),
            reason: None,
            narrower: None,
            enforced_by: walls.iter().map(|w| w.to_string()).collect(),
            area: None,
        }
    }

    pub(super) fn denied(
        what: RequestKind,
        asked: impl Into<String>,
        narrower: Narrower,
        reason: impl Into<String>,
        walls: &[&str],
    ) -> Verdict {
        let mut verdict = Verdict::met(what, asked, "", walls);
        verdict.effective = None;
        verdict.allowed = false;
        verdict.reason = Some(reason.into());
        verdict.narrower = Some(narrower);
        verdict
    }

    /// Not granted in full, so a call is refused (or narrowed). A missing runtime, packages that it may not have or another
    /// lack of this machine makes the tool unavailable instead.
    pub fn refuses(&self) -> bool {
        !self.allowed
            && ![RequestKind::Runtime, RequestKind::Package].contains(&self.what)
            && self.narrower != Some(Narrower::Machine)
    }

    /// Refused by a built-in rule, which no policy can lift.
    pub fn never(&self) -> bool {
        self.refuses() && self.narrower == Some(Narrower::House)
    }

    /// The same where only a part of what was asked is granted.
    pub(super) fn only_in_part(mut self, narrower: Narrower, reason: &str) -> Verdict {
        self.allowed = false;
        self.narrower = Some(narrower);
        self.reason = Some(format!("only a part is allowed: {reason}"));
        self
    }

    pub(super) fn because(mut self, rule: impl Into<String>, why: impl Into<String>, at: impl Into<String>) -> Verdict {
        self.rule = rule.into();
        self.why = why.into();
        self.place = at.into();
        self
    }
}

/// One limit: what was asked, the most there is, and what a call gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitVerdict {
    pub limit: Limit,
    /// By the manifest.
    pub asked: Option<u64>,
    /// The most that any call gets.
    pub ceiling: u64,
    /// What a call gets that asks for nothing itself (a call can ask for `timeoutMs` only).
    pub effective: u64,
    /// The manifest asked for more than the ceiling.
    pub clamped: bool,
    /// Who set the ceiling: `file:line`, a policy's name, or `house default`.
    pub from: String,
    /// The wall.
    pub enforced_by: String,
    /// Summed up over the call every few milliseconds: CPU and memory for want of a cgroup, what it writes live always.
    pub sampled: bool,
}

/// Remarks about a decision or a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// For the person and the record: clamps, narrowings, policies passed over, a folder that is shared.
    pub all: Vec<String>,
    /// The narrowings and clamps among them, worded for a caller too: without places and policy text.
    pub told: Vec<String>,
}

impl Notes {
    /// An ask that a call does not get in full.
    pub fn narrowed(&mut self, words: String) {
        self.all.push(words.clone());
        self.told.push(words);
    }

    pub fn extend(&mut self, more: Notes) {
        self.all.extend(more.all);
        self.told.extend(more.told);
    }

    /// A limit that is smaller than what was asked; `from`: who set it.
    pub(super) fn clamped(&mut self, limit: Limit, asked: u64, gets: u64, from: &str) {
        let words = format!("clamped: {} asked {asked}, gets {gets}", limit.name());
        self.all.push(format!("{words} ({from})"));
        self.told.push(words);
    }
}

/// Why a person is asked before each call, and the name of the policy that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Confirm {
    pub policy: String,
    pub why: String,
    /// Why the client that calls may ask its person. A call needs that of all its policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_client: Option<String>,
}

/// Everything decided about one tool on this machine.
#[derive(Clone, Debug)]
pub struct Decision {
    /// `id@version`
    pub tool: String,
    /// The name of the policy that governs.
    pub policy: String,
    /// That policy's file; empty for the built-in default.
    pub policy_file: PathBuf,
    /// That policy names the tool by its exact id: a second one that does would not load.
    pub exact: bool,
    /// Denied asks are dropped instead of refused: by that policy's `mode`, or for a script that a builtin tool runs.
    pub narrow: bool,
    pub verdicts: Vec<Verdict>,
    pub limits: Vec<LimitVerdict>,
    /// The files that a call gets, also where the shape is refused for another reason.
    pub grants: Vec<Grant>,
    /// The hosts, likewise.
    pub hosts: Vec<HostGrant>,
    /// The secrets, likewise, in order of name.
    pub secrets: Vec<SecretGrant>,
    /// The tool service that it may call.
    pub service: Option<ServiceGrant>,
    /// The packages, likewise; `None`: its files require none.
    pub packages: Option<PackageGrant>,
    /// What these files say, whether it is granted or not.
    pub wanted: Option<Arc<PackageRequirements>>,
    /// What its policies would allow, whether it requires any or not.
    pub package_rules: BTreeMap<Ecosystem, Allowance>,
    pub runtime: Option<Runtime>,
    pub script: Option<PathBuf>,
    pub folder: PathBuf,
    pub notes: Notes,
    /// Policies that name the tool, but whose `folders` do not hold its manifest.
    pub passed_over: Vec<PassedOver>,
    /// It runs source text, for which a policy must name it by its exact id, and none does.
    pub unnamed: bool,
    /// `metadata.permissions`: words of the author, which nothing enforces.
    pub labels: Vec<String>,
    /// What this machine lacks for the tool.
    pub lacks: Vec<Need>,
    /// What this machine lacks for the scripts that the tool is asked to run. A call looks at the script's path first.
    pub lacks_below: Vec<Need>,
    /// Who may call it; `None`: whoever this host serves.
    pub callers: Option<Vec<CallerGrant>>,
    /// A policy demands exact accounting.
    pub require_cgroup: bool,
    /// A policy wants refusals kept.
    pub observe: bool,
    /// Not empty: a person agrees to each call before anything of it runs.
    pub confirm: Vec<Confirm>,
    /// Any text on stderr fails the call.
    pub stderr_is_error: bool,
    /// Output that is not one JSON value is the answer as text.
    pub text_output: bool,
    /// Runs inside the host: a service method or an extension. It has no shape of its own.
    pub in_process: bool,
    /// It does, and starts scripts, which are held to what is decided here.
    pub starts_scripts: bool,
    pub shape: Result<Arc<Shape>, Fault>,
    /// Its variables: literals of the manifest, and the host's own that were granted.
    pub(super) env: BTreeMap<String, Variable>,
    /// SHA-256 over the policy files that were used, hex.
    pub digest: String,
}

impl Decision {
    pub fn limit(&self, limit: Limit) -> Option<&LimitVerdict> {
        self.limits.iter().find(|l| l.limit == limit)
    }

    /// What the tool may ask of its client.
    pub fn asks(&self) -> Vec<Ask> {
        let granted = self.verdicts.iter().filter(|verdict| verdict.what == RequestKind::Capability && verdict.allowed);
        let asks = granted.filter_map(|verdict| match capability::kind(&verdict.asked) {
            capability::Kind::Ask(ask) => Some(ask),
            _ => None,
        });
        asks.collect()
    }

    pub fn network(&self) -> Network {
        if self.hosts.is_empty() { Network::None } else { Network::Hosts(self.hosts.clone()) }
    }

    /// What is risky about the hosts that a call may reach: pattern and sentence.
    pub fn high_risks(&self) -> impl Iterator<Item = (String, String)> {
        let of = |grant: &HostGrant| {
            let pattern = grant.pattern.to_string();
            hosts::risks(&grant.pattern, &grant.ranges).into_iter().map(move |risk| (pattern.clone(), risk))
        };
        self.hosts.iter().flat_map(of)
    }

    /// The secrets that the relay adds to requests, each with its host.
    pub fn added(&self) -> impl Iterator<Item = (&SecretGrant, &str)> {
        self.secrets.iter().filter_map(|grant| Some((grant, grant.header.as_ref()?.host.as_str())))
    }

    /// What was decided about an ask that holds this path.
    pub fn asked_for(&self, what: RequestKind, path: &Path) -> Option<&Verdict> {
        let of = |v: &&Verdict| v.what == what && v.area.as_ref().is_some_and(|area| area.holds(path));
        self.verdicts.iter().find(of)
    }

    /// Why every call is refused. A tool that runs in this process has no shape, and is not refused for that
    /// (`InternalError` says so).
    pub fn refused(&self) -> Option<&Fault> {
        self.shape.as_ref().err().filter(|fault| !(self.in_process && fault.kind == Kind::InternalError))
    }

    /// Asks that were not met in full.
    pub fn denied(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|v| !v.allowed)
    }
}
