//! Policies: what the operator *allows* at most, and the intersection with what a tool requests.
//!
//! Three floors, each of which imports only from those before it. `grammar` has what a policy can
//! say, and reads its files (`disk` → `file` → `Policies`). `verdicts` answers each request of a tool,
//! one kind in one file (`decide` → `Decision`). `reports` reads decisions. A `Decision` and one call
//! make a `Confinement`. Nothing here opens a granted path.

mod confinement;
mod grammar;
pub mod reports;
mod verdicts;

pub use crate::manifest::At;
pub use crate::sandbox::base_view::{self, SYSTEM_ETC, SYSTEM_FOLDERS};
pub use confinement::*;
pub use grammar::area::{Access, Area, Opening, escape, literal, name_matches};
pub use grammar::callbacks::{CallbackRule, CallbackUrl};
pub use grammar::callers::{
    AllowedValue, Breaker, CALLERS_FILE, CallerGrant, CallerRule, Callers, EVERYBODY,
    ParameterRule, ToolLimit,
};
pub use grammar::capability::{Capability, grantable, offerable};
pub use grammar::disk::{certificates, lock_file};
pub use grammar::document::FileProblem;
pub use grammar::file::{
    DEFAULT_POLICY, Folder, HOST_FILE, Mode, NamedRuntime, Policy, SUFFIX, Selector, ToolSelector,
    is_policy_file, parse, schema,
};
pub use grammar::files::{FileRules, Grant, Rule, SCRIPT_FOLDER};
pub use grammar::grantable::Grantable;
pub use grammar::hosts::{HostGrant, Network, range as host_range, risks as host_risks};
pub use grammar::load::{PassedOver, Policies};
pub use grammar::packages::{
    DeniedPackage, PackageGrant, PackageRules, PackagesAllowed, SourceFile, index_name,
};
pub use grammar::secrets::{
    HeaderRule, SecretGrant, SecretSource, header_name, header_value, source as secret_source,
};
pub use grammar::services::{ServiceGrant, ServiceRule, names as service_names};
pub use grammar::{callers, headers, packages, versions};
pub use reports::{audit, diff, suggest, who_can};
pub use verdicts::capability::needs_of;
pub use verdicts::decide::{RUN_CODE, RunTarget, SCRIPT_SERVICE, decide, decide_run};
pub use verdicts::decision::{Decision, PackageDecision};
pub use verdicts::hard_denials::{is_definition, is_obeyed, leads_modules};
pub use verdicts::machine::{Machine, MachinePlaces};
pub use verdicts::packages::{Ages, Allowance, refused as refused_packages};
pub use verdicts::shape::{Built, Limits, Program, Runtime, Shape, Variable};
pub use verdicts::verdict::{
    Confirm, LimitVerdict, Narrower, Need, Notes, Refusal, RequestKind, Verdict,
};
pub use verdicts::writable::{WritablePath, WritablePaths};
pub use verdicts::written::written_areas;
