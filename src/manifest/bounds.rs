//! How large a JSON Schema is, found before anything compiles it: one walk over at most `MAX_SCHEMA_NODES` parts.
//!
//! A schema that is too large, leads outside of itself or turns in a circle is refused.

use super::applies::SAME_VALUE;
use super::{Code, lint};
use crate::base::json::escape_segment;
use crate::base::{suggest, text};
use crate::quantity::{MAX_REGEX_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_SCHEMA_REGEXES};
use regex_automata::nfa::thompson;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    /// Pointers of the subschemas that carry a `default`.
    pub defaults: Vec<String>,
    /// How many parts it has; those that a reference leads to are counted once more for each reference.
    pub parts: usize,
    /// The states of all its patterns: at worst, a character of a text is held against each of them.
    pub states: usize,
    /// How many references lead back to a schema around them: at each level of a value a check may branch so often.
    pub circles: usize,
    /// It refers to itself anywhere, so it is compiled and checked on a large stack.
    pub recursive: bool,
    /// It has `anyOf` or `oneOf`, which are explained by all flaws of all their branches.
    pub unions: bool,
    /// The bytes of its longest `const` or pattern: each explanation that names it copies it.
    pub copied: usize,
    /// What loads and is yet a mistake: pointers, and words.
    pub remarks: Vec<(String, String)>,
}

/// The form of a keyword's value: one schema, a map or list of schemas, or data.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Schema,
    Map,
    List,
    Data,
}

/// Keywords that hold one schema, a map of schemas, or a list of them; the others hold data.
#[rustfmt::skip]
const ONE: [&str; 12] = [
    "not", "if", "then", "else", "items", "additionalItems", "additionalProperties", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
];
const MAPS: [&str; 6] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

fn role(keyword: &str, value: &Value) -> Role {
    match keyword {
        _ if LISTS.contains(&keyword) || keyword == "items" && value.is_array() => Role::List,
        _ if MAPS.contains(&keyword) => Role::Map,
        _ if ONE.contains(&keyword) => Role::Schema,
        _ => Role::Data,
    }
}

fn role_below(role_here: Role, key: &str, member: &Value) -> Role {
    match role_here {
        Role::Schema => role(key, member),
        Role::Map => Role::Schema,
        Role::List | Role::Data => Role::Data,
    }
}

/// A fault of a schema; the pointer leads into the schema.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaFault {
    pub code: Code,
    pub pointer: String,
    pub message: String,
}

impl SchemaFault {
    pub fn new(pointer: &str, message: impl Into<String>) -> SchemaFault {
        SchemaFault { code: Code::Schema, pointer: pointer.to_owned(), message: message.into() }
    }
}

/// Walks the whole schema, and what its references lead to as often as they do.
pub(super) fn measure(schema: &Value) -> Result<Bounds, Vec<SchemaFault>> {
    let mut walk = Walk {
        root: schema,
        bounds: Bounds::default(),
        faults: Vec::new(),
        around: Vec::new(),
        known: BTreeMap::new(),
        patterns: 0,
        room: MAX_REGEX_BYTES,
    };
    let place = Place { value: schema, pointer: String::new(), role: Role::Schema, depth: 0, level: 0, times: 1 };
    walk.walk(place).map_err(|fault| vec![fault])?;
    if walk.patterns > MAX_SCHEMA_REGEXES {
        let message =
            format!("the schema has more than {MAX_SCHEMA_REGEXES} regular expressions: let the script check");
        walk.faults.push(SchemaFault::new("", message));
    }
    walk.bounds.remarks.sort();
    if walk.faults.is_empty() { Ok(walk.bounds) } else { Err(walk.faults) }
}

struct Place<'s> {
    value: &'s Value,
    pointer: String,
    role: Role,
    depth: usize,
    /// How many levels of the *value* lie above what is held to this part.
    level: usize,
    /// How often the checker looks at this part for one value (`AGAIN`).
    times: usize,
}

impl Place<'_> {
    /// How often the checker looks at the schemas that hold for the same value.
    fn times_below(&self) -> usize {
        let again = ["unevaluatedProperties", "unevaluatedItems"].iter().any(|word| self.value.get(word).is_some());
        if again { self.times.saturating_mul(AGAIN) } else { self.times }
    }
}

/// Beside `unevaluatedProperties` or `unevaluatedItems` the checker asks each schema once more whether it holds, and then
/// what it looked at.
const AGAIN: usize = 3;

struct Walk<'s> {
    root: &'s Value,
    bounds: Bounds,
    faults: Vec<SchemaFault>,
    /// The schemas around the place that is looked at, each with its level.
    around: Vec<(&'s Value, usize)>,
    /// The subschemas whose own words were looked at, with the states of their own patterns.
    known: BTreeMap<*const Value, usize>,
    patterns: usize,
    /// Bytes that further patterns may take.
    room: usize,
}

impl<'s> Walk<'s> {
    /// The fault that ends the walk; others are collected. Its recursion is as deep as a schema may be.
    fn walk(&mut self, at: Place<'s>) -> Result<(), SchemaFault> {
        self.bounds.parts = self.bounds.parts.saturating_add(at.times);
        if self.bounds.parts > MAX_SCHEMA_NODES {
            let message = format!(
                "the schema has more than {MAX_SCHEMA_NODES} parts (what a reference leads to counts for each \
                 reference): leave some of it to the script"
            );
            return Err(SchemaFault::new("", message));
        }
        if at.depth > MAX_SCHEMA_DEPTH {
            let message = format!("the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels, references followed");
            return Err(SchemaFault::new(&at.pointer, message));
        }
        match at.value {
            Value::Array(items) => {
                let role = if at.role == Role::List { Role::Schema } else { Role::Data };
                for (index, value) in items.iter().enumerate() {
                    let pointer = format!("{}/{index}", at.pointer);
                    self.walk(Place { value, pointer, role, depth: at.depth + 1, ..at })?;
                }
            }
            Value::Object(map) => {
                self.identity(map, &at.pointer);
                if at.role == Role::Schema {
                    let own = match self.known.get(&std::ptr::from_ref(at.value)) {
                        Some(own) => *own,
                        None => {
                            let own = self.words(map, &at.pointer);
                            self.known.insert(at.value, own);
                            own
                        }
                    };
                    // A text is held against a pattern once for each reference that leads to it.
                    self.bounds.states = self.bounds.states.saturating_add(own.saturating_mul(at.times));
                    self.around.push((at.value, at.level));
                    self.reference(map, &at)?;
                }
                for (key, value) in map {
                    self.member(&at, key, value)?;
                }
                if at.role == Role::Schema {
                    self.around.pop();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn member(&mut self, at: &Place<'s>, key: &str, value: &'s Value) -> Result<(), SchemaFault> {
        let keyword = at.role == Role::Schema;
        let same_value = keyword && SAME_VALUE.contains(&key);
        let circles = self.bounds.circles;
        self.walk(Place {
            value,
            pointer: format!("{}/{}", at.pointer, escape_segment(key)),
            role: role_below(at.role, key, value),
            depth: at.depth + 1,
            level: at.level + usize::from(keyword && !same_value),
            times: if same_value || key == "contains" { at.times_below() } else { at.times },
        })?;
        if keyword && matches!(key, "$defs" | "definitions") {
            // A definition is held against a value only where a reference leads to it.
            self.bounds.circles = circles;
        }
        Ok(())
    }

    /// Follows a reference, unless it leads back to a schema around it.
    fn reference(&mut self, map: &Map<String, Value>, at: &Place<'s>) -> Result<(), SchemaFault> {
        let Some(reference) = map.get("$ref").and_then(Value::as_str) else { return Ok(()) };
        let local = local(reference);
        let Some((local, value)) = local.and_then(|local| Some((local, self.root.pointer(local)?))) else {
            self.leads_nowhere(reference, &at.pointer);
            return Ok(());
        };
        match self.around.iter().find(|(schema, _)| std::ptr::eq(*schema, value)) {
            None => {
                let (pointer, role, times) = (local.to_owned(), Role::Schema, at.times_below());
                self.walk(Place { value, pointer, role, depth: at.depth + 1, level: at.level, times })?;
            }
            Some((_, level)) if *level < at.level => {
                self.bounds.circles += at.times;
                self.bounds.recursive = true;
            }
            Some(_) => self.fault(
                &format!("{}/$ref", at.pointer),
                "this reference turns in a circle: it leads back to a schema of the same value; a schema may refer to \
                 itself below properties, items and the like only",
            ),
        }
        Ok(())
    }

    fn leads_nowhere(&mut self, reference: &str, pointer: &str) {
        let at = format!("{pointer}/$ref");
        if reference.starts_with('#') {
            self.fault(
                &at,
                "this reference leads to nothing in the schema (write it as #/$defs/name, without escapes)",
            );
        } else {
            let why =
                "a reference stays inside its own schema (#/$defs/…): copy the definition here; nothing is fetched";
            // A program that follows a reference out of the file would fetch it.
            self.add(SchemaFault { code: Code::Security, ..SchemaFault::new(&at, why) });
        }
    }

    /// A name or a dialect of its own makes a part another document, whose references lead elsewhere than here.
    fn identity(&mut self, map: &Map<String, Value>, pointer: &str) {
        let dialect = self.root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let old = Some("id").filter(|_| ["draft-03", "draft-04"].iter().any(|draft| dialect.contains(draft)));
        for word in ["$id", "$schema"].into_iter().chain(old) {
            if !pointer.is_empty() && map.get(word).is_some_and(Value::is_string) {
                let message = format!("'{word}' is allowed at the top of a schema only: take it away");
                self.fault(&format!("{pointer}/{word}"), &message);
            }
        }
    }

    /// What one subschema says itself. Returns the states of its patterns.
    fn words(&mut self, map: &Map<String, Value>, pointer: &str) -> usize {
        for keyword in ["$dynamicRef", "$recursiveRef"] {
            if map.contains_key(keyword) {
                self.fault(&format!("{pointer}/{keyword}"), &format!("'{keyword}' is not supported: use $ref"));
            }
        }
        self.bounds.unions |= map.contains_key("anyOf") || map.contains_key("oneOf");
        let copied = ["const", "pattern"].iter().filter_map(|word| map.get(*word)).map(|value| value.to_string().len());
        self.bounds.copied = copied.fold(self.bounds.copied, usize::max);
        if map.contains_key("default") {
            self.bounds.defaults.push(pointer.to_owned());
        }
        self.types(map, pointer);
        // What is larger is refused when its members are counted.
        if map.len() <= MAX_SCHEMA_NODES {
            lint::keywords(map, pointer, &mut self.bounds.remarks);
        }
        let mut states = 0;
        if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
            states += self.pattern(pattern, &format!("{pointer}/pattern"));
        }
        for pattern in map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            states += self.pattern(pattern, &format!("{pointer}/patternProperties/{}", escape_segment(pattern)));
        }
        states
    }

    /// Compiles a pattern; returns its states.
    fn pattern(&mut self, pattern: &str, pointer: &str) -> usize {
        self.patterns += 1;
        if self.patterns > MAX_SCHEMA_REGEXES {
            return 0;
        }
        match compiled(pattern, self.room) {
            Some((bytes, states)) => {
                self.room = self.room.saturating_sub(bytes);
                states
            }
            None => {
                self.fault(
                    pointer,
                    "the regular expressions of this schema are too costly to compile: repeat less ({1,64}), write \
                     [A-Za-z] instead of \\p{L} or (?i), or let the script check",
                );
                0
            }
        }
    }

    /// `type` names one of the seven types, or several.
    fn types(&mut self, map: &Map<String, Value>, pointer: &str) {
        let several = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let written = map.get("type").map(several).unwrap_or_default();
        for word in written.iter().filter_map(Value::as_str).filter(|word| !TYPES.contains(word)) {
            let known = CALLED.iter().find(|(other, _)| word.eq_ignore_ascii_case(other)).map(|(_, ours)| *ours);
            let near = known.or_else(|| suggest::nearest(word, TYPES));
            let near = near.map_or_else(String::new, |near| format!(" did you mean '{near}'?"));
            let message = format!("'{}' is not a type:{near} the types are {}", text::head(word, 40), TYPES.join(", "));
            self.fault(&format!("{pointer}/type"), &message);
        }
    }

    fn fault(&mut self, pointer: &str, message: &str) {
        self.add(SchemaFault::new(pointer, message));
    }

    /// Each fault is reported once, however often references lead to its place.
    fn add(&mut self, fault: SchemaFault) {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }
}

/// The pointer of a reference inside the document. Escapes (`%25`) would be a second way to write a name.
fn local(reference: &str) -> Option<&str> {
    let pointer = reference.strip_prefix('#')?;
    (pointer.is_empty() || pointer.starts_with('/')).then_some(pointer).filter(|pointer| !pointer.contains('%'))
}

pub(super) const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
/// Names of these types in other languages.
const CALLED: [(&str, &str); 9] = [
    ("str", "string"),
    ("text", "string"),
    ("int", "integer"),
    ("float", "number"),
    ("double", "number"),
    ("bool", "boolean"),
    ("list", "array"),
    ("dict", "object"),
    ("none", "null"),
];

/// Longest pattern, bytes.
const MAX_PATTERN: usize = 2000;
/// The checker translates a pattern in one pass for each escape, and each makes it longer: about what a pass costs for
/// each of them, in bytes of a compiled pattern.
const ESCAPE: usize = 64;
/// Parts of a pattern that stand for thousands of characters. To ignore case in them takes a look at each.
const WIDE: [&str; 8] = [r"\p", r"\P", r"\x", r"\u", r"\U", r"\D", r"\S", r"\W"];

/// The bytes and states of a pattern, compiled by the engine that checks use, but no further than `room` bytes; `None`:
/// it is too costly.
fn compiled(pattern: &str, room: usize) -> Option<(usize, usize)> {
    let flags = |at: usize| pattern[at + 2..].chars().take_while(|c| c.is_ascii_alphabetic() || *c == '-');
    let ignores_case = pattern.match_indices("(?").any(|(at, _)| flags(at).any(|flag| flag == 'i'));
    let wide = !pattern.is_ascii() || WIDE.iter().any(|wide| pattern.contains(wide));
    let escapes = pattern.matches('\\').count();
    let room = room.checked_sub(escapes * escapes * ESCAPE)?;
    if pattern.len() > MAX_PATTERN || ignores_case && wide {
        return None;
    }
    // What is no regular expression is refused by the checker, in its own words.
    let Ok(translated) = jsonschema_regex::to_rust_regex(pattern) else { return Some((0, 0)) };
    let config = thompson::Config::new().nfa_size_limit(Some(room));
    match thompson::Compiler::new().configure(config).build(&translated) {
        Ok(program) => Some((program.memory_usage() + escapes * escapes * ESCAPE, program.states().len())),
        Err(why) => why.size_limit().is_none().then_some((0, 0)),
    }
}
