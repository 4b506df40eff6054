//! Launcher: this binary, re-entered. A small process that raises the layers, one call at a time.
//! One thread does all that; two others only look at what the tool made (`walk`).
//!
//! Two processes: the *keeper* waits for the launcher proper and holds the lock of its id until all
//! is reaped; the launcher proper is pid 1 of its own pid namespace, so nothing it started outlives
//! it. Both end when the host closes its end of the control socket, which a killed host does too.

use crate::account::processes::{ProcessSnapshot, shown_now, signal_all};
use crate::account::sampler::{Look, SESSIONS, Sampler};
use crate::account::totals::Totals;
use crate::account::walk::{self, MAX_LOOKS, OwnCpu, Seen, Walk, Walker};
use crate::account::written::{Free, WriteWatch, fell, free_at};
use crate::base_view::HOST_NAME;
use crate::child::clock::Clock;
use crate::child::listener::{Listener, Listening};
use crate::child::paused::Paused;
use crate::layers::scratch::{Scratch, Usage};
use crate::layers::seccomp::recorded::Recorded;
use crate::layers::view::{self, View};
use crate::layers::{cgroup, environment, identity, landlock, namespaces, network, seccomp};
use crate::protocol::{
    self, CallTexts, Exited, FromLauncher, Identity, Killed, NamedPart, Problem, ProblemKind,
    Setup, Source, ToLauncher,
};
use crate::recorder::Recorder;
use crate::spec::{self, Serves, StagedFolder};
use crate::{spawn, sys};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::Pid;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use toolhost_base::files;
use toolhost_base::mask::Hidden;
use toolhost_base::messages::{self, receive, send};
use toolhost_base::quantity::{KIB, Limit, MAX_SCRIPT_BYTES, SAMPLE_MS};

/// The role of a launcher.
pub const ROLE: &str = "launcher";
/// Most that a file system may allocate for a file at once, bytes (assumed).
const BLOCK: u64 = 64 * KIB;
/// CPU time by which a call shows that it is not stopped, ms.
const AWAKE_MS: u64 = 40;
/// Entries of a folder that are counted between two looks, on slow disks.
const ENTRIES_PER_LOOK: u64 = 500;

/// Entered by `reenter`, with the control socket as stdin.
pub fn main() -> ExitCode {
    let stdin = std::io::stdin();
    let control = stdin.as_fd();
    match start(control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Ignored: only the host could receive it, and the host may be gone.
            let _ = send(control, &FromLauncher::Refused(problem), &[]);
            ExitCode::FAILURE
        }
    }
}

fn io<E: Into<std::io::Error>>(what: &str) -> impl FnOnce(E) -> Problem {
    Problem::from_layer("launcher", what)
}

fn invalid() -> std::io::Error {
    std::io::ErrorKind::InvalidData.into()
}

fn ruleset_problem(what: String) -> Problem {
    Problem::from_layer("landlock", what)(Errno::EINVAL)
}

fn start(control: BorrowedFd) -> Result<(), Problem> {
    // Closes all descriptors inherited.
    sys::close_range(3, false).map_err(Problem::from_layer("descriptors", "close_range(2)"))?;
    sys::reset_signals();
    crate::layers::limits::no_core();
    nix::sys::stat::umask(Mode::from_bits_truncate(0o022));
    // Descriptors 3 and 4 stay taken, so that dup2(2) to those of a tool never replaces one in use.
    let third = std::fs::File::open("/dev/null").map_err(io("/dev/null"))?;
    let _fourth = third.try_clone().map_err(io("/dev/null"))?;
    let Some((ToLauncher::Enter { identity, owner }, lock)) =
        receive(control).map_err(io("the first message"))?
    else {
        return Ok(());
    };
    identity::drop_groups(identity)?;
    namespaces::enter(identity.pooled)?;
    network::raise().map_err(Problem::from_layer("network", "unshare(CLONE_NEWNET)"))?;
    let Some(launcher) = sys::fork().map_err(Problem::from_layer("namespaces", "fork(2)"))? else {
        end_with_keeper()?;
        // A session of its own gives the launcher a CPU share apart from its tools' (sched(7),
        // autogroups).
        let _ = nix::unistd::setsid();
        // Keeper and launcher both hold the id's lock, since a keeper that hangs is killed before
        // its launcher ends.
        let served = serve(control, identity, owner);
        drop(lock);
        return served;
    };
    keep(control, launcher);
    drop(lock);
    Ok(())
}

/// The keeper: kills the launcher when the host is gone, and returns when the launcher is reaped.
fn keep(control: BorrowedFd, launcher: i32) {
    if let Ok(pidfd) = sys::pidfd_open(launcher) {
        let mut wait = [
            PollFd::new(control, PollFlags::empty()),
            PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
        ];
        while poll(&mut wait, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
    let _ = kill(Pid::from_raw(launcher), Signal::SIGKILL);
    // Returns when the whole pid namespace below it is reaped.
    let _ = sys::wait4(launcher, true);
}

/// What stays the same between calls.
struct Launcher<'a> {
    control: BorrowedFd<'a>,
    setup: Setup,
    executable: OwnedFd,
    counters: Option<cgroup::Counters>,
    view: View,
    /// The real folders behind staged copies.
    sources: Vec<(StagedFolder, OwnedFd)>,
    abi: i32,
    filter: Vec<nix::libc::sock_filter>,
    /// The rules of that filter, if its refusals are recorded.
    rules: Option<Recorded>,
    last_capability: u32,
    init: OwnedFd,
    /// Most entries of epolls that a call may have.
    watches: u64,
    /// The CPU time of a session before its call; `None` until the first look after that began.
    cpu_before_ms: Cell<Option<u64>>,
    walkers: Walkers,
}

/// The launcher ends with its keeper, even while it is stopped.
fn end_with_keeper() -> Result<(), Problem> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io("prctl(PR_SET_PDEATHSIG)"))
}

fn serve(
    control: BorrowedFd,
    identity: Identity,
    owner: Option<(u32, u32)>,
) -> Result<(), Problem> {
    let abi = sys::landlock_abi();
    if abi < 1 {
        return Err(Problem::from_layer(
            "landlock",
            "this kernel has no Landlock, or it is off",
        )(Errno::ENOSYS));
    }
    nix::unistd::sethostname(HOST_NAME)
        .map_err(Problem::from_layer("namespaces", "sethostname(2)"))?;
    let base = view::begin(identity, owner)?;
    let init = crate::child::init::image()?;
    let Some((ToLauncher::Setup, mut files)) = receive(control).map_err(io("the set-up"))? else {
        return Ok(());
    };
    if files.len() < 2 {
        return Err(io("descriptors of the set-up")(invalid()));
    }
    let text = messages::read_memory_file(files.remove(0), protocol::MAX_SETUP)
        .map_err(io("the set-up"))?;
    let setup: Setup = serde_json::from_slice(&text).map_err(io("the set-up"))?;
    if setup.identity != identity {
        return Err(io("the set-up is for another identity")(invalid()));
    }
    let executable = files.remove(0);
    let counters = setup
        .cgroup
        .map(|version| {
            cgroup::Counters::from(version, files)
                .ok_or_else(|| Problem::from_layer("cgroup", "the group's files")(Errno::EBADF))
        })
        .transpose()?;
    let sources = setup
        .spec
        .staged_folders()
        .map(|stage| Ok((stage.clone(), source_folder(stage)?)))
        .collect::<Result<Vec<_>, _>>()?;
    let last_capability = crate::layers::privileges::last_capability();
    let own = setup.spec.program.executable == spec::Executable::Ourselves;
    let executable = if own {
        view::own_program(executable)?
    } else {
        executable
    };
    let view = view::raise(base, &setup)?;
    let sampled = setup.sampled();
    if sampled {
        // A page fault then adds one small page, as `sampler` assumes. The tool inherits this.
        nix::sys::prctl::set_thp_disable(true)
            .map_err(Problem::from_layer("cgroup", "prctl(PR_SET_THP_DISABLE)"))?;
    }
    let watches = std::fs::read_to_string("/proc/sys/fs/epoll/max_user_watches")
        .map_err(io("max_user_watches"))?;
    let watches =
        crate::layers::limits::share(watches.trim().parse().unwrap_or(u64::MAX), setup.calls);
    let sockets = network::open(setup.spec.network.as_deref(), setup.spec.local_sockets)?;
    let variant = seccomp::Variant {
        sampled,
        live: setup.spec.live_folders().next().is_some(),
        networked: setup.spec.network.is_some(),
        local: setup.spec.local_sockets,
    };
    let rules = setup.spec.recorded.then(|| Recorded::new(variant));
    let filter = rules
        .as_ref()
        .map_or_else(|| seccomp::program(variant), Recorded::program);
    let mut launcher = Launcher {
        control,
        setup,
        executable,
        counters,
        view,
        sources,
        abi,
        filter,
        rules,
        last_capability,
        init,
        watches,
        cpu_before_ms: Cell::new(Some(0)),
        walkers: Walkers {
            memory: walker()?,
            written: walker()?,
            listener: (variant.live || variant.networked || variant.local)
                .then(walker)
                .transpose()?,
        },
    };
    launcher.calls(sockets)
}

fn source_folder(stage: &StagedFolder) -> Result<OwnedFd, Problem> {
    let what = || format!("opening {}", stage.folder.display());
    let opened = files::without_links(&stage.folder, OFlag::O_DIRECTORY);
    let folder = opened.map_err(Problem::of_path("scratch", what()))?;
    let stat = fstat(&folder).map_err(Problem::from_layer("scratch", what()))?;
    if (stat.st_dev, stat.st_ino) != (stage.device, stage.inode) {
        return Err(Problem::new(
            ProblemKind::Changed,
            "scratch",
            what(),
            Errno::ESTALE,
        ));
    }
    Ok(folder)
}

fn walker() -> Result<Walker, Problem> {
    Walker::start().map_err(Problem::from_layer("limits", "a thread of the launcher"))
}

fn unread(errno: Errno) -> Problem {
    Problem::from_layer("cgroup", "reading /proc of the call")(errno)
}

fn counting(errno: Errno) -> Problem {
    Problem::from_layer("limits", "counting what the call wrote")(errno)
}

/// The threads that look at what calls made, and do what may wait for them.
struct Walkers {
    memory: Walker,
    written: Walker,
    /// Where a folder is written live, or the call has sockets.
    listener: Option<Walker>,
}

/// The walks over what one call made.
struct Walks<'walker> {
    memory: Walk<'walker, Sampler, Look>,
    written: Option<Walk<'walker, WriteWatch, Option<Limit>>>,
    /// The folders that are written live.
    folders: Vec<OwnedFd>,
    /// The CPU time of the call at the last look that was done.
    cpu_ms: u64,
    /// Set while a walk goes on and the call should be stopped.
    before: Option<Stock>,
}

/// What a call shows without a walk.
struct Stock {
    cpu_ms: u64,
    memory: u64,
    free: Vec<Free>,
}

/// What /proc shows of the call. `counted_ms`: its CPU time, where a group counts that and its
/// memory. A process of a program that may be run but not read shows nothing of itself (proc(5)),
/// so it counts as the most.
fn memory(
    sampler: &mut Sampler,
    counted_ms: Option<u64>,
    scratch: Usage,
    limit: u64,
) -> Result<Look, Errno> {
    let look = match counted_ms {
        Some(cpu_ms) => {
            let locks = sampler.descriptors.locks(
                || Ok(ProcessSnapshot::now()?.of_the_tool()),
                cpu_ms,
                limit,
            );
            locks.map(|bytes| Look {
                bytes,
                cpu_ms,
                sessions: 0,
                watches: sampler.descriptors.watches,
            })
        }
        None => sampler.look(scratch, limit),
    };
    let sockets = sampler.descriptors.sockets()?;
    match look {
        Ok(look) => Ok(Look {
            bytes: look.bytes.saturating_add(sockets),
            ..look
        }),
        Err(Errno::EACCES | Errno::EPERM) => Ok(Look {
            bytes: u64::MAX,
            ..Look::default()
        }),
        look => look,
    }
}

/// What the host sent for one call.
struct CallSetup {
    stdio: [OwnedFd; 3],
    source: Option<(Source, Vec<u8>)>,
    /// All variables of the tool.
    environment: Hidden<Vec<String>>,
    /// All words of its command line.
    arguments: Vec<String>,
    /// Its files, and what holds them.
    files: Vec<(NamedPart, OwnedFd)>,
    /// Its descriptors from 3 on.
    inherited: Vec<OwnedFd>,
}

impl CallSetup {
    /// The tool's descriptors from 0 on.
    fn descriptors(&self) -> Vec<RawFd> {
        let files = self.stdio.iter().chain(&self.inherited);
        files.map(AsRawFd::as_raw_fd).collect()
    }
}

/// A tool that was started behind its layers.
struct Spawned {
    pid: i32,
    pidfd: OwnedFd,
    /// Where the init reports the tool's end.
    status: OwnedFd,
    /// Set where the call writes folders live.
    written: Option<WriteWatch>,
    recorder: Option<Recorder>,
    listening: Option<Listening>,
}

impl Launcher<'_> {
    /// Serves calls until the host is gone. `sockets`: handed to the host with `Ready`.
    fn calls(&mut self, sockets: Vec<OwnedFd>) -> Result<(), Problem> {
        let mut prepared = self.prepare()?;
        let layers =
            crate::raise::layer_states(self.abi, self.counters.is_some(), &self.setup.spec);
        let descriptors: Vec<BorrowedFd> = sockets.iter().map(AsFd::as_fd).collect();
        send(self.control, &FromLauncher::Ready { layers }, &descriptors)
            .map_err(io("reporting to the host"))?;
        drop(sockets);
        loop {
            let Some((message, files)) = receive(self.control).map_err(io("the next message"))?
            else {
                return Ok(());
            };
            match message {
                ToLauncher::Start {
                    timeout_ms,
                    source,
                    texts,
                    files: parts,
                    before,
                    last,
                } => {
                    let started = Instant::now();
                    let given = self.given(files, source, texts, parts)?;
                    let (mut scratch, rules) = prepared;
                    let spawned = self.spawn(given, before, &mut scratch, rules)?;
                    let clock = match timeout_ms {
                        _ if self.setup.spec.program.serves == Serves::Calls => Clock::Endless,
                        Some(ms) => Clock::Until(started + Duration::from_millis(ms)),
                        None => Clock::Waits,
                    };
                    self.run(spawned, clock, &scratch)?;
                    if last {
                        std::process::exit(0);
                    }
                    drop(scratch);
                    prepared = self.prepare()?;
                }
                // The message was sent before our report of the end arrived.
                ToLauncher::Begin { .. }
                | ToLauncher::Pause
                | ToLauncher::Resume
                | ToLauncher::Results
                | ToLauncher::Refused
                | ToLauncher::Kill
                | ToLauncher::Done => {}
                ToLauncher::Enter { .. } | ToLauncher::Setup => {
                    return Err(io("a second set-up")(invalid()));
                }
            }
        }
    }

    /// Scratch and Landlock rules for the next call, made while no call waits.
    fn prepare(&self) -> Result<(Scratch, landlock::RuleBuilder), Problem> {
        let scratch = Scratch::raise(&self.setup, &self.view.late)?;
        let mut rules = landlock::RuleBuilder::new(self.abi, self.setup.spec.local_sockets)
            .map_err(ruleset_problem)?;
        for (file, folder, right) in self.view.allowed.iter().chain(&scratch.allowed) {
            rules = rules
                .allow(file, *folder, *right)
                .map_err(ruleset_problem)?;
        }
        if let Some(ports) = &self.setup.spec.network {
            rules = rules.connect(ports).map_err(ruleset_problem)?;
        }
        // Our own binary lies outside the view; this rule allows executing it from a descriptor.
        if self.setup.spec.program.executable == spec::Executable::Ourselves {
            rules = rules
                .allow(&self.executable, false, landlock::Right::ReadRun)
                .map_err(ruleset_problem)?;
        }
        Ok((scratch, rules))
    }

    fn given(
        &self,
        files: Vec<OwnedFd>,
        source: Option<Source>,
        texts: bool,
        parts: Vec<NamedPart>,
    ) -> Result<CallSetup, Problem> {
        let mut files = files.into_iter();
        let mut next = || {
            files
                .next()
                .ok_or_else(|| io("descriptors of a call")(invalid()))
        };
        let stdio = [next()?, next()?, next()?];
        let most = self
            .setup
            .spec
            .limits
            .get(Limit::InputBytes)
            .max(MAX_SCRIPT_BYTES);
        fn read(file: OwnedFd, most: u64) -> Result<Vec<u8>, Problem> {
            messages::read_memory_file(file, most).map_err(io("the call's source or variables"))
        }
        let source = match source {
            Some(source) => Some((source, read(next()?, most)?)),
            None => None,
        };
        let own: CallTexts<'_> = if texts {
            serde_json::from_slice(&read(next()?, protocol::MAX_SETUP)?)
                .map_err(io("the texts of the call"))?
        } else {
            CallTexts::default()
        };
        let files = parts.into_iter().map(|part| Ok((part, next()?)));
        let files = files.collect::<Result<_, Problem>>()?;
        let inherited = (0..self.setup.spec.program.inherited)
            .map(|_| next())
            .collect::<Result<_, _>>()?;
        if self.setup.identity.pooled {
            // Lets the tool open /dev/stdin and the like: a pipe belongs to the user who made it.
            let id = self.setup.identity.id;
            for file in &stdio {
                let _ = nix::unistd::fchown(file, Some(id.into()), Some(id.into()));
            }
        }
        Ok(CallSetup {
            stdio,
            source,
            environment: environment::call_lines(&self.setup.spec.variables, &own.variables),
            arguments: [&self.setup.spec.program.arguments, &*own.words].concat(),
            files,
            inherited,
        })
    }

    /// Raises the layers of one call and starts its tool.
    fn spawn(
        &mut self,
        given: CallSetup,
        before: Totals,
        scratch: &mut Scratch,
        mut rules: landlock::RuleBuilder,
    ) -> Result<Spawned, Problem> {
        scratch.mask(&self.setup.spec.masks)?;
        let fresh = scratch.allowed.len();
        for (number, (stage, from)) in self.sources.iter().enumerate() {
            scratch.stage(stage, from, number)?;
        }
        scratch.bring(&given.files)?;
        match &given.source {
            Some((Source::New(name), text)) => scratch.source(name, text)?,
            Some((Source::File(file), text)) => scratch.script(file, text)?,
            None => {}
        }
        for (file, folder, right) in &scratch.allowed[fresh..] {
            rules = rules
                .allow(file, *folder, *right)
                .map_err(ruleset_problem)?;
        }
        let ruleset = rules.done().map_err(ruleset_problem)?;
        let written = if self.setup.spec.program.serves == Serves::Calls {
            None
        } else {
            WriteWatch::begin(&self.setup.spec.mounts, before).map_err(counting)?
        };
        let limits = &self.setup.spec.limits;
        // A file may grow one block beyond the limit, so that the watch sees that the limit is
        // exceeded.
        let grown = before
            .largest
            .saturating_add(limits.get(Limit::WrittenBytes))
            .saturating_add(BLOCK);
        let grown = written.as_ref().map_or(u64::MAX, |_| grown);
        if let Some(counters) = &mut self.counters {
            counters.begin()?;
        }
        let reach = network::Reach {
            ports: self.setup.spec.network.clone().unwrap_or_default(),
            local: self.setup.spec.local_sockets,
        };
        let rules = self.rules.as_ref();
        let recorder = rules
            .map(|rules| Recorder::start(rules, &reach))
            .transpose()?;
        // A recorder answers the listener itself.
        let walker = self
            .walkers
            .listener
            .as_ref()
            .filter(|_| recorder.is_none());
        let listener = walker
            .map(|_| Listener::new())
            .transpose()
            .map_err(Problem::from_layer("seccomp", "socketpair(2)"))?;
        let (status, told) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .map_err(Problem::from_layer("namespaces", "pipe2(2)"))?;
        let plan = crate::raise::raise(&crate::raise::Raising {
            setup: &self.setup,
            environment: &given.environment,
            arguments: &given.arguments,
            counters: self.counters.as_ref(),
            ruleset: &ruleset,
            filter: &self.filter,
            listener: recorder
                .as_ref()
                .map(Recorder::socket)
                .or(listener.as_ref().map(Listener::socket)),
            last_capability: self.last_capability,
            executable: &self.executable,
            files: given.descriptors(),
            file_bytes: limits.get(Limit::FileBytes).min(grown),
            init: &self.init,
            status: told.as_raw_fd(),
        });
        let spawned = identity::with_pool_id(self.setup.identity, || spawn::spawn(&plan))?;
        // A change of ids resets it (prctl(2)).
        end_with_keeper()?;
        let (pid, pidfd) = spawned?;
        // `given` is dropped here: now only the tool holds its ends of the pipes, so the host sees
        // them close.
        Ok(Spawned {
            pid,
            pidfd,
            status,
            written,
            recorder,
            listening: listener
                .zip(walker)
                .map(|(listener, walker)| listener.begin(walker, reach))
                .transpose()
                .map_err(Problem::from_layer("seccomp", "the filter's listener"))?,
        })
    }

    /// Runs the tool to its end and reports it. From here on it runs or has run: a failure is not a
    /// refusal.
    fn run(&self, mut spawned: Spawned, clock: Clock, scratch: &Scratch) -> Result<(), Problem> {
        let mut exited = self
            .watch(&mut spawned, clock, scratch)
            .map_err(Problem::while_it_ran)?;
        let recorded = spawned
            .recorder
            .take()
            .map(Recorder::end)
            .transpose()
            .map_err(Problem::while_it_ran)?;
        if let Some(left) = &recorded {
            exited.cpu_ms += left.cpu_ms;
            // A call that is killed has its recorder killed as well.
            exited.recorder_lost = Some(left.lost && exited.killed.is_none());
            exited.killed = exited.killed.or_else(|| self.exceeded_cpu(exited.cpu_ms));
        }
        let listening = spawned.listening.as_ref();
        exited.refused = listening.map_or(Vec::new(), Listening::refused);
        let staged = if exited.killed.is_none() {
            scratch.staged().map_err(Problem::while_it_ran)?
        } else {
            Vec::new()
        };
        let recorded = recorded.iter().map(|left| left.found.as_fd());
        let descriptors: Vec<BorrowedFd> = staged.iter().map(AsFd::as_fd).chain(recorded).collect();
        send(self.control, &FromLauncher::Exited(exited), &descriptors)
            .map_err(io("reporting to the host"))?;
        // The host reads the staged copies; then the scratch may go.
        while !staged.is_empty() {
            match receive::<ToLauncher>(self.control).map_err(io("the next message"))? {
                Some((ToLauncher::Done, _)) => break,
                Some(_) => {}
                None => std::process::exit(0),
            }
        }
        // The listener's thread waits for what the call left.
        if spawned
            .listening
            .is_some_and(|listening| !listening.has_ended())
        {
            std::process::exit(0);
        }
        Ok(())
    }

    /// Waits until the call ends, by itself or by a limit.
    fn watch(
        &self,
        spawned: &mut Spawned,
        mut clock: Clock,
        scratch: &Scratch,
    ) -> Result<Exited, Problem> {
        let own = OwnCpu::begin();
        let Spawned {
            pid,
            pidfd,
            status,
            written,
            recorder,
            listening,
        } = spawned;
        let limits = &self.setup.spec.limits;
        let mut sampler = Sampler::default();
        sampler.descriptors.max_watches = self.watches;
        sampler.descriptors.local_sockets = self.setup.spec.local_sockets;
        let folders = written
            .as_ref()
            .map_or(Ok(Vec::new()), WriteWatch::folders)
            .map_err(io("the written folders"))?;
        let mut walks = Walks {
            folders,
            cpu_ms: 0,
            before: None,
            memory: Walk::new(&self.walkers.memory, sampler, MAX_LOOKS),
            written: written.take().map(|written| {
                // What lay there before is not the call's, and may take long to count.
                let more = written.max_entries(limits) / ENTRIES_PER_LOOK;
                Walk::new(&self.walkers.written, written, MAX_LOOKS + more)
            }),
        };
        let listening = listening.as_ref();
        let killed = self.wait(*pid, pidfd, &mut clock, scratch, listening, || {
            let beside = own.excess_ms() + recorder.as_ref().map_or(0, Recorder::cpu_ms);
            self.over(&mut walks, scratch, beside)
        })?;
        let mut exited = self.reap(*pid, status, killed, &walks.memory.state(), scratch)?;
        exited.before_call = matches!(clock, Clock::Waits);
        exited.cpu_ms = exited.cpu_ms.max(walks.cpu_ms) + own.excess_ms();
        // The CPU limit was exceeded between two samples: RLIMIT_CPU may have ended a process.
        exited.killed = exited.killed.or_else(|| self.exceeded_cpu(exited.cpu_ms));
        if let (None, Some(written)) = (exited.killed, walks.written) {
            exited.killed = written
                .state()
                .look_at_end(limits)
                .map_err(counting)?
                .map(Killed::Written);
        }
        Ok(exited)
    }

    /// Waits until the tool ends. Kills it at its deadline, where the host asks for that, or where
    /// `over` says so.
    fn wait(
        &self,
        pid: i32,
        pidfd: &OwnedFd,
        clock: &mut Clock,
        scratch: &Scratch,
        listening: Option<&Listening>,
        mut over: impl FnMut() -> Result<Option<Killed>, Problem>,
    ) -> Result<Option<Killed>, Problem> {
        let mut killed = None;
        let mut paused: Option<Paused> = None;
        let mut last_look = Instant::now();
        loop {
            // A call that was killed has no deadline any more: without this, the loop would spin
            // until it is dead.
            let left = clock
                .deadline()
                .filter(|_| killed.is_none() && paused.is_none())
                .map_or(SAMPLE_MS, |d| {
                    d.saturating_duration_since(Instant::now())
                        .as_micros()
                        .div_ceil(1000)
                        .min(SAMPLE_MS.into()) as u64
                });
            let mut wait = [
                PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.control, PollFlags::POLLIN),
            ];
            match poll(&mut wait, PollTimeout::from(left as u16)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(io("poll(2)")(errno)),
            }
            let said = wait[1].revents().is_some_and(|r| !r.is_empty());
            let has_ended = wait[0].revents().is_some_and(|r| !r.is_empty());
            if said {
                match receive::<ToLauncher>(self.control).map_err(io("the next message"))? {
                    Some((ToLauncher::Kill, _)) if !has_ended => {
                        killed = killed.or(Some(Killed::Requested));
                    }
                    // Also of a process that has ended: the input followed this message.
                    Some((ToLauncher::Begin { timeout_ms, files }, contents)) => {
                        *clock = Clock::Until(Instant::now() + Duration::from_millis(timeout_ms));
                        if self.setup.spec.program.serves == Serves::Session {
                            self.cpu_before_ms.set(None);
                        }
                        self.bring(scratch, files, contents)?;
                    }
                    Some((ToLauncher::Pause, _)) if paused.is_none() => {
                        paused = Some(Paused::begin(pid).map_err(unread)?);
                    }
                    Some((ToLauncher::Results, _)) if paused.is_some() => {
                        self.show_results(scratch)?;
                    }
                    Some((ToLauncher::Refused, _)) => {
                        let all = listening.map_or(Vec::new(), Listening::refused);
                        send(self.control, &FromLauncher::RefusedPorts(all), &[])
                            .map_err(io("reporting to the host"))?;
                    }
                    Some((ToLauncher::Resume, _)) => {
                        let lasted = paused.take().map(|paused| paused.lasted());
                        *clock = clock.later(lasted.unwrap_or_default());
                    }
                    Some(_) => {}
                    // The host is gone: ending ourselves ends the tool.
                    None => std::process::exit(0),
                }
            }
            // Also where all has ended: the next call begins with nothing stopped.
            walk::resume().map_err(unread)?;
            if has_ended {
                return Ok(killed);
            }
            if paused.is_none() && clock.deadline().is_some_and(|d| Instant::now() >= d) {
                killed = killed.or(Some(Killed::Deadline));
            }
            if killed.is_none()
                && last_look.elapsed() >= Duration::from_millis(SAMPLE_MS - 1)
                && paused.as_mut().is_none_or(Paused::is_due)
            {
                let awake = paused.as_mut().map(Paused::is_awake).transpose();
                killed = match awake.map_err(unread)? {
                    Some(true) => Some(Killed::Cpu),
                    _ => over()?,
                };
                last_look = Instant::now();
            }
            if killed.is_some() {
                // Kills all processes at once: pid 1 alone would first have to be scheduled to die,
                // and the others would go on meanwhile.
                if signal_all(Signal::SIGKILL).is_err() {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
        }
    }

    /// The files of a call whose program waits for it, in their place before its input comes.
    fn bring(
        &self,
        scratch: &Scratch,
        files: Vec<NamedPart>,
        contents: Vec<OwnedFd>,
    ) -> Result<(), Problem> {
        if files.is_empty() {
            return Ok(());
        }
        let files: Vec<_> = files.into_iter().zip(contents).collect();
        scratch.bring(&files)?;
        send(self.control, &FromLauncher::Begun, &[]).map_err(io("reporting to the host"))
    }

    /// Shows the host what a session left in its folder of results, which nothing changes now, and
    /// before it the memory of its files, which are gone but where it holds them open.
    fn show_results(&self, scratch: &Scratch) -> Result<(), Problem> {
        if self.setup.spec.program.serves != Serves::Session {
            return Ok(());
        }
        scratch.remove_files()?;
        let folders = scratch.staged()?;
        let folders = folders.iter().map(AsFd::as_fd);
        let folders: Vec<_> = scratch.input().into_iter().chain(folders).collect();
        send(self.control, &FromLauncher::Results, &folders).map_err(io("reporting to the host"))
    }

    /// The limit that the call as a whole exceeds, if any: first by what the kernel counts, then by
    /// what the walks have seen. `beside_ms`: CPU time that others used for the call.
    fn over(
        &self,
        walks: &mut Walks,
        scratch: &Scratch,
        beside_ms: u64,
    ) -> Result<Option<Killed>, Problem> {
        let counted = self
            .counters
            .as_ref()
            .map(cgroup::Counters::read_usage)
            .transpose()?
            .unwrap_or_default();
        if counted.oom_kills > 0 {
            return Ok(Some(Killed::Memory));
        }
        let limit = self.setup.spec.limits.get(Limit::MemoryBytes);
        let scratch = scratch.usage()?;
        let cpu_ms = self.counters.is_some().then_some(counted.cpu_ms);
        let look = move |sampler: &mut Sampler| memory(sampler, cpu_ms, scratch, limit);
        let seen = walks.memory.look(look).map_err(unread)?;
        let mut is_done = true;
        let killed = match seen {
            Seen::TooMuch => Some(Killed::Memory),
            Seen::Part => {
                is_done = false;
                None
            }
            Seen::All(look) if look.bytes > limit => Some(Killed::Memory),
            Seen::All(look) if look.sessions > SESSIONS => {
                Some(Killed::TooMany(Limit::Processes, SESSIONS))
            }
            Seen::All(look) if look.watches > self.watches => {
                Some(Killed::TooMany(Limit::OpenFiles, self.watches))
            }
            Seen::All(look) => {
                walks.cpu_ms = look.cpu_ms;
                self.exceeded_cpu(counted.cpu_ms.max(look.cpu_ms) + beside_ms)
            }
        };
        let limits = self.setup.spec.limits.clone();
        let written = walks
            .written
            .as_mut()
            .map(|written| written.look(move |written| written.look(&limits)));
        let killed = killed.or(match written.transpose().map_err(counting)? {
            Some(Seen::TooMuch) => Some(Killed::Written(Limit::WrittenFiles)),
            Some(Seen::All(over)) => over.map(Killed::Written),
            Some(Seen::Part) => {
                is_done = false;
                None
            }
            None => None,
        });
        if is_done {
            walks.before = None;
            return Ok(killed);
        }
        Ok(killed.or(self.taken_while_stopped(walks, counted.cpu_ms, beside_ms)?))
    }

    /// The limit that a call passed although it should be stopped: a timer continued it, or it
    /// stays inside a system call. Only a call that uses CPU takes anything; free space falls by
    /// what neighbours write, too.
    fn taken_while_stopped(
        &self,
        walks: &mut Walks,
        counted_ms: u64,
        beside_ms: u64,
    ) -> Result<Option<Killed>, Problem> {
        let (cpu_ms, memory) = match &self.counters {
            Some(_) => (counted_ms, 0),
            None => shown_now().map_err(unread)?,
        };
        let free = walks
            .folders
            .iter()
            .map(free_at)
            .collect::<Result<Vec<_>, _>>()
            .map_err(counting)?;
        let now = Stock {
            cpu_ms,
            memory,
            free,
        };
        let before = walks.before.get_or_insert_with(|| Stock {
            free: now.free.clone(),
            ..now
        });
        let used_ms = now.cpu_ms.saturating_sub(before.cpu_ms);
        let limits = &self.setup.spec.limits;
        Ok(if used_ms < AWAKE_MS {
            None
        } else if fell(&before.free, &now.free) > limits.get(Limit::WrittenBytes) {
            Some(Killed::Written(Limit::WrittenBytes))
        } else if now.memory.saturating_sub(before.memory) > limits.get(Limit::MemoryBytes) {
            Some(Killed::Memory)
        } else {
            self.exceeded_cpu(walks.cpu_ms.max(before.cpu_ms) + used_ms + beside_ms)
        })
    }

    /// `Killed::Cpu` if this CPU time, recorder included, exceeds the limit.
    fn exceeded_cpu(&self, cpu_ms: u64) -> Option<Killed> {
        let before_ms = self.cpu_before_ms.get().unwrap_or(cpu_ms);
        self.cpu_before_ms.set(Some(before_ms));
        let used_ms = cpu_ms.saturating_sub(before_ms);
        let is_over = used_ms > self.setup.spec.limits.get(Limit::CpuMs);
        (is_over && self.setup.spec.program.serves != Serves::Calls).then_some(Killed::Cpu)
    }

    fn reap(
        &self,
        pid: i32,
        status: &OwnedFd,
        killed: Option<Killed>,
        sampler: &Sampler,
        scratch: &Scratch,
    ) -> Result<Exited, Problem> {
        let waited = sys::wait4(pid, true)
            .map_err(io("wait4(2)"))?
            .unwrap_or_default();
        let scratch_full = scratch.usage()?.is_full;
        let peak = sampler.peak_with(waited.peak_bytes);
        let limits = &self.setup.spec.limits;
        let mut exited = Exited {
            status: crate::child::init::wait_status(status).unwrap_or(waited.status),
            before_call: false,
            killed,
            cpu_ms: waited.cpu_ms,
            peak_memory_bytes: Some(peak),
            scratch_full,
            processes_refused: sampler.most_threads >= limits.get(Limit::Processes),
            recorder_lost: None,
            refused: Vec::new(),
        };
        if let Some(counters) = &self.counters {
            let seen = counters.read_usage()?;
            exited.cpu_ms = seen.cpu_ms;
            exited.peak_memory_bytes = counters.peak();
            exited.processes_refused = seen.refused_processes > 0;
            if seen.oom_kills > 0 {
                exited.killed = exited.killed.or(Some(Killed::Memory));
            }
        } else if peak > self.setup.spec.limits.get(Limit::MemoryBytes) {
            // The limit was exceeded between two samples, or before one that was late.
            exited.killed = exited.killed.or(Some(Killed::Memory));
        }
        Ok(exited)
    }
}
