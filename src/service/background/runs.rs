//! The runs that are kept: those that run or wait for their clients, and those that a client had
//! stored. Each is for its owner alone.

use super::calls::Background;
use super::run::{Run, RunStatus, StepEnd, ToolOutput};
use super::run_table::Runs;
use super::store::Change;
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::request::Caller;
use jiff::Timestamp;
use std::sync::Arc;
use tokio::sync::MutexGuard;

/// A run whose calls run. Dropped, it has failed.
pub struct RunningRun {
    background: Arc<Background>,
    run: Option<Run>,
}

impl RunningRun {
    pub fn end_step(&mut self, call: &str, arguments: String, end: StepEnd) {
        if let Some(run) = &mut self.run {
            run.end_step(call, arguments, end);
        }
    }

    /// All its calls have ended, or wait for the client.
    pub async fn settle(mut self) -> Result<Run, Fault> {
        let mut run = self.run.take().ok_or_else(lost)?;
        let mut runs = self.background.runs.lock().await;
        let now = runs.get(&run.owner, &run.id).map(|run| run.status);
        if now == Some(RunStatus::Cancelling) {
            run.enter(RunStatus::Cancelling)?;
            run.enter(RunStatus::Cancelled)?;
        } else {
            run.settle()?;
        }
        self.background.end_run(&mut runs, run.clone()).await?;
        Ok(run)
    }
}

impl Drop for RunningRun {
    fn drop(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        let background = self.background.clone();
        let _ = run.enter(RunStatus::Failed);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let mut runs = background.runs.lock().await;
                let _ = background.end_run(&mut runs, run).await;
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
        let mut runs = self.runs.lock().await;
        // Those that no client answered in time make room.
        self.forget_among(&mut runs, Timestamp::now()).await;
        self.keep_run(&mut runs, run.clone()).await?;
        Ok(RunningRun {
            background: self.clone(),
            run: Some(run),
        })
    }

    /// A run of this owner, as it is now.
    pub async fn run_of(&self, owner: &Owner, id: &str) -> Result<Option<Run>, Fault> {
        let runs = self.runs_with(id).await?;
        let mut run = runs.get(owner, id).cloned();
        run.iter_mut().for_each(|run| run.expire(Timestamp::now()));
        Ok(run)
    }

    /// All runs of this owner, the oldest first, without their steps.
    pub async fn runs_of(&self, owner: &Owner) -> Result<Vec<Run>, Fault> {
        let runs = self.runs_with("").await?;
        let all = runs.all.iter().map(|(_, open)| &open.run);
        let mut own: Vec<Run> = all
            .filter(|run| run.owner == *owner)
            .map(Run::head)
            .collect();
        own.iter_mut().for_each(|run| run.expire(Timestamp::now()));
        Ok(own)
    }

    /// Takes the outputs that a run waits for, and lets it go on. `None`: this owner has no such
    /// run.
    pub async fn submit_outputs(
        self: &Arc<Self>,
        owner: &Owner,
        id: &str,
        outputs: Vec<ToolOutput>,
    ) -> Result<Option<RunningRun>, Fault> {
        let mut runs = self.runs_with(id).await?;
        let Some(mut run) = runs.get(owner, id).cloned() else {
            return Ok(None);
        };
        run.expire(Timestamp::now());
        run.submit(outputs)?;
        self.keep_run(&mut runs, run.clone()).await?;
        Ok(Some(RunningRun {
            background: self.clone(),
            run: Some(run),
        }))
    }

    /// Cancels a run. One whose calls run ends with the last of them.
    pub async fn cancel_run(&self, owner: &Owner, id: &str) -> Result<Option<Run>, Fault> {
        let mut runs = self.runs_with(id).await?;
        let Some(mut run) = runs.get(owner, id).cloned() else {
            return Ok(None);
        };
        run.expire(Timestamp::now());
        let waits = run.status == RunStatus::RequiresAction;
        run.enter(RunStatus::Cancelling)?;
        if waits {
            run.enter(RunStatus::Cancelled)?;
        }
        self.keep_run(&mut runs, run.clone()).await?;
        Ok(Some(run))
    }

    /// Removes a run for ever. False: this owner has no such run.
    pub async fn delete_run(&self, owner: &Owner, id: &str) -> Result<bool, Fault> {
        let mut runs = self.runs_with(id).await?;
        let Some(run) = runs.get(owner, id) else {
            return Ok(false);
        };
        if run.status == RunStatus::InProgress || run.status == RunStatus::Cancelling {
            let message = "The run's calls still run: cancel it first.";
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        if run.store {
            let gone_runs = vec![id.to_owned()];
            let change = Change {
                gone_runs,
                ..Change::default()
            };
            self.write(change).await.map_err(unkept)?;
        }
        runs.all.remove(&id.to_owned());
        Ok(true)
    }

    /// Removes the runs that are kept no longer.
    pub(super) async fn forget_runs(&self, now: Timestamp) {
        let mut runs = self.runs.lock().await;
        self.forget_among(&mut runs, now).await;
    }

    async fn forget_among(&self, runs: &mut Runs, now: Timestamp) {
        let gone_runs = runs.forget(now);
        if !gone_runs.is_empty() {
            let change = Change {
                gone_runs,
                ..Change::default()
            };
            // What this leaves on the disk is removed at the next start.
            let _ = self.write(change).await;
        }
    }

    /// The runs, this one among them if it is stored.
    async fn runs_with(&self, id: &str) -> Result<MutexGuard<'_, Runs>, Fault> {
        let mut runs = self.runs.lock().await;
        if runs.loaded || runs.all.get(&id.to_owned()).is_some() {
            return Ok(runs);
        }
        let stored = self.stored_runs().await.map_err(unkept)?;
        // Those in memory are as their clients know them.
        let stored = stored.into_iter();
        let unknown: Vec<Run> = stored
            .filter(|run| runs.all.get(&run.id).is_none())
            .collect();
        for mut run in unknown {
            // Its host ended while it ran.
            if !run.status.is_final() && run.status != RunStatus::RequiresAction {
                run.status = RunStatus::InProgress;
                run.enter(RunStatus::Failed)?;
            }
            // Without room it stays on the disk alone.
            let _ = runs.put(run);
        }
        runs.loaded = true;
        self.forget_among(&mut runs, Timestamp::now()).await;
        Ok(runs)
    }

    /// Keeps how the calls of a run ended, which nobody does again. Where that has no room, the run
    /// has failed, and its steps are lost.
    async fn end_run(&self, runs: &mut Runs, run: Run) -> Result<(), Fault> {
        let mut lost = run.head();
        let Err(fault) = self.keep_run(runs, run).await else {
            return Ok(());
        };
        lost.status = RunStatus::InProgress;
        lost.enter(RunStatus::Failed)?;
        runs.all.remove(&lost.id);
        self.keep_run(runs, lost).await?;
        Err(fault)
    }

    /// Keeps the present state of a run: on the disk first, where its client asked for that.
    async fn keep_run(&self, runs: &mut Runs, run: Run) -> Result<(), Fault> {
        let before = runs.all.get(&run.id).map(|open| open.run.clone());
        let gone_runs = match runs.put(run.clone()) {
            Ok(gone) => gone,
            Err(fault) => {
                let _ = before.map(|before| runs.put(before));
                return Err(fault);
            }
        };
        let stored = run.store.then(|| run.stored());
        let change = Change {
            runs: stored.into_iter().collect(),
            gone_runs,
            ..Change::default()
        };
        if (run.store || !change.gone_runs.is_empty())
            && let Err(why) = self.write(change).await
        {
            runs.all.remove(&run.id);
            let _ = before.map(|before| runs.put(before));
            return Err(unkept(why));
        }
        if run.status.is_final() && !run.store {
            runs.all.remove(&run.id);
        }
        Ok(())
    }
}

fn lost() -> Fault {
    Fault::new(Kind::InternalError, "The run was lost.")
}

fn unkept(why: String) -> Fault {
    let message = "The runs of this host cannot be stored or read now.";
    Fault::new(Kind::ServiceError, message)
        .person(why)
        .retryable()
}
