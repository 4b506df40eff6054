//! Makes running guest code look at the clock: epoch ticks while a call runs. An idle worker is not woken.

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
    thread: Thread,
}

impl Ticker {
    pub fn start(engine: &wasmtime::Engine) -> io::Result<Ticker> {
        let running = Arc::new(AtomicBool::new(false));
        let (engine, run) = (engine.weak(), Arc::clone(&running));
        let thread = thread::Builder::new().name("ticker".into()).stack_size(128 * 1024).spawn(move || {
            let mut idle = 0_u32;
            loop {
                idle = if run.load(Ordering::SeqCst) { 0 } else { LINGER.min(idle) + 1 };
                if idle > LINGER {
                    thread::park();
                    continue;
                }
                thread::sleep(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
        })?;
        Ok(Ticker { running, thread: thread.thread().clone() })
    }

    pub fn running(&self, now: bool) {
        self.running.store(now, Ordering::SeqCst);
        if now {
            // A system call only where the thread is parked; else the next `park` returns at once.
            self.thread.unpark();
        }
    }
}
