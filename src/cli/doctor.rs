//! `toolhost doctor`: what this machine can enforce, by doing it, and the command that mends what it cannot.
//!
//! For: `cli`. In: settings, this machine. Out: text or JSON; exit code 0 where every wall stands (tier A)
//! and the policies load; 4 without the walls, 3 without the policies.
//! Never: says that something works which was not tried; prints a secret of this host.

mod facts;
mod hints;
mod report;

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, process, words};
use crate::executor::process::{Launchers, Unready, examine, settle};
#[cfg(feature = "wasi")]
use crate::executor::wasm;
use crate::packages::Index;
use crate::{policy, sandbox};
use facts::Facts;
use report::{AuditLog, IndexTold, Interpreter, RefusedWall, Report, Setting, Wasm};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// For a program
    #[arg(long)]
    pub json: bool,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    host::say_root(settings);
    let launchers = host::launchers(settings)?;
    let runtime = process::runtime()?;
    let report = runtime.block_on(report(settings, &launchers));
    drop(runtime);
    launchers.close();
    settle(process::FAREWELL);
    match args.json {
        true => words::show_json(&serde_json::to_value(&report)?),
        false => words::show(report::text(&report).as_bytes()),
    }
    let exit = match (report.tier, &report.policies, &report.audit_log.opens) {
        (None, ..) => Exit::Host,
        (_, Err(_), _) => Exit::Policy,
        // A call that cannot be recorded is refused.
        (.., Err(_)) => Exit::Host,
        (.., Ok(_)) => Exit::Ok,
    };
    Ok(exit.into())
}

async fn report(settings: &Settings, launchers: &Arc<Launchers>) -> Report {
    let facts = Facts::of_this_machine(launchers.counted(), launchers.pool());
    let around = examine::Surroundings {
        policies: settings.policies.clone(),
        home: super::settings::home(&|name| std::env::var_os(name)),
        ..examine::Surroundings::default()
    };
    let examined = examine::run(launchers, &examine::bare(examine::ourselves()), &around).await;
    let (walls, tried, refused) = match examined {
        Ok(examined) => (examined.walls, examined.tried, None),
        Err(unready) => (Vec::new(), Vec::new(), Some(refused(unready))),
    };
    let tier =
        (refused.is_none() && !tried.is_empty() && tried.iter().all(sandbox::probe::Tried::as_said)).then_some('A');
    let mut mends = hints::of(&facts, refused.as_ref().map(|r| r.wall.as_str()));
    let policies = host::policies(settings);
    if policies.is_err() {
        mends.push(hints::of_policies());
    }
    let audit_log = audit_log(settings);
    if audit_log.opens.is_err() {
        mends.push(hints::of_audit_log());
    }
    let (runtimes, passed_over) = interpreters(settings, policies.as_deref().ok(), launchers, refused.is_none()).await;
    Report {
        tier,
        version: env!("CARGO_PKG_VERSION"),
        walls,
        refused,
        tried,
        mends,
        facts,
        runtimes,
        passed_over,
        wasm: wasm_state(),
        settings: where_from(settings),
        indexes: indexes(settings, policies.as_deref().ok()),
        audit_log,
        policies: match policies {
            Ok(_) if settings.policies.is_none() => Ok("the built-in ones".to_owned()),
            Ok(_) => Ok("loaded".to_owned()),
            Err(why) => Err(why.to_string()),
        },
    }
}

fn refused(unready: Unready) -> RefusedWall {
    match unready {
        Unready::Wall { wall, what, errno } => {
            let errno = nix::errno::Errno::from_raw(errno);
            RefusedWall { wall, what, errno: format!("{errno:?}: {}", errno.desc()) }
        }
        Unready::Fault(fault) => RefusedWall {
            wall: "launcher".to_owned(),
            what: fault.person.unwrap_or(fault.message),
            errno: "none".to_owned(),
        },
    }
}

/// The interpreters, each started behind the walls if those stand, and why others were passed over.
async fn interpreters(
    settings: &Settings,
    policies: Option<&policy::Policies>,
    launchers: &Arc<Launchers>,
    walls_stand: bool,
) -> (Vec<Interpreter>, Vec<String>) {
    let found = host::discovered(settings);
    let mut notes = found.notes;
    let mut all: Vec<policy::Runtime> = found.runtimes.into_values().collect();
    for (path, named) in policies.map(|policies| host::named_runtimes(settings, policies)).into_iter().flatten() {
        match named {
            Ok(runtime) => all.push(runtime),
            Err(why) => notes.push(format!("{}: named by a policy, cannot be used: {why}", path.display())),
        }
    }
    let mut shown = Vec::new();
    for runtime in all {
        let ran = match walls_stand {
            true => examine::starts(launchers, &runtime).await,
            false => Err("not tried: nothing runs here without its walls".to_owned()),
        };
        let program = match &runtime.program {
            policy::Program::Path(path) => path.display().to_string(),
            policy::Program::Ourselves { .. } => "this binary".to_owned(),
        };
        let policy::Runtime { language, version, found, .. } = runtime;
        shown.push(Interpreter { language, program, version, found, ran });
    }
    (shown, notes)
}

#[cfg(not(feature = "wasi"))]
fn wasm_state() -> Wasm {
    Wasm { wasmtime: None, cache: Err("built without the cargo feature `wasi`: WASI tools are unavailable".to_owned()) }
}

#[cfg(feature = "wasi")]
fn wasm_state() -> Wasm {
    let variable = |name: &str| std::env::var_os(name);
    let folder = wasm::Cache::usual_folder(variable).unwrap_or_default().display().to_string();
    let cache = wasm::Cache::usual(variable).and_then(|(_, note)| note.map_or(Ok(folder), Err));
    Wasm { wasmtime: Some(wasmtime_version()), cache }
}

/// From the lock file of this build.
#[cfg(feature = "wasi")]
fn wasmtime_version() -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| entry.trim_start().starts_with("name = \"wasmtime\"\n"));
    let line = entry.and_then(|entry| entry.lines().find_map(|line| line.strip_prefix("version = ")));
    line.map_or("unknown", |version| version.trim_matches('"'))
}

fn where_from(settings: &Settings) -> Vec<Setting> {
    let shown = |path: &PathBuf| format!("{}{}", path.display(), if path.is_dir() { "" } else { " (not there yet)" });
    let list = |paths: &[PathBuf]| paths.iter().map(shown).collect::<Vec<_>>().join(", ");
    let one = |path: &Option<PathBuf>, none: &str| {
        path.as_ref().map_or_else(|| none.to_owned(), |path| path.display().to_string())
    };
    let log = settings.log.map(|(level, json)| format!("{level:?}{}", if json { ",json" } else { "" }));
    let values = [
        ("root", settings.root.display().to_string()),
        ("tools", list(&settings.tools)),
        ("scripts", list(&settings.scripts)),
        ("policies", one(&settings.policies, "the built-in ones")),
        ("audit-log", one(&settings.audit_log, "none")),
        ("log", log.unwrap_or_else(|| "usual".to_owned())),
    ];
    let from = |name: &str| match name {
        "root" if settings.root_is_assumed() => "the current folder, since nobody named one".to_owned(),
        _ => settings.origins.get(name).map_or_else(|| "built in".to_owned(), ToString::to_string),
    };
    values.into_iter().map(|(name, value)| Setting { name, value, from: from(name) }).collect()
}

/// Those of the configuration, and those that policies name without it.
fn indexes(settings: &Settings, policies: Option<&policy::Policies>) -> Vec<IndexTold> {
    let known = settings.indexes.iter().map(|index| IndexTold {
        name: index.name.clone(),
        ecosystem: index.ecosystem,
        leads_to: index.words(),
        missing: false,
    });
    let named = policies.into_iter().flat_map(policy::Policies::all).flat_map(|policy| &policy.packages.entries);
    let missing = named.filter(|(of, entry)| Index::find(&settings.indexes, **of, &entry.index).is_none());
    let missing: BTreeSet<_> = missing.map(|(of, entry)| (*of, entry.index.clone())).collect();
    let missing = missing.into_iter().map(|(ecosystem, name)| IndexTold {
        leads_to: format!("write [indexes.{name}] {} into the configuration", ecosystem.name()),
        name,
        ecosystem,
        missing: true,
    });
    known.chain(missing).collect()
}

fn audit_log(settings: &Settings) -> AuditLog {
    let path = settings.audit_log.as_ref().map(|path| path.display().to_string());
    let opened = host::audit_log(settings).map_err(|why| why.to_string());
    let opened = opened.and_then(|log| log.open().map_err(|fault| fault.person.unwrap_or(fault.message)));
    AuditLog { path, opens: opened.map(|_| "it can be opened".to_owned()) }
}
