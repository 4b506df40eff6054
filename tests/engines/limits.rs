//! Limits and endings: what a call may use, and how it ends.

use super::{CASE, Case, Control, Verdict};
use Verdict::{Denied, Ends, Refused, Says};

/// The same probe under the default limits.
const DEFAULTS: Control = Control::Granted {
    manifest: "{}",
    policy: "",
    ends: Says("ok"),
    changes: &[],
};
const LIMIT: Case = Case {
    layer: "cgroup",
    promises: "P16",
    control: DEFAULTS,
    ..CASE
};
const TIMED: Case = Case {
    layer: "namespaces",
    promises: "P15",
    held: Ends("TimeoutError", "timed out", "timed out"),
    ..LIMIT
};
const OUTPUT: Case = Case {
    layer: "limits",
    promises: "P16 P17",
    ..LIMIT
};
const VARIABLE: Case = Case {
    layer: "environment",
    promises: "P12",
    ..LIMIT
};
/// No grant decides how a tool ends: the control is a tool that does nothing of the kind.
const ENDING: Case = Case {
    layer: "namespaces",
    promises: "P23",
    control: Control::Quiet,
    ..CASE
};

const fn over(part: &'static str) -> Verdict {
    Ends("ResourceLimitError", part, part)
}

pub const LIMITS: &[Case] = &[
    Case {
        name: "memory over its limit",
        manifest: r#"{"limits":{"memoryBytes":67108864}}"#,
        probe: r#"{"do":"memory","n":268435456}"#,
        held: over("memoryBytes (67108864 bytes)"),
        ..LIMIT
    },
    Case {
        name: "memory the manifest asks for and the policy does not allow",
        promises: "P5 P16",
        manifest: r#"{"limits":{"memoryBytes":536870912}}"#,
        policy: "[limits]\nmemory_bytes = 67108864\n",
        probe: r#"{"do":"memory","n":268435456}"#,
        held: over("memoryBytes (67108864 bytes)"),
        control: Control::None("the row above"),
        ..LIMIT
    },
    Case {
        name: "CPU over its limit",
        // Little of what the probe takes, so that it gets as much on a busy machine too.
        manifest: r#"{"limits":{"cpuMs":150}}"#,
        probe: r#"{"do":"spin","n":4000}"#,
        held: over("cpuMs (150 ms)"),
        control: Control::None("the next row spins ten times as long under the default limits"),
        ..LIMIT
    },
    Case {
        name: "a busy loop at the time limit",
        manifest: r#"{"execution":{"timeoutMs":1500}}"#,
        probe: r#"{"do":"spin","n":4000}"#,
        ..TIMED
    },
    Case {
        name: "a sleep at the time limit",
        manifest: r#"{"execution":{"timeoutMs":1500}}"#,
        probe: r#"{"do":"sleep","n":4000}"#,
        ..TIMED
    },
    Case {
        name: "the policy's time limit",
        promises: "P5 P15",
        manifest: r#"{"execution":{"timeoutMs":20000}}"#,
        policy: "[limits]\ntimeout_ms = 1500\n",
        probe: r#"{"do":"sleep","n":4000}"#,
        control: Control::None("the row above"),
        ..TIMED
    },
    Case {
        name: "scratch over its limit",
        layer: "scratch",
        manifest: r#"{"limits":{"scratchBytes":1048576}}"#,
        probe: r#"{"do":"fill","path":"/tmp/fill","n":2097152}"#,
        held: over("scratchBytes (1048576 bytes)"),
        ..LIMIT
    },
    Case {
        name: "a file over its limit",
        layer: "limits",
        manifest: r#"{"limits":{"fileBytes":65536}}"#,
        probe: r#"{"do":"fill","path":"/tmp/fill","n":262144}"#,
        held: Denied("EFBIG", "EFBIG"),
        ..LIMIT
    },
    Case {
        name: "what is added to a live folder, over its limit",
        layer: "limits",
        manifest: r#"{"limits":{"writtenBytes":1048576},
            "securityContext":{"fileAccess":{"allowRead":["./**"],"allowWrite":["out/**"]}}}"#,
        probe: r#"{"do":"fill","path":"out/fill","n":2097152}"#,
        held: over("writtenBytes (1048576 bytes)"),
        changes: &["out", "out/fill"],
        control: Control::Granted {
            manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["./**"],"allowWrite":["out/**"]}}}"#,
            policy: "",
            ends: Says("ok"),
            changes: &["out", "out/fill"],
        },
        ..LIMIT
    },
    Case {
        name: "open files over their limit",
        layer: "limits",
        manifest: r#"{"limits":{"openFiles":32}}"#,
        probe: r#"{"do":"open","path":"/tmp","n":100}"#,
        // The WASI library has no such error number.
        held: Denied("EMFILE", "EIO"),
        ..LIMIT
    },
    Case {
        name: "output over its limit",
        manifest: r#"{"limits":{"outputBytes":1024}}"#,
        probe: r#"{"do":"flood","n":1023}"#,
        held: over("outputBytes (1024 bytes)"),
        control: Control::Granted {
            manifest: "{}",
            policy: "",
            ends: Verdict::Text(1023),
            changes: &[],
        },
        ..OUTPUT
    },
    Case {
        name: "output that never seems to end",
        probe: r#"{"do":"flood","n":4000000000}"#,
        held: over("outputBytes (1048576 bytes)"),
        control: Control::Quiet,
        ..OUTPUT
    },
    Case {
        name: "input over its limit",
        layer: "limits",
        manifest: r#"{"limits":{"inputBytes":1024}}"#,
        probe: r#"{"do":"nothing"}"#,
        padding: 4096,
        held: Refused("ParameterValidationError", "inputBytes (1024 bytes)"),
        ..LIMIT
    },
    Case {
        name: "a log over its limit loses its middle",
        layer: "limits",
        promises: "P17",
        manifest: r#"{"limits":{"logBytes":1024}}"#,
        probe: r#"{"do":"log","n":100000}"#,
        held: Verdict::Logs("[… 98976 bytes cut …]"),
        control: Control::None("the call itself goes on"),
        ..LIMIT
    },
    // Variables.
    Case {
        name: "a variable of the host",
        probe: r#"{"do":"variable","path":"SECRET"}"#,
        held: Denied("ENOENT", "ENOENT"),
        control: Control::Granted {
            manifest: r#"{"execution":{"env":{"SECRET":"ok"}}}"#,
            policy: "",
            ends: Says("ok"),
            changes: &[],
        },
        ..VARIABLE
    },
    Case {
        name: "HOME is scratch",
        probe: r#"{"do":"variable","path":"HOME"}"#,
        held: Says("/tmp"),
        control: Control::None("it is built in"),
        ..VARIABLE
    },
    Case {
        name: "PATH is not the host's",
        probe: r#"{"do":"variable","path":"PATH"}"#,
        held: Says("/usr/bin:/bin"),
        // A module starts no program.
        wasi: Some(Denied("ENOENT", "ENOENT")),
        control: Control::None("it is built in"),
        ..VARIABLE
    },
    // Endings.
    Case {
        name: "a crash",
        probe: r#"{"do":"crash"}"#,
        held: Ends(
            "ScriptError",
            "Script was killed by signal",
            "the module trapped: wasm trap: wasm `unreachable`",
        ),
        ..ENDING
    },
    Case {
        name: "a complaint on stderr, where that is failure",
        manifest: r#"{"execution":{"stderr":"error"}}"#,
        probe: r#"{"do":"log","n":5}"#,
        held: Ends(
            "ScriptError",
            "counts as failure: xxxxx",
            "counts as failure: xxxxx",
        ),
        control: DEFAULTS,
        ..ENDING
    },
    Case {
        name: "an entry point that is not there",
        manifest: r#"{"handler":{"entryPoint":"nothing"}}"#,
        probe: r#"{"do":"nothing"}"#,
        held: Ends("ScriptError", "nothing", "no export `nothing`"),
        control: DEFAULTS,
        ..ENDING
    },
];
