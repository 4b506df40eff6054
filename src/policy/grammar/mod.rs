//! What a policy can say: paths, hosts, packages and secrets as values, and the files that name them.
//! Nothing here decides about a tool.

pub mod approvals;
pub mod area;
pub mod callbacks;
pub mod callers;
pub mod calls;
pub mod capability;
pub mod disk;
pub mod document;
pub mod file;
pub mod files;
pub mod grantable;
pub mod headers;
pub mod hosts;
pub mod load;
pub mod mcp;
pub mod obeyed;
pub mod osv;
pub mod packages;
pub mod places;
pub mod ready;
pub mod secrets;
pub mod services;
pub mod sessions;
pub mod stops;
pub mod versions;

pub use crate::manifest::Selector;
pub use approvals::{
    ApprovalRecord, Approvals, ApprovedCode, Code, CodeFolders, CodePlaces, CopiedTree, Digests,
    LookedAt,
};
pub use area::{Access, Area, Opening};
pub use callbacks::{CallbackRule, CallbackUrl};
pub use callers::{
    AllowedValue, Breaker, CallerGrant, CallerRule, Callers, ParameterRule, ToolLimit,
};
pub use calls::CallGrant;
pub use capability::{Capability, CapabilityKind};
pub use document::{FileProblem, PolicyEntry};
pub use file::{Folder, Mode, NamedRuntime, Policy, ToolSelector};
pub use files::{FileRules, Grant, Rule};
pub use grantable::Grantable;
pub use hosts::{HostGrant, Network};
pub use load::{PassedOver, Policies};
pub use mcp::McpGrant;
pub use osv::Advisories;
pub use packages::{
    DeniedPackage, Package, PackageGrant, PackageRequirements, PackageRules, PackagesAllowed,
    SourceFile,
};
pub use places::{PlaceIndex, PlacedArea, Protected};
pub use ready::ReadyGrant;
pub use secrets::{HeaderRule, Secret, SecretGrant, SecretSource};
pub use services::{ServiceGrant, ServiceRule};
pub use sessions::{LINE as SESSIONS_LINE, SessionGrant};
pub use stops::{Stop, Stops};
pub use versions::Ecosystem;
