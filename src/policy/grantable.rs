//! What every kind of grant can answer: files, hosts, secrets, packages, services, callers.

use super::document::At;

/// One entry of a policy: the most that it grants, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<G> {
    pub grant: G,
    pub at: At,
}

/// One grant of one kind.
pub trait Grantable: Sized {
    /// The word for it in reports.
    fn kind(&self) -> &'static str;

    /// What it lets a tool do, for people; without where it comes from.
    fn text(&self) -> String;

    /// Whether whoever has this can do all that the other lets do.
    fn covers(&self, other: &Self) -> bool;

    /// Whether several grants together let do all that another does.
    fn are_covering(wide: &[Self], narrow: &Self) -> bool {
        wide.iter().any(|wide| wide.covers(narrow))
    }

    /// Whether both speak of the same thing, however much of it each gives.
    fn is_near(&self, other: &Self) -> bool;
}

/// A grant that narrows another: a request, the entry of a policy or of the cap, what a tool that names the script has.
pub trait Narrowing: Sized {
    /// What both grant; where it comes from is kept of `self`.
    fn intersection(&self, other: &Self) -> Option<Self>;
}

/// The parts of these grants that some bound grants too. This is how everything narrows: a policy, the host's cap, and each
/// manifest that names a script.
pub fn narrowed<G: Narrowing>(grants: &[G], bounds: &[G]) -> Vec<G> {
    let parts = |grant: &G| bounds.iter().filter_map(|bound| grant.intersection(bound)).collect::<Vec<_>>();
    grants.iter().flat_map(parts).collect()
}

/// Grants without those that another grant covers.
pub fn least<G: Grantable>(grants: impl IntoIterator<Item = G>) -> Vec<G> {
    let mut kept: Vec<G> = Vec::new();
    for grant in grants {
        if !kept.iter().any(|wide| wide.covers(&grant)) {
            kept.retain(|narrow| !grant.covers(narrow));
            kept.push(grant);
        }
    }
    kept
}
