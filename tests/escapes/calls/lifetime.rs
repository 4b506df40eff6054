//! Lifetime: what tries to outlive its call, or dies in it.

use super::Call;

pub const LIFETIME: &[Call] = &[
    call!(
        "grandchild holds stdout",
        "namespaces",
        "P14 P15",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        "",
        "if os.fork() == 0:\n    time.sleep(60)\nsay({'done': 1})\n"
    ),
    call!(
        "daemon",
        "namespaces",
        "P14",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        "",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2):\n            os.close(fd)\n        time.sleep(60)\n    os._exit(0)\nos.wait()\nsay({'done': 1})\n"
    ),
    call!(
        "parent is stopped",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        r#"ok {"done":1}|TimeoutError: timed out"#,
        "",
        "",
        "if os.fork() == 0:\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)\ntime.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "kills itself",
        "namespaces",
        "P14 P23",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        "ScriptError: ",
        "",
        "",
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    ),
    call!(
        "kills its group",
        "namespaces",
        "P9",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        r#"ok {"done":1}|ScriptError: "#,
        "",
        "",
        "os.kill(0, signal.SIGKILL)\nsay({'done': 1})\n"
    ),
    call!("segfault", "namespaces", "P23", "{}", 0, "ScriptError: SIGSEGV", "", "", "ctypes.string_at(8)\n"),
    call!(
        "many children at the deadline",
        "namespaces",
        "P14 P15",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor _ in range(50):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\ntime.sleep(60)\n"
    ),
];
