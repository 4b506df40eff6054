//! Where imported servers lie: their folders, policies and secrets.

use crate::base::text;
use crate::cli::settings::Settings;
use crate::policy;
use crate::registry;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of servers, below that of tools.
pub const SERVERS: &str = "mcp";
/// What a server writes, below its own folder: no verb removes it.
pub const DATA: &str = "data";
/// The folder of secrets, below that of policies.
pub const SECRETS: &str = "secrets";

/// Absolute paths.
pub struct Target {
    pub tools: PathBuf,
    pub policies: PathBuf,
    /// Where relative folders of policies start.
    pub root: PathBuf,
}

impl Target {
    pub fn new(settings: &Settings) -> Result<Target, String> {
        let tools = settings.tools.first().cloned();
        let tools = tools.unwrap_or_else(|| settings.root.join("tool-defs"));
        let policies = settings.policy_path();
        if policies.is_file() {
            let why = "this host has one file of policies: a server needs a folder of them";
            return Err(why.to_owned());
        }
        Ok(Target {
            tools: absolute(&tools)?,
            policies: absolute(&policies)?,
            root: absolute(&settings.root)?,
        })
    }

    pub fn servers(&self) -> PathBuf {
        self.tools.join(SERVERS)
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.servers().join(name)
    }

    pub fn manifest(&self, name: &str) -> PathBuf {
        let file = format!("{name}{}", registry::ENDING);
        self.folder(name).join(file)
    }

    pub fn policy(&self, name: &str) -> PathBuf {
        let file = format!("mcp-{name}{}", policy::SUFFIX);
        self.policies.join(file)
    }

    pub fn secrets(&self) -> PathBuf {
        self.policies.join(SECRETS)
    }

    /// All that was written for a server, but what it wrote itself.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        let below = self.folder(name).read_dir().into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_name() != DATA);
        let start = Target::secret_start(name);
        let secrets = self.secrets().read_dir().into_iter().flatten().flatten();
        let secrets = secrets.filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with(&start)
        });
        let all = below.chain(secrets).map(|entry| entry.path());
        let policy = Some(self.policy(name)).filter(|path| path.is_file());
        all.chain(policy).collect()
    }

    /// How the files begin that hold the secrets of a server.
    pub fn secret_start(name: &str) -> String {
        format!("mcp-{name}.")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    let real = path.canonicalize();
    real.or_else(|_| std::path::absolute(path))
        .map_err(|why| at(path, &why))
}

pub fn at(path: &Path, why: &io::Error) -> String {
    format!("{}: {why}", text::path(path))
}
