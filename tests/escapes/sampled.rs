//! What children write of the memory they share with their parent, counted from outside by the page
//! faults it takes.

use super::{ends, unlayered};
use crate::prelude::*;
use std::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;
const SCRIPT: &str = include_str!("sampled.py");

/// The most that the children have written at one time while `run` lasts. Once that is more than
/// two limits, the file `seen` lies beside the script.
fn written<T>(marker: &Path, run: impl FnOnce() -> T) -> (u64, T) {
    let over = Arc::new(AtomicBool::new(false));
    let (ended, seen) = (Arc::clone(&over), marker.with_file_name("seen"));
    let marker = marker.display().to_string();
    let watcher = std::thread::spawn(move || {
        let mut most = 0;
        while !ended.load(Ordering::SeqCst) {
            let faults = processes_of(&marker)
                .into_iter()
                .filter_map(|(pid, _)| faults_of_a_child(pid));
            most = most.max(faults.sum::<u64>() * 4096);
            if most > 2 * LIMIT && !seen.exists() {
                fs::write(&seen, "").unwrap();
            }
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
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool(
            "cow",
            "python",
            SCRIPT,
            json!({"limits": {"memoryBytes": LIMIT}}),
        );
        // Its children wait for seconds, and a busy machine is slow at counting what they share.
        playground.policy("cow", "esc:cow", "[limits]\ntimeout_ms = 120_000\n");
        playground.settle();
        // The control: sharing alone is within the limit.
        playground.expect("esc:cow", r#"{"n": 0}"#, "ok 20");
        let over = "ResourceLimitError: memoryBytes";
        in_time_once(|| {
            let (most, ended) = written(&folder.join("main.py"), || {
                playground.call("esc:cow", r#"{"n": 9}"#)
            });
            assert_eq!(ends(over, &ended), Ok(()));
            let (is_held, counted) = (most <= LIMIT, ended.counted());
            // What the kernel counts hangs on nobody's looks.
            assert!(is_held || counted == "sampled", "{most} bytes");
            is_held
                .then_some(())
                .ok_or_else(|| format!("the children alone wrote {} MiB", most / MIB))
        });
        playground.assert_quiet("cow");
    }
    // The control: without layers four children write all they want to. Each waits until that is
    // seen.
    let playground = Playground::new(Who::User, "/var/tmp");
    let waits = "while not os.path.exists(os.path.dirname(__file__) + '/seen'): time.sleep(0.01)";
    let script = SCRIPT
        .replace("range(20)", "range(4)")
        .replace("time.sleep(write)", waits);
    let folder = playground.tool("few", "python", &script, json!({}));
    playground.settle();
    let (most, ended) = written(&folder.join("main.py"), || {
        unlayered(&playground, "few", r#"{"n": 4}"#)
    });
    assert_eq!(ended.out, 4, "{}", ended.stderr);
    assert!(most > 2 * LIMIT, "{} MiB", most / MIB);
}
