//! Refusals: calls that end before any process of the tool starts, for what the manifest asks, for what the policy
//! or the machine says, or for what lies in the folder.

use super::{CASE, Case, Control, Verdict};
use crate::harness::{Playground, is_root};
use Verdict::{Refused, Says};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

fn second_name(playground: &Playground, own: &Path) -> bool {
    fs::hard_link(playground.path("secret/secret.txt"), own.join("out/innocent.txt")).unwrap();
    true
}

fn mount_below(_: &Playground, own: &Path) -> bool {
    let inner = own.join("data/inner");
    fs::create_dir_all(&inner).unwrap();
    is_root() && Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).status().is_ok_and(|s| s.success())
}

fn unmount(own: &Path) {
    let _ = Command::new("umount").arg(own.join("data/inner")).status();
}

fn folder_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::remove_dir_all(own.join("data")).unwrap();
    symlink(playground.path("secret"), own.join("data")).is_ok()
}

fn component_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::rename(own.join("deep"), own.join("deep-real")).unwrap();
    fs::create_dir_all(playground.path("secret/inner")).unwrap();
    symlink(playground.path("secret"), own.join("deep")).is_ok()
}

fn out_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::remove_dir_all(own.join("out")).unwrap();
    symlink(playground.path("secret"), own.join("out")).is_ok()
}

const READ_DATA: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["self","data/**"]}}}"#;
const WRITE_OUT: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["self"],"allowWrite":["out/**"]}}}"#;

/// What lies in the folder: the same tool ran before it was spoilt.
const SPOILT: Case = Case { promises: "P2", control: Control::Unspoilt, ..CASE };
/// What is asked for and not allowed: a tool that does not ask runs.
const TOO_MUCH: Case = Case { promises: "P3 P5", control: Control::Quiet, ..CASE };
/// What this host does not have.
const MISSING: Case = Case { promises: "P5", control: Control::Quiet, ..CASE };
/// A manifest that does not load: its tool does not exist, and `check` says why.
const UNLOADED: Case = Case { promises: "P5", control: Control::Quiet, ..CASE };

pub const REFUSALS: &[Case] = &[
    Case {
        name: "hard link in a write grant",
        manifest: WRITE_OUT,
        spoil: second_name,
        held: Refused("SecurityError", 3, "out/innocent.txt: has more than one hard link"),
        ..SPOILT
    },
    Case {
        name: "mount point in a read grant",
        manifest: READ_DATA,
        spoil: mount_below,
        mend: unmount,
        held: Refused("SecurityError", 3, "data/inner is mounted inside the granted"),
        ..SPOILT
    },
    Case {
        name: "read grant is a link",
        manifest: READ_DATA,
        spoil: folder_is_a_link,
        held: Refused("SecurityError", 3, "/data: is a symbolic link"),
        ..SPOILT
    },
    Case {
        name: "write grant is a link",
        promises: "P2 P3",
        manifest: WRITE_OUT,
        spoil: out_is_a_link,
        held: Refused("SecurityError", 3, "/out: is a symbolic link"),
        ..SPOILT
    },
    Case {
        name: "component of a grant is a link",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["self","deep/inner/**"]}}}"#,
        spoil: component_is_a_link,
        held: Refused("SecurityError", 3, "deep/inner: a component is a symbolic link"),
        ..SPOILT
    },
    Case {
        name: "more than policy allows",
        promises: "P5",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["self","{base}/secret/**"]}}}"#,
        held: Refused("SecurityError", 3, "no entry of [files] read in policy `engines`"),
        ..TOO_MUCH
    },
    Case {
        name: "a policy that allows nothing",
        promises: "P5",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["./**"]}}}"#,
        policy: "[limits]\ntimeout_ms = 30000\n[files]\nread = []\n",
        held: Refused("SecurityError", 3, "read ./**: no entry of [files] read in policy"),
        ..TOO_MUCH
    },
    Case {
        name: "the whole machine",
        promises: "P5",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["/**"]}}}"#,
        held: Refused("SecurityError", 3, "all of /, which is never granted"),
        ..TOO_MUCH
    },
    Case {
        name: "/proc asked for",
        promises: "P5 P9",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["/proc/**"]}}}"#,
        held: Refused("SecurityError", 3, "nothing below /proc is ever granted"),
        ..TOO_MUCH
    },
    Case {
        name: "own folder to write",
        manifest: r#"{"securityContext":{"fileAccess":{"allowWrite":["./**"]}}}"#,
        held: Refused("SecurityError", 3, "the tool's own "),
        ..TOO_MUCH
    },
    Case {
        name: "own script to write",
        manifest: r#"{"securityContext":{"fileAccess":{"allowWrite":["{file}"]}}}"#,
        held: Refused("SecurityError", 3, "the tool's own "),
        ..TOO_MUCH
    },
    Case {
        name: "the policies to write",
        manifest: r#"{"securityContext":{"fileAccess":{"allowWrite":["{base}/sandbox-policies/**"]}}}"#,
        held: Refused("SecurityError", 3, "a policy, a manifest, a script or a file of this host could be written"),
        ..TOO_MUCH
    },
    Case {
        name: "modules to write",
        promises: "P3",
        manifest: r#"{"securityContext":{"fileAccess":{"allowWrite":["node_modules/**"]}}}"#,
        held: Refused("SecurityError", 3, "what lies in `node_modules`"),
        ..TOO_MUCH
    },
    Case {
        name: "a capability nobody built yet",
        promises: "P5",
        manifest: r#"{"securityContext":{"requiredCapabilities":["long-running"]}}"#,
        held: Refused("CapabilityError", 4, "the capability 'long-running': not built yet"),
        ..MISSING
    },
    Case {
        name: "a named host",
        wall: "network",
        promises: "P6 P7 P8",
        manifest: r#"{"securityContext":{"networkAccess":{"allowHosts":["example.org"]}}}"#,
        held: Refused("SecurityError", 3, "reach example.org: no entry of [network] hosts in policy"),
        ..TOO_MUCH
    },
    Case {
        name: "a capability this host does not have",
        manifest: r#"{"securityContext":{"requiredCapabilities":["gpu"]}}"#,
        held: Refused("CapabilityError", 4, "the capability 'gpu': `capabilities`"),
        ..MISSING
    },
    // The one thing a module cannot do and a script can.
    Case {
        name: "processes of its own",
        wall: "namespaces",
        promises: "P5 P16",
        manifest: r#"{"securityContext":{"requiredCapabilities":["subprocess"]}}"#,
        probe: r#"{"do":"process"}"#,
        held: Says("ok"),
        wasi: Some(Refused("CapabilityError", 4, "the capability 'subprocess': a WASI module starts no processes")),
        ..MISSING
    },
    Case {
        name: "processes of its own, not asked for",
        wall: "namespaces",
        promises: "P16",
        probe: r#"{"do":"process"}"#,
        held: Says("ok"),
        wasi: Some(Verdict::Denied("ENOSYS", "ENOSYS")),
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "exact counting, where nothing counts exactly",
        wall: "cgroup",
        promises: "P16 P29",
        policy: "require = [\"cgroup\"]\n[files]\nread = [{ path = \"./**\", why = \"t\" }]\n",
        held: Verdict::WhereCounted("ok", "CapabilityError", 4, "exact accounting"),
        ..MISSING
    },
    Case {
        name: "a misspelt grant",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRaed":["./**"]}}}"#,
        held: Verdict::Unloaded("/securityContext/fileAccess/allowRaed"),
        ..UNLOADED
    },
    Case {
        name: "a grant that leads out",
        promises: "P2 P5",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["../other/**"]}}}"#,
        held: Verdict::Unloaded("/securityContext/fileAccess/allowRead/0"),
        ..UNLOADED
    },
    Case {
        name: "a field of one engine in securityContext",
        manifest: r#"{"securityContext":{"wasi":{"preopens":["/"]}}}"#,
        held: Verdict::Unloaded("/securityContext/wasi"),
        ..UNLOADED
    },
    Case {
        name: "a variable that steers an interpreter",
        wall: "environment",
        promises: "P5 P12",
        manifest: r#"{"execution":{"env":{"PYTHONPATH":"/tmp"}}}"#,
        held: Verdict::Unloaded("/execution/env/PYTHONPATH"),
        ..UNLOADED
    },
];
