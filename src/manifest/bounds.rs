//! How large a JSON Schema is, found before anything compiles it: one walk over at most
//! `MAX_SCHEMA_NODES` parts.
//!
//! What a reference leads to counts once more for each reference. A schema that is too large, leads
//! outside of itself or turns in a circle is refused.
//!
//! One bound covers all patterns of a schema together. `$ref` never leads back to a schema of the
//! same value.

use crate::base::json::escape_segment;
use crate::base::problem::{Code, Problem, Severity};
use crate::quantity::{MAX_REGEX_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_SCHEMA_REGEXES};
use regex_automata::nfa::thompson;
use serde_json::{Map, Value};
use std::collections::HashMap;

#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    /// Pointers of the subschemas that carry a `default`.
    pub defaults: Vec<String>,
    /// How many parts it has; those that a reference leads to are counted once more for each
    /// reference.
    pub parts: usize,
    /// The states of all its patterns: at worst, a character of a text is compared with each of
    /// them.
    pub states: usize,
    /// What all its patterns take compiled, bytes.
    pub pattern_bytes: usize,
    /// How many references lead back to a schema around them: at each level of a value a check may
    /// branch so often.
    pub recursive_references: usize,
    /// The schema refers to itself somewhere, so it is compiled and checked on a large stack.
    pub is_recursive: bool,
    /// Some `anyOf` or `oneOf` looks into members or items: its explanation has all flaws of all
    /// its branches.
    pub has_deep_unions: bool,
    /// The bytes of its longest `const` or pattern: each explanation that names it copies it.
    pub copied: usize,
}

/// A fault of a schema; the pointer leads into the schema.
pub(super) fn fault(pointer: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem::new(Severity::Error, Code::Schema, pointer, message)
}

/// Walks the whole schema, and the target of a reference once for each reference.
pub(super) fn measure(schema: &Value) -> Result<Bounds, Problem> {
    let mut walk = Walk {
        root: schema,
        bounds: Bounds::default(),
        around: Vec::new(),
        known: HashMap::new(),
        room: MAX_REGEX_BYTES,
        patterns: 0,
    };
    walk.schema(
        schema,
        "",
        Position {
            depth: 0,
            level: 0,
            times: 1,
            in_union: false,
        },
    )?;
    let dialect = schema["$schema"].as_str().unwrap_or_default();
    let is_old = ["draft-03", "draft-04"]
        .iter()
        .any(|draft| dialect.contains(draft));
    refuse_identities(
        schema,
        "",
        if is_old {
            &["$id", "$schema", "id"]
        } else {
            &["$id", "$schema"]
        },
    )?;
    Ok(Bounds {
        pattern_bytes: MAX_REGEX_BYTES - walk.room,
        ..walk.bounds
    })
}

/// Refuses `$id` and `$schema` below the top: they make a part a document, whose references lead
/// elsewhere.
fn refuse_identities(value: &Value, pointer: &str, words: &[&str]) -> Result<(), Problem> {
    if let Value::Array(items) = value {
        return items
            .iter()
            .enumerate()
            .try_for_each(|(at, item)| refuse_identities(item, &format!("{pointer}/{at}"), words));
    }
    value
        .as_object()
        .into_iter()
        .flatten()
        .try_for_each(|(key, member)| {
            let at = format!("{pointer}/{}", escape_segment(key));
            if !pointer.is_empty() && member.is_string() && words.contains(&key.as_str()) {
                return Err(fault(
                    at,
                    format!("'{key}' is allowed at the top of a schema only: remove it"),
                ));
            }
            refuse_identities(member, &at, words)
        })
}

/// Keywords that hold one schema, a map of schemas, or a list of them; the others hold data.
#[rustfmt::skip]
const ONE: [&str; 12] = [
    "not", "if", "then", "else", "items", "additionalItems", "additionalProperties", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
];
const MAPS: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// The schemas that a keyword holds, and where they lie below it.
fn subschemas<'s>(keyword: &str, value: &'s Value) -> Vec<(String, &'s Value)> {
    match value {
        Value::Array(list) if LISTS.contains(&keyword) => list
            .iter()
            .enumerate()
            .map(|(at, one)| (format!("/{at}"), one))
            .collect(),
        Value::Object(map) if MAPS.contains(&keyword) => map
            .iter()
            .map(|(name, one)| (format!("/{}", escape_segment(name)), one))
            .collect(),
        value if ONE.contains(&keyword) => vec![(String::new(), value)],
        _ => Vec::new(),
    }
}

#[derive(Clone, Copy)]
struct Position {
    /// How deep the JSON is nested here, references followed.
    depth: usize,
    /// How many levels of the *value* lie above the value that this part checks.
    level: usize,
    /// How often the checker looks at this part for one value (`CHECKS_PER_UNEVALUATED`).
    times: usize,
    in_union: bool,
}

/// How often the checker checks a schema beside `unevaluatedProperties` or `unevaluatedItems`: as
/// usual, once more for whether it holds, and once more for what it looked at.
const CHECKS_PER_UNEVALUATED: usize = 3;

struct Walk<'s> {
    root: &'s Value,
    bounds: Bounds,
    /// The schemas around the current one, each with its level.
    around: Vec<(&'s Value, usize)>,
    /// The states of the patterns of each subschema whose own keywords were read.
    known: HashMap<*const Value, usize>,
    /// Bytes that further patterns may take, and how many there are.
    room: usize,
    patterns: usize,
}

impl<'s> Walk<'s> {
    /// Measures one schema. `MAX_SCHEMA_DEPTH` bounds the recursion.
    fn schema(&mut self, schema: &'s Value, pointer: &str, at: Position) -> Result<(), Problem> {
        self.count(1, at)?;
        if at.depth > MAX_SCHEMA_DEPTH {
            let message = format!(
                "the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels, references followed"
            );
            return Err(fault(pointer, message));
        }
        let Some(map) = schema.as_object() else {
            return self.count(size(schema), at);
        };
        let states = match self.known.get(&std::ptr::from_ref(schema)) {
            Some(states) => *states,
            None => {
                let states = self.own_keywords(map, pointer)?;
                self.known.insert(schema, states);
                states
            }
        };
        // A text is compared with a pattern once for each reference that leads to the pattern.
        self.bounds.states = self
            .bounds
            .states
            .saturating_add(states.saturating_mul(at.times));
        let again = ["unevaluatedProperties", "unevaluatedItems"]
            .iter()
            .any(|keyword| map.contains_key(*keyword));
        let times = if again {
            at.times.saturating_mul(CHECKS_PER_UNEVALUATED)
        } else {
            at.times
        };
        self.around.push((schema, at.level));
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            self.reference(
                reference,
                pointer,
                Position {
                    times,
                    depth: at.depth + 1,
                    ..at
                },
            )?;
        }
        for (keyword, value) in map {
            let below = subschemas(keyword, value);
            let is_same_value = SAME_VALUE.contains(&keyword.as_str());
            let is_definition = matches!(keyword.as_str(), "$defs" | "definitions");
            self.bounds.has_deep_unions |=
                at.in_union && !is_same_value && !is_definition && !below.is_empty();
            let before = self.bounds.recursive_references;
            self.count(if below.is_empty() { size(value) } else { 1 }, at)?;
            for (name, subschema) in below {
                let place = Position {
                    depth: at.depth + 1 + usize::from(!name.is_empty()),
                    level: at.level + usize::from(!is_same_value),
                    times: if is_same_value || keyword == "contains" {
                        times
                    } else {
                        at.times
                    },
                    in_union: !is_definition
                        && (at.in_union || matches!(keyword.as_str(), "anyOf" | "oneOf")),
                };
                self.schema(
                    subschema,
                    &format!("{pointer}/{}{name}", escape_segment(keyword)),
                    place,
                )?;
            }
            if is_definition {
                // A definition checks a value only where a reference leads to it.
                self.bounds.recursive_references = before;
            }
        }
        self.around.pop();
        Ok(())
    }

    fn count(&mut self, parts: usize, at: Position) -> Result<(), Problem> {
        self.bounds.parts = self
            .bounds
            .parts
            .saturating_add(parts.saturating_mul(at.times));
        if self.bounds.parts <= MAX_SCHEMA_NODES {
            return Ok(());
        }
        let message = format!(
            "the schema has more than {MAX_SCHEMA_NODES} parts (what a reference leads to counts \
             for each reference): leave some of it to the script"
        );
        Err(fault("", message))
    }

    /// Follows a reference, unless it leads back to a schema around it.
    fn reference(&mut self, reference: &str, pointer: &str, at: Position) -> Result<(), Problem> {
        let here = format!("{pointer}/$ref");
        let Some(target) = reference.strip_prefix('#') else {
            let message = "a reference must stay inside its own schema (#/$defs/…): copy the \
                definition here; nothing is fetched";
            // A program that follows a reference out of the file would fetch it.
            return Err(Problem {
                code: Code::Security,
                ..fault(here, message)
            });
        };
        // Escapes (`%25`) would be a second way to write a name.
        let schema = Some(target)
            .filter(|target| !target.contains('%'))
            .and_then(|target| self.root.pointer(target));
        let Some(schema) = schema else {
            let message = "this reference leads to nothing in the schema (write it as \
                #/$defs/name, without escapes)";
            return Err(fault(here, message));
        };
        match self
            .around
            .iter()
            .find(|(around, _)| std::ptr::eq(*around, schema))
        {
            None => self.schema(schema, target, at),
            Some((_, level)) if *level < at.level => {
                self.bounds.recursive_references += at.times;
                self.bounds.is_recursive = true;
                Ok(())
            }
            Some(_) => Err(fault(
                here,
                "this reference turns in a circle: it leads back to a schema of the same value; a \
                 schema may refer to itself below properties, items and the like only",
            )),
        }
    }

    /// Measures the keywords of one subschema, without those below it. Returns the states of its
    /// patterns.
    fn own_keywords(&mut self, map: &Map<String, Value>, pointer: &str) -> Result<usize, Problem> {
        if let Some(keyword) = ["$dynamicRef", "$recursiveRef"]
            .into_iter()
            .find(|keyword| map.contains_key(*keyword))
        {
            let message = format!("'{keyword}' is not supported: use $ref");
            return Err(fault(format!("{pointer}/{keyword}"), message));
        }
        // What jsonschema copies into each error.
        let copied = [
            "const",
            "enum",
            "pattern",
            "not",
            "required",
            "dependentRequired",
            "dependencies",
        ];
        let copied = copied
            .iter()
            .filter_map(|word| map.get(*word))
            .map(|value| value.to_string().len());
        self.bounds.copied = copied.fold(self.bounds.copied, usize::max);
        if map.contains_key("default") {
            self.bounds.defaults.push(pointer.to_owned());
        }
        let pattern = map
            .get("pattern")
            .and_then(Value::as_str)
            .map(|pattern| (pattern, "/pattern".to_owned()));
        let names = map
            .get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::keys);
        let names = names.map(|name| {
            (
                name.as_str(),
                format!("/patternProperties/{}", escape_segment(name)),
            )
        });
        let mut states = 0;
        for (pattern, at) in pattern.into_iter().chain(names) {
            self.patterns += 1;
            if self.patterns > MAX_SCHEMA_REGEXES {
                let message = format!(
                    "the schema has more than {MAX_SCHEMA_REGEXES} regular expressions: let the \
                    script check"
                );
                return Err(fault("", message));
            }
            let Some((bytes, own)) = compiled_size(pattern, self.room) else {
                let message = "the regular expressions of this schema are too costly to compile: \
                               repeat less ({1,64}), write [A-Za-z] instead of \\p{L} or (?i), or \
                               let the script check";
                return Err(fault(format!("{pointer}{at}"), message));
            };
            self.room = self.room.saturating_sub(bytes);
            states += own;
        }
        Ok(states)
    }
}

/// The number of values in a value.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// Longest pattern, bytes.
const MAX_PATTERN: usize = 2000;
/// The checker translates a pattern in one pass for each escape, and each pass makes it longer.
/// This is about what one pass costs for one escape, in bytes of a compiled pattern.
const ESCAPE: usize = 64;
/// Parts of a pattern that stand for thousands of characters. Ignoring case in them looks at each.
const WIDE: [&str; 8] = [r"\p", r"\P", r"\x", r"\u", r"\U", r"\D", r"\S", r"\W"];

/// The bytes and states of a pattern, compiled by the engine that checks use, but no further than
/// `room` bytes; `None`: it is too costly.
fn compiled_size(pattern: &str, room: usize) -> Option<(usize, usize)> {
    let ignores_case = pattern.match_indices("(?").any(|(at, _)| {
        pattern[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_alphabetic() || *c == '-')
            .any(|flag| flag == 'i')
    });
    let is_wide = !pattern.is_ascii() || WIDE.iter().any(|wide| pattern.contains(wide));
    let escapes = pattern.matches('\\').count().pow(2) * ESCAPE;
    let room = room.checked_sub(escapes)?;
    if pattern.len() > MAX_PATTERN || ignores_case && is_wide {
        return None;
    }
    // What is not a regular expression is refused by the checker, in its own words.
    let Ok(translated) = jsonschema_regex::to_rust_regex(pattern) else {
        return Some((0, 0));
    };
    let config = thompson::Config::new().nfa_size_limit(Some(room));
    match thompson::Compiler::new()
        .configure(config)
        .build(&translated)
    {
        Ok(program) => Some((program.memory_usage() + escapes, program.states().len())),
        Err(why) => why.size_limit().is_none().then_some((0, 0)),
    }
}

/// Keywords whose subschemas apply to the same value.
pub const SAME_VALUE: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "then",
    "else",
    "not",
    "dependentSchemas",
    "dependencies",
];

/// A schema, or the schemas of a list or of a map.
pub fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        // Most keywords hold a schema, `dependentSchemas` a map of them: taken as both, which only
        // finds too many.
        Value::Object(map) => std::iter::once(value)
            .chain(map.values())
            .filter(|part| part.is_object())
            .collect(),
        _ => Vec::new(),
    }
}

/// The subschemas that may apply to a member. Every pattern of names counts, whether it matches or
/// not.
pub fn of_field<'s>(schema: &'s Value, name: &str) -> Vec<&'s Value> {
    let own = schema["properties"].get(name);
    let rest = ["additionalProperties", "unevaluatedProperties"]
        .map(|word| schema.get(word).filter(|_| own.is_none()));
    let patterns = schema["patternProperties"]
        .as_object()
        .into_iter()
        .flat_map(|map| map.values());
    own.into_iter()
        .chain(rest.into_iter().flatten())
        .chain(patterns)
        .filter(|part| part.is_object())
        .collect()
}

/// The subschemas that may apply to an item.
pub fn of_item(schema: &Value, at: usize) -> Vec<&Value> {
    let words =
        ["items", "contains", "unevaluatedItems", "additionalItems"].map(|word| schema.get(word));
    let listed =
        ["prefixItems", "items"].map(|word| schema.get(word).and_then(|list| list.get(at)));
    words
        .into_iter()
        .chain(listed)
        .flatten()
        .filter(|part| part.is_object())
        .collect()
}
