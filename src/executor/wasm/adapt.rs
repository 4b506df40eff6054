//! Turns any accepted module into a component, and finds by its exports how a component is called.
//!
//! A WASI preview 1 module is wrapped into a component, since only a component's handles can be
//! capped. The standard adapter loses exit codes (it knows only "ok" and "failed"), so the module's
//! `proc_exit` is renamed to an import of ours that keeps the number. The new names have the same
//! length and overwrite the old.

use std::borrow::Cow;
use wasi_preview1_component_adapter_provider as adapter;
use wasmparser::{ExternalKind, Imports, Parser, Payload};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Type};

/// The interface of our import that carries an exit code: `proc-exit`.
pub const EXITS: &str = "toolhost:adapted/exits";
const EXITS_WORLD: &str = "package toolhost:adapted; interface exits \
    { proc-exit: func(code: u32); } world exiting { import exits; }";
/// The typed export, where `entryPoint` names no other.
const RUN: &str = "run";
const ACCEPTED: &str = "accepted are: a component that exports `run: func(input: string) -> \
    result<string, string>` (entryPoint may name another export of that type), a component that \
    exports `wasi:cli/run@0.2.x`, and a WASI preview 1 command module (`_start`); each as .wasm or \
    .wat";

/// How a component is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contract {
    /// The typed export of this name.
    Typed(String),
    /// `wasi:cli/run`: JSON on stdin and stdout.
    Command,
}

/// Makes component bytes of whatever was given, or says why not.
pub fn component(module: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let binary: Cow<'_, [u8]> = if module.starts_with(b"\0asm") {
        module.into()
    } else if std::str::from_utf8(module).is_ok() {
        wat::parse_bytes(module).map_err(|error| not_text(&error))?
    } else {
        return Err(format!(
            "the file is neither WebAssembly nor its text form; {ACCEPTED}"
        ));
    };
    if Parser::is_component(&binary) {
        return Ok(binary);
    }
    if !Parser::is_core_wasm(&binary) {
        return Err(format!(
            "the file is WebAssembly of an unknown version; {ACCEPTED}"
        ));
    }
    command_module(&binary)?;
    wrap(binary.into_owned())
        .map(Cow::Owned)
        .map_err(|e| format!("the module cannot be linked to WASI preview 1: {e:#}"))
}

/// What is wrong with a module in text form, which is only parsed.
pub fn text_fault(module: &[u8]) -> Option<String> {
    wat::parse_bytes(module).err().map(|error| not_text(&error))
}

fn not_text(error: &wat::Error) -> String {
    format!("the text is not WebAssembly: {}", first_error(error))
}

/// One line: what is wrong and where, without the picture that follows it.
fn first_error(error: &wat::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let what = lines.next().unwrap_or_default();
    let place = lines
        .next()
        .and_then(|line| line.trim().strip_prefix("--> <anon>:"))
        .and_then(|at| at.split_once(':'));
    match place {
        Some((line, column)) => format!("line {line}, column {column}: {what}"),
        None => what.to_owned(),
    }
}

/// Refuses core modules that are not preview 1 commands.
fn command_module(binary: &[u8]) -> Result<(), String> {
    let mut exports = Vec::new();
    for payload in Parser::new(0).parse_all(binary) {
        if let Payload::ExportSection(section) =
            payload.map_err(|e| format!("the module is damaged: {e}"))?
        {
            for export in section {
                let export = export.map_err(|e| format!("the module is damaged: {e}"))?;
                exports.push((export.name, export.kind));
            }
        }
    }
    let has = |name: &str, kind: ExternalKind| exports.contains(&(name, kind));
    match (
        has("_start", ExternalKind::Func),
        has("memory", ExternalKind::Memory),
    ) {
        (true, true) => Ok(()),
        (true, false) => Err(format!(
            "the module exports `_start` but not its `memory`; {ACCEPTED}"
        )),
        _ if has("_initialize", ExternalKind::Func) => Err(format!(
            "the module is a WASI reactor (`_initialize` without `_start`); {ACCEPTED}"
        )),
        _ => Err(format!("the module exports no `_start`; {ACCEPTED}")),
    }
}

fn wrap(mut module: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let exits = exits(&module).map_err(|e| anyhow::anyhow!("the module is damaged: {e}"))?;
    for (at, name) in &exits {
        module[*at..at + name.len()].copy_from_slice(name.as_bytes());
    }
    if !exits.is_empty() {
        let mut resolve = wit_parser::Resolve::default();
        let package = resolve.push_str("adapted.wit", EXITS_WORLD)?;
        let world = resolve.select_world(&[package], None)?;
        wit_component::embed_component_metadata(
            &mut module,
            &resolve,
            world,
            wit_component::StringEncoding::UTF8,
        )?;
    }
    wit_component::ComponentEncoder::default()
        .module(&module)?
        .adapter(
            adapter::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
            adapter::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
        )?
        .encode()
}

/// Where a module imports `wasi_snapshot_preview1.proc_exit`, and the names to write there.
fn exits(module: &[u8]) -> wasmparser::Result<Vec<(usize, &'static str)>> {
    let theirs = (adapter::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, "proc_exit");
    let ours = (EXITS, "proc-exit");
    let place = |name: &str| name.as_ptr().addr() - module.as_ptr().addr();
    let mut found = Vec::new();
    for part in Parser::new(0).parse_all(module) {
        let Payload::ImportSection(section) = part? else {
            continue;
        };
        for imports in section {
            // In the compact forms, several imports share one name of a module.
            if let Imports::Single(_, import) = imports?
                && (import.module, import.name) == theirs
            {
                found.extend([(place(import.module), ours.0), (place(import.name), ours.1)]);
            }
        }
    }
    Ok(found)
}

/// The contract of a component.
pub fn contract(component: &Component, entry_point: Option<&str>) -> Result<Contract, String> {
    let engine = component.engine();
    let ty = component.component_type();
    let wanted = entry_point.unwrap_or(RUN);
    if let Some(export) = ty.get_export(engine, wanted) {
        return match export.ty {
            ComponentItem::ComponentFunc(f) if is_run(&f) => Ok(Contract::Typed(wanted.to_owned())),
            ComponentItem::ComponentFunc(_) => Err(format!(
                "the component's export `{wanted}` is not `func(input: string) -> result<string, \
                string>`; {ACCEPTED}"
            )),
            _ => Err(format!(
                "the component's export `{wanted}` is not a function; {ACCEPTED}"
            )),
        };
    }
    let names: Vec<&str> = ty.exports(engine).map(|(name, _)| name).collect();
    if let Some(name) = entry_point {
        let typed: Vec<_> = ty
            .exports(engine)
            .filter(|(_, item)| matches!(&item.ty, ComponentItem::ComponentFunc(f) if is_run(f)))
            .map(|(name, _)| name)
            .collect();
        return Err(format!(
            "the component has no export `{name}`; exports of the right type: {}",
            if typed.is_empty() {
                "none".to_owned()
            } else {
                typed.join(", ")
            }
        ));
    }
    if names
        .iter()
        .any(|name| name.starts_with("wasi:cli/run@0.2."))
    {
        return Ok(Contract::Command);
    }
    Err(format!(
        "the component exports {}; {ACCEPTED}",
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.into_iter().take(20).collect::<Vec<_>>().join(", ")
        }
    ))
}

fn is_run(f: &wasmtime::component::types::ComponentFunc) -> bool {
    let params: Vec<Type> = f.params().map(|(_, ty)| ty).collect();
    let results: Vec<Type> = f.results().collect();
    fn text(ty: Option<Type>) -> bool {
        matches!(ty, Some(Type::String))
    }
    matches!(params.as_slice(), [Type::String])
        && matches!(results.as_slice(), [Type::Result(r)] if text(r.ok()) && text(r.err()))
        && !f.async_()
}
