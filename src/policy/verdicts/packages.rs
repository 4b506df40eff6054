//! Packages: what the files of a script require ∩ the entry of the policy ∩ that of the cap, and
//! what is never installed.

use super::ceiling::Ceiling;
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::base::text::printable;
use crate::policy::grammar::packages::{
    self, DeniedPackage, Package, PackageGrant, PackageRequirements, PackageRules, PackagesAllowed,
};
use crate::policy::grammar::versions::{self, Ecosystem};
use std::collections::BTreeMap;

pub type Allowance = Result<PackagesAllowed, (Narrower, String)>;

/// The ages of packages in whole days; a missing one is unknown.
pub type Ages = BTreeMap<Package, u64>;

/// What every ceiling allows for one ecosystem.
pub fn allowed(ecosystem: Ecosystem, ceilings: &[Ceiling<'_>]) -> Allowance {
    let mut allowed: Option<PackagesAllowed> = None;
    for ceiling in ceilings {
        let refused = |why| (ceiling.narrower, why);
        let entry = ceiling.policy.packages.get(&ecosystem);
        let entry =
            entry.ok_or_else(|| refused(ceiling.lacks_entry("[packages]", ecosystem.name())))?;
        allowed = Some(match allowed {
            Some(allowed) => allowed.intersection(&entry.grant).ok_or_else(|| {
                refused(format!(
                    "{} names the index `{}`",
                    ceiling.policy.origin().called(),
                    entry.grant.rules.index
                ))
            })?,
            None => entry.grant.clone(),
        });
    }
    allowed.ok_or((Narrower::Policy, String::new()))
}

/// Why a script gets no packages.
pub enum PackageRefusal {
    Lacks(String),
    /// What policy never installs, a sentence each.
    Denied(Vec<String>),
}

/// Judges the packages that a script's files require, by what its policies allow.
pub fn judge(
    wanted: &PackageRequirements,
    allowance: Option<&Allowance>,
    indexes: &BTreeMap<(Ecosystem, String), String>,
) -> (Verdict, Result<PackageGrant, PackageRefusal>) {
    let ecosystem = wanted.ecosystem;
    let files = packages::names(&wanted.sources);
    let name = ecosystem.name();
    let asked = format!("{name} ({files})");
    let lacks = |narrower, reason: String, words: String| {
        (
            Verdict::denied(RequestKind::Package, &*asked, narrower, reason, &[]),
            Err(PackageRefusal::Lacks(words)),
        )
    };
    let allowed = match allowance {
        Some(Ok(allowed)) => allowed,
        Some(Err((narrower, reason))) => {
            let also = if *narrower == Narrower::Host {
                ", and into host.policy.toml"
            } else {
                ""
            };
            let entry = format!("[packages] {name} = {{ index = \"default\", why = \"…\" }}");
            let words = format!(
                "its {name} packages ({files}), which no policy allows it: write {entry} into its \
                policy{also}"
            );
            return lacks(*narrower, reason.clone(), words);
        }
        None => {
            let reason = "only scripts of Python, Node and Bun have packages";
            return lacks(
                Narrower::BuiltIn,
                reason.to_owned(),
                format!("no packages ({files}): {reason}"),
            );
        }
    };
    let because =
        |verdict: Verdict| verdict.because(&allowed.rule, &allowed.rules.why, &allowed.place);
    let index = &allowed.rules.index;
    let Some(leads_to) = indexes.get(&(ecosystem, index.clone())) else {
        let reason = format!("the host's configuration has no [indexes.{index}] for {name}");
        let words = format!(
            "the index `{index}` for its {name} packages, which this host's configuration does not \
            name"
        );
        let (verdict, refusal) = lacks(Narrower::Machine, reason, words);
        return (because(verdict), refusal);
    };
    let refused = refused(&allowed.rules, ecosystem, &wanted.packages, None);
    if !refused.is_empty() {
        let verdict = Verdict::denied(
            RequestKind::Package,
            asked,
            Narrower::Policy,
            refused.join("; "),
            &[],
        );
        return (because(verdict), Err(PackageRefusal::Denied(refused)));
    }
    let what = match (wanted.locked, wanted.lacks_lock(&allowed.rules)) {
        (true, _) => format!("{} packages of its lock", wanted.packages.len()),
        (false, true) => "nothing before there is a lock (`toolhost deps lock`)".to_owned(),
        (false, false) => format!("what its {} requirements resolve to", wanted.requires.len()),
    };
    let effective = format!(
        "{what}, from the index `{index}` ({leads_to}); {}",
        packages::words(&allowed.rules)
    );
    let verdict = because(Verdict::met(
        RequestKind::Package,
        asked,
        effective,
        &[Layer::View],
    ));
    let rules = allowed.rules.clone();
    let rule = allowed.rule.clone();
    let grant = PackageGrant {
        ecosystem,
        rules,
        rule,
        locked: wanted.locked,
        sources: wanted.sources.clone(),
    };
    (verdict, Ok(grant))
}

/// Why packages are never installed, one sentence for each. `ages`: `None` before anybody asked for
/// them.
pub fn refused(
    rules: &PackageRules,
    ecosystem: Ecosystem,
    packages: &[Package],
    ages: Option<&Ages>,
) -> Vec<String> {
    let denied = packages.iter().flat_map(|package| {
        let by = rules
            .deny
            .iter()
            .filter(|denied| denies(denied, ecosystem, package));
        by.map(move |denied| {
            format!(
                "{} {} is denied: {}",
                package.name, package.version, denied.why
            )
        })
    });
    let young = packages.iter().filter_map(|package| {
        let least = rules.min_age_days?;
        let ages = ages?;
        let shown = format!("{} {}", package.name, package.version);
        match ages.get(package) {
            None => Some(format!(
                "{shown}: its age is not known, and it must be at least {least} days old"
            )),
            Some(days) if *days < u64::from(least) => Some(format!(
                "{shown} is {days} days old, and must be at least {least}"
            )),
            Some(_) => None,
        }
    });
    denied.chain(young).map(|why| printable(&why)).collect()
}

/// A range that the ecosystem does not know denies every version.
fn denies(denied: &DeniedPackage, ecosystem: Ecosystem, package: &Package) -> bool {
    let same = match versions::name(ecosystem, &denied.name) {
        Some(name) => name.eq_ignore_ascii_case(&package.name),
        None => false,
    };
    let range = denied.versions.as_deref();
    same && range.is_none_or(|range| versions::may_hold(ecosystem, range, &package.version))
}

/// A warning that lists the requirements without an exact version, unless there is a lock.
pub fn unpinned(wanted: &PackageRequirements) -> Option<String> {
    let loose = wanted.requires.iter().filter(|required| !required.pinned);
    let loose: Vec<String> = loose
        .map(|required| format!("{} ({})", required.name, required.place))
        .collect();
    let few = match loose.split_at_checked(5) {
        Some((few, more)) if !more.is_empty() => {
            format!("{} and {} more", few.join(", "), more.len())
        }
        _ => loose.join(", "),
    };
    let few = if few.is_empty() {
        "what the packages themselves require".to_owned()
    } else {
        few
    };
    (!wanted.locked).then(|| {
        format!(
            "warning: not pinned, so another day may bring another version: {few}; `toolhost \
            deps lock` pins it"
        )
    })
}
