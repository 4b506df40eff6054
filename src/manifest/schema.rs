//! JSON Schemas, compiled once at load, bounded, `$ref` only inside the document (P21).
use serde_json::Value;
use std::sync::Arc;

/// A schema as written, and compiled.
#[derive(Clone, Debug)]
pub struct Schema {
    pub raw: Value,
    pub compiled: Arc<jsonschema::Validator>,
}
