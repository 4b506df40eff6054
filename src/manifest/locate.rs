//! Locate: where a large value breaks its schema, without explaining the whole of it: an explanation copies the part
//! that it explains.
//!
//! For: `schema`. In: a schema, a value that breaks it. Out: the smallest part found that breaks its own subschema.
//! Never: guesses; follows a keyword that has alternatives (`anyOf`).

use super::json::escape_segment;
use serde_json::Value;

/// A part of a value, and the pointer of its subschema.
pub(super) struct Part<'v> {
    pub schema: String,
    pub pointer: String,
    pub value: &'v Value,
}

/// Follows `properties`, `items` and `$ref` down to a part that is small enough, or has no single part at fault.
/// `breaks` asks whether a value breaks the schema at a pointer.
pub(super) fn at_fault<'v>(
    root: &Value,
    value: &'v Value,
    small: impl Fn(&Value) -> bool,
    mut breaks: impl FnMut(&str) -> Option<Box<dyn Fn(&Value) -> bool>>,
) -> Part<'v> {
    let mut part = Part { schema: String::new(), pointer: String::new(), value };
    // Each step leads one level down a value whose depth is bounded.
    while !small(part.value) {
        let Some(below) = below(root, &part, &mut breaks) else { break };
        part = below;
    }
    part
}

fn below<'v>(
    root: &Value,
    part: &Part<'v>,
    breaks: &mut impl FnMut(&str) -> Option<Box<dyn Fn(&Value) -> bool>>,
) -> Option<Part<'v>> {
    let schema = resolved(root, &part.schema)?;
    match part.value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let pointer = format!("{schema}/properties/{}", escape_segment(name));
            root.pointer(&pointer)?;
            let pointer_of_value = format!("{}/{}", part.pointer, escape_segment(name));
            breaks(&pointer)?(value).then_some(Part { schema: pointer, pointer: pointer_of_value, value })
        }),
        Value::Array(items) => {
            let pointer = format!("{schema}/items");
            root.pointer(&pointer).filter(|items| items.is_object())?;
            let broken = breaks(&pointer)?;
            let at = items.iter().position(broken)?;
            Some(Part { schema: pointer, pointer: format!("{}/{at}", part.pointer), value: items.get(at)? })
        }
        _ => None,
    }
}

/// The pointer of the schema itself or, where it is a reference, of the schema that the references lead to.
fn resolved(root: &Value, pointer: &str) -> Option<String> {
    let mut pointer = pointer.to_owned();
    for _ in 0..16 {
        let Some(target) = root.pointer(&pointer)?.get("$ref") else { return Some(pointer) };
        pointer = target.as_str()?.strip_prefix('#')?.to_owned();
    }
    None
}
