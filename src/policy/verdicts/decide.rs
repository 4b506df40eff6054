//! The decision: manifest ∩ policy ∩ host cap on this machine. Nothing is started, and no argument
//! of a call is read.

use super::ceiling::Ceiling;
use super::decision::Decision;
use super::files::Judge;
use super::hard_denials::HardDenials;
use super::machine::{Machine, Need};
use super::owner::{as_policy, refused_with};
use super::shape::{Runtime, Shape, Variable};
use super::verdict::{Confirm, Narrower, Notes, RequestKind, Verdict};
use super::written::written_areas;
use super::{capability, hosts, limits, packages, runtime, secrets, services};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::{Handler, Language, Manifest, StderrRule, ToolPaths};
use crate::policy::grammar::area::Area;
use crate::policy::grammar::file::{Mode, Policy, Selector};
use crate::policy::grammar::files::{Grant, SCRIPT_FOLDER};
use crate::policy::grammar::hosts::HostGrant;
use crate::policy::grammar::load::Policies;
use crate::policy::grammar::secrets::SecretGrant;
use crate::policy::grammar::services::ServiceGrant;
use crate::policy::grammar::versions::Ecosystem;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The builtin tool that takes source text. It exists only where a policy names it by its exact id.
pub const RUN_CODE: &str = "core:run-code";
/// The service that runs a script which a call names; a fixed `language` in its handler names the
/// interpreter.
pub const SCRIPT_SERVICE: &str = "ExternalScriptExecutionService";

/// What is judged: a tool, or a script run by a builtin tool.
struct Subject<'a> {
    pub manifest: &'a Manifest,
    pub site: &'a ToolPaths,
    /// Language and entry point, if the tool runs as a process of its own.
    pub runs: Option<(Language, Option<String>)>,
    /// Denied requests are dropped in any mode of the policy (several tools can bound one script).
    pub narrow: bool,
    /// The manifests that name the script, where `manifest` is a builtin tool's and does not.
    pub owners: &'a [(Arc<Manifest>, ToolPaths)],
}

pub fn decide(
    manifest: &Manifest,
    site: &ToolPaths,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let runs = match &manifest.handler {
        Handler::Script {
            language,
            entry_point,
            ..
        } => Some((*language, entry_point.clone())),
        _ => None,
    };
    if runs.is_some() || manifest.document().is_some() || manifest.remote().is_some() {
        return judge(
            &Subject {
                manifest,
                site,
                runs,
                narrow: false,
                owners: &[],
            },
            policies,
            machine,
        );
    }
    // The tool has no process of its own: its requests are for the script that a call names.
    // `decide_run` judges that script and narrows, so this decision narrows too.
    let folder = PathBuf::from(SCRIPT_FOLDER);
    let place = ToolPaths {
        manifest: site.manifest.clone(),
        base: PathBuf::new(),
        script: None,
        folder,
    };
    let mut decision = judge(
        &Subject {
            manifest,
            site: &place,
            runs,
            narrow: true,
            owners: &[],
        },
        policies,
        machine,
    );
    if let Handler::ServiceMethod {
        service,
        language: Some(language),
        ..
    } = &manifest.handler
        && service == SCRIPT_SERVICE
    {
        // Only whether there is an interpreter: which one runs is decided with the script.
        let (policy, _) = policies.governing(&manifest.id, &site.manifest);
        let named = policy.runtimes.get(language);
        decision.lacks_below.extend(
            runtime::runtime(*language, named, policy.origin(), machine)
                .1
                .err(),
        );
    }
    decision
}

/// The script, or the source text, that a builtin tool is asked to run.
#[derive(Clone, Debug)]
pub struct RunTarget {
    /// Where the script lies; `script: None` for source text that comes with the call.
    pub site: ToolPaths,
    pub language: Language,
}

/// Decides what a script run by a builtin tool may do: the builtin's requests, relative to the
/// script's folder ∩ its policy ∩ what each tool that names the script was granted (`owners`, which
/// the caller finds).
pub fn decide_run(
    target: &RunTarget,
    tool: &Manifest,
    owners: &[(Arc<Manifest>, ToolPaths)],
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    if target.site.script.is_none() {
        return run_code(target, tool, policies, machine);
    }
    let runs = Some((target.language, None));
    // The builtin's own manifest has no file; the manifests that name the script are protected
    // through `owners`.
    let site = ToolPaths {
        manifest: PathBuf::new(),
        ..target.site.clone()
    };
    judge(
        &Subject {
            manifest: tool,
            site: &site,
            runs,
            narrow: true,
            owners,
        },
        policies,
        machine,
    )
}

/// Decides about source text: no files but scratch, no hosts, and a policy must name the tool by
/// its exact id.
fn run_code(
    target: &RunTarget,
    tool: &Manifest,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let mut bare = tool.clone();
    bare.requested.read = Some(Vec::new());
    bare.requested.write = Vec::new();
    bare.requested.hosts = Vec::new();
    let site = ToolPaths {
        manifest: PathBuf::new(),
        folder: "/tmp".into(),
        script: None,
        base: PathBuf::new(),
    };
    let runs = Some((target.language, None));
    judge(
        &Subject {
            manifest: &bare,
            site: &site,
            runs,
            narrow: true,
            owners: &[],
        },
        policies,
        machine,
    )
}

/// The answer to every request, and what they grant.
struct Answers {
    verdicts: Vec<Verdict>,
    grants: Vec<Grant>,
    hosts: Vec<HostGrant>,
    secrets: Vec<SecretGrant>,
    service: Option<ServiceGrant>,
    env: BTreeMap<String, Variable>,
    runtime: Option<Runtime>,
    lacks: Vec<Need>,
}

fn answer(
    subject: &Subject<'_>,
    ceilings: &[Ceiling<'_>],
    policies: &Policies,
    machine: &Machine,
) -> Answers {
    let Subject {
        manifest,
        site,
        runs,
        ..
    } = subject;
    let denials = HardDenials {
        site,
        owners: subject.owners,
        protected: &policies.protected,
        machine,
    };
    let files = Judge {
        site,
        ceilings,
        denial: &|access, area: &Area| denials.reason(access, area),
    };
    let mut verdicts = Vec::new();
    let it = &mut verdicts;
    let grants = files.files(
        manifest.requested.read.as_deref(),
        &manifest.requested.write,
        it,
    );
    let hosts = hosts::judge(&manifest.requested.hosts, ceilings, it);
    let mut lacks = permissions(manifest, ceilings);
    lacks.extend(capability::judge(manifest, ceilings, machine, it));
    let secrets = secrets::judge(manifest, ceilings, &hosts, &grants, it);
    let (service, need) = services::judge(manifest, ceilings, machine, it);
    lacks.extend(need);
    let env = capability::env(manifest, machine, &mut verdicts);
    let mut runtime: Option<Runtime> = None;
    if let (Some((language, _)), Some(Ceiling { policy, .. })) = (runs, ceilings.first()) {
        let (verdict, found) = runtime::runtime(
            *language,
            policy.runtimes.get(language),
            policy.origin(),
            machine,
        );
        verdicts.push(verdict);
        found.map_or_else(|need| lacks.push(need), |found| runtime = Some(found));
    }
    Answers {
        verdicts,
        grants,
        hosts,
        secrets,
        service,
        env,
        runtime,
        lacks,
    }
}

/// The ceilings that bound a tool. `owned`: the grants of each tool that names its script, as
/// policies.
fn ceilings<'p>(
    policy: &'p Policy,
    cap: Option<&'p Policy>,
    owned: &'p [Policy],
) -> Vec<Ceiling<'p>> {
    fn ceiling(narrower: Narrower) -> impl Fn(&Policy) -> Ceiling<'_> {
        move |policy| Ceiling { policy, narrower }
    }
    let own = std::iter::once(policy).map(ceiling(Narrower::Policy));
    own.chain(cap.map(ceiling(Narrower::Host)))
        .chain(owned.iter().map(ceiling(Narrower::Owner)))
        .collect()
}

fn judge(subject: &Subject<'_>, policies: &Policies, machine: &Machine) -> Decision {
    let Subject {
        manifest,
        site,
        runs,
        ..
    } = subject;
    let (policy, passed_over) = policies.governing(&manifest.id, &site.manifest);
    let owners: Vec<Decision> = subject
        .owners
        .iter()
        .map(|(manifest, site): &(Arc<Manifest>, ToolPaths)| {
            decide(manifest, site, policies, machine)
        })
        .collect();
    let owned: Vec<Policy> = owners.iter().map(as_policy).collect();
    let ceilings = ceilings(policy, policies.host.as_ref(), &owned);
    let bounds = || ceilings.iter().map(|ceiling| ceiling.policy);
    let narrow = subject.narrow || policy.mode == Mode::Narrow;
    let mut notes = Notes {
        all: passed_over
            .iter()
            .map(|policy| policy.words.clone())
            .collect(),
        told: Vec::new(),
    };
    let Answers {
        verdicts,
        grants,
        hosts,
        secrets,
        service,
        env,
        runtime,
        mut lacks,
    } = answer(subject, &ceilings, policies, machine);
    let require_cgroup = bounds().any(|policy| policy.require_cgroup);
    let uncounted = require_cgroup && !machine.cgroup && runs.is_some();
    lacks.extend(uncounted.then(|| {
        Need::by_policy(
            "",
            "exact accounting by a cgroup, which the policy requires",
        )
    }));
    let source = runs.is_some() && site.script.is_none();
    let unnamed = (source || manifest.id == RUN_CODE)
        && !policies.names_exactly(&manifest.id, &site.manifest);
    for verdict in verdicts
        .iter()
        .filter(|v| narrow && v.refuses() && v.what != RequestKind::Service)
    {
        notes.narrowed(verdict.narrowing());
    }
    notes.all.extend(open_base(subject, &grants));
    let usual_ms = owners
        .iter()
        .map(|owner| owner.time(None))
        .min()
        .unwrap_or(u64::MAX);
    let limits = limits::limits(manifest, &ceilings, usual_ms, machine.cgroup, &mut notes);
    let mut confirm: Vec<Confirm> = bounds().filter_map(confirmation).collect();
    let more = owners.iter().flat_map(|owner| &owner.confirm);
    more.for_each(|why| confirm.extend((!confirm.contains(why)).then(|| why.clone())));
    let mut stderr = bounds()
        .map(|policy| policy.stderr)
        .chain([manifest.execution.stderr]);
    let mut decision = Decision {
        tool: format!("{}@{}", manifest.id, manifest.version),
        policy: policy.name.clone(),
        policy_file: policy.file.clone(),
        exact: policy
            .tools
            .iter()
            .any(|named| matches!(&named.selector, Selector::Exact(id) if *id == manifest.id)),
        narrow,
        verdicts,
        limits,
        grants,
        hosts,
        secrets,
        service,
        packages: None,
        wanted: None,
        package_rules: ecosystems(subject)
            .map(|it| (it, packages::allowed(it, &ceilings)))
            .collect(),
        runtime,
        script: site.script.clone(),
        folder: site.folder.clone(),
        callers: policies
            .callers()
            .map(|callers| callers.grants(&manifest.id)),
        require_cgroup,
        observe: bounds().any(|policy| policy.observe),
        confirm,
        stderr_is_error: stderr.any(|rule| rule == StderrRule::Error),
        text_output: manifest.execution.text_output || owners.iter().any(|owner| owner.text_output),
        notes,
        runs: Vec::new(),
        passed_over,
        unnamed,
        labels: manifest.metadata.permissions.clone(),
        lacks,
        lacks_below: Vec::new(),
        in_process: runs.is_none() && manifest.handler.runs_no_script(),
        starts_scripts: starts_scripts(&manifest.handler),
        shape: Err(in_process_fault()),
        env,
        digest: digest(bounds()),
    };
    resolve_shape(
        &mut decision,
        policy,
        subject,
        owners.iter().find_map(refused_with),
    );
    decision
}

/// A note where a script reaches the files of all tools of its base folder.
fn open_base(subject: &Subject<'_>, grants: &[Grant]) -> Option<String> {
    let base = Area::Tree(subject.site.base.clone());
    let opens = subject.runs.is_some() && grants.iter().any(|grant| grant.area == base);
    let words = "opens a whole script base folder, the files of other tools included; give the \
        script a folder of its own";
    opens.then(|| words.to_owned())
}

/// Whether the calls of a handler run scripts that they name or bring.
fn starts_scripts(handler: &Handler) -> bool {
    matches!(handler, Handler::ServiceMethod { service, .. } if service == SCRIPT_SERVICE)
}

/// Sets the shape, or the fault of every call. `refused`: the fault due to a tool that names the
/// script.
fn resolve_shape(
    decision: &mut Decision,
    policy: &Policy,
    subject: &Subject<'_>,
    refused: Option<Fault>,
) {
    let faulty = policy
        .fault
        .as_deref()
        .map(|fault| faulty(fault, &decision.tool));
    if faulty.is_some() {
        // Nothing is granted because of this fault, so verdicts would give wrong reasons.
        decision.verdicts.clear();
    }
    let fault = refused
        .or(faulty)
        .or_else(|| refusal(decision))
        .or_else(|| unavailable(decision, subject.manifest));
    decision.shape = fault.map_or_else(|| shape(decision, subject).map(Arc::new), Err);
}

/// The labels that policy requires and the manifest does not declare.
fn permissions(manifest: &Manifest, ceilings: &[Ceiling<'_>]) -> Vec<Need> {
    let required = ceilings
        .iter()
        .flat_map(|ceiling| &ceiling.policy.require_permissions);
    let missing = required.filter(|label| !manifest.metadata.permissions.contains(label));
    missing
        .map(|label: &String| {
            let label = text::printable(label);
            let words = format!(
                "the permission '{label}' declared in metadata.permissions, which policy requires"
            );
            Need::by_policy("/metadata/permissions", words)
        })
        .collect()
}

fn confirmation(policy: &Policy) -> Option<Confirm> {
    let by_client = policy.confirm_by_client.clone();
    Some(Confirm {
        policy: policy.name.clone(),
        why: policy.confirm.clone()?,
        by_client,
    })
}

/// The ecosystems whose packages the script can have, or any script that a tool inside the host
/// runs.
fn ecosystems(subject: &Subject<'_>) -> impl Iterator<Item = Ecosystem> + use<> {
    let language = match (&subject.runs, &subject.manifest.handler) {
        (Some((language, _)), _) => Some(*language),
        (None, Handler::ServiceMethod { language, .. }) => *language,
        _ => None,
    };
    Ecosystem::ALL.into_iter().filter(move |it| {
        language.is_none_or(|language| Ecosystem::for_language(language) == Some(*it))
    })
}

fn in_process_fault() -> Fault {
    Fault::new(
        Kind::InternalError,
        "this tool runs inside the host and has no confinement of its own",
    )
}

/// The fault of a tool that requests more than it may have. The operator must act.
fn refusal(decision: &Decision) -> Option<Fault> {
    let tool = text::printable(&decision.tool);
    let id = tool.rsplit_once('@').map_or(tool.as_str(), |(id, _)| id);
    let refused: Vec<&Verdict> = decision
        .verdicts
        .iter()
        .filter(|v: &&Verdict| v.refuses() && (!decision.narrow || v.what == RequestKind::Service))
        .collect();
    if refused.is_empty() && !decision.unnamed {
        return None;
    }
    let source = format!("run source text: only where a policy names it: tools = [\"{id}\"]");
    let requests = refused.iter().map(|verdict| {
        let reason = verdict.reason.as_deref().unwrap_or("not allowed");
        format!(
            "{} {}: {}",
            verdict.what.name(),
            text::printable(&verdict.asked),
            text::printable(reason)
        )
    });
    let passed_over = decision
        .passed_over
        .iter()
        .map(|policy| policy.words.clone());
    let lines = decision
        .unnamed
        .then_some(source)
        .into_iter()
        .chain(requests)
        .chain(passed_over);
    let lines: String = lines.map(|line| format!("\n  {line}")).collect();
    let suggest = format!("`toolhost audit {id} --suggest-policy` prints what would grant");
    let grantable = decision.unnamed || refused.iter().any(|verdict| !verdict.never());
    let fix = match (refused.iter().any(|verdict| verdict.never()), grantable) {
        (true, false) => {
            "no policy can grant this: change what the manifest requests (securityContext)."
                .to_owned()
        }
        (true, true) => format!("{suggest} what a policy can; for the rest change the manifest."),
        (false, _) => format!("{suggest} it."),
    };
    let message =
        "this tool asks for more than this host allows, so it was not started; ask the operator";
    let person =
        format!("{tool} asks for more than is allowed:{lines}\nSee `toolhost audit {id}`; {fix}");
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// The fault of a tool whose policy cannot be read in full.
fn faulty(fault: &str, tool: &str) -> Fault {
    let message = "the policy for this tool has a fault, so it was not started; ask the operator";
    let tool = text::printable(tool);
    Fault::new(Kind::SecurityError, message)
        .person(format!("the policy that names {tool} has a fault: {fault}"))
}

/// The fault of a tool that needs a feature that is not built, or something that this machine
/// lacks.
fn unavailable(decision: &Decision, manifest: &Manifest) -> Option<Fault> {
    let needs: Vec<Need> = capability::needs_of(manifest)
        .into_iter()
        .chain(decision.lacks.iter().cloned())
        .collect();
    if needs.is_empty() {
        return None;
    }
    let tool = text::printable(&decision.tool);
    let id = text::printable(&manifest.id);
    let needs = needs.join("; ");
    let fault = Fault::new(
        Kind::CapabilityError,
        format!("this tool cannot run here: it needs {needs}"),
    );
    let see = format!("See `toolhost audit {id}` and `toolhost doctor`.");
    Some(fault.person(format!("{tool} is unavailable: it needs {needs}\n{see}")))
}

/// Builds the shape, which the sandbox enforces.
fn shape(decision: &Decision, subject: &Subject<'_>) -> Result<Shape, Fault> {
    let (Some((_, entry_point)), Some(runtime)) = (&subject.runs, &decision.runtime) else {
        return Err(in_process_fault());
    };
    let mut shape = Shape {
        script: decision.script.clone(),
        entry_point: entry_point.clone(),
        folder: decision.folder.clone(),
        grants: decision.grants.clone(),
        network: decision.network(),
        secrets: decision.secrets.clone(),
        limits: limits::of_shape(&decision.limits),
        env: decision.env.clone(),
        require_cgroup: decision.require_cgroup,
        observe: decision.observe,
        stderr_is_error: decision.stderr_is_error,
        text_output: decision.text_output,
        ..Shape::bare(&decision.tool, runtime.clone())
    };
    // Only this tool's own grants are known here: `service` adds what other tools may write.
    shape.written = written_areas(&shape, &[]);
    // A shape is kept, printed and hashed as JSON, which cannot hold a path that is not UTF-8.
    if serde_json::to_vec(&shape).is_err() {
        let fault = Fault::new(
            Kind::CapabilityError,
            "this tool cannot run here: a path is not UTF-8 text",
        );
        let folder = text::path(&decision.folder);
        return Err(fault.person(format!(
            "a path of this tool or its interpreter is not UTF-8 text (its folder: {folder}); \
            rename it"
        )));
    }
    Ok(shape)
}

/// SHA-256 over the digest and the name of each policy that bounds the tool.
fn digest<'p>(bounds: impl Iterator<Item = &'p Policy>) -> String {
    let lines: Vec<String> = bounds
        .map(|policy| format!("{} {}\n", policy.digest, policy.name))
        .collect();
    crate::base::sha256_hex(lines.concat().as_bytes())
}
