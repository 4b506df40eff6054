//! CPU time and wall time.

use super::Call;

pub const TIME: &[Call] = &[
    call!(
        "busy children",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        "",
        r#"{"cpu":"spent"}"#,
        "for _ in range(2):\n    if os.fork() == 0:\n        while time.process_time() < 1.5:\n            pass\n        os._exit(0)\n[os.wait() for _ in range(2)]\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "many short children",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        "",
        r#"{"cpu":"spent"}"#,
        "for _ in range(60):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.04:\n            pass\n        os._exit(0)\n    os.waitpid(p, 0)\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "short children that nobody waits for",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        r#"ok {"cpu":"spent"}|ResourceLimitError: cpuMs"#,
        r#"{"cpu":"spent"}"#,
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(300):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.008:\n            pass\n        os._exit(0)\n    try:\n        os.waitpid(p, 0)\n    except ChildProcessError:\n        pass\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "output that never ends is no sign of life",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":500}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "while True:\n    sys.stdout.write(' ')\n    sys.stdout.flush()\n    time.sleep(0.01)\n"
    ),
    call!(
        "every signal ignored",
        "namespaces",
        "P14 P15",
        r#"{"execution":{"timeoutMs":400}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    ),
];
