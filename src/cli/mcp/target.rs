//! Where imported servers lie: their folders, policies and secrets.

use crate::base::files;
use crate::base::text;
use crate::cli::settings::Settings;
use crate::{policy, registry};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
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

    /// Held by whoever writes servers, or takes them out.
    pub fn lock(&self) -> Result<Flock<File>, String> {
        let root = File::open(&self.root).map_err(|why| at(&self.root, &why))?;
        let lock = Flock::lock(root, FlockArg::LockExclusiveNonblock);
        lock.map_err(|_| "another import or removal runs here: try again".to_owned())
    }

    /// Where a server is made: nobody loads what lies in a hidden folder.
    pub fn stage(&self, name: &str) -> Target {
        Target {
            tools: self.tools.join(SERVERS).join(format!(".{name}.new")),
            policies: self.policies.clone(),
            root: self.root.clone(),
        }
    }

    /// Whether what lies there was left by an import that was killed: the manifest comes last.
    pub fn is_unfinished(&self, name: &str) -> bool {
        self.stage(name).tools.is_dir() && !self.manifest(name).exists()
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

    /// Refuses a name whose folder, or that of secrets, is reached through a link: what lies behind it
    /// belongs to somebody else.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let mut all = [self.folder(name), self.policies.join(SECRETS)].into_iter();
        let link = all.find(|folder| files::resolved(folder) != *folder);
        link.map_or(Ok(()), |folder| {
            Err(format!("{} is reached through a link", text::path(&folder)))
        })
    }

    /// All that is written for a server, its manifest first; not what it wrote itself. Nothing where
    /// `check` refuses it.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        if self.check(name).is_err() {
            return Vec::new();
        }
        let manifest = self.manifest(name);
        let below = entries(&self.folder(name));
        let below = below.filter(|path| !path.ends_with(DATA) && *path != manifest);
        let start = self.policies.join(Target::secret(name, ""));
        let start = start.to_string_lossy();
        let secrets = entries(&self.policies.join(SECRETS));
        let secrets = secrets.filter(|path| path.to_string_lossy().starts_with(&*start));
        let all = [manifest.clone(), self.policy(name), self.stage(name).tools].into_iter();
        let mut all: Vec<PathBuf> = all.chain(below).chain(secrets).collect();
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
        let is_ours = fs::read(&ignored).is_ok_and(|text| text == b"*\n");
        if is_ours && entries(&secrets).all(|path| path == ignored) {
            let _ = fs::remove_file(ignored);
        }
        for path in [folder.join(DATA), folder, self.tools.join(SERVERS), secrets] {
            // One that holds something stays.
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }
}

pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|why| at(path, &why))?;
    Ok(files::resolved(&path))
}

pub fn at(path: &Path, why: &io::Error) -> String {
    format!("{}: {why}", text::path(path))
}
