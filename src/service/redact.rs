//! Which arguments of a call are secret: those that a schema marks `writeOnly` or `x-secret`. They are hidden where
//! they stand, whatever their length, and a mask finds their texts elsewhere.

use crate::base::mask::HIDDEN;
use crate::manifest::arguments::declares;
use crate::manifest::schema::Schema;
use crate::manifest::{Handler, Manifest};
use crate::policy;
use serde_json::Value;

/// The arguments of a call as records show them, as JSON text, and the secrets among them.
#[derive(Default)]
pub struct Masked {
    pub secrets: Vec<String>,
    pub shown: String,
    /// The argument with the input of a script that the call names: shown once its secrets are known.
    pub withheld: Option<(String, Value)>,
}

/// Masks arguments. Of a script that the call names the environment is hidden, and its input until it is found.
pub fn of_arguments(manifest: &Manifest, arguments: &Value) -> Masked {
    let schema = manifest.parameters.as_ref().filter(|schema| !schema.secrets().is_empty());
    let renamed = match &manifest.handler {
        Handler::ServiceMethod { service, parameter_map, .. } if service == policy::SCRIPT_SERVICE => {
            Some(parameter_map)
        }
        // A tree can be forty times as large as its text.
        _ if schema.is_none() => return Masked { shown: arguments.to_string(), ..Masked::default() },
        _ => None,
    };
    let (mut shown, mut withheld) = (arguments.clone(), None);
    let mut secrets = schema.map(|schema| hide(schema, &mut shown)).unwrap_or_default();
    for (name, value) in shown.as_object_mut().into_iter().flatten() {
        // A name that the schema does not know may be a secret's, misspelt.
        if schema.is_some_and(|schema| !declares(&schema.raw, name)) {
            collect(&arguments[name.as_str()], &mut secrets);
            *value = HIDDEN.into();
        }
        match (renamed.map(|renamed| renamed.get(name).unwrap_or(name).as_str()), value) {
            (Some("env"), Value::Object(variables)) => variables.values_mut().for_each(|text| *text = HIDDEN.into()),
            (Some("env"), other) => *other = HIDDEN.into(),
            (Some("inputData"), value) => withheld = Some((name.clone(), std::mem::replace(value, HIDDEN.into()))),
            _ => {}
        }
    }
    Masked { secrets, shown: shown.to_string(), withheld }
}

/// Hides what the schema marks in a value, and returns the texts. A value too large for its schema is secret.
pub fn hide(schema: &Schema, value: &mut Value) -> Vec<String> {
    let whole = schema.is_too_large(value).then_some(&[][..]);
    let (mut secrets, paths) = (Vec::new(), schema.secrets().iter().map(Vec::as_slice).chain(whole).collect());
    hide_below(paths, value, &mut secrets);
    secrets
}

/// Hides what these members lead to. Text that is not read as JSON yet is secret where a part of it may be.
fn hide_below(paths: Vec<&[Option<String>]>, value: &mut Value, secrets: &mut Vec<String>) {
    let is_unread = value.is_string() || value.is_number();
    if paths.iter().any(|path| path.is_empty() || is_unread) {
        collect(value, secrets);
        *value = HIDDEN.into();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| hide_below(paths.clone(), item, secrets)),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, field)| {
            let leads = |path: &&&[Option<String>]| path[0].as_ref().is_none_or(|member| member == name);
            hide_below(paths.iter().filter(leads).map(|path| &path[1..]).collect(), field, secrets);
        }),
        _ => {}
    }
}

/// Every text and number of a secret value; words as `true` are too short to be searched for.
fn collect(value: &Value, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) => secrets.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secrets)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, secrets)),
        other => secrets.push(other.to_string()),
    }
}
