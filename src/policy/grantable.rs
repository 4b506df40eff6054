//! What every kind of grant can answer: files, hosts, secrets, packages, services, callers.

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
