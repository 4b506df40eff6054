//! An example of the arguments of a tool: the author's first, else one made from the schema.

use crate::manifest::Manifest;
use serde_json::{Map, Value, json};

/// Longest schema of which an example is made, bytes, and most values of the example: a schema of a
/// stranger can ask for more of them than memory has.
const MAX_SCHEMA_BYTES: usize = 16 << 10;
const MAX_VALUES: usize = 256;

/// Arguments that fit the parameters. `None`: none were found.
pub fn input(manifest: &Manifest) -> Option<Value> {
    let schema = manifest.parameters.as_ref();
    let input = match (manifest.examples.first(), schema) {
        (Some(example), _) => example.input.clone(),
        (None, None) => json!({}),
        (None, Some(schema)) if schema.raw.to_string().len() > MAX_SCHEMA_BYTES => return None,
        (None, Some(schema)) => value(&schema.raw, &mut 0)?,
    };
    let fits = schema.is_none_or(|schema| schema.flaws(&input).is_empty());
    fits.then_some(input)
}

/// A value of a schema: what its author wrote as one, else the plainest of its type. `made`: how
/// many values there are already. `None`: there would be too many.
fn value(schema: &Value, made: &mut usize) -> Option<Value> {
    *made += 1;
    if *made > MAX_VALUES {
        return None;
    }
    let chosen = ["default", "const"].map(|word| schema.get(word));
    let listed = ["examples", "enum"].map(|word| schema[word].get(0));
    if let Some(chosen) = chosen.into_iter().chain(listed).flatten().next() {
        return Some(chosen.clone());
    }
    let kind = &schema["type"];
    match kind.as_str().or_else(|| kind[0].as_str()) {
        Some("object") => object(schema, made),
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            let items = (0..least).map(|_| value(&schema["items"], made));
            items.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        Some("integer" | "number") => ["minimum", "maximum"]
            .into_iter()
            .find_map(|bound| schema.get(bound).cloned())
            .or(Some(json!(1))),
        Some("boolean") => Some(json!(true)),
        Some("null") => Some(Value::Null),
        _ => Some(json!("text")),
    }
}

/// The members that must be there.
fn object(schema: &Value, made: &mut usize) -> Option<Value> {
    let required = schema["required"].as_array().into_iter().flatten();
    let mut members = Map::new();
    for name in required.filter_map(Value::as_str) {
        let member = value(&schema["properties"][name], made)?;
        members.insert(name.to_owned(), member);
    }
    Some(Value::Object(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_asks_for_too_many_values_has_no_example() {
        let mut nested = json!({"type": "integer", "minimum": 3});
        assert_eq!(value(&nested, &mut 0), Some(json!(3)));
        for _ in 0..8 {
            nested = json!({"type": "array", "minItems": 8, "items": nested});
        }
        assert_eq!(value(&nested, &mut 0), None);
        let two = json!({"type": "array", "minItems": 2, "items": {"const": "a"}});
        assert_eq!(value(&two, &mut 0), Some(json!(["a", "a"])));
        let endless = json!({"type": "array", "minItems": u64::MAX});
        assert_eq!(value(&endless, &mut 0), None);
    }
}
