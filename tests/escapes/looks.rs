//! What is long to look at: limits hold meanwhile, and the launcher's CPU time is the call's.

use super::{called_by, ends};
use crate::prelude::*;

const MIB: u64 = 1 << 20;
const SCRIPT: &str = include_str!("looks.py");
/// Runs a command, and then prints the CPU time of all that it started, in seconds.
const TIMED: &str = "import resource, subprocess, sys\ncode = subprocess.call(sys.argv[1:])\nused \
                     = resource.getrusage(resource.RUSAGE_CHILDREN)\nprint('used', \
                     int(used.ru_utime + used.ru_stime), file=sys.stderr)\nsys.exit(code)\n";
const ALLOWED: &str = r#"
[files]
read = [{ path = "./**", why = "a test" }]
write = [{ path = "./out/**", why = "a test" }]
[limits]
timeout_ms = 120_000
"#;

#[test]
fn limits_hold_while_a_look_is_long() {
    let limits = |memory: u64, written: u64, cpu_ms: u64| {
        let files = json!({"allowRead": ["./**"], "allowWrite": ["out/**"]});
        let limits =
            json!({"memoryBytes": memory * MIB, "writtenBytes": written * MIB, "cpuMs": cpu_ms});
        json!({"securityContext": {"fileAccess": files}, "limits": limits})
    };
    const OVER: &str = "ResourceLimitError";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let tool = |name: &str, memory: u64, written: u64, cpu_ms: u64| {
            let asks = limits(memory, written, cpu_ms);
            let out = playground.tool(name, "python", SCRIPT, asks).join("out");
            fs::create_dir(&out).unwrap();
            out
        };
        tool("held", 1024, 16, 1500);
        let writes = tool("writes", 1024, 16, 20_000).join("big");
        let touches = tool("touches", 64, 16, 20_000).join("touched");
        // The control: what is long to look at is allowed where the limits are wide.
        tool("wide", 1024, 16, 60_000);
        // Making what is long to look at can itself take longer than a call may, on a busy machine.
        playground.policy("looks", "esc:*", ALLOWED);
        playground.settle();
        let input = |make: &str, n: u64, then: &str| {
            json!({"make": make, "n": n, "forks": 100, "s": 6, "then": then}).to_string()
        };
        for (make, n) in [("epolls", 500), ("maps", 40)] {
            let mut timed = playground.outside(PYTHON);
            timed.args(["-c", TIMED]);
            let ended = called_by(&playground, timed, "esc:held", &input(make, n, "wait"));
            let used: u64 = ended
                .stderr
                .rsplit_once("used ")
                .unwrap()
                .1
                .trim()
                .parse()
                .unwrap();
            assert!(used <= 6, "{who:?} {make}: {used} s of CPU time");
            in_time_once(|| {
                let ended = playground.call("esc:writes", &input(make, n, "write"));
                let written = fs::metadata(&writes).map_or(0, |file| file.len() / MIB);
                assert_eq!(ends(OVER, &ended), Ok(()), "{who:?} {make}");
                let is_held = written <= 64;
                is_held
                    .then_some(())
                    .ok_or_else(|| format!("{who:?} {make}: {written} MiB"))
            });
            in_time_once(|| {
                let _ = fs::remove_file(&touches);
                let ended = playground.call("esc:touches", &input(make, n / 20, "touch"));
                let touched = fs::read_to_string(&touches).unwrap_or_default();
                let touched = 16 * touched.parse().unwrap_or(0);
                assert_eq!(ends(OVER, &ended), Ok(()), "{who:?} {make}");
                let is_held = touched <= 160;
                is_held
                    .then_some(())
                    .ok_or_else(|| format!("{who:?} {make}: {touched} MiB"))
            });
        }
        let few =
            json!({"make": "epolls", "n": 20, "forks": 10, "s": 3, "then": "wait"}).to_string();
        playground.expect("esc:wide", &few, "ok 1");
    }
}
