//! Base: small pieces that every room may use.
//!
//! For: every room. In: nothing of any other room but the limits of `quantity`. Out: small pieces.
//! Never: knows what a tool, a policy or a call is.

pub mod files;
pub mod hidden;
pub mod json;
pub mod links;
pub mod messages;
pub mod places;
pub mod problem;
pub mod shared;
pub mod suggest;
pub mod text;

/// SHA-256, lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(bytes))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
