//! Who can: the tools that can read, write or reach something, by the decisions about the whole
//! registry.
//!
//! A tool whose answer depends on the call is listed with that condition.

use crate::base::address::special;
use crate::base::place::Mounts;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::manifest::host::{self, Host, HostPattern};
use crate::policy::grammar::files::SCRIPT_FOLDER;
use crate::policy::grammar::{
    Access, Area, CallerGrant, Ecosystem, Grant, Grantable, HostGrant, PlacedArea, Secret, area,
    capability, versions,
};
use crate::policy::verdicts::Decision;
use crate::sandbox::base_view::{SYSTEM_ETC, SYSTEM_FOLDERS};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Read(PathBuf),
    Write(PathBuf),
    /// Without a port: at any.
    Reach(HostPattern),
    Secret(String),
    Call(String),
    Service(String),
    /// Be started before its calls.
    Ready(String),
    Session(String),
    /// Run because a person approved it.
    Approved(String),
    /// By its name, and its version or a range of them.
    Package(String, Option<String>),
}

/// One tool that can, and by which grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAccess {
    pub tool: String,
    /// `all of it`, `a part of it`, `if the script that it runs lies in a folder above it`, …
    pub how: String,
    pub grant: String,
    pub rule: String,
    pub why: String,
}

/// `read:PATH`, `write:PATH` (absolute, plain), `reach:HOST`, with or without a port,
/// `secret:NAME`, `ready:TOOL`, `session:TOOL`, `approved:TOOL`, or `package:NAME`, with or without `@VERSION`.
pub fn question(text: &str) -> Result<Question, String> {
    let help = "ask read:PATH, write:PATH, reach:HOST[:PORT], secret:NAME, package:NAME[@VERSION], \
        service:ID, ready:TOOL, session:TOOL, approved:TOOL or call:TOOL";
    let (verb, target) = text
        .split_once(':')
        .filter(|(_, target)| !target.is_empty())
        .ok_or(help)?;
    let path = || {
        let path = Some(Path::new(target)).filter(|path| path.is_absolute());
        let path = path.and_then(|path| area::join(Path::new("/"), path));
        path.ok_or("the path must be without `..`, from the root or from the current folder")
    };
    Ok(match verb {
        "read" => Question::Read(path()?),
        "write" => Question::Write(path()?),
        "reach" => Question::Reach(host::parse_pattern(target)?),
        "secret" => match capability::unknown(text) {
            None => Question::Secret(target.to_owned()),
            Some(why) => return Err(why),
        },
        "call" => Question::Call(target.to_owned()),
        "package" => package(target)?,
        "service" => Question::Service(target.to_owned()),
        "ready" => Question::Ready(target.to_owned()),
        "session" => Question::Session(target.to_owned()),
        "approved" => Question::Approved(target.to_owned()),
        _ => return Err(help.to_owned()),
    })
}

/// `@scope/name@1.2.3` is a name with a version, too.
fn package(target: &str) -> Result<Question, String> {
    let at = target.rfind('@').filter(|at| *at > 0);
    let (name, version) = at.map_or((target, None), |at| {
        (&target[..at], Some(&target[at + 1..]))
    });
    fn is_known(has: &dyn Fn(Ecosystem) -> bool) -> bool {
        Ecosystem::ALL.into_iter().any(has)
    }
    if !is_known(&|it| versions::name(it, name).is_some())
        || !version.is_none_or(|text: &str| {
            !text.is_empty()
                && is_known(&|it| {
                    versions::version(it, text).is_some() || versions::is_range(it, text)
                })
        })
    {
        return Err(
            "not a package: write its name, alone or with `@` and a version or a range (`<2`)"
                .to_owned(),
        );
    }
    Ok(Question::Package(
        name.to_owned(),
        version.map(str::to_owned),
    ))
}

/// `bases`: the folders scripts are found under; a builtin tool can run any of those.
pub fn answer(decisions: &[Decision], question: &Question, bases: &[PathBuf]) -> Vec<ToolAccess> {
    let granted = decisions
        .iter()
        .filter(|decision| decision.refused().is_none_or(is_unavailable));
    let granted: Vec<&Decision> = granted.collect();
    let own = granted.iter();
    let mut answers: Vec<ToolAccess> = own
        .flat_map(|decision| about(decision, question, bases))
        .collect();
    // Whoever calls such a tool is neither started before that nor has its packages.
    if !matches!(question, Question::Ready(_) | Question::Package(..)) {
        add_callers(&granted, question, &mut answers);
    }
    answers
}

/// Adds the tools whose code may call one that can, and those that reach one through others.
fn add_callers(decisions: &[&Decision], question: &Question, answers: &mut Vec<ToolAccess>) {
    let mut next = 0;
    while let Some(reached) = answers.get(next).cloned() {
        next += 1;
        let of_tool = |tool: &str| decisions.iter().find(|it| it.identity.tool == tool);
        let Some(target) = of_tool(&reached.tool) else {
            continue;
        };
        for caller in decisions {
            let tool = &caller.identity.tool;
            let is_listed = |it: &ToolAccess| it.tool == *tool && it.grant == reached.grant;
            let Some(grant) = caller.grant_to_call(target) else {
                continue;
            };
            if !answers.iter().any(is_listed) {
                let how = match question {
                    Question::Call(id) if names(target, id) => "from its code".to_owned(),
                    _ => format!("from its code, through {}", reached.tool),
                };
                answers.push(ToolAccess {
                    tool: tool.clone(),
                    how,
                    grant: reached.grant.clone(),
                    rule: grant.rule.clone(),
                    why: grant.why.clone(),
                });
            }
        }
    }
}

/// Whether only this machine, as it is now, lacks something for the tool, or the operator disabled
/// it for now.
fn is_unavailable(fault: &Fault) -> bool {
    matches!(fault.kind, Kind::CapabilityError | Kind::AuthorizationError)
}

/// The answers for one tool: how much of what was asked about it has, by which grant and rule, and
/// why.
fn about(decision: &Decision, question: &Question, bases: &[PathBuf]) -> Vec<ToolAccess> {
    let grants = &decision.grants;
    let mut answers = match question {
        Question::Read(path) => readers(decision, path, bases),
        Question::Write(path) => by_files(decision, Access::Write, path, bases),
        Question::Reach(host) => {
            let reaching = grants.hosts.iter();
            reaching
                .filter_map(|grant| {
                    let how = reaches(grant, host)?;
                    Some(ToolAccess::new(how, grant.text(), &grant.rule, &grant.why))
                })
                .collect()
        }
        Question::Secret(name) => {
            let usable = grants.secrets.iter().filter(|grant| grant.name == *name);
            usable
                .map(|it| {
                    let how = match it.header {
                        Some(_) => "without having it",
                        None => "and has it",
                    };
                    ToolAccess::new(how, Secret::new(it).text(), &it.rule, &it.why)
                })
                .collect()
        }
        Question::Call(id) => callers(decision, id),
        Question::Ready(id) => {
            let grant = decision.ready().filter(|_| names(decision, id));
            grant
                .map(|it| ToolAccess::new("each for one call", it.text(), &it.rule, &it.why))
                .into_iter()
                .collect()
        }
        Question::Session(id) => {
            let session = decision.sessions().into_iter();
            let session =
                session.map(|it| ToolAccess::new("for one caller", it.text(), &it.rule, &it.why));
            let server = decision.conditions.mcp.iter();
            let server =
                server.map(|it| ToolAccess::new("as a server", it.text(), &it.rule, &it.why));
            session
                .chain(server)
                .filter(|_| names(decision, id))
                .collect()
        }
        Question::Approved(id) => {
            let approval = decision.approval.as_ref();
            let approval = approval.filter(|it| it.is_met() && names(decision, id));
            let what = "definition, code and grants".to_owned();
            approval
                .map(|it| ToolAccess::new("as it is", what, &it.required_by, &it.state.words()))
                .into_iter()
                .collect()
        }
        Question::Service(id) => {
            let grant = grants.service.iter().filter(|grant| grant.service == *id);
            grant
                .map(|grant| {
                    let how = if grant.user {
                        "and sends the caller's name"
                    } else {
                        "without the caller's name"
                    };
                    ToolAccess::new(how, grant.text(), &grant.rule, &grant.why)
                })
                .collect()
        }
        Question::Package(name, version) => {
            let all = std::iter::once(decision).chain(&decision.packages.runs);
            all.filter_map(|it| {
                let grant = it.grants.packages.as_ref()?;
                let how = has(it, name, version.as_deref())?;
                let why = &grant.rules.why;
                Some(ToolAccess::new(&how, grant.text(), &grant.rule, why))
            })
            .collect()
        }
    };
    for answer in &mut answers {
        answer.tool = decision.identity.tool.clone();
        if decision.refused().is_some() {
            answer.how.push_str(", but it is unavailable here now");
        }
    }
    answers
}

impl ToolAccess {
    /// Of a tool that is named later.
    fn new(how: &str, grant: String, rule: &str, why: &str) -> ToolAccess {
        ToolAccess {
            tool: String::new(),
            how: how.to_owned(),
            grant,
            rule: rule.to_owned(),
            why: why.to_owned(),
        }
    }
}

fn readers(decision: &Decision, path: &Path, bases: &[PathBuf]) -> Vec<ToolAccess> {
    let mut answers = by_files(decision, Access::Read, path, bases);
    let script = decision.identity.script.as_deref();
    let script = script.filter(|_| answers.is_empty());
    let always = readable_by_default(decision, path, script).into_iter();
    answers.extend(
        always.map(|(root, how, why)| {
            ToolAccess::new(how, root.display().to_string(), "built-in", why)
        }),
    );
    answers
}

fn by_files(
    decision: &Decision,
    access: Access,
    path: &Path,
    bases: &[PathBuf],
) -> Vec<ToolAccess> {
    let mounts = Mounts::current();
    let grants = decision.grants.files.iter();
    grants
        .filter(|grant| grant.access >= access)
        .filter_map(|grant| {
            let how = holds(grant, path, bases, &mounts)?;
            Some(ToolAccess::new(
                how,
                grant.area.text(),
                &grant.rule,
                &grant.why,
            ))
        })
        .collect()
}

/// Whether this id, with or without a version, is the tool's.
fn names(decision: &Decision, id: &str) -> bool {
    let tool = &decision.identity.tool;
    tool.split('@').next() == Some(id) || tool == id
}

fn callers(decision: &Decision, id: &str) -> Vec<ToolAccess> {
    if !names(decision, id) {
        return Vec::new();
    }
    let condition = if decision.conditions.confirm.is_empty() {
        ""
    } else {
        "; a person agrees to each call"
    };
    let callers = decision.conditions.callers.clone();
    callers
        .unwrap_or_else(|| vec![CallerGrant::anybody()])
        .iter()
        .map(|it| ToolAccess::new(&it.name, it.text() + condition, &it.rule, &it.why))
        .collect()
}

/// How a tool has a package. `None`: it does not have it.
fn has(decision: &Decision, name: &str, version: Option<&str>) -> Option<String> {
    let grant = decision.grants.packages.as_ref()?;
    let required = decision.packages.required.as_deref()?;
    let ecosystem = grant.ecosystem;
    let name = versions::name(ecosystem, name)?;
    let fits = |held: &str| match version {
        None => true,
        Some(asked) => {
            let exact = format!("=={asked}");
            let ranges = [
                asked,
                if ecosystem == Ecosystem::Python {
                    &exact
                } else {
                    asked
                },
            ];
            ranges
                .iter()
                .any(|range| versions::holds(ecosystem, range, held) == Some(true))
        }
    };
    if required.locked {
        let held = required
            .packages
            .iter()
            .filter(|package| package.name == name && fits(&package.version));
        let held: Vec<&str> = held.map(|package| package.version.as_str()).collect();
        return (!held.is_empty()).then(|| format!("locked at {}", held.join(" and ")));
    }
    let state = if required.lacks_lock(&grant.rules) {
        ", and has no lock yet"
    } else {
        ", not locked"
    };
    match required
        .requires
        .iter()
        .find(|required| required.name == name)
    {
        Some(required) => {
            let range = format!("{} {}", required.name, required.versions);
            Some(format!("it asks for {}{state}", range.trim_end()))
        }
        None if required.lacks_lock(&grant.rules) => None,
        None => Some("if what it asks for requires it: it has no lock".to_owned()),
    }
}

/// How much of what is asked about the grant reaches; an address is also reached by a name that
/// leads to it.
fn reaches(grant: &HostGrant, asked: &HostPattern) -> Option<&'static str> {
    let own = &grant.pattern.host;
    let host = &asked.host;
    if asked
        .port
        .is_some_and(|port| !grant.pattern.ports().contains(&port))
    {
        return None;
    }
    if own.covers(host) {
        return Some("all of it");
    }
    match (own, host) {
        (Host::Address(_), Host::Address(_)) => None,
        (_, Host::Address(address))
            if (special(*address).is_none()
                || grant.ranges.iter().any(|range| range.contains(&*address))) =>
        {
            Some("if a name that it reaches has this address")
        }
        _ => host.covers(own).then_some("a part of it"),
    }
}

/// What a tool reads without a request: its script, where no grant holds it, its interpreter, and
/// system files.
fn readable_by_default<'d>(
    decision: &'d Decision,
    path: &Path,
    script: Option<&'d Path>,
) -> Vec<(&'d Path, &'static str, &'static str)> {
    let script = script.into_iter().map(|script| (script, "its own script"));
    let roots = decision
        .grants
        .runtime
        .iter()
        .flat_map(|runtime| &runtime.roots);
    let roots = roots.map(|root| (root.as_path(), "a file of its interpreter"));
    let system = SYSTEM_FOLDERS
        .iter()
        .chain(&SYSTEM_ETC)
        .map(|root| (Path::new(*root), "a system file, which every tool sees"));
    // One system folder is named, preferably one that holds the whole path.
    let mounts = Mounts::current();
    let whole = |(root, _): &(&Path, &str)| mounts.holds(root, path);
    let near = |(root, _): &(&Path, &str)| mounts.holds(root, path) || mounts.holds(path, root);
    let system = system.clone().find(whole).or(system.clone().find(near));
    let seen = script.chain(roots).filter(near).chain(system);
    seen.map(|seen| {
        (
            seen.0,
            if whole(&seen) {
                "all of it"
            } else {
                "a part of it"
            },
            seen.1,
        )
    })
    .collect()
}

fn holds(grant: &Grant, path: &Path, bases: &[PathBuf], mounts: &Mounts) -> Option<&'static str> {
    let area = &grant.area;
    if area.folder().starts_with(SCRIPT_FOLDER) {
        return bases
            .iter()
            .find_map(|base| below_a_script_folder(area, path, base));
    }
    let area = PlacedArea::new(area, mounts);
    let places = mounts.places(path);
    if area.holds(&places[0]) {
        return Some("all of it");
    }
    places
        .iter()
        .any(|place| area.lies_in(place))
        .then_some("a part of it")
}

/// As `holds`, for a grant that starts at the folder of a script which the call names: any folder
/// of a base may be it.
fn below_a_script_folder(area: &Area, path: &Path, base: &Path) -> Option<&'static str> {
    let above = path
        .ancestors()
        .take_while(|folder| folder.starts_with(base));
    if above
        .filter_map(|folder| area.moved(Path::new(SCRIPT_FOLDER), folder))
        .any(|area| area.holds(path))
    {
        return Some("if the script that it runs lies in a folder above it");
    }
    // A folder in a base, or around one, may hold the folder of a script; a file or a missing path
    // does not.
    let around = base.starts_with(path) || (path.starts_with(base) && path.is_dir());
    around.then_some("a part of it, if the script that it runs lies there or below")
}

pub fn text(question: &Question, answers: &[ToolAccess]) -> String {
    let asked = match question {
        Question::Read(path) => format!("read {}", path.display()),
        Question::Write(path) => format!("write {}", path.display()),
        Question::Reach(host) => format!("reach {host}"),
        Question::Secret(name) => format!("use the secret {name}"),
        Question::Call(id) => format!("call {id}"),
        Question::Ready(id) => format!("be started before a call of {id}"),
        Question::Session(id) => format!("keep a session of {id}"),
        Question::Approved(id) => format!("run as an approved {id}"),
        Question::Service(id) => format!("call the service {id}"),
        Question::Package(name, version) => {
            format!(
                "have the package {name} {}",
                version.as_deref().unwrap_or_default()
            )
        }
    };
    let asked = printable(asked.trim_end());
    if answers.is_empty() {
        let who = if matches!(question, Question::Call(_)) {
            "Nobody"
        } else {
            "No tool"
        };
        return format!("{who} can {asked}.\n");
    }
    fn line(a: &ToolAccess) -> String {
        format!(
            "{}: {} ({}), rule {}: {}",
            a.tool, a.how, a.grant, a.rule, a.why
        )
    }
    let lines: String = answers
        .iter()
        .map(|answer| format!("  {}\n", printable(&line(answer))))
        .collect();
    format!("These can {asked}:\n{lines}")
}
