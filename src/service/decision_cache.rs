//! The decision about each tool, made once and used until the registry, the operator's rules or a
//! mount change. Holds nothing of a call.

use super::alerts::{Alert, Alerts};
use super::requirements;
use crate::base::files::Stamps;
use crate::base::lock;
use crate::base::place::Mounts;
use crate::executor::CallDeadline;
use crate::fault::Fault;
use crate::manifest::RequestedAccess;
use crate::packages;
use crate::policy::{self, Approval, ApprovalState};
use crate::registry::{self, Tool};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What the operator allows, and what this machine has.
#[derive(Clone, Debug)]
pub struct Rules {
    pub policies: Arc<policy::Policies>,
    pub machine: Arc<policy::Machine>,
}

#[derive(Clone, Debug)]
pub(super) struct CurrentRules {
    pub rules: Arc<Rules>,
    /// Why newer rules cannot be read. If set, every call is refused.
    pub unread: Option<Fault>,
}

pub(super) struct DecisionCache {
    pub snapshot: Arc<registry::Snapshot>,
    pub rules: Arc<Rules>,
    /// The policies of the rules, with the files of the snapshot protected, and what is disabled.
    pub policies: Arc<policy::Policies>,
    /// By which places are compared.
    pub mounts: Arc<Mounts>,
    alerts: Arc<Alerts>,
    /// By the address of the tool, which `snapshot` keeps alive.
    decided: Mutex<HashMap<usize, (Stamps, Arc<CachedDecision>)>>,
}

pub(super) struct CachedDecision {
    pub decision: policy::Decision,
    pub shape_digest: String,
}

impl From<policy::Decision> for CachedDecision {
    fn from(decision: policy::Decision) -> CachedDecision {
        let shape = decision.shape.as_ref();
        CachedDecision {
            shape_digest: shape.map(|shape| shape.digest()).unwrap_or_default(),
            decision,
        }
    }
}

impl DecisionCache {
    pub fn new(
        snapshot: Arc<registry::Snapshot>,
        rules: Arc<Rules>,
        stops: Arc<policy::Stops>,
        alerts: Arc<Alerts>,
    ) -> DecisionCache {
        let mounts = Mounts::current();
        let mut policies = snapshot.protect(&rules.policies);
        policies.stops = stops;
        DecisionCache {
            snapshot,
            rules,
            policies: Arc::new(policies),
            mounts,
            alerts,
            decided: Mutex::default(),
        }
    }

    /// Whether no policy could give a tool this, if that were all that it requests.
    pub fn never_grants(&self, tool: &Tool, request: RequestedAccess) -> bool {
        let mut manifest = (*tool.manifest).clone();
        manifest.requested = request;
        let decision = policy::decide(&manifest, &tool.site, &self.policies, &self.rules.machine);
        decision.denied().any(policy::Verdict::never)
    }

    /// What policy decides about a tool of this snapshot, decided again where the files beside its
    /// script changed, or any file of what a person approved.
    pub fn decided(&self, tool: &Arc<Tool>) -> Arc<CachedDecision> {
        self.lookup(tool)
            .unwrap_or_else(|| self.decide_and_insert(tool, script_stamps(&self.behind(tool))))
    }

    /// Like `decided`, for a call: what is not known yet is decided on another thread, within the
    /// call's time. Its files can be long, and the folders that it names can lie on a file system
    /// that does not answer.
    pub async fn decided_for(
        self: &Arc<Self>,
        tool: &Arc<Tool>,
        until: &CallDeadline,
    ) -> Result<Arc<CachedDecision>, Fault> {
        if let Some(decided) = self.lookup(tool) {
            return Ok(decided);
        }
        let (this, tool, stamps) = (
            Arc::clone(self),
            Arc::clone(tool),
            script_stamps(&self.behind(tool)),
        );
        let is_long = packages::are_long(&stamps);
        let id = tool.manifest.id.clone();
        let decide = move || this.decide_and_insert(&tool, stamps);
        if is_long {
            until.run(true, decide).await
        } else {
            until.run_on_files(&id, decide).await
        }
    }

    /// The tool that runs: for an alias, the one that it stands for.
    pub fn behind(&self, tool: &Arc<Tool>) -> Arc<Tool> {
        self.snapshot.behind(tool).unwrap_or_else(|| tool.clone())
    }

    fn lookup(&self, tool: &Arc<Tool>) -> Option<Arc<CachedDecision>> {
        let known = lock(&self.decided)
            .get(&(Arc::as_ptr(tool) as usize))
            .cloned();
        known
            .filter(|(stamps, decided)| {
                let approval = decided.decision.approval.as_ref();
                stamps.are_unchanged() && approval.is_none_or(Approval::is_current)
            })
            .map(|(_, decided)| decided)
    }

    fn decide_and_insert(&self, tool: &Arc<Tool>, stamps: Stamps) -> Arc<CachedDecision> {
        let decided = self.decide(tool);
        if let Some(approval) = &decided.decision.approval
            && let ApprovalState::Changed { .. } = approval.state
        {
            let tool = tool.reference();
            tracing::warn!(target: "toolhost::approval", tool, "{}", approval.state.words());
            self.alerts.send(Alert::ApprovalChanged { tool });
        }
        // The address of a tool outside the snapshot may be reused.
        if self
            .snapshot
            .versions(&tool.manifest.id)
            .iter()
            .any(|known| Arc::ptr_eq(known, tool))
        {
            lock(&self.decided).insert(Arc::as_ptr(tool) as usize, (stamps, decided.clone()));
        }
        decided
    }

    fn decide(&self, tool: &Tool) -> Arc<CachedDecision> {
        let decision =
            requirements::decide(tool, &self.snapshot, &self.policies, &self.rules.machine);
        Arc::new(decision.into())
    }
}

/// Stamps of the files beside a script, taken before the files are read.
fn script_stamps(tool: &Tool) -> Stamps {
    tool.site
        .script
        .as_deref()
        .map(|script| packages::stamps(script, &tool.site.folder))
        .unwrap_or_default()
}
