//! Calls that overlap on one server: each starts while another runs and attacks it, and none reaches the other.

use super::Attack;
use super::judged::uids;
use crate::prelude::*;

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[Attack {
    name: "calls that overlap have uids of their own and cannot reach each other",
    wall: "identity",
    promises: "P9 P10 P18",
}];

/// Which tool runs next: the same one twice in a row shares a shape, and so the launchers.
const TOOLS: [&str; 6] = ["first", "first", "second", "first", "second", "second"];
/// The processes of a call beside its init: the script and its child.
const EACH: usize = 2;

/// Holds a secret in its scratch, and a child, until it is told whom to attack; attacks itself as well.
const SCRIPT: &str = r#"
import errno, json, os, signal, sys, time

n = json.load(sys.stdin)["n"]
found = sorted(os.listdir("/tmp") + os.listdir("/dev/shm"))
for folder in ("/tmp", "/dev/shm"):
    with open("%s/secret-%d" % (folder, n), "w") as f:
        f.write(str(n))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)

def read(path):
    with open(path, "rb") as f:
        f.read(1)

def word(act, *args):
    try:
        act(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]

def attack(n, pid):
    return {
        "scratch": word(read, "/tmp/secret-%d" % n),
        "shared memory": word(read, "/dev/shm/secret-%d" % n),
        "scratch through /proc": word(read, "/proc/%d/root/tmp/secret-%d" % (pid, n)),
        "variables": word(read, "/proc/%d/environ" % pid),
        "signal": word(os.kill, pid, 0),
        "priority": word(os.setpriority, os.PRIO_PROCESS, pid, 10),
    }

order = os.path.join(os.path.dirname(os.path.abspath(__file__)), "orders", "%d.json" % n)
while not os.path.exists(order):
    time.sleep(0.01)
with open(order) as f:
    other = json.load(f)
report = {"found": found, "self": attack(n, child), "other": attack(other["n"], other["pid"])}
report["seen"] = sum(pid.isdigit() for pid in os.listdir("/proc"))
report["child"] = os.waitpid(child, os.WNOHANG) == (0, 0)
os.kill(-1, signal.SIGKILL)  # everybody in reach but oneself
report["killed"] = os.WIFSIGNALED(os.waitpid(child, 0)[1])
with open("/tmp/secret-%d" % n) as f:
    report["kept"] = f.read() == str(n)
print(json.dumps(report))
"#;

/// One call under way.
struct Running {
    n: usize,
    id: u64,
    pids: Vec<u32>,
}

fn start(playground: &Playground, server: &mut Server, n: usize, known: &BTreeSet<u32>) -> Running {
    let id = server.call_n(TOOLS[n], n as u64);
    let script = playground.path(&format!("user_scripts/{}/main.py", TOOLS[n])).display().to_string();
    let mut pids = Vec::new();
    wait_for(&format!("call {n} starts"), || {
        let all = processes_of(&script).into_iter().map(|(pid, _)| pid);
        pids = all.filter(|pid| !known.contains(pid)).collect();
        pids.len() == EACH
    });
    Running { n, id, pids }
}

/// Tells `attacker` whom to attack; it ends with its report.
fn attacks(playground: &Playground, server: &mut Server, attacker: &Running, victim: &Running) -> Value {
    let folder = playground.path(&format!("user_scripts/{}/orders", TOOLS[attacker.n]));
    let order = folder.join(format!("{}.json", attacker.n));
    fs::write(folder.join("next"), json!({"n": victim.n, "pid": victim.pids[0]}).to_string()).unwrap();
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
    if !who.possible() {
        return skipped(1, "staggered calls as root need root");
    }
    let playground = Playground::new(who, "/var/tmp");
    for tool in ["first", "second"] {
        let own = playground.tool(tool, "python", SCRIPT, json!({}));
        fs::create_dir_all(own.join("orders")).unwrap();
    }
    playground.settle();
    let mut server = Server::start(&playground);
    let mut known = BTreeSet::new();
    let mut running = start(&playground, &mut server, 0, &known);
    for n in 1..=TOOLS.len() {
        known.extend(&running.pids);
        // The last one attacks the first of all, which is long gone, and ends alone.
        if n == TOOLS.len() {
            let gone = Running { n: 0, id: 0, pids: known.iter().copied().take(1).collect() };
            assert_eq!(attacks(&playground, &mut server, &running, &gone), expected(), "{who:?}: the last call");
            break;
        }
        let next = start(&playground, &mut server, n, &known);
        let (mine, theirs) = (uids(&running.pids), uids(&next.pids));
        assert!(mine.len() == 1 && theirs.len() == 1, "{who:?}: one uid a call: {mine:?} {theirs:?}");
        assert!(!mine.contains(&0) && !theirs.contains(&0), "{who:?}: a tool runs as kernel uid 0");
        assert_eq!(mine != theirs, who == Who::Root, "{who:?}: calls {} and {n}: {mine:?} {theirs:?}", running.n);
        assert_eq!(attacks(&playground, &mut server, &running, &next), expected(), "{who:?}: call {}", running.n);
        let alive = |pid: &&u32| fs::exists(format!("/proc/{pid}")).unwrap();
        assert_eq!(next.pids.iter().filter(alive).count(), EACH, "{who:?}: call {n} was hurt by {}", running.n);
        running = next;
    }
    drop(server.to.take());
    let _ = server.child.wait();
    playground.assert_quiet("staggered calls");
}

#[test]
fn staggered_calls_as_root() {
    staggered(Who::Root);
}

#[test]
fn staggered_calls_as_an_ordinary_user() {
    staggered(Who::User);
}
