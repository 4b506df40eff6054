//! Writes what a plan says: the folder of a server, its policy and its secrets.

use super::changes::Changes;
use super::entries::variable;
use super::launch::{Package, Program, Start};
use super::plan::{Plan, entries};
use super::target::{DATA, SERVERS, Target, at};
use crate::base::text;
use crate::cli::{settings, words};
use crate::policy::packages::Ecosystem;
use crate::policy::{self, Policies};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// Most files, and most bytes, of a script's project: as many as an approval can hold.
const MAX_FILES: usize = 5000;
const MAX_BYTES: u64 = 64 << 20;
/// The copy of a script's project.
const COPY: &str = "app";
/// Folders of a project that are not copied: packages are built from its lock.
const LEFT: [&str; 3] = ["node_modules", "venv", "__pycache__"];
const HEAD: &str = "# Written by `toolhost mcp import`: what this server may touch. Edit it, and approve it again.\n";

impl Plan {
    pub fn policy_text(&self) -> Result<String, String> {
        let text = toml::to_string(&self.policy).map_err(|error| error.to_string())?;
        Ok(format!("{HEAD}{text}"))
    }

    /// Whether this policy loads beside those of the host.
    pub fn check(&self, target: &Target, policies: &Policies) -> Result<(), String> {
        let file = target.policy(&self.name);
        let policy = policy::parse(&self.policy_text()?, &file, false, &target.root);
        let policy = policy.map_err(|problems| problems[0].message.clone())?;
        let together = policies.with(policy);
        together
            .map(drop)
            .map_err(|problems| problems[0].problem.message.clone())
    }

    /// Writes all of it. Dropping the result undoes that.
    pub fn write(&self, target: &Target) -> Result<Changes, String> {
        let mut changes = Changes::default();
        let folder = target.folder(&self.name);
        let servers = target.servers();
        // Nobody else may write what this host obeys, whatever the umask.
        for path in [&target.tools, &servers, &folder, &target.policies] {
            changes.folder(path, 0o755)?;
        }
        for path in target.files(&self.name) {
            changes.clear(&path)?;
        }
        self.write_secrets(target, &mut changes)?;
        let policy = self.policy_text()?;
        changes.write(&target.policy(&self.name), policy.as_bytes(), 0o644)?;
        if self.policy["files"]["write"]
            .to_string()
            .contains("./data/")
        {
            changes.folder(&folder.join(DATA), 0o755)?;
        }
        match &self.launch.program {
            Program::Package(package) => package.write(&folder, &mut changes)?,
            Program::Script { file, .. } => copy(file, &folder.join(COPY), &mut changes)?,
        }
        // The last file: with it the server is there.
        let text = self.manifest_text("0.0.0");
        changes.write(&target.manifest(&self.name), text.as_bytes(), 0o644)?;
        Ok(changes)
    }

    /// Writes the version into the manifest, which is there already.
    pub fn write_version(&self, target: &Target, version: &str) -> Result<(), String> {
        let path = target.manifest(&self.name);
        let written = words::write_file(&path, &self.manifest_text(version), true);
        written.map_err(|why| at(&path, &why))
    }

    fn write_secrets(&self, target: &Target, changes: &mut Changes) -> Result<(), String> {
        if self.secrets.is_empty() && self.missing.is_empty() {
            return Ok(());
        }
        let folder = target.secrets();
        if !folder.is_dir() {
            changes.folder(&folder, 0o700)?;
            // The folder of policies may be under version control.
            changes.write(&folder.join(".gitignore"), b"*\n", 0o600)?;
        }
        for (name, value) in &self.secrets {
            changes.write(&folder.join(name), value.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// The manifest: it requests what the policy grants.
    fn manifest_text(&self, version: &str) -> String {
        let name = &self.name;
        let policy = &self.policy;
        let mut capabilities = values(&policy["secrets"]["grant"], "name");
        for name in &mut capabilities {
            name.insert_str(0, "secret:");
        }
        let script = match &self.launch.program {
            Program::Package(package) => package.script().to_owned(),
            Program::Script { file, .. } => format!("{COPY}/{}", below_project(file).display()),
        };
        let manifest = json!({
            "toolId": format!("{name}:server"),
            "displayName": name,
            "version": version,
            "description": format!("The MCP server {}.", self.runs()),
            "handler": {
                "type": "mcp",
                "scriptPath": format!("{SERVERS}/{name}/{script}"),
                "language": self.launch.language().name(),
                "args": self.launch.arguments,
            },
            "execution": { "env": self.environment },
            "securityContext": {
                "fileAccess": {
                    "allowRead": values(&policy["files"]["read"], "path"),
                    "allowWrite": values(&policy["files"]["write"], "path"),
                },
                "networkAccess": { "allowHosts": values(&policy["network"]["hosts"], "host") },
                "requiredCapabilities": capabilities,
            },
        });
        format!("{manifest:#}\n")
    }
}

/// This member of each entry of a list.
pub fn values(list: &Value, member: &str) -> Vec<String> {
    entries(list)
        .filter_map(|entry| entry[member].as_str().map(str::to_owned))
        .collect()
}

impl Package {
    fn script(&self) -> &'static str {
        match self.ecosystem {
            Ecosystem::Node => "server.cjs",
            Ecosystem::Python => "server.py",
        }
    }

    /// Writes the script that starts the package, and the file that requires it.
    fn write(&self, folder: &Path, changes: &mut Changes) -> Result<(), String> {
        let [program, module] = match &self.start {
            Start::Usual => ["", ""],
            Start::Program(name) => [name.as_str(), ""],
            Start::Module(name) => ["", name.as_str()],
        };
        let script = match self.ecosystem {
            Ecosystem::Node => include_str!("server.cjs"),
            Ecosystem::Python => include_str!("server.py"),
        };
        let script = script
            .replace("PACKAGE_NAME", &json!(self.name()).to_string())
            .replace("PROGRAM_NAME", &json!(program).to_string())
            .replace("MODULE_NAME", &json!(module).to_string());
        changes.write(&folder.join(self.script()), script.as_bytes(), 0o644)?;
        let required = self.required.iter();
        let [file, text] = match self.ecosystem {
            Ecosystem::Node => {
                let all: Map<String, Value> = required
                    .map(|it| (it.name.clone(), json!(it.range())))
                    .collect();
                let text = json!({ "private": true, "dependencies": all });
                ["package.json".to_owned(), format!("{text:#}\n")]
            }
            Ecosystem::Python => {
                let lines = required.map(|it| format!("{}{}\n", it.name, it.versions));
                ["requirements.txt".to_owned(), lines.collect()]
            }
        };
        changes.write(&folder.join(file), text.as_bytes(), 0o644)
    }
}

/// The folder of a script's project: the nearest that says what it requires. `None`: the script
/// stands alone.
fn project(script: &Path) -> Option<&Path> {
    let home = settings::home(&variable);
    let above = script.ancestors().skip(1).take(4);
    let mut above = above.take_while(|folder| Some(*folder) != home.as_deref());
    above.find(|folder| {
        let files = ["package.json", "pyproject.toml", "requirements.txt"];
        files.iter().any(|file| folder.join(file).is_file())
    })
}

fn below_project(script: &Path) -> &Path {
    let folder = project(script).or(script.parent());
    let below = folder.and_then(|folder| script.strip_prefix(folder).ok());
    below.unwrap_or(script)
}

/// Copies a script with its project.
fn copy(script: &Path, to: &Path, changes: &mut Changes) -> Result<(), String> {
    changes.folder(to, 0o755)?;
    let Some(from) = project(script) else {
        let done = fs::copy(script, to.join(below_project(script)));
        return done.map(drop).map_err(|why| at(script, &why));
    };
    let mut bytes = 0;
    let walk = walkdir::WalkDir::new(from).min_depth(1).into_iter();
    let walk = walk.filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        !name.starts_with('.') && !LEFT.contains(&&*name)
    });
    for (count, entry) in walk.enumerate() {
        let entry = entry.map_err(|why| why.to_string())?;
        let kind = entry.file_type();
        bytes += entry.metadata().map_or(0, |facts| facts.len());
        if kind.is_symlink() || count > MAX_FILES || bytes > MAX_BYTES {
            return Err(format!(
                "{}: its project has links, or more than {MAX_FILES} files or {} MiB: no approval \
                 could hold it",
                text::path(from),
                MAX_BYTES >> 20
            ));
        }
        let target = to.join(entry.path().strip_prefix(from).unwrap_or(entry.path()));
        let done = if kind.is_dir() {
            fs::create_dir(&target)
        } else {
            fs::copy(entry.path(), &target).map(drop)
        };
        done.map_err(|why| at(entry.path(), &why))?;
    }
    Ok(())
}
