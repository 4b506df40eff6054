//! Starts ready processes: scripts behind all layers, before their call.
//!
//! A process that was started before its call has every layer from its start, serves one call, and
//! is used only where all that it was started for (`ReadyKey`) is equal when the call begins. It is
//! made from the tool's decision, never from a call, so nothing of one caller is in what another
//! gets: the files and variables of the call come with its input, to that one process.

use super::pool::{Launchers, fault, resolve};
use super::relay;
use super::sessions::Sessions;
use super::spec::{RoleNeeds, spec};
use super::waiting::{OwnFiles, ReadyKey, Waiting, WaitingPool, own_files};
use crate::fault::Fault;
use crate::packages::store::EnvironmentLease;
use crate::policy::Confinement;
use crate::runtimes;
use crate::sandbox::protocol::Source;
use crate::sandbox::{CallInput, LauncherError};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How far the times of files lag behind at most.
const TICK: Duration = Duration::from_millis(20);

/// Starts ready processes, and finds the one for a call.
pub struct ReadyProcesses {
    launchers: Arc<Launchers>,
}

impl ReadyProcesses {
    pub fn new(launchers: Arc<Launchers>) -> ReadyProcesses {
        ReadyProcesses { launchers }
    }

    pub fn sessions(&self) -> &Sessions {
        &self.launchers.sessions
    }

    pub fn launchers(&self) -> &Arc<Launchers> {
        &self.launchers
    }

    pub fn waiting(&self) -> &WaitingPool {
        &self.launchers.waiting
    }

    /// Starts what this confinement still lacks of the processes that its policy allows, and ends
    /// those of the tool that were started for anything else.
    pub async fn start(
        &self,
        confinement: &Confinement,
        digest: &str,
        environment: Option<&EnvironmentLease>,
    ) -> Result<(), Fault> {
        let Some(grant) = &confinement.shape.ready else {
            return Ok(());
        };
        // No more than that: what does not fit beside others is ended at once.
        for _ in 0..grant.processes {
            // A second change in the same tick would not be seen.
            let mut found = key(confinement, digest, &RoleNeeds::default()).await?;
            if found.as_ref().is_some_and(|key| is_young(key.files)) {
                tokio::time::sleep(TICK).await;
                found = key(confinement, digest, &RoleNeeds::default()).await?;
            }
            let Some(key) = found.filter(|key| !is_young(key.files)) else {
                return Ok(());
            };
            let count = self.waiting().keep_equal(&key);
            if count.is_none_or(|count| count >= grant.processes) {
                return Ok(());
            }
            let started = self.start_one(confinement, key, environment.cloned());
            let started = started.await.map_err(fault)?;
            self.waiting().put(started);
        }
        Ok(())
    }

    async fn start_one(
        &self,
        confinement: &Confinement,
        key: ReadyKey,
        environment: Option<EnvironmentLease>,
    ) -> Result<Waiting, LauncherError> {
        let per_call = &confinement.per_call;
        // It counts as the host's: it is of no principal.
        let needs = RoleNeeds::default();
        let mut ready = self.launchers.ready(&confinement.shape, &needs).await?;
        let script = per_call.script.as_ref();
        let brings = CallInput {
            source: script.map(|it| (Source::File(it.file.clone()), it.bytes.as_slice())),
            environment: Some(&per_call.env),
            ..CallInput::default()
        };
        let pipes = ready.launcher.start(None::<u64>, &brings)?;
        ready.launcher.was_idle = true;
        Ok(Waiting {
            key,
            ready,
            pipes,
            since: Instant::now(),
            began: jiff::Timestamp::now().to_string(),
            environment,
        })
    }

    /// A process that was started for exactly this call.
    pub async fn take(&self, confinement: &Confinement) -> Result<Option<Waiting>, LauncherError> {
        let Confinement { shape, per_call } = confinement;
        let Some(digest) = &per_call.ready else {
            return Ok(None);
        };
        // What runs without a shim has its variables from its start.
        if !per_call.about.is_empty() && !runtimes::reads_frame(shape) {
            return Ok(None);
        }
        let Some(key) = key(confinement, digest, &RoleNeeds::default()).await? else {
            return Ok(None);
        };
        Ok(self.waiting().take(&key))
    }
}

/// What a process for this confinement is started for. `None`: its calls start cold, because what
/// must be covered or compared is only known when a call begins.
pub async fn key(
    confinement: &Confinement,
    digest: &str,
    needs: &RoleNeeds,
) -> Result<Option<ReadyKey>, LauncherError> {
    let Confinement { shape, per_call } = confinement;
    let own = shape.clone();
    let files = tokio::task::spawn_blocking(move || own_files(&own)).await;
    let resolved = resolve(shape, true).await?;
    let Some(files) = files.ok().flatten().filter(|_| resolved.masks.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(ReadyKey {
        served: relay::served(shape)?,
        spec: spec(shape, resolved, needs),
        shape: shape.clone(),
        script: per_call.script.as_ref().map(|it| it.file.clone()),
        env: per_call.env.clone(),
        secrets: per_call.secrets.clone(),
        digest: digest.to_owned(),
        files,
    }))
}

fn is_young(files: OwnFiles) -> bool {
    let since = SystemTime::now() - TICK;
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = i64::from(since.subsec_nanos());
    files.latest >= (since.as_secs().cast_signed(), nanoseconds)
}
