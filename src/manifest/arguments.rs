//! The arguments of a call: text converted to values, names and values checked, defaults filled in.
//!
//! The steps that checking arguments or an answer takes are counted first, and too many refuse it.
//! Long checks run apart from other calls and end by the call's clock.

use super::schema::{Breach, Flaw, noun, type_of};
use super::types::Manifest;
use crate::base::{json, suggest, text};
use crate::fault::{Fault, Kind};
use crate::quantity::{MAX_FAULTS_TOLD, MAX_FILLED_DEFAULTS};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Keywords whose subschemas apply to the same value: in every case, or perhaps.
const ALWAYS: &[&str] = &["allOf"];
const CONDITIONAL_KEYWORDS: &[&str] = &["allOf", "anyOf", "oneOf", "then", "else"];
/// Deepest place a default is filled in.
const MAX_FILL_DEPTH: usize = 64;
/// Most subschemas visited to fill in defaults.
const MAX_FILL_STEPS: usize = 2_000_000;

/// How the values of a call were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentSyntax {
    /// As JSON: each is what it is.
    Json,
    /// As `name=value`: each is a text, which stays one where the parameter may be a string.
    Pairs,
    /// As inputs of an action, where every value is a text: it is read as JSON wherever it can be.
    /// `twice`: names that were given more than once, which is refused.
    Inputs { duplicates: Vec<String> },
}

/// Checks what a caller gave. `from_text`: every value came as text and is converted to the type of
/// its parameter.
pub fn check(manifest: &Manifest, given: Value, from_text: bool) -> Result<Value, Fault> {
    check_written(
        manifest,
        given,
        if from_text {
            &ArgumentSyntax::Pairs
        } else {
            &ArgumentSyntax::Json
        },
    )
}

/// As `check`, for every syntax of the values.
pub fn check_written(
    manifest: &Manifest,
    given: Value,
    written: &ArgumentSyntax,
) -> Result<Value, Fault> {
    let Value::Object(mut given) = given else {
        let flaw = "Arguments must be one JSON object: {\"name\": value, …}.";
        return Err(Fault::new(Kind::ParameterValidationError, flaw).details("pointer '': type"));
    };
    let root = manifest
        .parameters
        .as_ref()
        .map_or(&Value::Null, |schema| &schema.raw);
    let untyped = manifest.remote().is_some_and(|remote| remote.untyped);
    let mut flaws = if untyped {
        Vec::new()
    } else {
        unknown_names(root, &given)
    };
    if let ArgumentSyntax::Inputs { duplicates } = written {
        flaws.extend(duplicates.iter().map(|name| {
            Flaw::must(
                &format!("/{}", json::escape_segment(name)),
                "twice",
                "must be given once",
            )
        }));
    }
    // If the service judges the arguments, a text that cannot be converted stays a text.
    let mut unfit = Vec::new();
    if *written != ArgumentSyntax::Json {
        let inputs = matches!(written, ArgumentSyntax::Inputs { .. });
        let mut texts = Texts {
            root,
            inputs,
            flaws: if untyped { &mut unfit } else { &mut flaws },
        };
        texts.convert(&alternatives(root, root), &mut given, "");
    }
    let Some(schema) = manifest.parameters.as_ref().filter(|_| !untyped) else {
        return if flaws.is_empty() {
            Ok(Value::Object(given))
        } else {
            Err(fault(root, &flaws))
        };
    };
    let mut arguments = Value::Object(given);
    if schema.has_defaults() && !schema.is_too_large(&arguments) {
        let mut filling = Filling {
            root,
            room: MAX_FILLED_DEFAULTS,
            steps: MAX_FILL_STEPS,
        };
        filling.fill(root, &mut arguments, 0);
        if filling.room == 0 || filling.steps == 0 {
            flaws.push(Flaw::must("", "default", "must not need so many defaults"));
        }
    }
    // Texts that could not be converted and unknown names are reported already.
    let reported: BTreeSet<String> = flaws.iter().map(|flaw| flaw.pointer.clone()).collect();
    flaws.extend(
        schema
            .flaws(&arguments)
            .into_iter()
            .filter(|flaw: &Flaw| match &flaw.what {
                Breach::Unknown(_) if flaw.pointer.is_empty() => !reported.contains(""),
                _ => !reported.iter().any(|other: &String| {
                    let rest = flaw
                        .pointer
                        .strip_prefix(other.as_str())
                        .filter(|_| !other.is_empty());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                }),
            }),
    );
    if flaws.is_empty() {
        Ok(arguments)
    } else {
        Err(fault(root, &flaws))
    }
}

impl Manifest {
    /// Whether checking these arguments may take long.
    pub fn takes_long(&self, arguments: &Value) -> bool {
        let schema = self.parameters.as_ref();
        schema.is_some_and(|schema| schema.takes_long(arguments))
    }

    /// Checks a successful result against `output`.
    pub fn check_output(&self, output: &Value) -> Result<(), Fault> {
        let flaws = self
            .output
            .as_ref()
            .map(|schema| schema.flaws(output))
            .unwrap_or_default();
        if output.is_null() && (self.output.is_none() || !flaws.is_empty()) {
            let message =
                "The tool call output is null, and the tool has no output schema that allows null.";
            let fix = "Return a value; a tool that has none to return says \"output\": {\"type\": \
                       \"null\"} in its manifest.";
            return Err(Fault::new(Kind::OutputValidationError, message).details(fix));
        }
        if flaws.is_empty() {
            return Ok(());
        }
        let sentences: Vec<_> = flaws
            .iter()
            .flat_map(|flaw| sentences(flaw, "Output", &[]))
            .collect();
        let raw = text::head(&output.to_string(), 2000);
        let details = format!("{}\nOutput: {}", rules(&flaws), text::printable(&raw));
        Err(Fault::new(Kind::OutputValidationError, limited(&sentences).join(" ")).details(details))
    }
}

/// Names that the schema does not declare. A schema with its own rule for those
/// (`additionalProperties` …) judges them.
fn unknown_names(root: &Value, given: &Map<String, Value>) -> Vec<Flaw> {
    let ParameterNames { known, open_ended } = names(root);
    if open_ended || known.is_empty() {
        return Vec::new();
    }
    let known: BTreeSet<&String> = known.into_iter().collect();
    let unknown: Vec<_> = given
        .keys()
        .filter(|name| !known.contains(name))
        .cloned()
        .collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    vec![Flaw {
        pointer: String::new(),
        rule: "additionalProperties".to_owned(),
        what: Breach::Unknown(unknown),
    }]
}

/// Whether a schema declares this parameter anywhere.
pub fn declares(root: &Value, name: &str) -> bool {
    names(root).known.iter().any(|known| *known == name)
}

/// The names of the parameters that a schema declares anywhere.
struct ParameterNames<'s> {
    known: Vec<&'s String>,
    /// The schema has a rule for further names itself.
    open_ended: bool,
}

fn names(root: &Value) -> ParameterNames<'_> {
    let speaks = [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
    ];
    let mut names = ParameterNames {
        known: Vec::new(),
        open_ended: false,
    };
    for schema in alternatives(root, root) {
        names.open_ended |= speaks.iter().any(|keyword| schema.get(keyword).is_some());
        let declared = schema.get("properties").and_then(Value::as_object);
        names
            .known
            .extend(declared.into_iter().flat_map(|names| names.keys()));
    }
    names
}

/// The schema, and those that keywords and references apply to the same value. Each comes once, so
/// that cycles end.
fn together<'s>(root: &'s Value, schema: &'s Value, keywords: &[&str]) -> Vec<&'s Value> {
    let mut found = vec![schema];
    let mut known = BTreeSet::from([std::ptr::from_ref(schema)]);
    let mut next = 0;
    while let Some(schema) = found.get(next).copied() {
        next += 1;
        let held = keywords.iter().filter_map(|keyword| schema.get(*keyword));
        let held = held.flat_map(|held| {
            held.as_array()
                .map_or(std::slice::from_ref(held), Vec::as_slice)
        });
        found.extend(
            held.chain(target(root, schema))
                .filter(|other| known.insert(std::ptr::from_ref(*other))),
        );
    }
    found
}

fn alternatives<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Value> {
    together(root, schema, CONDITIONAL_KEYWORDS)
}

/// The schema that a `$ref` leads to; the load refused references out of the document.
fn target<'s>(root: &'s Value, schema: &Value) -> Option<&'s Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// The state of filling in defaults. `room` and `steps` count down: a hostile schema could make it
/// endless.
struct Filling<'s> {
    root: &'s Value,
    room: usize,
    steps: usize,
}

impl Filling<'_> {
    /// Puts defaults in, at every depth of `properties` and `items`.
    fn fill(&mut self, schema: &Value, value: &mut Value, depth: usize) {
        if depth > MAX_FILL_DEPTH || self.room == 0 || self.steps == 0 {
            return;
        }
        for schema in together(self.root, schema, ALWAYS) {
            let properties = schema.get("properties").and_then(Value::as_object);
            self.steps = self
                .steps
                .saturating_sub(1 + properties.map_or(0, Map::len));
            match value {
                Value::Object(members) => {
                    for (name, property) in properties.into_iter().flatten() {
                        if let (false, Some(default)) =
                            (members.contains_key(name), default_of(self.root, property))
                        {
                            self.room = self
                                .room
                                .saturating_sub(1 + default.to_string().len() / 128);
                            members.insert(name.clone(), default.clone());
                        }
                        if let Some(member) = members.get_mut(name) {
                            self.fill(property, member, depth + 1);
                        }
                    }
                }
                Value::Array(items) => {
                    if let Some(each) = schema.get("items").filter(|each| each.is_object()) {
                        items
                            .iter_mut()
                            .for_each(|item| self.fill(each, item, depth + 1));
                    }
                }
                _ => {}
            }
        }
    }
}

fn default_of<'s>(root: &'s Value, property: &'s Value) -> Option<&'s Value> {
    property
        .get("default")
        .or_else(|| target(root, property)?.get("default"))
}

/// All flaws of one call in one fault.
fn fault(root: &Value, flaws: &[Flaw]) -> Fault {
    let known: Vec<&str> = names(root).known.into_iter().map(String::as_str).collect();
    let sentences: Vec<_> = flaws
        .iter()
        .flat_map(|flaw| sentences(flaw, PARAMETER, &known))
        .collect();
    Fault::of_flaws(Kind::ParameterValidationError, limited(&sentences)).details(rules(flaws))
}

fn limited(sentences: &[String]) -> Vec<String> {
    let mut shown: Vec<_> = sentences
        .iter()
        .take(MAX_FAULTS_TOLD)
        .map(|sentence| text::printable(sentence))
        .collect();
    if sentences.len() > MAX_FAULTS_TOLD {
        shown.push(format!("And {} more.", sentences.len() - MAX_FAULTS_TOLD));
    }
    shown
}

/// One line per flaw: pointer and rule, for programs.
fn rules(flaws: &[Flaw]) -> String {
    flaws
        .iter()
        .take(MAX_FAULTS_TOLD)
        .map(|flaw: &Flaw| {
            format!(
                "pointer '{}': {}",
                text::printable(&text::head(&flaw.pointer, 200)),
                flaw.rule
            )
        })
        .collect::<Vec<_>>()
        .join("\n")
}

const PARAMETER: &str = "Input parameter";

/// A flaw in words. `subject`: `PARAMETER` or `Output`. `known`: the parameters that there are.
fn sentences(flaw: &Flaw, subject: &str, known: &[&str]) -> Vec<String> {
    let is_parameter = subject == PARAMETER && flaw.pointer.is_empty();
    let place = place(&flaw.pointer, subject);
    let names = match &flaw.what {
        Breach::Must(must) => return vec![format!("{place} {must}.")],
        Breach::Missing(name) => {
            let name = text::head(name, 80);
            return vec![if is_parameter {
                format!("{PARAMETER} '{name}' is required.")
            } else {
                format!("{place} must have the member '{name}'.")
            }];
        }
        Breach::Unknown(names) => names,
    };
    names
        .iter()
        .take(MAX_FAULTS_TOLD)
        .map(|name: &String| {
            let shown = text::head(name, 80);
            if !is_parameter {
                return format!("{place} must not have the member '{shown}'.");
            }
            let near = suggest::nearest(name, known.iter().copied());
            let fix = match near {
                Some(near) => format!(" Did you mean '{near}'?"),
                None if known.is_empty() => String::new(),
                None => {
                    let listed = known
                        .iter()
                        .take(20)
                        .copied()
                        .collect::<Vec<_>>()
                        .join(", ");
                    format!(
                        " Known: {listed}{}",
                        if known.len() > 20 { ", …" } else { "." }
                    )
                }
            };
            format!("{PARAMETER} '{shown}' is not a known parameter.{fix}")
        })
        .collect()
}

fn place(pointer: &str, subject: &str) -> String {
    let Some(rest) = pointer.strip_prefix('/').filter(|_| subject == PARAMETER) else {
        return match (subject, pointer) {
            (PARAMETER, _) => "The arguments".to_owned(),
            (subject, "") => subject.to_owned(),
            (subject, pointer) => format!("{subject} at '{}'", text::head(pointer, 200)),
        };
    };
    let (name, inner) = rest
        .split_once('/')
        .map_or((rest, None), |(name, inner)| (name, Some(inner)));
    let name = text::head(&name.replace("~1", "/").replace("~0", "~"), 80);
    match inner {
        None => format!("{subject} '{name}'"),
        Some(inner) => format!("{subject} '{name}' at '/{}'", text::head(inner, 200)),
    }
}

/// The texts among the arguments of one call, which are converted to values.
struct Texts<'s, 'f> {
    root: &'s Value,
    /// Syntax `Inputs`: a text that may also be a string is read as JSON if possible; lists and
    /// objects may hold texts.
    inputs: bool,
    flaws: &'f mut Vec<Flaw>,
}

impl<'s> Texts<'s, '_> {
    fn convert(&mut self, holders: &[&'s Value], members: &mut Map<String, Value>, above: &str) {
        for (name, value) in members {
            let schemas = holders
                .iter()
                .filter_map(|holder| holder.get("properties")?.get(name));
            let schemas = schemas
                .flat_map(|schema| alternatives(self.root, schema))
                .collect::<Vec<_>>();
            self.value(
                &schemas,
                value,
                &format!("{above}/{}", json::escape_segment(name)),
            );
        }
    }

    fn value(&mut self, schemas: &[&'s Value], value: &mut Value, pointer: &str) {
        let types = types(schemas);
        // A list of one item, written as nested tags, arrives as an object.
        if self.inputs && value.is_object() && types.iter().eq(&["array"]) {
            *value = json!([value.take()]);
        }
        match value {
            Value::String(written) => {
                if let Some(read) = self.text(schemas, &types, written, pointer) {
                    *value = read;
                }
            }
            Value::Object(members) => self.convert(schemas, members, pointer),
            Value::Array(items) => {
                let each = schemas.iter().filter_map(|schema| schema.get("items"));
                let each = each
                    .flat_map(|schema| alternatives(self.root, schema))
                    .collect::<Vec<_>>();
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(&each, item, &format!("{pointer}/{at}"));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The value that a text stands for. `None`: it stays a text, or it cannot be converted, which
    /// is noted as a flaw.
    fn text(
        &mut self,
        schemas: &[&Value],
        types: &BTreeSet<&str>,
        written: &str,
        pointer: &str,
    ) -> Option<Value> {
        if let Some(named) = listed(schemas, written) {
            return Some(named);
        }
        if types.is_empty() || types.contains("string") {
            let open = self.inputs && types.len() != 1;
            let value = open
                .then(|| json::parse(written.as_bytes(), json::Dialect::Strict).ok())
                .flatten()?
                .value;
            return if types.is_empty() {
                Some(value)
            } else {
                typed(value, types)
            };
        }
        match from_text(written, types) {
            Ok(value) => Some(value),
            Err(why) => {
                let nouns: Vec<_> = types.iter().map(|name| noun(name)).collect();
                self.flaws.push(Flaw::must(
                    pointer,
                    "type",
                    &format!("must be {}{why}", nouns.join(" or ")),
                ));
                None
            }
        }
    }
}

/// The values that an `enum` or `const` lists.
fn listed_in(schema: &Value) -> impl Iterator<Item = &Value> {
    schema
        .get("enum")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .chain(schema.get("const"))
}

/// The value of an `enum` (or `const`) that a text spells, unless the text is one itself: for "3"
/// the 3 of `[3, "a"]`.
fn listed(schemas: &[&Value], written: &str) -> Option<Value> {
    let values: Vec<&Value> = schemas.iter().copied().flat_map(listed_in).collect();
    if values.is_empty() || values.iter().any(|value| value.as_str() == Some(written)) {
        return None;
    }
    let value = json::parse(written.as_bytes(), json::Dialect::Strict)
        .ok()?
        .value;
    // 3.0 is 3 to JSON Schema; the tool sees it as the schema writes it.
    values
        .iter()
        .find(|known: &&&Value| {
            **known == &value
                || (known.is_f64() || value.is_f64()) && known.as_f64() == value.as_f64()
        })
        .map(|known| (*known).clone())
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

/// The value a text stands for, if it has one of the types; else what to add to "must be …".
fn from_text(written: &str, types: &BTreeSet<&str>) -> Result<Value, String> {
    let is_structured = types.contains("object") || types.contains("array");
    let value = match json::parse(written.as_bytes(), json::Dialect::Strict) {
        Ok(document) => document.value,
        Err(problem)
            if is_structured || types.contains("number") && problem.message.contains("64 bits") =>
        {
            return Err(format!(
                ": not JSON at line {}, column {}: {}",
                problem.line, problem.column, problem.message
            ));
        }
        Err(_) => written
            .to_ascii_lowercase()
            .parse()
            .map(Value::Bool)
            .map_err(|_| String::new())?,
    };
    typed(value, types).ok_or_else(String::new)
}

/// The value, if it has one of the types. 3.0 is an integer to JSON Schema; the tool gets 3.
fn typed(value: Value, types: &BTreeSet<&str>) -> Option<Value> {
    let kind = type_of(&value);
    if types.contains(kind)
        || (kind == "number" && types.contains("integer") && value.is_i64() | value.is_u64())
    {
        return Some(value);
    }
    let exact = value
        .as_f64()
        .filter(|n| types.contains("integer") && n.fract() == 0.0 && n.abs() < 9e15);
    exact.map(|n| Value::from(n as i64))
}
