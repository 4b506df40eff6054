//! The road to scripts for service methods: the same policy, walls, limits and audit as a tool of its own.
//!
//! For: `executor::method` (`executeScript`, `runCode`). In: a script path, or a script to run. Out: its site; how it
//! ended. Never: takes a grant from a call's arguments; passes over a manifest that the script belongs to: policies,
//! parameters and declared variables of all of them hold here too.

use super::{Service, apart, format, input_fits};
use crate::base::hidden::Hidden;
use crate::executor::{self, Event, method};
use crate::manifest::text::printable;
use crate::manifest::{Language, Manifest, Site, arguments, environment};
use crate::{fault, policy, quantity, registry, sandbox};
use fault::{Fault, Kind};
use serde_json::Value;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl method::Runner for Service {
    fn locate(&self, script_path: &str) -> Result<Site, Fault> {
        let site = registry::scripts::resolve(&self.parts.scripts, None, script_path)?;
        let Some(script) = site.script.as_deref() else { return Ok(site) };
        let owners = self.owners(&site)?;
        self.is_planted(script)?;
        // A host that runs as root could show the tool any file; a private one must be named in a manifest.
        let private = || script.symlink_metadata().is_ok_and(|facts| facts.mode() & 0o4 == 0);
        if owners.is_empty() && sandbox::identity::real_root() && private() {
            let shown = printable(&script.to_string_lossy());
            let mend = format!("only its owner may read {shown}: `chmod o+r '{shown}'`, or name it in a manifest");
            let message = "The script may not be run: this host runs as root, and only the file's owner may read it.";
            return Err(Fault::new(Kind::SecurityError, message).person(mend));
        }
        Ok(site)
    }

    fn run<'a>(
        &'a self,
        context: &'a method::MethodContext,
        script: method::Script,
        channel: &'a executor::Events,
    ) -> Pin<Box<dyn Future<Output = method::Ran> + Send + 'a>> {
        Box::pin(async move {
            let owners = match &script.what {
                method::What::File { site, .. } => self.owners(site),
                method::What::Source { .. } => Ok(Vec::new()),
            };
            let owners = match owners {
                Ok(owners) => owners,
                Err(fault) => return refused(fault),
            };
            // First the secrets of the run, so that whatever is said about it is masked.
            let _ = channel.send(secrets(&owners, &script));
            let input = match fits_owners(&owners, &script, context.call.came).await {
                Ok(input) => input,
                Err(fault) => return refused(fault),
            };
            let prepared = self.prepared(context, script, &owners, &input);
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

/// A manifest that the script belongs to, and where it lies.
type Owner = (Arc<Manifest>, Site);
/// What policy said (`Event::Decided`), and the confinement it led to.
type Confined = (Event, policy::Confinement);
/// A refusal, with what policy said, if it was asked.
type Refusal = Box<(Option<Event>, Fault)>;

impl Service {
    /// Decides and confines one run.
    fn prepared(
        &self,
        context: &method::MethodContext,
        script: method::Script,
        owners: &[Owner],
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
            policy::decide_run(&target, &context.manifest, owners, &standing.policies, &standing.rules.machine);
        leave_out_folders(&mut decision);
        let mut notes = policy::call_notes(&decision, timeout_ms);
        let confined = policy::confine(&decision, timeout_ms, source).and_then(|mut confinement| {
            notes.extend(self.looks_back(&mut confinement)?);
            Ok(confinement)
        });
        let decided = Event::Decided { policy: decision.policy.clone(), digest: decision.digest.clone(), notes };
        let refusal = |fault| Box::new((Some(decided.clone()), fault));
        let mut confinement = confined.map_err(refusal)?;
        for (name, value) in env {
            literal(&name, &value, owners).map_err(refusal)?;
            Arc::make_mut(&mut confinement.shape).env.insert(name, policy::Variable::Call(value));
        }
        input_fits(&confinement, input, &decision).map_err(refusal)?;
        self.parts.audit.keep(&confinement.shape, &confinement.shape.digest()).map_err(refusal)?;
        Ok(((decided, confinement), site, language))
    }

    /// Every manifest that this script belongs to: its policy, parameters and approval hold here too.
    fn owners(&self, site: &Site) -> Result<Vec<Owner>, Fault> {
        let Some(script) = &site.script else { return Ok(Vec::new()) };
        let owners = self.parts.registry.snapshot().owners(script, &site.base).map_err(|manifest| {
            let manifest = printable(&manifest.to_string_lossy());
            let message = "The script may not be run: it belongs to a tool that is not loaded, and what that denies is \
                           not known.";
            Fault::new(Kind::SecurityError, message)
                .person(format!("{manifest} is not loaded (`toolhost check` says why): mend it, or take it away"))
        })?;
        Ok(owners.iter().map(|tool| (tool.manifest.clone(), tool.site.clone())).collect())
    }
}

/// The tools that run scripts ask for a folder (`.cache`) beside each script. Where this host cannot make it, the
/// script runs without.
fn leave_out_folders(decision: &mut policy::Decision) {
    let Ok(shape) = &mut decision.shape else { return };
    let lost: Vec<policy::Grant> =
        shape.grants.iter().filter(|grant| sandbox::grants::cannot_be_made(grant, shape)).cloned().collect();
    for grant in &lost {
        let words = format!("narrowed: write {}: it is not there, and cannot be made beside the script", grant.asked);
        decision.notes.all.push(words.clone());
        decision.notes.told.push(words);
    }
    if !lost.is_empty() {
        Arc::make_mut(shape).grants.retain(|grant| !lost.contains(grant));
    }
}

/// The input, held to the parameters of every owner. If there is one owner, its defaults are filled in.
async fn fits_owners(owners: &[Owner], script: &method::Script, came: Instant) -> Result<Value, Fault> {
    let limit = quantity::Limit::TimeoutMs.house_default();
    let limit = Duration::from_millis(script.timeout_ms.unwrap_or(limit).min(limit));
    let until = apart::Until { began: came, limit };
    let mut filled = Vec::new();
    for (manifest, _) in owners {
        let long = manifest.parameters.as_ref().is_some_and(|schema| schema.takes_long(&script.input));
        let (own, input) = (manifest.clone(), script.input.clone());
        let checked = until.run(long, move || arguments::check(&own, input, false)).await?;
        filled.push(checked.map_err(|fault| {
            let whose = format!("inputData answers to the parameters of {}, whose script this is.", manifest.id);
            let details = fault.details.iter().fold(whose, |whose, details| format!("{whose}\n{details}"));
            fault.details(details)
        })?);
    }
    Ok(if filled.len() == 1 { filled.remove(0) } else { script.input.clone() })
}

/// The secrets of a run: what its owners' parameters mark in the input, and the whole environment.
fn secrets(owners: &[Owner], script: &method::Script) -> Event {
    let schemas = owners.iter().filter_map(|(manifest, _)| manifest.parameters.as_ref());
    let schemas = schemas.filter(|schema| schema.may_hide).map(|schema| schema.raw.clone()).collect();
    let env = script.env.values().cloned().collect();
    Event::Script { schemas, input: Hidden(script.input.clone()), env: Hidden(env) }
}

/// Source text lies nowhere: it is placed in scratch.
fn nowhere() -> Site {
    Site { manifest: PathBuf::new(), base: PathBuf::new(), script: None, folder: PathBuf::from("/tmp") }
}

/// A call sets only variables that the script's own manifests declare: a program that the script starts may obey any
/// other name (`BASH_ENV`, `GIT_CONFIG_COUNT`), and run what the caller likes.
fn literal(name: &str, value: &str, owners: &[Owner]) -> Result<(), Fault> {
    let declared = |(manifest, _): &Owner| manifest.execution.env.contains_key(name);
    let why = if owners.is_empty() || !owners.iter().all(declared) {
        Some("the script's own manifest does not declare it: execution.env names each with its usual text".to_owned())
    } else if name.len() + value.len() > quantity::MAX_ENV_BYTES {
        Some("is too long".to_owned())
    } else {
        environment::refused(name, value)
    };
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
    let result = format::judge(outcome.ending, &outcome.logs, &outcome.printed);
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
