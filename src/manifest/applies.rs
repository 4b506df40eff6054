//! The subschemas that may apply to a part of a value, for `bounds` and the mask of secrets.
//!
//! Conditions and patterns of names are not evaluated: rather too many than too few.

use serde_json::Value;

/// Keywords whose subschemas hold for the same value.
pub const SAME_VALUE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "dependencies"];

/// A schema, or the schemas of a list or of a map.
pub fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        // Most keywords hold a schema, `dependentSchemas` a map of them: taken as both, which only finds too many.
        Value::Object(map) => std::iter::once(value).chain(map.values()).filter(|part| part.is_object()).collect(),
        _ => Vec::new(),
    }
}

/// The subschemas that may apply to a member. Every pattern of names counts, whether it matches or not.
pub fn of_field<'s>(schema: &'s Value, name: &str) -> Vec<&'s Value> {
    let own = schema["properties"].get(name);
    let rest = ["additionalProperties", "unevaluatedProperties"].map(|word| schema.get(word).filter(|_| own.is_none()));
    let patterns = schema["patternProperties"].as_object().into_iter().flat_map(|map| map.values());
    own.into_iter().chain(rest.into_iter().flatten()).chain(patterns).filter(|part| part.is_object()).collect()
}

/// The subschemas that may apply to an item.
pub fn of_item(schema: &Value, at: usize) -> Vec<&Value> {
    let words = ["items", "contains", "unevaluatedItems", "additionalItems"].map(|word| schema.get(word));
    let listed = ["prefixItems", "items"].map(|word| schema.get(word).and_then(|list| list.get(at)));
    words.into_iter().chain(listed).flatten().filter(|part| part.is_object()).collect()
}
