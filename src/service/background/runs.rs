//! The runs that are kept: those that run or wait for their clients, and those that a client had
//! stored. Each is for its owner alone.

use super::calls::Background;
use super::run::{Run, RunStatus, StepEnd, ToolOutput};
use super::store::Change;
use super::table::{Kept, OpenRun};
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::report::ShownArguments;
use crate::service::request::Caller;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;

/// A run whose calls run. Dropped, it has failed.
pub struct RunningRun {
    background: Arc<Background>,
    open: Option<OpenRun>,
    /// When it was last stored while its calls ran.
    stored: Option<Instant>,
}

/// A run with more bytes than this is stored no more often while its calls run: each time is all of it.
const SMALL_BYTES: usize = 256 * 1024;
const STORE_AGAIN: Duration = Duration::from_secs(1);

impl RunningRun {
    /// Ends a step, which is seen and stored at once, so that it is left where the host ends first. Of
    /// a large run, steps that end within a second are stored with the next one.
    pub async fn end_step(&mut self, call: &str, arguments: ShownArguments, end: StepEnd) {
        let Some(open) = &mut self.open else {
            return;
        };
        open.run.end_step(call, arguments.text, end);
        open.hides.join(arguments.hides);
        let is_due = open.run.bytes() <= SMALL_BYTES
            || self.stored.is_none_or(|last| last.elapsed() >= STORE_AGAIN);
        if is_due {
            self.stored = Some(Instant::now());
        }
        let (background, told) = (self.background.clone(), open.clone());
        let keeping = whole(async move {
            let _changing = background.runs.lock().await;
            let kept = lock(&background.kept)
                .run(&told.run.owner, &told.run.id)
                .cloned();
            // Its client may have had it cancelled meanwhile.
            let Some(mut kept) = kept else { return Ok(()) };
            kept.run.steps = told.run.steps;
            kept.hides = told.hides;
            if is_due {
                return background.keep_run(kept).await;
            }
            if let Some(known) = lock(&background.kept).run_mut(&kept.run.id) {
                *known = kept;
            }
            Ok(())
        });
        // Where it has no room now, it may have at the end.
        let _ = keeping.await;
    }

    /// Cancelled once its calls are to end.
    pub fn cancel(&self) -> CancellationToken {
        let cancel = self.open.as_ref().map(|open| open.cancel.clone());
        cancel.unwrap_or_default()
    }

    /// All its calls have ended, or wait for the client.
    pub async fn settle(mut self) -> Result<Run, Fault> {
        let mut open = self.open.take().ok_or_else(lost)?;
        let background = self.background.clone();
        whole(async move {
            let _changing = background.runs.lock().await;
            let run = &mut open.run;
            if open.cancel.is_cancelled() {
                run.enter(RunStatus::Cancelling)?;
                run.enter(RunStatus::Cancelled)?;
            } else {
                run.settle()?;
            }
            let run = run.clone();
            background.end_run(open).await?;
            Ok(run)
        })
        .await
    }
}

impl Drop for RunningRun {
    fn drop(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let background = self.background.clone();
        let _ = open.run.enter(RunStatus::Failed);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _changing = background.runs.lock().await;
                let _ = background.end_run(open).await;
            });
        }
    }
}

impl Background {
    /// Whose a run of this request is.
    pub fn owner(&self, caller: &Caller, label: Option<&str>) -> Result<Owner, Fault> {
        let decisions = self.service.catalog.decisions()?;
        Ok(Owner::from(&decisions.rights(caller, label)))
    }

    /// Begins a run. `calls`: the id and the tool of each.
    pub async fn begin_run(self: &Arc<Self>, run: Run) -> Result<RunningRun, Fault> {
        let background = self.clone();
        whole(async move {
            let changing = background.runs.lock().await;
            // Those that no client answered in time make room.
            background.forget(Timestamp::now()).await;
            let open = OpenRun::new(run);
            background.keep_run(open.clone()).await?;
            drop(changing);
            Ok(RunningRun {
                background,
                open: Some(open),
                stored: None,
            })
        })
        .await
    }

    /// A run of this owner, as it is now.
    pub async fn run_of(&self, owner: &Owner, id: &str) -> Result<Option<Run>, Fault> {
        let _changing = self.changing(id).await?;
        Ok(self.found(owner, id).map(|open| open.run))
    }

    /// All runs of this owner, the oldest first, without their steps.
    pub async fn runs_of(&self, owner: &Owner) -> Result<Vec<Run>, Fault> {
        let _changing = self.changing("").await?;
        let kept = lock(&self.kept);
        let own = kept.runs().map(|open| &open.run);
        let own = own.filter(|run| run.owner == *owner).map(Run::head);
        let mut own: Vec<Run> = own.collect();
        own.iter_mut().for_each(|run| run.expire(Timestamp::now()));
        Ok(own)
    }

    /// Takes the outputs that a run waits for: each has its record before. Nothing is left to run
    /// then, because the model that made the calls is the client's. `None`: this owner has no such
    /// run.
    pub async fn submit_outputs(
        self: &Arc<Self>,
        owner: Owner,
        id: String,
        outputs: Vec<ToolOutput>,
    ) -> Result<Option<Run>, Fault> {
        let background = self.clone();
        whole(async move {
            let _changing = background.changing(&id).await?;
            let Some(mut open) = background.found(&owner, &id) else {
                return Ok(None);
            };
            open.run.submit(outputs)?;
            for step in &open.run.steps {
                if let (Some(call), Some(output)) = (&step.client, &step.output) {
                    let service = &background.service;
                    service.record_output(&owner, &call.id, &call.tool, output)?;
                }
            }
            open.run.settle()?;
            let run = open.run.clone();
            background.keep_run(open).await?;
            Ok(Some(run))
        })
        .await
    }

    /// Cancels a run, and its calls. It has ended once they have.
    pub async fn cancel_run(
        self: &Arc<Self>,
        owner: Owner,
        id: String,
    ) -> Result<Option<Run>, Fault> {
        let background = self.clone();
        whole(async move {
            let _changing = background.changing(&id).await?;
            let Some(mut open) = background.found(&owner, &id) else {
                return Ok(None);
            };
            let waits = open.run.status == RunStatus::RequiresAction;
            open.run.enter(RunStatus::Cancelling)?;
            if waits {
                open.run.enter(RunStatus::Cancelled)?;
            }
            let run = open.run.clone();
            let cancel = open.cancel.clone();
            background.keep_run(open).await?;
            cancel.cancel();
            Ok(Some(run))
        })
        .await
    }

    /// Removes a run for ever. False: this owner has no such run.
    pub async fn delete_run(self: &Arc<Self>, owner: Owner, id: String) -> Result<bool, Fault> {
        let background = self.clone();
        whole(async move {
            let _changing = background.changing(&id).await?;
            let Some(OpenRun { run, .. }) = background.found(&owner, &id) else {
                return Ok(false);
            };
            if run.status == RunStatus::InProgress || run.status == RunStatus::Cancelling {
                let message = "The run's calls still run: cancel it first.";
                return Err(Fault::new(Kind::ParameterValidationError, message));
            }
            background.remove(id, run.store).await?;
            Ok(true)
        })
        .await
    }

    /// Removes a run or a response, from the disk first.
    pub(super) async fn remove(&self, id: String, is_stored: bool) -> Result<(), Fault> {
        if is_stored {
            let change = Change {
                gone: vec![id.clone()],
                ..Change::default()
            };
            self.write(change).await.map_err(unkept)?;
        }
        lock(&self.kept).remove(&id);
        Ok(())
    }

    /// Nobody else changes a run until this is dropped. This one is in memory, if it is stored.
    async fn changing(&self, id: &str) -> Result<MutexGuard<'_, ()>, Fault> {
        let changing = self.runs.lock().await;
        if !lock(&self.kept).has(id) {
            self.store().await.map_err(unkept)?;
        }
        Ok(changing)
    }

    fn found(&self, owner: &Owner, id: &str) -> Option<OpenRun> {
        let mut open = lock(&self.kept).run(owner, id).cloned()?;
        open.run.expire(Timestamp::now());
        Some(open)
    }

    /// Keeps how the calls of a run ended, which nobody does again. Where that has no room, the run
    /// has failed, and its steps are lost.
    async fn end_run(&self, open: OpenRun) -> Result<(), Fault> {
        let mut lost = open.run.head();
        let Err(fault) = self.keep_run(open).await else {
            return Ok(());
        };
        lost.status = RunStatus::InProgress;
        lost.enter(RunStatus::Failed)?;
        lock(&self.kept).remove(&lost.id);
        self.keep_run(OpenRun::new(lost)).await?;
        Err(fault)
    }

    /// Keeps the present state of a run: on the disk, too, where its client asked for that.
    async fn keep_run(&self, open: OpenRun) -> Result<(), Fault> {
        let run = &open.run;
        let id = run.id.clone();
        let is_stored = run.store;
        let is_over = run.status.is_final() && !run.store;
        let stored = is_stored.then(|| run.stored(&open.hides));
        let before = lock(&self.kept).run(&run.owner, &id).cloned();
        let put = lock(&self.kept).put(&id, Kept::Run(open));
        let kept = match put {
            Err(fault) => Err(fault),
            Ok(gone) if !is_stored => {
                self.forget_kept(gone).await;
                Ok(())
            }
            Ok(gone) => {
                let change = Change {
                    runs: stored.into_iter().collect(),
                    gone,
                    ..Change::default()
                };
                self.write(change).await.map_err(unkept)
            }
        };
        if kept.is_err() || is_over {
            lock(&self.kept).remove(&id);
        }
        if let (Err(_), Some(before)) = (&kept, before) {
            let _ = lock(&self.kept).put(&id, Kept::Run(before));
        }
        kept
    }
}

/// Does a change to its end, also where the client that waits for it leaves: half a change would keep
/// a place that nobody gives back.
pub(super) async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Result<T, Fault> {
    tokio::spawn(change).await.unwrap_or_else(|_| Err(lost()))
}

fn lost() -> Fault {
    Fault::new(Kind::InternalError, "The run was lost.")
}

pub(super) fn unkept(why: String) -> Fault {
    let message = "The runs and responses of this host cannot be stored or read now.";
    Fault::new(Kind::ServiceError, message)
        .person(why)
        .retryable()
}
