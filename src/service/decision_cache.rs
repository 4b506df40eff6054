//! Decision cache: what holds until the registry or the operator's rules change: the policies with every file of the
//! registry protected, and what they decide about each tool.
//!
//! For: the road. In: a snapshot, the rules. Out: a `Decided` per tool, found once.
//! Never: is used after a change of either; holds anything that a call brings.

use crate::base::lock;
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
    decided: Mutex<HashMap<usize, Arc<Decided>>>,
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

    /// What policy decides about a tool of this snapshot.
    pub fn decided(&self, tool: &Arc<registry::Tool>) -> Arc<Decided> {
        let decide = || {
            let mut decision = policy::decide(&tool.manifest, &tool.site, &self.policies, &self.rules.machine);
            // STAND-IN
            if let crate::manifest::Handler::Script { language, .. } = &tool.manifest.handler {
                let mut machine = (*self.rules.machine).clone();
                for e in crate::policy::packages::Ecosystem::ALL {
                    machine.indexes.insert((e, "default".into()), "x".into());
                }
                if let Some(script) = &tool.site.script {
                    decision.wants(crate::packages::stand_in(script, *language), None, &machine);
                }
            }
            let shape_digest = decision.shape.as_ref().map(|shape| shape.digest()).unwrap_or_default();
            Arc::new(Decided { decision, shape_digest })
        };
        let ours = self.snapshot.versions(&tool.manifest.id).iter().any(|known| Arc::ptr_eq(known, tool));
        if !ours {
            return decide();
        }
        let mut decided = lock(&self.decided);
        decided.entry(Arc::as_ptr(tool) as usize).or_insert_with(decide).clone()
    }
}
