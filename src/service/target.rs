//! The target of a call: what runs, for whom policy decides, and on which executor.
//!
//! For: the road. In: a tool and its checked arguments. Out: a target: the tool's own script, a function of this
//! process, or the script that the arguments name or bring (`executeScript`, `runCode`).
//! Never: takes a grant from a call's arguments; passes over a manifest that the script belongs to: policies,
//! parameters and declared variables of all of them hold here too.

use super::breaker::{Attempt, Breakers};
use super::call_record::CallRecord;
use super::callers::Rights;
use super::decision_cache::{Decided, DecisionCache};
use super::script_call::{Given, language_of, language_of_source};
use super::script_digest::Script;
use super::shapes::{Client, Questions};
use super::{Service, blocking, requirements};
use crate::base::files::Stamp;
use crate::base::text::printable;
use crate::executor::Executor;
use crate::executor::method::{self, Method, ScriptMethod};
use crate::manifest::{Handler, Manifest, Site, arguments, environment};
use crate::packages::Seen;
use crate::{fault, policy, quantity, registry, sandbox};
use fault::{Fault, Kind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A tool that was found, and what of its call every later stage needs.
pub(super) struct Found {
    /// What the caller may do.
    pub rights: Rights,
    pub tool: Arc<registry::Tool>,
    /// What policy decided about the tool itself.
    pub decided: Arc<Decided>,
    /// The time limit that the call asks for.
    pub asked_ms: Option<u64>,
    /// What the tool is refused is kept.
    pub explain: bool,
    /// When it was the call's turn: the one clock of the call runs from there.
    pub came: Instant,
}

/// What a call leads to.
pub(super) struct Target {
    /// What policy decided about what runs.
    pub decided: Arc<Decided>,
    pub executor: Arc<dyn Executor>,
    pub site: Site,
    pub input: Value,
    /// The call's own time limit.
    pub asked_ms: Option<u64>,
    /// The script as it is now, before anybody is asked about the call.
    pub script: Option<Script>,
    /// Source text that comes with the call.
    pub source: Option<String>,
    /// The call's own environment.
    pub env: BTreeMap<String, String>,
    /// The answer is told as an envelope.
    pub enveloped: bool,
    /// The script's file, as it was when a person was asked about the call.
    pub shown: Option<Stamp>,
}

impl Target {
    /// Whether the tool may ask its client anything.
    pub fn may_ask(&self) -> bool {
        !self.enveloped && !self.decided.decision.asks().is_empty()
    }

    /// Keeps the tool's questions for whoever called; refuses those that policy does not let it ask, or that this client
    /// cannot be asked.
    pub fn asks(&self, questions: &Questions, client: &Client, record: &mut CallRecord) -> Result<(), Fault> {
        let asks = questions.asks().unwrap_or_default();
        let granted = self.decided.decision.asks();
        if let Some(ask) = asks.iter().find(|ask| !granted.contains(ask)) {
            let message = format!("The tool asked its client for {}, which it may not.", ask.word());
            let word = format!("ask:{}", ask.word());
            let person = format!("its manifest must require the capability `{word}`, and a policy grant it");
            return Err(Fault::new(Kind::SecurityError, message).person(person));
        }
        record.asks = Some(questions.clone());
        match asks.iter().find(|ask| !client.can.contains(ask)) {
            None => Ok(()),
            Some(ask) => {
                let message = format!("The tool needs a client that can be asked: {}.", ask.word());
                let details = "It ran, and has not done its work. Call it with an MCP client that offers this.";
                Err(Fault::new(Kind::CapabilityError, message).details(details))
            }
        }
    }

    /// Whether calls of what runs are held back. Source text is the caller's own, and is never.
    pub fn attempt(&self, found: &Found, breakers: &Arc<Breakers>) -> Result<Option<Attempt>, Fault> {
        if self.source.is_some() {
            return Ok(None);
        }
        let own = Arc::ptr_eq(&self.decided, &found.decided);
        let script = self.site.script.as_ref().filter(|_| !own);
        let script = script.map(|script| script.strip_prefix(&self.site.base).unwrap_or(script).to_string_lossy());
        let tool = found.tool.reference();
        let runs = script.map_or_else(|| tool.clone(), |script| format!("{tool} {}", printable(&script)));
        breakers.enter((&found.rights.caller.user, &found.rights.through), &runs, found.rights.breaker()).map(Some)
    }
}

/// A manifest that the script belongs to, and where it lies.
type Owner = (Arc<Manifest>, Site);

impl Service {
    /// The target of one call. The record has policy's decision about it by then.
    pub(super) async fn target(&self, found: &Found, input: Value, record: &mut CallRecord) -> Result<Target, Fault> {
        let Found { tool, decided, asked_ms, .. } = found;
        let handler = &tool.manifest.handler;
        let method = match handler {
            Handler::ServiceMethod { .. } => Some(self.parts.executors.methods.find(handler)),
            _ => None,
        };
        let script = match &method {
            Some(Ok(Method::Script(script))) => Some(*script),
            _ => None,
        };
        record.enveloped = script.is_some();
        let notes = match script {
            // The script is decided about below; these notes are the tool's.
            Some(_) => policy::Notes::default(),
            None => policy::call_notes(&decided.decision, *asked_ms),
        };
        record.decided(&decided.decision, notes);
        not_refused(&decided.decision)?;
        method.transpose()?;
        if let Some(script) = script {
            let target = self.script_target(script, found, input, record).await;
            return target.map_err(|fault| method::renamed_back(handler, fault));
        }
        Ok(Target {
            executor: self.executor(handler)?,
            script: self.scripts.of(&decided.decision),
            decided: decided.clone(),
            site: tool.site.clone(),
            input,
            asked_ms: *asked_ms,
            source: None,
            env: BTreeMap::new(),
            enveloped: false,
            shown: None,
        })
    }

    /// The script that a call names, or the source that it brings. A path is judged before anything else about its
    /// script is looked at.
    async fn script_target(
        &self,
        method: ScriptMethod,
        found: &Found,
        input: Value,
        record: &mut CallRecord,
    ) -> Result<Target, Fault> {
        let Found { tool, asked_ms, came, .. } = found;
        let handler = &tool.manifest.handler;
        let fixed = match handler {
            Handler::ServiceMethod { language, .. } => *language,
            _ => None,
        };
        let given = Given::read(method, method::renamed(handler, input))?;
        let (site, language, source) = match method {
            ScriptMethod::Execute => {
                let site = self.located(&given.script_path, |owners| {
                    may_run(owners, &found.rights, &given.script_path)
                        .inspect_err(|_| record.denied_by = Some(found.rights.name()))
                });
                let site = site.map_err(|fault| not_there(fault, &found.rights, &given.script_path, record))?;
                let language = language_of(fixed, given.language, &given.script_path)?;
                (site, language, None)
            }
            ScriptMethod::RunCode => (nowhere(), language_of_source(fixed, given.language)?, Some(given.code.clone())),
        };
        let owners = owners_of(&self.parts.registry.snapshot(), &site)?;
        // First the secrets of the run, so that whatever is said about it is masked.
        let schemas = owners.iter().filter_map(|(manifest, _)| manifest.parameters.as_ref());
        let schemas = schemas.filter(|schema| schema.may_hide).map(|schema| &schema.raw);
        record.script_found(schemas, &given.input, &given.env.values().map(String::as_str).collect::<Vec<_>>());
        let asked_ms = given.timeout_ms.into_iter().chain(*asked_ms).min();
        let input = fits_owners(&owners, given.input, asked_ms, *came).await?;
        // The check may have taken long: policy decides by the tools and rules of now.
        let decisions = self.decisions()?;
        let same = |now: &[Owner]| now.iter().map(|(own, _)| &own.digest).eq(owners.iter().map(|(own, _)| &own.digest));
        if !same(&owners_of(&decisions.snapshot, &site)?) {
            let message = "The tools of this host changed while the arguments were checked.";
            return Err(Fault::new(Kind::InternalError, message).retryable());
        }
        let rights = decisions.rights(&found.rights.caller, None);
        may_bring(&owners, &rights, &given.script_path, &input)
            .inspect_err(|_| record.denied_by = Some(rights.name()))?;
        let (target, machine) = (policy::RunTarget { site: site.clone(), language }, &decisions.rules.machine);
        let decision = policy::decide_run(&target, &tool.manifest, &owners, &decisions.policies, machine);
        let guest = owners.iter().any(|(_, own)| decisions.snapshot.is_guest(&own.manifest));
        let until = blocking::Until::usual(*came, asked_ms);
        let mut decision = with_packages(decision, target, guest, decisions, until).await?;
        leave_out_folders(&mut decision);
        record.decided(&decision, notes(&decision, asked_ms, &given.env));
        not_refused(&decision)?;
        given.env.iter().try_for_each(|(name, value)| literal(name, value, &owners))?;
        env_fits(&given.env)?;
        let shape_digest = decision.shape.as_ref().map(|shape| shape.digest()).unwrap_or_default();
        Ok(Target {
            executor: self.script_executor(language)?,
            script: self.scripts.of(&decision),
            decided: Arc::new(Decided { decision, shape_digest }),
            site,
            input,
            asked_ms,
            source,
            env: given.env,
            enveloped: true,
            shown: None,
        })
    }

    /// Where the script of a path lies, if a call may run what lies there. `may`: whether its caller may, by its owners.
    fn located(&self, script_path: &str, may: impl FnOnce(&[Owner]) -> Result<(), Fault>) -> Result<Site, Fault> {
        let site = registry::scripts::resolve(&self.parts.scripts, None, script_path)?;
        let Some(script) = site.script.as_deref() else { return Ok(site) };
        let snapshot = self.parts.registry.snapshot();
        let owners = owners_of(&snapshot, &site)?;
        may(&owners)?;
        self.parts.audit.ledger().is_planted(script, &snapshot)?;
        // A host that runs as root could show the tool any file; a private one must be named in a manifest.
        let closed = |path: &Path, bit| path.symlink_metadata().is_ok_and(|facts| facts.mode() & bit == 0);
        let private = || {
            let folder = script.ancestors().skip(1).take_while(|above| *above != site.base).find(|at| closed(at, 0o1));
            folder.map(|at| (at, "o+x")).or_else(|| closed(script, 0o4).then_some((script, "o+r")))
        };
        if owners.is_empty()
            && sandbox::identity::real_root()
            && let Some((path, right)) = private()
        {
            let shown = printable(&path.to_string_lossy());
            let mend =
                format!("{shown} is closed to others: `chmod {right} '{shown}'`, or name the script in a manifest");
            let message = "The script may not be run: this host runs as root, and only the file's owner may read it.";
            return Err(Fault::new(Kind::SecurityError, message).person(mend));
        }
        Ok(site)
    }
}

/// Every manifest that this script belongs to: its policy, parameters and approval hold here too.
fn owners_of(snapshot: &registry::Snapshot, site: &Site) -> Result<Vec<Owner>, Fault> {
    let Some(script) = &site.script else { return Ok(Vec::new()) };
    let owners = snapshot.owners(script, &site.base).map_err(|manifest| {
        let manifest = printable(&manifest.to_string_lossy());
        let message = "The script may not be run: it belongs to a tool that is not loaded, and what that denies is \
                       not known.";
        Fault::new(Kind::SecurityError, message)
            .person(format!("{manifest} is not loaded (`toolhost check` says why): mend it, or take it away"))
    })?;
    Ok(owners.iter().map(|tool| (tool.manifest.clone(), tool.site.clone())).collect())
}

/// A script that belongs to a tool which its caller may not call is not there.
fn may_run(owners: &[Owner], rights: &Rights, script_path: &str) -> Result<(), Fault> {
    match owners.iter().find(|(manifest, _)| !rights.may_call(&manifest.id)) {
        None => Ok(()),
        Some((manifest, _)) => Err(Fault {
            person: Some(format!("this script is its own: {}", rights.withheld(&manifest.id))),
            ..registry::scripts::not_found(script_path, &[])
        }),
    }
}

/// Whoever may call some tools only is told of no link, pipe or closed file at a path, which would tell of the others.
/// What a path says of itself is no secret.
fn not_there(fault: Fault, rights: &Rights, script_path: &str, record: &mut CallRecord) -> Fault {
    // No policy decided this: a path that no script may have, or a script that nobody may call by it.
    if fault.kind == Kind::SecurityError {
        record.denied_by.get_or_insert_with(|| "script".to_owned());
    }
    match rights.are_limited() && !fault.by_caller {
        true => Fault { person: fault.person, ..registry::scripts::not_found(script_path, &[]) },
        false => fault,
    }
}

/// The input answers to what the caller may bring to each tool that the script belongs to.
fn may_bring(owners: &[Owner], rights: &Rights, script_path: &str, input: &Value) -> Result<(), Fault> {
    may_run(owners, rights, script_path)?;
    owners.iter().try_for_each(|(manifest, _)| rights.accepts(&manifest.id, input))
}

/// What the person is told of a run beside its decision.
fn notes(decision: &policy::Decision, asked_ms: Option<u64>, env: &BTreeMap<String, String>) -> policy::Notes {
    let mut notes = policy::call_notes(decision, asked_ms);
    if !env.is_empty() {
        let names: Vec<String> = env.keys().map(|name| name.escape_debug().to_string()).collect();
        notes.all.push(format!("environment: set by the call: {}", names.join(", ")));
    }
    notes
}

/// What policy refuses is refused before this host looks at how to run it.
fn not_refused(decision: &policy::Decision) -> Result<(), Fault> {
    decision.refused().map_or(Ok(()), |fault| Err(fault.clone()))
}

/// The tools that run scripts ask for a folder (`.cache`) beside each script. Where this host cannot make it, the
/// script runs without.
fn leave_out_folders(decision: &mut policy::Decision) {
    let Ok(shape) = &mut decision.shape else { return };
    let lost: Vec<policy::Grant> =
        shape.grants.iter().filter(|grant| sandbox::grants::cannot_be_made(grant, shape)).cloned().collect();
    for grant in &lost {
        let words = format!("narrowed: write {}: it is not there, and cannot be made beside the script", grant.asked);
        decision.notes.narrowed(words);
    }
    if !lost.is_empty() {
        Arc::make_mut(shape).grants.retain(|grant| !lost.contains(grant));
    }
}

/// The input, held to the parameters of every owner. If there is one owner, its defaults are filled in.
async fn fits_owners(owners: &[Owner], given: Value, asked_ms: Option<u64>, came: Instant) -> Result<Value, Fault> {
    let until = blocking::Until::usual(came, asked_ms);
    let mut filled = Vec::new();
    for (manifest, _) in owners {
        let long = manifest.parameters.as_ref().is_some_and(|schema| schema.takes_long(&given));
        let (own, input) = (manifest.clone(), given.clone());
        let checked = until.run(long, move || arguments::check(&own, input, false)).await?;
        filled.push(checked.map_err(|fault| {
            let whose = format!("inputData answers to the parameters of {}, whose script this is.", manifest.id);
            let details = fault.details.iter().fold(whose, |whose, details| format!("{whose}\n{details}"));
            fault.details(details)
        })?);
    }
    Ok(if filled.len() == 1 { filled.remove(0) } else { given })
}

/// The decision with what the files beside the script ask for; long ones hold up no other call.
async fn with_packages(
    mut decision: policy::Decision,
    policy::RunTarget { site, language }: policy::RunTarget,
    guest: bool,
    decisions: Arc<DecisionCache>,
    until: blocking::Until,
) -> Result<policy::Decision, Fault> {
    let long = site.script.as_deref().is_some_and(|script| Seen::of(script).is_long());
    let added = move || {
        requirements::add(&mut decision, &site, language, guest, &decisions.snapshot, &decisions.rules.machine);
        decision
    };
    until.run(long, added).await
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

/// All variables of a call together have the room that those of a manifest have.
fn env_fits(env: &BTreeMap<String, String>) -> Result<(), Fault> {
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if bytes <= quantity::MAX_ENV_BYTES {
        return Ok(());
    }
    let message = format!("The environment variables of a call may have {} bytes in all.", quantity::MAX_ENV_BYTES);
    Err(Fault::new(Kind::SecurityError, message).details("put large data into inputData".to_owned()).by_caller())
}
