//! What is kept of a tool's packages, as `audit TOOL` shows it: versions that were resolved without a lock, what was
//! built, and what of it runs before the script.
//!
//! For: `audit`. In: a decision, the store. Out: text, or the value of a field. Never: makes a store; resolves or builds.

use super::settings::Settings;
use super::{deps, host};
use crate::base::text::{self, printable};
use crate::fault::Fault;
use crate::policy;
use crate::policy::packages::Package;
use crate::service::packages::{Kept, Need, Packages};
use serde_json::{Value, json};

/// Packages in the text; `--json` has all of them.
const SHOWN: usize = 40;

/// `None`: the tool requires no packages, or is not granted any.
pub type Found = Option<Result<Kept, String>>;

pub fn of(settings: &Settings, machine: &policy::Machine, decision: &policy::Decision) -> Found {
    let need = Need::of(decision).ok().flatten()?;
    let words = |fault: Fault| fault.person.clone().unwrap_or(fault.message);
    let kept = host::audit_log(settings).map_err(|why| why.to_string()).and_then(|log| {
        let packages = Packages::new(host::packages(settings, machine, false), None, log);
        packages.kept(&need).map_err(words)
    });
    Some(kept)
}

pub fn value(found: &Found) -> Value {
    match found {
        None => Value::Null,
        Some(Err(why)) => json!({ "unreadable": why }),
        Some(Ok(Kept { resolved, built })) => {
            let built = built.as_ref().map(|entry| {
                let (files, bytes) = (entry.files(), entry.bytes);
                json!({"key": entry.key, "about": entry.about, "files": files, "bytes": bytes, "starts": entry.starts})
            });
            json!({ "resolved": resolved, "built": built })
        }
    }
}

pub fn text(found: &Found) -> String {
    let kept = match found {
        None => return String::new(),
        Some(Err(why)) => return format!("\n  packages here: the store cannot be read: {}\n", printable(why)),
        Some(Ok(kept)) => kept,
    };
    let mut out = String::from("\n  packages here\n");
    let mut line = |words: String| out += &format!("    - {words}\n");
    if let Some(resolved) = &kept.resolved {
        line(format!("resolved without a lock, and kept until `toolhost deps clean`: {}", versions(resolved)));
    }
    match &kept.built {
        None => line("not built yet: the first call builds them, or `toolhost deps build`".to_owned()),
        Some(entry) => {
            let (count, size) = (entry.about.packages.len(), deps::size(entry.bytes));
            line(format!(
                "built {}: {count} packages, {} files, {size} ({})",
                entry.about.made,
                entry.files(),
                entry.key
            ));
            for path in &entry.starts {
                line(format!("{} runs before the script, inside its walls", text::path(path)));
            }
        }
    }
    out
}

fn versions(packages: &[Package]) -> String {
    let shown = packages.iter().take(SHOWN).map(|package| printable(&format!("{} {}", package.name, package.version)));
    let more = packages.len().saturating_sub(SHOWN);
    let end = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.collect::<Vec<_>>().join(", ") + &end
}
