//! Secrets: parameters marked `writeOnly` or `x-secret`, and what echoes them.
//!
//! For: the audit record, the run log and what of a failure is shown. In: a schema, arguments, text.
//! Out: the same with `***`. Never: touches what the tool is given or what it answers.

use serde_json::Value;

/// What a secret is shown as.
pub const HIDDEN: &str = "***";
/// Shorter texts are hidden where they are a parameter, but not searched for elsewhere: replacing
/// every `1` in a log would hide the log and reveal the secret.
const SHORTEST: usize = 4;
/// Deepest schema that is followed; manifests are bounded well below it.
const DEEPEST: usize = 128;

/// The secret texts of one call, longest first.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    secrets: Vec<String>,
}

impl Mask {
    /// The secrets among these arguments, and the arguments with the secrets hidden.
    pub fn of(schema: Option<&Value>, arguments: &Value) -> (Mask, Value) {
        let mut secrets = Vec::new();
        let shown = match schema {
            Some(schema) => hide(schema, schema, arguments, 0, &mut secrets),
            None => arguments.clone(),
        };
        let mut mask = Mask { secrets };
        mask.in_order();
        (mask, shown)
    }

    fn in_order(&mut self) {
        self.secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.secrets.dedup();
    }

    /// Hides this text too.
    pub fn also(&mut self, secret: &str) {
        collect(&Value::String(secret.to_owned()), &mut self.secrets, 0);
        self.in_order();
    }

    /// The text with every secret hidden.
    pub fn text(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for secret in &self.secrets {
            if shown.contains(secret.as_str()) {
                shown = shown.replace(secret.as_str(), HIDDEN);
            }
        }
        shown
    }
}

/// Walks schema and value together. Where the schema says secret, all below it is hidden.
fn hide(root: &Value, schema: &Value, value: &Value, depth: usize, secrets: &mut Vec<String>) -> Value {
    if depth > DEEPEST {
        return Value::String(HIDDEN.into());
    }
    if schema["writeOnly"] == true || schema["x-secret"] == true {
        collect(value, secrets, depth);
        return Value::String(HIDDEN.into());
    }
    let mut shown = value.clone();
    if let Some(target) = schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')).and_then(|p| root.pointer(p)) {
        shown = hide(root, target, &shown, depth + 1, secrets);
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        for part in schema[word].as_array().into_iter().flatten() {
            shown = hide(root, part, &shown, depth + 1, secrets);
        }
    }
    match &mut shown {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let part = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                if let Some(part) = part.filter(|part| part.is_object()) {
                    *field = hide(root, part, field, depth + 1, secrets);
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for item in items.iter_mut() {
                *item = hide(root, &schema["items"], item, depth + 1, secrets);
            }
        }
        _ => {}
    }
    shown
}

/// Every text below a secret value; a text of several lines also line by line, as a log shows it.
fn collect(value: &Value, secrets: &mut Vec<String>, depth: usize) {
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::String(text) => {
            for part in std::iter::once(text.as_str()).chain(text.lines()) {
                if part.len() >= SHORTEST && part != HIDDEN {
                    secrets.push(part.to_owned());
                }
            }
        }
        Value::Number(number) if number.to_string().len() >= SHORTEST => secrets.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secrets, depth + 1)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, secrets, depth + 1)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_hidden_where_they_are_and_where_they_are_echoed() {
        let schema = json!({
            "properties": {
                "token": {"type": "string", "writeOnly": true},
                "login": {"$ref": "#/$defs/login"},
                "keys": {"type": "array", "items": {"x-secret": true}},
                "plain": {"type": "string"},
            },
            "$defs": {"login": {"properties": {"password": {"x-secret": true}}}},
        });
        let arguments = json!({
            "token": "hunter2", "login": {"user": "alice", "password": "swordfish\nsecond line"},
            "keys": ["key-one", 123_456], "plain": "visible",
        });
        let (mask, shown) = Mask::of(Some(&schema), &arguments);
        let expected = json!({
            "token": "***", "login": {"user": "alice", "password": "***"}, "keys": ["***", "***"], "plain": "visible",
        });
        assert_eq!(shown, expected);
        assert_eq!(mask.text("hunter2 and swordfish, key-one, 123456, visible"), "*** and ***, ***, ***, visible");
        assert_eq!(mask.text("log: second line"), "log: ***");
    }

    #[test]
    fn a_short_secret_is_hidden_only_where_it_is_a_parameter() {
        let schema = json!({"properties": {"pin": {"writeOnly": true}}});
        let (mask, shown) = Mask::of(Some(&schema), &json!({"pin": "1"}));
        assert_eq!(shown, json!({"pin": "***"}));
        assert_eq!(mask.text("exit 1"), "exit 1");
    }
}
