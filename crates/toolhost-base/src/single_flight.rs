//! Work that is shared: for each key one task runs, and several callers can wait for it. It
//! continues when its callers leave.
//!
//! Results are not kept here: the work itself stores them. (Between processes:
//! `files::Folder::lock`.)

use super::lock;
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;
use tokio::task::AbortHandle;

pub struct SingleFlight<T: Clone> {
    /// Tasks by key. Some of them may have ended.
    tasks: Mutex<HashMap<String, (AbortHandle, Work<T>)>>,
    most: usize,
}

/// Resolves to `None` if the work panicked.
type Work<T> = future::Shared<BoxFuture<'static, Option<T>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// Too many tasks are running, so this one was not started.
    Full,
    Panicked,
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    pub fn new(most: usize) -> SingleFlight<T> {
        SingleFlight {
            tasks: Mutex::default(),
            most,
        }
    }

    pub fn running(&self) -> usize {
        lock(&self.tasks)
            .values()
            .filter(|(task, _)| !task.is_finished())
            .count()
    }

    /// Waits for the work of this key, and begins it if it is not under way.
    pub async fn join<F>(&self, key: &str, work: impl FnOnce() -> F) -> Result<T, NoResult>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let result = {
            let mut tasks = lock(&self.tasks);
            tasks.retain(|_, (task, _)| !task.is_finished());
            match tasks.get(key) {
                Some((_, result)) => result.clone(),
                None if tasks.len() >= self.most => return Err(NoResult::Full),
                None => {
                    let task = tokio::spawn(work());
                    let handle = task.abort_handle();
                    let result = task.map(Result::ok).boxed().shared();
                    tasks.insert(key.to_owned(), (handle, result.clone()));
                    result
                }
            }
        };
        let result = result.await.ok_or(NoResult::Panicked);
        // Drop results without a reader: one can hold an open file.
        lock(&self.tasks).retain(|_, (task, _)| !task.is_finished());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test]
    async fn callers_share_one_task_that_outlives_them() {
        let (tasks, begun) = (SingleFlight::new(1), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let begun = Arc::clone(&begun);
            async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                begun.fetch_add(1, Ordering::SeqCst) + 1
            }
        };
        let early = tokio::time::timeout(Duration::from_millis(5), tasks.join("a", work)).await;
        assert!(
            early.is_err() && tasks.running() == 1,
            "no caller waits for it any more"
        );
        assert_eq!(tasks.join("b", || async { 2 }).await, Err(NoResult::Full));
        let (one, other) = tokio::join!(tasks.join("a", work), tasks.join("a", work));
        assert_eq!((one, other), (Ok(1), Ok(1)));
        assert_eq!(
            tasks.join("a", work).await,
            Ok(2),
            "it was done, so this is another"
        );
        assert_eq!(
            tasks
                .join("a", || async { if true { panic!("a bug") } else { 1 } })
                .await,
            Err(NoResult::Panicked)
        );
        assert_eq!(
            tasks.join("a", || async { 3 }).await,
            Ok(3),
            "a panic blocks no caller"
        );
    }
}
