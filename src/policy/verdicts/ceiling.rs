//! Ceilings, and the one intersection by which all requests are narrowed.

use super::verdict::{Narrower, Refusal};
use crate::policy::grammar::Policy;
use crate::policy::grammar::grantable::largest;

/// One bound of a tool: its policy, the host's cap, or the grants of a tool that names the same
/// script. A tool is granted the intersection of its request with all its ceilings.
#[derive(Clone, Copy)]
pub struct Ceiling<'p> {
    pub policy: &'p Policy,
    pub narrower: Narrower,
}

/// All ceilings of a tool. The first is the policy that governs it, whose entries give reasons.
pub struct Ceilings<'p> {
    pub policy: &'p Policy,
    pub all: Vec<Ceiling<'p>>,
}

impl Ceiling<'_> {
    /// That this ceiling has no entry for a request.
    pub fn refusal(self, table: &str, what: &str) -> Refusal {
        let reason = match self.narrower {
            // Callers read this text, too, so it names no file.
            Narrower::Owner => format!(
                "{} names this script and is not granted all of it",
                self.policy.name
            ),
            _ => format!(
                "no entry of {table} in policy {} covers {what}",
                self.policy.origin().called()
            ),
        };
        Refusal {
            narrower: self.narrower,
            reason,
        }
    }
}

impl<'p> Ceilings<'p> {
    /// `owned`: the grants of each tool that names the script, as policies.
    pub fn new(policy: &'p Policy, host: Option<&'p Policy>, owned: &'p [Policy]) -> Ceilings<'p> {
        let mut all = vec![Ceiling {
            policy,
            narrower: Narrower::Policy,
        }];
        all.extend(host.map(|policy| Ceiling {
            policy,
            narrower: Narrower::Host,
        }));
        all.extend(owned.iter().map(|policy| Ceiling {
            policy,
            narrower: Narrower::Owner,
        }));
        Ceilings { policy, all }
    }

    pub fn policies(&self) -> impl Iterator<Item = &'p Policy> {
        self.all.iter().map(|ceiling| ceiling.policy)
    }

    /// The first ceiling that does not grant all of a request; if every one grants all of it alone,
    /// the policy.
    pub fn refusing(&self, grants: impl Fn(&Ceiling<'p>) -> bool) -> Ceiling<'p> {
        let refusing = self.all.iter().find(|ceiling| !grants(ceiling));
        *refusing.unwrap_or(&self.all[0])
    }

    /// For a request by name: the entry of the policy, if every ceiling has one.
    pub fn granted<E>(
        &self,
        table: &str,
        what: &str,
        entry: impl Fn(&'p Policy) -> Option<&'p E>,
    ) -> Result<&'p E, Refusal> {
        let entries = self.all.iter().map(|ceiling: &Ceiling<'p>| {
            entry(ceiling.policy).ok_or_else(|| ceiling.refusal(table, what))
        });
        let entries: Vec<&E> = entries.collect::<Result<_, _>>()?;
        Ok(entries[0])
    }

    /// For a request with parts: the largest parts that every ceiling grants. `both`: the overlap
    /// of a part and an entry.
    pub fn narrowed<P, E: 'p, I: IntoIterator<Item = &'p E>>(
        &self,
        whole: P,
        entries: impl Fn(&'p Policy) -> I,
        both: impl Fn(&P, &'p E) -> Option<P>,
        covers: impl Fn(&P, &P) -> bool,
    ) -> Vec<P> {
        self.policies().fold(vec![whole], |parts, policy| {
            // Covered parts are dropped after each ceiling, or the parts would multiply.
            largest(
                parts.iter().flat_map(|part| {
                    entries(policy)
                        .into_iter()
                        .filter_map(|entry| both(part, entry))
                        .collect::<Vec<_>>()
                }),
                &covers,
            )
        })
    }
}
