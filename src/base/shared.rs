//! Work that several callers wait for, one piece for each key. It goes on when its callers leave.
//!
//! The work itself stores its result where the next caller looks first. (Between processes: `files::Folder::lock`.)

use super::lock;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

pub struct Shared<T> {
    under_way: Mutex<HashMap<String, watch::Receiver<Option<T>>>>,
    most: usize,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// Too many pieces are under way, so this one was not begun.
    Full,
    /// The work panicked.
    Broken,
}

impl<T: Clone + Send + Sync + 'static> Shared<T> {
    pub fn new(most: usize) -> Arc<Shared<T>> {
        Arc::new(Shared { under_way: Mutex::default(), most })
    }

    pub fn under_way(&self) -> usize {
        lock(&self.under_way).len()
    }

    /// Waits for the work of this key, and begins it if it is not under way.
    pub async fn join<F>(self: &Arc<Self>, key: &str, work: impl FnOnce() -> F) -> Result<T, NoResult>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut result = {
            let mut under_way = lock(&self.under_way);
            match under_way.get(key) {
                Some(result) => result.clone(),
                None if under_way.len() >= self.most => return Err(NoResult::Full),
                None => {
                    let (tell, result) = watch::channel(None);
                    under_way.insert(key.to_owned(), result.clone());
                    let over = Over { shared: Arc::clone(self), key: key.to_owned() };
                    let work = work();
                    tokio::spawn(async move {
                        tell.send_replace(Some(work.await));
                        drop(over);
                    });
                    result
                }
            }
        };
        let done = result.wait_for(Option::is_some).await.map_err(|_| NoResult::Broken)?;
        done.clone().ok_or(NoResult::Broken)
    }
}

/// Takes the work off the list, also when it panicked.
struct Over<T: Clone + Send + Sync + 'static> {
    shared: Arc<Shared<T>>,
    key: String,
}

impl<T: Clone + Send + Sync + 'static> Drop for Over<T> {
    fn drop(&mut self) {
        lock(&self.shared.under_way).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test]
    async fn one_piece_for_all_who_ask_and_it_goes_on_without_them() {
        let shared = Shared::new(2);
        let begun = Arc::new(AtomicUsize::new(0));
        let work = || {
            let begun = Arc::clone(&begun);
            async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                begun.fetch_add(1, Ordering::SeqCst) + 1
            }
        };
        let early = tokio::time::timeout(Duration::from_millis(5), shared.join("a", work)).await;
        assert!(early.is_err(), "nobody waits for it any more");
        let (one, other) = tokio::join!(shared.join("a", work), shared.join("a", work));
        assert_eq!((one, other), (Ok(1), Ok(1)));
        assert_eq!(shared.join("a", work).await, Ok(2), "it was done, so this is another");
    }

    #[tokio::test]
    async fn there_are_no_more_than_may_be_and_a_panic_blocks_nobody() {
        let shared = Shared::new(1);
        let endless = || async {
            std::future::pending::<()>().await;
            1
        };
        let _ = tokio::time::timeout(Duration::from_millis(5), shared.join("a", endless)).await;
        assert_eq!(shared.join("b", || async { 2 }).await, Err(NoResult::Full));
        let shared = Shared::new(1);
        assert_eq!(shared.join("a", || async { if true { panic!("a bug") } else { 1 } }).await, Err(NoResult::Broken));
        assert_eq!(shared.join("a", || async { 3 }).await, Ok(3));
    }
}
