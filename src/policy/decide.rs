//! The decision: manifest ∩ policy ∩ host cap on this machine.
//!
//! For: service (before a call), cli (audit, check). In: a manifest, its site, policies, a machine.
//! Out: a `Decision`. Never: starts anything, opens a granted path, or lets a call's arguments in.

use super::area::Area;
use super::capability;
use super::file::{Mode, Policy, Selector};
use super::files::Judge;
use super::hosts;
use super::limits;
use super::load::Policies;
use super::needs::{self, Need};
use super::packages::{self, Allowance, Ecosystem};
use super::run;
use super::secrets;
use super::services;
use super::verdict::{Confirm, Decision, Narrower, Notes, RequestKind, Verdict, wall};
use super::writable::hard_denials::HardDenials;
use super::{Grant, Machine, Program, Runtime, SCRIPT_FOLDER, Shape, Variable};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::{Handler, Language, Manifest, Site, StderrRule, environment};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The builtin tool that takes source text. It exists only where a policy names it by its exact id.
pub const RUN_CODE: &str = "core:run-code";
/// The service that runs a script which a call names; a fixed `language` in its handler names the interpreter.
pub const SCRIPT_SERVICE: &str = "ExternalScriptExecutionService";

/// What is judged: a tool, or a script run by a builtin tool.
pub(super) struct Subject<'a> {
    pub manifest: &'a Manifest,
    pub site: &'a Site,
    /// Language and entry point, if the tool runs as a process of its own.
    pub runs: Option<(Language, Option<String>)>,
    /// Denied asks are dropped in any mode of the policy (a script answers to several tools' asks).
    pub narrow: bool,
    /// The manifests that name the script, where it is not `manifest` that does.
    pub namers: &'a [(Arc<Manifest>, Site)],
}

pub fn decide(manifest: &Manifest, site: &Site, policies: &Policies, machine: &Machine) -> Decision {
    let runs = match &manifest.handler {
        Handler::Script { language, entry_point, .. } => Some((*language, entry_point.clone())),
        _ => None,
    };
    if runs.is_some() || manifest.document().is_some() || manifest.remote().is_some() {
        return judge(&Subject { manifest, site, runs, narrow: false, namers: &[] }, policies, machine);
    }
    // No process of its own: its asks are for the script that a call names. `decide_run` judges that script and
    // narrows, so this answer narrows too.
    let folder = PathBuf::from(SCRIPT_FOLDER);
    let place = Site { manifest: site.manifest.clone(), base: PathBuf::new(), script: None, folder };
    let mut decision = judge(&Subject { manifest, site: &place, runs, narrow: true, namers: &[] }, policies, machine);
    if let Handler::ServiceMethod { service, language: Some(language), .. } = &manifest.handler
        && service == SCRIPT_SERVICE
    {
        // Only whether there is an interpreter: which one runs is decided with the script.
        let (policy, _) = policies.governing(&manifest.id, &site.manifest);
        runtime(*language, policy, machine, &mut Vec::new(), &mut decision.lacks_below);
    }
    decision
}

pub(super) fn judge(subject: &Subject<'_>, policies: &Policies, machine: &Machine) -> Decision {
    let Subject { manifest, site, runs, .. } = subject;
    let (policy, passed_over) = policies.governing(&manifest.id, &site.manifest);
    let mut notes = Notes { all: passed_over.iter().map(|policy| policy.words.clone()).collect(), told: Vec::new() };
    let (host, narrow) = (policies.host.as_ref(), subject.narrow || policy.mode == Mode::Narrow);
    let namers = subject.namers.iter().map(|(_, namer)| namer.manifest.as_path());
    let denials = HardDenials::of(site, namers, policies, machine);
    let guest = policies.guests.contains(&site.manifest);
    let judged =
        Judge { site, guest, policy, host, denials }.files(manifest.asks.read.as_deref(), &manifest.asks.write);
    let (mut verdicts, mut lacks) = (judged.verdicts, Vec::new());
    let (of_hosts, hosts) = hosts::judge(&manifest.asks.hosts, policy, host);
    verdicts.extend(of_hosts);
    capabilities(manifest, policy, host, machine, &mut verdicts, &mut lacks);
    let secrets = secrets::judge(manifest, policy, host, &hosts, &judged.grants, &mut verdicts);
    let service = services::judge(manifest, policy, host, machine, &mut verdicts, &mut lacks);
    let env = env(manifest, machine, &mut verdicts);
    let runtime = runs.as_ref().and_then(|(l, _)| runtime(*l, policy, machine, &mut verdicts, &mut lacks));
    let require_cgroup = policy.require_cgroup || host.is_some_and(|h| h.require_cgroup);
    let uncounted = require_cgroup && !machine.cgroup && runs.is_some();
    lacks.extend(uncounted.then(|| Need::new("", "exact accounting by a cgroup, which the policy requires")));
    let source = runs.is_some() && site.script.is_none();
    let unnamed = (source || manifest.id == RUN_CODE) && !policies.names_exactly(&manifest.id, &site.manifest);
    for verdict in verdicts.iter().filter(|v| narrow && v.refuses() && v.what != RequestKind::Service) {
        notes.narrowed(format!("narrowed: {} {} is not granted in full", verdict.what.name(), verdict.asked));
    }
    notes.all.extend(runs.as_ref().and_then(|_| opens_the_base(&judged.grants, site)));
    let limits = limits::limits(manifest, policy, host, machine.cgroup, &mut notes);
    let stderr = [Some(manifest.execution.stderr), Some(policy.stderr), host.map(|h| h.stderr)];
    let mut decision = Decision {
        tool: format!("{}@{}", manifest.id, manifest.version),
        policy: policy.name.clone(),
        policy_file: policy.file.clone(),
        exact: policy.tools.iter().any(|named| matches!(&named.selector, Selector::Exact(id) if *id == manifest.id)),
        narrow,
        verdicts,
        limits,
        grants: judged.grants,
        hosts,
        secrets,
        service,
        packages: None,
        wanted: None,
        package_rules: packages(subject, policy, host),
        runtime,
        script: site.script.clone(),
        folder: site.folder.clone(),
        callers: policies.callers().map(|callers| callers.grants(&manifest.id)),
        require_cgroup,
        observe: policy.observe || host.is_some_and(|h| h.observe),
        confirm: [Some(policy), host].into_iter().flatten().filter_map(asked_for).collect(),
        stderr_is_error: stderr.contains(&Some(StderrRule::Error)),
        text_output: manifest.execution.text_output,
        notes,
        passed_over,
        unnamed,
        labels: manifest.metadata.permissions.clone(),
        lacks,
        lacks_below: Vec::new(),
        in_process: runs.is_none() && manifest.handler.is_ours(),
        starts_scripts: matches!(&manifest.handler, Handler::ServiceMethod { service, .. } if service == SCRIPT_SERVICE),
        shape: Err(in_process_fault()),
        env,
        digest: digest(policy, host),
    };
    let refused = narrow_by_namers(&mut decision, subject, policies, machine);
    resolve_shape(&mut decision, policy, subject, refused);
    decision
}

/// Narrows by each manifest that names the script. Returns why no call may run it, if one of them is refused.
fn narrow_by_namers(
    decision: &mut Decision,
    subject: &Subject<'_>,
    policies: &Policies,
    machine: &Machine,
) -> Option<Fault> {
    subject.namers.iter().fold(None, |refused, (manifest, site)| {
        run::narrow(decision, &decide(manifest, site, policies, machine)).or(refused)
    })
}

/// Fills in what is enforced, or why a call is refused; `refused`: because of a tool that names the script.
fn resolve_shape(decision: &mut Decision, policy: &Policy, subject: &Subject<'_>, refused: Option<Fault>) {
    let faulty = policy.fault.as_deref().map(|fault| faulty(fault, &decision.tool));
    if faulty.is_some() {
        // What is not granted is so because of the fault.
        decision.verdicts.clear();
    }
    let fault = refused.or(faulty).or_else(|| refusal(decision)).or_else(|| unavailable(decision, subject.manifest));
    decision.shape = fault.map_or_else(|| shape(decision, subject).map(Arc::new), Err);
}

/// The labels that policy requires and the manifest does not declare.
fn permissions(manifest: &Manifest, policy: &Policy, host: Option<&Policy>, lacks: &mut Vec<Need>) {
    let required = [Some(policy), host].into_iter().flatten().flat_map(|policy| &policy.require_permissions);
    for label in required.filter(|label| !manifest.metadata.permissions.contains(label)) {
        let label = text::printable(label);
        let words = format!("the permission '{label}' declared in metadata.permissions, which policy requires");
        lacks.push(Need::new("/metadata/permissions", words));
    }
}

fn asked_for(policy: &Policy) -> Option<Confirm> {
    let by_client = policy.confirm_by_client.clone();
    Some(Confirm { policy: policy.name.clone(), why: policy.confirm.clone()?, by_client })
}

/// What may be installed for the script, or for any script that a tool inside the host is asked to run.
fn packages(subject: &Subject<'_>, policy: &Policy, host: Option<&Policy>) -> BTreeMap<Ecosystem, Allowance> {
    let of: Vec<Ecosystem> = match (&subject.runs, &subject.manifest.handler) {
        (Some((language, _)), _) | (None, Handler::ServiceMethod { language: Some(language), .. }) => {
            Ecosystem::of(*language).into_iter().collect()
        }
        _ => Ecosystem::ALL.to_vec(),
    };
    of.into_iter().map(|ecosystem| (ecosystem, packages::allowed(ecosystem, policy, host))).collect()
}

fn opens_the_base(grants: &[Grant], site: &Site) -> Option<String> {
    let words =
        "opens a whole script base folder, the files of other tools included; give the script a folder of its own";
    let base = Area::Tree(site.base.clone());
    grants.iter().any(|grant| Area::of(&grant.opening) == base).then(|| words.to_owned())
}

fn in_process_fault() -> Fault {
    Fault::new(Kind::InternalError, "this tool runs inside the host and has no confinement of its own")
}

fn capabilities(
    manifest: &Manifest,
    policy: &Policy,
    host: Option<&Policy>,
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
    lacks: &mut Vec<Need>,
) {
    permissions(manifest, policy, host, lacks);
    for (index, word) in manifest.asks.capabilities.iter().enumerate() {
        let kind = capability::kind(word);
        if let capability::Kind::Secret(_) = kind {
            continue; // `uses` answers.
        }
        let granted = policy.capabilities.iter().find(|c| c.name == *word);
        let capped = host.is_some_and(|h| !h.capabilities.iter().any(|c| c.name == *word));
        let verdict = match (machine.lacks(manifest, word), kind, granted) {
            (Some(reason), ..) => {
                // An unknown word is a mistake of the manifest and no lack here: the registry reports it.
                if kind != capability::Kind::Unknown {
                    let pointer = format!("/securityContext/requiredCapabilities/{index}");
                    let words = format!("the capability '{}': {reason}", text::printable(word));
                    lacks.push(Need::new(pointer, words));
                }
                Verdict::denied(RequestKind::Capability, word, Narrower::Machine, reason, &[])
            }
            (None, capability::Kind::Free, _) => Verdict::met(RequestKind::Capability, word, word, &[wall::SECCOMP])
                .because("house: free", "every tool may start processes inside its own walls and limits", "house"),
            (None, capability::Kind::Declared, _) => Verdict::met(RequestKind::Capability, word, word, &[]).because(
                "this host's configuration",
                "`capabilities` declares it; it opens no file, device or host",
                "configuration",
            ),
            (None, _, Some(_)) if capped => {
                let reason = "host.policy.toml does not grant it";
                Verdict::denied(RequestKind::Capability, word, Narrower::Host, reason, &[])
            }
            (None, _, Some(grant)) => Verdict::met(RequestKind::Capability, word, given(word), by(kind)).because(
                format!("{}: {}", policy.name, grant.name),
                &grant.why,
                policy.place(grant.at),
            ),
            (None, _, None) => {
                let reason = format!("policy `{}` does not grant it", policy.name);
                Verdict::denied(RequestKind::Capability, word, Narrower::Policy, reason, &[])
            }
        };
        verdicts.push(verdict);
    }
}

/// The wall that gives it; none for what is checked while the call runs.
fn by(kind: capability::Kind<'_>) -> &'static [&'static str] {
    match kind {
        capability::Kind::Ask(_) => &[],
        _ => &[wall::ENVIRONMENT],
    }
}

/// The effect of a granted capability, in words.
fn given(word: &str) -> String {
    match capability::kind(word) {
        capability::Kind::Env(name) => format!("{name}, with the host's own text (never shown)"),
        capability::Kind::Ask(ask) => format!("{} of the client that called it", ask.word()),
        _ => word.to_owned(),
    }
}

/// Literals, and variables of the host that were granted as capabilities. Names that steer the loader or an
/// interpreter are refused, as they were at load.
fn env(manifest: &Manifest, machine: &Machine, verdicts: &mut Vec<Verdict>) -> BTreeMap<String, Variable> {
    let mut kept = BTreeMap::new();
    for (name, value) in &manifest.execution.env {
        if let Some(reason) = environment::refused(name, value) {
            verdicts.push(Verdict::denied(RequestKind::Env, name, Narrower::House, reason, &[wall::ENVIRONMENT]));
        } else {
            let verdict = Verdict::met(RequestKind::Env, name, format!("{name}={value}"), &[wall::ENVIRONMENT]);
            verdicts.push(verdict.because("house: env literals", "a text the manifest carries itself", "house"));
            kept.insert(name.clone(), Variable::Literal(value.clone()));
        }
    }
    for verdict in verdicts.iter().filter(|v| v.what == RequestKind::Capability && v.allowed) {
        if let capability::Kind::Env(name) = capability::kind(&verdict.asked)
            && let Some(value) = machine.environment.get(name)
        {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    kept
}

fn runtime(
    language: Language,
    policy: &Policy,
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
    lacks: &mut Vec<Need>,
) -> Option<Runtime> {
    let name = language.name();
    let named = policy.runtimes.get(&language);
    let walls = [wall::VIEW, wall::LANDLOCK];
    let found = match (language, named) {
        (Language::Wasm, _) if cfg!(feature = "wasi") => Ok(Runtime::ourselves("wasm-worker")),
        (Language::Wasm, _) => Err(format!("{WITHOUT_WASI} (its cargo feature `wasi`)")),
        (_, Some(named)) => named_runtime(language, &named.path, machine).map_err(|why| {
            format!("{} ({}) cannot be used here: {why}", named.path.display(), policy.place(named.at))
        }),
        (_, None) => machine.runtimes.get(&language).cloned().ok_or_else(|| {
            format!(
                "{name} is not on this machine: none was found on PATH outside the tool folders; install it, or name one in a policy under [runtimes]"
            )
        }),
    };
    let runtime = match found {
        Ok(runtime) => runtime,
        Err(reason) => {
            verdicts.push(Verdict::denied(RequestKind::Runtime, name, Narrower::Machine, reason, &walls));
            let words = match named {
                _ if language == Language::Wasm => format!("the runtime '{name}': {WITHOUT_WASI}"),
                Some(_) => format!("the runtime '{name}': the interpreter that its policy names cannot be used here"),
                None => format!("the runtime '{name}', which was not found on this host's PATH"),
            };
            lacks.push(Need::new("/handler/language", words));
            return None;
        }
    };
    let program = match &runtime.program {
        Program::Path(path) => path.display().to_string(),
        Program::Ourselves { role } => format!("toolhost ({role})"),
    };
    let verdict = Verdict::met(RequestKind::Runtime, name, format!("{program} {}", runtime.version), &walls);
    verdicts.push(match named {
        Some(named) => {
            verdict.because(format!("{}: {}", policy.name, named.path.display()), &named.why, policy.place(named.at))
        }
        None => verdict.because(format!("found: {}", runtime.found), "the language the handler names", "machine"),
    });
    Some(runtime)
}

/// What a build without the feature `wasi` says.
const WITHOUT_WASI: &str = "this toolhost was built without WASI";

fn named_runtime(language: Language, path: &Path, machine: &Machine) -> Result<Runtime, String> {
    let found = machine.named_runtimes.get(path).ok_or("nobody looked at it")?;
    let runtime = found.as_ref().map_err(String::clone)?;
    if runtime.language != language {
        return Err(format!("it runs {}", runtime.language.name()));
    }
    Ok(runtime.clone())
}

/// The fault of a tool that asks for more than it may have. The operator must act.
fn refusal(decision: &Decision) -> Option<Fault> {
    let tool = text::printable(&decision.tool);
    let id = tool.rsplit_once('@').map_or(tool.as_str(), |(id, _)| id);
    let refused: Vec<&Verdict> = decision
        .verdicts
        .iter()
        .filter(|v| v.refuses() && (!decision.narrow || v.what == RequestKind::Service))
        .collect();
    if refused.is_empty() && !decision.unnamed {
        return None;
    }
    let source = format!("run source text: only where a policy names it: tools = [\"{id}\"]");
    let asks = refused.iter().map(|verdict| {
        let reason = verdict.reason.as_deref().unwrap_or("not allowed");
        format!("{} {}: {}", verdict.what.name(), text::printable(&verdict.asked), text::printable(reason))
    });
    let passed_over = decision.passed_over.iter().map(|policy| policy.words.clone());
    let lines = Some(source).filter(|_| decision.unnamed).into_iter().chain(asks).chain(passed_over);
    let lines: String = lines.map(|line| format!("\n  {line}")).collect();
    let suggest = format!("`toolhost audit {id} --suggest-policy` prints what would grant");
    let grantable = decision.unnamed || refused.iter().any(|verdict| !verdict.never());
    let mend = match (refused.iter().any(|verdict| verdict.never()), grantable) {
        (true, false) => "no policy can grant this: change what the manifest asks (securityContext).".to_owned(),
        (true, true) => format!("{suggest} what a policy can; for the rest change the manifest."),
        (false, _) => format!("{suggest} it."),
    };
    let message = "this tool asks for more than this host allows, so it was not started; ask the operator";
    let person = format!("{tool} asks for more than is allowed:{lines}\nSee `toolhost audit {id}`; {mend}");
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// The fault of a tool whose policy cannot be read in full.
fn faulty(fault: &str, tool: &str) -> Fault {
    let message = "the policy for this tool has a fault, so it was not started; ask the operator";
    let tool = text::printable(tool);
    Fault::new(Kind::SecurityError, message).person(format!("the policy that names {tool} has a fault: {fault}"))
}

/// The fault of a tool that needs what is not built or not here.
fn unavailable(decision: &Decision, manifest: &Manifest) -> Option<Fault> {
    let needs: Vec<Need> = needs::of_manifest(manifest).into_iter().chain(decision.lacks.iter().cloned()).collect();
    if needs.is_empty() {
        return None;
    }
    let (tool, id, needs) = (text::printable(&decision.tool), text::printable(&manifest.id), needs.join("; "));
    let fault = Fault::new(Kind::CapabilityError, format!("this tool cannot run here: it needs {needs}"));
    let see = format!("See `toolhost audit {id}` and `toolhost doctor`.");
    Some(fault.person(format!("{tool} is unavailable: it needs {needs}\n{see}")))
}

/// What is enforced.
fn shape(decision: &Decision, subject: &Subject<'_>) -> Result<Shape, Fault> {
    let (Some((_, entry_point)), Some(runtime)) = (&subject.runs, &decision.runtime) else {
        return Err(in_process_fault());
    };
    let mut shape = Shape {
        tool: decision.tool.clone(),
        runtime: runtime.clone(),
        script: decision.script.clone(),
        entry_point: entry_point.clone(),
        folder: decision.folder.clone(),
        grants: decision.grants.clone(),
        network: decision.network(),
        secrets: decision.secrets.clone(),
        packages: None,
        built: None,
        limits: limits::of_shape(&decision.limits),
        env: decision.env.clone(),
        require_cgroup: decision.require_cgroup,
        observe: decision.observe,
        stderr_is_error: decision.stderr_is_error,
        text_output: decision.text_output,
        written: Vec::new(),
    };
    // The places of other tools are added by whoever knows them.
    shape.written = shape.written_trees(&[]);
    // A shape is kept, printed and hashed as JSON, which cannot hold a path that is not UTF-8.
    if serde_json::to_vec(&shape).is_err() {
        let fault = Fault::new(Kind::CapabilityError, "this tool cannot run here: a path is not UTF-8 text");
        let folder = text::path(&decision.folder);
        return Err(fault.person(format!(
            "a path of this tool or its interpreter is not UTF-8 text (its folder: {folder}); rename it"
        )));
    }
    Ok(shape)
}

/// SHA-256 over the policies that were used: the digest and name of each.
fn digest(policy: &Policy, host: Option<&Policy>) -> String {
    let lines: Vec<String> =
        [Some(policy), host].into_iter().flatten().map(|p| format!("{} {}\n", p.digest, p.name)).collect();
    crate::base::sha256_hex(lines.concat().as_bytes())
}
