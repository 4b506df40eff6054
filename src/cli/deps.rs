//! `toolhost deps`: locks, builds and entries of the packages that tools require.
//!
//! For: the command line. In: a tool, or none for all. Out: what was written, built, found; progress on a terminal.
//! Never: overwrites a lock that somebody else wrote; builds in another way than a call.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, process, words};
use crate::base::text::{self, printable};
use crate::fault::Kind;
use crate::packages::store::Entry;
use crate::service::Service;
use crate::service::packages::{Need, Resolved};
use crate::service::runlog::Level;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
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
    what: What,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum What {
    /// Resolve what a tool requires, behind the walls, and write the lock beside its script
    Lock {
        tool: String,
        /// What source text may use, as `numpy` or `pandas>=2`: for core:run-code and core:execute-*, whose policy names the lock
        packages: Vec<String>,
        /// Write it there instead
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Write over a lock that something else wrote
        #[arg(long)]
        replace: bool,
        #[arg(long)]
        json: bool,
    },
    /// Build the packages of a tool, or of all tools, ahead of calls
    Build {
        tool: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Show what was built, for a tool or at all
    List {
        tool: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Read what was built whole, and compare it with what it was
    Verify {
        tool: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Remove what was built for a tool, or all of it, and what was resolved without a lock; never what a call uses
    Clean {
        tool: Option<String>,
        #[arg(long)]
        json: bool,
    },
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    host::say_root(settings);
    host::start_log(settings, Level::Off);
    let runtime = process::runtime()?;
    let done = runtime.block_on(async {
        let service = host::service(settings, &host::launchers(settings)?, Some(words::complain))?;
        process::unless_stopped(verb(&service, args.what)).await.unwrap_or_else(Ok)
    });
    runtime.shutdown_timeout(process::FAREWELL);
    done
}

async fn verb(service: &Service, what: What) -> anyhow::Result<ExitCode> {
    match what {
        What::Lock { tool, packages, out, replace, json } => lock(service, &tool, &packages, out, replace, json).await,
        What::Build { tool, json } => build(service, tool.as_deref(), json).await,
        What::List { tool, json } => list(service, tool.as_deref(), json),
        What::Verify { tool, json } => verify(service, tool.as_deref(), json),
        What::Clean { tool, json } => clean(service, tool.as_deref(), json),
    }
    .map_err(Into::into)
}

/// What one tool requires, which must be something.
fn need(service: &Service, tool: &str) -> Result<Need, Refusal> {
    service.need(tool)?.ok_or_else(|| nothing(tool))
}

fn nothing(tool: &str) -> Refusal {
    Refusal::new(Exit::Caller, format!("{} requires no packages", printable(tool)))
}

/// What one tool requires, or every tool that can be served; of the others it is told, and how this then ends.
fn needs(service: &Service, tool: Option<&str>) -> Result<(Vec<Need>, Exit), Refusal> {
    if let Some(tool) = tool {
        return Ok((vec![need(service, tool)?], Exit::Ok));
    }
    let (mut needs, mut worst) = (Vec::new(), Exit::Ok);
    for tool in service.registry().snapshot().list(&crate::registry::Filter::default()) {
        let id = format!("{}@{}", tool.manifest.id, tool.manifest.version);
        match service.need(&id) {
            Ok(need) => needs.extend(need),
            Err(fault) if fault.kind == Kind::DependencyError => {
                let refusal = Refusal::of(&fault);
                worst = refusal.exit;
                words::complain(&format!("{id}: {}: {refusal}", fault.kind));
            }
            // What keeps it from being called otherwise is for `list` and `check` to say.
            Err(_) => {}
        }
    }
    Ok((needs, worst))
}

/// A line of progress on a terminal, written over by the next one.
fn progress(line: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{}\r", text::head(&printable(line), 100));
    }
}

fn progress_ends() {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K");
    }
}

async fn lock(
    service: &Service,
    tool: &str,
    packages: &[String],
    out: Option<PathBuf>,
    replace: bool,
    json: bool,
) -> Result<ExitCode, Refusal> {
    let (need, of_policy) = match packages {
        // The lock that is written is not what is locked: requirements may have changed since.
        [] => (service.need_anew(tool)?.ok_or_else(|| nothing(tool))?, None),
        _ => service.need_named(tool, packages).map(|(need, path)| (need, Some(path)))?,
    };
    if need.wanted.locked {
        let files: Vec<String> = need.wanted.sources.iter().map(|source| text::path(&source.path)).collect();
        let why = format!(
            "{} is locked already ({}); take its lock away to have it locked anew",
            need.tool,
            files.join(", ")
        );
        return Err(Refusal::new(Exit::Caller, why));
    }
    let resolved = service.packages().lock(&need, &progress).await;
    progress_ends();
    let resolved = resolved?;
    let beside = need
        .wanted
        .sources
        .first()
        .and_then(|source| source.path.parent())
        .map(|folder| folder.join(&need.wanted.lock_file));
    let path = out.or(of_policy).or(beside).ok_or_else(|| Refusal::new(Exit::Caller, "name a file with --out"))?;
    written(&path, &resolved, replace)?;
    if json {
        words::show_json(&json!({"tool": need.tool, "lock": path, "packages": resolved.wanted.packages}));
        return Ok(Exit::Ok.into());
    }
    let packages = &resolved.wanted.packages;
    let mut lines = vec![format!("{}: {} packages, written to {}", need.tool, packages.len(), text::path(&path))];
    lines.extend(packages.iter().take(SHOWN).map(|package| format!("  {} {}", package.name, package.version)));
    let more = packages.len().saturating_sub(SHOWN);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    words::say(&lines.join("\n"));
    Ok(Exit::Ok.into())
}

/// Writes the lock whole or not at all, as a file of the person who asked for it.
fn written(path: &Path, resolved: &Resolved, replace: bool) -> Result<(), Refusal> {
    let failed = |e: io::Error| Refusal::new(Exit::Host, format!("{}: {e}", text::path(path)));
    // A pipe would never end.
    if path.symlink_metadata().is_ok_and(|facts| !facts.is_file()) {
        let why = format!("{} is no regular file", text::path(path));
        return Err(Refusal::new(Exit::Caller, why));
    }
    match std::fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Ok(there) if replace || there.contains(MARK) => {}
        _ => {
            let why = format!(
                "{} is there already, and toolhost did not write it: --replace writes over it",
                text::path(path)
            );
            return Err(Refusal::new(Exit::Caller, why));
        }
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(mode()).tempfile_in(folder).map_err(failed)?;
    file.write_all(resolved.text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// Nobody else may write it: a lock beside a policy is held to that.
fn mode() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

async fn build(service: &Service, tool: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let (needs, mut worst) = needs(service, tool)?;
    let mut built = Vec::new();
    for need in needs {
        let name = need.tool.clone();
        let ready = service.packages().ready(need, Duration::MAX, |line| progress(&line)).await;
        progress_ends();
        match ready {
            Ok(ready) => {
                let state = if ready.built { "built" } else { "was built already" };
                let entry = &ready.held.entry;
                if !json {
                    let shown = (entry.about.packages.len(), size(entry.bytes));
                    words::say(&format!("{name}: {state}: {} packages, {}", shown.0, shown.1));
                }
                built.push(json!({"tool": name, "built": ready.built, "key": entry.key}));
            }
            Err(fault) => {
                let refusal = Refusal::of(&fault);
                worst = refusal.exit;
                words::complain(&format!("{name}: {}: {refusal}", fault.kind));
                built.push(json!({"tool": name, "error": fault}));
            }
        }
    }
    if json {
        words::show_json(&json!({"tools": built}));
    } else if built.is_empty() {
        words::say("No tool requires packages.");
    }
    Ok(worst.into())
}

fn list(service: &Service, tool: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let entries = of_tool(service, tool)?;
    if json {
        let shown: Vec<Value> = entries.iter().map(|(entry, used)| entry_json(entry, *used)).collect();
        words::show_json(&json!({"entries": shown}));
        return Ok(Exit::Ok.into());
    }
    if entries.is_empty() {
        words::say("Nothing was built.");
    }
    for (entry, used) in &entries {
        let about = &entry.about;
        let mut lines = vec![format!("{}  {} ({})", entry.key, about.tool, about.ecosystem.name())];
        let mut line = |name: &str, words: String| lines.push(format!("  {name:<9}{words}"));
        line("holds", format!("{} packages, {} files, {}", about.packages.len(), entry.files(), size(entry.bytes)));
        line("for", format!("{}, index {}", about.runtime, about.index));
        line("made", format!("{}, used {}", about.made, stamp(*used)));
        let starts: Vec<String> = entry.starts.iter().map(|path| text::path(path)).collect();
        if !starts.is_empty() {
            line("starts", format!("{} (run before the script, inside its walls)", starts.join(", ")));
        }
        words::say(&lines.join("\n"));
    }
    Ok(Exit::Ok.into())
}

fn entry_json(entry: &Entry, used: SystemTime) -> Value {
    json!({
        "key": entry.key, "about": entry.about, "bytes": entry.bytes, "files": entry.files(), "starts": entry.starts,
        "used": stamp(used),
    })
}

fn stamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "never".to_owned(), |time| time.to_string())
}

/// Entries that serve this tool now, or were built for it; all, where none is named. Each with its last use.
fn of_tool(service: &Service, tool: Option<&str>) -> Result<Vec<(Arc<Entry>, SystemTime)>, Refusal> {
    let store = service.packages().store()?;
    let all = store.list().map_err(|e| Refusal::new(Exit::Host, format!("{}: {e}", text::path(store.path()))))?;
    let Some(tool) = tool else { return Ok(all) };
    let id = tool.split('@').next().unwrap_or(tool);
    let need = service.need(tool);
    let serving = need.as_ref().ok().and_then(|need| service.packages().key(need.as_ref()?).ok());
    let own = |entry: &Entry| entry.about.tool.split('@').next() == Some(id) || serving.as_ref() == Some(&entry.key);
    let own: Vec<_> = all.into_iter().filter(|(entry, _)| own(entry)).collect();
    match need {
        // A tool that is gone, or is refused, may have left entries all the same.
        Err(fault) if own.is_empty() && fault.kind == Kind::ToolNotFoundError => Err(fault.into()),
        _ => Ok(own),
    }
}

fn verify(service: &Service, tool: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let store = service.packages().store()?;
    let (mut shown, mut worst) = (Vec::new(), Exit::Ok);
    for (entry, _) in of_tool(service, tool)? {
        let altered = store.altered(&entry);
        if altered.is_some() {
            worst = Exit::Host;
        }
        if !json {
            let state = match &altered {
                None => "as it was built".to_owned(),
                Some(path) => format!("CHANGED: {}; the next call builds it anew", printable(path)),
            };
            words::say(&format!("{}  {}: {state}", entry.key, entry.about.tool));
        }
        shown.push(json!({"key": entry.key, "tool": entry.about.tool, "changed": altered}));
    }
    if json {
        words::show_json(&json!({"entries": shown}));
    } else if shown.is_empty() {
        words::say("Nothing was built.");
    }
    Ok(worst.into())
}

fn clean(service: &Service, tool: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let packages = service.packages();
    let store = packages.store()?;
    let broken = |e: io::Error| Refusal::new(Exit::Host, format!("{}: {e}", text::path(store.path())));
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for (entry, _) in of_tool(service, tool)? {
        let removed = store.remove(&entry.key).map_err(broken)?;
        bytes += if removed { entry.bytes } else { 0 };
        if !removed && !json {
            words::say(&format!("{}  {}: a call uses it", entry.key, entry.about.tool));
        }
        shown.push(json!({"key": entry.key, "tool": entry.about.tool, "removed": removed}));
    }
    match tool {
        None => store.forget_resolved().map_err(broken)?,
        Some(tool) => {
            if let Ok(Some(need)) = service.need(tool) {
                packages.forget(&need)?;
            }
        }
    }
    store.tidy().map_err(broken)?;
    match json {
        true => words::show_json(&json!({"entries": shown})),
        false => {
            let removed = shown.iter().filter(|entry| entry["removed"] == true).count();
            words::say(&format!("{removed} removed, {}", size(bytes)));
        }
    }
    Ok(Exit::Ok.into())
}

pub(super) fn size(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
