//! `toolhost diff OLD NEW`: what could newly be done, and what no longer can be.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{audit, host, words};
use crate::base::text;
use crate::{fault, manifest, policy, registry};
use manifest::ToolPaths;
use policy::diff::Powers;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A manifest, a policy file or folder, TOOL@VERSION, or a saved `audit --json`
    pub old: String,
    /// The same, after the change
    pub new: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let known = host::Tools::load(settings)?;
    let host = Host { settings, known };
    fn refuse(fault: fault::Fault) -> Refusal {
        Refusal::from_fault(&fault)
    }
    let old = host.side(&args.old).map_err(refuse)?;
    let new = host.side(&args.new).map_err(refuse)?;
    let (before, after) = match (old, new) {
        (Side::Policies(old), Side::Policies(new)) => {
            let [mut before, mut after] = policy::diff::of_policies(&old, &new);
            before.extend(host.under(&old).map_err(refuse)?);
            after.extend(host.under(&new).map_err(refuse)?);
            (before, after)
        }
        (Side::Policies(_), Side::Powers(one)) | (Side::Powers(one), Side::Policies(_))
            if one.len() == 1 =>
        {
            let why = "policies and one tool are not two states of one thing: compare policies \
                with policies, and a manifest with a manifest";
            return Err(refuse(wrong(why)).into());
        }
        (old, new) => (
            host.powers(old).map_err(refuse)?,
            host.powers(new).map_err(refuse)?,
        ),
    };
    let diff = policy::diff::between(&before, &after);
    words::answer(&serde_json::to_value(&diff)?, args.json, || text(&diff));
    Ok(Exit::Ok.into())
}

const TABLES: [words::Table; 3] = [
    ("newly", &["subject", "kind", "before", "now"], &[]),
    ("noLonger", &["subject", "kind", "before", "now"], &[]),
    ("different", &["subject", "place", "before", "now"], &[]),
];
/// The longest value of a difference that is shown, characters.
const MAX_VALUE_CHARS: usize = 120;

/// The differences for a person.
pub fn text(diff: &policy::diff::Diff) -> String {
    let first = match (diff.newly.is_empty(), diff.different.is_empty()) {
        (false, _) => "",
        (true, true) => "The change allows nothing new.\n",
        (true, false) => "No grant, limit or capability is new.\n",
    };
    format!("{first}{}", tables(diff))
}

/// The tables of the differences alone.
pub fn tables(diff: &policy::diff::Diff) -> String {
    let mut report = serde_json::to_value(diff).unwrap_or_default();
    for value in report["different"].as_array_mut().into_iter().flatten() {
        for side in ["now", "before"] {
            value[side] = text::head(&text::json(&value[side], false), MAX_VALUE_CHARS).into();
        }
    }
    words::render(&report, &TABLES)
}

type Result<T, E = fault::Fault> = std::result::Result<T, E>;

/// The largest saved audit that is read.
const MAX_AUDIT_BYTES: u64 = 256 * crate::quantity::MIB;

enum Side {
    Powers(Vec<Powers>),
    Policies(Box<policy::Policies>),
}

struct Host<'a> {
    settings: &'a Settings,
    known: host::Tools,
}

impl Host<'_> {
    /// Every tool of the registry under these policies, as its files lie now.
    fn under(&self, policies: &policy::Policies) -> Result<Vec<Powers>> {
        let named_runtimes = host::named_runtimes(self.settings, policies);
        let machine = policy::Machine {
            named_runtimes,
            ..(*self.known.machine).clone()
        };
        self.known
            .tools()
            .iter()
            .map(|tool| powers(&self.known, tool, policies, &machine))
            .collect()
    }

    fn powers(&self, side: Side) -> Result<Vec<Powers>> {
        match side {
            Side::Powers(powers) => Ok(powers),
            Side::Policies(policies) => self.under(&policies),
        }
    }

    fn side(&self, text: &str) -> Result<Side> {
        let path = PathBuf::from(text);
        if path.is_dir() && !holds_policies(&path) {
            return Err(wrong("a folder without policies").person(format!(
                "{}: holds no *.policy.toml; name manifests one by one, or compare two saved \
                `audit --all --json`",
                text::printable(text)
            )));
        }
        if path.is_dir() || policy::is_policy_file(text) {
            let loaded = policy::Policies::load(&path, &self.settings.root);
            return loaded
                .map(|mut policies| {
                    host::protect(self.settings, &mut policies);
                    Side::Policies(Box::new(self.known.snapshot.protect(&policies)))
                })
                .map_err(|problems| {
                    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
                    wrong("a policy cannot be read").person(lines.join("\n"))
                });
        }
        let tool = match text {
            _ if registry::is_manifest_file(text) => Arc::new(self.read(&path)?),
            _ if text.ends_with(".json") => return read_saved(&path),
            // No id holds a slash.
            _ if text.contains('/') => return Err(no_side(&path)),
            // An id has a colon: without one a file is as likely to be meant.
            name if !name.contains(':') => self.known.snapshot.find(name).map_err(|fault| {
                let why = no_side(&path).person.unwrap_or_default();
                wrong("nothing to compare").person(format!("{why}. {}", fault.message))
            })?,
            reference => self.known.snapshot.find(reference)?,
        };
        Ok(Side::Powers(vec![powers(
            &self.known,
            &tool,
            &self.known.policies,
            &self.known.machine,
        )?]))
    }

    /// A manifest that may lie anywhere. If its tool is loaded, it is evaluated in the place of
    /// that manifest, with the script and the policy from there.
    fn read(&self, path: &Path) -> Result<registry::Tool> {
        let shown = text::path(path);
        let bad =
            |why: String| wrong("a manifest cannot be read").person(format!("{shown}: {why}"));
        let bytes = super::settings::regular_file(path, crate::quantity::MAX_DEFINITION_BYTES)
            .map_err(bad)?;
        let (manifest, _) = manifest::read(&bytes).map_err(|problems| {
            let lines: Vec<String> = problems
                .iter()
                .map(|p| format!("{}:{}: {}: {}", p.line, p.column, p.pointer, p.message))
                .collect();
            let lines: Vec<String> = lines.iter().map(|line| text::printable(line)).collect();
            bad(lines.join("\n"))
        })?;
        let path = path.canonicalize().map_err(|e| bad(e.to_string()))?;
        if let Some(why) = self.known.snapshot.refused(&path) {
            return Err(wrong("a manifest is not loaded, so it can do nothing")
                .person(format!("{shown}: {why}")));
        }
        let present = self
            .known
            .snapshot
            .versions(&manifest.id)
            .last()
            .map(|tool| tool.site.manifest.clone());
        let home = present
            .filter(|place| !place.as_os_str().is_empty())
            .unwrap_or(path);
        let folder = home.parent().unwrap_or(Path::new("/")).to_path_buf();
        let site = match manifest.handler.script() {
            Some(script) => {
                let bases = self.settings.bases();
                let site = registry::scripts::resolve(&bases, Some(&folder), &script.path)?;
                ToolPaths {
                    manifest: home,
                    ..site
                }
            }
            None => ToolPaths {
                manifest: home,
                base: PathBuf::new(),
                script: None,
                folder,
                links: Vec::new(),
            },
        };
        Ok(registry::Tool::new(Arc::new(manifest), site, "file"))
    }
}

/// What one tool could do, as its files lie now.
fn powers(
    known: &host::Tools,
    tool: &registry::Tool,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> Result<Powers> {
    let decision = known.foreseen(tool, policies, machine);
    let reached = known.reached(&decision, policies, machine);
    let entry = audit::entry(&decision, &tool.manifest, reached);
    Powers::from_json(entry).map_err(|why| fault::Fault::new(fault::Kind::InternalError, why))
}

/// The fault of a path that cannot be compared.
fn no_side(path: &Path) -> fault::Fault {
    let shown = text::path(path);
    let why = match path.symlink_metadata() {
        Ok(_) => {
            "must be a manifest (*.tool.json, *.prompt.json, *.resource.json), a policy \
             (*.policy.toml, or a folder of them) or a saved audit (*.json)"
        }
        Err(_) => "does not exist",
    };
    wrong("nothing to compare").person(format!("{shown}: {why}"))
}

pub fn holds_policies(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name())
        .any(|name| name.to_str().is_some_and(policy::is_policy_file))
}

/// What `audit --all --json` prints. Absent in other audits.
#[derive(Deserialize)]
struct All<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
}

/// A saved audit: of all tools (`{"tools": […]}`), a list, or of one tool. Only one entry at a time
/// is held as a tree.
fn read_saved(path: &Path) -> Result<Side> {
    fn bad(why: &dyn fmt::Display, path: &Path) -> fault::Fault {
        let words = format!("{}: {why}", path.display());
        wrong("a saved audit cannot be read").person(text::printable(&words))
    }
    let bytes =
        super::settings::regular_file(path, MAX_AUDIT_BYTES).map_err(|why| bad(&why, path))?;
    let whole: &RawValue = serde_json::from_slice(&bytes).map_err(|e| bad(&e, path))?;
    let entries = if whole.get().starts_with('[') {
        Some(serde_json::from_str(whole.get()).map_err(|e| bad(&e, path))?)
    } else {
        serde_json::from_str::<All<'_>>(whole.get())
            .map_err(|e| bad(&e, path))?
            .tools
    };
    entries
        .unwrap_or_else(|| vec![whole])
        .into_iter()
        .map(|entry: &RawValue| {
            let entry = serde_json::from_str(entry.get()).map_err(|e| bad(&e, path))?;
            Powers::from_json(entry).map_err(|why| bad(&why, path))
        })
        .collect::<Result<_>>()
        .map(Side::Powers)
}

fn wrong(message: &str) -> fault::Fault {
    fault::Fault::new(fault::Kind::ParameterValidationError, message)
}
