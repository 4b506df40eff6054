//! The init: a tool is an ordinary process, which its own signals end, and cannot harm pid 1 of its
//! call.

use crate::prelude::*;

/// Prints good JSON, then sends itself a signal. `kill` is what the language says for that.
const PYTHON_TOOL: &str = "import json, os, signal, sys\nwho = json.load(sys.stdin)['signal']\n\
    signal.pthread_sigmask(signal.SIG_SETMASK, [])\nprint(json.dumps(1), flush=True)\n\
    if who == 'SIGALRM': signal.setitimer(signal.ITIMER_REAL, 0.1); signal.pause()\n\
    if who: number = getattr(signal, who)\n\
    if who not in ('', 'SIGKILL', 'SIGSTOP'): signal.signal(number, signal.SIG_DFL)\n\
    if who: os.kill(os.getpid(), number)\n";
const NODE_TOOL: &str = "const {signal} = \
    JSON.parse(require('fs').readFileSync(0));\nconsole.log('1');\nif (signal) { \
    process.kill(process.pid, signal); setTimeout(() => {}, 5000); }\n";
const SHELL_TOOL: &str = "import json, subprocess, sys\nwho = json.load(sys.stdin)['signal']\n\
    done = subprocess.run(['/bin/sh', '-c', 'kill -%s $$' % who[3:] if who else ':'])\n\
    print(json.dumps(done.returncode))\n";

/// Sends signals to the init, and one to a process of its own.
const TO_INIT: &str = "import json, os, signal, subprocess, time\ncontrol = \
    subprocess.Popen(['/bin/sleep', '30'])\nfor number in [signal.SIGTERM, signal.SIGINT, \
    signal.SIGSTOP, signal.SIGSEGV, signal.SIGCHLD, signal.SIGKILL]:\n\x20   os.kill(1, \
    number)\nos.kill(control.pid, signal.SIGKILL)\ntime.sleep(0.2)\nstate = 'R'\n\
    while state == 'R': state = open('/proc/1/stat').read().rsplit(')', 1)[1].split()[0]\n\
    print(json.dumps([control.wait(), state]))\n";
const FORKS: &str = "import json, os, time\nmade = 0\ntry:\n    while made < 50:\n        \
    if os.fork() == 0: os.close(1); os.close(2); time.sleep(5); os._exit(0)\n        \
    made += 1\nexcept OSError: pass\nprint(json.dumps(made))\n";

#[test]
fn signals_end_a_tool_and_not_its_init_which_takes_no_place() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let tools = [
            ("own-signal", "python", PYTHON_TOOL),
            ("node-signal", "nodejs", NODE_TOOL),
            ("bun-signal", "bun", NODE_TOOL),
        ];
        let tools: Vec<_> = tools
            .into_iter()
            .filter(|(_, language, _)| has(language, 1))
            .collect();
        let others = [
            ("shell", "python", SHELL_TOOL),
            ("to-init", "python", TO_INIT),
        ];
        for (name, language, script) in tools.iter().chain(&others) {
            playground.tool(name, language, script, json!({}));
        }
        playground.tool("ten", "python", FORKS, json!({"limits": {"processes": 10}}));
        playground.without_breaker();
        playground.settle();
        playground.expect("esc:to-init", "{}", "ok [-9, \"S\"]");
        playground.assert_quiet("signals to the init");
        // `processes` counts what the tool has: itself and nine more.
        playground.expect("esc:ten", "{}", "ok 9");
        let mut server = Server::start(&playground);
        let mut call = |tool: &str, signal: &str| {
            server.called(&format!("esc:{tool}"), json!({"signal": signal}))
        };
        for (tool, ..) in tools {
            assert_eq!(words(&call(tool, "")), "1", "{tool}, the control");
            let all = [
                "SIGSEGV", "SIGABRT", "SIGALRM", "SIGTERM", "SIGKILL", "SIGUSR1", "SIGXCPU",
                "SIGHUP",
            ];
            let few =
                |signal: &&str| tool == "own-signal" || ["SIGTERM", "SIGKILL"].contains(signal);
            for signal in all.into_iter().filter(few) {
                let ended = call(tool, signal);
                assert_eq!(
                    kind(&ended),
                    "ScriptError",
                    "{who:?} {tool} {signal}: {ended}"
                );
                assert!(
                    words(&ended).contains(signal),
                    "{who:?} {tool} {signal}: {ended}"
                );
            }
        }
        assert_eq!(words(&call("shell", "SIGTERM")), "-15", "{who:?}");
    }
    let mut bare = Command::new(PYTHON);
    bare.args(["-c", FORKS]);
    assert_eq!(finish(bare, b"").out, 50, "the control");
}

/// Two hosts in pid namespaces of their own see one cgroup hierarchy, and none of the other's
/// processes.
#[test]
fn hosts_in_other_pid_namespaces_leave_each_others_groups_alone() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = groups
        .lines()
        .find_map(|line| line.split_once(":memory:"))
        .map_or("", |(_, group)| group);
    let memory = Path::new("/sys/fs/cgroup/memory")
        .join(own.trim_start_matches('/'))
        .join("toolhost");
    if !Who::Root.possible() || !memory.is_dir() {
        return skipped(1, "groups of one hierarchy: it needs root, and cgroup v1");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    playground.tool("good", "python", "print(1)\n", json!({}));
    playground.settle();
    let mut first = Server::start(&playground);
    // The control: what a dead host left.
    let leftover = memory.join(format!("{}-1-1", i32::MAX));
    for round in 0..3 {
        fs::create_dir(&leftover).unwrap();
        let answer = first.called("esc:good", json!({"n": round}));
        assert_eq!(
            answer["result"]["isError"],
            json!(false),
            "round {round}: {answer}"
        );
        let host = playground.host();
        let mut other = playground.outside("/usr/bin/unshare");
        other
            .args(["--pid", "--fork", "--mount-proc", "--"])
            .arg(host.get_program())
            .args(host.get_args());
        other.args(["call", "esc:good", "--json", "--input", "{}"]);
        other.envs(
            host.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let ended = finish(other, b"");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!leftover.exists(), "round {round}: it sweeps");
    }
}

/// The first instructions of a program, an "interpreter" here, read which program pid 1 runs: ours
/// runs nameless.
#[test]
fn a_tool_begins_after_its_init() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let program = playground.path("bin/python3.11");
        let mut compiler = Command::new("cc");
        compiler
            .args([
                "-O1",
                "-static",
                "-nostdlib",
                "-fno-stack-protector",
                "-x",
                "c",
                "-o",
            ])
            .args([&program]);
        compiler.arg(repository("tests/escapes/first.c"));
        assert_eq!(finish(compiler, b"").code, Some(0));
        for (name, observe) in [("plain", false), ("recorded", true)] {
            playground.tool(name, "python", "", json!({}));
            let named =
                format!("[runtimes]\npython = {{ path = {program:?}, why = \"a test\" }}\n");
            playground.policy(
                name,
                &format!("esc:{name}"),
                &format!("observe = {observe}\n{named}"),
            );
        }
        playground.settle();
        let outside = finish(playground.outside(&program.to_string_lossy()), b"");
        assert_ne!(
            outside.out, "pid 1: ",
            "the control: pid 1 out here has a name"
        );
        let mut server = Server::start(&playground);
        for round in 0..40 {
            for name in ["plain", "recorded"] {
                let seen = server.called(&format!("esc:{name}"), json!({}));
                assert_eq!(
                    words(&seen),
                    "pid 1: ",
                    "{who:?} {name}, round {round}: {seen}"
                );
            }
        }
    }
}
