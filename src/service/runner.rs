//! The road to scripts for service methods: the same policy, walls, limits and audit as a tool of its own.
//!
//! For: `executor::method` (`executeScript`, `runCode`). In: a script path, or a script to run. Out: its
//! site; how it ended. Never: takes a grant from a call's arguments; the policies of every manifest that
//! names the script hold here too (Q18).

use super::{Service, format, input_fits};
use crate::executor::{self, Event, method};
use crate::manifest::{Language, Site, environment};
use crate::sandbox::grants;
use crate::{fault, policy, registry};
use fault::{Fault, Kind};
use serde_json::Value;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

impl method::Runner for Service {
    fn locate(&self, script_path: &str) -> Result<Site, Fault> {
        let site = registry::scripts::resolve(&self.parts.scripts, None, script_path)?;
        let snapshot = self.parts.registry.snapshot();
        if let Some(manifest) = site.script.as_deref().and_then(|script| snapshot.claimed(script)) {
            let manifest = crate::manifest::text::printable(&manifest.to_string_lossy());
            return Err(Fault::new(
                Kind::SecurityError,
                "The script may not be run: a tool that is not loaded speaks for it, and what it denies is not known.",
            )
            .person(format!("{manifest} is not loaded (`toolhost check` says why): mend it, or take it away")));
        }
        match site.script.as_deref().and_then(|script| snapshot.written.by(script)) {
            None => Ok(site),
            Some(writer) => Err(Fault::new(
                Kind::SecurityError,
                "The script may not be run: it lies where a tool may write, and a tool cannot make tools.",
            )
            .person(format!("it lies where {writer}: if you know who made it, move it elsewhere"))),
        }
    }

    fn run<'a>(
        &'a self,
        context: &'a method::MethodContext,
        script: method::Script,
        channel: &'a executor::Events,
    ) -> Pin<Box<dyn Future<Output = method::Ran> + Send + 'a>> {
        Box::pin(async move {
            let input = script.input.clone();
            let namers = self.namers(&script.what);
            // Before anything else is said about the run: what its words must not carry.
            let _ = channel.send(secrets(&namers, &script));
            let prepared = self.prepared(context, script, &namers, &input);
            let (confinement, site, language) = match prepared {
                Ok(prepared) => prepared,
                Err(refusal) => {
                    let (decision, fault) = *refusal;
                    if let Some(decided) = decision {
                        let _ = channel.send(decided);
                    }
                    return refused(fault);
                }
            };
            let (decided, confinement) = confinement;
            let _ = channel.send(decided);
            let _ = channel.send(Event::Confined { confinement: Box::new(confinement.clone()) });
            let call =
                executor::Call { manifest: context.manifest.clone(), site, input, confinement: Some(confinement) };
            let outcome = match self.script_executor(language) {
                Ok(executor) => executor.run(&context.call, call, channel).await,
                Err(fault) => Err(fault),
            };
            match outcome {
                Ok(outcome) => judged(outcome),
                Err(fault) => refused(fault),
            }
        })
    }
}

/// A manifest that names the script, and where it lies.
type Namer = (Arc<crate::manifest::Manifest>, Site);
/// What policy said (`Event::Decided`), and the confinement it led to.
type Confined = (Event, policy::Confinement);
/// A refusal, with what policy said, if it was asked.
type Refusal = Box<(Option<Event>, Fault)>;

impl Service {
    /// Decides and confines one run; everything that can be refused is refused here.
    fn prepared(
        &self,
        context: &method::MethodContext,
        script: method::Script,
        namers: &[Namer],
        input: &Value,
    ) -> Result<(Confined, Site, Language), Refusal> {
        let method::Script { what, timeout_ms, env, .. } = script;
        let (site, language, source) = match what {
            method::What::File { site, language } => (site, language, None),
            method::What::Source { language, code } => (nowhere(), language, Some(code)),
        };
        let standing = self.standing().map_err(|fault| Box::new((None, fault)))?;
        let target = policy::RunTarget { site: site.clone(), language };
        let mut decision =
            policy::decide_run(&target, &context.manifest, namers, &standing.policies, &standing.rules.machine);
        leave_out_folders(&mut decision);
        let notes = policy::call_notes(&decision, timeout_ms);
        let decided = Event::Decided { policy: decision.policy.clone(), digest: decision.digest.clone(), notes };
        let refusal = |fault| Box::new((Some(decided.clone()), fault));
        let mut confinement = policy::confine(&decision, timeout_ms, source).map_err(refusal)?;
        for (name, value) in env {
            literal(&name, &value).map_err(refusal)?;
            Arc::make_mut(&mut confinement.shape).env.insert(name, policy::Variable::Call(value));
        }
        input_fits(&confinement, input, &decision).map_err(refusal)?;
        self.parts.audit.keep(&confinement.shape, &confinement.shape.digest()).map_err(refusal)?;
        Ok(((decided, confinement), site, language))
    }

    /// Every manifest that names this script: its policy and approval hold here too.
    fn namers(&self, what: &method::What) -> Vec<Namer> {
        let method::What::File { site: Site { script: Some(script), .. }, .. } = what else { return Vec::new() };
        let tools = self.parts.registry.snapshot().namers(script);
        tools.iter().map(|tool| (tool.manifest.clone(), tool.site.clone())).collect()
    }
}

/// The tool that runs scripts asks for a folder for results beside each: a script that lies where this host may not write
/// runs without it.
fn leave_out_folders(decision: &mut policy::Decision) {
    let Ok(shape) = &mut decision.shape else { return };
    let lost: Vec<policy::Grant> =
        shape.grants.iter().filter(|grant| grants::cannot_be_made(grant, shape)).cloned().collect();
    for grant in &lost {
        let words = format!("narrowed: write {}: it is not there, and cannot be made beside the script", grant.asked);
        decision.notes.all.push(words.clone());
        decision.notes.told.push(words);
    }
    if !lost.is_empty() {
        Arc::make_mut(shape).grants.retain(|grant| !lost.contains(grant));
    }
}

/// The script's own parameters say what is secret in its input; of an environment, everything is.
fn secrets(namers: &[Namer], script: &method::Script) -> Event {
    let schemas = namers.iter().filter_map(|(manifest, _)| manifest.parameters.as_ref());
    let schemas = schemas.filter(|schema| schema.may_hide).map(|schema| schema.raw.clone()).collect();
    Event::Script { schemas, input: script.input.clone(), env: script.env.values().cloned().collect() }
}

/// Source text lies nowhere: it is placed in scratch.
fn nowhere() -> Site {
    Site { manifest: PathBuf::new(), base: PathBuf::new(), script: None, folder: PathBuf::from("/tmp") }
}

/// An environment variable of a call answers to the same rule as one of a manifest.
fn literal(name: &str, value: &str) -> Result<(), Fault> {
    let fits = name.len() + value.len() <= crate::quantity::MAX_ENV_BYTES;
    let why = if fits { environment::refused(name, value) } else { Some("is too long".to_owned()) };
    match why {
        None => Ok(()),
        Some(why) => {
            let message = format!("Environment variable '{}' may not be set by a call.", name.escape_debug());
            Err(Fault::new(Kind::SecurityError, message).details(why).by_caller())
        }
    }
}

fn refused(fault: Fault) -> method::Ran {
    method::Ran {
        result: Err(fault.clone()),
        facts: method::Facts { refused: Some(fault), ..method::Facts::default() },
    }
}

fn judged(outcome: executor::Outcome) -> method::Ran {
    let result = format::judge(outcome.ending, &outcome.logs);
    method::Ran {
        result,
        facts: method::Facts {
            logs: outcome.logs,
            usage: Some(outcome.usage),
            walls: outcome.walls,
            denials: outcome.denials,
            artifacts: outcome.artifacts,
            output: None,
            refused: None,
        },
    }
}
