//! CPU time and wall time.

use super::Ending::{AnyOf, Fails, Says};
use super::{CALL, Call};

/// Held to 300 ms.
const MS_300: Call = Call {
    wall: "cgroup",
    promises: "P16",
    more: r#"{"limits":{"cpuMs":300}}"#,
    ends: Fails("ResourceLimitError", "cpuMs"),
    control: Some(r#"{"cpu":"spent"}"#),
    ..CALL
};

pub const TIME: &[Call] = &[
    Call {
        name: "busy children",
        script: "for _ in range(2):\n    if os.fork() == 0:\n        while time.process_time() < 0.8:\n            pass\n        os._exit(0)\n[os.wait() for _ in range(2)]\nsay({'cpu': 'spent'})\n",
        ..MS_300
    },
    Call {
        name: "many short children",
        script: "for _ in range(30):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.04:\n            pass\n        os._exit(0)\n    os.waitpid(p, 0)\nsay({'cpu': 'spent'})\n",
        ..MS_300
    },
    Call {
        name: "short children that nobody waits for",
        sampled: Some(AnyOf(&[Says(r#"{"cpu":"spent"}"#), Fails("ResourceLimitError", "cpuMs")])),
        script: "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(150):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.008:\n            pass\n        os._exit(0)\n    try:\n        os.waitpid(p, 0)\n    except ChildProcessError:\n        pass\nsay({'cpu': 'spent'})\n",
        ..MS_300
    },
    Call {
        name: "output that never ends is no sign of life",
        wall: "namespaces",
        promises: "P15",
        more: r#"{"execution":{"timeoutMs":500}}"#,
        ends: Fails("TimeoutError", "timed out"),
        script: "while True:\n    sys.stdout.write(' ')\n    sys.stdout.flush()\n    time.sleep(0.01)\n",
        ..CALL
    },
    Call {
        name: "every signal ignored",
        wall: "namespaces",
        promises: "P14 P15",
        more: r#"{"execution":{"timeoutMs":400}}"#,
        ends: Fails("TimeoutError", "timed out"),
        script: "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n",
        ..CALL
    },
];
