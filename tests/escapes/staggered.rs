//! Calls that overlap on one server: each starts while another runs and attacks it, and none
//! reaches the other.

use super::judged::uids;
use crate::prelude::*;

/// Which tool runs next: the same one twice in a row shares a shape, and so the launchers.
const TOOLS: [&str; 6] = ["first", "first", "second", "first", "second", "second"];
/// The processes of a call beside its init: the script and its child.
const EACH: usize = 2;

/// A call lasts until the next one has begun.
const LONG: &str =
    "[files]\nread = [{ path = \"./**\", why = \"t\" }]\n[limits]\ntimeout_ms = 110_000\n";

/// One call under way.
struct Running {
    n: usize,
    id: u64,
    pids: Vec<u32>,
}

fn start(playground: &Playground, server: &mut Server, n: usize, known: &BTreeSet<u32>) -> Running {
    let id = server.call_n(TOOLS[n], n as u64);
    let script = playground
        .path(&format!("user_scripts/{}/main.py", TOOLS[n]))
        .display()
        .to_string();
    let mut pids = Vec::new();
    wait_for(&format!("call {n} starts"), || {
        let all = processes_of(&script).into_iter().map(|(pid, _)| pid);
        pids = all.filter(|pid| !known.contains(pid)).collect();
        pids.len() == EACH
    });
    Running { n, id, pids }
}

/// Tells `attacker` whom to attack; it ends with its report.
fn attacks(
    playground: &Playground,
    server: &mut Server,
    attacker: &Running,
    victim: &Running,
) -> Value {
    let folder = playground.path(&format!("user_scripts/{}/orders", TOOLS[attacker.n]));
    let order = folder.join(format!("{}.json", attacker.n));
    fs::write(
        folder.join("next"),
        json!({"n": victim.n, "pid": victim.pids[0]}).to_string(),
    )
    .unwrap();
    fs::rename(folder.join("next"), order).unwrap();
    server.answers(&[attacker.id])[&attacker.id]["result"]["structuredContent"].clone()
}

fn expected() -> Value {
    let no = "ENOENT";
    json!({
        "found": [],
        // The control: within one call the same probes succeed.
        "self": {"scratch": "ok", "shared memory": "ok", "scratch through /proc": "ok", "variables": "ok",
                 "signal": "ok", "priority": "ok"},
        "other": {"scratch": no, "shared memory": no, "scratch through /proc": no, "variables": no,
                  "signal": "ESRCH", "priority": "ESRCH"},
        "seen": EACH + 1, "child": true, "killed": true, "kept": true,
    })
}

fn staggered(who: Who) {
    let playground = Playground::new(who, "/var/tmp");
    for tool in ["first", "second"] {
        let script = include_str!("staggered.py").replace("time.sleep(60)", "time.sleep(110)");
        let own = playground.tool(tool, "python", &script, json!({}));
        fs::create_dir_all(own.join("orders")).unwrap();
        playground.policy(tool, &format!("esc:{tool}"), LONG);
    }
    playground.settle();
    let mut server = Server::start(&playground);
    let mut known = BTreeSet::new();
    let mut running = start(&playground, &mut server, 0, &known);
    for n in 1..=TOOLS.len() {
        known.extend(&running.pids);
        // The last one attacks the first of all, which is long gone, and ends alone.
        if n == TOOLS.len() {
            let gone = Running {
                n: 0,
                id: 0,
                pids: known.iter().copied().take(1).collect(),
            };
            assert_eq!(
                attacks(&playground, &mut server, &running, &gone),
                expected(),
                "{who:?}: the last call"
            );
            break;
        }
        let next = start(&playground, &mut server, n, &known);
        let (mine, theirs) = (uids(&running.pids), uids(&next.pids));
        assert!(
            mine.len() == 1 && theirs.len() == 1,
            "{who:?}: one uid a call: {mine:?} {theirs:?}"
        );
        assert!(
            !mine.contains(&0) && !theirs.contains(&0),
            "{who:?}: a tool runs as kernel uid 0"
        );
        assert_eq!(
            mine != theirs,
            who == Who::Root,
            "{who:?}: calls {} and {n}: {mine:?} {theirs:?}",
            running.n
        );
        assert_eq!(
            attacks(&playground, &mut server, &running, &next),
            expected(),
            "{who:?}: call {}",
            running.n
        );
        let alive = |pid: &&u32| fs::exists(format!("/proc/{pid}")).unwrap();
        assert_eq!(
            next.pids.iter().filter(alive).count(),
            EACH,
            "{who:?}: call {n} was hurt by {}",
            running.n
        );
        running = next;
    }
    drop(server.to.take());
    let _ = server.child.wait();
    playground.assert_quiet("staggered calls");
}

#[test]
fn calls_that_overlap_cannot_reach_each_other() {
    as_everyone("staggered calls", staggered);
}
