//! Ceilings, and the one intersection by which all requests are narrowed.

use super::verdict::Narrower;
use crate::policy::grammar::document::Origin;
use crate::policy::grammar::file::Policy;
use crate::policy::grammar::grantable::largest;

/// One bound of a tool: its policy, the host's cap, or the grants of a tool that names the same
/// script. A tool is granted the intersection of its request with all its ceilings.
#[derive(Clone, Copy)]
pub struct Ceiling<'p> {
    pub policy: &'p Policy,
    pub narrower: Narrower,
}

impl Ceiling<'_> {
    pub fn lacks_entry(self, table: &str, what: &str) -> String {
        match self.narrower {
            // Callers read this text, too, so it names no file.
            Narrower::Owner => format!(
                "{} names this script and is not granted all of it",
                self.policy.name
            ),
            _ => format!(
                "no entry of {table} in policy {} covers {what}",
                self.policy.origin().called()
            ),
        }
    }
}

/// For a request by name: the entry of the first ceiling, if every ceiling has one; else which ceiling
/// refuses, and why.
pub fn granted<'p, E: 'p>(
    ceilings: &[Ceiling<'p>],
    table: &str,
    what: &str,
    entry: impl Fn(&'p Policy) -> Option<&'p E>,
) -> Result<(&'p E, Origin<'p>), (Narrower, String)> {
    let entries: Vec<_> = ceilings
        .iter()
        .map(|ceiling: &Ceiling<'p>| {
            let entry = entry(ceiling.policy).map(|entry| (entry, ceiling.policy.origin()));
            entry.ok_or_else(|| (ceiling.narrower, ceiling.lacks_entry(table, what)))
        })
        .collect::<Result<_, _>>()?;
    entries
        .into_iter()
        .next()
        .ok_or((Narrower::Policy, String::new()))
}

/// For a request with parts: the largest parts that every ceiling grants. `both`: the overlap of a
/// part and an entry.
pub fn narrowed<'p, P, E: 'p, I: IntoIterator<Item = &'p E>>(
    whole: P,
    ceilings: &[Ceiling<'p>],
    entries: impl Fn(&'p Policy) -> I,
    both: impl Fn(&P, &'p E) -> Option<P>,
    covers: impl Fn(&P, &P) -> bool,
) -> Vec<P> {
    ceilings.iter().fold(vec![whole], |parts, ceiling| {
        // Covered parts are dropped after each ceiling, or the parts would multiply.
        largest(
            parts.iter().flat_map(|part| {
                entries(ceiling.policy)
                    .into_iter()
                    .filter_map(|entry| both(part, entry))
                    .collect::<Vec<_>>()
            }),
            &covers,
        )
    })
}
