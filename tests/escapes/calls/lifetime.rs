//! Lifetime: what tries to outlive its call, or dies in it.

use super::Ending::{AnyOf, Fails, Says};
use super::{CALL, Call};

pub const LIFETIME: &[Call] = &[
    Call {
        name: "grandchild holds stdout",
        wall: "namespaces",
        promises: "P14 P15",
        ends: Says(r#"{"done":1}"#),
        script: "if os.fork() == 0:\n    time.sleep(60)\nsay({'done': 1})\n",
        ..CALL
    },
    Call {
        name: "daemon",
        wall: "namespaces",
        promises: "P14",
        ends: Says(r#"{"done":1}"#),
        script: "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2):\n            os.close(fd)\n        time.sleep(60)\n    os._exit(0)\nos.wait()\nsay({'done': 1})\n",
        ..CALL
    },
    Call {
        name: "parent is stopped",
        wall: "namespaces",
        promises: "P15",
        more: r#"{"execution":{"timeoutMs":900}}"#,
        ends: AnyOf(&[Says(r#"{"done":1}"#), Fails("TimeoutError", "timed out")]),
        script: "if os.fork() == 0:\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)\ntime.sleep(0.2)\nsay({'done': 1})\n",
        ..CALL
    },
    Call {
        name: "kills itself",
        wall: "namespaces",
        promises: "P14 P23",
        more: r#"{"execution":{"timeoutMs":900}}"#,
        ends: Fails("ScriptError", ""),
        script: "os.kill(os.getpid(), signal.SIGKILL)\n",
        ..CALL
    },
    Call {
        name: "kills its group",
        wall: "namespaces",
        promises: "P9",
        more: r#"{"execution":{"timeoutMs":900}}"#,
        ends: AnyOf(&[Says(r#"{"done":1}"#), Fails("ScriptError", "")]),
        script: "os.kill(0, signal.SIGKILL)\nsay({'done': 1})\n",
        ..CALL
    },
    Call {
        name: "segfault",
        wall: "namespaces",
        promises: "P23",
        ends: Fails("ScriptError", "SIGSEGV"),
        script: "ctypes.string_at(8)\n",
        ..CALL
    },
    Call {
        name: "many children at the deadline",
        wall: "namespaces",
        promises: "P14 P15",
        more: r#"{"execution":{"timeoutMs":900}}"#,
        ends: Fails("TimeoutError", "timed out"),
        script: "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor _ in range(50):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\ntime.sleep(60)\n",
        ..CALL
    },
];
