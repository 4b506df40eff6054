//! `toolhost mcp import`: the MCP servers that clients have, as tools of this host. Without `--yes` it
//! shows what it would write, and changes nothing.

use super::clients::{CLIENTS, Syntax};
use super::entries::{Entry, Variable, project_of, read, variable};
use super::launch::{Package, Program};
use super::plan::{Plan, entries};
use super::refresh;
use super::target::Target;
use super::write::{copies, values};
use crate::base::text;
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::cli::{approve, deps, host, words};
use crate::service::Service;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const TABLE: words::Table = (
    "servers",
    &["server", "package", "version", "locked", "status"],
    &[
        "why",
        "lacks",
        "program",
        "arguments",
        "copies",
        "hosts",
        "reads",
        "writes",
        "secrets",
        "toWrite",
        "settings",
        "leftOut",
        "from",
    ],
);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Files of clients, or a server.json (default: the user's own files of known clients)
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only the server that the client names so; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The value of this variable may be read: it is a setting; may be given again
    #[arg(long = "setting", value_name = "VARIABLE")]
    settings: Vec<String>,
    /// Write the servers: lock their packages, list their tools, and record that you approve them
    #[arg(long)]
    yes: bool,
    /// Write nothing (as without --yes)
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A server, and what becomes of it.
struct Row {
    entry: Entry,
    plan: Result<Plan, String>,
    locked: String,
    version: String,
    status: String,
    /// Why its tools could not be listed.
    failure: String,
    /// What is missing in its packages, and in its tools.
    lacks: Vec<String>,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let target = Target::new(settings).map_err(refused)?;
    let files = match args.files.is_empty() {
        true => known_files()?,
        false => args.files.clone(),
    };
    let mut found = Vec::new();
    for file in &files {
        found.extend(read(file).map_err(refused)?);
    }
    found.retain(|entry| args.only.is_empty() || args.only.contains(&entry.name));
    if found.is_empty() {
        return Err(refused("no file of a client names such a server".to_owned()).into());
    }
    // What is planned stays true until it is written.
    let lock = args.yes.then(|| target.lock()).transpose();
    let _lock = lock.map_err(refused)?;
    let mut rows = rows(settings, args, &target, found)?;
    let mut exit = Exit::Ok;
    for row in rows.iter_mut().filter(|row| args.yes && row.plan.is_ok()) {
        match row.import(settings, &target) {
            Ok(Ok(())) => {}
            Ok(Err(signal)) => return Ok(signal),
            Err(why) => {
                row.status = "failed".to_owned();
                row.locked = String::new();
                row.plan = Err(format!("{why:#}; nothing of it was written"));
            }
        }
        // The table comes last, and there may be many.
        let why = row.why();
        if !why.is_empty() {
            exit = Exit::Tool;
        }
        let own = format!("{}: {}", row.entry.name, row.status);
        let lines = [vec![own], why, row.lacks.clone()].concat();
        let lines: Vec<String> = lines.iter().map(|line| text::printable(line)).collect();
        words::note(&lines.join("\n  "));
    }
    let shown: Vec<Value> = rows.iter().map(|row| row.json(&target)).collect();
    let report = json!({ "servers": shown });
    words::answer(&report, args.json, || words::render(&report, &[TABLE]));
    if args.yes && !args.only.is_empty() && rows.iter().any(|row| row.plan.is_err()) {
        exit = Exit::Tool;
    }
    if !args.yes {
        words::note("Nothing was written: the same with --yes writes what is shown.");
    }
    Ok(exit.into())
}

fn refused(why: String) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

/// The user's files of known clients that are there. A project's file is somebody else's word: it
/// counts where it is named.
fn known_files() -> anyhow::Result<Vec<PathBuf>> {
    let here = std::env::current_dir()?;
    let readable = CLIENTS.iter().filter(|it| it.syntax != Syntax::Yaml);
    let of_project = readable
        .clone()
        .flat_map(|client| client.project_files(&here));
    for file in of_project.filter(|file| file.is_file()) {
        words::note(&format!(
            "{} is not read unless you name it",
            text::path(&file)
        ));
    }
    let files = readable.filter_map(|client| client.user_file(&variable));
    Ok(files.filter(|file| file.is_file()).collect())
}

/// What is planned for each entry. A server that several clients have in the same way counts once.
fn rows(
    settings: &Settings,
    args: &Args,
    target: &Target,
    found: Vec<Entry>,
) -> anyhow::Result<Vec<Row>> {
    let known = host::Tools::load(settings)?;
    let mut rows: Vec<Row> = Vec::new();
    for entry in found {
        if rows.iter().any(|row| row.entry.is_same(&entry)) {
            continue;
        }
        let mut plan = planned(args, target, &known, &entry);
        let mut planned = rows.iter().filter_map(|row| row.plan.as_ref().ok());
        if let Ok(own) = &plan
            && planned.any(|other| other.name == own.name)
        {
            let why = "another server of these files has this name: import its file alone";
            plan = Err(why.to_owned());
        }
        let [status, locked] = match &plan {
            Ok(_) => ["would be written", "with --yes"],
            Err(_) => ["not taken", ""],
        };
        rows.push(Row {
            status: status.to_owned(),
            locked: locked.to_owned(),
            version: plan.as_ref().map_or("", Plan::wanted).to_owned(),
            failure: String::new(),
            lacks: Vec::new(),
            entry,
            plan,
        });
    }
    Ok(rows)
}

fn planned(
    args: &Args,
    target: &Target,
    known: &host::Tools,
    entry: &Entry,
) -> Result<Plan, String> {
    let command = entry.command.as_ref().map_err(Clone::clone)?;
    let mut values = command.variables.values();
    let names_host = values.any(|value| matches!(value, Variable::Host(_)));
    if names_host && project_of(&entry.file).is_some() && !args.only.contains(&entry.name) {
        let why =
            "a project's file gives it a variable of yours: `--only` with its name agrees to that";
        return Err(why.to_owned());
    }
    let plan = Plan::new(entry, command, target, &args.settings)?;
    let name = &plan.name;
    target.check(name)?;
    if !target.files(name).is_empty() && !target.is_unfinished(name) {
        return Err(format!(
            "there is a server `{name}` already: `toolhost mcp refresh {name}:server --yes` starts it, lists \
             its tools and approves them, where an import was ended before that; `toolhost mcp remove {name} \
             --yes` removes it, and not its data"
        ));
    }
    let mut tools = known.tools().into_iter();
    if let Some(tool) = tools.find(|it| it.manifest.id.split(':').next() == Some(name)) {
        let id = &tool.manifest.id;
        return Err(format!(
            "tools of this host have its namespace ({id}): name it otherwise"
        ));
    }
    plan.check(target, known).map(|()| plan)
}

impl Row {
    /// Writes all of it, or nothing. `Err(code)`: a signal ended this.
    fn import(
        &mut self,
        settings: &Settings,
        target: &Target,
    ) -> anyhow::Result<Result<(), ExitCode>> {
        let Ok(plan) = &self.plan else {
            return Ok(Ok(()));
        };
        words::note(&format!("{}: locking its packages", plan.name));
        let id = format!("{}:server", plan.name);
        // What an import left that was killed.
        target.erase(&plan.name).map_err(anyhow::Error::msg)?;
        let stage = target.stage(&plan.name);
        let written = plan.write(&stage).map_err(anyhow::Error::msg);
        // The folder of policies may be new.
        let settings = &settings.again();
        let staged = Settings {
            tools: vec![stage.tools.clone()],
            ..settings.clone()
        };
        let locked = written.and_then(|()| deps::lock_missing(&staged, &id));
        let Ok(Ok(packages)) = locked else {
            target.erase(&plan.name).map_err(anyhow::Error::msg)?;
            return locked.map(|ended| ended.map(drop));
        };
        self.version = plan.version(&packages);
        self.locked = format!("{} packages", entries(&packages).count());
        self.lacks = unbuilt(&stage.folder(&plan.name));
        let published = plan.publish(&stage, target, &self.version);
        if let Err(why) = published {
            target.erase(&plan.name).map_err(anyhow::Error::msg)?;
            return Err(anyhow::Error::msg(why));
        }
        let name = plan.name.clone();
        let listed = self.list(settings, &id);
        if listed.is_err() {
            target.erase(&name).map_err(anyhow::Error::msg)?;
        }
        listed
    }

    /// Records the list of its tools, and the approval. A server that does not start stays, without an
    /// approval: its policy, or a secret, is what the person corrects.
    fn list(&mut self, settings: &Settings, id: &str) -> anyhow::Result<Result<(), ExitCode>> {
        let listed = host::with_service(
            settings,
            Some(words::note),
            async |service: &Arc<Service>| refresh::listed(service, id).await,
        )?;
        match listed {
            Err(signal) => return Ok(Err(signal)),
            Ok(Err(why)) => {
                self.status = format!(
                    "written, not approved: `toolhost mcp refresh {id} --yes` starts it again"
                );
                self.failure = why.to_string();
            }
            Ok(Ok(listed)) => {
                listed.write()?;
                self.lacks.extend(listed.not_offered.iter().cloned());
                let why = format!("imported from {}", text::path(&self.entry.file));
                approve::record(settings, id, &why)?;
                self.status = "imported and approved".to_owned();
                self.lacks.extend(self.unreachable(id));
            }
        }
        Ok(Ok(()))
    }

    /// That it reaches no host: a server that is refused one may answer what looks right.
    fn unreachable(&self, id: &str) -> Option<String> {
        let plan = self.plan.as_ref().ok()?;
        let hosts = &plan.policy["network"]["hosts"];
        hosts.is_null().then(|| {
            format!(
                "it reaches no host: if a tool of it needs one, its call with --explain names it, and \
                 `toolhost allow {id} --host HOST` grants it"
            )
        })
    }

    /// Why it was not taken, or is not approved.
    fn why(&self) -> Vec<String> {
        let why = self.plan.as_ref().err().unwrap_or(&self.failure);
        why.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn json(&self, target: &Target) -> Value {
        let mut row = json!({
            "server": self.entry.name,
            "package": "",
            "version": self.version,
            "locked": self.locked,
            "status": self.status,
            "why": self.why(),
            "lacks": self.lacks,
            "from": self.entry.file.to_string_lossy(),
        });
        let Ok(plan) = &self.plan else {
            return row;
        };
        let policy = &plan.policy;
        let missing = plan.secrets.iter().filter(|(_, value)| value.is_none());
        let missing = missing.map(|(file, _)| {
            let file = text::path(&target.policies.join(file));
            json!(format!(
                "{file} (mode 600): its client does not say the value"
            ))
        });
        let settings = plan.settings.iter();
        let settings = settings.map(|(name, value)| json!(format!("{name}={value}")));
        row["server"] = json!(plan.name);
        row["package"] = json!(plan.packages());
        row["program"] = json!(plan.launch.package().map_or("", Package::starts));
        row["arguments"] = json!(plan.launch.arguments);
        if let Program::Script { file, .. } = &plan.launch.program {
            row["copies"] = json!(copies(file));
        }
        row["hosts"] = json!(values(&policy["network"]["hosts"], "host"));
        row["reads"] = json!(values(&policy["files"]["read"], "path"));
        row["writes"] = json!(values(&policy["files"]["write"], "path"));
        let hosts = &policy["network"]["hosts"];
        let secrets = entries(&policy["secrets"]["grant"]);
        row["secrets"] = secrets.map(|grant| secret(grant, hosts)).collect();
        row["toWrite"] = missing.collect();
        row["settings"] = settings.collect();
        row["leftOut"] = json!(plan.left_out);
        row
    }
}

/// The packages of a lock that have an install script: none is run.
fn unbuilt(folder: &Path) -> Vec<String> {
    let lock = std::fs::read(folder.join("package-lock.json")).unwrap_or_default();
    let lock: Value = serde_json::from_slice(&lock).unwrap_or_default();
    let packages = lock["packages"].as_object().into_iter().flatten();
    let unbuilt = packages.filter(|(_, package)| package["hasInstallScript"] == true);
    let words = "has an install script, which is not run: if the server does not start, `builds = true` \
                 below [packages] of its policy runs it, without a network";
    unbuilt
        .map(|(place, _)| format!("{place} {words}"))
        .collect()
}

/// How a secret is used, and where it lies.
fn secret(grant: &Value, hosts: &Value) -> Value {
    let [name, from] = ["name", "from"].map(|member| words::flat(&grant[member]));
    json!(match grant["header"]["host"].as_str() {
        None if hosts.is_null() => format!("{name} ({from}): the server has it, and no network"),
        Some(host) => {
            format!("{name} ({from}): added to its requests to {host}; the server never has it")
        }
        None => format!("{name} ({from}): the server has it, and its hosts are the fence"),
    })
}
