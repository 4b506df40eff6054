//! `toolhost mcp`: MCP servers that clients have, as confined tools of this host.

pub mod clients;
mod entries;
mod import;
mod install;
mod launch;
mod list;
mod plan;
mod refresh;
mod remove;
mod target;
mod write;

use super::settings::Settings;
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Verb {
    /// Show the MCP servers that clients have as tools of this host, and write them with --yes
    Import(import::Args),
    /// Start a server once, behind its layers, and record what it says of its tools
    Refresh(refresh::Args),
    /// List the MCP servers of this host, and what each may touch
    List(list::Args),
    /// Write this host into the configuration of an MCP client
    Install(install::Args),
    /// Take a server out of this host; what it wrote stays
    Remove(remove::Args),
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Import(args) => import::run(settings, args),
        Verb::Refresh(args) => refresh::run(settings, args),
        Verb::List(args) => list::run(settings, args),
        Verb::Install(args) => install::run(settings, args),
        Verb::Remove(args) => remove::run(settings, args),
    }
}
