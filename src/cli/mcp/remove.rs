//! `toolhost mcp remove`: takes a server out of this host: its folder, policy, secrets and approval.
//! What the server wrote stays.

use super::plan::name_of;
use super::target::{DATA, Target};
use crate::base::text;
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::cli::{approve, words};
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The server: the namespace of its tools
    name: String,
    /// Remove what is shown
    #[arg(long)]
    yes: bool,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let name = &args.name;
    let target = Target::new(settings).map_err(refused)?;
    // A name is never a path.
    let is_name = name_of(name).is_ok_and(|own| own == *name);
    if is_name {
        target.check(name).map_err(refused)?;
    }
    let files = target.files(name);
    if !is_name || files.is_empty() {
        let words = "no such server was imported: `toolhost mcp list` shows those of this host";
        return Err(refused(words.to_owned()).into());
    }
    for path in &files {
        words::say(&format!("removes  {}", text::path(path)));
    }
    let data = target.folder(name).join(DATA);
    if data.is_dir() {
        words::say(&format!("keeps    {}", text::path(&data)));
    }
    if !args.yes {
        words::note("Nothing was removed: the same with --yes removes this, and its approval.");
        return Ok(Exit::Ok.into());
    }
    let _lock = target.lock().map_err(refused)?;
    approve::forget(settings, &format!("{name}:server"))?;
    target.erase(name).map_err(refused)?;
    Ok(Exit::Ok.into())
}

fn refused(why: String) -> Refusal {
    Refusal::new(Exit::Caller, why)
}
