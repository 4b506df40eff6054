//! An example of the arguments of a tool: the author's first, else one made from the schema.

use crate::manifest::Manifest;
use serde_json::{Map, Value, json};

/// How deep a made example goes.
const MAX_DEPTH: usize = 8;

/// Arguments that fit the parameters. `None`: none were found.
pub fn input(manifest: &Manifest) -> Option<Value> {
    let made = || {
        let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
        schema.map_or_else(|| json!({}), |schema| value(schema, MAX_DEPTH))
    };
    let own = manifest.examples.first();
    let input = own.map_or_else(made, |example| example.input.clone());
    let schema = manifest.parameters.as_ref();
    schema
        .is_none_or(|schema| schema.flaws(&input).is_empty())
        .then_some(input)
}

/// A value of a schema: what its author wrote as one, else the plainest of its type.
fn value(schema: &Value, depth: usize) -> Value {
    let chosen = ["default", "const"].map(|word| schema.get(word));
    let listed = ["examples", "enum"].map(|word| schema[word].get(0));
    if let Some(chosen) = chosen.into_iter().chain(listed).flatten().next() {
        return chosen.clone();
    }
    let kind = &schema["type"];
    match kind.as_str().or_else(|| kind[0].as_str()) {
        Some("object") if depth > 0 => object(schema, depth - 1),
        Some("array") if depth > 0 => {
            let least = schema["minItems"].as_u64().unwrap_or(0).min(8);
            let one = value(&schema["items"], depth - 1);
            Value::Array(vec![one; least as usize])
        }
        Some("integer" | "number") => ["minimum", "maximum"]
            .into_iter()
            .find_map(|bound| schema.get(bound).cloned())
            .unwrap_or(json!(1)),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        _ => json!("text"),
    }
}

/// The members that must be there.
fn object(schema: &Value, depth: usize) -> Value {
    let required = schema["required"].as_array().into_iter().flatten();
    let members = required.filter_map(Value::as_str).map(|name| {
        let member = value(&schema["properties"][name], depth);
        (name.to_owned(), member)
    });
    Value::Object(members.collect::<Map<_, _>>())
}
