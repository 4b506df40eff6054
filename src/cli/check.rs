//! `check`: every manifest and policy: what is wrong, where, and how to fix it.

mod advice;
mod proposals;
mod python;
mod refused;
mod typos;

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, words};
use crate::base::text::{self, printable};
use crate::executor::process::{Launchers, grants};
use crate::manifest::schema::Schema;
use crate::manifest::{Code, Problem, Severity};
use crate::service::alerts::AlertSettings;
use crate::service::{self, EarlyEnds, ready};
use crate::{policy, registry};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Files or folders to check (default: every folder of tools, scripts and policies)
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Warnings, comments and trailing commas are errors too
    #[arg(long)]
    pub strict: bool,
    /// One JSON object per file
    #[arg(long)]
    pub json: bool,
    /// Name what each Python script could do: run text as code, start processes, reach the network.
    /// Advice: to find nothing proves nothing, the confinement is what holds
    #[arg(long)]
    pub hints: bool,
    /// Name descriptions that say too little, and what lacks examples. The program of `[advice]` in
    /// the configuration is asked for better texts, which are shown and never applied
    #[arg(long)]
    pub advice: bool,
}

/// One file with everything found about it.
type File = registry::FileReport;

/// What was looked at.
struct Found {
    files: Vec<File>,
    /// Those that their interpreter has still to parse.
    scripts: Vec<python::Script>,
}

/// The policies and the machine. If they are known, files that a tool may write are reported, too.
type Rules = (Arc<policy::Policies>, Arc<policy::Machine>);

/// Checks the manifests of the configured folders, or of the given paths. A path outside the
/// folders is checked as if it were one of them. `registry`: an empty one, which may know where
/// tools wrote before.
fn look(
    registry: &registry::Registry,
    settings: &Settings,
    paths: &[PathBuf],
    rules: Option<Rules>,
    stricter: Option<Schema>,
) -> Found {
    let Settings {
        tools,
        scripts,
        skills,
        ..
    } = settings;
    let wanted: Vec<PathBuf> = paths
        .iter()
        .map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()))
        .collect();
    let known: Vec<PathBuf> = tools
        .iter()
        .chain(scripts)
        .chain(skills)
        .filter_map(|folder| folder.canonicalize().ok())
        .collect();
    // A linked folder is known by its link.
    let is_known = |path: &Path| known.iter().any(|folder| path.starts_with(folder));
    let elsewhere = wanted.iter().zip(paths).filter(|(path, given)| {
        !is_known(path) && !std::path::absolute(given).is_ok_and(|given| is_known(&given))
    });
    let elsewhere = elsewhere.map(|(path, _)| path.clone());
    let (folders, alone): (Vec<_>, Vec<_>) = elsewhere.partition(|path| path.is_dir());
    let folders = [tools.clone(), folders].concat();
    let alone = alone
        .into_iter()
        .filter(|path| path.is_file() && registry::is_manifest_file(&path.to_string_lossy()));
    if let Some((policies, machine)) = &rules {
        registry.set_policies(policies.clone(), machine.clone());
    }
    let mut files = Vec::new();
    let loader = registry::DirectToolLoader::new(folders, scripts.clone())
        .and_skills(skills.clone())
        .stricter(stricter)
        .and_files(alone.collect());
    for source in [
        Arc::new(registry::Builtin) as Arc<dyn registry::Source>,
        Arc::new(loader),
    ] {
        if let Err(why) = registry.add_source(source) {
            files.push(unreadable(PathBuf::from("(source)"), why));
        }
    }
    let snapshot = registry.snapshot();
    let mut reports = snapshot.reports.clone();
    let all = snapshot.list(&registry::Filter::default());
    typos::add_unknown_calls(&all, &mut reports, &settings.announced_namespaces());
    let scripts = match &rules {
        Some((policies, machine)) => refused::tell(&snapshot, policies, machine, &mut reports),
        None => Vec::new(),
    };
    if paths.is_empty() {
        files.extend(reports);
        return Found { files, scripts };
    }
    for (index, (path, given)) in wanted.iter().zip(paths).enumerate() {
        let below: Vec<_> = reports
            .iter()
            .filter(|report| report.path.starts_with(path))
            .cloned()
            .collect();
        if below.is_empty() && !path.is_dir() {
            let why = if given.symlink_metadata().is_ok() {
                format!(
                    "is not a manifest: its name must end with {}",
                    crate::registry::ENDINGS.join(", ")
                )
            } else {
                "does not exist".to_owned()
            };
            files.push(unreadable(given.clone(), why));
        }
        // A path given twice, or inside another one: each file is reported once.
        files.extend(below.into_iter().filter(|file| {
            !wanted[..index]
                .iter()
                .any(|earlier| file.path.starts_with(earlier))
        }));
    }
    Found { files, scripts }
}

fn unreadable(path: PathBuf, why: String) -> File {
    File::skipped(
        path,
        Problem::new(Severity::Error, Code::Unreadable, "", why),
    )
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let (policy_paths, paths) =
        args.paths
            .iter()
            .cloned()
            .partition::<Vec<_>, _>(|path: &PathBuf| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(policy::is_policy_file)
            });
    // Policies that cannot be used are reported with the files. Then `check` does not know what
    // they would forbid.
    let launchers = host::launchers(settings)?;
    let mut usable = host::policies(settings).ok();
    let stops = host::stops(settings);
    if let (Some(policies), Ok(stops)) = (&mut usable, &stops) {
        Arc::make_mut(policies).stops = stops.clone();
    }
    let rules = usable.clone().map(|policies| {
        let machine = Arc::new(host::machine(
            settings,
            &policies,
            launchers.sandbox.counted(),
        ));
        (policies, machine)
    });
    let stricter = host::manifest_schema(settings)?;
    let registry = registry::Registry::new();
    host::load_ledger(settings, &registry)?;
    let Found { mut files, scripts } = look(&registry, settings, &paths, rules, stricter);
    let launchers = Arc::new(launchers);
    python::check(&launchers, scripts, args.hints, &mut files)?;
    advise(settings, &args, &registry, &mut files)?;
    if !args.paths.is_empty() && paths.is_empty() {
        // Only policies were named: the tools were loaded to compare the policies with, and are not
        // reported.
        files.clear();
    }
    fn real(path: &Path) -> PathBuf {
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    }
    // The configured policies are checked together if a path holds them or one of them, and so is
    // each named folder that holds policies.
    let lies_in = |path: &Path, folder: &Path| real(path).parent() == Some(&*real(folder));
    let configured = settings
        .policies
        .iter()
        .filter(|all: &&PathBuf| {
            args.paths.is_empty()
                || paths.iter().any(|path| real(all).starts_with(real(path)))
                || policy_paths.iter().any(|path| lies_in(path, all))
        })
        .cloned();
    let holding = paths
        .iter()
        .filter(|path| super::diff::holds_policies(path))
        .cloned();
    let single = policy_paths
        .iter()
        .filter(|path| !settings.policies.iter().any(|all| lies_in(path, all)))
        .cloned();
    let what = PathBuf::from("(what is disabled)");
    files.extend(stops.err().map(|why| unreadable(what, why.to_string())));
    let alerts = settings.config.alerts.iter();
    let faults = alerts.filter_map(AlertSettings::fault);
    let what = PathBuf::from("(configuration)");
    files.extend(faults.map(|why| unreadable(what.clone(), why)));
    let mut seen = BTreeSet::new();
    let all = configured.chain(holding).chain(single);
    let mut policies: Vec<PathBuf> = all.filter(|path| seen.insert(real(path))).collect();
    // A folder of policies comes before its files, so that conflicts between files are found and
    // each is reported once.
    policies.sort_by_key(|path| !path.is_dir());
    let mut reported = BTreeSet::new();
    let snapshot = registry.snapshot();
    let found = policies
        .iter()
        .flat_map(|path| policy_files(path, settings, &launchers, &snapshot));
    files.extend(found.filter(|file| reported.insert(file.path.clone())));
    if args.strict {
        strict(&mut files);
    }
    if args.paths.is_empty() {
        host::say_nothing_found(settings, &snapshot);
        usable
            .and_then(|policies| super::list::withheld(&policies, &snapshot, &host::login()))
            .iter()
            .for_each(|why| words::note(why));
    }
    words::answer(&files.iter().map(entry).collect(), args.json, || {
        self::text(&files)
    });
    Ok(if files.iter().any(File::has_errors) {
        Exit::Caller
    } else {
        Exit::Ok
    }
    .into())
}

/// What a tool that no host is granted reaches the network by.
pub fn network_hint(known: &host::Tools, id: &str) -> Option<String> {
    let tool = known.snapshot.find(id).ok()?;
    let script = python::Script::new(&tool, &known.decide(&tool))?;
    let mut files = [File::loaded(tool.site.manifest.clone(), None, Vec::new())];
    python::check(&known.launchers, vec![script], true, &mut files).ok()?;
    let mut hints = files[0].problems.iter().map(|found| &found.message);
    let hint = hints.find(|hint| hint.ends_with(python::REACHES))?;
    let is_lacking = tool.manifest.requested.hosts.is_empty();
    is_lacking.then(|| {
        format!("{hint}, and no host is granted: `toolhost allow {id} --host HOST` grants one")
    })
}

fn advise(
    settings: &Settings,
    args: &Args,
    registry: &registry::Registry,
    files: &mut [File],
) -> anyhow::Result<()> {
    let program = settings.config.advice.as_ref();
    let command = program.map(|program| &*program.command);
    if args.advice {
        advice::add(command, &registry.snapshot(), files)?;
    }
    Ok(())
}

/// The policy files of a path with their problems, one entry for each file.
fn policy_files(
    path: &Path,
    settings: &Settings,
    launchers: &Launchers,
    snapshot: &registry::Snapshot,
) -> Vec<File> {
    // One file that cannot be read does not keep the others from being checked.
    let (policies, mut problems) = host::read_policies(settings, path);
    problems.extend(policies.faults().iter().cloned());
    let machine = host::machine(settings, &policies, launchers.sandbox.counted());
    problems.extend(policies.notes().iter().cloned());
    let mut files: BTreeMap<PathBuf, File> = BTreeMap::new();
    fn loaded(path: &Path) -> registry::FileReport {
        File::loaded(path.to_owned(), None, Vec::new())
    }
    for policy::FileProblem { path, problem } in problems {
        let file = files.entry(path.clone()).or_insert_with(|| loaded(&path));
        // The file is ignored or broken.
        if problem.severity == Severity::Error || problem.code == Code::Unreadable {
            file.status = registry::Status::Skipped;
        }
        file.problems.push(problem);
    }
    let tools = snapshot.list(&registry::Filter::default());
    let announced = settings.announced_namespaces();
    let unknown = typos::find(&policies, &tools, &snapshot.reports, &machine, &announced);
    for (path, found) in unknown {
        files
            .entry(path.clone())
            .or_insert_with(|| loaded(&path))
            .problems
            .extend(found);
    }
    let judged = Judged {
        snapshot,
        policies: &policies,
        tools: &tools,
        machine: &machine,
    };
    for (path, problem) in judged.refused_runs() {
        let file = files.entry(path.clone()).or_insert_with(|| loaded(&path));
        file.problems.push(problem);
    }
    let ends = judged.early_ends(settings);
    for (path, found) in ends
        .into_iter()
        .chain(without_sessions(&policies, &tools, &machine))
        .chain(ignored_grants(&policies, &tools))
    {
        let file = files.entry(path.clone()).or_insert_with(|| loaded(&path));
        file.problems.push(found);
    }
    files.into_values().collect()
}

/// Tools under the policies that are checked.
struct Judged<'a> {
    snapshot: &'a registry::Snapshot,
    policies: &'a policy::Policies,
    tools: &'a [Arc<registry::Tool>],
    machine: &'a policy::Machine,
}

impl Judged<'_> {
    /// The builtin tools that run no code of a language, each with the file of its policy.
    fn refused_runs(&self) -> Vec<(PathBuf, Problem)> {
        let builtin = self.tools.iter();
        let builtin = builtin.filter(|tool| tool.site.manifest.as_os_str().is_empty());
        let found = builtin.flat_map(|tool| {
            let decision =
                service::requirements::decide(tool, self.snapshot, self.policies, self.machine);
            let file = decision.governing.file;
            let runs = decision.packages.runs.into_iter();
            let faults = runs.filter_map(|run| run.refused().cloned());
            let id = tool.manifest.id.clone();
            faults.map(move |fault| {
                let why = fault.person.unwrap_or(fault.message);
                let message = format!("{id}: every call is refused: {}", why.replace('\n', " "));
                let problem =
                    Problem::new(Severity::Warning, Code::Dependency, "/packages", message);
                (file.clone(), problem)
            })
        });
        found.collect()
    }

    /// The tools whose processes ended too often before their calls, each with the file of its
    /// policy.
    fn early_ends(&self, settings: &Settings) -> Vec<(PathBuf, Problem)> {
        let Some(log) = &settings.audit_log else {
            return Vec::new();
        };
        let ends = EarlyEnds::read(log);
        let ready = self.tools.iter();
        let ready = ready.filter(|tool| tool.manifest.execution.ready);
        let found = ready.filter_map(|tool| {
            let decision = ready::decide(tool, self.snapshot, self.policies, self.machine);
            let script = tool.site.script.as_deref().map(grants::read_script);
            let script = script.transpose().ok()?;
            let why = ends.refusal(&ready::digest(tool, &decision, script.as_ref()))?;
            let message = format!("{}: {why}", tool.manifest.id);
            let problem = Problem::new(Severity::Warning, Code::Dependency, "/ready", message);
            Some((decision.governing.file, problem))
        });
        found.collect()
    }
}

/// The tools that run code of their callers, which could go on between calls.
fn without_sessions(
    policies: &policy::Policies,
    tools: &[Arc<registry::Tool>],
    machine: &policy::Machine,
) -> Vec<(PathBuf, Problem)> {
    let tools = tools
        .iter()
        .filter(|tool| policy::takes_source(&tool.manifest));
    let found = tools.filter_map(|tool| {
        let decision = policy::decide(&tool.manifest, &tool.site, policies, machine);
        if decision.is_denied() || decision.conditions.sessions.is_some() {
            return None;
        }
        let id = &tool.manifest.id;
        let line = policy::SESSIONS_LINE;
        let message = format!("{id}: code starts empty with each call; {line} lets it go on");
        let problem = Problem::new(Severity::Note, Code::Security, "", message);
        Some((decision.governing.file, problem))
    });
    found.collect()
}

/// Policies for tools of MCP servers whose grants have no effect: one process has the server's.
fn ignored_grants(
    policies: &policy::Policies,
    tools: &[Arc<registry::Tool>],
) -> BTreeMap<PathBuf, Problem> {
    let mut found = BTreeMap::new();
    for tool in tools.iter().filter(|it| it.manifest.mcp_tool().is_some()) {
        let server = &tool.manifest.of_process().id;
        let (own, _) = policies.governing(&tool.manifest.id, &tool.site.manifest);
        let (of_server, _) = policies.governing(server, &tool.site.manifest);
        let is_meant = own
            .tools
            .iter()
            .any(|named| named.selector != policy::Selector::Any);
        if own.file != of_server.file && is_meant && own.says_more_than_conditions() {
            let message = format!(
                "{} is a tool of {server}, whose policy gives grants and limits: those here are \
                 ignored, and only `confirm` and who may call count",
                tool.manifest.id
            );
            let problem = Problem::new(Severity::Warning, Code::Security, "/tools", message);
            found.entry(own.file.clone()).or_insert(problem);
        }
    }
    found
}

/// `--strict`: makes every warning an error, and every note about syntax that is not JSON.
fn strict(files: &mut [File]) {
    for file in files {
        for problem in file
            .problems
            .iter_mut()
            .filter(|p: &&mut Problem| p.severity != Severity::Note || p.code == Code::Syntax)
        {
            problem.severity = Severity::Error;
            file.status = registry::Status::Skipped;
        }
    }
}

/// The files with problems, and how many there are of each kind.
fn text(files: &[File]) -> String {
    fn state(file: &File) -> &str {
        match (file.status, file.has_errors()) {
            (registry::Status::Skipped, _) => "skipped",
            (_, true) => "REFUSED",
            (registry::Status::Unavailable, false) => "unavailable",
            (registry::Status::Loaded, false) => "ok",
        }
    }
    let mut out = String::new();
    for file in files.iter().filter(|file| !file.problems.is_empty()) {
        let tool = file
            .tool
            .iter()
            .map(|tool| format!(", {}", printable(tool)))
            .collect::<String>();
        out += &format!("{}: {}{tool}\n", text::path(&file.path), state(file));
        file.problems
            .iter()
            .for_each(|problem| out += &line(problem));
    }
    let all = |wanted| files.iter().filter(|file| state(file) == wanted).count();
    let count = |severity| {
        files
            .iter()
            .flat_map(|file| &file.problems)
            .filter(|p| p.severity == severity)
            .count()
    };
    let good = all("ok");
    let skipped = all("skipped");
    let others: String = [("REFUSED", "refused"), ("unavailable", "unavailable here")]
        .into_iter()
        .map(|(state, words)| (all(state), words))
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| format!("{count} {words}, "))
        .collect();
    let errors = count(Severity::Error);
    let warnings = count(Severity::Warning);
    out + &format!(
        "{good} good, {skipped} skipped, {others}{errors} error(s), {warnings} warning(s)"
    )
}

/// A problem below its file.
fn line(problem: &Problem) -> String {
    let Problem {
        severity,
        code,
        pointer,
        line,
        column,
        message,
    } = problem;
    let place = if *line == 0 {
        String::new()
    } else {
        format!("{line}:{column}: ")
    };
    let pointer = if pointer.is_empty() {
        String::new()
    } else {
        format!("{}: ", printable(pointer))
    };
    format!(
        "  {place}{}[{}]: {pointer}{}\n",
        word(severity),
        word(code),
        printable(message)
    )
}

/// The name that an enum value has in JSON.
fn word(value: impl Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}

/// One file as JSON. The fields of the worst problem are beside the path; `problems` has all of
/// them.
fn entry(file: &File) -> Value {
    // The first of the worst; `max_by_key` alone would take the last.
    let worst = json!(
        file.problems
            .iter()
            .rev()
            .max_by_key(|problem| problem.severity)
    );
    let mut entry =
        json!({ "path": file.path.to_string_lossy(), "status": file.status, "tool": file.tool });
    for name in ["code", "pointer", "line", "column", "message"] {
        entry[name] = worst[name].clone();
    }
    entry["problems"] = json!(file.problems);
    entry
}
