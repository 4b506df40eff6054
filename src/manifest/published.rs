//! The JSON Schema of a manifest (2020-12): the one table of its fields, for the reader and, by `toolhost schema
//! manifest`, for editors. `additionalProperties: false` stands where an unknown name could be a misspelt restriction.

use crate::quantity::Limit;
use serde_json::Value;
use std::sync::LazyLock;

/// What the schemas of a tool are called in ours; `schema` judges what they hold.
pub(super) const TOOLS_OWN: &str = "JSON Schema";

pub static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("schema.json")).expect("the schema is JSON"));

/// The limits of the `limits` block; the time limit is `execution.timeoutMs`.
pub(super) fn limit_names() -> impl Iterator<Item = Limit> {
    Limit::ALL.into_iter().filter(|limit| *limit != Limit::TimeoutMs)
}
