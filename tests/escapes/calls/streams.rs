//! Streams: input and output that are large, closed or never read.

use super::Ending::{Fails, Says};
use super::{CALL, Call};

/// Says that it is done.
const DONE: Call =
    Call { wall: "limits", promises: "P15", ends: Says(r#"{"done":1}"#), control: Some(r#"{"done":1}"#), ..CALL };

pub const STREAMS: &[Call] = &[
    Call { name: "input never read", input: 300_000, script: "time.sleep(0.2)\nsay({'done': 1})\n", ..DONE },
    Call {
        name: "input closed at once",
        input: 900_000,
        script: "os.close(0)\ntime.sleep(0.2)\nsay({'done': 1})\n",
        ..DONE
    },
    Call {
        name: "large input and large output",
        wall: "limits",
        promises: "P15",
        input: 900_000,
        ends: Says(r#"{"length":900000}"#),
        control: Some(r#"{"length":900000}"#),
        script: "os.write(2, b'x' * 200000)\nn = len(json.load(sys.stdin)['padding'])\nsay({'length': n})\n",
        ..CALL
    },
    Call {
        name: "stdout closed early",
        script: "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(0.3)\nos._exit(0)\n",
        ..DONE
    },
    Call {
        name: "stdout closed, never ends",
        wall: "namespaces",
        promises: "P15",
        more: r#"{"execution":{"timeoutMs":500}}"#,
        ends: Fails("TimeoutError", "timed out"),
        script: "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(60)\n",
        ..CALL
    },
];
