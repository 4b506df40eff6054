//! The host's side before a call: resolves grants to the files that exist now.

pub mod grants;
pub mod inspect;
