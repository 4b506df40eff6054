//! Effort: how much work it is to check one value against one schema, estimated before the check.
//!
//! For: `schema`. In: a schema within its bounds, a value. Out: whether the checker would take too many steps.
//! Never: takes many more steps itself; counts on an early end (the checker tries every alternative of an `anyOf`).

use super::applies::{of_field, of_item, parts};
use super::weight::{STEP, weight};
use crate::quantity::{MAX_CHECK_STEPS, MAX_JSON_DEPTH, MAX_SCHEMA_NODES};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Keywords whose schemas are checked against the same value.
const SAME_VALUE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "dependencies"];
/// Steps to look up what one schema says of one member or item.
const LOOK: usize = 4;
/// A character is matched against so many parts of a pattern in one step.
const PARTS_AT_ONCE: usize = 32;

/// Whether checking `value` against `schema`, a part of `root`, takes more steps than a check may. `once`: the checker
/// remembers its result where recursion leads to one place again (`bounds::Facts::branching`).
pub(super) fn too_much(root: &Value, schema: &Value, value: &Value, once: bool) -> bool {
    let mut effort = Effort { root, left: MAX_CHECK_STEPS, once, known: HashMap::new() };
    effort.look(vec![schema], value, 0);
    effort.left == 0
}

/// All schemas that apply to one value, and the steps they take.
struct Together<'s> {
    schemas: Vec<&'s Value>,
    steps: usize,
    /// Steps for each character of a text, and of the member names of an object.
    of_text: usize,
    of_names: usize,
}

struct Effort<'s> {
    root: &'s Value,
    /// Counts down; at 0 nothing more is looked at.
    left: usize,
    once: bool,
    /// By the schemas that the search began with: most items of a list have the same ones.
    known: HashMap<Vec<*const Value>, Rc<Together<'s>>>,
}

impl<'s> Effort<'s> {
    fn look(&mut self, begin: Vec<&'s Value>, value: &Value, depth: usize) {
        let together = self.together(begin);
        // Looking at a value is a step as well.
        self.spend(1 + together.steps);
        if self.left == 0 || depth > MAX_JSON_DEPTH {
            return;
        }
        let looks = LOOK * together.schemas.len();
        match value {
            Value::String(text) => self.spend(together.of_text.saturating_mul(text.len())),
            Value::Object(fields) => {
                let of_a_name: Vec<&Value> =
                    together.schemas.iter().filter_map(|schema| schema.get("propertyNames")).collect();
                for (name, field) in fields {
                    if !of_a_name.is_empty() {
                        self.look(of_a_name.clone(), &Value::String(name.clone()), depth + 1);
                    }
                    self.spend(looks + together.of_names.saturating_mul(name.len()));
                    let below = together.schemas.iter().flat_map(|schema| of_field(schema, name)).collect();
                    self.look(below, field, depth + 1);
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.spend(looks);
                    let below = together.schemas.iter().flat_map(|schema| of_item(schema, at)).collect();
                    self.look(below, item, depth + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn spend(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    fn together(&mut self, mut schemas: Vec<&'s Value>) -> Rc<Together<'s>> {
        if self.left == 0 {
            schemas.clear();
        }
        let key: Vec<*const Value> = schemas.iter().map(|schema| std::ptr::from_ref(*schema)).collect();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let together = Rc::new(self.gather(schemas));
        self.known.insert(key, together.clone());
        together
    }

    /// Adds the schemas for the same value that these lead to.
    fn gather(&mut self, mut schemas: Vec<&'s Value>) -> Together<'s> {
        let mut seen = BTreeSet::new();
        schemas.retain(|schema| !self.once || seen.insert(std::ptr::from_ref(*schema)));
        let (mut steps, mut of_text, mut of_names) = (0, 0, 0);
        let mut next = 0;
        while let Some(schema) = schemas.get(next).copied() {
            next += 1;
            steps += own_steps(schema);
            self.spend(LOOK);
            if self.left == 0 || schemas.len() > MAX_SCHEMA_NODES {
                self.left = 0;
                break;
            }
            of_text += schema["pattern"].as_str().map_or(0, per_character);
            let names = schema["patternProperties"].as_object().into_iter().flat_map(|patterns| patterns.keys());
            of_names += names.map(|pattern| per_character(pattern)).sum::<usize>();
            let target = schema["$ref"].as_str().and_then(|r| self.root.pointer(r.strip_prefix('#')?));
            for other in target.into_iter().chain(SAME_VALUE.iter().flat_map(|word| parts(&schema[*word]))) {
                if !self.once || seen.insert(std::ptr::from_ref(other)) {
                    schemas.push(other);
                }
            }
        }
        Together { schemas, steps, of_text, of_names }
    }
}

/// Steps for one subschema alone: its keywords, and each value or name that it lists.
fn own_steps(schema: &Value) -> usize {
    let Value::Object(words) = schema else { return 1 };
    let listed = ["enum", "const", "required"].iter().filter_map(|word| words.get(*word)).map(size);
    words.len() + listed.sum::<usize>() + words.get("properties").and_then(Value::as_object).map_or(0, |map| map.len())
}

/// Steps for one character: at worst all parts of the pattern are followed at once.
fn per_character(pattern: &str) -> usize {
    1 + weight(pattern) / STEP / PARTS_AT_ONCE
}

/// The number of parts of a value.
fn size(value: &Value) -> usize {
    let (mut size, mut open) = (0, vec![value]);
    while let Some(value) = open.pop() {
        size += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    size
}
