//! What a call does through the kernel: memory that no process shows, waking other programs, taking
//! their CPU.

use super::{called_by, ends};
use crate::prelude::*;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// The limit of calls that something else is to end.
const LONG: &str = "[limits]\ntimeout_ms = 120_000\n";

/// What `unseen.py` is asked for, the limit that it passes (MiB), and what it prints where nothing
/// holds it back.
const UNSEEN: [(&str, u64, u64); 8] = [
    ("name", 128, 300),
    ("texts", 64, 100),
    ("records", 64, 60),
    ("deep", 128, 60),
    ("swapped", 64, 480),
    ("buffers", 64, 400),
    ("locks", 32, 180_000),
    ("gone", 256, 1),
];

#[test]
fn what_no_process_shows_ends_the_call_at_its_limit() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        for (name, mib, _) in UNSEEN {
            for (name, mib) in [(name.to_owned(), mib), (format!("{name}-wide"), 256 << 10)] {
                let more = json!({"limits": {"memoryBytes": mib << 20}});
                playground.tool(&name, "python", include_str!("unseen.py"), more);
            }
        }
        let wide = "[limits]\nmemory_bytes = 274_877_906_944\ntimeout_ms = 100_000\n\
                    [files]\nread = [{ path = \"./**\", why = \"t\" }]\n";
        playground.policy("wide", "esc:*", wide);
        playground.settle();
        let input = |name: &str| json!({ "do": name }).to_string();
        for (name, ..) in UNSEEN {
            in_time_once(|| {
                let ended = playground.call(&format!("esc:{name}"), &input(name));
                let judged = ends("ResourceLimitError: memoryBytes", &ended)
                    .map_err(|why| format!("{who:?} {name}, {}: {why}", ended.counted()));
                // What the kernel counts hangs on nobody's looks.
                if ended.counted() != "sampled" {
                    judged.clone().unwrap();
                }
                judged
            });
        }
        // The control, as one identity: within a limit that is wide enough, the same is done.
        if who == Who::ours() {
            std::thread::scope(|scope| {
                for (name, _, prints) in UNSEEN {
                    let (playground, tool) = (&playground, format!("esc:{name}-wide"));
                    scope.spawn(move || {
                        playground.expect(&tool, &input(name), &format!("ok {prints}"))
                    });
                }
            });
        }
    }
}

/// What the kernel counts for all programs of a user: a call has its share.
#[test]
fn a_call_has_a_share_of_what_is_counted_for_its_user() {
    let text = fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").unwrap();
    let slots = text.trim().parse::<u64>().unwrap() / 10_000;
    let (_, signals) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_SIGPENDING).unwrap();
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("shares", "python", include_str!("shares.py"), json!({}));
        playground.policy("shares", "esc:shares", LONG);
        playground.settle();
        let config = playground.path("config.toml");
        fs::write(&config, format!("running_calls = {slots}\n")).unwrap();
        let call = |input: &Value, configured: bool| {
            let mut command = playground.host();
            if configured {
                command.arg("--config").arg(&config);
            }
            command.args([
                "call",
                "esc:shares",
                "--json",
                "--input",
                &input.to_string(),
            ]);
            finish(command, b"")
        };
        let watches = |n: u64, seconds: f64| json!({"watches": n, "seconds": seconds});
        let (few, many) = (watches(4000, 1.5), watches(8000, 1.5));
        assert_eq!(ends("ok 4000", &call(&few, true)), Ok(()), "{who:?}");
        assert_eq!(
            ends("ok 8000", &call(&many, false)),
            Ok(()),
            "{who:?}: the control"
        );
        let over = call(&watches(8000, 25.0), true);
        assert_eq!(
            ends("ResourceLimitError: openFiles", &over),
            Ok(()),
            "{who:?}"
        );
        assert!(
            over.out.to_string().contains("entries in epolls"),
            "{who:?}: {}",
            over.out
        );
        let queued = json!({"signals": true});
        let (share, usual) = (
            (signals / (2 * slots)).min(1024),
            (signals / (2 * 64)).min(1024),
        );
        assert_eq!(
            ends(&format!("ok {share}"), &call(&queued, true)),
            Ok(()),
            "{who:?}"
        );
        assert_eq!(
            ends(&format!("ok {usual}"), &call(&queued, false)),
            Ok(()),
            "{who:?}: the control"
        );
    }
}

/// The launcher does not open what a tool only names: these cannot be read, and count as any file
/// of /proc.
#[test]
fn a_named_file_of_proc_counts_unread() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import json, os, sys, time\ngiven = json.load(sys.stdin)\nkept = \
                      [os.open('/proc/kmsg', os.O_PATH) for _ in range(given['n'])]\n\
                      time.sleep(given['seconds'])\nprint(len(kept))\n";
        playground.tool(
            "names",
            "python",
            script,
            json!({"limits": {"memoryBytes": 64 << 20}}),
        );
        playground.policy("names", "esc:names", LONG);
        playground.settle();
        let few = playground.expect("esc:names", r#"{"n": 8, "seconds": 1.5}"#, "ok 8");
        // With a cgroup the kernel counts, and these hold nothing. A look ends the others.
        let (expected, seconds) = if few.counted() == "sampled" {
            ("ResourceLimitError: memoryBytes", 100.0)
        } else {
            ("ok 60", 1.5)
        };
        let many = json!({"n": 60, "seconds": seconds}).to_string();
        let ended = playground.call("esc:names", &many);
        assert_eq!(ends(expected, &ended), Ok(()), "{who:?}");
    }
}

/// A program that may be run and not read shows nothing of itself (proc(5)). Where that is how a
/// call is counted, it counts as the most, and its end is one that the caller made: it holds back
/// nobody else (`service/breaker.rs`).
#[test]
fn a_program_that_cannot_be_read_counts_as_the_most() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import json, os, subprocess, sys\ngiven = json.load(sys.stdin)\n\
                      path = os.path.join(os.path.dirname(__file__), given['program'])\n\
                      ended = subprocess.run([path, given['seconds']]).returncode\n\
                      print(json.dumps([ended, os.access(path, os.R_OK)]))\n";
        let folder = playground.tool("runs", "python", script, json!({}));
        for name in ["shown", "hidden"] {
            copy_program("/bin/sleep", folder.join(name));
        }
        playground.policy("runs", "esc:runs", LONG);
        playground.settle();
        for (name, mode) in [("shown", 0o555), ("hidden", 0o111)] {
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let shown = json!({"program": "shown", "seconds": "1"}).to_string();
        let shown = playground.expect("esc:runs", &shown, "ok [0, true]");
        // With a cgroup the kernel counts. A look ends the others.
        let (expected, seconds) = if shown.counted() == "sampled" {
            ("ResourceLimitError: memoryBytes", "100")
        } else {
            ("ok [0, false]", "1")
        };
        let hidden = json!({"program": "hidden", "seconds": seconds}).to_string();
        let ended = playground.call("esc:runs", &hidden);
        assert_eq!(ends(expected, &ended), Ok(()), "{who:?}");
    }
}

#[test]
fn waiters_on_a_granted_file_stay_where_they_are() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let words = playground.path("granted/ro/words");
        fs::write(&words, [1u8; 4096]).unwrap();
        let granted = format!("{}/granted/ro/**", playground.base.display());
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**", granted]}}});
        let script = playground
            .tool("mover", "python", include_str!("words.py"), asks)
            .join("main.py");
        playground.allow("words", "esc:*", &["./**", &granted], &[]);
        playground.settle();
        let run = |does: &str| {
            let mut command = playground.outside(PYTHON);
            command.env("DOES", does).env("WORDS", &words).arg(&script);
            command
        };
        for (inside, woken) in [(false, 0), (true, 1)] {
            let mut waiter = run("waits")
                .arg("600")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut out = waiter.stdout.take().unwrap();
            out.read_exact(&mut [0; 6]).unwrap();
            // proc_pid_syscall(5): it is in futex(2).
            let call = format!("/proc/{}/syscall", waiter.id());
            wait_for("it waits", || {
                fs::read_to_string(&call).is_ok_and(|call| call.starts_with("202 "))
            });
            if inside {
                let refused = format!("ok -{}", nix::libc::ENOSYS);
                playground.expect("esc:mover", &json!({"path": words}).to_string(), &refused);
            } else {
                // The control: without layers the waiting programs are moved, and a wake on their
                // own word reaches none.
                assert_eq!(finish(run("moves"), b"").out, 1, "{who:?}");
            }
            let wakes = finish(run("wakes"), b"");
            assert_eq!(wakes.out, woken, "{who:?}, inside {inside}");
            if !inside {
                waiter.kill().unwrap();
            }
            let mut said = String::new();
            out.read_to_string(&mut said).unwrap();
            waiter.wait().unwrap();
            let wanted = if inside { "woken" } else { "" };
            assert_eq!(said.trim(), wanted, "{who:?}, inside {inside}");
        }
    }
}

const SPINNERS: &str = include_str!("spinners.py");

/// P15: calls end about as soon beside a tool that takes all the CPU it gets as they do without it.
#[test]
fn other_calls_are_in_time_beside_spinners() {
    spinners_outside_keep_others_waiting();
    as_everyone("spinners", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool(
            "spin",
            "python",
            SPINNERS,
            json!({"limits": {"cpuMs": 60_000}}),
        );
        let hangs = json!({"execution": {"timeoutMs": 1500}});
        playground.tool("hangs", "python", "import time\ntime.sleep(60)\n", hangs);
        playground.without_breaker();
        playground.settle();
        let mut server = Server::start(&playground);
        // How long the longest of eight calls at once takes, all of which end at their time limit.
        let mut longest = |spinners: u64| {
            if spinners > 0 {
                server.call_n("spin", spinners);
                // They and the one that made them are there, or were ended for their sessions.
                let (script, before) = (
                    playground.path("user_scripts/spin/main.py"),
                    playground.records().len(),
                );
                let spinning =
                    || processes_of(&script.display().to_string()).len() as u64 > spinners;
                wait_for("the spinners spin", || {
                    spinning() || playground.records().len() > before
                });
            }
            let before = playground.records().len();
            (0..8).for_each(|n| _ = server.call_n("hangs", n));
            let ended = || -> Vec<Value> {
                let records = playground.records().split_off(before);
                records
                    .into_iter()
                    .filter(|record| record["tool"] == "esc:hangs")
                    .collect()
            };
            // Spinners that still run end with the server.
            wait_for("the calls end", || ended().len() == 8);
            let ended = ended();
            assert!(
                ended
                    .iter()
                    .all(|record| record["outcome"] == "TimeoutError"),
                "{who:?}: {ended:?}"
            );
            ended
                .iter()
                .filter_map(|record| record["usage"]["wallMs"].as_u64())
                .max()
                .unwrap()
        };
        // Other tests run: it is measured again.
        let mut measured = Vec::new();
        let are_in_time = (0..4).any(|_| {
            playground.runs("user_scripts/spin/main.py", 0);
            let (alone, beside) = (longest(0), longest(110));
            measured.push((alone, beside));
            beside * 10 <= alone * 25
        });
        assert!(
            are_in_time,
            "{who:?}: ms without spinners, and beside them: {measured:?}"
        );
    });
}

/// P15: the CPU is shared by principals. The same spinners of the principal itself are the control.
#[test]
fn one_callers_spinners_leave_another_its_share() {
    if !is_root() {
        return skipped(1, "shares of principals need a cgroup with CPU control");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    let n = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "integer"}}});
    let spins = json!({"parameters": n, "limits": {"cpuMs": 60_000}});
    let work = "import json, time\nbegan, spent = time.time(), time.process_time()\nwhile \
                time.process_time() < spent + 0.1:\n    pass\nprint(json.dumps(time.time() - \
                began))\n";
    let spin = playground
        .tool("spin", "python", SPINNERS, spins)
        .join("main.py")
        .display()
        .to_string();
    playground.tool("work", "python", work, json!({}));
    playground.policy("spinners", "esc:*", LONG);
    playground.settle();
    let callers = ["loud", "quiet"]
        .map(|name| crate::http::caller(name, ""))
        .concat();
    crate::http::write_callers(&playground, &callers);
    let (web, [loud, quiet]) = crate::http::Web::for_callers(&playground, ["loud", "quiet"]);
    // How long a tenth of a second of work takes a caller.
    let took = |who: &str| {
        let worked = || {
            let answer = web.call("esc:work", &json!({}), &[who]).json();
            answer["outputData"]
                .as_f64()
                .unwrap_or_else(|| panic!("{answer}"))
        };
        (0..3).map(|_| worked()).fold(f64::MAX, f64::min)
    };
    let (calls, each) = (6, 10);
    let body = json!({"n": each, "s": 90}).to_string();
    let path = "/v1/tools/esc:spin/calls";
    let spinning: Vec<TcpStream> = (0..calls)
        .map(|_| web.send("POST", path, &[&loud], &body))
        .collect();
    wait_for("the spinners spin", || {
        processes_of(&spin).len() >= calls * each
    });
    // The groups of its calls lie in one group, which goes with the last of them.
    let pids: Vec<u32> = processes_of(&spin).iter().map(|(pid, _)| *pid).collect();
    let mut groups = groups_of(&pids);
    groups.retain(|group| !group.parent().unwrap().ends_with("toolhost"));
    let above: BTreeSet<_> = groups.iter().map(|group| group.parent().unwrap()).collect();
    assert!(groups.len() == calls && above.len() == 1, "{groups:?}");
    // A short piece of work is lucky now and then, and other tests run: it is measured again.
    let mut measured = Vec::new();
    let has_its_share = (0..10).any(|_| {
        let (other, same) = (took(&quiet), took(&loud));
        measured.push((other, same));
        same > 2.0 * other
    });
    assert!(
        has_its_share,
        "seconds beside another's spinners, and beside its own: {measured:?}"
    );
    drop(spinning);
    let mut web = web;
    web.signal(Signal::SIGTERM);
    web.ended(PATIENCE).unwrap();
    // What a host left at its end goes with the next one.
    let (next, [quiet]) = crate::http::Web::for_callers(&playground, ["quiet"]);
    next.call("esc:work", &json!({}), &[&quiet]).json();
    wait_for("it is gone", || above.iter().all(|group| !group.exists()));
}

/// What ends slowly keeps its group after the call. The test's own process plays it, since one that
/// the kernel cannot end yet is hard to have.
#[test]
fn a_group_that_is_still_used_goes_with_a_later_call() {
    if !is_root() {
        return skipped(1, "only root has groups here");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    playground.tool(
        "hangs",
        "python",
        "import time\ntime.sleep(110)\n",
        json!({}),
    );
    playground.tool("good", "python", "print('{\"n\": 1}')\n", json!({}));
    playground.policy("hangs", "esc:hangs", LONG);
    playground.settle();
    let mut server = Server::start(&playground);
    let script = playground
        .path("user_scripts/hangs/main.py")
        .display()
        .to_string();
    let call = server.call_n("hangs", 1);
    wait_for("it runs", || !processes_of(&script).is_empty());
    let tool = processes_of(&script)[0].0;
    let groups = groups_of(&[tool]);
    let mut slow = Command::new("/bin/sleep").arg("600").spawn().unwrap();
    groups
        .iter()
        .for_each(|group| fs::write(group.join("cgroup.procs"), slow.id().to_string()).unwrap());
    let launcher = parent_of(parent_of(tool).unwrap()).unwrap();
    signal(launcher, Signal::SIGKILL);
    server.answers(&[call]);
    // A host locks its groups. Later it is this lock that keeps other hosts from removing them.
    let locks: Vec<_> = groups
        .iter()
        .map(|group| fs::File::open(group).unwrap())
        .collect();
    wait_for("the host drops them", || {
        locks.iter().all(|group| group.try_lock().is_ok())
    });
    slow.kill().unwrap();
    slow.wait().unwrap();
    server.called("esc:good", json!({}));
    wait_for("they are gone", || {
        !groups.is_empty() && groups.iter().all(|group| !group.exists())
    });
}

/// The control: what a fifth of the spinners do to a program beside them, outside of any group.
/// They would keep the test above waiting as well.
fn spinners_outside_keep_others_waiting() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = playground.path("home/spin.py");
    fs::write(&script, SPINNERS).unwrap();
    let mut spin = playground.outside(PYTHON);
    spin.arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut spin = spin.spawn().unwrap();
    spin.stdin
        .take()
        .unwrap()
        .write_all(br#"{"n": 22, "s": 60}"#)
        .unwrap();
    spin.stderr.take().unwrap().read_exact(&mut [0; 6]).unwrap();
    let took = || {
        let mut work = playground.outside(PYTHON);
        work.args([
            "-c",
            "import time\nbegan, spent = time.time(), time.process_time()\n\
             while time.process_time() < spent + 0.2:\n    pass\nprint(time.time() - began)\n",
        ]);
        finish(work, b"").out.as_f64().unwrap()
    };
    // The first may come before most of the spinners.
    let longest = (0..10).map(|_| took()).find(|seconds| *seconds > 0.5);
    for (pid, _) in processes_of(&script.display().to_string()) {
        let _ = kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL);
    }
    spin.wait().unwrap();
    assert!(
        longest.is_some(),
        "a fifth of a second of work never took half a second"
    );
}

/// What the kernel does with a process that crashes, put back in the end.
struct CorePattern(String);

impl CorePattern {
    const FILE: &str = "/proc/sys/kernel/core_pattern";

    fn set(pattern: &str) -> CorePattern {
        let before = CorePattern(fs::read_to_string(Self::FILE).unwrap());
        fs::write(Self::FILE, pattern).unwrap();
        before
    }
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

#[test]
fn a_handler_of_core_dumps_gets_nothing() {
    if !is_root() {
        return skipped(1, "only root names a handler of core dumps");
    }
    for who in [Who::Root, Who::User] {
        let playground = Playground::new(who, "/var/tmp");
        // Other tests crash as well: told apart by the name of the process.
        let name = format!("core-{}", std::process::id());
        let crash = format!(
            "import ctypes, os, resource\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, \
             0)\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nif os.fork() == 0:\n    \
             os.abort()\nos.wait()\nos.abort()\n"
        );
        playground.tool("crash", "python", &crash, json!({}));
        fs::write(playground.path("home/crash.py"), &crash).unwrap();
        playground.settle();
        let (handler, got) = (
            playground.path("state/handler"),
            playground.path("state/got"),
        );
        fs::write(
            &handler,
            format!("#!/bin/sh\necho $1 >> {}\ncat > /dev/null\n", got.display()),
        )
        .unwrap();
        fs::set_permissions(&handler, fs::Permissions::from_mode(0o755)).unwrap();
        let handled = || {
            fs::read_to_string(&got)
                .unwrap_or_default()
                .lines()
                .filter(|line| *line == name)
                .count()
        };
        let count = || {
            std::thread::sleep(Duration::from_millis(500));
            handled()
        };
        let before = CorePattern::set(&format!("|{} %e", handler.display()));
        let ended = playground.call("esc:crash", "{}");
        let inside = count();
        let mut command = playground.outside(PYTHON);
        command.arg(playground.path("home/crash.py"));
        finish(command, b"");
        wait_for("the handler ran", || handled() >= 2);
        let outside = count();
        drop(before);
        assert_eq!(
            ended.error().0,
            "ScriptError",
            "{who:?}: {:?}",
            ended.error()
        );
        assert_eq!(
            (inside, outside),
            (0, 2),
            "{who:?}: a limit of 0 stops no handler behind a pipe, 1 does"
        );
    }
}

#[test]
fn nothing_runs_where_nobody_tells_who_is_root() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("one", "python", "print(1)\n", json!({}));
        playground.settle();
        let call = |line: &str| {
            let mut command = playground.outside("/usr/bin/unshare");
            command.args([
                "-Urmpf",
                "/bin/sh",
                "-c",
                &format!("{line} && exec \"$@\""),
                "sh",
            ]);
            let ended = called_by(&playground, command, "esc:one", "{}");
            (ended.out, ended.stderr)
        };
        let (report, told) = call("mount -t proc proc /proc");
        if who == Who::User {
            assert_eq!(report["outputData"], 1, "control: {report} {told}");
        } else {
            assert!(
                told.contains("maps our id to uid 0 of the machine"),
                "{report} {told}"
            );
        }
        // Without the overflow id every file is everybody's, for both: first the policies, then the
        // audit log.
        let policies = playground.path("sandbox-policies");
        for (kind, mark) in [
            ("SecurityError", "sandbox-policies: "),
            ("InternalError", " "),
        ] {
            let (report, told) = call("mount -t proc -o subset=pid proc /proc");
            assert_eq!(report["error"]["type"], kind, "{who:?}: {report} {told}");
            let why = "belongs to another user (uid 0, which stands for everybody without an id in \
                this user namespace)";
            assert!(told.contains(&format!("{mark}{why}")), "{who:?}: {told}");
            let _ = fs::remove_dir_all(&policies);
        }
    }
}
