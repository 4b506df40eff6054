//! What is kept of a tool's packages, as `audit TOOL` shows it: versions that were resolved without a lock, what was
//! built, and what of it runs before the script.
//!
//! For: `audit`. In: a decision, the store. Out: text. Never: makes a store; resolves or builds.

use super::settings::Settings;
use super::{deps, host};
use crate::base::text::{self, printable};
use crate::policy;
use crate::policy::packages::Package;
use crate::service::packages::{Found, Packages};

/// Packages in the text; `--json` has all of them.
const SHOWN: usize = 40;

pub fn of(settings: &Settings, machine: &policy::Machine, decision: &policy::Decision) -> Found {
    decision.wanted.as_ref()?;
    match host::audit_log(settings) {
        Ok(log) => Packages::new(host::packages(settings, machine, false), None, log).found(decision),
        Err(why) => Some(Err(why.to_string())),
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
