//! What a call says of its session.

use crate::packages::store::EnvironmentLease;

/// Whose session it is, of which tool (`id@version`), and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    pub principal: String,
    pub caller: String,
    pub tool: String,
    pub name: String,
}

/// What a call brings for its session.
#[derive(Clone)]
pub struct SessionCall {
    pub id: SessionId,
    /// The digest of tool and policies.
    pub digest: String,
    pub environment: Option<EnvironmentLease>,
}
