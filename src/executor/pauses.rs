//! When a call stands still: while a person is asked about a call of its code. Its time does not
//! pass meanwhile.

use crate::base::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Whether one call stands still, and for how long it did.
#[derive(Debug)]
pub struct Pauses {
    /// How many persons are asked.
    asked: watch::Sender<usize>,
    /// The executor stops and continues the tool as this says.
    standing: watch::Sender<bool>,
    stood: Mutex<Stood>,
}

#[derive(Debug, Default)]
struct Stood {
    before: Duration,
    since: Option<Instant>,
}

/// While one of these lives, a person is asked.
pub struct Asking(Arc<Pauses>);

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses {
            asked: watch::Sender::new(0),
            standing: watch::Sender::new(false),
            stood: Mutex::default(),
        }
    }
}

impl Pauses {
    pub fn ask(self: &Arc<Pauses>) -> Asking {
        self.asked.send_modify(|asked| *asked += 1);
        Asking(self.clone())
    }

    /// Returns once somebody is asked, or (`false`) nobody is.
    pub async fn until(&self, is_asked: bool) {
        let mut asked = self.asked.subscribe();
        // The sender is this value.
        let _ = asked.wait_for(|asked| (*asked > 0) == is_asked).await;
    }

    pub fn stand(&self, still: bool) {
        let mut stood = lock(&self.stood);
        let since = stood.since.take();
        stood.before += since.map_or(Duration::ZERO, |since| since.elapsed());
        stood.since = still.then(Instant::now);
        self.standing.send_replace(still);
    }

    /// How long the call has stood still.
    pub fn lasted(&self) -> Duration {
        let stood = lock(&self.stood);
        stood.before + stood.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub fn standing(&self) -> watch::Receiver<bool> {
        self.standing.subscribe()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asked.send_modify(|asked| *asked -= 1);
    }
}
