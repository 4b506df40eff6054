//! The trait of every kind of grant.

pub trait Grantable: Sized {
    fn kind(&self) -> &'static str;

    /// What the grant lets a tool do, in words for people, without its origin.
    fn text(&self) -> String;

    /// Whether this grant allows all that `other` allows.
    fn covers(&self, other: &Self) -> bool;

    /// Whether several grants together allow all that `narrow` allows.
    fn are_covering(wide: &[Self], narrow: &Self) -> bool {
        wide.iter().any(|wide| wide.covers(narrow))
    }

    /// Whether both grants are about the same thing, whatever each allows of it.
    fn is_near(&self, other: &Self) -> bool;
}

/// Grants without those that another grant covers.
pub fn least<G: Grantable>(grants: impl IntoIterator<Item = G>) -> Vec<G> {
    largest(grants, G::covers)
}

/// The parts, without those that another part covers.
pub fn largest<P>(parts: impl IntoIterator<Item = P>, covers: impl Fn(&P, &P) -> bool) -> Vec<P> {
    let mut found: Vec<P> = Vec::new();
    for part in parts {
        if !found.iter().any(|wide| covers(wide, &part)) {
            found.retain(|narrow| !covers(&part, narrow));
            found.push(part);
        }
    }
    found
}
