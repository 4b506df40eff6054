//! Manifests: as a file says them, and as they are read.

use serde_json::{Value, json};
use toolhost::manifest::{self, Manifest};

/// The handler of a script.
pub fn script(path: impl AsRef<str>, language: impl AsRef<str>) -> Value {
    json!({"type": "external-script", "scriptPath": path.as_ref(), "language": language.as_ref()})
}

/// A manifest with all that is required; `more` adds fields, and to `handler` it adds members.
pub fn manifest(id: impl AsRef<str>, handler: Value, more: Value) -> Value {
    let id = id.as_ref();
    let mut whole = json!({
        "toolId": id, "displayName": id, "description": format!("Tries {id}."), "version": "1.0.0", "handler": handler,
    });
    for (name, value) in more.as_object().cloned().unwrap_or_default() {
        match (whole.get_mut(&name), value) {
            (Some(Value::Object(there)), Value::Object(given)) => there.extend(given),
            (_, value) => whole[&name] = value,
        }
    }
    whole
}

/// The same, read.
pub fn made_of(id: &str, handler: Value, more: Value) -> Manifest {
    let text = manifest(id, handler, more).to_string();
    manifest::read(text.as_bytes())
        .unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
        .0
}
