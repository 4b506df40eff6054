//! The JSON Schemas (2020-12) of toolhost's files. They are compiled with the program and not at each
//! start: in a crate of their own, so that no change of the library compiles them again.

use jsonschema::ErrorIterator;
use serde_json::Value;
use std::sync::LazyLock;

/// The schema of a file: what `toolhost schema` prints, and its check.
pub struct FileSchema {
    pub json: LazyLock<Value>,
    pub is_valid: fn(&Value) -> bool,
    pub errors: for<'v> fn(&'v Value) -> ErrorIterator<'v>,
}

macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident: $check:ident by $engine:ident = $file:literal;)*) => {$(
        #[jsonschema::validator(
            path = $file,
            methods = { validate = false },
            pattern_options = { engine = $engine }
        )]
        struct $check;

        $(#[$doc])*
        pub static $name: FileSchema = FileSchema {
            json: LazyLock::new(|| {
                serde_json::from_str(include_str!(concat!("../", $file))).expect("the schema is JSON")
            }),
            is_valid: $check::is_valid,
            errors: $check::iter_errors,
        };
    )*};
}

// What the author of a tool writes is matched in linear time.
schemas! {
    /// A manifest: the one table of its fields. `additionalProperties: false` is set where an unknown
    /// name could be a misspelt restriction.
    MANIFEST: Manifest by regex = "src/manifest.schema.json";
    /// A policy file, read as TOML.
    POLICY: Policy by fancy_regex = "src/policy.schema.json";
    /// `callers.toml`.
    CALLERS: Callers by fancy_regex = "src/callers.schema.json";
    /// A service in a `*.tool-service.json`.
    SERVICE: Service by regex = "src/service.schema.json";
    /// A tool beside such a service.
    SERVICE_TOOL: ServiceTool by regex = "src/service_tool.schema.json";
}
