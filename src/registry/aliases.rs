//! Aliases: each names a tool that is loaded, and is shown with the arguments that are left of it.

use super::conflicts::Refused;
use super::snapshot::Snapshot;
use super::tool::Tool;
use crate::base::json::escape_segment;
use crate::base::{sha256_hex, text};
use crate::manifest::schema::Schema;
use crate::manifest::{Alias, Code, Execution, FINAL_AND_HIDDEN, Manifest, arguments};
use serde_json::{Value, json};
use std::sync::Arc;

/// Why an alias is refused: the pointer, and the words.
struct Flaw(String, String);

/// Gives each alias the parameters of its tool. One whose tool is not loaded or is an alias itself
/// is refused, so that no alias leads back to itself.
pub(super) fn settle(tools: &mut Vec<Tool>, refused: &mut Vec<Refused>) {
    if tools.iter().all(|tool| tool.manifest.alias().is_none()) {
        return;
    }
    let known = Snapshot::default().with(tools.clone());
    for mut tool in std::mem::take(tools) {
        let Some(alias) = tool.manifest.alias() else {
            tools.push(tool);
            continue;
        };
        match shown(&tool.manifest, alias, &known) {
            Ok(manifest) => {
                tool.manifest = Arc::new(manifest);
                tools.push(tool);
            }
            Err(Flaw(pointer, message)) => refused.push(Refused {
                pointer: pointer.into(),
                ..Refused::new(tool, Code::Dependency, message)
            }),
        }
    }
}

/// The manifest of an alias as callers see it.
fn shown(own: &Manifest, alias: &Alias, known: &Snapshot) -> Result<Manifest, Flaw> {
    fn flaw(message: String) -> Flaw {
        Flaw("/handler/tool".to_owned(), message)
    }
    let target = known.find(&alias.tool);
    let target = target.map_err(|fault| flaw(fault.message))?;
    let of = &*target.manifest;
    if of.alias().is_some() {
        let message = "it is an alias itself: name the tool that it stands for";
        return Err(flaw(message.to_owned()));
    }
    if of.document().is_some() {
        let message = "it is a prompt or a resource, and only tools have aliases";
        return Err(flaw(message.to_owned()));
    }
    let presentation = &own.raw["presentation"];
    let is_final = presentation["final"].as_bool().unwrap_or(of.is_final);
    let hidden = presentation["hidden"].as_bool().unwrap_or(of.hidden);
    if is_final && hidden {
        return Err(Flaw(
            "/presentation".to_owned(),
            FINAL_AND_HIDDEN.to_owned(),
        ));
    }
    Ok(Manifest {
        is_final,
        hidden,
        parameters: open_parameters(alias, of)?,
        output: of.output.clone(),
        execution: Execution {
            asynchronous: of.execution.asynchronous,
            task: of.execution.task,
            ..Execution::default()
        },
        idempotent: of.idempotent,
        digest: sha256_hex(format!("{}{}", own.digest, of.digest).as_bytes()),
        ..own.clone()
    })
}

/// The parameters of its tool without the fixed ones, whose values must fit.
fn open_parameters(alias: &Alias, of: &Manifest) -> Result<Option<Schema>, Flaw> {
    let fixed = &alias.arguments;
    let Some(schema) = of.parameters.as_ref().filter(|_| !fixed.is_empty()) else {
        return Ok(of.parameters.clone());
    };
    fn at(name: &str) -> String {
        format!("/handler/arguments/{}", escape_segment(name))
    }
    let root = &schema.raw;
    for (name, value) in fixed {
        let shown = text::printable(&text::head(name, 80));
        if !arguments::declares(root, name) && root.get("additionalProperties").is_none() {
            let message = format!("{} has no parameter '{shown}'", of.id);
            return Err(Flaw(at(name), message));
        }
        let mut one = json!({ "properties": { name: root["properties"][name] } });
        for shared in ["$schema", "$defs", "definitions"] {
            if let Some(part) = root.get(shared) {
                one[shared] = part.clone();
            }
        }
        let flaws = Schema::compile(&one).map(|one| one.flaws(&json!({ name: value })));
        if flaws.is_ok_and(|flaws| !flaws.is_empty()) {
            let message = format!(
                "this value does not fit the parameter '{shown}' of {}",
                of.id
            );
            return Err(Flaw(at(name), message));
        }
    }
    let mut open = root.clone();
    if let Some(properties) = open.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !fixed.contains_key(name));
    }
    if let Some(required) = open.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str().is_none_or(|name| !fixed.contains_key(name)));
    }
    let compiled = Schema::compile(&open).map_err(|problem| {
        let message = format!(
            "the parameters of {} cannot do without the fixed ones: {}",
            of.id, problem.message
        );
        Flaw("/handler/arguments".to_owned(), message)
    })?;
    Ok(Some(compiled))
}
