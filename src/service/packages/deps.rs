//! Deps: what people ask of the packages of this host's tools, beside calls.
//!
//! For: `toolhost deps`. In: a tool. Out: what it requires, a lock, entries of the store. Never: another way to build than
//! that of a call.

use super::{Need, Packages, Resolved, broken, under_way};
use crate::fault::{Fault, Kind};
use crate::packages::store::Entry;
use crate::policy::Decision;
use crate::service::{Service, requirements};
use std::sync::Arc;

impl Service {
    pub fn packages(&self) -> &Arc<Packages> {
        &self.packages
    }

    /// What a tool requires; `None`: nothing.
    pub fn need(&self, reference: &str) -> Result<Option<Need>, Fault> {
        let decisions = self.decisions()?;
        need(&decisions.decided(&decisions.snapshot.find(reference)?).decision)
    }

    /// The same, as if the lock that would be written were not there.
    pub fn need_anew(&self, reference: &str) -> Result<Option<Need>, Fault> {
        let decisions = self.decisions()?;
        let tool = decisions.snapshot.find(reference)?;
        need(&requirements::anew(&tool, &decisions.snapshot, &decisions.policies, &decisions.rules.machine))
    }
}

fn need(decision: &Decision) -> Result<Option<Need>, Fault> {
    match (&decision.wanted, &decision.packages, &decision.shape) {
        // The files cannot be read, or disagree.
        (None, _, Err(fault)) if fault.kind == Kind::DependencyError => Err(fault.clone()),
        (None, ..) => Ok(None),
        (Some(wanted), Some(grant), Ok(shape)) => Ok(Some(Need {
            tool: decision.tool.clone(),
            wanted: Arc::clone(wanted),
            rules: grant.rules.clone(),
            runtime: shape.runtime.clone(),
        })),
        (.., Err(fault)) => Err(fault.clone()),
        (.., Ok(_)) => Err(Fault::new(Kind::SecurityError, "no policy lets this tool have packages")),
    }
}

impl Packages {
    /// Resolves what is required, whatever was resolved before.
    pub async fn lock(self: &Arc<Self>, need: &Need, tell: &(dyn Fn(&str) + Sync)) -> Result<Resolved, Fault> {
        let (store, key) = (self.store()?, self.resolved_key(need)?);
        let _lock = store.lock(&key).map_err(|e| broken(&e))?.ok_or_else(under_way)?;
        let work = store.begin(&key).map_err(|e| broken(&e))?;
        let resolved = self.resolve(need, &work.path, tell).await?;
        super::locks::allowed(need, &resolved.wanted.packages, None)?;
        Ok(resolved)
    }

    /// The entry that serves a need, if it was built.
    pub fn entry(&self, need: &Need) -> Result<Option<Arc<Entry>>, Fault> {
        let key = self.key(need)?;
        let all = self.store()?.list().map_err(|e| broken(&e))?;
        Ok(all.into_iter().map(|(entry, _)| entry).find(|entry| entry.key == key))
    }

    /// Forgets what was resolved for requirements without a lock.
    pub fn forget(&self, need: &Need) -> Result<(), Fault> {
        self.store()?.forget(&self.resolved_key(need)?).map_err(|e| broken(&e))
    }
}
