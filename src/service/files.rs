//! The files that a request brings, and those that its arguments hold: under a parameter of
//! `"format": "file"` stands a `data:` URI, the id of an artifact, the name of a file that the
//! request brings, or base64. The tool reads there the path of the file.

use super::arguments;
use super::artifacts::{Artifacts, Owner, is_id};
use super::request::BroughtFile;
use crate::base::text::printable;
use crate::executor::SCHEME;
use crate::fault::{Fault, Kind};
use crate::manifest::Manifest;
use crate::quantity::MAX_FILES;
use crate::sandbox::CALL_INPUT;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::sync::Arc;

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The files that a request brings, and where it finds more.
pub(super) struct Brought {
    pub files: Vec<BroughtFile>,
    pub owner: Owner,
    pub store: Arc<Artifacts>,
}

fn refused(message: String) -> Fault {
    Fault::new(Kind::ParameterValidationError, message)
}

/// Takes the files out of the arguments: each becomes the path at which the tool finds it.
pub(super) fn take(
    manifest: &Manifest,
    arguments: &mut Value,
    mut brought: Brought,
) -> Result<Vec<BroughtFile>, Fault> {
    let Some(fields) = arguments.as_object_mut() else {
        return Ok(brought.files);
    };
    refuse_for_others(manifest, &brought.files)?;
    for (name, is_list) in manifest.file_parameters() {
        let mut names = brought.files.iter().filter_map(|file| file.name_for(name));
        let named = match names.next() {
            Some(first) if is_list => Some(std::iter::once(first).chain(names).collect()),
            first => first.map(Value::from),
        };
        if let (false, Some(named)) = (fields.contains_key(name), named) {
            fields.insert(name.clone(), named);
        }
        if is_list && let Some(value) = fields.get_mut(name) {
            as_list(name, value)?;
        }
        match fields.get_mut(name) {
            Some(Value::Array(items)) if is_list => {
                for (number, item) in items.iter_mut().enumerate() {
                    take_one(name, format!("{name}-{}", number + 1), item, &mut brought)?;
                }
            }
            Some(value) if !is_list => take_one(name, name.clone(), value, &mut brought)?,
            _ => {}
        }
    }
    Ok(brought.files)
}

/// Refuses a file for a parameter that holds none: the tool would take its default instead.
fn refuse_for_others(manifest: &Manifest, files: &[BroughtFile]) -> Result<(), Fault> {
    let parameters = manifest.parameters.as_ref();
    let properties = parameters.and_then(|schema| schema.raw["properties"].as_object());
    for name in properties
        .into_iter()
        .flat_map(|properties| properties.keys())
    {
        let holds_files = manifest.file_parameters().any(|(other, _)| other == name);
        if !holds_files && let Some(file) = files.iter().find_map(|file| file.name_for(name)) {
            let file = printable(file);
            return Err(refused(format!(
                "Input parameter '{name}' does not hold a file, so it cannot be '{file}'. Give its \
                 value; a parameter holds a file where the manifest says \"format\": \"file\"."
            )));
        }
    }
    Ok(())
}

/// A list that came as text: its JSON, or the text of its one member.
fn as_list(name: &str, value: &mut Value) -> Result<(), Fault> {
    if let Value::String(text) = value {
        *value = if text.trim_start().starts_with('[') {
            arguments::document(&format!("'{name}'"), text)?
        } else {
            vec![text.as_str()].into()
        };
    }
    Ok(())
}

/// `usual`: the name of a file that comes without one.
fn take_one(
    parameter: &str,
    usual: String,
    value: &mut Value,
    brought: &mut Brought,
) -> Result<(), Fault> {
    // The schema refuses all that is not text.
    let Value::String(text) = value else {
        return Ok(());
    };
    if brought.files.iter().any(|file| file.is_named(text)) {
        *value = format!("{CALL_INPUT}/{text}").into();
        return Ok(());
    }
    if brought.files.len() as u64 >= MAX_FILES {
        return Err(refused(format!("A call brings at most {MAX_FILES} files.")));
    }
    let id = text.strip_prefix(SCHEME).unwrap_or(text);
    if is_id(id) {
        let name = brought.store.name(&brought.owner, id)?;
        brought.files.push(BroughtFile::Stored(id.to_owned()));
        *value = format!("{CALL_INPUT}/{name}").into();
        return Ok(());
    }
    let unreadable = || {
        refused(format!(
            "'{parameter}' must hold a file: base64, a data: URI, or the id of an artifact."
        ))
        .person(format!(
            "On the command line {parameter}=@PATH brings a file."
        ))
    };
    let (name, bytes) = match text.strip_prefix("data:") {
        Some(uri) => read_data_uri(uri, usual).ok_or_else(unreadable)?,
        None => (usual, decode(text).ok_or_else(unreadable)?),
    };
    *value = format!("{CALL_INPUT}/{name}").into();
    brought
        .files
        .push(BroughtFile::new(parameter, name, &bytes)?);
    Ok(())
}

/// The name and the bytes of a `data:` URI (RFC 2397), without its scheme.
fn read_data_uri(uri: &str, usual: String) -> Option<(String, Vec<u8>)> {
    let (about, data) = uri.split_once(',')?;
    let mut about = about.split(';');
    let is_base64 = about.clone().next_back() == Some("base64");
    let name = about.find_map(|part| part.strip_prefix("name="));
    let name = match name {
        Some(name) => percent_decode_str(name).decode_utf8().ok()?.into_owned(),
        None => usual,
    };
    let bytes = if is_base64 {
        decode(data)?
    } else {
        percent_decode_str(data).collect()
    };
    Some((name, bytes))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let plain: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    BASE64.decode(plain).ok()
}
