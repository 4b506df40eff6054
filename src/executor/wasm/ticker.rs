//! Ticker: makes running guest code look at the clock.
//!
//! For: the guest. In: whether a call is running. Out: epoch ticks while one is. Never: wakes an idle worker.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// A tick is the most by which a spinning guest overshoots.
const TICK: Duration = Duration::from_millis(5);
/// Ticks without a call before the thread sleeps until it is needed; waking it costs more than a tick.
const LINGER: u32 = 20;

pub struct Ticker {
    running: Arc<AtomicBool>,
    parked: Arc<AtomicBool>,
    thread: Thread,
}

impl Ticker {
    pub fn start(engine: &wasmtime::Engine) -> io::Result<Ticker> {
        let running = Arc::new(AtomicBool::new(false));
        let parked = Arc::new(AtomicBool::new(false));
        let engine = engine.weak();
        let (run, park) = (Arc::clone(&running), Arc::clone(&parked));
        let thread = thread::Builder::new().name("ticker".into()).stack_size(128 * 1024).spawn(move || {
            let mut idle = 0;
            loop {
                if idle > LINGER {
                    // Stored before `run` is read; `running` stores `run` before it reads this. So one sees the other.
                    park.store(true, Ordering::SeqCst);
                    while !run.load(Ordering::SeqCst) {
                        thread::park();
                    }
                    park.store(false, Ordering::SeqCst);
                    idle = 0;
                }
                thread::sleep(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
                idle = if run.load(Ordering::SeqCst) { 0 } else { idle + 1 };
            }
        })?;
        Ok(Ticker { running, parked, thread: thread.thread().clone() })
    }

    pub fn running(&self, now: bool) {
        self.running.store(now, Ordering::SeqCst);
        if now && self.parked.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}
