//! `sources`: where tools come from, and the folders that an operator adds to servers that run. The
//! orders are in a file beside the audit log: nothing that listens takes one.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{disable, host, words};
use crate::base::files::{self, Folder};
use crate::base::text;
use crate::registry::SourceId;
use crate::service::source_orders::{AddedFolder, ObeyedOrders, SourceOrders};
use crate::service::state_file::StateFile;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Verb {
    /// Add a folder of tools to the servers of this root that run now, until they end
    Add(FolderArgs),
    /// Take back a folder that was added
    Remove(FolderArgs),
    /// Have the servers that run now read their tools and policies again
    Refresh,
}

#[derive(Clone, Debug, clap::Args)]
struct FolderArgs {
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let orders = SourceOrders::file(host::audit_log(settings)?.path());
    match &args.verb {
        None => return list(settings, &orders, args.json),
        Some(verb) => {
            disable::check_owner(&orders.path)?;
            // What cannot be recorded is not done.
            host::audit_log(settings)?.open()?;
            match verb {
                Verb::Add(args) => add(settings, &orders, files::resolved(&args.folder))?,
                Verb::Remove(args) => remove(settings, &orders, &files::resolved(&args.folder))?,
                Verb::Refresh => refresh(settings, &orders)?,
            }
        }
    }
    Ok(Exit::Ok.into())
}

fn list(
    settings: &Settings,
    orders: &StateFile<SourceOrders>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let sources = json!(host::Tools::load(settings)?.snapshot.sources());
    let orders = orders.read().map_err(|why| failed(orders, &why))?;
    let root = files::resolved(&settings.root);
    let added = orders.folders.iter().filter(|it| it.root == root);
    let shown = json!({ "sources": sources, "added": added.collect::<Vec<_>>() });
    words::answer(&shown, json, || {
        let [sources, added] = ["sources", "added"].map(|name| shown[name].as_array());
        let rows = |rows: Option<&Vec<Value>>, columns: &[&str]| {
            words::table(rows.map_or(&[][..], Vec::as_slice), columns, &[])
        };
        let columns = ["id", "kind", "tools", "skipped"];
        let sources = rows(sources, &columns);
        match added {
            None | Some([]) => sources,
            added => format!("{sources}\n{}", rows(added, &["path=added", "at", "by"])),
        }
    });
    Ok(Exit::Ok.into())
}

/// Changes the file of orders, and records that.
fn order<C>(
    settings: &Settings,
    orders: &StateFile<SourceOrders>,
    change: impl FnOnce(&mut SourceOrders) -> C,
    what: &str,
    told: &impl Serialize,
) -> anyhow::Result<C> {
    let changed = orders.change(change).map_err(|why| failed(orders, &why))?;
    disable::record(settings, what, told)?;
    Ok(changed.0)
}

fn failed(orders: &StateFile<SourceOrders>, why: &io::Error) -> Refusal {
    let path = text::path(&orders.path);
    Refusal::new(Exit::Host, format!("{path}: {why}; correct or remove it"))
}

/// Why a folder cannot be a source beside those of the settings, if so. Only this user and root may
/// be able to replace it.
fn check(settings: &Settings, folder: &Path) -> Result<(), String> {
    Folder::open(folder).map_err(|why| why.to_string())?;
    let known = settings.scanned();
    let known = known.iter().map(|known| files::resolved(known));
    let mut overlapping =
        known.filter(|known| known.starts_with(folder) || folder.starts_with(known));
    overlapping.next().map_or(Ok(()), |known| {
        let known = text::path(&known);
        Err(format!("{known} is a source, and no file counts twice"))
    })
}

fn add(settings: &Settings, orders: &StateFile<SourceOrders>, path: PathBuf) -> anyhow::Result<()> {
    let shown = text::path(&path);
    check(settings, &path).map_err(|why| {
        let words = format!("{shown} cannot be added: {}", text::printable(&why));
        Refusal::new(Exit::Caller, words)
    })?;
    let mut with = settings.clone();
    with.tools.push(path.clone());
    let sources = host::Tools::load(&with)?.snapshot.sources();
    let id = SourceId::folder(&path);
    let found = sources.iter().find(|it| it.source == id);
    let counts = found.map(|it| format!("{} tools, {} files skipped", it.tools, it.skipped));
    let added = AddedFolder {
        root: files::resolved(&settings.root),
        path,
        by: host::login(),
        at: Timestamp::now(),
    };
    let new = added.clone();
    order(
        settings,
        orders,
        |orders| orders.add(new),
        "sourceAdded",
        &added,
    )?;
    let counts = counts.unwrap_or_default();
    words::say(&format!(
        "{shown} is a source of the servers of this root that run now, until they end: {counts}"
    ));
    Ok(())
}

fn remove(
    settings: &Settings,
    orders: &StateFile<SourceOrders>,
    path: &Path,
) -> anyhow::Result<()> {
    let root = files::resolved(&settings.root);
    let shown = text::path(path);
    let known = orders.read().map_err(|why| failed(orders, &why))?;
    let is_known = |it: &AddedFolder| it.root == root && it.path == path;
    if !known.folders.iter().any(is_known) {
        let words = format!("{shown} was not added: `toolhost sources` shows what was");
        return Err(Refusal::new(Exit::Caller, words).into());
    }
    let change = |orders: &mut SourceOrders| orders.remove(&root, path);
    order(settings, orders, change, "sourceRemoved", &shown)?;
    words::say(&format!("{shown} is not a source any more"));
    Ok(())
}

fn refresh(settings: &Settings, orders: &StateFile<SourceOrders>) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let change = |orders: &mut SourceOrders| orders.refreshed = Some(now);
    order(settings, orders, change, "sourcesRefreshed", &now)?;
    words::say("The servers that run now read their tools and policies again");
    Ok(())
}

/// The settings of a server with the folders that were added to it. It checks them again.
pub fn with_added(settings: &Settings, orders: &ObeyedOrders) -> Settings {
    let mut settings = settings.clone();
    for folder in orders.folders(&files::resolved(&settings.root)) {
        match check(&settings, folder) {
            Ok(()) => settings.tools.push(folder.clone()),
            Err(why) => words::fail(&format!(
                "toolhost: {} is not a source: {}",
                text::path(folder),
                text::printable(&why)
            )),
        }
    }
    settings
}
