//! Packages: what the files of a script require ∩ the entry of the policy ∩ that of the cap, and
//! what is never installed.

use super::advisories;
use super::ceiling::{Ceiling, Ceilings};
use super::verdict::{Narrower, Refusal, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::policy::grammar::{
    DeniedPackage, Ecosystem, Package, PackageGrant, PackageRequirements, PackageRules,
    PackagesAllowed, packages, versions,
};
use std::collections::BTreeMap;

/// Why nothing is installed while the advisories that refuse have a fault.
const UNREAD: &str = "its known vulnerabilities cannot be looked up, because the advisories of its \
                      policy cannot be read whole: `toolhost deps audit` says why";

pub type Allowance = Result<PackagesAllowed, Refusal>;

/// The ages of packages in whole days; a missing one is unknown.
pub type Ages = BTreeMap<Package, u64>;

/// What every ceiling allows for one ecosystem.
pub fn allowed(ecosystem: Ecosystem, ceilings: &Ceilings<'_>) -> Allowance {
    let lacking = |ceiling: &Ceiling<'_>| ceiling.refusal("[packages]", ecosystem.name());
    let mut allowed: Option<PackagesAllowed> = None;
    for ceiling in &ceilings.all {
        let entry = ceiling.policy.packages.get(&ecosystem);
        let entry = &entry.ok_or_else(|| lacking(ceiling))?.grant;
        let both = match allowed {
            Some(allowed) => allowed.intersection(entry),
            None => Some(entry.clone()),
        };
        allowed = Some(both.ok_or_else(|| Refusal {
            narrower: ceiling.narrower,
            reason: format!(
                "{} names the index `{}`",
                ceiling.policy.origin().called(),
                entry.rules.index
            ),
        })?);
    }
    allowed.ok_or_else(|| lacking(&ceilings.all[0]))
}

/// What is answered to the files that say which packages a script requires.
pub struct PackageAnswer {
    pub verdict: Verdict,
    pub grant: Result<PackageGrant, PackageRefusal>,
}

/// Why a script gets no packages.
pub enum PackageRefusal {
    Lacks(String),
    /// What policy never installs, a sentence each.
    Denied(Vec<String>),
}

/// The packages that a script's files require, as far as its policies allow them.
pub fn grant_of(
    required: &PackageRequirements,
    allowance: Option<&Allowance>,
    indexes: &BTreeMap<(Ecosystem, String), String>,
) -> PackageAnswer {
    let files = packages::names(&required.sources);
    let name = required.ecosystem.name();
    let asked = format!("{name} ({files})");
    match allowance {
        Some(Ok(allowed)) => {
            let answer = grant_by(allowed, required, indexes, &asked);
            let rules = &allowed.rules;
            PackageAnswer {
                verdict: answer
                    .verdict
                    .because(&allowed.rule, &rules.why, &allowed.place),
                ..answer
            }
        }
        Some(Err(refusal)) => {
            let also = if refusal.narrower == Narrower::Host {
                ", and into host.policy.toml"
            } else {
                ""
            };
            let entry = format!("{name} = {{ index = \"default\", why = \"…\" }}");
            let words = format!(
                "its {name} packages ({files}), which no policy allows: write `[packages]` and, on \
                 a line below, `{entry}` into its policy{also}"
            );
            lacking(&asked, refusal.clone(), words)
        }
        None => {
            let reason = "only scripts of Python, Node and Bun have packages".to_owned();
            let words = format!("no packages ({files}): {reason}");
            let narrower = Narrower::BuiltIn;
            lacking(&asked, Refusal { narrower, reason }, words)
        }
    }
}

/// `words`: after "it needs".
fn lacking(asked: &str, refusal: Refusal, words: String) -> PackageAnswer {
    PackageAnswer {
        verdict: refusal.verdict(RequestKind::Package, asked, &[]),
        grant: Err(PackageRefusal::Lacks(words)),
    }
}

fn grant_by(
    allowed: &PackagesAllowed,
    required: &PackageRequirements,
    indexes: &BTreeMap<(Ecosystem, String), String>,
    asked: &str,
) -> PackageAnswer {
    let ecosystem = required.ecosystem;
    let name = ecosystem.name();
    let index = &allowed.rules.index;
    let Some(leads_to) = indexes.get(&(ecosystem, index.clone())) else {
        let refusal = Refusal {
            narrower: Narrower::Machine,
            reason: format!("the host's configuration has no [indexes.{index}] for {name}"),
        };
        let words = format!(
            "the index `{index}` for its {name} packages, which this host's configuration does not \
            name"
        );
        return lacking(asked, refusal, words);
    };
    let refused = refused(&allowed.rules, ecosystem, &required.packages, None);
    if !refused.is_empty() {
        let refusal = Refusal {
            narrower: Narrower::Policy,
            reason: refused.join("; "),
        };
        return PackageAnswer {
            verdict: refusal.verdict(RequestKind::Package, asked, &[]),
            grant: Err(PackageRefusal::Denied(refused)),
        };
    }
    let what = match (required.locked, required.lacks_lock(&allowed.rules)) {
        (true, _) => format!("{} packages of its lock", required.packages.len()),
        (false, true) => "nothing before there is a lock (`toolhost deps lock`)".to_owned(),
        (false, false) => format!(
            "what its {} requirements resolve to",
            required.requires.len()
        ),
    };
    let rules = packages::words(&allowed.rules);
    let effective = format!("{what}, from the index `{index}` ({leads_to}); {rules}");
    PackageAnswer {
        verdict: Verdict::met(RequestKind::Package, asked, effective, &[Layer::View]),
        grant: Ok(PackageGrant {
            ecosystem,
            rules: allowed.rules.clone(),
            rule: allowed.rule.clone(),
            locked: required.locked,
            sources: required.sources.clone(),
        }),
    }
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
    let named = rules.advisories.iter();
    let named = named.filter(|named| named.refuse && !packages.is_empty());
    let known = named.flat_map(|named| {
        let unread = advisories::fault(named).map(|_| UNREAD.to_owned());
        advisories::findings(named, ecosystem, packages)
            .into_iter()
            .chain(unread)
    });
    let refused = denied.chain(young).chain(known);
    refused.map(|why| printable(&why)).collect()
}

/// A warning for each known vulnerability that is not refused, and for what could not be read.
pub fn vulnerable(
    required: &PackageRequirements,
    allowance: Option<&Allowance>,
) -> impl Iterator<Item = String> {
    let allowed = allowance.and_then(|allowance| allowance.as_ref().ok());
    let named = allowed.into_iter().flat_map(|it| &it.rules.advisories);
    let PackageRequirements {
        ecosystem,
        packages,
        ..
    } = required;
    let found = named.filter(|_| !packages.is_empty()).flat_map(|named| {
        let hits = advisories::findings(named, *ecosystem, packages).into_iter();
        hits.filter(|_| !named.refuse)
            .chain(advisories::fault(named))
    });
    found.map(|why| format!("warning: {why}"))
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

/// The fault of every call where the policy requires a lock and there is none.
pub fn unlocked(required: &PackageRequirements, rules: &PackageRules, id: &str) -> Option<Fault> {
    let message = "this tool's packages are not locked, so nothing was run";
    let fix = format!("`toolhost deps lock {id}` writes the lock, and shows what it holds");
    let fault = Fault::new(Kind::DependencyError, message).details(fix);
    required.lacks_lock(rules).then_some(fault)
}

/// A warning about packages without a lock: it lists the requirements without an exact version, or
/// says that the policy requires one.
pub fn unpinned(
    requirements: &PackageRequirements,
    allowance: Option<&Allowance>,
    id: &str,
) -> Option<String> {
    let allowed = allowance.and_then(|allowance| allowance.as_ref().ok());
    if allowed.is_some_and(|allowed| requirements.lacks_lock(&allowed.rules)) {
        return Some(format!(
            "warning: every call is refused: its packages are not locked; `toolhost deps lock {id}` \
            writes the lock"
        ));
    }
    let loose = requirements
        .requires
        .iter()
        .filter(|required| !required.pinned);
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
    (!requirements.locked).then(|| {
        format!(
            "warning: not pinned, so another day may bring another version: {few}; `toolhost \
            deps lock {id}` pins it"
        )
    })
}
