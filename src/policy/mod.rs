//! Policies: what the operator *allows* at most, and the intersection with what a tool requests.
//!
//! `load` reads the files (`disk` → `file` → `Policies`) → `decide` judges each request, one grant
//! kind in one file → a `Decision` → `confine` → a `Confinement`. `reports` read decisions. Nothing
//! here opens a granted path.

mod area;
pub mod base_view;
mod callbacks;
pub mod callers;
mod capability;
mod confinement;
mod decide;
mod decision;
mod disk;
mod document;
mod file;
mod files;
mod grantable;
pub mod headers;
mod hosts;
mod limits;
mod load;
mod machine;
pub mod packages;
mod places;
pub mod reports;
mod secrets;
mod services;
mod verdict;
pub mod versions;
pub mod writable;
mod written;

pub use crate::manifest::At;
pub use area::{Area, escape, literal, name_matches};
pub use base_view::{SYSTEM_ETC, SYSTEM_FOLDERS};
pub use callbacks::{CallbackRule, CallbackUrl};
pub use callers::{
    AllowedValue, Breaker, CALLERS_FILE, CallerGrant, CallerRule, Callers, EVERYBODY,
    ParameterRule, ToolLimit,
};
pub use capability::{Capability, grantable, needs_of, offerable};
pub use confinement::*;
pub use decide::{RUN_CODE, RunTarget, SCRIPT_SERVICE, decide, decide_run};
pub use decision::Decision;
pub use disk::{certificates, lock_file};
pub use document::FileProblem;
pub use file::Selector;
pub use file::{
    DEFAULT_POLICY, Folder, HOST_FILE, Mode, Policy, SUFFIX, ToolSelector, is_policy_file, parse,
    schema,
};
pub use files::{FileRules, Rule};
pub use grantable::Grantable;
pub use hosts::{range as host_range, risks as host_risks};
pub use limits::{call_notes, confine, time_ms};
pub use load::{PassedOver, Policies};
pub use machine::{Machine, NamedRuntime, Need};
pub use packages::{Ages, Allowance, PackagesAllowed, index_name, refused as refused_packages};
pub use reports::{audit, diff, suggest, who_can};
pub use secrets::{header_name, header_value, source as secret_source};
pub use services::{ServiceGrant, ServiceRule, names as service_names};
pub use verdict::{Confirm, LimitVerdict, Narrower, Notes, RequestKind, Verdict, layer};
pub use writable::{WritablePath, WritablePaths};
pub use written::written_areas;
