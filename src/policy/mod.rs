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
pub use grammar::approvals::{APPROVALS_FILE, digest};
pub use grammar::area::{escape, literal, name_matches};
pub use grammar::callers::{CALLERS_FILE, EVERYBODY};
pub use grammar::capability::{grantable, offerable};
pub use grammar::disk::{certificates, lock_file};
pub use grammar::file::{DEFAULT_POLICY, HOST_FILE, SUFFIX, is_policy_file, is_rules_file, parse};
pub use grammar::files::SCRIPT_FOLDER;
pub use grammar::hosts::{range as host_range, risks as host_risks};
pub use grammar::obeyed::{is_definition, is_obeyed, leads_modules};
pub use grammar::packages::index_name;
pub use grammar::secrets::{header_name, header_value, source as secret_source};
pub use grammar::services::names as service_names;
pub use grammar::stops::named as stop_selector;
pub use grammar::{
    Access, Advisories, AllowedValue, ApprovalRecord, Approvals, ApprovedCode, Area, Breaker,
    CallGrant, CallbackRule, CallbackUrl, CallerGrant, CallerRule, Callers, Capability, Code,
    CodeFolders, CodePlaces, CopiedTree, DeniedPackage, Digests, FileProblem, FileRules, Folder,
    Grant, Grantable, HeaderRule, HostGrant, LookedAt, McpGrant, Mode, NamedRuntime, Network,
    Opening, PackageGrant, PackageRules, PackagesAllowed, ParameterRule, PassedOver, Policies,
    Policy, ReadyGrant, Rule, SESSIONS_LINE, SecretGrant, SecretSource, Selector, ServiceGrant,
    ServiceRule, SessionGrant, SourceFile, Stop, Stops, ToolLimit, ToolSelector,
};
pub use grammar::{callers, headers, packages, versions};
pub use reports::{audit, diff, suggest, who_can};
pub use verdicts::advisories;
pub use verdicts::approved::{Approval, ApprovalState, SOURCE_TEXT};
pub use verdicts::capability::needs_of;
pub use verdicts::decide::{RUN_CODE, SCRIPT_SERVICE, decide, decide_run, decide_skill_script};
pub use verdicts::packages::{refused as refused_packages, unlocked};
pub use verdicts::runtime::ENVIRONMENTS;
pub use verdicts::sessions::takes_source;
pub use verdicts::tool_now::{ToolNow, definition, newly};
pub use verdicts::written::written_areas;
pub use verdicts::{
    Ages, Allowance, Built, Confirm, Decision, LimitVerdict, Limits, Machine, MachinePlaces,
    Narrower, Need, Notes, PackageDecision, Program, Refusal, RequestKind, RunTarget, Runtime,
    Shape, Variable, Verdict, WritablePath, WritablePaths,
};
