//! The decision: manifest ∩ policy ∩ host cap on this machine. Nothing is started, and no argument
//! of a call is read.

use super::approved::{Approval, SOURCE_TEXT};
use super::capability::GrantedFiles;
use super::ceiling::Ceilings;
use super::decision::{Conditions, Decision, Governing, Grants, Identity, PackageDecision};
use super::files::FileRequests;
use super::hard_denials::HardDenials;
use super::machine::Machine;
use super::owner::{as_policy, refused_with};
use super::shape::Shape;
use super::tool_now::{ToolNow, approval_of, approval_of_run};
use super::verdict::{Answers, Confirm, LimitVerdict, Need, Notes, RequestKind, Verdict};
use super::written::written_areas;
use super::{
    calls, capability, faults, hosts, limits, mcp, packages, ready, runtime, secrets, services,
    sessions,
};
use crate::base::text;
use crate::fault::Fault;
use crate::manifest::skill::OUTPUT;
use crate::manifest::{
    Execution, Handler, Language, Manifest, Pattern, RequestedAccess, StderrRule, ToolPaths,
    pattern,
};
use crate::policy::grammar::files::SCRIPT_FOLDER;
use crate::policy::grammar::{
    Area, CapabilityKind, Ecosystem, Grant, HostGrant, Mode, Policies, Policy, Rule, Selector,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The builtin tool that takes source text. It exists only where a policy names it by its exact id.
pub const RUN_CODE: &str = "core:run-code";
/// The service that runs a script which a call names; a fixed `language` in its handler names the
/// interpreter.
pub const SCRIPT_SERVICE: &str = "ExternalScriptExecutionService";

/// What is decided about: a tool, or a script run by a builtin tool.
#[derive(Clone, Copy)]
struct Subject<'a> {
    manifest: &'a Manifest,
    site: &'a ToolPaths,
    /// Of the process that it runs as, if it has one of its own.
    language: Option<Language>,
    /// Denied requests are dropped in any mode of the policy (several tools can bound one script).
    narrow: bool,
    /// The manifests that name the script, where `manifest` is a builtin tool's and does not.
    owners: &'a [(Arc<Manifest>, ToolPaths)],
}

pub fn decide(
    manifest: &Manifest,
    site: &ToolPaths,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    if let Some(tool) = manifest.mcp_tool() {
        let server = decide(&tool.server, site, policies, machine);
        let mut decision = server.called_as_tool(rules_of(manifest, site, policies, machine));
        if let Value::Object(claims) = &manifest.raw["annotations"] {
            let claims = text::json(&json!(claims), false);
            let words = "its author claims, and nothing checks";
            decision
                .notes
                .all
                .push(format!("{words}: {}", text::head(&claims, 200)));
        }
        return decision;
    }
    if manifest.skill().is_some() {
        return Subject {
            manifest: &requesting_what_is_allowed(manifest, &site.manifest, policies),
            site,
            language: None,
            narrow: true,
            owners: &[],
        }
        .decide(policies, machine);
    }
    let language = manifest.handler.language();
    let subject = Subject {
        manifest,
        site,
        language,
        narrow: false,
        owners: &[],
    };
    let requests_nothing = matches!(manifest.handler, Handler::Client(_) | Handler::Alias(_));
    if language.is_some()
        || requests_nothing
        || manifest.document().is_some()
        || manifest.remote().is_some()
    {
        return subject.decide(policies, machine);
    }
    // The tool has no process of its own: its requests are for the script that a call names.
    // `decide_run` decides about that script and narrows, so this decision narrows too.
    let place = ToolPaths {
        manifest: site.manifest.clone(),
        base: PathBuf::new(),
        script: None,
        folder: PathBuf::from(SCRIPT_FOLDER),
        links: Vec::new(),
    };
    let asking = with_named_reads(manifest.clone(), &site.manifest, policies);
    let mut decision = Subject {
        manifest: &asking,
        site: &place,
        narrow: true,
        ..subject
    }
    .decide(policies, machine);
    if let Handler::ServiceMethod {
        language: Some(language),
        ..
    } = &manifest.handler
        && decision.identity.starts_scripts
    {
        // Only whether there is an interpreter: which one runs is decided with the script.
        let (policy, _) = policies.governing(&manifest.id, &site.manifest);
        let mut answers = Answers::default();
        runtime::runtime_of(*language, site, policy, machine, &mut answers);
        decision.lacks_below = answers.lacks;
    }
    decision
}

/// The decision about a tool whose process is its server's: who may call it and must agree, and
/// whether it is stopped. It requests nothing itself.
fn rules_of(
    manifest: &Manifest,
    site: &ToolPaths,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let bare = Manifest {
        requested: RequestedAccess {
            read: Some(Vec::new()),
            ..RequestedAccess::default()
        },
        execution: Execution::default(),
        limits: BTreeMap::new(),
        ..manifest.clone()
    };
    Subject {
        manifest: &bare,
        site,
        language: None,
        narrow: false,
        owners: &[],
    }
    .decide(policies, machine)
}

/// The tools that run scripts and code request what a policy that names their exact id lets them
/// read, and code the tools that it lets them call: they have no author who could ask for it.
fn with_named_reads(mut tool: Manifest, place: &Path, policies: &Policies) -> Manifest {
    let runs_scripts = matches!(
        &tool.handler,
        Handler::ServiceMethod { service, .. } if service == SCRIPT_SERVICE
    );
    if runs_scripts && policies.names_exactly(&tool.id, place) {
        let (policy, _) = policies.governing(&tool.id, place);
        let absolute = policy.files.read.iter().filter(|rule| !rule.relative);
        let patterns = absolute.filter_map(|rule| pattern::parse(&rule.text).ok());
        if tool.id == RUN_CODE {
            tool.requested.read.get_or_insert_default();
            let calls = policy.calls.iter().map(|entry| entry.grant.tool.clone());
            tool.calls.extend(calls);
        }
        if let Some(read) = &mut tool.requested.read {
            read.extend(patterns);
        }
    }
    tool
}

/// A skill has no author who could request anything: beside what a person asks for it, it requests
/// what the policy allows that names it, or its namespace.
fn requesting_what_is_allowed(skill: &Manifest, place: &Path, policies: &Policies) -> Manifest {
    let mut skill = skill.clone();
    let (policy, _) = policies.governing(&skill.id, place);
    let mut named = policy.tools.iter().map(|named| &named.selector);
    if named.all(|it| matches!(it, Selector::Any) || !it.matches(&skill.id)) {
        return skill;
    }
    let patterns = |rules: &[Rule]| -> Vec<Pattern> {
        let texts = rules.iter().map(|rule| pattern::parse(&rule.text));
        texts.filter_map(Result::ok).collect()
    };
    let requested = &mut skill.requested;
    let read = requested.read.get_or_insert_default();
    read.extend(patterns(&policy.files.read));
    requested.write.extend(patterns(&policy.files.write));
    let hosts = policy.hosts.iter();
    let hosts = hosts.map(|it| it.grant.pattern.clone());
    requested.hosts.extend(hosts);
    skill
}

/// Decides what one script of a skill may do: what the skill was granted, if a person approved that.
pub fn decide_skill_script(
    skill: &Arc<Manifest>,
    RunTarget { site, language }: &RunTarget,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let whole = ToolPaths {
        script: None,
        ..site.clone()
    };
    Subject {
        manifest: &requesting_what_is_allowed(skill, &site.manifest, policies),
        site,
        language: Some(*language),
        narrow: true,
        owners: &[(skill.clone(), whole)],
    }
    .decide(policies, machine)
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
/// the caller finds). Source text has no files but scratch and no hosts, and a policy must name the
/// tool by its exact id.
pub fn decide_run(
    target: &RunTarget,
    tool: &Manifest,
    owners: &[(Arc<Manifest>, ToolPaths)],
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let is_source = target.site.script.is_none();
    let mut bare = tool.clone();
    if is_source {
        bare.requested.read = Some(Vec::new());
        bare.requested.write = Vec::new();
        bare.requested.hosts = Vec::new();
    }
    let bare = with_named_reads(bare, Path::new(""), policies);
    // The builtin's own manifest has no file; the manifests that name the script are protected
    // through `owners`.
    let own = if is_source {
        ToolPaths {
            folder: crate::sandbox::CALL_FOLDER.into(),
            base: PathBuf::new(),
            ..target.site.clone()
        }
    } else {
        target.site.clone()
    };
    let site = ToolPaths {
        manifest: PathBuf::new(),
        ..own
    };
    Subject {
        manifest: &bare,
        site: &site,
        language: Some(target.language),
        narrow: true,
        owners: if is_source { &[] } else { owners },
    }
    .decide(policies, machine)
}

impl Subject<'_> {
    fn decide(&self, policies: &Policies, machine: &Machine) -> Decision {
        let owners: Vec<Decision> = self
            .owners
            .iter()
            .map(|owner| decide(&owner.0, &owner.1, policies, machine))
            .collect();
        let owned: Vec<Policy> = owners.iter().map(as_policy).collect();
        let (policy, _) = policies.governing(&self.manifest.id, &self.site.manifest);
        let case = Case {
            subject: *self,
            policies,
            machine,
            ceilings: Ceilings::new(policy, policies.host.as_ref(), &owned),
            owners: &owners,
        };
        case.decide()
    }
}

/// A subject with all that bounds it.
struct Case<'a> {
    subject: Subject<'a>,
    policies: &'a Policies,
    machine: &'a Machine,
    ceilings: Ceilings<'a>,
    /// The decisions about the tools that name the script.
    owners: &'a [Decision],
}

impl Case<'_> {
    fn decide(&self) -> Decision {
        let governing = self.governing();
        let mut answers = Answers::default();
        let grants = self.grants(&mut answers);
        let mut conditions = self.conditions();
        let manifest = self.subject.manifest;
        conditions.ready = ready::grant_of(manifest, &self.ceilings, &grants, &conditions);
        conditions.sessions = sessions::grant_of(manifest, &self.ceilings, &grants, &conditions);
        let mut notes = self.notes(&governing, &grants, &answers.verdicts);
        if let Some(Err(why)) = &conditions.ready {
            notes.all.push(format!("[ready] has no effect: {why}"));
        }
        if let Some(Err(why)) = &conditions.sessions {
            notes.all.push(format!("sessions has no effect: {why}"));
        }
        if conditions.mcp.as_ref().is_some_and(|it| it.shared) {
            let words = "high risk: `shared` lets each caller see what others left in its process";
            notes.all.push(words.to_owned());
        }
        let limits = self.limits(&mut notes);
        if self.ceilings.policy.fault.is_some() {
            // Nothing is granted because of this fault, so verdicts would give wrong reasons.
            answers.verdicts.clear();
        }
        let mut decision = Decision {
            identity: self.identity(),
            governing,
            grants,
            packages: self.packages(),
            limits,
            conditions,
            approval: None,
            verdicts: answers.verdicts,
            notes,
            lacks: answers.lacks,
            lacks_below: Vec::new(),
            shape: Err(faults::in_process()),
        };
        decision.approval = self.approval(&decision);
        let requires = self
            .policies
            .approval_rule(manifest, &self.subject.site.manifest);
        if requires.is_some() && manifest.id == RUN_CODE {
            decision.notes.all.push(SOURCE_TEXT.to_owned());
        }
        let note = decision.approval.as_ref().and_then(|it| it.note.clone());
        decision.notes.all.extend(note);
        if decision.approval.is_some() {
            // What is resolved at a call was not approved.
            let allowed = decision.packages.allowed.values_mut().flatten();
            allowed.for_each(|allowed| allowed.rules.lock_required = true);
        }
        decision.shape = match self.fault(&decision) {
            Some(fault) => Err(fault),
            None => self.shape(&decision).map(Arc::new),
        };
        decision
    }

    /// What a person approved of it, where that counts. What this binary brings needs no approval,
    /// and source text is allowed by policy alone.
    fn approval(&self, decision: &Decision) -> Option<Approval> {
        let Subject { manifest, site, .. } = self.subject;
        let required = self.policies.approval_rule(manifest, &site.manifest);
        if site.manifest.as_os_str().is_empty() || !self.owners.is_empty() {
            return approval_of_run(required, site.script.as_ref()?, self.owners);
        }
        (required.is_some() || manifest.approval.is_some()).then(|| {
            let now = ToolNow::new(decision, manifest, site, self.policies);
            approval_of(now, decision, manifest, self.policies, required)
        })
    }

    fn identity(&self) -> Identity {
        let Subject {
            manifest,
            site,
            language,
            ..
        } = self.subject;
        Identity {
            tool: format!("{}@{}", manifest.id, manifest.version),
            script: site.script.clone(),
            folder: site.folder.clone(),
            labels: manifest.metadata.permissions.clone(),
            in_process: language.is_none(),
            at_client: manifest.client_tool().is_some(),
            starts_scripts: matches!(
                &manifest.handler,
                Handler::ServiceMethod { service, .. } if service == SCRIPT_SERVICE
            ) || manifest.skill().is_some(),
        }
    }

    fn governing(&self) -> Governing {
        let id = &self.subject.manifest.id;
        let place = &self.subject.site.manifest;
        let (policy, passed_over) = self.policies.governing(id, place);
        let is_source = self.subject.language.is_some() && self.subject.site.script.is_none();
        // SHA-256 over the digest and the name of each policy that bounds the tool.
        let lines: Vec<String> = self
            .ceilings
            .policies()
            .map(|policy| format!("{} {}\n", policy.digest, policy.name))
            .collect();
        Governing {
            policy: policy.name.clone(),
            file: policy.file.clone(),
            exact: policy
                .tools
                .iter()
                .any(|named| matches!(&named.selector, Selector::Exact(exact) if exact == id)),
            narrow: self.subject.narrow || policy.mode == Mode::Narrow,
            passed_over,
            unnamed: (is_source || id == RUN_CODE) && !self.policies.names_exactly(id, place),
            digest: crate::base::sha256_hex(lines.concat().as_bytes()),
        }
    }

    /// What the tool gets of all that it requests. Secrets come after hosts and files, which they
    /// depend on.
    fn grants(&self, answers: &mut Answers) -> Grants {
        let Subject {
            manifest,
            site,
            language,
            owners,
            ..
        } = self.subject;
        let denials = HardDenials {
            tool: &manifest.id,
            site,
            owners,
            protected: &self.policies.protected,
            machine: self.machine,
        };
        let requests = FileRequests {
            site,
            ceilings: &self.ceilings,
            denials: &denials,
        };
        let files = requests.grants_of(manifest, answers);
        let hosts = hosts::grants_of(&manifest.requested.hosts, &self.ceilings, answers);
        answers.lacks.extend(self.missing_labels());
        let granted = GrantedFiles {
            grants: &files,
            folder: &site.folder,
        };
        capability::answer(manifest, &self.ceilings, self.machine, &granted, answers);
        let secrets = secrets::grants_of(manifest, &self.ceilings, &hosts, &files, answers);
        let service = services::grant_of(manifest, &self.ceilings, self.machine, answers);
        let calls = calls::grants_of(&manifest.calls, &self.ceilings, answers);
        let variables = capability::variables_of(manifest, self.machine, answers);
        let runtime = language.and_then(|language| {
            runtime::runtime_of(language, site, self.ceilings.policy, self.machine, answers)
        });
        answers.lacks.extend(
            runtime
                .as_ref()
                .and_then(|runtime| runtime::missing_types(runtime, site)),
        );
        let requires_cgroup = self.ceilings.policies().any(|policy| policy.require_cgroup);
        if requires_cgroup && !self.machine.cgroup && language.is_some() {
            let words = "exact accounting by a cgroup, which the policy requires";
            answers.lacks.push(Need::by_policy("", words));
        }
        Grants {
            files,
            hosts,
            secrets,
            service,
            calls,
            packages: None,
            runtime,
            variables,
        }
    }

    /// The labels that policy requires and the manifest does not declare.
    fn missing_labels(&self) -> impl Iterator<Item = Need> {
        let labels = &self.subject.manifest.metadata.permissions;
        let required = self
            .ceilings
            .policies()
            .flat_map(|policy| &policy.require_permissions);
        required
            .filter(|label| !labels.contains(label))
            .map(|label| {
                let words = format!(
                    "the permission '{}' declared in metadata.permissions, which policy requires",
                    text::printable(label)
                );
                Need::by_policy("/metadata/permissions", words)
            })
    }

    fn conditions(&self) -> Conditions {
        let manifest = self.subject.manifest;
        let mut confirm: Vec<Confirm> = self
            .ceilings
            .policies()
            .filter_map(Confirm::of_policy)
            .collect();
        for why in self
            .owners
            .iter()
            .flat_map(|owner| &owner.conditions.confirm)
        {
            if !confirm.contains(why) {
                confirm.push(why.clone());
            }
        }
        let mut stderr = self.ceilings.policies().map(|policy| policy.stderr);
        Conditions {
            callers: self
                .policies
                .callers()
                .map(|callers| callers.grants(&manifest.id)),
            confirm,
            require_cgroup: self.ceilings.policies().any(|policy| policy.require_cgroup),
            observe: self.ceilings.policies().any(|policy| policy.observe),
            stderr_is_error: manifest.execution.stderr == StderrRule::Error
                || stderr.any(|rule| rule == StderrRule::Error),
            text_output: manifest.execution.text_output
                || self.owners.iter().any(|owner| owner.conditions.text_output),
            answers: self
                .owners
                .iter()
                .flat_map(|owner| &owner.conditions.answers)
                .chain(&manifest.execution.answers)
                .copied()
                .collect(),
            command_line: manifest.execution.command_line.clone().or_else(|| {
                let mut owners = self.owners.iter();
                owners.find_map(|owner| owner.conditions.command_line.clone())
            }),
            context: manifest.execution.context
                || self.owners.iter().any(|owner| owner.conditions.context),
            ready: None,
            sessions: None,
            mcp: mcp::grant_of(manifest, &self.ceilings),
        }
    }

    fn notes(&self, governing: &Governing, grants: &Grants, verdicts: &[Verdict]) -> Notes {
        let passed_over = governing.passed_over.iter();
        let mut notes = Notes {
            all: passed_over.map(|policy| policy.words.clone()).collect(),
            for_caller: Vec::new(),
        };
        let refusing = verdicts.iter().filter(|verdict| verdict.refuses());
        for verdict in refusing.filter(|it| governing.narrow && it.what != RequestKind::Service) {
            notes.narrowed(verdict.narrowing());
        }
        let links = self.subject.site.links.first();
        notes.all.extend(links.map(|link| {
            let folder = text::path(&self.subject.site.folder);
            format!(
                "its folder is {folder}: the link {} leads there",
                text::path(link)
            )
        }));
        // A script reaches the files of all tools of its base folder.
        let base = Area::Tree(self.subject.site.base.clone());
        let is_base = |grant: &Grant| grant.area == base;
        if self.subject.language.is_some() && grants.files.iter().any(is_base) {
            let words = "opens a whole script base folder, the files of other tools included; give \
                the script a folder of its own";
            notes.all.push(words.to_owned());
        }
        notes
    }

    fn limits(&self, notes: &mut Notes) -> Vec<LimitVerdict> {
        let usual_ms = self.owners.iter().map(|owner| owner.time(None)).min();
        limits::limits_of(
            self.subject.manifest,
            &self.ceilings,
            usual_ms.unwrap_or(u64::MAX),
            self.machine.cgroup,
            notes,
        )
    }

    /// What is allowed in the ecosystems whose packages the script can have, or any script that a
    /// tool inside the host runs.
    fn packages(&self) -> PackageDecision {
        let language = match (self.subject.language, &self.subject.manifest.handler) {
            (None, Handler::ServiceMethod { language, .. }) => *language,
            (language, _) => language,
        };
        let ecosystems = Ecosystem::ALL.into_iter().filter(|it| {
            language.is_none_or(|language| Ecosystem::for_language(language) == Some(*it))
        });
        PackageDecision {
            allowed: ecosystems
                .map(|it| (it, packages::allowed(it, &self.ceilings)))
                .collect(),
            ..PackageDecision::default()
        }
    }

    /// The fault of every call, if there is one.
    fn fault(&self, decision: &Decision) -> Option<Fault> {
        let policy = self.ceilings.policy.fault.as_deref();
        let tool = &decision.identity.tool;
        self.owners
            .iter()
            .find_map(refused_with)
            .or_else(|| policy.map(|fault| faults::faulty_policy(fault, tool)))
            .or_else(|| faults::refusal(decision))
            .or_else(|| Some(self.policies.stops.of(tool).next()?.fault(tool)))
            .or_else(|| decision.approval.as_ref()?.fault(&decision.identity.tool))
            .or_else(|| faults::unavailable(decision, self.subject.manifest))
    }

    /// The certificates that the policy names for these hosts.
    fn authorities(&self, hosts: &[HostGrant]) -> Vec<PathBuf> {
        let named = self.ceilings.policy.authorities.iter();
        named
            .filter(|authority| {
                hosts
                    .iter()
                    .any(|host| authority.pattern.overlap(&host.pattern).is_some())
            })
            .map(|authority| authority.file.clone())
            .collect()
    }

    /// The shape, which the sandbox enforces.
    fn shape(&self, decision: &Decision) -> Result<Shape, Fault> {
        let Some(runtime) = &decision.grants.runtime else {
            return Err(faults::in_process());
        };
        let script = self.subject.manifest.handler.script();
        let entry_point = script.and_then(|script| script.entry_point.clone());
        let server = self.subject.manifest.mcp_server();
        let skill = self.subject.manifest.skill();
        let Decision {
            identity,
            grants,
            conditions,
            ..
        } = decision;
        let mut shape = Shape {
            script: identity.script.clone(),
            entry_point,
            output: skill.map(|_| identity.folder.join(OUTPUT)),
            folder: identity.folder.clone(),
            grants: grants.files.clone(),
            network: grants.network(),
            authorities: self.authorities(&grants.hosts),
            local_sockets: decision.has(CapabilityKind::LocalSockets),
            secrets: grants.secrets.clone(),
            calls: grants.calls.clone(),
            limits: limits::of_shape(&decision.limits),
            env: grants.variables.clone(),
            approved: decision.approved_code().cloned(),
            require_cgroup: conditions.require_cgroup,
            observe: conditions.observe,
            stderr_is_error: conditions.stderr_is_error,
            text_output: conditions.text_output,
            answers: conditions.answers.clone(),
            command_line: conditions.command_line.clone(),
            // Of source text only Python's has a shim in which it waits.
            ready: decision
                .ready()
                .cloned()
                .filter(|_| identity.script.is_some() || runtime.language == Language::Python),
            sessions: decision
                .sessions()
                .cloned()
                .filter(|_| sessions::are_in(runtime.language)),
            mcp: conditions.mcp.clone(),
            args: server.map_or_else(Vec::new, |server| server.args.clone()),
            ..Shape::bare(&identity.tool, runtime.clone())
        };
        // Only this tool's own grants are known here: `service` adds what other tools may write.
        shape.written = written_areas(&shape, &[]);
        // A shape is kept, printed and hashed as JSON, which cannot hold a path that is not UTF-8.
        if serde_json::to_vec(&shape).is_err() {
            return Err(faults::not_utf8(&identity.folder));
        }
        Ok(shape)
    }
}
