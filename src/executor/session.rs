//! What a call brings for its session.

use crate::manifest::Language;
use std::any::Any;
use std::sync::Arc;

/// Whose session it is, of which tool (`id@version`), what its code is, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    pub principal: String,
    pub caller: String,
    pub tool: String,
    pub language: Language,
    pub name: String,
}

/// What a call brings for its session.
pub struct SessionCall {
    /// Its turn, as `process::Sessions` gave it.
    pub turn: Box<dyn Any + Send + Sync>,
    /// The digest of tool and policies.
    pub digest: String,
    /// The slot of the call. It is in use until its cell has ended, also where the call was
    /// cancelled.
    pub slot: Arc<dyn Any + Send + Sync>,
}
