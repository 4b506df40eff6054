//! Processes and threads: how many at once.

use super::Ending::{AnyOf, Fails, Says};
use super::{CALL, Call};

/// Held to twenty processes.
const TWENTY: Call = Call {
    promises: "P16",
    more: r#"{"limits":{"processes":20}}"#,
    ends: Fails("ResourceLimitError", "processes"),
    sampled: Some(AnyOf(&[Fails("ResourceLimitError", "processes"), Fails("ScriptError", "code 1")])),
    ..CALL
};

pub const PROCESSES: &[Call] = &[
    Call {
        name: "forty children of twenty",
        wall: "limits",
        control: Some(r#"{"children":40}"#),
        script: "n = 0\nfor _ in range(40):\n    if os.fork() == 0:\n        time.sleep(1.5)\n        os._exit(0)\n    n += 1\nsay({'children': n})\n",
        ..TWENTY
    },
    Call {
        name: "sixty threads of twenty",
        wall: "cgroup",
        control: Some(r#"{"threads":60}"#),
        script: "ts = [threading.Thread(target=time.sleep, args=(0.5,), daemon=True) for _ in range(60)]\n[t.start() for t in ts]\nsay({'threads': len(ts)})\n",
        ..TWENTY
    },
    Call {
        name: "fork bomb",
        wall: "cgroup",
        promises: "P14 P15 P16",
        more: r#"{"limits":{"processes":64},"execution":{"timeoutMs":1500}}"#,
        ends: AnyOf(&[Fails("TimeoutError", ""), Fails("ResourceLimitError", "")]),
        script: "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        ..CALL
    },
    Call {
        name: "zombies",
        wall: "namespaces",
        promises: "P16",
        ends: Says(r#"{"children":60}"#),
        control: Some(r#"{"children":60}"#),
        script: "for _ in range(60):\n    if os.fork() == 0:\n        os._exit(0)\ntime.sleep(0.1)\nsay({'children': 60})\n",
        ..CALL
    },
];
