//! `sources`: where tools come from, and the folders that an operator adds to servers that run. The
//! orders are in a file beside the audit log: nothing that listens takes one.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{disable, host, words};
use crate::base::files::{self, Folder};
use crate::base::text;
use crate::service::source_orders::{FILE, ObeyedOrders, SourceOrder};
use crate::service::state_file::StateFile;
use anyhow::Context;
use jiff::Timestamp;
use serde_json::json;
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
    Add { dir: PathBuf },
    /// Take back a folder that was added
    Remove { dir: PathBuf },
    /// Have the servers that run now read their tools and policies again
    Refresh,
}

const COLUMNS: [&str; 4] = ["id", "kind", "tools", "skipped"];

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let Some(verb) = &args.verb else {
        let sources = host::Tools::load(settings)?.snapshot.sources();
        let table = || words::table(&sources, &COLUMNS, &[]);
        words::answer(&json!(sources), args.json, table);
        return Ok(Exit::Ok.into());
    };
    let log = host::audit_log(settings)?;
    let file = StateFile::<Vec<SourceOrder>>::new(log.path(), FILE);
    disable::check_owner(&file.path)?;
    // What cannot be recorded is not done.
    log.open()?;
    let (what, dir) = match verb {
        Verb::Add { dir } => ("sourceAdded", Some(dir)),
        Verb::Remove { dir } => ("sourceRemoved", Some(dir)),
        Verb::Refresh => ("sourcesRefreshed", None),
    };
    let order = SourceOrder {
        root: files::resolved(&settings.root),
        folder: dir.map(|dir| files::resolved(dir)),
        at: Timestamp::now(),
    };
    let is_removal = matches!(verb, Verb::Remove { .. });
    let changed = file.change(|orders| {
        let is_known = orders.iter().any(|it| it.is_about_same(&order));
        match &order.folder {
            Some(folder) if is_removal && !is_known => {
                return Err(format!("{} was not added", text::path(folder)));
            }
            Some(folder) if !is_removal => check_new(settings, folder, &order, orders)?,
            _ => {}
        }
        orders.retain(|it| !it.is_about_same(&order));
        if !is_removal {
            orders.push(order.clone());
        }
        Ok(())
    });
    let (done, _) = changed.with_context(|| text::path(&file.path))?;
    done.map_err(|why| Refusal::new(Exit::Caller, why))?;
    disable::record(settings, what, &order)?;
    words::say("Written: the servers of this root that run now, if any, obey");
    Ok(Exit::Ok.into())
}

/// Why a folder cannot be a source beside those of other orders, if so.
fn check_new(
    settings: &Settings,
    folder: &Path,
    order: &SourceOrder,
    all: &[SourceOrder],
) -> Result<(), String> {
    let others = all.iter().filter(|it| !it.is_about_same(order));
    let added = others.filter(|it| it.root == order.root);
    let mut settings = settings.clone();
    settings
        .tools
        .extend(added.flat_map(|it| it.folder.clone()));
    check(&settings, folder)
}

/// Why a folder cannot be a source beside those of the settings, if so. Only this user and root may
/// be able to replace it.
fn check(settings: &Settings, folder: &Path) -> Result<(), String> {
    let known = settings.scanned();
    let mut known = known.iter().map(|known| files::resolved(known));
    let why = match known.find(|it| it.starts_with(folder) || folder.starts_with(it)) {
        Some(known) => format!("{} is one, and no file counts twice", text::path(&known)),
        None => match Folder::open(folder) {
            Ok(_) => return Ok(()),
            Err(why) => text::printable(&why.to_string()),
        },
    };
    Err(format!("{} cannot be a source: {why}", text::path(folder)))
}

/// The settings of a server with the folders that were added to it. It checks them again.
pub fn with_added(settings: &Settings, orders: &ObeyedOrders) -> Settings {
    let mut settings = settings.clone();
    for folder in orders.folders(&files::resolved(&settings.root)) {
        match check(&settings, folder) {
            Ok(()) => settings.tools.push(folder.clone()),
            Err(why) => words::fail(&format!("toolhost: {why}")),
        }
    }
    settings
}
