//! Streams: input and output that are large, closed or never read.

use super::Call;

pub const STREAMS: &[Call] = &[
    call!(
        "input never read",
        "limits",
        "P15",
        "{}",
        300_000,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "time.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "input closed at once",
        "limits",
        "P15",
        "{}",
        900_000,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "os.close(0)\ntime.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "large input and large output",
        "limits",
        "P15",
        "{}",
        900_000,
        r#"ok {"length":900000}"#,
        "",
        r#"{"length":900000}"#,
        "os.write(2, b'x' * 200000)\nn = len(json.load(sys.stdin)['padding'])\nsay({'length': n})\n"
    ),
    call!(
        "stdout closed early",
        "limits",
        "P15",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(0.3)\nos._exit(0)\n"
    ),
    call!(
        "stdout closed, never ends",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":500}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(60)\n"
    ),
];
