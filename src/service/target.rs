//! The target of a call: what runs, on which executor, and the whole decision that lets it run.
//!
//! The target is the tool's own script, a function of this process, or the script that the arguments name or bring
//! (`executeScript`, `runCode`). Of a script that is named, the policies, parameters and declared variables of every
//! manifest that it belongs to count too.

use super::breaker::{Attempt, BreakerCall, Breakers};
use super::callers::Rights;
use super::decision_cache::{Decided, DecisionCache};
use super::output::{Client, Questions};
use super::record::CallRecord;
use super::script_call::{ScriptArguments, language_of, language_of_source};
use super::script_digest::Script;
use super::{Service, blocking, requirements};
use crate::base::files::Stamp;
use crate::base::text::printable;
use crate::executor::Executor;
use crate::executor::method::{self, Method, ScriptMethod};
use crate::manifest::{Handler, Manifest, Site, arguments, environment};
use crate::packages::FileStamps;
use crate::{base, fault, policy, quantity, registry, sandbox};
use fault::{Fault, Kind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tool that was found, and what of its call every later stage needs.
pub(super) struct FoundTool {
    /// The tools and rules under which the whole decision is taken.
    pub decisions: Arc<DecisionCache>,
    /// What the caller may do.
    pub rights: Rights,
    pub tool: Arc<registry::Tool>,
    /// What policy decided about the tool itself.
    pub decided: Arc<Decided>,
    /// The time limit that the call asks for.
    pub asked_ms: Option<u64>,
    /// What the tool is refused is kept.
    pub explain: bool,
    /// When the decision was begun, which is when the clock of the call starts, and the call's time limit.
    pub until: blocking::Until,
}

/// What a call leads to, and everything that decided so.
pub(super) struct Target {
    pub found: FoundTool,
    /// The tool, and every other one that what runs belongs to: their limits hold as their rights do.
    pub tools: Vec<String>,
    /// The manifests that a named script belongs to: their digests, and where they lie.
    owners: Vec<(String, Site)>,
    /// What policy decided about what runs.
    pub decided: Arc<Decided>,
    pub executor: Arc<dyn Executor>,
    pub site: Site,
    pub input: Value,
    /// The call's own time limit.
    pub asked_ms: Option<u64>,
    /// For the record. The decision counts what the file is: its times and its inode.
    pub script: Option<Script>,
    stamp: Option<Stamp>,
    /// Source text that comes with the call.
    pub source: Option<String>,
    /// The call's own environment.
    pub env: BTreeMap<String, String>,
    /// The answer is told as an envelope.
    pub enveloped: bool,
}

impl Target {
    /// SHA-256 over the whole decision: who calls and under which rules, which tool, whose script, what it may touch.
    /// Debug text has every member, also those that are added later.
    pub fn digest(&self) -> String {
        let FoundTool { decisions: _, rights, tool, decided, asked_ms, explain, until: _ } = &self.found;
        let tool = (tool.reference(), &tool.manifest.digest, &tool.site, &tool.source);
        let runs = (&self.owners, &self.decided.decision, &self.site, &self.stamp, self.asked_ms);
        let whole = format!("{:?}", (rights, tool, &decided.decision, asked_ms, explain, runs));
        base::sha256_hex(whole.as_bytes())
    }

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
        record.report.asks = Some(questions.clone());
        match asks.iter().find(|ask| !client.can.contains(ask)) {
            None => Ok(()),
            Some(ask) => {
                let message = format!("The tool needs a client that can be asked: {}.", ask.word());
                let details = "It ran, and has not done its work. Call it with an MCP client that offers this.";
                Err(Fault::new(Kind::CapabilityError, message).details(details))
            }
        }
    }

    /// Whether calls of what runs are held back: the script, service or method, whatever tool names it.
    pub fn attempt(&self, breakers: &Arc<Breakers>, about_to_run: bool) -> Result<Attempt, Fault> {
        let FoundTool { rights, tool, .. } = &self.found;
        let script = self.site.script.as_deref();
        let runs = match &tool.manifest.handler {
            _ if script.is_some() => script.map(|script| script.to_string_lossy().into_owned()).unwrap_or_default(),
            Handler::ServiceMethod { service, method, .. } => format!("{service}.{method}"),
            Handler::ToolService(remote) => format!("service {}", remote.service),
            _ => tool.reference(),
        };
        let named = script.filter(|_| self.enveloped);
        let named = named.map(|script| script.strip_prefix(&self.site.base).unwrap_or(script).to_string_lossy());
        let shown = named.map_or_else(|| tool.reference(), |path| format!("{} {}", tool.reference(), printable(&path)));
        let (caller, principal) = (rights.caller.user.clone(), rights.principal.clone());
        let (is_own, rule) = (self.source.is_some(), rights.breaker());
        breakers.enter(BreakerCall { caller, principal, tool: shown, runs, is_own, rule }, about_to_run)
    }
}

/// A manifest that the script belongs to, and where it lies.
type Owner = (Arc<Manifest>, Site);

impl Service {
    /// The target of one call. The record has policy's decision about it by then.
    pub(super) async fn target(
        &self,
        found: FoundTool,
        input: Value,
        record: &mut CallRecord,
    ) -> Result<Target, Fault> {
        let FoundTool { tool, decided, asked_ms, .. } = &found;
        let (decided, asked_ms) = (decided.clone(), *asked_ms);
        let handler = &tool.manifest.handler;
        let method = match handler {
            Handler::ServiceMethod { .. } => Some(self.parts.executors.methods.find(handler)),
            _ => None,
        };
        let script = match &method {
            Some(Ok(Method::Script(script))) => Some(*script),
            _ => None,
        };
        record.report.speaks_envelope = script.is_some();
        let notes = match script {
            // The script is decided about below; these notes are the tool's.
            Some(_) => policy::Notes::default(),
            None => policy::call_notes(&decided.decision, asked_ms),
        };
        record.decided(&decided.decision, notes);
        not_refused(&decided.decision)?;
        method.transpose()?;
        if let Some(script) = script {
            let handler = handler.clone();
            let target = self.script_target(script, found, input, record).await;
            return target.map_err(|fault| method::renamed_back(&handler, fault));
        }
        Ok(Target {
            tools: vec![tool.manifest.id.clone()],
            executor: self.executor(handler)?,
            owners: Vec::new(),
            script: self.scripts.of(&decided.decision),
            stamp: stamp(&decided.decision),
            decided,
            site: tool.site.clone(),
            input,
            asked_ms,
            source: None,
            env: BTreeMap::new(),
            enveloped: false,
            found,
        })
    }

    /// The script that a call names, or the source that it brings. A path is judged before anything else about its
    /// script is looked at.
    async fn script_target(
        &self,
        method: ScriptMethod,
        found: FoundTool,
        input: Value,
        record: &mut CallRecord,
    ) -> Result<Target, Fault> {
        let FoundTool { decisions, rights, tool, asked_ms, until, .. } = &found;
        let handler = &tool.manifest.handler;
        let fixed = match handler {
            Handler::ServiceMethod { language, .. } => *language,
            _ => None,
        };
        let given = ScriptArguments::read(method, method::renamed(handler, input))?;
        let (site, language, source) = match method {
            ScriptMethod::Execute => {
                let site = self.located(&given.script, &decisions.snapshot, |owners| {
                    may_run(owners, rights, &given.script).inspect_err(|_| record.denied_by = Some(rights.name()))
                });
                let site = site.map_err(|fault| not_there(fault, rights, &given.script, record))?;
                let language = language_of(fixed, given.language, &given.script)?;
                (site, language, None)
            }
            ScriptMethod::RunCode => {
                (nowhere(), language_of_source(fixed, given.language)?, Some(given.script.clone()))
            }
        };
        let owners = owners_of(&decisions.snapshot, &site)?;
        // First the secrets of the run, so that whatever is said about it is masked.
        let schemas = owners.iter().filter_map(|(manifest, _)| manifest.parameters.as_ref());
        let schemas = schemas.filter(|schema| schema.may_hide).map(|schema| &schema.raw);
        record.script_found(schemas, &given.input);
        let asked_ms = given.timeout_ms.into_iter().chain(*asked_ms).min();
        let until = blocking::Until::usual(until.began, asked_ms);
        let input = fits_owners(&owners, given.input, until).await?;
        may_bring(&owners, rights, &given.script, &input).inspect_err(|_| record.denied_by = Some(rights.name()))?;
        let (target, machine) = (policy::RunTarget { site: site.clone(), language }, &decisions.rules.machine);
        let decision = policy::decide_run(&target, &tool.manifest, &owners, &decisions.policies, machine);
        let guest = owners.iter().any(|(_, own)| decisions.snapshot.is_guest(&own.manifest));
        let mut decision = with_packages(decision, target, guest, decisions.clone(), until).await?;
        leave_out_folders(&mut decision);
        record.decided(&decision, notes(&decision, asked_ms, &given.env));
        not_refused(&decision)?;
        given.env.iter().try_for_each(|(name, value)| literal(name, value, &owners))?;
        env_fits(&given.env)?;
        let shape_digest = decision.shape.as_ref().map(|shape| shape.digest()).unwrap_or_default();
        Ok(Target {
            tools: tools_of(&tool.manifest, &owners),
            executor: self.script_executor(language)?,
            owners: owners.into_iter().map(|(own, site)| (own.digest.clone(), site)).collect(),
            script: self.scripts.of(&decision),
            stamp: stamp(&decision),
            decided: Arc::new(Decided { decision, shape_digest }),
            site,
            input,
            asked_ms,
            source,
            env: given.env,
            enveloped: true,
            found,
        })
    }

    /// Where the script of a path lies, if a call may run what lies there. `may`: whether its caller may, by its owners.
    fn located(
        &self,
        script_path: &str,
        snapshot: &registry::Snapshot,
        may: impl FnOnce(&[Owner]) -> Result<(), Fault>,
    ) -> Result<Site, Fault> {
        let site = registry::scripts::resolve(&self.parts.scripts, None, script_path)?;
        let Some(script) = site.script.as_deref() else { return Ok(site) };
        let owners = owners_of(snapshot, &site)?;
        may(&owners)?;
        self.parts.audit.ledger().is_planted(script, &snapshot.written)?;
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

/// The tool that was called, and those that own what runs.
fn tools_of(tool: &Manifest, owners: &[Owner]) -> Vec<String> {
    let mut tools = vec![tool.id.clone()];
    let others = owners.iter().map(|(manifest, _)| &manifest.id);
    others.for_each(|id| {
        if !tools.contains(id) {
            tools.push(id.clone())
        }
    });
    tools
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
async fn fits_owners(owners: &[Owner], given: Value, until: blocking::Until) -> Result<Value, Fault> {
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
    let named = |allowed: &policy::Allowance| allowed.as_ref().is_ok_and(|allowed| allowed.lock_file.is_some());
    let long = decision.package_rules.values().any(named)
        || site.script.as_deref().is_some_and(|script| FileStamps::of(script).is_long());
    let added = move || {
        requirements::add(&mut decision, &site, (language, true), guest, &decisions.snapshot, &decisions.rules.machine);
        decision
    };
    until.run(long, added).await
}

/// What tells the script's file from every other one.
fn stamp(decision: &policy::Decision) -> Option<Stamp> {
    Stamp::at(decision.shape.as_ref().ok()?.script.as_deref()?).ok()
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
