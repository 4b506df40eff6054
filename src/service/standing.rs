//! What holds as long as the registry does not change: the policies with every file of it protected, and what
//! they decide about each tool.
//!
//! For: the road. In: a snapshot, policies, the machine. Out: a `Decided` per tool, found once.
//! Never: outlives its snapshot, or holds anything that a call brings.

use crate::{policy, registry};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct Standing {
    pub snapshot: Arc<registry::Snapshot>,
    pub policies: Arc<policy::Policies>,
    machine: Arc<policy::Machine>,
    /// By the address of the tool in the snapshot, which stays as long as this does.
    decided: Mutex<HashMap<usize, Arc<Decided>>>,
}

/// A decision, and the digest of the shape it leads to.
pub(super) struct Decided {
    pub decision: policy::Decision,
    pub shape_digest: String,
}

impl Standing {
    pub fn new(
        snapshot: Arc<registry::Snapshot>,
        policies: &policy::Policies,
        machine: Arc<policy::Machine>,
    ) -> Standing {
        let policies = Arc::new(snapshot.protect(policies));
        Standing { snapshot, policies, machine, decided: Mutex::default() }
    }

    /// What policy decides about a tool of this snapshot.
    pub fn decided(&self, tool: &Arc<registry::Tool>) -> Arc<Decided> {
        let decide = || {
            let decision = policy::decide(&tool.manifest, &tool.site, &self.policies, &self.machine);
            let shape_digest = decision.shape.as_ref().map(|shape| shape.digest()).unwrap_or_default();
            Arc::new(Decided { decision, shape_digest })
        };
        let ours = self.snapshot.versions(&tool.manifest.id).iter().any(|known| Arc::ptr_eq(known, tool));
        if !ours {
            return decide();
        }
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        decided.entry(Arc::as_ptr(tool) as usize).or_insert_with(decide).clone()
    }
}
