//! What the host does before a call: looks at the granted files as they lie now.

pub mod grants;
pub mod inspect;
