//! The target of a call: what runs, on which executor, and the whole decision that lets it run.
//!
//! The target is the tool's own script, a function of this process, or the script that the
//! arguments name or hold (`executeScript`, `runCode`). Of a script that is named, the policies,
//! parameters and declared variables of every manifest that it belongs to count too.

use super::artifacts::FileRecord;
use super::breaker::{Attempt, BreakerCall, Breakers};
use super::callers::Rights;
use super::catalog::Catalog;
use super::client_call::{ClientCall, ClientRuns};
use super::decision_cache::{CachedDecision, DecisionCache};
use super::found::{CheckedArguments, FoundTool};
use super::ledger::Ledger;
use super::output::{AskableClient, Questions};
use super::record::CallRecord;
use super::redaction::Redaction;
use super::report::CallResult;
use super::requirements;
use super::script::{ScriptArguments, SkillCall, language_of, language_of_source};
use super::sessions;
use crate::base::semaphore::Permit;
use crate::base::text::printable;
use crate::executor::method::{self, Method, ScriptMethod};
use crate::executor::{CallDeadline, Executor, SessionId};
use crate::manifest::{ClientTool, Handler, Language, Manifest, ToolPaths, arguments, environment};
use crate::packages;
use crate::policy::InputFile;
use crate::quantity::{Limit, MIB};
use crate::{base, executor, fault, policy, quantity, registry, runtimes, sandbox};
use fault::{Fault, Kind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of the answer of a prompt or resource, whose file has at most half as many.
const MAX_DOCUMENT_BYTES: u64 = 8 * MIB;

/// What a call runs, and everything that decided that.
pub(super) struct Decided {
    pub found: FoundTool,
    /// The tool, and all other tools that own the script: their limits apply, as their rights do.
    pub tools: Vec<String>,
    /// The manifests that a named script belongs to, and where they lie.
    owners: Vec<Owner>,
    /// What policy decided about what runs.
    pub decided: Arc<CachedDecision>,
    pub runner: Runner,
    pub code: Code,
    pub input: Value,
    pub redaction: Arc<Redaction>,
    pub timeout_ms: Option<u64>,
    pub files: Files,
    /// The answer is an envelope.
    pub enveloped: bool,
}

/// What runs a call.
pub(super) enum Runner {
    Here(Arc<dyn Executor>),
    Client(HandedTool),
}

/// A tool of which the client is handed the call.
pub(super) struct HandedTool {
    what: ClientTool,
    /// By which its model knows the tool.
    name: String,
}

impl HandedTool {
    /// The call, with its checked arguments.
    pub fn hand_out(&self, found: &FoundTool, arguments: Value) -> ClientCall {
        let arguments = match arguments {
            Value::Object(arguments) => self.what.in_form(arguments),
            _ => Map::new(),
        };
        ClientCall {
            id: found.call.clone(),
            tool: found.tool.manifest.id.clone(),
            name: self.name.clone(),
            what: self.what.clone(),
            arguments,
        }
    }
}

/// The files of a call.
#[derive(Default)]
pub(super) struct Files {
    pub all: Vec<InputFile>,
    pub records: Vec<FileRecord>,
    /// Their memory.
    pub _charged: Option<Permit>,
}

/// The code that runs, and the variables that the call sets for it.
pub(super) struct Code {
    pub site: ToolPaths,
    /// The file that runs, as it was read for this decision.
    pub script: Option<Arc<policy::Script>>,
    pub source: Option<String>,
    /// The name of the session in which it goes on.
    pub session: Option<String>,
    /// The tools that it may call.
    pub tools: Vec<Arc<registry::Tool>>,
    pub env: BTreeMap<String, String>,
    /// Words after the script.
    pub words: Vec<String>,
}

impl Decided {
    /// SHA-256 over the whole decision: who calls and under which rules, which tool, whose script,
    /// what it may touch. Debug text has every member, also those that are added later.
    pub fn digest(&self) -> String {
        self.digest_with([self.found.timeout_ms, self.timeout_ms])
    }

    /// As `digest`, for calls that differ in what time they have.
    pub fn digest_without_times(&self) -> String {
        self.digest_with([None; 2])
    }

    fn digest_with(&self, times: [Option<u64>; 2]) -> String {
        let FoundTool {
            call: _,
            label: _,
            decisions: _,
            rights,
            tool,
            alias,
            decided,
            timeout_ms: _,
            at_machine: _,
            explain,
            deadline: _,
        } = &self.found;
        let alias = alias.as_ref();
        let tool = (
            tool.reference(),
            &tool.manifest.digest,
            &tool.site,
            &tool.source,
            alias.map(|alias| (alias.reference(), &alias.manifest.digest)),
        );
        let script = self.code.script.as_ref();
        let script = script.map(|script| &script.file.digest);
        let owners = self.owners.iter().map(|(own, site)| (&own.digest, site));
        let runs = (
            owners.collect::<Vec<_>>(),
            &self.decided.decision,
            &self.code.site,
            script,
            times[1],
        );
        let whole = format!(
            "{:?}",
            (rights, tool, &decided.decision, times[0], explain, runs)
        );
        base::sha256_hex(whole.as_bytes())
    }

    /// All tools that the call answers to, each `id@version`.
    pub fn references(&self) -> Vec<String> {
        let found = self.found.alias.iter().chain([&self.found.tool]);
        let owners = self.owners.iter();
        let owners = owners.map(|(own, _)| format!("{}@{}", own.id, own.version));
        found.map(|tool| tool.reference()).chain(owners).collect()
    }

    /// Where its files lie: of a document, in the approved copy.
    pub fn site(&self) -> ToolPaths {
        let site = self.code.site.clone();
        let code = self.decided.decision.approved_code();
        let code = code.filter(|_| self.found.tool.manifest.document().is_some());
        ToolPaths {
            folder: code.map_or(site.folder.clone(), |code| code.place_of(&site.folder)),
            ..site
        }
    }

    /// Most bytes of the answer. A document is a file of its author, which has a limit of its own.
    pub fn output_bytes(&self) -> u64 {
        let limit = self.decided.decision.limit(Limit::OutputBytes);
        let limit = limit.map_or(Limit::OutputBytes.built_in_default(), |limit| {
            limit.effective
        });
        if self.found.tool.manifest.document().is_some() {
            limit.max(MAX_DOCUMENT_BYTES)
        } else {
            limit
        }
    }

    /// The session in which the code goes on.
    pub fn session(&self) -> Option<SessionId> {
        let FoundTool { rights, tool, .. } = &self.found;
        let shape = self.decided.decision.shape.as_ref().ok()?;
        self.code.session.as_ref().map(|name| SessionId {
            principal: rights.principal.clone(),
            caller: rights.caller.user.clone(),
            tool: tool.reference(),
            language: shape.runtime.language,
            name: name.clone(),
        })
    }

    pub fn may_ask(&self) -> bool {
        !self.enveloped && self.decided.decision.may_ask()
    }

    /// The tool's questions as the result of its call. Refuses questions that policy does not
    /// allow.
    pub fn asks(&self, questions: Questions, client: &AskableClient) -> Result<CallResult, Fault> {
        if !self.decided.decision.may_ask() {
            let message = "The tool may not ask its client.";
            let person = "its manifest must require the capability `ask:elicitation`, and a policy \
                grant it";
            return Err(Fault::new(Kind::SecurityError, message).person(person));
        }
        if client.is_askable {
            return Ok(CallResult::Questions(questions));
        }
        let message = "The tool needs a client that can be asked: elicitation.";
        let details = "The tool ran, and has not done its work. Call it with an MCP client that \
            offers this.";
        let fault = Fault::new(Kind::CapabilityError, message).details(details);
        Ok(CallResult::Unaskable(questions, fault))
    }

    /// Asks the breaker of what runs: the script, service or method, whatever tool names it.
    pub fn attempt(&self, breakers: &Arc<Breakers>, about_to_run: bool) -> Result<Attempt, Fault> {
        let FoundTool { rights, tool, .. } = &self.found;
        let script = self.code.site.script.as_deref();
        let runs = match &tool.manifest.handler {
            _ if script.is_some() => script
                .map(|script| script.to_string_lossy().into_owned())
                .unwrap_or_default(),
            Handler::ServiceMethod {
                service, method, ..
            } => format!("{service}.{method}"),
            Handler::ToolService(remote) => format!("service {}", remote.service),
            _ => tool.reference(),
        };
        let named = script.filter(|_| self.enveloped);
        let named = named.map(|script| {
            script
                .strip_prefix(&self.code.site.base)
                .unwrap_or(script)
                .to_string_lossy()
        });
        let shown = named.map_or_else(
            || tool.reference(),
            |path| format!("{} {}", tool.reference(), printable(&path)),
        );
        let caller = rights.caller.user.clone();
        let principal = rights.principal.clone();
        let shape = self.decided.decision.shape.as_ref().ok();
        let server = shape.and_then(|shape| shape.mcp.as_ref());
        let has_own_server = server.is_some_and(|it| !it.shared);
        let is_own = self.code.source.is_some() || has_own_server;
        let rule = rights.breaker();
        breakers.enter(
            BreakerCall {
                caller,
                principal,
                tool: shown,
                runs,
                is_own,
                rule,
            },
            about_to_run,
        )
    }
}

type Owner = (Arc<Manifest>, ToolPaths);

/// A script that a call names or holds.
struct FoundScript {
    site: ToolPaths,
    /// Every manifest that it belongs to.
    owners: Vec<Owner>,
    language: Language,
    source: Option<String>,
}

/// Finds what calls run.
pub(super) struct Targets<'a> {
    pub catalog: &'a Catalog,
    pub ledger: &'a Ledger,
    pub client: &'a ClientRuns,
}

impl Targets<'_> {
    /// Finds the target of one call, and adds policy's decision about it to the record.
    pub async fn decide(
        &self,
        found: FoundTool,
        arguments: CheckedArguments,
        record: &mut CallRecord,
    ) -> Result<Decided, Fault> {
        let FoundTool {
            tool,
            decided,
            timeout_ms,
            ..
        } = &found;
        let mut decided = decided.clone();
        let timeout_ms = *timeout_ms;
        let handler = &tool.manifest.handler;
        let method = match handler {
            Handler::ServiceMethod { .. } => Some(self.catalog.methods().find(handler)),
            _ => None,
        };
        let script = match &method {
            Some(Ok(Method::Script(script))) => Some(*script),
            _ => None,
        };
        record.report.delivery.speaks_envelope = script.is_some();
        let notes = match script {
            // The script is decided about below; these notes are the tool's.
            Some(_) => policy::Notes::default(),
            None => policy::call_notes(&decided.decision, timeout_ms),
        };
        record.decided(&decided.decision, notes);
        // What policy refuses is refused before this host looks at how to run it.
        decided
            .decision
            .refused()
            .map_or(Ok(()), |fault| Err(fault.clone()))?;
        method.transpose()?;
        if let Some(script) = script {
            let handler = handler.clone();
            let target = self.script_target(script, found, arguments, record).await;
            return target.map_err(|fault| method::restore_names(&handler, fault));
        }
        let skill = match handler {
            Handler::Skill(skill) => Some(SkillCall::read(skill, &arguments.input)?),
            _ => None,
        };
        if let Some(call) = &skill {
            decided = self.decide_skill(call, &found, record).await?;
        }
        let runner = match handler {
            Handler::Client(what) => Runner::Client(HandedTool {
                name: self.client.name_of(tool)?,
                what: what.clone(),
            }),
            _ => match &skill {
                Some(call) => Runner::Here(self.catalog.script_executor(call.script.language)?),
                None => Runner::Here(self.catalog.executor(handler)?),
            },
        };
        let script = match &runner {
            Runner::Here(executor) => {
                read_script(&**executor, &decided.decision, &found.deadline).await?
            }
            Runner::Client(_) => None,
        };
        let offered = offered(&found, &decided.decision);
        let site = skill.as_ref().map(|call| call.script.site_in(tool));
        let site = site.unwrap_or_else(|| tool.site.clone());
        let (words, input) = match skill {
            Some(call) => (call.words, call.stdin.into()),
            None => (Vec::new(), arguments.input),
        };
        Ok(Decided {
            tools: found.ids().cloned().collect(),
            runner,
            owners: Vec::new(),
            decided,
            code: Code {
                site,
                script,
                source: None,
                session: None,
                tools: offered,
                env: BTreeMap::new(),
                words,
            },
            input,
            redaction: arguments.redaction,
            timeout_ms,
            files: Files::default(),
            enveloped: false,
            found,
        })
    }

    /// The target for the script that a call names, or the source text that it holds. A path is
    /// checked before anything else about its script.
    async fn script_target(
        &self,
        method: ScriptMethod,
        found: FoundTool,
        CheckedArguments {
            input,
            mut redaction,
            withheld,
            files: _,
        }: CheckedArguments,
        record: &mut CallRecord,
    ) -> Result<Decided, Fault> {
        let FoundTool {
            decisions,
            rights,
            tool,
            timeout_ms,
            deadline,
            ..
        } = &found;
        let handler = &tool.manifest.handler;
        let given = ScriptArguments::read(method, method::rename_inputs(handler, input))?;
        let FoundScript {
            site,
            owners,
            language,
            source,
        } = self.find_script(method, &given, &found, record)?;
        // First the secrets of the run, so that all messages about it are masked.
        let hiding = hiding_schemas(&owners);
        Arc::make_mut(&mut redaction).show_input(withheld, hiding, &given.input);
        record.redacts(&redaction);
        let timeout_ms = given.timeout_ms.into_iter().chain(*timeout_ms).min();
        let usual = CallDeadline::usual(&deadline.principal, timeout_ms);
        let deadline = CallDeadline {
            began: deadline.began,
            ..usual
        };
        let input = fits_owners(&owners, given.input, &deadline).await?;
        let accepted = owners
            .iter()
            .try_for_each(|(manifest, _)| rights.accepts(&manifest.id, &input));
        accepted.inspect_err(|_| record.denied_by = Some(rights.name()))?;
        let target = policy::RunTarget {
            site: site.clone(),
            language,
        };
        let machine = &decisions.rules.machine;
        let decision = policy::decide_run(
            &target,
            &tool.manifest,
            &owners,
            &decisions.policies,
            machine,
        );
        let guest = owners.iter().any(|(_, own)| own.is_guest());
        let mut decision =
            with_packages(decision, target, guest, decisions.clone(), &deadline).await?;
        leave_out_folders(&mut decision);
        let notes = notes_of_run(&decision, timeout_ms, &given.env);
        record.decided(&decision, notes);
        decision
            .refused()
            .map_or(Ok(()), |fault| Err(fault.clone()))?;
        check_env(&given.env, &owners)?;
        if given.session.is_some() {
            sessions::check(&input, language, &decision)?;
        }
        let tools = named(&given.tools, language, offered(&found, &decision), &found)?;
        let executor = self.catalog.script_executor(language)?;
        let script = read_script(&*executor, &decision, &deadline).await?;
        Ok(Decided {
            tools: tools_of(&found, &owners),
            runner: Runner::Here(executor),
            owners,
            decided: Arc::new(decision.into()),
            code: Code {
                site,
                script,
                source,
                session: given.session,
                tools,
                env: given.env,
                words: Vec::new(),
            },
            input,
            redaction,
            timeout_ms,
            files: Files::default(),
            enveloped: true,
            found,
        })
    }

    /// Policy's decision about a script of a skill.
    async fn decide_skill(
        &self,
        call: &SkillCall,
        found: &FoundTool,
        record: &mut CallRecord,
    ) -> Result<Arc<CachedDecision>, Fault> {
        let script = call.script.clone();
        record.runs_script(&script.path);
        let (tool, decisions) = (found.tool.clone(), found.decisions.clone());
        let decide = move || {
            let DecisionCache {
                snapshot,
                policies,
                rules,
                ..
            } = &*decisions;
            requirements::of_skill_script(&tool, &script, snapshot, policies, &rules.machine)
        };
        let decision = found.deadline.run(true, decide).await?;
        record.decided(&decision, policy::call_notes(&decision, found.timeout_ms));
        let refused = decision.refused().cloned();
        refused.map_or_else(|| Ok(Arc::new(decision.into())), Err)
    }

    /// The script that the arguments name, or the source text that they hold.
    fn find_script(
        &self,
        method: ScriptMethod,
        given: &ScriptArguments,
        found: &FoundTool,
        record: &mut CallRecord,
    ) -> Result<FoundScript, Fault> {
        let fixed = match &found.tool.manifest.handler {
            Handler::ServiceMethod { language, .. } => *language,
            _ => None,
        };
        match method {
            ScriptMethod::Execute => {
                let located = self.locate(&given.script, found, record);
                let (site, owners) = located
                    .map_err(|fault| not_there(fault, &found.rights, &given.script, record))?;
                Ok(FoundScript {
                    site,
                    owners,
                    language: language_of(fixed, given.language, &given.script)?,
                    source: None,
                })
            }
            ScriptMethod::RunCode => Ok(FoundScript {
                // Source text has no file of its own: it is placed in scratch.
                site: ToolPaths {
                    manifest: PathBuf::new(),
                    base: PathBuf::new(),
                    script: None,
                    folder: sandbox::CALL_FOLDER.into(),
                    links: Vec::new(),
                },
                owners: Vec::new(),
                language: language_of_source(fixed, given.language)?,
                source: Some(given.script.clone()),
            }),
        }
    }

    /// The place of the script at a path, and the tools that own it, if this caller may run it.
    fn locate(
        &self,
        script_path: &str,
        FoundTool {
            rights, decisions, ..
        }: &FoundTool,
        record: &mut CallRecord,
    ) -> Result<(ToolPaths, Vec<Owner>), Fault> {
        let snapshot = &decisions.snapshot;
        let site = registry::scripts::resolve(&self.catalog.scripts, None, script_path)?;
        let Some(script) = site.script.as_deref() else {
            return Ok((site, Vec::new()));
        };
        let owners = owners_of(snapshot, script, &site.base)?;
        // A script of a tool that the caller may not call does not exist for it.
        if let Some((manifest, _)) = owners
            .iter()
            .find(|(manifest, _)| !rights.may_call(&manifest.id))
        {
            record.denied_by = Some(rights.name());
            let person = Some(format!(
                "this script is its own: {}",
                rights.withheld(&manifest.id)
            ));
            return Err(Fault {
                person,
                ..registry::scripts::not_found(script_path, &[])
            });
        }
        self.ledger.refuse_planted(script, &snapshot.written)?;
        // A host that runs as root could show the tool any file; a private one must be named in a
        // manifest.
        fn closed(path: &Path, bit: u32) -> bool {
            path.symlink_metadata()
                .is_ok_and(|facts| facts.mode() & bit == 0)
        }
        let private = || {
            let folder = script
                .ancestors()
                .skip(1)
                .take_while(|above| *above != site.base)
                .find(|at| closed(at, 0o1));
            folder
                .map(|at| (at, "o+x"))
                .or_else(|| closed(script, 0o4).then_some((script, "o+r")))
        };
        if owners.is_empty()
            && sandbox::identity::real_root()
            && let Some((path, right)) = private()
        {
            let shown = printable(&path.to_string_lossy());
            let fix = format!(
                "{shown} is closed to others: `chmod {right} '{shown}'`, or name the script in a \
                manifest"
            );
            let message = "The script may not be run: this host runs as root, and only the file's \
                owner may read it.";
            return Err(Fault::new(Kind::SecurityError, message).person(fix));
        }
        Ok((site, owners))
    }
}

/// Every manifest that this script belongs to: its policy, parameters and approval hold here too.
fn owners_of(
    snapshot: &registry::Snapshot,
    script: &Path,
    base: &Path,
) -> Result<Vec<Owner>, Fault> {
    let owners = snapshot.owners(script, base).map_err(|manifest| {
        let manifest = printable(&manifest.to_string_lossy());
        let message = "The script may not be run: it belongs to a tool that is not loaded, and \
                       what that denies is not known.";
        Fault::new(Kind::SecurityError, message).person(format!(
            "{manifest} is not loaded (`toolhost check` says why): correct or \
                remove it"
        ))
    })?;
    Ok(owners
        .iter()
        .map(|tool| (tool.manifest.clone(), tool.site.clone()))
        .collect())
}

/// The schemas that mark secrets in the input of a script.
fn hiding_schemas(owners: &[Owner]) -> impl Iterator<Item = &Value> {
    let schemas = owners
        .iter()
        .filter_map(|(manifest, _)| manifest.parameters.as_ref());
    schemas
        .filter(|schema| schema.may_hide)
        .map(|schema| &schema.raw)
}

fn notes_of_run(
    decision: &policy::Decision,
    timeout_ms: Option<u64>,
    env: &BTreeMap<String, String>,
) -> policy::Notes {
    let mut notes = policy::call_notes(decision, timeout_ms);
    if !env.is_empty() {
        notes.all.push(env_note(env));
    }
    notes
}

/// Restricted callers get NotFound for a link, pipe or closed file at a path, which would show
/// other tools. A fault of the path's own text is not hidden.
fn not_there(fault: Fault, rights: &Rights, script_path: &str, record: &mut CallRecord) -> Fault {
    // Policy did not decide this: no script may have such a path, or this script may not be run by
    // its path.
    if fault.kind == Kind::SecurityError {
        record.denied_by = Some("script".to_owned());
    }
    if rights.are_limited() && !fault.by_caller {
        Fault {
            person: fault.person,
            ..registry::scripts::not_found(script_path, &[])
        }
    } else {
        fault
    }
}

/// The tool that was called, and those that own what runs, each once.
fn tools_of(found: &FoundTool, owners: &[Owner]) -> Vec<String> {
    let mut tools: Vec<String> = found.ids().cloned().collect();
    for (manifest, _) in owners {
        if !tools.contains(&manifest.id) {
            tools.push(manifest.id.clone());
        }
    }
    tools
}

fn env_note(env: &BTreeMap<String, String>) -> String {
    let names: Vec<String> = env
        .keys()
        .map(|name| name.escape_debug().to_string())
        .collect();
    format!("environment: set by the call: {}", names.join(", "))
}

/// The tools that run scripts ask for a folder (`.cache`) beside each script. Where this host
/// cannot make it, the script runs without.
fn leave_out_folders(decision: &mut policy::Decision) {
    let Ok(shape) = &mut decision.shape else {
        return;
    };
    let lost: Vec<policy::Grant> = shape
        .grants
        .iter()
        .filter(|grant| executor::process::grants::cannot_be_made(grant, shape))
        .cloned()
        .collect();
    for grant in &lost {
        let words = format!(
            "narrowed: write {}: it does not exist, and cannot be made beside the script",
            grant.asked
        );
        decision.notes.narrowed(words);
    }
    if !lost.is_empty() {
        Arc::make_mut(shape)
            .grants
            .retain(|grant| !lost.contains(grant));
    }
}

/// The input, checked against the parameters of every owner. If there is one owner, its defaults
/// are filled in.
async fn fits_owners(
    owners: &[Owner],
    given: Value,
    deadline: &CallDeadline,
) -> Result<Value, Fault> {
    let mut filled = Vec::new();
    for (manifest, _) in owners {
        let long = manifest.takes_long(&given);
        let own = manifest.clone();
        let input = given.clone();
        let checked = deadline
            .run(long, move || arguments::check(&own, input, false))
            .await?;
        filled.push(checked.map_err(|fault| {
            let whose = format!(
                "inputData must fit the parameters of {}, to which this script belongs.",
                manifest.id
            );
            let details = fault
                .details
                .iter()
                .fold(whose, |whose, details| format!("{whose}\n{details}"));
            fault.details(details)
        })?);
    }
    Ok(if filled.len() == 1 {
        filled.remove(0)
    } else {
        given
    })
}

/// The decision with what the files beside the script request. Long files are read on another
/// thread.
async fn with_packages(
    mut decision: policy::Decision,
    policy::RunTarget { site, language }: policy::RunTarget,
    guest: bool,
    decisions: Arc<DecisionCache>,
    deadline: &CallDeadline,
) -> Result<policy::Decision, Fault> {
    let long = decision
        .packages
        .allowed
        .values()
        .any(|allowed: &policy::Allowance| {
            allowed
                .as_ref()
                .is_ok_and(|allowed| allowed.lock_file.is_some())
        })
        || site
            .script
            .as_deref()
            .is_some_and(|script| packages::are_long(&packages::stamps(script, &site.folder)));
    deadline
        .run(long, move || {
            let script = requirements::ScriptOfTool {
                site: &site,
                language,
                is_run: true,
                is_guest: guest,
            };
            script.add(&mut decision, &decisions.snapshot, &decisions.rules.machine);
            decision
        })
        .await
}

/// Reads the script that a decision runs. `None`: it runs none.
async fn read_script(
    executor: &dyn Executor,
    decision: &policy::Decision,
    deadline: &CallDeadline,
) -> Result<Option<Arc<policy::Script>>, Fault> {
    match &decision.shape {
        Ok(shape) if shape.script.is_some() && !decision.identity.in_process => executor
            .read(shape, deadline)
            .await
            .map(|script| Some(Arc::new(script))),
        _ => Ok(None),
    }
}

/// The tools that a call's code is offered: of those that it may call, those that its caller may
/// call, too, each once.
fn offered(found: &FoundTool, decision: &policy::Decision) -> Vec<Arc<registry::Tool>> {
    let grants = &decision.grants.calls;
    if grants.is_empty() {
        return Vec::new();
    }
    let mut tools = found.decisions.snapshot.list(&registry::Filter::default());
    tools.retain(|tool| {
        let granted = |id: &str| grants.iter().any(|grant| grant.tool.matches(id));
        let manifest = &tool.manifest;
        found.decisions.may_call(&found.rights, &manifest.id)
            && granted(&manifest.id)
            && manifest.alias().is_none_or(|alias| granted(alias.id()))
            && manifest.client_tool().is_none()
    });
    // The newest version describes it.
    tools.reverse();
    tools.dedup_by(|tool, newer| tool.manifest.id == newer.manifest.id);
    tools
}

/// Those of the offered tools that code names. Refuses others, and a language without a way to call.
fn named(
    names: &[String],
    language: Language,
    mut offered: Vec<Arc<registry::Tool>>,
    found: &FoundTool,
) -> Result<Vec<Arc<registry::Tool>>, Fault> {
    if !names.is_empty() && runtimes::calls_shim(language).is_none() {
        let message = format!("Code in {} cannot call tools.", language.name());
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    // Models know a tool by a name without a colon.
    let ids: Vec<String> = names
        .iter()
        .map(|name| {
            if name.contains(':') {
                name.clone()
            } else {
                name.replacen("__", ":", 1)
            }
        })
        .collect();
    let is_offered = |id: &String| offered.iter().any(|tool| tool.manifest.id == *id);
    if let Some(id) = ids.iter().find(|id| !is_offered(id)) {
        if !id.contains(':') || id.contains('*') {
            let message = "`tools` names tools by their whole ids, such as data:query.";
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        return Err(found.call_advice(ids.clone()).refuse(id));
    }
    offered.retain(|tool| ids.contains(&tool.manifest.id));
    Ok(offered)
}

/// A call sets only variables that the script's own manifests declare: a program that the script
/// starts may obey any other name (`BASH_ENV`, `GIT_CONFIG_COUNT`), and run what the caller likes.
/// Together they may be as large as those of a manifest.
fn check_env(env: &BTreeMap<String, String>, owners: &[Owner]) -> Result<(), Fault> {
    let bytes: usize = env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    for (name, value) in env {
        let why = if owners.is_empty()
            || !owners
                .iter()
                .all(|(manifest, _): &Owner| manifest.execution.env.contains_key(name))
        {
            "the script's own manifest does not declare it: add it to execution.env, with a default"
                .to_owned()
        } else if bytes > quantity::MAX_ENV_BYTES {
            format!(
                "all together may have {} bytes: put large data into inputData",
                quantity::MAX_ENV_BYTES
            )
        } else if let Some(why) = environment::refusal_reason(name, value) {
            why
        } else {
            continue;
        };
        let message = format!(
            "Environment variable '{}' may not be set by a call.",
            name.escape_debug()
        );
        return Err(Fault::new(Kind::SecurityError, message)
            .details(why)
            .by_caller());
    }
    Ok(())
}
