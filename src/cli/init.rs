//! `toolhost init`: a root from nothing: folders, the two policies that every root needs, one tool.

use super::refusal::{Exit, Refusal};
use super::settings::{Flags, Settings};
use super::{new, words};
use crate::base::text;
use std::fmt::Display;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const FOLDERS: [&str; 3] = ["sandbox-policies", "tool-defs", "user_scripts"];
const POLICIES: [(&str, &str); 2] = [
    (
        "default.policy.toml",
        include_str!("../../sandbox-policies/default.policy.toml"),
    ),
    (
        "core.policy.toml",
        include_str!("../../sandbox-policies/core.policy.toml"),
    ),
];

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// The folder (default: the current one); it may exist, what is made in it may not
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// Makes the folders and policies, and names the root for what follows.
pub fn make(flags: &mut Flags, args: &Args) -> Result<(), Refusal> {
    let root = args.folder.clone().or_else(|| flags.root.clone());
    let root = root.unwrap_or_else(|| PathBuf::from("."));
    let folders = FOLDERS.map(|name| root.join(name));
    if let Some(path) = folders.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(refuse(path, "is there already, and nothing is overwritten"));
    }
    for path in &folders {
        // Nobody else may write policies, whatever the umask.
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|why| refuse(path, why))?;
    }
    for (name, policy) in POLICIES {
        let path = folders[0].join(name);
        words::write_file(&path, policy, false).map_err(|why| refuse(&path, why))?;
    }
    flags.root = Some(root);
    Ok(())
}

fn refuse(path: &Path, why: impl Display) -> Refusal {
    Refusal::new(Exit::Caller, format!("{}: {why}", text::path(path)))
}

/// The tool that a new root has.
pub fn example(settings: &Settings) -> anyhow::Result<ExitCode> {
    let hello = new::Args {
        name: "hello".to_owned(),
        ..new::Args::default()
    };
    new::run(settings, hello)
}
