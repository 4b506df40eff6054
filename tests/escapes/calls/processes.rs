//! Processes and threads: how many at once.

use super::Call;

pub const PROCESSES: &[Call] = &[
    call!(
        "forty children of twenty",
        "limits",
        "P16",
        r#"{"limits":{"processes":20}}"#,
        0,
        "ResourceLimitError: processes",
        "ResourceLimitError: processes|ScriptError: code 1",
        r#"{"children":40}"#,
        "n = 0\nfor _ in range(40):\n    if os.fork() == 0:\n        time.sleep(1.5)\n        os._exit(0)\n    n += 1\nsay({'children': n})\n"
    ),
    call!(
        "sixty threads of twenty",
        "cgroup",
        "P16",
        r#"{"limits":{"processes":20}}"#,
        0,
        "ResourceLimitError: processes",
        "ResourceLimitError: processes|ScriptError: code 1",
        r#"{"threads":60}"#,
        "ts = [threading.Thread(target=time.sleep, args=(0.5,), daemon=True) for _ in range(60)]\n[t.start() for t in ts]\nsay({'threads': len(ts)})\n"
    ),
    call!(
        "fork bomb",
        "cgroup",
        "P14 P15 P16",
        r#"{"limits":{"processes":64},"execution":{"timeoutMs":1500}}"#,
        0,
        "TimeoutError: |ResourceLimitError: ",
        "",
        "",
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    ),
    call!(
        "zombies",
        "namespaces",
        "P16",
        r#"{}"#,
        0,
        r#"ok {"children":60}"#,
        "",
        r#"{"children":60}"#,
        "for _ in range(60):\n    if os.fork() == 0:\n        os._exit(0)\ntime.sleep(0.1)\nsay({'children': 60})\n"
    ),
];
