//! What children write of the memory they share with their parent, counted from outside by the page faults it takes.

use super::Attack;
use crate::prelude::*;
use std::sync::atomic::AtomicBool;

/// What the tests below try.
pub const ATTACKS: &[Attack] =
    &[Attack { name: "sixty children write what they share, all at once", wall: "cgroup", promises: "P15 P16" }];

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;

/// 300 MiB, shared with sixty children, which read all of it or, told so, write it.
const SCRIPT: &str = r#"
import json, mmap, os, sys, time

write = json.load(sys.stdin)["n"]
hold = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
hold.madvise(15)
block = b"x" * (1 << 20)
for at in range(0, len(hold), 1 << 20):
    hold[at:at + (1 << 20)] = block
r, w = os.pipe()
children = []
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        os.close(w)
        os.read(r, 1)
        for at in range(0, len(hold), 1 << 20):
            if write:
                hold[at:at + (1 << 20)] = block
            else:
                hold[at:at + 4096]
        time.sleep(write)
        os._exit(0)
    children.append(pid)
os.close(w)
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps(len(children)))
"#;

/// The most that the children have written at one time while `run` lasts, and how long that took.
fn written<T>(marker: &Path, run: impl FnOnce() -> T) -> (u64, T) {
    let over = Arc::new(AtomicBool::new(false));
    let (seen, marker) = (Arc::clone(&over), marker.display().to_string());
    let watcher = std::thread::spawn(move || {
        let mut most = 0;
        while !seen.load(Ordering::SeqCst) {
            let faults = processes_of(&marker).into_iter().filter_map(|(pid, _)| faults_of_a_child(pid));
            most = most.max(faults.sum::<u64>() * 4096);
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    });
    let done = run();
    over.store(true, Ordering::SeqCst);
    (watcher.join().unwrap(), done)
}

/// Page faults of a process whose parent runs the same script.
fn faults_of_a_child(pid: u32) -> Option<u64> {
    let fields = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let text = fields(pid)?;
    let mut rest = text.rsplit_once(')')?.1.split_whitespace().skip(1);
    let parent = rest.next()?;
    let line = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    (line(parent)? == line(&pid.to_string())?).then(|| rest.nth(5)?.parse().ok())?
}

#[test]
fn children_that_write_what_they_share_end_at_the_limit() {
    let who = Who::ours();
    for who in [who, Who::User] {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool("cow", "python", SCRIPT, json!({"limits": {"memoryBytes": LIMIT}}));
        playground.settle();
        let script = folder.join("main.py");
        let read = playground.call("esc:cow", r#"{"n": 0}"#);
        assert_eq!(
            read.out["outputData"],
            60,
            "control: sharing alone is within the limit: {} {:?}",
            read.out,
            read.error()
        );
        let (most, ended) = written(&script, || playground.call("esc:cow", r#"{"n": 9}"#));
        let (kind, message) = ended.error();
        assert!(kind == "ResourceLimitError" && message.contains("memoryBytes"), "{kind}: {message}");
        assert!(most <= LIMIT, "{}: the children alone wrote {} MiB", ended.counted(), most / MIB);
        playground.assert_quiet("cow");
    }
}

/// Without walls the same children write as much as they want to.
#[test]
fn children_outside_write_all() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let script = playground.path("control.py");
    std::fs::write(&script, SCRIPT.replace("range(60)", "range(4)")).unwrap();
    let (most, ended) = written(&script, || {
        let mut command = playground.outside(PYTHON);
        command.args(["-s", "-E", "-B"]).arg(&script);
        // Each waits so many seconds for the others.
        finish(command, br#"{"n": 4}"#)
    });
    assert_eq!(serde_json::from_slice::<Value>(&ended.stdout).unwrap_or_default(), 4, "{}", ended.stderr);
    assert!(most > 2 * LIMIT, "{} MiB", most / MIB);
}
