//! Which arguments of a call are secret: those that a schema marks `writeOnly` or `x-secret`. They
//! are hidden in the arguments, whatever their length; the mask that is made of them finds their
//! texts elsewhere.

use crate::base::mask::{HIDDEN, Mask};
use crate::manifest::arguments::declares;
use crate::manifest::bounds::{SAME_VALUE, of_field, of_item, parts};
use crate::manifest::{Handler, Manifest};
use crate::policy;
use serde_json::Value;
use std::fmt::{self, Display};

/// Deepest value that is followed; arguments are bounded below it.
const MAX_DEPTH: usize = 128;
/// Most steps of one walk, each for one value under one schema: a schema can refer to itself in any
/// number of ways.
const MAX_STEPS: u32 = 20_000;
/// Bytes of a schema that are searched in one step.
const BYTES_PER_STEP: usize = 512;

/// The arguments of a call as records show them, and what finds their secrets elsewhere.
#[derive(Default)]
pub struct Masked {
    pub mask: Mask,
    pub shown: RecordArguments,
    /// The argument with the input of a script that the call names: shown once its secrets are
    /// known.
    pub withheld: Option<(String, Value)>,
    /// More is hidden than what a schema marks as secret.
    pub hides_unmarked: bool,
}

/// A value with its secrets hidden.
pub struct Redacted {
    pub mask: Mask,
    pub shown: Value,
    pub hides_unmarked: bool,
}

/// Arguments as a record shows them. With nothing to hide they are text: a tree can be forty times
/// as large.
#[derive(Clone, PartialEq)]
pub enum RecordArguments {
    Text(String),
    Tree(Value),
}

impl Default for RecordArguments {
    fn default() -> RecordArguments {
        RecordArguments::Tree(Value::Null)
    }
}

impl Display for RecordArguments {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordArguments::Text(text) => out.write_str(text),
            RecordArguments::Tree(tree) => write!(out, "{tree}"),
        }
    }
}

/// Arguments, masked as the parameters of their tool say. The environment of a script that the call
/// names is masked, and its input until the script is found.
pub fn of_arguments(manifest: &Manifest, arguments: &Value) -> Masked {
    let schema = manifest
        .parameters
        .as_ref()
        .filter(|schema| schema.may_hide)
        .map(|schema| &schema.raw);
    let names = match &manifest.handler {
        Handler::ServiceMethod {
            service,
            parameter_map,
            ..
        } if service == policy::SCRIPT_SERVICE => Some(parameter_map),
        _ if schema.is_none() => {
            return Masked {
                shown: RecordArguments::Text(arguments.to_string()),
                ..Masked::default()
            };
        }
        _ => None,
    };
    let Redacted {
        mut mask,
        mut shown,
        mut hides_unmarked,
    } = schema.map_or_else(
        || Redacted {
            mask: Mask::default(),
            shown: arguments.clone(),
            hides_unmarked: false,
        },
        |schema| hide(schema, arguments),
    );
    let mut withheld = None;
    for (name, value) in shown.as_object_mut().into_iter().flatten() {
        // An undeclared name may be the misspelt name of a secret.
        if schema.is_some_and(|schema| !declares(schema, name)) {
            collect(&arguments[name.as_str()], &mut mask, Mask::add);
            *value = HIDDEN.into();
            hides_unmarked = true;
        }
        match (
            names.map(|names| names.get(name).unwrap_or(name).as_str()),
            value,
        ) {
            (Some("env"), Value::Object(variables)) => variables
                .values_mut()
                .for_each(|text| *text = HIDDEN.into()),
            (Some("env"), other) => *other = HIDDEN.into(),
            (Some("inputData"), value) => {
                withheld = Some((name.clone(), std::mem::replace(value, HIDDEN.into())))
            }
            _ => {}
        }
    }
    Masked {
        mask,
        shown: RecordArguments::Tree(shown),
        withheld,
        hides_unmarked,
    }
}

/// What hides the secrets of a call that has not told them: those of its arguments, JSON text.
pub fn secrets_of(manifest: &Manifest, arguments: &str) -> Mask {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
    of_arguments(manifest, &arguments).mask
}

/// The secrets among these arguments, and the arguments with the secrets hidden. Where following
/// the schema takes too many steps, all arguments are secret.
pub fn hide(schema: &Value, arguments: &Value) -> Redacted {
    let mut walk = Walk {
        root: schema,
        looks: MAX_STEPS,
        mask: Mask::default(),
        hides_unmarked: false,
    };
    let mut shown = arguments.clone();
    walk.hide(vec![schema], &mut shown, 0);
    if walk.looks == 0 {
        shown = HIDDEN.into();
        walk.hides_unmarked = true;
        collect(arguments, &mut walk.mask, Mask::add);
    }
    Redacted {
        mask: walk.mask,
        shown,
        hides_unmarked: walk.hides_unmarked,
    }
}

/// Masks all texts and numbers in a value by `add`.
fn collect(value: &Value, mask: &mut Mask, add: fn(&mut Mask, &str)) {
    match value {
        Value::String(text) => add(mask, text),
        Value::Number(number) => add(mask, &number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, mask, add)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, mask, add)),
        Value::Null | Value::Bool(_) => {}
    }
}

struct Walk<'s> {
    root: &'s Value,
    /// Counts down to 0, where the walk ends.
    looks: u32,
    mask: Mask,
    hides_unmarked: bool,
}

impl<'s> Walk<'s> {
    /// Walks the value under every schema that may hold for it. Where one of them says secret, all
    /// below is hidden. A list where an object is expected, or an object where a list is, is walked
    /// as if each part were what is expected.
    fn hide(&mut self, mut schemas: Vec<&'s Value>, value: &mut Value, depth: usize) {
        // No steps left: the caller hides everything.
        if self.looks == 0 {
            return;
        }
        self.gather(&mut schemas);
        let is_plain = value.is_string() || value.is_number();
        let is_marked = schemas
            .iter()
            .any(|schema: &&Value| schema["writeOnly"] == true || schema["x-secret"] == true);
        if is_marked
            || depth > MAX_DEPTH
            // JSON text that is not read yet may be secret in any part.
            || is_plain && schemas.iter().any(|schema| self.has_secret_parts(schema))
        {
            self.hides_unmarked |= !is_marked;
            collect(
                value,
                &mut self.mask,
                if is_marked {
                    Mask::add_value
                } else {
                    Mask::add
                },
            );
            *value = HIDDEN.into();
            return;
        }
        let of_items = |at: usize| {
            schemas
                .iter()
                .flat_map(|schema| of_item(schema, at))
                .collect::<Vec<_>>()
        };
        match value {
            Value::Object(fields) => {
                fn lists_names(schema: &Value) -> bool {
                    schema["properties"]
                        .as_object()
                        .is_some_and(|names| !names.is_empty())
                }
                let lists_names = depth > 0 && schemas.iter().any(|schema| lists_names(schema));
                for (name, field) in fields {
                    let own: Vec<_> = schemas
                        .iter()
                        .flat_map(|schema| of_field(schema, name))
                        .collect();
                    if lists_names
                        && own.is_empty()
                        && !schemas
                            .iter()
                            .any(|schema| schema["properties"].get(name).is_some())
                    {
                        collect(field, &mut self.mask, Mask::add);
                        *field = HIDDEN.into();
                        self.hides_unmarked = true;
                        continue;
                    }
                    self.hide(
                        if own.is_empty() { of_items(0) } else { own },
                        field,
                        depth + 1,
                    );
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    let own = of_items(at);
                    self.hide(
                        if own.is_empty() { schemas.clone() } else { own },
                        item,
                        depth + 1,
                    );
                }
            }
            _ => {}
        }
    }

    /// Whether a part of such a value may be marked secret, as far as is known without following
    /// references.
    fn has_secret_parts(&mut self, schema: &Value) -> bool {
        if self.looks == 0 {
            return true;
        }
        let parts = [
            "properties",
            "patternProperties",
            "additionalProperties",
            "items",
            "prefixItems",
        ];
        let written: String = parts
            .iter()
            .filter_map(|part| schema.get(part))
            .map(Value::to_string)
            .collect();
        self.looks = self
            .looks
            .saturating_sub(u32::try_from(written.len() / BYTES_PER_STEP).unwrap_or(MAX_STEPS));
        self.looks == 0
            || ["writeOnly", "x-secret", "$ref"]
                .iter()
                .any(|word| written.contains(word))
    }

    /// Adds the schemas that these lead to for the same value, each once.
    fn gather(&mut self, schemas: &mut Vec<&'s Value>) {
        let mut next = 0;
        while let Some(schema) = schemas.get(next).copied() {
            next += 1;
            let Some(left) = self.looks.checked_sub(1) else {
                return;
            };
            self.looks = left;
            let target = schema["$ref"]
                .as_str()
                .and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
            for other in target
                .into_iter()
                .chain(SAME_VALUE.iter().flat_map(|word| parts(&schema[*word])))
            {
                if !schemas.iter().any(|known| std::ptr::eq(*known, other)) {
                    schemas.push(other);
                }
            }
        }
    }
}
