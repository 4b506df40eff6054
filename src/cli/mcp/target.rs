//! Where imported servers lie: their folders, policies and secrets.

use crate::base::text;
use crate::cli::settings::Settings;
use crate::{policy, registry};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of servers, below that of tools.
pub const SERVERS: &str = "mcp";
/// What a server writes, below its own folder: no verb removes it.
pub const DATA: &str = "data";
/// The folder of secrets, below that of policies.
pub const SECRETS: &str = "secrets";
/// Beside secrets: the folder of policies may be under version control.
pub const IGNORED: &str = ".gitignore";

/// Absolute paths. `root`: where relative folders of policies start.
pub struct Target {
    pub tools: PathBuf,
    pub policies: PathBuf,
    pub root: PathBuf,
}

impl Target {
    pub fn new(settings: &Settings) -> Result<Target, String> {
        let usual = settings.root.join("tool-defs");
        let policies = settings.policy_path();
        if policies.is_file() {
            let why = "this host has one file of policies: a server needs a folder of them";
            return Err(why.to_owned());
        }
        Ok(Target {
            tools: absolute(settings.tools.first().unwrap_or(&usual))?,
            policies: absolute(&policies)?,
            root: absolute(&settings.root)?,
        })
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.tools.join(SERVERS).join(name)
    }

    pub fn manifest(&self, name: &str) -> PathBuf {
        let file = format!("{name}{}", registry::ENDING);
        self.folder(name).join(file)
    }

    pub fn policy(&self, name: &str) -> PathBuf {
        let file = format!("mcp-{name}{}", policy::SUFFIX);
        self.policies.join(file)
    }

    /// The file of a secret, below the policies.
    pub fn secret(name: &str, variable: &str) -> String {
        format!("{SECRETS}/mcp-{name}.{variable}")
    }

    /// All that is written for a server, its manifest first; not what it wrote itself.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        let below = entries(&self.folder(name)).filter(|path| !path.ends_with(DATA));
        let start = self.policies.join(Target::secret(name, ""));
        let start = start.to_string_lossy();
        let secrets = entries(&self.policies.join(SECRETS));
        let secrets = secrets.filter(|path| path.to_string_lossy().starts_with(&*start));
        let all = [self.manifest(name), self.policy(name)].into_iter();
        let mut all: Vec<PathBuf> = all.chain(below).chain(secrets).collect();
        all.dedup();
        all.retain(|path| path.symlink_metadata().is_ok());
        all
    }

    /// Removes those files, and the folders that are empty then. No link is followed.
    pub fn erase(&self, name: &str) -> Result<(), String> {
        for path in self.files(name) {
            let is_folder = path.symlink_metadata().is_ok_and(|facts| facts.is_dir());
            let removed = match is_folder {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            match removed {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(at(&path, &why)),
                _ => {}
            }
        }
        let folder = self.folder(name);
        let secrets = self.policies.join(SECRETS);
        let ignored = secrets.join(IGNORED);
        if entries(&secrets).all(|path| path == ignored) {
            let _ = fs::remove_file(ignored);
        }
        for path in [folder.join(DATA), folder, self.tools.join(SERVERS), secrets] {
            // One that holds something stays.
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    let real = path.canonicalize();
    real.or_else(|_| std::path::absolute(path))
        .map_err(|why| at(path, &why))
}

pub fn at(path: &Path, why: &io::Error) -> String {
    format!("{}: {why}", text::path(path))
}
