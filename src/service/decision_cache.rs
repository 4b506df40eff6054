//! Decision cache: what holds until the registry or the operator's rules change: the policies with every file of the
//! registry protected, and what they decide about each tool.
//!
//! For: the road. In: a snapshot, the rules. Out: a `Decided` per tool, found once.
//! Never: is used after a change of either; holds anything that a call brings.

use super::requirements;
use crate::base::lock;
use crate::packages::Seen;
use crate::{policy, registry};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What the operator allows, and what this machine has.
#[derive(Clone, Debug)]
pub struct Rules {
    pub policies: Arc<policy::Policies>,
    pub machine: Arc<policy::Machine>,
}

pub(super) struct DecisionCache {
    pub snapshot: Arc<registry::Snapshot>,
    pub rules: Arc<Rules>,
    /// The policies of the rules, with the files of the snapshot protected.
    pub policies: Arc<policy::Policies>,
    /// By the address of the tool, which `snapshot` keeps alive.
    decided: Mutex<HashMap<usize, (Seen, Arc<Decided>)>>,
}

/// A decision, and the digest of the shape it leads to.
pub(super) struct Decided {
    pub decision: policy::Decision,
    pub shape_digest: String,
}

impl DecisionCache {
    pub fn new(snapshot: Arc<registry::Snapshot>, rules: Arc<Rules>) -> DecisionCache {
        let policies = Arc::new(snapshot.protect(&rules.policies));
        DecisionCache { snapshot, rules, policies, decided: Mutex::default() }
    }

    /// What policy decides about a tool of this snapshot, found anew where the files beside its script changed.
    pub fn decided(&self, tool: &Arc<registry::Tool>) -> Arc<Decided> {
        let ours = self.snapshot.versions(&tool.manifest.id).iter().any(|known| Arc::ptr_eq(known, tool));
        if !ours {
            return self.decide(tool);
        }
        let key = Arc::as_ptr(tool) as usize;
        let known = lock(&self.decided).get(&key).cloned();
        if let Some((_, decided)) = known.filter(|(seen, _)| seen.still()) {
            return decided;
        }
        let seen = tool.site.script.as_deref().map_or_else(Seen::nothing, Seen::of);
        let decided = self.decide(tool);
        lock(&self.decided).insert(key, (seen, decided.clone()));
        decided
    }

    fn decide(&self, tool: &registry::Tool) -> Arc<Decided> {
        let decision = requirements::decide(tool, &self.snapshot, &self.policies, &self.rules.machine);
        let shape_digest = decision.shape.as_ref().map(|shape| shape.digest()).unwrap_or_default();
        Arc::new(Decided { decision, shape_digest })
    }
}
