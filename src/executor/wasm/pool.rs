//! The pool: idle workers, each bound to the shape and module it was started for.
//!
//! For: the executor. In: sessions that are fit for another call. Out: the same, to the same shape and module only.
//! Never: gives a worker to another shape, or keeps one that nobody has used for a minute.

use super::session::Session;
use crate::policy;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an idle worker is kept.
const KEPT: Duration = Duration::from_secs(60);
const SWEEP: Duration = Duration::from_secs(10);

struct Idle {
    shape: policy::Shape,
    key: String,
    since: Instant,
    session: Session,
}

#[derive(Default)]
struct Workers {
    idle: Vec<Idle>,
    sweeping: bool,
}

pub struct Pool {
    workers: Mutex<Workers>,
    most: usize,
}

impl Pool {
    pub fn new(most: usize) -> Pool {
        Pool { workers: Mutex::default(), most }
    }

    /// The worker of this shape and module that was used last, so that the others can age.
    pub fn take(&self, shape: &policy::Shape, key: &str) -> Option<Session> {
        let mut workers = self.lock();
        let at = workers.idle.iter().rposition(|idle| idle.key == key && idle.shape == *shape)?;
        Some(workers.idle.remove(at).session)
    }

    pub fn put(self: &Arc<Self>, shape: policy::Shape, key: String, session: Session) {
        let mut workers = self.lock();
        // The oldest goes; workers are all alike in cost.
        let oldest = (workers.idle.len() >= self.most).then(|| workers.idle.remove(0));
        workers.idle.push(Idle { shape, key, since: Instant::now(), session });
        if !std::mem::replace(&mut workers.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        drop(workers);
        drop(oldest);
    }

    pub fn idle(&self) -> usize {
        self.lock().idle.len()
    }

    pub fn clear(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    fn lock(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends workers that nobody wants, and then itself.
async fn sweep(pool: std::sync::Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut workers = pool.lock();
        let (old, kept) = std::mem::take(&mut workers.idle).into_iter().partition(|idle| idle.since.elapsed() > KEPT);
        workers.idle = kept;
        workers.sweeping = !workers.idle.is_empty();
        let done = !workers.sweeping;
        drop(workers);
        drop::<Vec<Idle>>(old);
        if done {
            return;
        }
    }
}
