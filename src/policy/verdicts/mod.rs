//! The decision about one tool: each kind of request is narrowed in a file of its own, none of which
//! knows another; `decide` puts the answers together.

pub mod advisories;
pub mod approved;
pub mod calls;
pub mod capability;
pub mod ceiling;
pub mod decide;
pub mod decision;
pub mod faults;
pub mod files;
pub mod hard_denials;
pub mod hosts;
pub mod limits;
pub mod machine;
pub mod mcp;
pub mod owner;
pub mod packages;
pub mod ready;
pub mod requirements;
pub mod runtime;
pub mod secrets;
pub mod services;
pub mod sessions;
pub mod shape;
pub mod tool_now;
pub mod verdict;
pub mod writable;
pub mod written;

pub use decide::RunTarget;
pub use decision::{Decision, PackageDecision};
pub use machine::{Machine, MachinePlaces};
pub use packages::{Ages, Allowance};
pub use shape::{Built, Limits, Program, Runtime, Shape, Variable};
pub use verdict::{Confirm, LimitVerdict, Narrower, Need, Notes, Refusal, RequestKind, Verdict};
pub use writable::{WritablePath, WritablePaths};
