//! Policies: what the operator *allows* at most, and the intersection with what a tool asks.
//!
//! For: service and cli. In: policy files, a manifest, its site, facts of the machine.
//! Out: a `Confinement`, or the reasons why not. Never: widens anything; opens a granted path.
//!
//! In order: `load` (disk → `file` → `Policies`) → `decide` (what policy and cap grant of each request) → `run` (narrowed by
//! every tool that names the script) → `Decision` → `confine` → `Confinement`. `reports` read decisions.

mod area;
pub mod base_view;
pub mod callers;
mod capability;
mod confinement;
mod decide;
mod disk;
mod document;
mod file;
mod files;
mod grantable;
mod hosts;
mod limits;
mod load;
pub mod needs;
pub mod packages;
pub mod reports;
mod run;
mod secrets;
mod services;
mod variable;
mod verdict;
pub mod versions;
pub mod writable;

pub use area::{Area, escape, literal, name_matches, plain_tail};
pub use base_view::{SYSTEM_ETC, SYSTEM_FOLDERS};
pub use callers::{
    AllowedValue, Breaker, CALLERS_FILE, CallbackRule, CallbackUrl, CallerGrant, CallerRule, Callers, EVERYBODY,
    ParameterRule, ToolLimit,
};
pub use capability::{Ask, grantable, offerable};
pub use confinement::*;
pub use decide::{RUN_CODE, SCRIPT_SERVICE, decide};
pub use disk::{certificates, lock_file};
pub use document::{At, FileProblem};
pub use file::{
    Capability, Ceiling, DEFAULT_POLICY, Folder, HOST_FILE, Mode, NamedRuntime, Policy, SUFFIX, Selector, Tools,
    is_policy_file, parse, schema,
};
pub use files::Rule;
pub use grantable::Grantable;
pub use hosts::range as host_range;
pub use load::{PassedOver, Policies};
pub use needs::Need;
pub use packages::{Ages, Allowance, PackagesAllowed, index_name, refused as refused_packages};
pub use reports::{audit, diff, suggest, who_can};
pub use run::{RunTarget, call_notes, confine, decide_run, time_ms};
pub use secrets::{header_name, header_value, source as secret_source};
pub use services::{ServiceGrant, ServiceRule, names as service_names};
pub use variable::Variable;
pub use verdict::{Confirm, Decision, LimitVerdict, Narrower, Notes, RequestKind, Verdict, wall};
pub use writable::{Place, WritablePaths, WrittenTree};

use crate::manifest::{Handler, Language, Manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Plain facts of this machine, found by `runtimes` and `sandbox::probe`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub runtimes: BTreeMap<Language, Runtime>,
    /// The interpreters that policies name (`Policies::named_runtimes`), by their path, or why one cannot be used.
    pub named_runtimes: BTreeMap<PathBuf, Result<Runtime, String>>,
    /// Paths that the search for interpreters relies on, each with the reason in words: no tool writes there.
    pub relied_on: BTreeMap<PathBuf, String>,
    /// The homes of whoever runs this host, as named and with links resolved; where the host is root, everybody's.
    pub homes: BTreeSet<PathBuf>,
    /// The variables that this host offers to tools (`env:NAME`) and has set, by name.
    pub environment: BTreeMap<String, Variable>,
    /// The capabilities that this host's configuration declares.
    pub declared: BTreeSet<String>,
    /// The indexes that the host's configuration names, and where each leads, in words.
    pub indexes: BTreeMap<(packages::Ecosystem, String), String>,
    /// Over which broker each service is called, in words; `*`: every other.
    pub brokers: BTreeMap<String, String>,
    /// True where memory, CPU and processes are counted by a cgroup.
    pub cgroup: bool,
}

impl Machine {
    /// Why a capability cannot be met here, whatever a policy says.
    pub fn lacks(&self, manifest: &Manifest, capability: &str) -> Option<&'static str> {
        let module = matches!(manifest.handler, Handler::Script { language: Language::Wasm, .. });
        match capability::kind(capability) {
            capability::Kind::Free if module => Some("a WASI module starts no processes"),
            capability::Kind::Env(name) if !self.environment.contains_key(name) => {
                Some("this host does not offer it, or it is not set")
            }
            capability::Kind::Declared if !self.declared.contains(capability) => {
                Some("`capabilities` in this host's configuration does not declare it")
            }
            capability::Kind::Later => Some("not built yet"),
            capability::Kind::Unknown => Some("not a word this host knows"),
            _ => None,
        }
    }
}
