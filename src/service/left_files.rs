//! What a call left: stored, and given to its owner once its answer is known to be good. And the
//! files of this host, which no explanation shows.

use super::artifacts::{Owner, Received};
use super::pipeline::Pipeline;
use super::ran::unwritten;
use super::record::CallRecord;
use super::target::Decided;
use crate::executor::{self, LeftFile};
use crate::fault::{Fault, Kind};

impl Pipeline {
    /// Stores what a call left, until its answer is known to be good.
    pub(super) async fn receive(
        &self,
        mut files: Vec<LeftFile>,
        decided: &Decided,
    ) -> Result<(Vec<Received>, Vec<executor::Artifact>), Fault> {
        for file in &mut files {
            file.name = decided.redaction.line(&file.name);
        }
        let secrets = decided.redaction.host.finder();
        let artifacts = self.artifacts.clone();
        let principal = &decided.found.rights.principal;
        let received = self.limiter.readers.run(principal, move || {
            artifacts.receive(files, secrets.as_ref())
        });
        received.await.map_err(unstored)
    }

    /// Gives the artifacts of a good answer to their owner.
    pub(super) async fn keep(
        &self,
        owner: Owner,
        left: Vec<Received>,
        record: &mut CallRecord,
    ) -> Result<(), Fault> {
        let artifacts = self.artifacts.clone();
        let principal = owner.principal.clone();
        let kept = self.limiter.readers.run(&principal, move || {
            let kept = artifacts.keep(&owner, left);
            let pictures = artifacts.pictures(&kept);
            (kept, pictures)
        });
        let (kept, pictures) = kept.await.map_err(unstored)?;
        record.report.delivery.pictures = pictures;
        let result = unwritten(&kept);
        record.report.observed.artifacts.extend(kept);
        result
    }
}

fn unstored(lost: tokio::task::JoinError) -> Fault {
    Fault::new(
        Kind::InternalError,
        "The files of the call could not be stored.",
    )
    .person(lost.to_string())
}
