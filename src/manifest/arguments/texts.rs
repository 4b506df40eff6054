//! Arguments given as text: each is read as the type that its place in the schema asks for.
//!
//! A text that the schema says is a string stays one.

use super::{Written, alternatives};
use crate::base::json;
use crate::manifest::schema::{Flaw, noun};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Converts the texts among these arguments.
pub(super) fn convert(root: &Value, given: &mut Map<String, Value>, written: &Written, flaws: &mut Vec<Flaw>) {
    if *written != Written::Json {
        let inputs = matches!(written, Written::Inputs { .. });
        Reading { root, inputs, flaws }.members(&alternatives(root, root), given, "");
    }
}

/// The reading of one call's texts.
struct Reading<'s, 'f> {
    root: &'s Value,
    /// A text that may be a string is JSON nevertheless where it can be, and lists and objects may hold texts.
    inputs: bool,
    flaws: &'f mut Vec<Flaw>,
}

impl<'s> Reading<'s, '_> {
    fn members(&mut self, holders: &[&'s Value], members: &mut Map<String, Value>, above: &str) {
        for (name, value) in members {
            let schemas = holders.iter().filter_map(|holder| holder.get("properties")?.get(name));
            let schemas = schemas.flat_map(|schema| alternatives(self.root, schema)).collect::<Vec<_>>();
            self.value(&schemas, value, &format!("{above}/{}", json::escape_segment(name)));
        }
    }

    fn value(&mut self, schemas: &[&'s Value], value: &mut Value, pointer: &str) {
        let types = types(schemas);
        // Nested tags of which there is one look like an object.
        if self.inputs && value.is_object() && types.iter().eq(&["array"]) {
            *value = json!([value.take()]);
        }
        match value {
            Value::String(written) => {
                if let Some(read) = self.text(schemas, &types, written, pointer) {
                    *value = read;
                }
            }
            Value::Object(members) => self.members(schemas, members, pointer),
            Value::Array(items) => {
                let each = schemas.iter().filter_map(|schema| schema.get("items"));
                let each = each.flat_map(|schema| alternatives(self.root, schema)).collect::<Vec<_>>();
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(&each, item, &format!("{pointer}/{at}"));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The value that a text stands for; `None`: it stays a text, or is none of the values it may be.
    fn text(&mut self, schemas: &[&Value], types: &BTreeSet<&str>, written: &str, pointer: &str) -> Option<Value> {
        if let Some(named) = listed(schemas, written) {
            return Some(named);
        }
        if types.is_empty() || types.contains("string") {
            let open = self.inputs && types.len() != 1;
            let value = open.then(|| json::parse(written.as_bytes(), json::Dialect::Strict).ok()).flatten()?.value;
            return if types.is_empty() { Some(value) } else { typed(value, types) };
        }
        match from_text(written, types) {
            Ok(value) => Some(value),
            Err(why) => {
                let nouns: Vec<_> = types.iter().map(|name| noun(name)).collect();
                self.flaws.push(Flaw::must(pointer, "type", &format!("must be {}{why}", nouns.join(" or "))));
                None
            }
        }
    }
}

/// The values that an `enum` or `const` lists.
fn listed_in(schema: &Value) -> impl Iterator<Item = &Value> {
    schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"))
}

/// The value of an `enum` (or `const`) that a text spells, unless the text is one itself: for "3" the 3 of `[3, "a"]`.
fn listed(schemas: &[&Value], written: &str) -> Option<Value> {
    let values: Vec<&Value> = schemas.iter().copied().flat_map(listed_in).collect();
    if values.is_empty() || values.iter().any(|value| value.as_str() == Some(written)) {
        return None;
    }
    let value = json::parse(written.as_bytes(), json::Dialect::Strict).ok()?.value;
    // 3.0 is 3 to JSON Schema; the tool sees it as the schema writes it.
    let same =
        |known: &&&Value| **known == &value || (known.is_f64() || value.is_f64()) && known.as_f64() == value.as_f64();
    values.iter().find(same).map(|known| (*known).clone())
}

/// The types that these schemas allow; empty = anything.
fn types<'s>(schemas: &[&'s Value]) -> BTreeSet<&'s str> {
    let mut types = BTreeSet::new();
    for schema in schemas {
        match schema.get("type") {
            Some(Value::String(one)) => types.extend([one.as_str()]),
            Some(Value::Array(several)) => types.extend(several.iter().filter_map(Value::as_str)),
            _ => types.extend(listed_in(schema).map(|value| -> &'s str { type_of(value) })),
        }
    }
    types
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The value a text stands for, if it has one of the types; else what to add to "must be …".
fn from_text(written: &str, types: &BTreeSet<&str>) -> Result<Value, String> {
    let structured = types.contains("object") || types.contains("array");
    let value = match json::parse(written.as_bytes(), json::Dialect::Strict) {
        Ok(document) => document.value,
        Err(problem) if structured => {
            return Err(format!(": not JSON at line {}, column {}: {}", problem.line, problem.column, problem.message));
        }
        // One by its spelling: Rust would take `inf`, `+1` and `.5`, too.
        Err(_) if types.contains("number") && is_spelt_as_number(written.trim()) => {
            return Err(": this one does not fit in 64 bits".to_owned());
        }
        Err(_) => match written.to_ascii_lowercase().parse() {
            Ok(truth) => Value::Bool(truth),
            Err(_) => return Err(String::new()),
        },
    };
    typed(value, types).ok_or_else(String::new)
}

fn is_spelt_as_number(text: &str) -> bool {
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// The value, if it has one of the types. 3.0 is an integer to JSON Schema; the tool gets 3.
fn typed(value: Value, types: &BTreeSet<&str>) -> Option<Value> {
    let kind = type_of(&value);
    if types.contains(kind) || (kind == "number" && types.contains("integer") && value.is_i64() | value.is_u64()) {
        return Some(value);
    }
    let exact = value.as_f64().filter(|n| types.contains("integer") && n.fract() == 0.0 && n.abs() < 9e15);
    exact.map(|n| Value::from(n as i64))
}
