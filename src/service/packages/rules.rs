//! What policy says of the packages that a lock holds. Answers of installers are read as hostile: where they say that
//! something comes from does not count.

use super::installer::Need;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::packages::installed::Vendored;
use crate::packages::store::BuildInfo;
use crate::packages::{self, PackageRequirements};
use crate::policy;
use crate::policy::packages::Package;
use jiff::Timestamp;
use std::collections::BTreeMap;

const SECONDS_OF_A_DAY: i64 = 24 * 3600;

pub struct Resolved {
    pub wanted: PackageRequirements,
    /// The lock.
    pub text: String,
}

/// Whether policy lets these packages in. `published`: when each was, where that is known by now.
pub(super) fn check_allowed(
    need: &Need,
    packages: &[Package],
    published: Option<&BTreeMap<String, String>>,
) -> Result<(), Fault> {
    let now = Timestamp::now();
    let ages = published.map(|published| {
        let age = |package: &Package| {
            let time = published.get(&format!("{} {}", package.name, package.version))?;
            let seconds = now.as_second().checked_sub(time.parse::<Timestamp>().ok()?.as_second())?;
            let days = u64::try_from(seconds / SECONDS_OF_A_DAY).ok()?;
            Some(((package.name.clone(), package.version.clone()), days))
        };
        packages.iter().filter_map(age).collect()
    });
    let refused = policy::refused_packages(&need.rules, need.wanted.ecosystem, packages, ages.as_ref());
    if refused.is_empty() {
        return Ok(());
    }
    let mut details = refused.join("\n");
    if !need.wanted.locked {
        let id = text::printable(need.tool.split('@').next().unwrap_or_default());
        details
            .push_str(&format!("\n`toolhost deps clean {id}` forgets what was resolved, so that it is resolved anew"));
    }
    let message = "this tool requires packages that this host never installs, so nothing was run";
    Err(Fault::new(Kind::DependencyError, message).details(details))
}

/// Whether policy lets in what was built: what was approved, and the copies inside it as far as their age is known.
pub(super) fn check_built(need: &Need, about: &BuildInfo) -> Result<(), Fault> {
    check_allowed(need, &about.packages, Some(&about.published))?;
    let copies: Vec<Package> = about.vendored.iter().map(Vendored::package).collect();
    check_allowed(need, &copies, None)?;
    let known = |package: &Package| about.published.contains_key(&format!("{} {}", package.name, package.version));
    check_allowed(need, &copies.into_iter().filter(known).collect::<Vec<_>>(), Some(&about.published))
}

/// The latest moment at which a version may have been published.
pub(super) fn latest(need: &Need) -> Option<String> {
    let days = i64::from(need.rules.min_age_days?);
    let second = Timestamp::now().as_second() - days * SECONDS_OF_A_DAY;
    Timestamp::from_second(second).ok().map(|time| time.to_string())
}

/// A lock that was resolved, read like one that lies beside a script.
pub(super) fn read_lock(need: &Need, text: String) -> Result<Resolved, Fault> {
    let wanted = packages::of_lock(&need.wanted, &text, &need.runtime.version).map_err(|problem| {
        let message = "what this tool's requirements resolve to cannot be used, so nothing was run";
        Fault::new(Kind::DependencyError, message).details(text::printable(&problem.problem.message))
    })?;
    Ok(Resolved { wanted, text })
}
