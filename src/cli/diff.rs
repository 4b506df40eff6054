//! `toolhost diff OLD NEW`: what could newly be done, and what no longer can be.
//!
//! For: `cli`. In: two of: manifests, policy files or folders, TOOL@V, saved `audit --json`.
//! Out: text or JSON. Never: runs or changes anything.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::{fault, manifest, policy, registry};
use manifest::{Manifest, Site};
use policy::diff::Powers;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A manifest, a policy file or folder, TOOL@VERSION, or a saved `audit --json`
    pub old: String,
    /// The same, as it is to be
    pub new: String,
    /// For a program
    #[arg(long)]
    pub json: bool,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let known = host::Tools::of(settings)?;
    let host = Host {
        tools: &known.pairs(),
        policies: &known.policies,
        machine: &|policies| known.machine_under(settings, policies),
        find: &|reference| known.snapshot.find(reference).map(|tool| (tool.manifest.clone(), tool.site.clone())),
        read: &|path| read(settings, &known.snapshot, path),
        root: &settings.root,
        protect: &|policies| known.snapshot.protect(&policies),
    };
    let text = report(&host, &args).map_err(|fault| Refusal::of(&fault))?;
    words::show(text.as_bytes());
    Ok(Exit::Ok.into())
}

/// One manifest wherever it lies: an older copy has its script where the present one has it.
fn read(settings: &Settings, snapshot: &registry::Snapshot, path: &Path) -> Found {
    let shown = manifest::text::printable(&path.display().to_string());
    let bad = |why: String| wrong("a manifest cannot be read").person(format!("{shown}: {why}"));
    let bytes = bytes(path, crate::quantity::MAX_DEFINITION_BYTES).map_err(bad)?;
    let (manifest, _) = manifest::read(&bytes).map_err(|problems| {
        let lines: Vec<String> =
            problems.iter().map(|p| format!("{}:{}: {}: {}", p.line, p.column, p.pointer, p.message)).collect();
        let lines: Vec<String> = lines.iter().map(|line| manifest::text::printable(line)).collect();
        bad(lines.join("\n"))
    })?;
    let path = path.canonicalize().map_err(|e| bad(e.to_string()))?;
    if let Some(why) = snapshot.refused(&path) {
        return Err(wrong("a manifest is not loaded, so it can do nothing").person(format!("{shown}: {why}")));
    }
    let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    let nowhere = Site { manifest: path.clone(), base: PathBuf::new(), script: None, folder: folder.clone() };
    let site = match &manifest.handler {
        manifest::Handler::Script { script_path, .. } => {
            Site { manifest: path, ..registry::scripts::resolve(&settings.bases(), Some(&folder), script_path)? }
        }
        _ => nowhere,
    };
    Ok((Arc::new(manifest), site))
}

/// A regular file of a bounded size; never waits on a pipe.
fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map_err(|e| e.to_string())?;
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return Err("is not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most { Err(format!("is larger than {most} bytes")) } else { Ok(bytes) }
}

type Found = Result<(Arc<Manifest>, Site), fault::Fault>;

/// What the verb needs of the host; the front door fills it in.
pub struct Host<'a> {
    pub tools: &'a [(Arc<Manifest>, Site)],
    pub policies: &'a policy::Policies,
    /// The machine with the interpreters that these policies name.
    pub machine: &'a dyn Fn(&policy::Policies) -> policy::Machine,
    /// Finds TOOL@RANGE in the registry.
    pub find: &'a dyn Fn(&str) -> Found,
    /// Reads one manifest file and finds its script.
    pub read: &'a dyn Fn(&Path) -> Found,
    /// Where relative `folders` of a policy start.
    pub root: &'a Path,
    /// Policies as a call is decided by them: no file of the registry may be written.
    pub protect: &'a dyn Fn(policy::Policies) -> policy::Policies,
}

/// The largest saved audit that is read.
const MAX_AUDIT_BYTES: u64 = 256 * crate::quantity::MIB;

enum Side {
    Powers(Vec<Powers>),
    Policies(Box<policy::Policies>),
}

pub fn report(host: &Host<'_>, args: &Args) -> Result<String, fault::Fault> {
    let (before, after) = match (side(host, &args.old)?, side(host, &args.new)?) {
        (Side::Policies(old), Side::Policies(new)) => {
            let (mut before, mut after) = policy::diff::of_policies(&old, &new);
            before.extend(under(host, &old));
            after.extend(under(host, &new));
            (before, after)
        }
        (old, new) => (powers(host, old), powers(host, new)),
    };
    let (newly, lost) = (policy::diff::newly(&before, &after), policy::diff::no_longer(&before, &after));
    if args.json {
        return Ok(super::audit::pretty(&policy::diff::json(&newly, &lost)));
    }
    Ok(policy::diff::text(&newly, &lost))
}

/// Every tool of the registry under these policies.
fn under(host: &Host<'_>, policies: &policy::Policies) -> Vec<Powers> {
    let machine = (host.machine)(policies);
    policy::decide_all(host.tools, policies, &machine).iter().map(Powers::of).collect()
}

fn powers(host: &Host<'_>, side: Side) -> Vec<Powers> {
    match side {
        Side::Powers(powers) => powers,
        Side::Policies(policies) => under(host, &policies),
    }
}

fn side(host: &Host<'_>, text: &str) -> Result<Side, fault::Fault> {
    let path = PathBuf::from(text);
    if path.is_dir() && !holds_policies(&path) {
        return Err(wrong("a folder without policies").person(format!(
            "{}: holds no *.policy.toml; name manifests one by one, or save `toolhost audit --all --json` of both sides",
            manifest::text::printable(text)
        )));
    }
    if path.is_dir() || policy::is_policy_file(text) {
        let loaded = policy::Policies::load_from(&path, host.root);
        return loaded.map(|p| Side::Policies(Box::new((host.protect)(p)))).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            wrong("a policy cannot be read").person(lines.join("\n"))
        });
    }
    let (manifest, site) = match text {
        _ if text.ends_with(".tool.json") => (host.read)(&path)?,
        _ if text.ends_with(".json") => return audit(&path),
        // No id holds a slash.
        _ if text.contains('/') => return Err(no_side(&path)),
        reference => (host.find)(reference)?,
    };
    let tools =
        super::audit::Host { tools: host.tools, policies: host.policies, machine: &(host.machine)(host.policies) };
    Ok(Side::Powers(vec![Powers::of(&tools.decide(&manifest, &site))]))
}

/// A path that is none of what can be compared.
fn no_side(path: &Path) -> fault::Fault {
    let shown = manifest::text::printable(&path.display().to_string());
    let why = match path.symlink_metadata() {
        Ok(_) => {
            "is neither a manifest (*.tool.json), a policy (*.policy.toml, or a folder of them) nor a saved audit (*.json)"
        }
        Err(_) => "is not there",
    };
    wrong("nothing to compare").person(format!("{shown}: {why}"))
}

fn holds_policies(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_str().is_some_and(policy::is_policy_file))
}

fn audit(path: &Path) -> Result<Side, fault::Fault> {
    let shown = manifest::text::printable(&path.display().to_string());
    let bad = |why: String| wrong("a saved audit cannot be read").person(format!("{shown}: {why}"));
    let bytes = bytes(path, MAX_AUDIT_BYTES).map_err(bad)?;
    let saved = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    Powers::from_audit(&saved).map(Side::Powers).map_err(bad)
}

fn wrong(message: &str) -> fault::Fault {
    fault::Fault::new(fault::Kind::ParameterValidationError, message)
}
