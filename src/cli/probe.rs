//! `toolhost audit TOOL --probe`: what could and could not be done inside that exact confinement.
//!
//! For: `audit`. In: one tool as policy judges it. Out: a table or JSON; exit code 4 if anything differs from what
//! `audit` says. Never: runs the tool's script; leaves out a line that differs.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, process, settings, words};
use crate::base::text::printable;
use crate::executor::process::{examine, settle};
use crate::manifest::{Handler, Language};
use crate::{fault, manifest, policy, registry, sandbox};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// The shape a call of this tool gets.
fn shape(known: &host::Tools, tool: &registry::Tool) -> anyhow::Result<Arc<policy::Shape>> {
    let refuse = |fault: fault::Fault| Refusal::of(&fault);
    if tool.manifest.id == policy::RUN_CODE {
        let site = manifest::Site { folder: "/tmp".into(), script: None, ..manifest::Site::clone(&tool.site) };
        let machine = &known.machine;
        // One language stands for all: what differs is the interpreter's own files.
        let language = machine.runtimes.keys().next().copied().unwrap_or(Language::Python);
        let target = policy::RunTarget { site, language };
        return Ok(policy::decide_run(&target, &tool.manifest, &[], &known.policies, machine).shape.map_err(refuse)?);
    }
    if !matches!(tool.manifest.handler, Handler::Script { .. }) {
        let what = "it starts no process of its own; probe the tool whose script it is asked to run";
        return Err(Refusal::new(Exit::Caller, format!("{}: {what}", tool.manifest.id)).into());
    }
    let mut decision = known.decide(tool);
    known.looks_back(&mut decision);
    Ok(decision.shape.map_err(refuse)?)
}

pub fn run(settings: &Settings, known: &host::Tools, tool: &registry::Tool, json: bool) -> anyhow::Result<ExitCode> {
    let shape = shape(known, tool)?;
    let around = examine::Surroundings {
        manifest: Some(tool.site.manifest.clone()).filter(|path| !path.as_os_str().is_empty()),
        policies: settings.policies.clone(),
        home: settings::home(&|name| std::env::var_os(name)),
    };
    let runtime = process::runtime()?;
    let examined = runtime.block_on(examine::run(&known.launchers, &shape, &around));
    drop(runtime);
    settle(process::FAREWELL);
    let examined = examined.map_err(|unready| Refusal::of(&unready.into()))?;
    match json {
        true => words::show_json(&as_json(&shape, &examined)),
        false => words::show(as_text(&shape, &examined).as_bytes()),
    }
    Ok(if examined.as_said() { Exit::Ok } else { Exit::Host }.into())
}

fn as_json(shape: &policy::Shape, examined: &examine::Examined) -> Value {
    let tried: Vec<Value> = examined
        .tried
        .iter()
        .map(|t| json!({ "what": t.what, "granted": t.granted, "could": t.could, "answer": t.answer, "closed": t.closed, "asSaid": t.as_said() }))
        .collect();
    json!({
        "tool": shape.tool,
        "confinement": shape.digest(),
        "asSaid": examined.as_said(),
        "tried": tried,
        "walls": examined.walls,
    })
}

fn as_text(shape: &policy::Shape, examined: &examine::Examined) -> String {
    let tool = printable(&shape.tool);
    let mut out = format!("{tool}\n  probed: our own probe, behind the walls a call meets; its script was not run\n\n");
    attempts(&examined.tried, &mut out);
    let (all, wrong) = (examined.tried.len(), examined.tried.iter().filter(|t| !t.as_said()));
    let verdict = match (wrong.clone().count(), wrong.clone().all(sandbox::probe::Tried::explained)) {
        (0, _) => format!("all {all} as said"),
        (n, true) => format!(
            "{n} of {all} not as said: granted, and closed by owner and mode, so the tool gets less than was said"
        ),
        (n, false) => format!("{n} of {all} NOT AS SAID: do not run this tool here; please report it"),
    };
    let _ = writeln!(out, "\n  {verdict}\n\n  walls");
    walls(&examined.walls, &mut out);
    out
}

/// One line for each attempt.
pub(super) fn attempts(tried: &[sandbox::probe::Tried], out: &mut String) {
    for t in tried {
        let could = if t.could { "could" } else { "could not" };
        let said = if t.as_said() { "as said" } else { "NOT AS SAID" };
        let answer = match (&t.closed, t.could) {
            (_, true) => String::new(),
            (Some(closed), false) => format!(" ({}: {closed})", t.answer),
            (None, false) => format!(" ({})", printable(&t.answer)),
        };
        let _ = writeln!(out, "  {said:<11}  {could:<9}  {}{answer}", printable(&t.what));
    }
}

/// One line for each wall.
pub(super) fn walls(stood: &[sandbox::Stood], out: &mut String) {
    for wall in stood {
        let _ =
            writeln!(out, "  {:<11}  {:<9}  {}", printable(&wall.name), printable(&wall.state), printable(&wall.why));
    }
}
