//! JSON Schemas of tools: compiled once at load, and values checked in bounded time and memory.
//!
//! Nothing is fetched, no regular expression backtracks, and no explanation of a large value fills
//! memory.
//!
//! Arguments of very many small values, and answers of a tool with an `output` schema, grow up to
//! fortyfold as a tree that can be checked. A tree of more than 32 MiB is refused. Arguments that
//! wait share 256 MiB, and there are up to three copies while they are checked; of trees of answers
//! only few large ones exist at a time.

use super::bounds::{self, Bounds};
use crate::base::lock;
use crate::base::problem::Problem;
use crate::base::suggest;
use crate::base::text;
use crate::quantity::{
    LONG_CHECK_STEPS, MAX_CHECK_STEPS, MAX_FAULTS_TOLD, MAX_FORMAT_BYTES, MAX_REGEX_BYTES,
    MAX_REGEX_CACHE_BYTES, MAX_TREE_BYTES,
};
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// Stack for the checker's recursion, where a schema refers to itself. Only touched pages cost.
const DEEP_STACK_BYTES: usize = 256 << 20;
/// A longer check reports only the first flaw: an explanation can be larger than its value.
const LARGE_CHECK_STEPS: usize = 200_000;
/// Bytes of a text that cost one step for each part of a schema: to count characters and to compare
/// them.
const BYTES_PER_STEP: usize = 32;
/// States of a pattern that a character is compared with in one step.
const STATES_PER_STEP: usize = 16;
/// Each time an explanation copies this many bytes of the schema, its cost is added again.
const COPIED_BYTES_PER_STEP: usize = 256;

/// Schemas whose patterns take less compiled stay compiled, bytes.
const SMALL_PATTERN_BYTES: usize = 16 << 10;
/// What the patterns of all others may take that are compiled at a time, bytes. (The checker takes up
/// to four times as much for them.) Others are compiled again when a value is checked: a short text
/// makes large patterns, and nobody has approved yet what a folder holds.
const MAX_LARGE_BYTES: usize = 16 << 20;

/// A schema as written, and compiled.
#[derive(Clone, Debug)]
pub struct Schema {
    pub raw: Value,
    compiled: Arc<Compiled>,
    bounds: Arc<Bounds>,
    /// Whether anything in it may be marked secret (`writeOnly`, `x-secret`).
    pub may_hide: bool,
}

#[derive(Debug)]
enum Compiled {
    Small(Arc<Validator>),
    Large(Mutex<Weak<Validator>>),
}

/// The large ones that are compiled, those used last at the end, and what their patterns take.
static LARGE: Mutex<VecDeque<(Arc<Validator>, usize)>> = Mutex::new(VecDeque::new());

/// Keeps a large one compiled, and lets those go that were not used for longest.
fn keep(validator: &Arc<Validator>, bytes: usize) {
    let mut kept = lock(&LARGE);
    kept.retain(|(other, _)| !Arc::ptr_eq(other, validator));
    kept.push_back((validator.clone(), bytes));
    while kept.iter().map(|(_, bytes)| bytes).sum::<usize>() > MAX_LARGE_BYTES {
        kept.pop_front();
    }
}

/// How a value breaks a schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Flaw {
    /// Into the value.
    pub pointer: String,
    /// The keyword that was broken.
    pub rule: String,
    pub what: Breach,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Breach {
    /// A required member is not there.
    Missing(String),
    /// Members that may not be there.
    Unknown(Vec<String>),
    /// What the value must be ("must be an integer") or is ("is longer than 5 characters").
    Must(String),
}

impl Schema {
    pub fn compile(raw: &Value) -> Result<Schema, Problem> {
        let bounds = bounds::measure(raw)?;
        let deep = bounds.is_recursive;
        let compiled = on_stack(deep, || build(raw)).map_err(|why| bounds::fault("", why))??;
        let text = raw.to_string();
        let may_hide = ["writeOnly", "x-secret"]
            .iter()
            .any(|word| text.contains(word));
        let compiled = Arc::new(compiled);
        let compiled = if bounds.pattern_bytes <= SMALL_PATTERN_BYTES {
            Compiled::Small(compiled)
        } else {
            keep(&compiled, bounds.pattern_bytes);
            Compiled::Large(Mutex::new(Arc::downgrade(&compiled)))
        };
        let schema = Schema {
            raw: raw.clone(),
            compiled: Arc::new(compiled),
            bounds: Arc::new(bounds),
            may_hide,
        };
        on_stack(deep, || schema.check_defaults()).map_err(|why| bounds::fault("", why))??;
        Ok(schema)
    }

    /// What its patterns take compiled, bytes.
    pub fn pattern_bytes(&self) -> usize {
        self.bounds.pattern_bytes
    }

    /// It was compiled when it was read, so it can be again.
    fn validator(&self) -> Option<Arc<Validator>> {
        let last = match &*self.compiled {
            Compiled::Small(validator) => return Some(validator.clone()),
            Compiled::Large(last) => last,
        };
        let mut last = lock(last);
        let validator = match last.upgrade() {
            Some(validator) => validator,
            None => Arc::new(build(&self.raw).ok()?),
        };
        *last = Arc::downgrade(&validator);
        keep(&validator, self.bounds.pattern_bytes);
        Some(validator)
    }

    /// A `default` that its own schema refuses would fail every call that relies on it.
    fn check_defaults(&self) -> Result<(), Problem> {
        let owners = &self.bounds.defaults;
        let compiled = if owners.is_empty() {
            None
        } else {
            self.parts(owners)
        };
        for (at, owner) in owners.iter().enumerate() {
            let default = self
                .raw
                .pointer(owner)
                .map_or(&Value::Null, |owner| &owner["default"]);
            fn fault(message: &str, owner: &str) -> Problem {
                bounds::fault(format!("{owner}/default"), message)
            }
            if self.takes_long(default) {
                return Err(fault("this default is too large for its schema", owner));
            }
            if !compiled
                .as_ref()
                .is_some_and(|parts| parts.is_valid(&json!({ (at.to_string()): default })))
            {
                return Err(fault("this default does not fit its own schema", owner));
            }
        }
        Ok(())
    }

    /// Compiles subschemas as the properties `0`, `1`, … of one object, so that what they share is
    /// compiled once.
    fn parts(&self, pointers: &[String]) -> Option<Validator> {
        const BASE_URI: &str = "toolhost:schema";
        const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
            .remove(b'/')
            .remove(b'~')
            .remove(b'-')
            .remove(b'_')
            .remove(b'.');
        let properties = pointers.iter().enumerate().map(|(at, pointer)| {
            (
                at.to_string(),
                json!({ "$ref": format!("{BASE_URI}#{}", utf8_percent_encode(pointer, PLAIN)) }),
            )
        });
        let mut schema = json!({ "properties": properties.collect::<serde_json::Map<_, _>>() });
        if let Some(draft) = self.raw.get("$schema") {
            schema["$schema"] = draft.clone();
        }
        let document = jsonschema::Registry::new()
            .add(BASE_URI, &self.raw)
            .ok()?
            .prepare()
            .ok()?;
        options().with_registry(&document).build(&schema).ok()
    }

    /// Whether this member may have any value at all, so that it need not be read.
    pub fn takes_any(&self, name: &str) -> bool {
        fn only(schema: &Value, words: &[&str]) -> bool {
            schema
                .as_object()
                .is_some_and(|own| own.keys().all(|word| words.contains(&word.as_str())))
        }
        only(
            &self.raw,
            &[
                "$schema",
                "title",
                "description",
                "type",
                "properties",
                "required",
                "additionalProperties",
            ],
        ) && only(&self.raw["properties"][name], &["title", "description"])
    }

    /// Whether checking this value may take long: a rough guess that costs little.
    pub fn takes_long(&self, value: &Value) -> bool {
        self.steps(value) > LONG_CHECK_STEPS
    }

    /// Whether checking this value may take so long that it is refused. Where a schema refers to
    /// itself, the checker remembers each part of the value for each such reference.
    pub(super) fn is_too_large(&self, value: &Value) -> bool {
        self.steps(value) > MAX_CHECK_STEPS / (1 + self.bounds.recursive_references)
    }

    pub(super) fn has_defaults(&self) -> bool {
        !self.bounds.defaults.is_empty()
    }

    pub(super) fn steps(&self, value: &Value) -> usize {
        self.effort(value).0
    }

    /// The most steps that checking a value takes, and that explaining its flaws takes. Counts as
    /// if every part of the schema checked every part of the value, and every character met every
    /// state of the patterns. An explanation reuses no results, and copies words of the schema.
    fn effort(&self, value: &Value) -> (usize, usize) {
        let mut steps = 0usize;
        let mut deepest = 0;
        let mut open = vec![(value, 0)];
        while let Some((value, depth)) = open.pop() {
            deepest = deepest.max(depth);
            let mut bytes = 0;
            match value {
                Value::String(text) => bytes = text.len(),
                Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(fields) => {
                    bytes = fields.keys().map(String::len).sum();
                    open.extend(fields.values().map(|field| (field, depth + 1)));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
            let patterns = bytes.saturating_mul(self.bounds.states) / STATES_PER_STEP;
            let parts = self.bounds.parts.saturating_mul(1 + bytes / BYTES_PER_STEP);
            steps = steps.saturating_add(parts.saturating_add(patterns));
            if steps > MAX_CHECK_STEPS {
                break;
            }
        }
        let branches = self
            .bounds
            .recursive_references
            .max(1)
            .saturating_pow(deepest);
        (
            steps,
            steps
                .saturating_mul(branches)
                .saturating_mul(1 + self.bounds.copied / COPIED_BYTES_PER_STEP),
        )
    }

    /// Every way a value breaks this schema, up to a bound; empty = it fits.
    pub fn flaws(&self, value: &Value) -> Vec<Flaw> {
        if self.is_too_large(value) {
            let what =
                "must be smaller: checking so many values against this schema would take too long";
            return vec![Flaw::must("", "schema", what)];
        }
        on_stack(self.bounds.is_recursive, || self.explain(value))
            .unwrap_or_else(|why| vec![Flaw::must("", "", &why)])
    }

    /// Explaining why a value does not fit can cost far more than the check.
    fn explain(&self, value: &Value) -> Vec<Flaw> {
        let Some(compiled) = self.validator() else {
            return vec![Flaw::must(
                "",
                "schema",
                "must fit its schema, which does not compile now",
            )];
        };
        if compiled.is_valid(value) {
            return Vec::new();
        }
        let (_, explaining) = self.effort(value);
        // The first flaw may be of a union, which is explained by all its branches.
        let is_short = self.bounds.parts.saturating_mul(self.bounds.copied) <= MAX_TREE_BYTES;
        if explaining <= LARGE_CHECK_STEPS {
            compiled
                .iter_errors(value)
                .take(MAX_FAULTS_TOLD)
                .map(|error| Flaw::new(&error))
                .collect()
        } else if explaining <= MAX_CHECK_STEPS && is_short && !self.bounds.has_deep_unions {
            compiled
                .validate(value)
                .err()
                .iter()
                .map(Flaw::new)
                .collect()
        } else {
            vec![Flaw::must(
                "",
                "schema",
                "must fit its schema (too complex to say where it does not)",
            )]
        }
    }
}

/// The types of values (JSON Schema validation §6.1.1).
const TYPES: [&str; 7] = [
    "string", "integer", "number", "boolean", "array", "object", "null",
];

/// The checker's options, the same for every schema.
fn options<'i>() -> jsonschema::ValidationOptions<'i> {
    // `bounds` measured each pattern once, but the engine builds it forwards and backwards.
    let regex = PatternOptions::regex()
        .size_limit(2 * MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_CACHE_BYTES);
    jsonschema::options()
        .offline()
        .should_validate_formats(true)
        .with_pattern_options(regex)
        // The checker's own format check takes time quadratic in the text.
        .with_format("regex", |text: &str| {
            text.len() <= MAX_FORMAT_BYTES && jsonschema_regex::is_valid_ecma_regex(text)
        })
}

fn build(raw: &Value) -> Result<Validator, Problem> {
    options().build(raw).map_err(|error| {
        let place = error.instance_path().as_str();
        if place.ends_with("/type") {
            let given = error.instance().as_str().unwrap_or_default();
            let near = suggest::hint(given, TYPES);
            let types = TYPES.join(", ");
            return bounds::fault(place, format!("not a type{near}; the types are {types}"));
        }
        let message = text::head(&error.to_string(), 300);
        let linear = if message.contains("regex") {
            " (no look-around, no back-references: patterns take linear time)"
        } else {
            ""
        };
        bounds::fault(place, format!("not a valid JSON Schema: {message}{linear}"))
    })
}

/// Runs in this thread, or in one with a deep stack.
fn on_stack<T: Send>(deep: bool, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if !deep {
        return Ok(work());
    }
    let failed = "could not be checked: the thread for it failed";
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(DEEP_STACK_BYTES)
            .spawn_scoped(scope, work);
        thread
            .ok()
            .and_then(|thread| thread.join().ok())
            .ok_or_else(|| failed.to_owned())
    })
}

impl Flaw {
    pub fn must(pointer: &str, rule: &str, what: &str) -> Flaw {
        Flaw {
            pointer: pointer.to_owned(),
            rule: rule.to_owned(),
            what: Breach::Must(what.to_owned()),
        }
    }

    fn new(error: &ValidationError<'_>) -> Flaw {
        let what = match error.kind() {
            Kind::Required { property } => {
                Breach::Missing(property.as_str().unwrap_or_default().to_owned())
            }
            Kind::AdditionalProperties { unexpected }
            | Kind::UnevaluatedProperties { unexpected } => Breach::Unknown(unexpected.clone()),
            _ => Breach::Must(must(error)),
        };
        Flaw {
            pointer: error.instance_path().as_str().to_owned(),
            rule: error.kind().keyword().to_owned(),
            what,
        }
    }
}

/// What a value must be, or is, without repeating the value.
pub(super) fn must(error: &ValidationError<'_>) -> String {
    match error.kind() {
        Kind::Type { kind } => {
            let nouns: Vec<String> = match kind {
                TypeKind::Single(one) => vec![noun(&one.to_string())],
                TypeKind::Multiple(several) => {
                    several.iter().map(|one| noun(&one.to_string())).collect()
                }
            };
            let is_null = if error.instance().is_null() {
                ", not null (leave it out where it is not needed)"
            } else {
                ""
            };
            format!("must be {}{is_null}", nouns.join(" or "))
        }
        Kind::Enum { options } => {
            let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
            let shown: Vec<_> = options
                .iter()
                .take(20)
                .map(|option| text::head(&option.to_string(), 60))
                .collect();
            format!(
                "must be one of: {}{}",
                shown.join(", "),
                if options.len() > 20 { ", …" } else { "" }
            )
        }
        Kind::Minimum { limit } => format!("must be >= {limit}"),
        Kind::Maximum { limit } => format!("must be <= {limit}"),
        Kind::PropertyNames { .. } => {
            "must have only member names that fit 'propertyNames'".to_owned()
        }
        Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => {
            "must fit one of its alternatives".to_owned()
        }
        Kind::Constant { expected_value } => {
            format!("must be {}", text::head(&expected_value.to_string(), 100))
        }
        Kind::Contains => "must hold an item that fits 'contains'".to_owned(),
        Kind::FalseSchema => "must not be there".to_owned(),
        Kind::Not { .. } => "must not be of this form".to_owned(),
        _ => text::head(&error.masked_with("it").to_string(), 300)
            .trim_start_matches("it ")
            .to_owned(),
    }
}

/// A type with its article.
pub(super) fn noun(name: &str) -> String {
    match name {
        "integer" | "object" | "array" => format!("an {name}"),
        "null" => name.to_owned(),
        name => format!("a {name}"),
    }
}

/// The type of a value, as JSON Schema calls it.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
