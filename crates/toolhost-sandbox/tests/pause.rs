//! A call that is paused does nothing, whoever runs it and whatever it does about that, and goes on
//! where it was. Its time stands still, and it ends with its host.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ORDINARY: u32 = 65_534;

/// Counts in a file for each of its processes and threads: one byte a step. All of them handle
/// every signal that can be handled; one only makes processes, each of which takes one step.
const COUNTERS: &str = "
import os, signal, sys, threading, time
def step(name):
    with open(sys.argv[1] + '/' + name, 'ab', 0) as file: file.write(b'x')
def count(name):
    while True: step(name); time.sleep(0.001)
for number in range(1, 65):
    try: signal.signal(number, lambda *_: None)
    except (OSError, ValueError): pass
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for name in ('first', 'second'):
    if os.fork() == 0: os.setsid(); count(name)
if os.fork() == 0:
    while True:
        if os.fork() == 0: step('forks'); os._exit(0)
        time.sleep(0.001)
threading.Thread(target=count, args=('thread',)).start()
count('main')
";
const FILES: [&str; 5] = ["first", "second", "forks", "thread", "main"];

/// Computes, and has timers of the kernel continue it, each every 5 s. (SIGSTOP takes SIGCONT away
/// that is pending, and with it the timer.)
const AWAKE: &str = "
import ctypes, signal, sys
class Event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('rest', ctypes.c_byte * 52)]
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGCONT, lambda *_: None)
for number in range(TIMERS):
    timer, event = ctypes.c_void_p(), Event(signo=signal.SIGCONT)
    times = (ctypes.c_long * 4)(5, 0, number // 20, number % 20 * 50_000_000 + 1)
    if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)): sys.exit('no timer')
    if libc.timer_settime(timer, 0, ctypes.byref(times), None): sys.exit('not set')
while True:
    with open(sys.argv[1] + '/main', 'ab', 0) as file: file.write(b'x')
";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    /// Whoever runs the tests.
    Ours,
    User,
    MappedRoot,
}

fn everyone() -> Vec<Who> {
    if nix::unistd::geteuid().is_root() {
        vec![Who::Ours, Who::User, Who::MappedRoot]
    } else {
        println!("SKIPPED an ordinary user beside root, which only root can play");
        vec![Who::Ours]
    }
}

/// A host with one call.
struct Host {
    child: Child,
    folder: TempDir,
}

impl Host {
    fn start(who: Who, script: &str, seconds: u64) -> Host {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        // Cargo builds the examples of a package before it runs the tests.
        let tests = std::env::current_exe().unwrap();
        let example = tests.ancestors().nth(2).unwrap().join("examples/pause");
        let mut command = match who {
            Who::MappedRoot => Command::new("unshare"),
            Who::Ours | Who::User => Command::new(&example),
        };
        if who == Who::MappedRoot {
            command.args(["--user", "--map-root-user"]).arg(example);
        }
        if who != Who::Ours {
            command.uid(ORDINARY).gid(ORDINARY);
            std::os::unix::fs::chown(folder.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let child = command
            .arg(folder.path())
            .args([script, &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Host { child, folder }
    }

    /// Stops the call, or lets it go on.
    fn toggle(&mut self) {
        let to = self.child.stdin.as_mut().unwrap();
        to.write_all(b"\n").unwrap();
    }

    fn count(&self, file: &str) -> u64 {
        fs::metadata(self.folder.path().join(file)).map_or(0, |meta| meta.len())
    }

    fn counts(&self) -> Vec<u64> {
        FILES.iter().map(|file| self.count(file)).collect()
    }

    /// Waits until each count is above what it was.
    fn grows(&self, before: &[u64]) {
        wait_for("it goes on", || {
            self.counts()
                .iter()
                .zip(before)
                .all(|(now, before)| now > before)
        });
    }

    /// The processes of the tool, by the folder that is their argument, with their states.
    fn processes(&self) -> Vec<(PathBuf, char)> {
        let folder = self.folder.path().to_str().unwrap();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path();
            let line = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
            let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
            let mut words = line.split('\0');
            if words.next() == Some("/usr/bin/python3") && words.any(|word| word == folder) {
                let state = stat
                    .rsplit_once(") ")
                    .and_then(|(_, rest)| rest.chars().next());
                found.extend(state.map(|state| (path, state)));
            }
        }
        found
    }

    fn is_stopped(&self) -> bool {
        let all = self.processes();
        !all.is_empty() && all.iter().all(|(_, state)| *state == 'T')
    }

    /// What the host says of the end of its call.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut printed = String::new();
        let mut from = BufReader::new(self.child.stdout.take().unwrap());
        from.read_line(&mut printed).unwrap();
        self.child.wait().unwrap();
        printed
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is_done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_paused_call_does_nothing_and_goes_on_where_it_was() {
    for who in everyone() {
        let mut paused = Host::start(who, COUNTERS, 600);
        let other = Host::start(who, COUNTERS, 600);
        paused.grows(&[0; 5]);
        other.grows(&[0; 5]);
        for _ in 0..3 {
            paused.toggle();
            wait_for("all are stopped", || paused.is_stopped());
            let before = paused.counts();
            let control: Vec<u64> = other.counts().iter().map(|count| count + 50).collect();
            other.grows(&control);
            assert_eq!(paused.counts(), before, "{who:?}");
            paused.toggle();
            paused.grows(&before);
        }
    }
}

#[test]
fn the_time_of_a_paused_call_stands_still() {
    let mut paused = Host::start(Who::Ours, COUNTERS, 20);
    paused.grows(&[0; 5]);
    paused.toggle();
    wait_for("all are stopped", || paused.is_stopped());
    let other = Host::start(Who::Ours, COUNTERS, 20);
    assert!(other.end().contains("Deadline"), "control");
    let before = paused.counts();
    paused.toggle();
    paused.grows(&before);
    assert!(paused.end().contains("Deadline"));
}

#[test]
fn a_paused_call_that_wakes_itself_is_ended() {
    for who in everyone() {
        let mut ended = Host::start(who, &AWAKE.replace("TIMERS", "100"), 600);
        let mut other = Host::start(who, &AWAKE.replace("TIMERS", "0"), 600);
        wait_for("both run", || {
            ended.count("main") > 0 && other.count("main") > 0
        });
        other.toggle();
        wait_for("it is stopped", || other.is_stopped());
        ended.toggle();
        let printed = ended.end();
        assert!(printed.contains("Some(Cpu)"), "{who:?}: {printed}");
        let before = other.count("main");
        other.toggle();
        wait_for("the control goes on", || other.count("main") > before);
    }
}

#[test]
fn a_paused_call_ends_with_its_tool_and_with_its_host() {
    for who in everyone() {
        let mut host = Host::start(who, COUNTERS, 600);
        host.grows(&[0; 5]);
        host.toggle();
        wait_for("all are stopped", || host.is_stopped());
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        wait_for("nothing is left", || host.processes().is_empty());

        let mut host = Host::start(
            who,
            "import sys, time; open(sys.argv[1] + '/main', 'w').write('x'); time.sleep(600)",
            600,
        );
        wait_for("it runs", || host.count("main") > 0);
        host.toggle();
        wait_for("it is stopped", || host.is_stopped());
        let tool = host.processes().remove(0).0;
        let pid = tool.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        let mut printed = String::new();
        drop(host.child.stdin.take());
        host.child
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        assert!(printed.starts_with("None"), "{who:?}: {printed}");
    }
}
