//! What a policy can say: paths, hosts, packages and secrets as values, and the files that name them.
//! Nothing here decides about a tool.

pub mod area;
pub mod callbacks;
pub mod callers;
pub mod capability;
pub mod disk;
pub mod document;
pub mod file;
pub mod files;
pub mod grantable;
pub mod headers;
pub mod hosts;
pub mod load;
pub mod packages;
pub mod places;
pub mod secrets;
pub mod services;
pub mod versions;
