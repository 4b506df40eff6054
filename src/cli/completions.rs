//! `completions`: what a shell sources, so that it completes verbs, flags and their values.

use super::refusal::Exit;
use super::words;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that will source it
    pub shell: clap_complete::Shell,
}

/// Prints the script for this command line.
pub fn run(mut program: clap::Command, args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "toolhost", &mut script);
    words::show(&script);
    Ok(Exit::Ok.into())
}
