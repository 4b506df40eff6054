//! JSON Schemas, compiled once at load, bounded, `$ref` only inside the document (P21).
//!
//! For: the manifest reader, arguments, output. In: a schema as written; values to check.
//! Out: a compiled schema; flaws in plain words. Never: fetches anything, runs a regular expression
//! that backtracks, fills memory with explanations of a large value.

use super::{Code, bounds, effort, locate, text, weight};
use crate::quantity::{LONG_CHECK_STEPS, MAX_FAULTS_TOLD, MAX_REGEX_BYTES, MAX_REGEX_CACHE_BYTES, MAX_REGEX_WEIGHT};
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;
use std::sync::Arc;

/// Room for the checker's recursion, where a schema refers to itself. Only touched pages cost.
const DEEP_STACK_BYTES: usize = 256 << 20;
/// Of values with more parts only the first flaw is told: an explanation can be larger than its value.
const LARGE_VALUE: usize = 5_000;

/// Most parts of a schema that are compiled to find the part that a large value breaks.
const MOST_PARTS_ASKED: usize = 200;

/// A schema as written, and compiled.
#[derive(Clone, Debug)]
pub struct Schema {
    pub raw: Value,
    pub compiled: Arc<Validator>,
    facts: Arc<bounds::Facts>,
    /// Whether anything in it may be marked secret (`writeOnly`, `x-secret`).
    pub may_hide: bool,
}

/// A fault of a schema; the pointer leads into the schema.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaFault {
    pub code: Code,
    pub pointer: String,
    pub message: String,
}

impl SchemaFault {
    pub(super) fn new(pointer: &str, message: impl Into<String>) -> SchemaFault {
        SchemaFault { code: Code::Schema, pointer: pointer.to_owned(), message: message.into() }
    }
}

/// How a value breaks a schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Flaw {
    /// Into the value.
    pub pointer: String,
    /// The keyword that was broken.
    pub rule: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A required member is not there.
    Missing(String),
    /// Members that may not be there.
    Unknown(Vec<String>),
    /// What the value must be: "must be an integer".
    Must(String),
}

impl Schema {
    pub fn compile(raw: &Value) -> Result<Schema, Vec<SchemaFault>> {
        Schema::compile_within(raw, &mut { MAX_REGEX_WEIGHT })
    }

    /// `room`: what all regular expressions of one manifest may still weigh.
    pub(super) fn compile_within(raw: &Value, room: &mut usize) -> Result<Schema, Vec<SchemaFault>> {
        let facts = bounds::inspect(raw, *room)?;
        *room = room.saturating_sub(facts.weight);
        let deep = facts.references;
        let compiled = on_stack(deep, || build(raw)).map_err(|why| vec![SchemaFault::new("", why)])??;
        let text = raw.to_string();
        let may_hide = ["writeOnly", "x-secret"].iter().any(|word| text.contains(word));
        let schema = Schema { raw: raw.clone(), compiled: Arc::new(compiled), facts: Arc::new(facts), may_hide };
        schema.check_defaults()?;
        Ok(schema)
    }

    /// A `default` that its own schema refuses would fail every call that relies on it.
    fn check_defaults(&self) -> Result<(), Vec<SchemaFault>> {
        if self.facts.defaults.is_empty() {
            return Ok(());
        }
        let faults = on_stack(self.facts.references, || {
            let document = self.facts.references.then(|| here(&self.raw)).flatten();
            let mut faults = Vec::new();
            for pointer in &self.facts.defaults {
                let Some(owner) = self.raw.pointer(pointer) else { continue };
                let Some(default) = owner.get("default") else { continue };
                if effort::too_much(&self.raw, owner, default, self.facts.branching) {
                    faults.push(SchemaFault::new(
                        &format!("{pointer}/default"),
                        "this default is too large for its schema",
                    ));
                    continue;
                }
                let own = match &document {
                    Some(document) => options().with_registry(document).build(&reference(&self.raw, pointer)).ok(),
                    None => build(owner).ok(),
                };
                let good = own.is_some_and(|schema| schema.is_valid(default));
                if !good {
                    let message = "this default does not fit its own schema";
                    faults.push(SchemaFault::new(&format!("{pointer}/default"), message));
                }
            }
            faults
        });
        let faults = faults.map_err(|why| vec![SchemaFault::new("", why)])?;
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Whether any value at all may stand for this member, so that nobody need look at it.
    pub fn takes_any(&self, name: &str) -> bool {
        let only = |schema: &Value, words: &[&str]| {
            schema.as_object().is_some_and(|own| own.keys().all(|word| words.contains(&word.as_str())))
        };
        only(&self.raw, &["$schema", "title", "description", "type", "properties", "required", "additionalProperties"])
            && only(&self.raw["properties"][name], &["title", "description"])
    }

    /// Whether checking this value may take long: a rough guess that costs little.
    pub fn takes_long(&self, value: &Value) -> bool {
        let patterns = self.facts.weight / weight::STEP;
        let each = self.facts.parts.max(1);
        let (mut steps, mut open) = (0usize, vec![value]);
        while let Some(value) = open.pop() {
            steps = steps.saturating_add(each);
            match value {
                Value::String(text) => steps = steps.saturating_add(text.len().saturating_mul(patterns)),
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    let names: usize = fields.keys().map(String::len).sum();
                    steps = steps.saturating_add(names.saturating_mul(patterns));
                    open.extend(fields.values());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
            if steps > LONG_CHECK_STEPS {
                return true;
            }
        }
        false
    }

    /// Every way a value breaks this schema, up to a bound; empty = it fits.
    pub fn flaws(&self, value: &Value) -> Vec<Flaw> {
        let long = self.takes_long(value);
        if long && effort::too_much(&self.raw, &self.raw, value, self.facts.branching) {
            let what = "must be smaller: to hold so many values to this schema would take too long";
            return vec![Flaw::must("", "schema", what)];
        }
        on_stack(self.facts.references, || self.flaws_here(value, long))
            .unwrap_or_else(|why| vec![Flaw::must("", "", &why)])
    }

    fn flaws_here(&self, value: &Value, long: bool) -> Vec<Flaw> {
        if self.compiled.is_valid(value) {
            return Vec::new();
        }
        let large = long || larger_than(value, LARGE_VALUE);
        // To find out why a value does not fit can cost far more than whether it does.
        let intricate = "must fit its schema (which is too intricate to say where it does not)";
        if self.facts.branching {
            return vec![Flaw::must("", "schema", intricate)];
        }
        if large && self.facts.unions {
            return self.flaws_of_a_part(value).unwrap_or_else(|| vec![Flaw::must("", "schema", intricate)]);
        }
        let mut flaws: Vec<Flaw> = if large {
            self.compiled.validate(value).err().iter().map(Flaw::of).collect()
        } else {
            self.compiled.iter_errors(value).take(MAX_FAULTS_TOLD).map(|error| Flaw::of(&error)).collect()
        };
        if flaws.is_empty() {
            flaws.push(Flaw::must("", "schema", "must fit its schema"));
        }
        flaws
    }
}

impl Schema {
    /// The flaws of the smallest part at fault that can be found in a large value.
    fn flaws_of_a_part(&self, value: &Value) -> Option<Vec<Flaw>> {
        let document = here(&self.raw)?;
        let compiled = |pointer: &str| options().with_registry(&document).build(&reference(&self.raw, pointer)).ok();
        let small = |value: &Value| !larger_than(value, LARGE_VALUE);
        let mut room = MOST_PARTS_ASKED;
        let part = locate::at_fault(&self.raw, value, small, |pointer| {
            room = usize::checked_sub(room, 1)?;
            let schema = compiled(pointer)?;
            Some(Box::new(move |value: &Value| !schema.is_valid(value)))
        });
        if part.pointer.is_empty() {
            return None;
        }
        let mut flaws = Vec::new();
        if small(part.value) {
            let schema = compiled(&part.schema)?;
            flaws.extend(schema.iter_errors(part.value).take(MAX_FAULTS_TOLD).map(|error| Flaw::of(&error)));
        }
        if flaws.is_empty() {
            flaws.push(Flaw::must("", "schema", "must fit its schema"));
        }
        flaws.iter_mut().for_each(|flaw| flaw.pointer.insert_str(0, &part.pointer));
        Some(flaws)
    }
}

/// The checker's options, the same for every schema.
fn options<'i>() -> jsonschema::ValidationOptions<'i> {
    let regex = PatternOptions::regex().size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_CACHE_BYTES);
    jsonschema::options().offline().should_validate_formats(true).with_pattern_options(regex)
}

/// The URI by which a schema is referred to from outside (`reference`).
const HERE: &str = "toolhost:schema";

/// The schema as a document that a reference can lead into.
fn here(raw: &Value) -> Option<jsonschema::Registry<'_>> {
    jsonschema::Registry::new().add(HERE, raw).ok()?.prepare().ok()
}

/// A schema that only refers to a part of another: no more than that part leads to is compiled.
fn reference(raw: &Value, pointer: &str) -> Value {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'~' | b'-' | b'_' | b'.');
    let escaped =
        pointer.bytes().map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") });
    let mut schema = serde_json::json!({ "$ref": format!("{HERE}#{}", escaped.collect::<String>()) });
    if let Some(draft) = raw.get("$schema") {
        schema["$schema"] = draft.clone();
    }
    schema
}

fn build(raw: &Value) -> Result<Validator, Vec<SchemaFault>> {
    options().build(raw).map_err(|error| {
        let pointer = error.instance_path().as_str().to_owned();
        let mut message = text::head(&error.to_string(), 300);
        if message.contains("regex") || pointer.ends_with("/pattern") {
            message.push_str(
                " (regular expressions run in linear time: no look-around, no back-references, no huge repetitions)",
            );
        }
        vec![SchemaFault::new(&pointer, format!("not a valid JSON Schema: {message}"))]
    })
}

/// Runs in this thread, or in one with a deep stack.
fn on_stack<T: Send>(deep: bool, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if !deep {
        return Ok(work());
    }
    let failed = "could not be checked: this machine gives no thread for it";
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(DEEP_STACK_BYTES).spawn_scoped(scope, work);
        thread.ok().and_then(|thread| thread.join().ok()).ok_or_else(|| failed.to_owned())
    })
}

fn larger_than(value: &Value, most: usize) -> bool {
    let mut parts = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        parts += 1;
        if parts > most {
            return true;
        }
        match value {
            Value::Array(items) => open.extend(items.iter().take(most)),
            Value::Object(map) => open.extend(map.values().take(most)),
            _ => {}
        }
    }
    false
}

impl Flaw {
    pub fn must(pointer: &str, rule: &str, what: &str) -> Flaw {
        Flaw { pointer: pointer.to_owned(), rule: rule.to_owned(), what: What::Must(what.to_owned()) }
    }

    fn of(error: &ValidationError<'_>) -> Flaw {
        let what = match error.kind() {
            ValidationErrorKind::Required { property } => {
                What::Missing(property.as_str().unwrap_or_default().to_owned())
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => What::Unknown(unexpected.clone()),
            kind @ ValidationErrorKind::Type { .. } if error.instance().is_null() => {
                What::Must(format!("{}, not null (leave it out where it is not needed)", must(kind)))
            }
            kind => What::Must(must(kind)),
        };
        Flaw { pointer: error.instance_path().as_str().to_owned(), rule: error.kind().keyword().to_owned(), what }
    }
}

/// What a value must be, without repeating the value.
fn must(kind: &ValidationErrorKind) -> String {
    use ValidationErrorKind as Kind;
    match kind {
        Kind::Type { kind: TypeKind::Single(one) } => format!("must be {}", noun(&one.to_string())),
        Kind::Type { kind: TypeKind::Multiple(several) } => {
            let nouns: Vec<_> = several.iter().map(|one| noun(&one.to_string())).collect();
            format!("must be {}", nouns.join(" or "))
        }
        Kind::Enum { options } => format!("must be one of {}", options_text(options)),
        Kind::Constant { expected_value } => format!("must be {}", text::head(&expected_value.to_string(), 100)),
        Kind::Format { format } => format!("must be a valid {format}"),
        Kind::Pattern { pattern } => format!("must match the pattern {}", text::head(pattern, 200)),
        Kind::Minimum { limit } => format!("must be at least {limit}"),
        Kind::Maximum { limit } => format!("must be at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("must be greater than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("must have at least {limit} characters"),
        Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
        Kind::MinItems { limit } => format!("must have at least {limit} items"),
        Kind::MaxItems { limit } => format!("must have at most {limit} items"),
        Kind::MinProperties { limit } => format!("must have at least {limit} members"),
        Kind::MaxProperties { limit } => format!("must have at most {limit} members"),
        Kind::UniqueItems => "must not hold the same item twice".to_owned(),
        Kind::Contains => "must hold an item that fits 'contains'".to_owned(),
        Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => "must fit one of its alternatives".to_owned(),
        Kind::OneOfMultipleValid { .. } => "must fit exactly one of its alternatives, but fits several".to_owned(),
        Kind::Not { .. } => "must not be of this form".to_owned(),
        Kind::FalseSchema => "must not be there".to_owned(),
        Kind::PropertyNames { .. } => "must have only member names that fit 'propertyNames'".to_owned(),
        Kind::AdditionalItems { .. } | Kind::UnevaluatedItems { .. } => "must not have further items".to_owned(),
        other => format!("must fit the rule '{}'", other.keyword()),
    }
}

fn options_text(options: &Value) -> String {
    let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
    let shown: Vec<_> = options.iter().take(20).map(|option| text::head(&option.to_string(), 60)).collect();
    format!("{}{}", shown.join(", "), if options.len() > 20 { ", …" } else { "" })
}

/// A type with its article.
pub(super) fn noun(name: &str) -> String {
    match name {
        "integer" | "object" | "array" => format!("an {name}"),
        "null" => name.to_owned(),
        name => format!("a {name}"),
    }
}
