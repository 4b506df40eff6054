//! Bounds: how large a JSON Schema is, found before anything compiles it (P21).
//!
//! For: `schema`. In: a schema as written. Out: its facts, or what is too large or leads outside.
//! Never: recurses with the schema's own depth; follows a reference out of the document.
//!
//! A small schema can be made to take endless work: references that double at every step, recursion that
//! visits one place twice, thousands of regular expressions. Each has a bound here.

use super::json::escape_segment;
use super::schema::SchemaFault;
use super::weight::weight;
use super::{Code, suggest, text};
use crate::quantity::{
    MAX_SCHEMA_COMPILED, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_SCHEMA_REFERENCES, MAX_SCHEMA_REGEXES,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Pointers of the subschemas that carry a `default`.
    pub defaults: Vec<String>,
    /// It has references, so it is compiled and checked on a large stack.
    pub references: bool,
    /// Recursion visits one place of a value more than once: whether a value fits is cheap to find, why not is not.
    pub branching: bool,
    /// How many parts it has, references unfolded.
    pub parts: usize,
    /// What its regular expressions weigh, each counted as often as it is compiled.
    pub weight: usize,
    /// It has `anyOf` or `oneOf`, whose explanations copy what they explain.
    pub unions: bool,
}

/// The form of a keyword's value: one schema, a map or list of schemas, or data.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    Schema,
    Map,
    List,
    Data,
}

fn role(keyword: &str, value: &Value) -> Role {
    match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => Role::Map,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Role::List,
        "items" if value.is_array() => Role::List,
        "not"
        | "if"
        | "then"
        | "else"
        | "items"
        | "additionalItems"
        | "additionalProperties"
        | "contains"
        | "propertyNames"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "contentSchema" => Role::Schema,
        _ => Role::Data,
    }
}

pub(super) fn role_below(role_here: Role, key: &str, member: &Value) -> Role {
    match role_here {
        Role::Schema => role(key, member),
        Role::Map => Role::Schema,
        Role::List | Role::Data => Role::Data,
    }
}

/// Walks the whole schema once. `room`: what its regular expressions may still weigh.
pub(super) fn inspect(schema: &Value, room: usize) -> Result<Facts, Vec<SchemaFault>> {
    let mut facts = Facts::default();
    let mut faults = Vec::new();
    let mut targets = BTreeMap::new();
    let (mut nodes, mut regexes, mut compiled) = (0usize, 0usize, 0usize);
    let mut heavy = None;
    let mut open = vec![(schema, String::new(), 0usize, Role::Schema, 1usize)];
    while let Some((value, pointer, depth, role_here, mut times)) = open.pop() {
        nodes += 1;
        if nodes > MAX_SCHEMA_NODES {
            return Err(vec![SchemaFault::new("", format!("the schema has more than {MAX_SCHEMA_NODES} parts"))]);
        }
        if depth > MAX_SCHEMA_DEPTH {
            let message = format!("the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels");
            return Err(vec![SchemaFault::new(&pointer, message)]);
        }
        match value {
            Value::Array(items) => {
                let inner = if role_here == Role::List { Role::Schema } else { Role::Data };
                open.extend(
                    items.iter().enumerate().map(|(i, item)| (item, format!("{pointer}/{i}"), depth + 1, inner, times)),
                );
            }
            Value::Object(map) => {
                if role_here == Role::Schema {
                    regexes += usize::from(map.contains_key("pattern"));
                    regexes += map.get("patternProperties").and_then(Value::as_object).map_or(0, serde_json::Map::len);
                    facts.unions |= map.contains_key("anyOf") || map.contains_key("oneOf");
                    if map.contains_key("default") {
                        facts.defaults.push(pointer.clone());
                        times += 1;
                    }
                    names(map, &pointer, schema, &mut targets, &mut faults);
                    types(map, &pointer, &mut faults);
                }
                if role_here != Role::Map && facts.weight <= room {
                    facts.weight = facts.weight.saturating_add(weigh(map).saturating_mul(times));
                    heavy = (facts.weight > room).then(|| pointer.clone());
                }
                for (key, member) in map {
                    let inner = role_below(role_here, key, member);
                    open.push((member, format!("{pointer}/{}", escape_segment(key)), depth + 1, inner, times));
                }
            }
            _ => {}
        }
        compiled += times;
    }
    facts.parts = nodes;
    facts.references = !targets.is_empty();
    if facts.references {
        // Each default is checked by a schema of its own, whose references may lead to all parts.
        compiled = nodes * (1 + facts.defaults.len());
        facts.weight = facts.weight.saturating_mul(1 + facts.defaults.len());
    }
    if facts.weight > room {
        faults.push(too_heavy(&heavy.unwrap_or_default()));
    }
    if compiled > MAX_SCHEMA_COMPILED {
        faults.push(SchemaFault::new("", "the schema has too many defaults for its size: take some away"));
    }
    if regexes > MAX_SCHEMA_REGEXES {
        faults.push(SchemaFault::new("", format!("the schema has more than {MAX_SCHEMA_REGEXES} regular expressions")));
    }
    if faults.is_empty() && facts.references {
        targets.insert(String::new(), schema);
        (facts.branching, facts.parts) = Graph::of(&targets).check().map_err(|fault| vec![fault])?;
    }
    if faults.is_empty() { Ok(facts) } else { Err(faults) }
}

/// The weight of the patterns of one subschema; data count too, since a reference may lead into them.
fn weigh(map: &serde_json::Map<String, Value>) -> usize {
    let own = map.get("pattern").and_then(Value::as_str);
    let names = map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|names| names.keys());
    own.into_iter().chain(names.map(String::as_str)).map(weight).fold(0, usize::saturating_add)
}

fn too_heavy(pointer: &str) -> SchemaFault {
    let mend = "the regular expressions of this manifest are too costly to compile: repeat less ({1,64}), write [A-Za-z] \
                instead of \\p{L}, or let the script check";
    SchemaFault::new(pointer, mend)
}

/// Collects the references of one subschema; refuses those that lead out of the document.
fn names<'v>(
    map: &serde_json::Map<String, Value>,
    pointer: &str,
    root: &'v Value,
    targets: &mut BTreeMap<String, &'v Value>,
    faults: &mut Vec<SchemaFault>,
) {
    for keyword in ["$dynamicRef", "$recursiveRef"] {
        if map.contains_key(keyword) {
            faults.push(SchemaFault::new(
                &format!("{pointer}/{keyword}"),
                format!("'{keyword}' is not supported: use $ref"),
            ));
        }
    }
    if !pointer.is_empty() && map.get("$id").is_some_and(Value::is_string) {
        faults.push(SchemaFault::new(
            &format!("{pointer}/$id"),
            "'$id' is allowed at the top of a schema only: take it away",
        ));
    }
    let Some(Value::String(reference)) = map.get("$ref") else { return };
    let at = format!("{pointer}/$ref");
    let local = reference.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match local.map(|local| (local, root.pointer(local))) {
        Some((local, Some(target))) => {
            targets.insert(local.to_owned(), target);
        }
        Some(_) => faults.push(SchemaFault::new(&at, "this reference leads to nothing in the schema")),
        None => {
            let why =
                "a reference stays inside its own schema (#/$defs/…): copy the definition here; nothing is fetched";
            let fault = SchemaFault::new(&at, why);
            // A program that follows a reference out of the file would fetch it.
            let code = if reference.starts_with('#') { fault.code } else { Code::Security };
            faults.push(SchemaFault { code, ..fault });
        }
    }
}

const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
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

/// `type` names one of the seven types, or several.
fn types(map: &serde_json::Map<String, Value>, pointer: &str, faults: &mut Vec<SchemaFault>) {
    let several = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let written = map.get("type").map(several).unwrap_or_default();
    for word in written.iter().filter_map(Value::as_str).filter(|word| !TYPES.contains(word)) {
        let known = CALLED.iter().find(|(other, _)| word.eq_ignore_ascii_case(other)).map(|(_, ours)| *ours);
        let near = known.or_else(|| suggest::nearest(word, TYPES));
        let near = near.map_or_else(String::new, |near| format!(" did you mean '{near}'?"));
        let message = format!("'{}' is not a type:{near} the types are {}", text::head(word, 40), TYPES.join(", "));
        faults.push(SchemaFault::new(&format!("{pointer}/type"), message));
    }
}

/// One reference inside a target: the place in the *value* it is applied to, and where it leads.
type Step = (String, String);

/// Which target refers to which.
struct Graph {
    /// Per target: parts, levels, steps.
    targets: BTreeMap<String, (usize, usize, Vec<Step>)>,
}

impl Graph {
    fn of(targets: &BTreeMap<String, &Value>) -> Graph {
        // `check` refuses more; walking all of them first would be quadratic.
        let walked = targets.iter().take(MAX_SCHEMA_REFERENCES + 1);
        Graph { targets: walked.map(|(name, value)| (name.clone(), walk(value))).collect() }
    }

    /// Refuses a schema that unfolds too far; returns whether recursion branches, and the unfolded number of parts.
    fn check(&self) -> Result<(bool, usize), SchemaFault> {
        if self.targets.len() > MAX_SCHEMA_REFERENCES {
            return Err(SchemaFault::new("", format!("the schema refers to more than {MAX_SCHEMA_REFERENCES} places")));
        }
        let levels: usize = self.targets.values().map(|(_, levels, _)| levels).sum();
        if levels > 8 * MAX_SCHEMA_DEPTH {
            return Err(SchemaFault::new("", "the schema's references are nested too deeply: merge some definitions"));
        }
        let mut known = BTreeMap::new();
        let parts = self.unfolded("", &mut BTreeSet::new(), &mut known);
        if parts > MAX_SCHEMA_NODES {
            return Err(SchemaFault::new(
                "",
                format!("the schema's references unfold to more than {MAX_SCHEMA_NODES} parts"),
            ));
        }
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.targets.keys().map(|name| (name.as_str(), self.reach(name))).collect();
        let leads = |from: &str, to: &str| reach.get(from).is_some_and(|found| found.contains(to));
        let branching = self.targets.iter().any(|(name, (_, _, steps))| {
            let mut back: Vec<&str> =
                steps.iter().filter(|(_, to)| leads(to, name)).map(|(path, _)| path.as_str()).collect();
            back.sort_unstable();
            back.windows(2).any(|pair| matches!(pair, [a, b] if b.starts_with(a)))
        });
        Ok((branching, parts))
    }

    /// Parts after every reference is replaced by what it names; a reference back counts once.
    /// The recursion is bounded by the number of targets.
    fn unfolded<'g>(
        &'g self,
        name: &'g str,
        above: &mut BTreeSet<&'g str>,
        known: &mut BTreeMap<&'g str, usize>,
    ) -> usize {
        if let Some(size) = known.get(name) {
            return *size;
        }
        let Some((parts, _, steps)) = self.targets.get(name) else { return 1 };
        if !above.insert(name) {
            return 1;
        }
        let size = steps.iter().fold(*parts, |sum, (_, to)| sum.saturating_add(self.unfolded(to, above, known)));
        above.remove(name);
        known.insert(name, size);
        size
    }

    /// Every target that can be reached from one, itself included.
    fn reach<'g>(&'g self, name: &'g str) -> BTreeSet<&'g str> {
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            for (_, to) in self.targets.get(name).map(|(_, _, steps)| steps.as_slice()).unwrap_or_default() {
                if found.insert(to.as_str()) {
                    open.push(to);
                }
            }
        }
        // Itself, in no step: needed where a reference goes straight back.
        found.insert(name);
        found
    }
}

/// Parts, levels and references of one target, without the definitions that it contains.
fn walk(target: &Value) -> (usize, usize, Vec<Step>) {
    let (mut parts, mut levels, mut steps) = (0, 0, Vec::new());
    let mut open = vec![(target, String::new(), 1usize, Role::Schema)];
    while let Some((value, path, depth, role_here)) = open.pop() {
        parts += 1;
        levels = levels.max(depth);
        match value {
            Value::Array(items) if role_here == Role::List => {
                open.extend(items.iter().map(|item| (item, path.clone(), depth + 1, Role::Schema)));
            }
            Value::Object(map) if role_here == Role::Schema => {
                if let Some(to) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
                    steps.push((path.clone(), to.to_owned()));
                }
                for (key, member) in map.iter().filter(|(key, _)| !matches!(key.as_str(), "$defs" | "definitions")) {
                    let inner = role(key, member);
                    let below = match key.as_str() {
                        "items" | "prefixItems" | "additionalItems" | "contains" | "unevaluatedItems" => {
                            format!("{path}[]/")
                        }
                        "additionalProperties" | "patternProperties" | "unevaluatedProperties" | "propertyNames" => {
                            format!("{path}*/")
                        }
                        _ => path.clone(),
                    };
                    match (inner, member) {
                        (Role::Map, Value::Object(members)) => {
                            let in_place = key.starts_with("depend");
                            for (name, member) in members {
                                let named = if key == "properties" {
                                    format!("{path}{}/", escape_segment(name))
                                } else {
                                    below.clone()
                                };
                                open.push((
                                    member,
                                    if in_place { path.clone() } else { named },
                                    depth + 1,
                                    Role::Schema,
                                ));
                            }
                        }
                        (Role::Schema | Role::List, member) => open.push((member, below, depth + 1, inner)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // `*` overlaps with every name beside it: all names become `*`, which can only find branching too often.
    if steps.iter().any(|(path, _)| path.contains("*/")) {
        for (path, _) in &mut steps {
            *path = "*/".repeat(path.matches('/').count());
        }
    }
    (parts, levels, steps)
}
