//! `toolhost mcp import`: the MCP servers that clients have, as tools of this host. Without `--yes` it
//! shows what it would write, and changes nothing.

use super::clients::{CLIENTS, Syntax};
use super::entries::{Entry, read, variable};
use super::launch;
use super::plan::{Plan, entries, name_of};
use super::target::Target;
use super::write::values;
use crate::base::text;
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::cli::{approve, deps, host, words};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

const TABLE: words::Table = (
    "servers",
    &["server", "package", "version", "locked", "status"],
    &[
        "why", "hosts", "reads", "writes", "secrets", "toWrite", "settings", "leftOut", "from",
    ],
);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Files of clients, or a server.json (default: the files of known clients, of the user and of
    /// the project in the current folder)
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
    /// Write a server that is there already again, with its policy; its data stays
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A server, and what becomes of it.
struct Row {
    name: String,
    from: PathBuf,
    plan: Result<Plan, String>,
    locked: String,
    version: Option<String>,
    status: String,
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
    let mut rows = rows(settings, args, &target, found)?;
    let mut exit = Exit::Ok;
    for row in rows.iter_mut().filter(|row| args.yes && row.plan.is_ok()) {
        match row.import(settings, &target) {
            Ok(Ok(())) => {}
            Ok(Err(signal)) => return Ok(signal),
            Err(why) => {
                exit = Exit::Tool;
                row.status = "failed, and nothing of it was written".to_owned();
                row.plan = Err(format!("{why:#}"));
            }
        }
    }
    let shown: Vec<Value> = rows.iter().map(|row| row.json(&target)).collect();
    let report = json!({ "servers": shown });
    words::answer(&report, args.json, || words::render(&report, &[TABLE]));
    if !args.yes && rows.iter().any(|row| row.plan.is_ok()) {
        words::note("Nothing was written: the same with --yes writes what is shown.");
    }
    Ok(exit.into())
}

fn refused(why: String) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

/// The files of known clients that are there.
fn known_files() -> anyhow::Result<Vec<PathBuf>> {
    let here = std::env::current_dir()?;
    let readable = CLIENTS.iter().filter(|it| it.syntax != Syntax::Yaml);
    let mut files: Vec<PathBuf> = Vec::new();
    for client in readable {
        let all = client.user_file(&variable).into_iter();
        for file in all.chain(client.project_files(&here)) {
            // Two clients read one file of a project.
            if file.is_file() && !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// What is planned for each entry. The same server in several files counts once.
fn rows(
    settings: &Settings,
    args: &Args,
    target: &Target,
    found: Vec<Entry>,
) -> anyhow::Result<Vec<Row>> {
    let known = host::Tools::load(settings)?;
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut rows: Vec<Row> = Vec::new();
    for entry in found {
        let plan = planned(args, target, &known, &entry, &taken);
        taken.extend(plan.iter().map(|plan| plan.name.clone()));
        rows.push(Row {
            status: if plan.is_ok() {
                "would be written"
            } else {
                "not taken"
            }
            .to_owned(),
            locked: if plan.is_ok() { "with --yes" } else { "no" }.to_owned(),
            name: entry.name,
            from: entry.file,
            version: None,
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
    taken: &BTreeSet<String>,
) -> Result<Plan, String> {
    let launch = launch::read(entry)?;
    let name = name_of(&entry.name)?;
    if taken.contains(&name) {
        return Err(format!(
            "another server in these files would be `{name}`, too: import its file alone"
        ));
    }
    let manifest = target.manifest(&name);
    let mut tools = known.tools().into_iter();
    let other = tools.find(|tool| {
        let namespace = tool.manifest.id.split(':').next();
        namespace == Some(&name) && tool.site.manifest != manifest
    });
    if let Some(tool) = other {
        return Err(format!(
            "the namespace `{name}` has tools already ({})",
            tool.manifest.id
        ));
    }
    if !args.replace && (manifest.exists() || target.policy(&name).exists()) {
        return Err(format!(
            "`{name}` is there already: --replace writes it again, `toolhost mcp remove {name}` removes it"
        ));
    }
    let plan = Plan::new(entry, launch, target, &args.settings)?;
    plan.check(target, &known.policies)?;
    Ok(plan)
}

impl Row {
    /// Writes it. `Err(code)`: a signal ended this.
    fn import(
        &mut self,
        settings: &Settings,
        target: &Target,
    ) -> anyhow::Result<Result<(), ExitCode>> {
        let Ok(plan) = &self.plan else {
            return Ok(Ok(()));
        };
        let id = format!("{}:server", plan.name);
        words::note(&format!("{id}: its packages are locked"));
        let changes = plan.write(target).map_err(anyhow::Error::msg)?;
        let packages = match deps::lock_missing(settings, &id)? {
            Ok(packages) => packages,
            Err(signal) => return Ok(Err(signal)),
        };
        let version = plan.version(&packages);
        plan.write_version(target, &version)
            .map_err(anyhow::Error::msg)?;
        changes.keep();
        self.version = Some(version);
        self.locked = format!("{} packages", packages.as_array().map_or(0, Vec::len));
        let why = format!("imported from {}", text::path(&self.from));
        approve::record(settings, &id, &why)?;
        self.status = "imported and approved".to_owned();
        Ok(Ok(()))
    }

    fn json(&self, target: &Target) -> Value {
        let mut row = json!({
            "server": self.name,
            "locked": self.locked,
            "status": self.status,
            "from": self.from.to_string_lossy(),
        });
        let plan = match &self.plan {
            Ok(plan) => plan,
            Err(why) => {
                row["why"] = json!(why);
                return row;
            }
        };
        let policy = &plan.policy;
        let missing = plan.missing.iter().map(|file| {
            let file = text::path(&target.secrets().join(file));
            json!(format!(
                "{file} (mode 600): its client does not say the value"
            ))
        });
        let settings = plan.environment.iter();
        let settings = settings.map(|(name, value)| json!(format!("{name}={value}")));
        row["server"] = json!(plan.name);
        row["package"] = json!(plan.runs());
        row["version"] = json!(self.version.as_deref().unwrap_or(plan.wanted()));
        row["hosts"] = json!(values(&policy["network"]["hosts"], "host"));
        row["reads"] = json!(values(&policy["files"]["read"], "path"));
        row["writes"] = json!(values(&policy["files"]["write"], "path"));
        row["secrets"] = entries(&policy["secrets"]["grant"]).map(secret).collect();
        row["toWrite"] = missing.collect();
        row["settings"] = settings.collect();
        row["leftOut"] = json!(plan.left_out);
        row
    }
}

/// How a secret is used, and where it lies.
fn secret(grant: &Value) -> Value {
    let [name, from] = ["name", "from"].map(|member| words::flat(&grant[member]));
    json!(match grant["header"]["host"].as_str() {
        Some(host) =>
            format!("{name} ({from}): added to its requests to {host}; the server never has it"),
        None => format!("{name} ({from}): the server has it, and its hosts are the fence"),
    })
}
