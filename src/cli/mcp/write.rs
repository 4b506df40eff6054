//! Writes what a plan says: the folder of a server, its policy and its secrets.

use super::entries::variable;
use super::launch::{Package, Program};
use super::plan::{Plan, entries};
use super::target::{DATA, IGNORED, SERVERS, Target, at};
use crate::base::text;
use crate::cli::{settings, words};
use crate::policy::packages::Ecosystem;
use crate::policy::{self, Policies};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The copy of a script's project, below the folder of its server.
const COPY: &str = "app";
/// Folders that are not copied: packages are built from the lock.
const LEFT: [&str; 3] = ["node_modules", "venv", "__pycache__"];
/// Most files of a project: as many as an approval can hold.
const MAX_FILES: usize = 5000;
const HEAD: &str = "# Written by `toolhost mcp import`: what this server may touch. After an edit, approve it again.\n";

impl Plan {
    fn policy_text(&self) -> Result<String, String> {
        let text = toml::to_string(&self.policy).map_err(|error| error.to_string())?;
        Ok(format!("{HEAD}{text}"))
    }

    /// Whether this policy loads beside those of the host.
    pub fn check(&self, target: &Target, policies: &Policies) -> Result<(), String> {
        let file = target.policy(&self.name);
        let policy = policy::parse(&self.policy_text()?, &file, false, &target.root);
        let policy = policy.map_err(|problems| problems[0].message.clone())?;
        let together = policies.with(policy).map(drop);
        together.map_err(|problems| problems[0].problem.message.clone())
    }

    /// Writes all of it, the manifest last: with it the server is there.
    pub fn write(&self, target: &Target) -> Result<(), String> {
        let folder = target.folder(&self.name);
        make(&folder, 0o755)?;
        make(&target.policies, 0o755)?;
        for (name, value) in &self.secrets {
            write_secret(&target.policies.join(name), value.as_deref())?;
        }
        put(&target.policy(&self.name), &self.policy_text()?)?;
        if self.policy["files"]["write"].to_string().contains(DATA) {
            make(&folder.join(DATA), 0o755)?;
        }
        match &self.launch.program {
            Program::Package(package) => package.write(&folder)?,
            Program::Script { file, .. } => copy(file, &folder.join(COPY))?,
        }
        put(&target.manifest(&self.name), &self.manifest("0.0.0"))
    }

    /// Writes the version that was found into the manifest.
    pub fn write_version(&self, target: &Target, version: &str) -> Result<(), String> {
        let path = target.manifest(&self.name);
        let written = words::write_file(&path, &self.manifest(version), true);
        written.map_err(|why| at(&path, &why))
    }

    /// The manifest requests what the policy grants.
    fn manifest(&self, version: &str) -> String {
        let name = &self.name;
        let policy = &self.policy;
        let secrets = values(&policy["secrets"]["grant"], "name").into_iter();
        let capabilities: Vec<String> = secrets.map(|it| format!("secret:{it}")).collect();
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
            "execution": { "env": self.settings },
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
    let texts = entries(list).filter_map(|entry| entry[member].as_str());
    texts.map(str::to_owned).collect()
}

/// Makes a folder and those above it. Nobody else may write what this host obeys, whatever the umask.
fn make(folder: &Path, mode: u32) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
    made.map_err(|why| at(folder, &why))
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    words::write_file(path, text, false).map_err(|why| at(path, &why))
}

/// `value`: `None` where the person writes it.
fn write_secret(path: &Path, value: Option<&str>) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    if !folder.is_dir() {
        make(folder, 0o700)?;
        put(&folder.join(IGNORED), "*\n")?;
    }
    let Some(value) = value else { return Ok(()) };
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|why| at(path, &why))
}

impl Package {
    fn script(&self) -> &'static str {
        match self.required.ecosystem {
            Ecosystem::Node => "server.cjs",
            Ecosystem::Python => "server.py",
        }
    }

    /// Writes the script that starts the package, and the file that requires it.
    fn write(&self, folder: &Path) -> Result<(), String> {
        let script = match self.required.ecosystem {
            Ecosystem::Node => include_str!("server.cjs"),
            Ecosystem::Python => include_str!("server.py"),
        };
        let script = script
            .replace("PACKAGE_NAME", &json!(self.name()).to_string())
            .replace("PROGRAM_NAME", &json!(self.program).to_string())
            .replace("MODULE_NAME", &json!(self.module).to_string());
        put(&folder.join(self.script()), &script)?;
        for (name, text) in &self.required.inputs {
            put(&folder.join(name), text)?;
        }
        Ok(())
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

fn below_project(script: &Path) -> PathBuf {
    let folder = project(script).or(script.parent());
    let below = folder.and_then(|folder| script.strip_prefix(folder).ok());
    below.unwrap_or(script).to_owned()
}

/// Copies a script, with its project if it has one.
fn copy(script: &Path, to: &Path) -> Result<(), String> {
    let from = project(script).or(script.parent()).unwrap_or(script);
    let is_alone = project(script).is_none();
    let walk = walkdir::WalkDir::new(from)
        .into_iter()
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            let is_part = !is_alone || entry.depth() == 0 || entry.path() == script;
            is_part && (entry.depth() == 0 || !name.starts_with('.') && !LEFT.contains(&&*name))
        });
    for (count, entry) in walk.enumerate() {
        let entry = entry.map_err(|why| why.to_string())?;
        let target = to.join(entry.path().strip_prefix(from).unwrap_or(entry.path()));
        if entry.path_is_symlink() || count > MAX_FILES {
            let from = text::path(from);
            return Err(format!(
                "{from}: this project has links, or more than {MAX_FILES} files"
            ));
        }
        let done = match entry.file_type().is_dir() {
            true => fs::create_dir(&target),
            false => fs::copy(entry.path(), &target).map(drop),
        };
        done.map_err(|why| at(entry.path(), &why))?;
    }
    Ok(())
}
