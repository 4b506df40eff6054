//! JSON Schemas of tools: compiled once at load, and values checked in bounded time and memory.
//!
//! Nothing is fetched, no regular expression backtracks, and no explanation of a large value fills memory.

pub use super::bounds::SchemaFault;
use super::bounds::{self, Bounds};
use crate::base::json::escape_segment;
use crate::base::text;
use crate::quantity::{
    LONG_CHECK_STEPS, MAX_CHECK_STEPS, MAX_FAULTS_TOLD, MAX_FORMAT_BYTES, MAX_REGEX_BYTES, MAX_REGEX_CACHE_BYTES,
};
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Value, json};
use std::sync::Arc;

/// Room for the checker's recursion, where a schema refers to itself. Only touched pages cost.
const DEEP_STACK_BYTES: usize = 256 << 20;
/// A check of more steps is explained by its first flaw or by the part at fault: an explanation can be larger than its
/// value.
const LARGE_CHECK_STEPS: usize = 200_000;
/// A text of so many bytes is one more step for each part of a schema: to count its characters, to compare it.
const BYTES_A_STEP: usize = 32;
/// A character is held against so many states of a pattern in one step.
const STATES_A_STEP: usize = 16;
/// So many bytes that an explanation copies weigh as much as one more.
const COPIED_A_STEP: usize = 256;

/// A schema as written, and compiled.
#[derive(Clone, Debug)]
pub struct Schema {
    pub raw: Value,
    pub compiled: Arc<Validator>,
    bounds: Arc<Bounds>,
    /// Whether anything in it may be marked secret (`writeOnly`, `x-secret`).
    pub may_hide: bool,
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
    /// What the value must be: "must be an integer"; what it is not: "does not match pattern ^a".
    Must(String),
}

/// What checking a value takes at most.
struct Effort {
    steps: usize,
    /// What explaining its flaws takes: no part's result is remembered, and words of the schema are copied.
    explaining: usize,
}

impl Schema {
    pub fn compile(raw: &Value) -> Result<Schema, Vec<SchemaFault>> {
        let bounds = bounds::measure(raw)?;
        let compiled = on_stack(bounds.recursive, || build(raw)).map_err(|why| vec![SchemaFault::new("", why)])??;
        let text = raw.to_string();
        let may_hide = ["writeOnly", "x-secret"].iter().any(|word| text.contains(word));
        let schema = Schema { raw: raw.clone(), compiled: Arc::new(compiled), bounds: Arc::new(bounds), may_hide };
        let faults = on_stack(schema.bounds.recursive, || schema.bad_defaults());
        let faults = faults.map_err(|why| vec![SchemaFault::new("", why)])?;
        if faults.is_empty() { Ok(schema) } else { Err(faults) }
    }

    /// A `default` that its own schema refuses would fail every call that relies on it.
    fn bad_defaults(&self) -> Vec<SchemaFault> {
        if self.bounds.defaults.is_empty() {
            return Vec::new();
        }
        let owners = self.parts(self.bounds.defaults.iter().map(|owner| (owner.clone(), owner.clone())));
        let fault = |owner: &String| {
            let default = self.raw.pointer(owner)?.get("default")?;
            let message = if self.takes_long(default) {
                "this default is too large for its schema"
            } else if owners.as_ref().is_some_and(|owners| owners.fits(owner, default)) {
                return None;
            } else {
                "this default does not fit its own schema"
            };
            Some(SchemaFault::new(&format!("{owner}/default"), message))
        };
        self.bounds.defaults.iter().filter_map(fault).collect()
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
        self.steps(value) > LONG_CHECK_STEPS
    }

    /// Whether checking this value may take so long that it is refused. Where a schema refers to itself, the checker
    /// remembers each part of the value for each such reference.
    pub(super) fn too_large(&self, value: &Value) -> bool {
        self.steps(value) > MAX_CHECK_STEPS / (1 + self.bounds.circles)
    }

    /// What loads and is yet a mistake: pointers into the schema, and words.
    pub(super) fn remarks(&self) -> &[(String, String)] {
        &self.bounds.remarks
    }

    pub(super) fn has_defaults(&self) -> bool {
        !self.bounds.defaults.is_empty()
    }

    pub(super) fn steps(&self, value: &Value) -> usize {
        self.effort(value).steps
    }

    /// As if every part of the schema were held against every part of the value, and every character against every
    /// state of the patterns.
    fn effort(&self, value: &Value) -> Effort {
        let (mut steps, mut deepest, mut open) = (0usize, 0, vec![(value, 0)]);
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
            let patterns = bytes.saturating_mul(self.bounds.states) / STATES_A_STEP;
            let parts = self.bounds.parts.saturating_mul(1 + bytes / BYTES_A_STEP);
            steps = steps.saturating_add(parts.saturating_add(patterns));
            if steps > MAX_CHECK_STEPS {
                break;
            }
        }
        let branches = self.bounds.circles.max(1).saturating_pow(deepest);
        let explaining = steps.saturating_mul(branches).saturating_mul(1 + self.bounds.copied / COPIED_A_STEP);
        Effort { steps, explaining }
    }

    /// Every way a value breaks this schema, up to a bound; empty = it fits.
    pub fn flaws(&self, value: &Value) -> Vec<Flaw> {
        if self.too_large(value) {
            let what = "must be smaller: to hold so many values to this schema would take too long";
            return vec![Flaw::must("", "schema", what)];
        }
        on_stack(self.bounds.recursive, || self.flaws_here(value)).unwrap_or_else(|why| vec![Flaw::must("", "", &why)])
    }

    fn flaws_here(&self, value: &Value) -> Vec<Flaw> {
        if self.compiled.is_valid(value) {
            return Vec::new();
        }
        // To find out why a value does not fit can cost far more than whether it does.
        let explaining = self.effort(value).explaining;
        let flaws: Vec<Flaw> = if explaining <= LARGE_CHECK_STEPS {
            self.compiled.iter_errors(value).take(MAX_FAULTS_TOLD).map(|error| Flaw::new(&error)).collect()
        } else if explaining <= MAX_CHECK_STEPS && !self.bounds.unions {
            self.compiled.validate(value).err().iter().map(Flaw::new).collect()
        } else {
            self.flaws_of_a_part(value)
        };
        if flaws.is_empty() {
            let intricate = "must fit its schema (which is too intricate to say where it does not)";
            return vec![Flaw::must("", "schema", intricate)];
        }
        flaws
    }

    /// The flaws of the smallest part at fault that can be found in a large value: down `properties` and `items`, which
    /// have no alternatives. Empty where there is none.
    fn flaws_of_a_part(&self, value: &Value) -> Vec<Flaw> {
        let (mut value, mut schema, mut pointer) = (value, String::new(), String::new());
        let mut spent = 0usize;
        // Each step leads one level down a value whose depth is bounded.
        loop {
            // Each level holds all that lies below it to the schema once more.
            spent = spent.saturating_add(self.effort(value).steps);
            if spent > MAX_CHECK_STEPS {
                return Vec::new();
            }
            let Some(here) = self.resolved(&schema) else { return Vec::new() };
            let below: Vec<(String, String, &Value)> = match value {
                Value::Object(fields) => fields
                    .iter()
                    .map(|(name, field)| (format!("/properties/{}", escape_segment(name)), escape_segment(name), field))
                    .collect(),
                Value::Array(items) => {
                    items.iter().enumerate().map(|(at, item)| ("/items".to_owned(), at.to_string(), item)).collect()
                }
                _ => return Vec::new(),
            };
            let mut keywords: Vec<&String> = below.iter().map(|(keyword, ..)| keyword).collect();
            keywords.dedup();
            let known = keywords.into_iter().map(|keyword| (keyword.clone(), format!("{here}{keyword}")));
            let known = known.filter(|(_, pointer)| self.raw.pointer(pointer).is_some_and(Value::is_object));
            let Some(parts) = self.parts(known) else { return Vec::new() };
            let Some((keyword, name, part)) = below.iter().find(|(keyword, _, part)| !parts.fits(keyword, part)) else {
                return Vec::new();
            };
            pointer = format!("{pointer}/{name}");
            schema = format!("{here}{keyword}");
            value = part;
            if self.effort(value).explaining <= LARGE_CHECK_STEPS {
                return parts.flaws(keyword, value, &pointer);
            }
        }
    }

    /// The pointer of a subschema or, where that is a reference, of the schema that the references lead to.
    fn resolved(&self, pointer: &str) -> Option<String> {
        let mut pointer = pointer.to_owned();
        for _ in 0..16 {
            let Some(target) = self.raw.pointer(&pointer)?.get("$ref") else { return Some(pointer) };
            pointer = target.as_str()?.strip_prefix('#')?.to_owned();
        }
        None
    }

    /// Compiles some subschemas, each under a name.
    fn parts(&self, pointers: impl Iterator<Item = (String, String)>) -> Option<Parts> {
        let all = pointers.map(|(name, pointer)| (name, reference(&pointer))).collect::<serde_json::Map<_, _>>();
        let mut schema = json!({ "properties": all });
        if let Some(draft) = self.raw.get("$schema") {
            schema["$schema"] = draft.clone();
        }
        let document = jsonschema::Registry::new().add(HERE, &self.raw).ok()?.prepare().ok()?;
        options().with_registry(&document).build(&schema).ok().map(Parts)
    }
}

/// Subschemas by name, compiled as the properties of an object.
struct Parts(Validator);

impl Parts {
    fn fits(&self, name: &str, value: &Value) -> bool {
        self.0.is_valid(&json!({ name: value }))
    }

    fn flaws(&self, name: &str, value: &Value, pointer: &str) -> Vec<Flaw> {
        let named = json!({ name: value });
        let flaw = |error: ValidationError<'_>| {
            let flaw = Flaw::new(&error);
            let below = flaw.pointer.strip_prefix(&format!("/{}", escape_segment(name))).unwrap_or_default();
            Flaw { pointer: format!("{pointer}{below}"), ..flaw }
        };
        self.0.iter_errors(&named).take(MAX_FAULTS_TOLD).map(flaw).collect()
    }
}

/// The checker's options, the same for every schema.
fn options<'i>() -> jsonschema::ValidationOptions<'i> {
    // The bounds weighed each pattern; the engine builds each forwards and backwards.
    let regex = PatternOptions::regex().size_limit(2 * MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_CACHE_BYTES);
    jsonschema::options()
        .offline()
        .should_validate_formats(true)
        .with_pattern_options(regex)
        // The checker's own takes time that grows with the square of the text.
        .with_format("regex", |text: &str| {
            text.len() <= MAX_FORMAT_BYTES && jsonschema_regex::is_valid_ecma_regex(text)
        })
}

/// The URI by which a schema is referred to from outside (`reference`).
const HERE: &str = "toolhost:schema";

/// A schema that only refers to a part of another: no more than that part leads to is compiled.
fn reference(pointer: &str) -> Value {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'~' | b'-' | b'_' | b'.');
    let escaped =
        pointer.bytes().map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") });
    json!({ "$ref": format!("{HERE}#{}", escaped.collect::<String>()) })
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

impl Flaw {
    pub fn must(pointer: &str, rule: &str, what: &str) -> Flaw {
        Flaw { pointer: pointer.to_owned(), rule: rule.to_owned(), what: Breach::Must(what.to_owned()) }
    }

    fn new(error: &ValidationError<'_>) -> Flaw {
        let what = match error.kind() {
            ValidationErrorKind::Required { property } => {
                Breach::Missing(property.as_str().unwrap_or_default().to_owned())
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => Breach::Unknown(unexpected.clone()),
            kind @ ValidationErrorKind::Type { .. } if error.instance().is_null() => {
                Breach::Must(format!("{}, not null (leave it out where it is not needed)", must(kind)))
            }
            kind => Breach::Must(must(kind)),
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
        Kind::Enum { options } => format!("must be one of: {}", options_text(options)),
        Kind::Constant { expected_value } => format!("must be {}", text::head(&expected_value.to_string(), 100)),
        Kind::Format { format } => format!("must be a valid {format}"),
        Kind::Pattern { pattern } => format!("does not match pattern {}", text::head(pattern, 200)),
        Kind::Minimum { limit } => format!("must be >= {limit}"),
        Kind::Maximum { limit } => format!("must be <= {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("must be > {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("must be < {limit}"),
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
