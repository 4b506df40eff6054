//! Small pieces that every module may use. They know nothing of tools, policies and calls.

pub mod address;
pub mod fault;
pub mod files;
pub mod json;
pub mod layer;
pub mod mask;
pub mod messages;
pub mod names;
pub mod netlink;
pub mod place;
pub mod problem;
pub mod quantity;
pub mod semaphore;
pub mod shares;
pub mod single_flight;
pub mod store;
pub mod suggest;
pub mod text;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if another holder panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SHA-256, lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(bytes))
}

/// Counts one object of a kind as long as it lives.
#[derive(Debug)]
pub struct Counted(&'static AtomicUsize);

impl Counted {
    pub fn by(count: &'static AtomicUsize) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whole milliseconds, at most `u64::MAX`.
pub fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// CPU time of this process so far (getrusage(2)).
pub fn cpu_time() -> std::time::Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(std::time::Duration::ZERO, |used| {
        let micros = used.user_time().num_microseconds() + used.system_time().num_microseconds();
        std::time::Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
