//! `man`: the manual pages, from the same texts as `--help`. For those who make packages.

use super::refusal::{Exit, Refusal};
use super::words;
use crate::base::text;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// An existing folder for the pages of all verbs (else the page of the program is printed)
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Prints the page of this command line, or writes it and one page for each verb.
pub fn run(program: clap::Command, args: &Args) -> anyhow::Result<ExitCode> {
    // It has no page of its own.
    let program = program.disable_help_subcommand(true);
    match &args.folder {
        Some(folder) => clap_mangen::generate_to(program, folder)
            .map_err(|why| Refusal::new(Exit::Caller, format!("{}: {why}", text::path(folder))))?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page)?;
            words::show(&page);
        }
    }
    Ok(Exit::Ok.into())
}
