//! What every kind of grant can answer, and the one intersection by which everything narrows.

use super::verdict::Narrower;
use crate::base::text;
use crate::manifest::At;
use std::path::Path;

/// One entry of a policy: the most that it grants, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<G> {
    pub grant: G,
    pub at: At,
}

/// How verdicts name a policy.
#[derive(Clone, Copy)]
pub struct Origin<'p> {
    pub name: &'p str,
    pub file: &'p Path,
}

impl Origin<'_> {
    /// Where something of it is written: `file:line`, or the policy's name.
    pub fn place(self, at: At) -> String {
        match text::path(self.file) {
            file if file.is_empty() => self.name.to_owned(),
            file if at.line == 0 => file,
            file => format!("{file}:{}", at.line),
        }
    }

    pub fn called(self) -> String {
        match text::path(self.file) {
            file if file.is_empty() => format!("`{}`", self.name),
            file => format!("`{}` ({file})", self.name),
        }
    }

    pub fn lacks_entry(self, table: &str, what: &str) -> String {
        format!("no entry of {table} in policy {} covers {what}", self.called())
    }
}

/// What one policy allows at most of one kind: the policy of a tool, or the cap of the host.
pub struct Layer<'p, E: ?Sized> {
    pub origin: Origin<'p>,
    pub narrower: Narrower,
    pub entries: &'p E,
}

/// Of grants that go by a name: the entry of the policy that allows something, where every layer has one; else who
/// refuses, and why.
pub fn granted<'p, E>(
    layers: &[Layer<'p, Vec<E>>],
    table: &str,
    what: &str,
    allows: impl Fn(&&E) -> bool,
) -> Result<(&'p E, Origin<'p>), (Narrower, String)> {
    let entry = |layer: &Layer<'p, Vec<E>>| {
        let entry = layer.entries.iter().find(&allows).map(|entry| (entry, layer.origin));
        entry.ok_or_else(|| (layer.narrower, layer.origin.lacks_entry(table, what)))
    };
    let entries: Vec<_> = layers.iter().map(entry).collect::<Result<_, _>>()?;
    entries.into_iter().next().ok_or((Narrower::Policy, String::new()))
}

pub trait Grantable: Sized {
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

/// The parts of these grants that some bound grants too. This is how everything narrows: a policy, the host's cap, and
/// each manifest that names a script.
pub fn narrowed<'b, G: Narrowing + 'b>(grants: &[G], bounds: impl IntoIterator<Item = &'b G> + Clone) -> Vec<G> {
    let parts =
        |grant: &G| bounds.clone().into_iter().filter_map(|bound| grant.intersection(bound)).collect::<Vec<_>>();
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
