//! Walks over what a tool made. Each has a thread of its own: nothing that a tool makes keeps the
//! launcher from the clock, from its messages and from what the kernel counts.

use crate::account::processes::{
    ProcessKey, ProcessSnapshot, signal_all, switches, thread_ms, threads_of_the_call,
};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant};
use toolhost_base::quantity::SAMPLE_MS;
use toolhost_base::{cpu_time, lock, millis};

/// A walk that takes longer stops the call until it is done.
const BUDGET: Duration = Duration::from_millis(SAMPLE_MS);
/// A walk that has taken so much CPU time and is not done counts as over its limit; so does one
/// that waits so long.
const MAX_CPU_MS: u64 = 1000;
pub const MAX_LOOKS: u64 = 5000 / SAMPLE_MS;
/// Longest wait for processes inside a system call to return and stop: fork(2) takes some 10 ms for
/// each GiB.
const SETTLING: Duration = Duration::from_secs(1);
/// How long fork(2) may take in a stopped call.
const LONGEST_FORK: Duration = Duration::from_secs(5);
/// What the launcher may use itself of each second of a call, and at its start.
const OWN_SHARE: u32 = 10;
const OWN_START_MS: u64 = 100;

/// The state of a walk at one look.
pub enum Seen<A> {
    All(A),
    /// The walk goes on, and the call is stopped.
    Part,
    TooMuch,
}

/// A thread for walks, one after the other. A launcher has its own from its start: one that cannot
/// start refuses calls.
pub struct Walker {
    jobs: Sender<Job>,
    thread: Pid,
}

pub type Job = Box<dyn FnOnce() + Send>;

impl Walker {
    pub fn start() -> io::Result<Walker> {
        let (jobs, asked) = channel::<Job>();
        let (id, started) = channel();
        Builder::new().spawn(move || {
            let _ = id.send(gettid());
            asked.into_iter().for_each(|job| job());
        })?;
        Ok(Walker {
            jobs,
            thread: started.recv().map_err(io::Error::other)?,
        })
    }

    /// Does a job after those before it. Fails only if the thread ended.
    pub fn run(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// The walks over one kind of object of one call.
pub struct Walk<'walker, S, A> {
    walker: &'walker Walker,
    state: Arc<Mutex<S>>,
    /// Answers are sent by the thread.
    answer: Sender<Result<A, Errno>>,
    answers: Receiver<Result<A, Errno>>,
    max_looks: u64,
    /// How often the walk that goes on was looked at.
    looks: u64,
    /// CPU time of the thread when that walk began.
    before_ms: u64,
    stopped: Option<Stopped>,
}

impl<S: Send + 'static, A: Send + 'static> Walk<'_, S, A> {
    /// `state`: what the walks remember. `max_looks`: what is not done by then is `TooMuch`.
    pub fn new(walker: &Walker, state: S, max_looks: u64) -> Walk<'_, S, A> {
        let (answer, answers) = channel();
        let state = Arc::new(Mutex::new(state));
        Walk {
            walker,
            state,
            answer,
            answers,
            max_looks,
            looks: 0,
            before_ms: 0,
            stopped: None,
        }
    }

    /// Begins a walk, where none goes on, and waits for its answer within the budget.
    pub fn look(
        &mut self,
        walk: impl FnOnce(&mut S) -> Result<A, Errno> + Send + 'static,
    ) -> Result<Seen<A>, Errno> {
        let mut wait = Duration::ZERO;
        if self.looks == 0 {
            let state = Arc::clone(&self.state);
            let answer = self.answer.clone();
            self.walker.run(Box::new(move || {
                let _ = answer.send(walk(&mut lock(&state)));
            }));
            self.before_ms = thread_ms(self.walker.thread);
            wait = BUDGET;
        }
        if let Ok(answer) = self.answers.recv_timeout(wait) {
            self.looks = 0;
            self.stopped = None;
            return answer.map(Seen::All);
        }
        self.looks += 1;
        if self.looks > self.max_looks
            || thread_ms(self.walker.thread) - self.before_ms > MAX_CPU_MS
        {
            return Ok(Seen::TooMuch);
        }
        match &self.stopped {
            Some(stopped) => stopped.again(),
            None => self.stopped = Some(Stopped::begin()?),
        }
        Ok(Seen::Part)
    }

    /// What the walks remember, once none goes on.
    pub fn state(&self) -> MutexGuard<'_, S> {
        lock(&self.state)
    }
}

/// Who has the call stopped now, and which processes its tool had stopped itself.
struct Stopping {
    holders: usize,
    /// Since when the call is stopped, also after the last holder.
    since: Option<Instant>,
    /// With their context switches until then: whoever ran since was continued by the tool.
    before: BTreeMap<ProcessKey, u64>,
}

static STOPPING: Mutex<Stopping> = Mutex::new(Stopping {
    holders: 0,
    since: None,
    before: BTreeMap::new(),
});

impl Stopping {
    /// Continues what nobody holds, once no fork(2) is under way. A child that is being made gets the
    /// SIGSTOP that was sent meanwhile. It does not get the SIGCONT: the kernel drops a signal that is
    /// ignored (signal(7)) before it looks for such children. It would stay stopped for ever.
    fn resume(&mut self) -> Result<(), Errno> {
        let Some(since) = self.since.filter(|_| self.holders == 0) else {
            return Ok(());
        };
        let forks = threads_of_the_call()?
            .iter()
            .any(|thread| !thread.is_ending && matches!(thread.state, 'R' | 'S'));
        if forks && since.elapsed() < LONGEST_FORK {
            return Ok(());
        }
        self.since = None;
        if self.before.is_empty() {
            let _ = signal_all(Signal::SIGCONT);
            return Ok(());
        }
        let now = ProcessSnapshot::now()?;
        let stopped_by_us = now.processes.keys().filter(|key| {
            let before = self.before.get(key);
            before.is_none_or(|before| *before != switches(key.0))
        });
        for pid in stopped_by_us.map(|key| key.0).chain(now.recorder) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGCONT);
        }
        Ok(())
    }
}

/// Continues a call that nobody stops any more, if it still waits for that.
pub fn resume() -> Result<(), Errno> {
    lock(&STOPPING).resume()
}

/// While one of these lives, the call is stopped. A kernel timer can still send a process SIGCONT,
/// so it is stopped again and again.
pub struct Stopped(());

impl Stopped {
    pub fn begin() -> Result<Stopped, Errno> {
        let mut stopping = lock(&STOPPING);
        if stopping.since.is_none() {
            // Taken before our own signal: a process that the tool stops in between is continued at
            // the end.
            let stopped = ProcessSnapshot::now()?
                .processes
                .into_iter()
                .filter(|(_, process)| process.state == 'T');
            stopping.before = stopped.map(|(key, _)| (key, switches(key.0))).collect();
            stopping.since = Some(Instant::now());
        }
        stopping.holders += 1;
        let stopped = Stopped(());
        stopped.again();
        Ok(stopped)
    }

    /// One kill(2) stops all processes at once, also those that fork(2) is just making.
    pub fn again(&self) {
        let _ = signal_all(Signal::SIGSTOP);
    }

    /// The processes once all have stopped: those inside a system call first return from it. Or as
    /// they are, where such calls go on for long or take memory.
    pub fn settled(&self) -> Result<ProcessSnapshot, Errno> {
        let first = ProcessSnapshot::now()?;
        let until = Instant::now() + SETTLING;
        let mut seen = first.clone();
        while seen
            .processes
            .values()
            .any(|process| matches!(process.state, 'R' | 'S'))
            && !seen.took_memory_since(&first)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
            self.again();
            seen = ProcessSnapshot::now()?;
        }
        Ok(seen)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let mut stopping = lock(&STOPPING);
        stopping.holders -= 1;
        // The launcher tries again, and says what is wrong.
        let _ = stopping.resume();
    }
}

/// CPU time that this process spends on a call.
pub struct OwnCpu {
    began: Instant,
    before_ms: u64,
}

impl OwnCpu {
    pub fn begin() -> OwnCpu {
        OwnCpu {
            began: Instant::now(),
            before_ms: millis(cpu_time()),
        }
    }

    /// CPU time so far beyond what watching any call takes, ms. It counts as the call's.
    pub fn excess_ms(&self) -> u64 {
        let base = (self.began.elapsed() / OWN_SHARE).as_millis() as u64 + OWN_START_MS;
        millis(cpu_time()).saturating_sub(self.before_ms + base)
    }
}
