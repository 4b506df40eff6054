//! Secrets: parameters marked `writeOnly` or `x-secret`, and what echoes them.
//!
//! For: the audit record, the run log and what of a failure is shown. In: a schema, arguments, text.
//! Out: the same with `***`. Never: touches what the tool is given or what it answers.
//!
//! A secret is found as it is and as JSON escapes it. In base64, a URL or any other dress it is not.

use serde_json::Value;

/// What a secret is shown as.
pub const HIDDEN: &str = "***";
/// Shorter texts are hidden where they are a parameter, but not searched for elsewhere: replacing
/// every `1` in a log would hide the log and reveal the secret.
const SHORTEST: usize = 4;
/// Where a text was cut.
const CUT: &str = "…";
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

    /// The text with every secret hidden, also what a cut left of one.
    pub fn text(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for secret in &self.secrets {
            if shown.contains(secret.as_str()) {
                shown = shown.replace(secret.as_str(), HIDDEN);
            }
        }
        for secret in &self.secrets {
            let pieces: Vec<_> = shown.split(CUT).map(|piece| edges(piece, secret)).collect();
            shown = pieces.join(CUT);
        }
        shown
    }
}

/// Hides the start of a secret at the end of a piece, and its end at the start: texts of tools come cut.
fn edges(piece: &str, secret: &str) -> String {
    let longest = secret.len().saturating_sub(1).min(piece.len());
    let lengths = || (SHORTEST..=longest).rev();
    let start = lengths().filter_map(|n| secret.get(..n)).find(|start| piece.ends_with(start));
    let piece = start.map_or_else(|| piece.to_owned(), |s| format!("{}{HIDDEN}", &piece[..piece.len() - s.len()]));
    let end = lengths().filter_map(|n| secret.get(secret.len() - n..)).find(|end| piece.starts_with(end));
    match end {
        Some(end) => format!("{HIDDEN}{}", &piece[end.len()..]),
        None => piece,
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
    // Whether a branch holds is not asked: where one says secret, it is hidden.
    let lists = ["allOf", "anyOf", "oneOf"].map(|word| &schema[word]).into_iter().filter_map(Value::as_array).flatten();
    let maps = ["dependentSchemas", "dependencies"].map(|word| &schema[word]).into_iter().filter_map(Value::as_object);
    let branches = ["if", "then", "else"].map(|word| &schema[word]);
    for part in lists.chain(maps.flat_map(|map| map.values())).chain(branches).filter(|part| part.is_object()) {
        shown = hide(root, part, &shown, depth + 1, secrets);
    }
    match &mut shown {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                for part in of_property(schema, name) {
                    *field = hide(root, part, field, depth + 1, secrets);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                for part in of_item(schema, index) {
                    *item = hide(root, part, item, depth + 1, secrets);
                }
            }
        }
        _ => {}
    }
    shown
}

/// The schemas that may speak of a property. Patterns are not matched: a secret under one pattern hides its
/// neighbours too, which is the safe mistake.
fn of_property<'s>(schema: &'s Value, name: &str) -> Vec<&'s Value> {
    let patterns = schema["patternProperties"].as_object().into_iter().flat_map(|map| map.values());
    let others = ["additionalProperties", "unevaluatedProperties"].map(|word| &schema[word]);
    let parts: Vec<&Value> = match schema["properties"].get(name) {
        Some(own) => std::iter::once(own).chain(patterns).collect(),
        None => patterns.chain(others).collect(),
    };
    parts.into_iter().filter(|part| part.is_object()).collect()
}

/// The schemas that may speak of an item; in older drafts `items` can be the list.
fn of_item(schema: &Value, index: usize) -> Vec<&Value> {
    let listed = schema["prefixItems"].get(index).or_else(|| schema["items"].get(index));
    let rest = ["items", "additionalItems", "unevaluatedItems"].map(|word| &schema[word]);
    let parts: Vec<&Value> = match listed {
        Some(own) => vec![own, &schema["contains"]],
        None => rest.into_iter().chain([&schema["contains"]]).collect(),
    };
    parts.into_iter().filter(|part| part.is_object()).collect()
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
                    secrets.extend(as_json(part));
                }
            }
        }
        Value::Number(number) if number.to_string().len() >= SHORTEST => secrets.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secrets, depth + 1)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, secrets, depth + 1)),
        _ => {}
    }
}

/// The text as it stands inside JSON, where that is another: with quotes and newlines escaped, and as programs
/// write it that keep to ASCII.
fn as_json(text: &str) -> impl Iterator<Item = String> + use<> {
    let plain = serde_json::to_string(text).ok();
    let ascii = super::audit::ascii(&text).ok();
    let inside = |quoted: String| quoted.get(1..quoted.len().saturating_sub(1)).map(str::to_owned);
    let text = text.to_owned();
    plain.into_iter().chain(ascii).filter_map(inside).filter(move |form| *form != text)
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

    #[test]
    fn a_secret_is_found_wherever_a_schema_can_say_so() {
        let secret = json!({"x-secret": true});
        let cases = [
            (json!({"if": {}, "then": {"properties": {"a": secret}}}), json!({"a": "hunter2"})),
            (json!({"else": {"properties": {"a": secret}}}), json!({"a": "hunter2"})),
            (json!({"patternProperties": {"^a": secret}}), json!({"a": "hunter2"})),
            (json!({"properties": {"a": {"prefixItems": [{}, secret]}}}), json!({"a": ["plain", "hunter2"]})),
            (json!({"properties": {"a": {"prefixItems": [{}], "items": secret}}}), json!({"a": ["plain", "hunter2"]})),
            (json!({"properties": {"a": {"contains": secret}}}), json!({"a": ["hunter2"]})),
            (json!({"dependentSchemas": {"b": {"properties": {"a": secret}}}}), json!({"a": "hunter2", "b": 1})),
            (json!({"unevaluatedProperties": secret}), json!({"a": "hunter2"})),
            (json!({"additionalProperties": secret}), json!({"a": "hunter2"})),
        ];
        for (schema, arguments) in cases {
            let (mask, shown) = Mask::of(Some(&schema), &arguments);
            assert!(!shown.to_string().contains("hunter2"), "{schema}: {shown}");
            assert_eq!(mask.text("the hunter2"), "the ***", "{schema}");
        }
        let first = json!({"properties": {"a": {"prefixItems": [secret], "items": {}}}});
        assert_eq!(Mask::of(Some(&first), &json!({"a": ["hunter2", "plain"]})).1, json!({"a": ["***", "plain"]}));
    }

    #[test]
    fn a_secret_is_found_as_json_escapes_it_and_where_a_cut_left_a_part() {
        let schema = json!({"properties": {"key": {"writeOnly": true}}});
        let (mask, _) = Mask::of(Some(&schema), &json!({"key": "quo\"te\nnäxt"}));
        assert_eq!(mask.text(&json!({"echo": "quo\"te\nnäxt"}).to_string()), r#"{"echo":"***"}"#);
        assert_eq!(mask.text(r#"{"echo": "quo\"te\nn\u00e4xt"}"#), r#"{"echo": "***"}"#);
        let (mask, _) = Mask::of(Some(&schema), &json!({"key": "swordfish"}));
        assert_eq!(mask.text("stdout began with: the swordf… and so on"), "stdout began with: the ***… and so on");
        assert_eq!(mask.text("stderr: …dfish is wrong"), "stderr: …*** is wrong");
        assert_eq!(mask.text("the last line: sword"), "the last line: ***");
        assert_eq!(mask.text("the swo… is too little to hide"), "the swo… is too little to hide");
    }
}
