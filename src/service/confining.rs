//! The last part of every confinement, for a call and for a process that waits for one: what tools
//! wrote, packages, and the values of secrets.

use super::ledger::{self, Ledger};
use super::redaction::Redaction;
use super::{packages, secrets};
use crate::fault::Fault;
use crate::packages::store::EnvironmentLease;
use crate::policy;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Confining<'a> {
    pub ledger: &'a Ledger,
    /// Where tools may write.
    pub written: &'a policy::WritablePaths,
    pub environment: Option<&'a EnvironmentLease>,
    /// Whose secrets it gets, where they depend on that.
    pub caller: &'a str,
    /// The time left for reading secrets.
    pub left: Duration,
}

impl Confining<'_> {
    pub async fn finish(
        &self,
        confinement: &mut policy::Confinement,
        redaction: &mut Redaction,
    ) -> Result<(), Fault> {
        ledger::look_back(&mut confinement.shape, Some(self.ledger), self.written)?;
        if let Some(environment) = self.environment {
            packages::use_environment(Arc::make_mut(&mut confinement.shape), environment);
        }
        let secrets = confinement.shape.secrets.iter();
        let sources = secrets.flat_map(|grant| grant.from.named_files());
        ledger::check_unwritten(sources, self.ledger, self.written)?;
        secrets::provide(confinement, self.caller, self.left, redaction).await
    }
}
