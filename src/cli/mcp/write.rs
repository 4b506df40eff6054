//! Writes what a plan says: the folder of a server, its policy and its secrets.

use super::clients::Syntax;
use super::entries::{parse, variable};
use super::launch::{Package, Program};
use super::plan::{Plan, entries};
use super::target::{DATA, IGNORED, SERVERS, Target, at, entries as below};
use crate::base::files::{self, Folder};
use crate::base::text;
use crate::cli::{host, settings, words};
use crate::fault::Fault;
use crate::manifest::{self, Handler, ToolPaths};
use crate::policy::packages::Ecosystem;
use crate::policy::{self, Decision};
use nix::fcntl::OFlag;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The copy of a script's project, below the folder of its server.
const COPY: &str = "app";
/// Folders that are not copied: packages are built from the lock.
const LEFT: [&str; 3] = ["node_modules", "venv", "__pycache__"];
/// Most files of a project, and most bytes of all: as many as an approval can hold.
const MAX_FILES: usize = 5000;
const MAX_BYTES: u64 = 64 << 20;
const HEAD: &str = "# Written by `toolhost mcp import`: what this server may touch. After an edit, approve it again.\n";

impl Plan {
    fn policy_text(&self, target: &Target) -> Result<String, String> {
        let mut policy = self.policy.clone();
        let folder = target.folder(&self.name);
        policy["folders"] = json!([folder.strip_prefix(&target.root).unwrap_or(&folder)]);
        let text = toml::to_string(&policy).map_err(|error| error.to_string())?;
        Ok(format!("{HEAD}{text}"))
    }

    /// Whether it would start: the decision of its policy beside those of the host.
    pub fn check(&self, target: &Target, known: &host::Tools) -> Result<(), String> {
        let file = target.policy(&self.name);
        let policy = policy::parse(&self.policy_text(target)?, &file, false, &target.root);
        let policy = policy.map_err(|problems| problems[0].message.clone())?;
        let policies = known.policies.with(policy);
        let policies = policies.map_err(|problems| problems[0].problem.message.clone())?;
        let text = self.manifest("1.0.0").to_string();
        let read = manifest::read(text.as_bytes());
        let (mut manifest, _) = read.map_err(|problems| problems[0].message.clone())?;
        if let Handler::McpServer(server) = &mut manifest.handler {
            // It is listed later.
            server.listed.get_or_insert_default();
        }
        let site = ToolPaths {
            manifest: target.manifest(&self.name),
            base: target.tools.clone(),
            script: Some(target.tools.join(self.script())),
            folder: target.folder(&self.name),
            links: Vec::new(),
        };
        let (governing, _) = policies.governing(&manifest.id, &site.manifest);
        if governing.file != file {
            let other = text::path(&governing.file);
            return Err(format!(
                "the policy {other} is about it: take that out first"
            ));
        }
        let policies = policies.without_approvals();
        let decision = policy::decide(&manifest, &site, &policies, &known.machine);
        match decision.refused() {
            Some(fault) => Err(self.refusal(&decision, fault)),
            None => Ok(()),
        }
    }

    /// Why it would not start. The advice that faults have is about a tool that is there, which this
    /// one is not.
    fn refusal(&self, decision: &Decision, fault: &Fault) -> String {
        let denied = decision.denied().filter(|verdict| verdict.refuses());
        let lines = denied.map(|verdict| {
            let [what, asked] = [verdict.what.name(), &verdict.asked];
            let place = asked.strip_suffix("/**").unwrap_or(asked);
            let mut arguments = self.launch.arguments.iter();
            let asked = match arguments.find(|word| word.ends_with(place)) {
                Some(word) => format!("its argument {word} ({what})"),
                None => format!("{what} {asked}"),
            };
            let why = verdict.reason.as_deref().unwrap_or("not allowed");
            text::printable(&format!("{asked}: {why}"))
        });
        let lines: Vec<String> = lines.collect();
        match lines.is_empty() {
            true => fault.message.clone(),
            false => lines.join("\n"),
        }
    }

    /// Makes it below `stage`, where no host loads it. Its policy is about that place.
    pub fn write(&self, stage: &Target) -> Result<(), String> {
        let folder = stage.folder(&self.name);
        make(&folder, 0o755)?;
        make(&stage.policies, 0o755)?;
        put(&stage.policy(&self.name), &self.policy_text(stage)?)?;
        match &self.launch.program {
            Program::Package(package) => {
                for (name, text) in package.files() {
                    put(&folder.join(name), &text)?;
                }
            }
            Program::Script { file, .. } => copy(file, &folder.join(COPY))?,
        }
        let manifest = self.manifest("0.0.0");
        put(&stage.manifest(&self.name), &format!("{manifest:#}\n"))
    }

    /// Moves it to its place, the manifest last: with it the server is there.
    pub fn publish(&self, stage: &Target, target: &Target, version: &str) -> Result<(), String> {
        let manifest = stage.manifest(&self.name);
        put(&manifest, &format!("{:#}\n", self.manifest(version)))?;
        for (name, value) in &self.secrets {
            let path = target.policies.join(name);
            write_secret(&path, value.as_deref()).map_err(|why| at(&path, &why))?;
        }
        put(&target.policy(&self.name), &self.policy_text(target)?)?;
        let folder = target.folder(&self.name);
        make(&folder, 0o755)?;
        let written = values(&self.policy["files"]["write"], "path");
        if written.contains(&format!("./{DATA}/**")) {
            make(&folder.join(DATA), 0o755)?;
        }
        let made = below(&stage.folder(&self.name)).filter(|path| *path != manifest);
        for path in made.chain([manifest.clone()]) {
            let place = folder.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &place).map_err(|why| at(&place, &why))?;
        }
        fs::remove_dir_all(&stage.tools).map_err(|why| at(&stage.tools, &why))
    }

    /// Whether its client says of it what was imported with this manifest. What the server was granted
    /// since does not count.
    pub fn is_written(&self, target: &Target, written: &Value) -> bool {
        let own = self.manifest(written["version"].as_str().unwrap_or_default());
        let [own, written] = [&own, written].map(|manifest| {
            let mut members = manifest.as_object().cloned().unwrap_or_default();
            members.remove("securityContext");
            members
        });
        own == written && self.has_same_secrets(target) && self.has_same_program(target)
    }

    fn has_same_secrets(&self, target: &Target) -> bool {
        let policy = settings::regular_file(&target.policy(&self.name), MAX_BYTES);
        let policy = policy.and_then(|bytes| parse(Syntax::Toml, &bytes));
        let mut values = self.secrets.iter();
        policy.is_ok_and(|policy| sources(&policy) == sources(&self.policy))
            && values.all(|(name, value)| {
                let path = target.policies.join(name);
                let mut value = value.iter();
                value.all(|value| holds(&path, value.as_bytes()))
            })
    }

    fn has_same_program(&self, target: &Target) -> bool {
        let folder = target.folder(&self.name);
        match &self.launch.program {
            Program::Package(package) => {
                let mut files = package.files().into_iter();
                files.all(|(name, text)| holds(&folder.join(name), text.as_bytes()))
            }
            Program::Script { file, .. } => parts(file).is_ok_and(|parts| {
                let mut files = parts.iter();
                files.all(|part| {
                    let path = folder.join(COPY).join(&part.place);
                    part.bytes.as_ref().is_none_or(|bytes| holds(&path, bytes))
                })
            }),
        }
    }

    /// Its script, below the tools.
    fn script(&self) -> String {
        let script = match &self.launch.program {
            Program::Package(package) => package.script().to_owned(),
            Program::Script { file, .. } => format!("{COPY}/{}", below_project(file).display()),
        };
        format!("{SERVERS}/{}/{script}", self.name)
    }

    /// The manifest requests what the policy grants.
    fn manifest(&self, version: &str) -> Value {
        let name = &self.name;
        let policy = &self.policy;
        let secrets = values(&policy["secrets"]["grant"], "name").into_iter();
        let capabilities: Vec<String> = secrets.map(|it| format!("secret:{it}")).collect();
        json!({
            "toolId": format!("{name}:server"),
            "displayName": name,
            "version": version,
            "description": format!("The MCP server {}.", self.runs()),
            "handler": {
                "type": "mcp",
                "scriptPath": self.script(),
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
        })
    }
}

/// This member of each entry of a list.
pub fn values(list: &Value, member: &str) -> Vec<String> {
    let texts = entries(list).filter_map(|entry| entry[member].as_str());
    texts.map(str::to_owned).collect()
}

/// Where each secret of a policy comes from, by its name.
fn sources(policy: &Value) -> BTreeSet<[Option<&str>; 2]> {
    let grants = entries(&policy["secrets"]["grant"]);
    let sources = grants.map(|grant| [grant["name"].as_str(), grant["from"].as_str()]);
    sources.collect()
}

/// Whether a regular file has just this content.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    settings::regular_file(path, MAX_BYTES).is_ok_and(|own| own == bytes)
}

/// Makes a folder and those above it. Nobody else may write what this host obeys, whatever the umask.
fn make(folder: &Path, mode: u32) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
    made.map_err(|why| at(folder, &why))
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    words::write_file(path, text, true).map_err(|why| at(path, &why))
}

/// `value`: `None` where the person writes it. The folder may be the person's own.
fn write_secret(path: &Path, value: Option<&str>) -> io::Result<()> {
    let folder = Folder::make(path.parent().unwrap_or(path))?;
    if folder.stat(IGNORED).is_none() {
        folder.put(IGNORED, b"*\n")?;
    }
    let Some(value) = value else { return Ok(()) };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    folder.file(&name, new)?.write_all(value.as_bytes())
}

fn put_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .map_err(|why| at(path, &why))
}

impl Package {
    fn script(&self) -> &'static str {
        match self.required.ecosystem {
            Ecosystem::Node => "server.cjs",
            Ecosystem::Python => "server.py",
        }
    }

    /// The script that starts the package, and the file that requires it.
    fn files(&self) -> Vec<(String, String)> {
        let script = match self.required.ecosystem {
            Ecosystem::Node => include_str!("server.cjs"),
            Ecosystem::Python => include_str!("server.py"),
        };
        let words = json!([self.name(), self.program, self.module]);
        let script = script.replace("SERVER_WORDS", &words.to_string());
        let mut files = self.required.inputs.clone();
        files.push((self.script().to_owned(), script));
        files
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

/// What is copied of a script, for people.
pub fn copies(script: &Path) -> String {
    match project(script) {
        Some(folder) => {
            let folder = text::path(folder);
            format!("{folder}, but for hidden files, {}", LEFT.join(", "))
        }
        None => text::path(script),
    }
}

fn below_project(script: &Path) -> PathBuf {
    let folder = project(script).or(script.parent());
    let below = folder.and_then(|folder| script.strip_prefix(folder).ok());
    below.unwrap_or(script).to_owned()
}

/// A file of a script's project, or a folder there.
struct Part {
    /// Below the project.
    place: PathBuf,
    /// `None`: a folder.
    bytes: Option<Vec<u8>>,
    mode: u32,
}

/// What is copied of a script, each folder before what it holds. The files are somebody else's: none
/// is opened through a link, or waited for.
fn parts(script: &Path) -> Result<Vec<Part>, String> {
    let from = project(script).or(script.parent()).unwrap_or(script);
    let is_alone = project(script).is_none();
    let walk = walkdir::WalkDir::new(from)
        .into_iter()
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            let is_part = !is_alone || entry.depth() == 0 || entry.path() == script;
            is_part && (entry.depth() == 0 || !name.starts_with('.') && !LEFT.contains(&&*name))
        });
    let mut left = MAX_BYTES;
    let mut parts = Vec::new();
    for entry in walk {
        let entry = entry.map_err(|why| why.to_string())?;
        let path = entry.path();
        if parts.len() > MAX_FILES {
            let from = text::path(from);
            return Err(format!(
                "{from}: this project has more than {MAX_FILES} files"
            ));
        }
        let mut part = Part {
            place: path.strip_prefix(from).unwrap_or(path).to_owned(),
            bytes: None,
            mode: 0o755,
        };
        if !entry.file_type().is_dir() {
            let opened = files::without_links(path, OFlag::O_NONBLOCK | OFlag::O_NOCTTY);
            let opened = opened.map(File::from).map_err(io::Error::from);
            let bytes = files::checked(opened, left, |_| None);
            let bytes = bytes.map_err(|why| format!("{}: {why}", text::path(path)))?;
            left -= bytes.len() as u64;
            part.bytes = Some(bytes);
            part.mode = 0o644 | entry.metadata().map_or(0, |facts| facts.mode() & 0o111);
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Copies a script, with its project if it has one.
fn copy(script: &Path, to: &Path) -> Result<(), String> {
    for part in parts(script)? {
        let target = to.join(&part.place);
        match &part.bytes {
            Some(bytes) => put_new(&target, bytes, part.mode)?,
            None => make(&target, part.mode)?,
        }
    }
    Ok(())
}
