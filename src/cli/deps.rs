//! `toolhost deps`: locks, builds and entries of the packages that tools require.
//!
//! A lock that somebody else wrote is not overwritten; packages are built as for a call.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, terminal, words};
use crate::base::text::{self, printable};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::packages::store::BuiltEnvironment;
use crate::policy::packages::Ecosystem;
use crate::policy::{Advisories, advisories};
use crate::service::Service;
use crate::service::packages::{self, Need};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The first words of a lock that this program wrote.
const MARK: &str = "created-by = \"toolhost\"";
/// Packages of a lock that are shown.
const SHOWN: usize = 100;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Verb {
    /// Resolve what a tool requires, in the sandbox, and write the lock beside its script
    Lock {
        tool: String,
        /// Packages for source text, such as `numpy` or `pandas>=2`: for core:run-code and
        /// core:execute-*, whose policy names the lock
        packages: Vec<String>,
        /// Write a lock that comes with toolhost, and build its packages
        #[arg(long, conflicts_with = "packages")]
        preset: Option<Preset>,
        /// Write the lock to this file instead
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The language of the code, where the policy names a lock for each: python or nodejs
        #[arg(long, value_name = "L", value_parser = language)]
        language: Option<Language>,
        /// Overwrite a lock that toolhost did not write
        #[arg(long)]
        replace: bool,
    },
    /// Build the packages of a tool, or of all tools, ahead of calls
    Build { tool: Option<String> },
    /// Compare the locks of a tool, or of all tools, with known vulnerabilities; exit status 1 if
    /// there are any
    Audit {
        tool: Option<String>,
        /// OSV records on disk: a folder of JSON files, one file, or JSON lines (default: those
        /// that the tools' policies name)
        #[arg(long, value_name = "FOLDER|FILE")]
        advisories: Option<PathBuf>,
    },
    /// Show what was built, for one tool or all
    List { tool: Option<String> },
    /// Remove what was built for a tool, or all of it, and what was resolved without a lock; never
    /// what a call uses
    Clean { tool: Option<String> },
}

/// A lock that comes with toolhost.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Preset {
    /// numpy, pandas, matplotlib, openpyxl, pypdf, pillow
    DataPython,
}

impl Preset {
    fn text(self) -> &'static str {
        match self {
            Preset::DataPython => {
                include_str!("../../sandbox-policies/presets/data-python.pylock.toml")
            }
        }
    }
}

fn language(word: &str) -> Result<Language, String> {
    let known = Language::from_word(word).filter(|it| Ecosystem::for_language(*it).is_some());
    known.ok_or_else(|| "write python, nodejs or bun".to_owned())
}

/// The output of a verb, for a program and for a person.
struct VerbOutput {
    json: Value,
    lines: Vec<String>,
    exit: Exit,
}

impl VerbOutput {
    /// Of this verb and the next, whose exit code counts.
    fn then(self, next: VerbOutput) -> VerbOutput {
        VerbOutput {
            json: json!([self.json, next.json]),
            lines: [self.lines, next.lines].concat(),
            exit: next.exit,
        }
    }
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let Args { verb, json } = args;
    if matches!(verb, Verb::Audit { .. }) {
        // To find nothing in the wrong folder proves nothing.
        host::say_root(settings);
    }
    let next = match &verb {
        Verb::Lock {
            preset: Some(_),
            out: None,
            tool,
            ..
        } => Some(Verb::Build {
            tool: Some(tool.clone()),
        }),
        _ => None,
    };
    let mut report = match perform_alone(settings, verb)? {
        Ok(report) => report,
        Err(signal) => return Ok(signal),
    };
    if let Some(next) = next {
        match perform_alone(settings, next)? {
            Ok(next) => report = report.then(next),
            Err(signal) => return Ok(signal),
        }
    }
    words::answer(&report.json, json, || {
        if report.lines.is_empty() {
            "Nothing was built.".to_owned()
        } else {
            report.lines.join("\n")
        }
    });
    Ok(report.exit.into())
}

/// Performs a verb by a service of its own, which reads what the verb before it wrote.
fn perform_alone(settings: &Settings, verb: Verb) -> anyhow::Result<Result<VerbOutput, ExitCode>> {
    let done = host::with_service(
        settings,
        Some(words::note),
        async |service: &Arc<Service>| perform(service, verb).await,
    )?;
    Ok(match done {
        Ok(report) => Ok(report?),
        Err(signal) => Err(signal),
    })
}

/// Writes the lock of a tool, unless it lies there or nothing is required. The packages that it
/// holds, as JSON; `Err`: the exit code of the signal that ended this.
pub fn lock_missing(settings: &Settings, tool: &str) -> anyhow::Result<Result<Value, ExitCode>> {
    let done = host::with_service(settings, None, async |service: &Arc<Service>| {
        let Some(need) = packages::needs_unlocked(&service.catalog, tool)?.pop() else {
            return Ok(json!([]));
        };
        let folder = need.wanted.sources.first().and_then(|it| it.path.parent());
        let lies = folder.is_some_and(|folder| folder.join(&need.wanted.lock_file).exists());
        if need.wanted.locked || lies {
            return Ok(json!(need.wanted.packages));
        }
        let mut locked = lock(service, need, None, false).await?;
        Ok::<Value, Refusal>(locked.json["packages"].take())
    })?;
    Ok(match done {
        Ok(packages) => Ok(packages?),
        Err(signal) => Err(signal),
    })
}

async fn perform(service: &Service, verb: Verb) -> Result<VerbOutput, Refusal> {
    match verb {
        Verb::Lock {
            tool,
            packages,
            preset: None,
            out,
            language,
            replace,
        } => {
            if packages.is_empty() {
                return lock_beside(service, &tool, out, replace).await;
            }
            let (need, path) = packages::need_named(&service.catalog, &tool, &packages, language)?;
            lock(service, need, out.or(Some(path)), replace).await
        }
        Verb::Lock {
            tool,
            preset: Some(preset),
            out,
            replace,
            ..
        } => lock_preset(service, &tool, preset, out, replace),
        Verb::Build { tool } => build(service, tool.as_deref()).await,
        Verb::Audit { tool, advisories } => audit(service, tool.as_deref(), advisories),
        Verb::List { tool } => list(service, tool.as_deref()),
        Verb::Clean { tool } => clean(service, tool.as_deref()),
    }
}

fn nothing(tool: &str) -> Refusal {
    Refusal::new(
        Exit::Caller,
        format!(
            "{} requires no packages (those of a skill's script are built at its first call)",
            printable(tool)
        ),
    )
}

/// What one tool requires, or every tool that can be served; others are reported, with the exit
/// code that follows.
fn needs(service: &Service, tool: Option<&str>) -> Result<(Vec<Need>, Exit), Refusal> {
    if let Some(tool) = tool {
        let needs = packages::needs(&service.catalog, tool)?;
        if needs.is_empty() {
            return Err(nothing(tool));
        }
        return Ok((needs, Exit::Ok));
    }
    of_all(service, |id| packages::needs(&service.catalog, id))
}

/// What every tool that can be served has; others are reported, with the exit code that follows.
fn of_all<T>(
    service: &Service,
    of_tool: impl Fn(&str) -> Result<Vec<T>, Fault>,
) -> Result<(Vec<T>, Exit), Refusal> {
    let mut all = Vec::new();
    let mut worst = Exit::Ok;
    for tool in service
        .catalog
        .registry
        .snapshot()
        .list(&crate::registry::Filter::default())
    {
        let id = format!("{}@{}", tool.manifest.id, tool.manifest.version);
        match of_tool(&id) {
            Ok(more) => all.extend(more),
            Err(fault) if fault.kind == Kind::DependencyError => {
                let refusal = Refusal::from_fault(&fault);
                worst = refusal.exit;
                words::note(&format!("{id}: {}: {refusal}", fault.kind));
            }
            // `list` and `check` report other reasons why it cannot be called.
            Err(_) => {}
        }
    }
    Ok((all, worst))
}

fn show_progress(line: &str) {
    terminal::progress(line);
}

/// Locks what the files of a tool require, or each script of a skill.
async fn lock_beside(
    service: &Service,
    tool: &str,
    out: Option<PathBuf>,
    replace: bool,
) -> Result<VerbOutput, Refusal> {
    // Ignores the present lock: the requirements may have changed since.
    let mut needs = packages::needs_unlocked(&service.catalog, tool)?;
    if needs.len() > 1 && out.is_some() {
        return Err(Refusal::new(
            Exit::Caller,
            "it has several locks: leave --out out",
        ));
    }
    let last = needs.pop().ok_or_else(|| nothing(tool))?;
    let mut report = lock(service, last, out, replace).await?;
    for need in needs {
        report = report.then(lock(service, need, None, replace).await?);
    }
    Ok(report)
}

async fn lock(
    service: &Service,
    need: Need,
    out: Option<PathBuf>,
    replace: bool,
) -> Result<VerbOutput, Refusal> {
    if need.wanted.locked {
        let files: Vec<String> = need
            .wanted
            .sources
            .iter()
            .map(|source| text::path(&source.path))
            .collect();
        let why = format!(
            "{} is locked already ({}); remove its lock to lock it again",
            need.tool,
            files.join(", ")
        );
        return Err(Refusal::new(Exit::Caller, why));
    }
    let resolved = service.packages.lock(&need, &show_progress).await;
    terminal::end_progress();
    let resolved = resolved?;
    let folder = need
        .wanted
        .sources
        .first()
        .and_then(|source| source.path.parent());
    let beside = folder.map(|folder| folder.join(&need.wanted.lock_file));
    let path = out
        .or(beside)
        .ok_or_else(|| Refusal::new(Exit::Caller, "name a file with --out"))?;
    write_lock(&path, &resolved.text, replace)?;
    let packages = &resolved.wanted.packages;
    let mut lines = vec![format!(
        "{}: {} packages, written to {}",
        need.tool,
        packages.len(),
        text::path(&path)
    )];
    lines.extend(
        packages
            .iter()
            .take(SHOWN)
            .map(|package| format!("  {} {}", package.name, package.version)),
    );
    let more = packages.len().saturating_sub(SHOWN);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    if need.tool.starts_with("skill:") {
        // An approval binds to every file of the folder.
        let id = need.id();
        lines.push(format!("Its folder has changed: `toolhost approve {id}`"));
    }
    let json = json!({"tool": need.tool, "lock": path, "packages": packages});
    Ok(VerbOutput {
        json,
        lines,
        exit: Exit::Ok,
    })
}

/// Writes a lock that comes with toolhost, where the tool's policy names it.
fn lock_preset(
    service: &Service,
    tool: &str,
    preset: Preset,
    out: Option<PathBuf>,
    replace: bool,
) -> Result<VerbOutput, Refusal> {
    let of_policy = packages::need_named(&service.catalog, tool, &[], Some(Language::Python))?.1;
    let path = out.unwrap_or(of_policy);
    write_lock(&path, preset.text(), replace)?;
    Ok(VerbOutput {
        lines: vec![format!("{tool}: written to {}", text::path(&path))],
        json: json!({"tool": tool, "lock": path}),
        exit: Exit::Ok,
    })
}

/// Writes the lock, as a file of the person who asked for it.
fn write_lock(path: &Path, lock: &str, replace: bool) -> Result<(), Refusal> {
    // Reading a pipe would never end.
    if path.symlink_metadata().is_ok_and(|facts| !facts.is_file()) {
        return Err(Refusal::new(
            Exit::Caller,
            format!("{} is not a regular file", text::path(path)),
        ));
    }
    match std::fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Ok(there) if replace || there.contains(MARK) => {}
        _ => {
            let why = "exists already, and toolhost did not write it: --replace overwrites it";
            return Err(Refusal::new(
                Exit::Caller,
                format!("{} {why}", text::path(path)),
            ));
        }
    }
    words::write_file(path, lock, true)
        .map_err(|e: io::Error| Refusal::new(Exit::Host, format!("{}: {e}", text::path(path))))
}

async fn build(service: &Service, tool: Option<&str>) -> Result<VerbOutput, Refusal> {
    let (needs, mut worst) = needs(service, tool)?;
    let mut built = Vec::new();
    let mut lines = Vec::new();
    let all = needs.len();
    for (at, need) in needs.into_iter().enumerate() {
        let name = need.tool.clone();
        let head = format!("[{}/{all}] packages of {name}", at + 1);
        words::step(&head);
        let ready = service
            .packages
            .ready(need, Duration::MAX, |line| {
                terminal::progress(&format!("{head}: {line}"));
            })
            .await;
        terminal::end_progress();
        match ready {
            Ok(ready) => {
                let state = if ready.built {
                    "built"
                } else {
                    "was built already"
                };
                let entry = &ready.lease.entry;
                lines.push(format!(
                    "{name}: {state}: {} packages, {}",
                    entry.about.packages.len(),
                    words::size(entry.bytes)
                ));
                built.push(json!({"tool": name, "built": ready.built, "key": entry.key}));
            }
            Err(fault) => {
                let refusal = Refusal::from_fault(&fault);
                worst = refusal.exit;
                words::note(&format!("{name}: {}: {refusal}", fault.kind));
                built.push(json!({"tool": name, "error": fault}));
            }
        }
    }
    if built.is_empty() {
        lines.push("No tool requires packages.".to_owned());
    }
    Ok(VerbOutput {
        json: json!({ "tools": built }),
        lines,
        exit: worst,
    })
}

/// `named`: counts in place of what the policies name.
fn audit(
    service: &Service,
    tool: Option<&str>,
    named: Option<PathBuf>,
) -> Result<VerbOutput, Refusal> {
    let of_tool = |tool: &str| service.packages.held(&service.catalog, tool);
    let (all, worst) = match tool {
        Some(tool) => (of_tool(tool)?, Exit::Ok),
        None => of_all(service, of_tool)?,
    };
    let named = named.map(|path| Advisories {
        path,
        refuse: false,
        records: Arc::default(),
    });
    let named = named.as_ref().map(std::slice::from_ref);
    let mut hits = Vec::new();
    let mut lines = Vec::new();
    let mut uncompared = Vec::new();
    let mut unread: BTreeSet<String> = named.iter().flat_map(|by| faults(by)).collect();
    for held in &all {
        let by = named.unwrap_or(&held.advisories);
        if by.is_empty() {
            let why = "no policy names advisories for it, nor does --advisories";
            uncompared.push(json!({"tool": held.tool, "why": why}));
        } else if held.packages.is_empty() {
            uncompared.push(json!({"tool": held.tool, "why": "its packages are not locked"}));
        }
        unread.extend(faults(by));
        for hit in by
            .iter()
            .flat_map(|it| advisories::hits(it, held.ecosystem, &held.packages))
        {
            lines.push(printable(&format!("{}: {hit}", held.tool)));
            hits.push(json!({"tool": held.tool, "ecosystem": held.ecosystem, "known": hit}));
        }
    }
    unread.iter().for_each(|why| words::note(why));
    for it in &uncompared {
        let [tool, why] = ["tool", "why"].map(|name| printable(it[name].as_str().unwrap_or("")));
        lines.push(format!("{tool}: not compared: {why}"));
    }
    let left = match uncompared.len() {
        0 => String::new(),
        count => format!("; {count} not compared"),
    };
    lines.push(format!("{} known vulnerabilities{left}", hits.len()));
    let exit = if !hits.is_empty() {
        Exit::Tool
    } else if !unread.is_empty() || !uncompared.is_empty() {
        Exit::Caller
    } else {
        worst
    };
    let json = json!({"hits": hits, "unread": unread, "notCompared": uncompared});
    Ok(VerbOutput { json, lines, exit })
}

/// What of the advisories could not be read.
fn faults(all: &[Advisories]) -> impl Iterator<Item = String> {
    all.iter().filter_map(advisories::fault)
}

/// What a verb did with each entry of a tool, or of all: a row for a program, and a line for a
/// person.
fn entries(
    service: &Service,
    tool: Option<&str>,
    mut each: impl FnMut(&BuiltEnvironment, SystemTime) -> Result<(Value, String), Refusal>,
) -> Result<VerbOutput, Refusal> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (entry, used) in of_tool(service, tool)? {
        let (row, line) = each(&entry, used)?;
        rows.push(row);
        lines.push(line);
    }
    Ok(VerbOutput {
        json: json!({ "entries": rows }),
        lines,
        exit: Exit::Ok,
    })
}

fn list(service: &Service, tool: Option<&str>) -> Result<VerbOutput, Refusal> {
    entries(service, tool, |entry, used| {
        let about = &entry.about;
        let used = stamp(used);
        let starts = &entry.starts;
        let packages = about.packages.len();
        let files = entry.files();
        let shown = json!({
            "key": entry.key,
            "tool": format!("{} ({})", about.tool, about.ecosystem.name()),
            "holds": format!("{packages} packages, {files} files, {}", words::size(entry.bytes)),
            "for": format!("{}, index {}", about.runtime, about.index),
            "made": format!("{}, used {used}", about.made),
            "runs before the script": starts,
        });
        let row = json!({
            "key": entry.key, "about": about, "bytes": entry.bytes, "files": files, "starts": starts, "used": used,
        });
        Ok((row, words::render(&shown, &[])))
    })
}

fn stamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "never".to_owned(), |time| time.to_string())
}

/// Entries that serve this tool now, or were built for it; all, where none is named. Each with its
/// last use.
fn of_tool(
    service: &Service,
    tool: Option<&str>,
) -> Result<Vec<(Arc<BuiltEnvironment>, SystemTime)>, Refusal> {
    let store = service.packages.store()?;
    let all = store
        .list()
        .map_err(|e| Refusal::new(Exit::Host, format!("{}: {e}", text::path(store.path()))))?;
    let Some(tool) = tool else { return Ok(all) };
    let id = tool.split('@').next().unwrap_or(tool);
    let needs = packages::needs(&service.catalog, tool);
    let serving = needs.iter().flatten();
    let serving: Vec<_> = serving
        .filter_map(|need| service.packages.key(need).ok())
        .collect();
    let own = |entry: &BuiltEnvironment| {
        entry.about.tool.split('@').next() == Some(id) || serving.contains(&entry.key)
    };
    let own: Vec<_> = all.into_iter().filter(|(entry, _)| own(entry)).collect();
    match needs {
        // A tool that is gone, or is refused, may have left entries all the same.
        Err(fault) if own.is_empty() && fault.kind == Kind::ToolNotFoundError => Err(fault.into()),
        _ => Ok(own),
    }
}

fn clean(service: &Service, tool: Option<&str>) -> Result<VerbOutput, Refusal> {
    let packages = &service.packages;
    let store = packages.store()?;
    let broken =
        |e: io::Error| Refusal::new(Exit::Host, format!("{}: {e}", text::path(store.path())));
    let report = entries(service, tool, |entry, _| {
        let removed = store.remove(&entry.key).map_err(broken)?;
        let state = if removed {
            format!("removed, {}", words::size(entry.bytes))
        } else {
            "a call uses it".to_owned()
        };
        let row = json!({"key": entry.key, "tool": entry.about.tool, "removed": removed});
        Ok((row, format!("{}  {}: {state}", entry.key, entry.about.tool)))
    })?;
    match tool {
        None => store.forget_resolved().map_err(broken)?,
        Some(tool) => {
            for need in packages::needs(&service.catalog, tool).unwrap_or_default() {
                packages.forget(&need)?;
            }
        }
    }
    store.tidy().map_err(broken)?;
    Ok(report)
}
