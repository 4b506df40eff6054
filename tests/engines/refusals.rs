//! Refusals: calls that end before any process of the tool starts, for what the manifest asks, for
//! what the policy or the machine says, or for what lies in the folder.

use super::{CASE, Case, Control, Verdict};
use crate::prelude::*;
use Verdict::{Refused, Says};

fn second_name(playground: &Playground, own: &Path) -> bool {
    fs::hard_link(
        playground.path("secret/secret.txt"),
        own.join("out/innocent.txt"),
    )
    .unwrap();
    true
}

fn mount_below(_: &Playground, own: &Path) -> bool {
    let inner = own.join("deep/inner");
    is_root()
        && Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&inner)
            .status()
            .is_ok_and(|s| s.success())
        && fs::write(inner.join("in.txt"), "of another file system\n").is_ok()
}

fn unmount(own: &Path) {
    let _ = Command::new("umount").arg(own.join("deep/inner")).status();
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
const READ_BELOW: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["self","deep/**"]}}}"#;
const READ_DEEP: &str =
    r#"{"securityContext":{"fileAccess":{"allowRead":["self","deep/inner/**"]}}}"#;
const WRITE_OUT: &str =
    r#"{"securityContext":{"fileAccess":{"allowRead":["self"],"allowWrite":["out/**"]}}}"#;

/// What is requested and not allowed: a tool that does not request it runs.
const REQUESTED: Case = Case {
    promises: "P5",
    control: Control::Quiet,
    ..CASE
};

/// What lies in the folder: the same tool ran before it was spoilt.
const fn spoilt(
    name: &'static str,
    manifest: &'static str,
    spoil: fn(&Playground, &Path) -> bool,
    why: &'static str,
) -> Case {
    Case {
        name,
        promises: "P2",
        manifest,
        spoil,
        held: security(why),
        control: Control::Unspoilt,
        ..CASE
    }
}

const fn security(why: &'static str) -> Verdict {
    Refused("SecurityError", why)
}

/// A manifest that requests more than any policy, or this one, allows.
const fn too_much(
    name: &'static str,
    promises: &'static str,
    manifest: &'static str,
    why: &'static str,
) -> Case {
    Case {
        name,
        promises,
        manifest,
        held: security(why),
        ..REQUESTED
    }
}

/// A manifest that does not load: its tool does not exist, and `check` says where it is wrong.
const fn unloaded(
    name: &'static str,
    promises: &'static str,
    manifest: &'static str,
    place: &'static str,
) -> Case {
    Case {
        name,
        promises,
        manifest,
        held: Verdict::Unloaded(place),
        ..REQUESTED
    }
}

/// A manifest with these file grants: `Read` or `Write`, and a path.
macro_rules! files {
    ($access:ident $path:literal) => {
        concat!(
            "{\"securityContext\":{\"fileAccess\":{\"allow",
            stringify!($access),
            "\":[\"",
            $path,
            "\"]}}}"
        )
    };
}

/// A manifest that requires a capability.
macro_rules! needs {
    ($capability:literal) => {
        concat!(
            "{\"securityContext\":{\"requiredCapabilities\":[\"",
            $capability,
            "\"]}}"
        )
    };
}

pub const REFUSALS: &[Case] = &[
    // Not refused: what could lead outside is shown read-only, or left out.
    Case {
        name: "hard link in a write grant",
        promises: "P2 P4",
        manifest: WRITE_OUT,
        spoil: second_name,
        probe: r#"{"do":"write","path":"out/innocent.txt"}"#,
        held: Verdict::Denied("EROFS", "EIO"),
        control: Control::Granted {
            manifest: WRITE_OUT,
            policy: "",
            ends: Says("ok"),
            changes: &["out", "out/innocent.txt"],
        },
        ..CASE
    },
    Case {
        name: "mount point in a read grant",
        promises: "P2",
        manifest: READ_BELOW,
        spoil: mount_below,
        restore: unmount,
        probe: r#"{"do":"read","path":"deep/inner/in.txt"}"#,
        held: Verdict::Denied("ENOENT", "ENOENT"),
        control: Control::Unspoilt,
        ..CASE
    },
    spoilt(
        "read grant is a link",
        READ_DATA,
        folder_is_a_link,
        "/data: is a symbolic link",
    ),
    Case {
        promises: "P2 P3",
        ..spoilt(
            "write grant is a link",
            WRITE_OUT,
            out_is_a_link,
            "/out: is a symbolic link",
        )
    },
    spoilt(
        "component of a grant is a link",
        READ_DEEP,
        component_is_a_link,
        "deep/inner: a component is a symbolic link",
    ),
    too_much(
        "more than policy allows",
        "P5",
        r#"{"securityContext":{"fileAccess":{"allowRead":["self","{base}/secret/**"]}}}"#,
        "no entry of [files] read in policy `engines`",
    ),
    Case {
        policy: "[limits]\ntimeout_ms = 30000\n[files]\nread = []\n",
        ..too_much(
            "a policy that allows nothing",
            "P5",
            files!(Read "./**"),
            "read ./**: no entry of [files] read in policy",
        )
    },
    too_much(
        "the whole machine",
        "P5",
        files!(Read "/**"),
        "all of /, which is never granted",
    ),
    too_much(
        "/proc asked for",
        "P5 P9",
        files!(Read "/proc/**"),
        "nothing below /proc is ever granted",
    ),
    too_much(
        "own folder to write",
        "P3 P5",
        files!(Write "./**"),
        "the tool's own ",
    ),
    too_much(
        "own script to write",
        "P3 P5",
        files!(Write "{file}"),
        "the tool's own ",
    ),
    too_much(
        "the policies to write",
        "P3 P5",
        files!(Write "{base}/sandbox-policies/**"),
        "a policy, a manifest, a script or a file of this host could be written",
    ),
    too_much(
        "modules to write",
        "P3",
        files!(Write "node_modules/**"),
        "run or obey `node_modules`",
    ),
    Case {
        layer: "network",
        ..too_much(
            "a named host",
            "P6 P7 P8",
            r#"{"securityContext":{"networkAccess":{"allowHosts":["example.org"]}}}"#,
            "reach example.org: no entry of [network] hosts in policy",
        )
    },
    // What this host does not have.
    Case {
        name: "a capability nobody built yet",
        manifest: needs!("long-running"),
        held: Refused(
            "CapabilityError",
            "the capability 'long-running': not built yet",
        ),
        ..REQUESTED
    },
    Case {
        name: "a capability this host does not have",
        manifest: needs!("gpu"),
        held: Refused("CapabilityError", "the capability 'gpu': `capabilities`"),
        ..REQUESTED
    },
    // The one thing a module cannot do and a script can.
    Case {
        name: "processes of its own",
        layer: "namespaces",
        promises: "P5 P16",
        manifest: needs!("subprocess"),
        probe: r#"{"do":"process"}"#,
        held: Says("ok"),
        wasi: Some(Refused(
            "CapabilityError",
            "the capability 'subprocess': a WASI module starts no processes",
        )),
        ..REQUESTED
    },
    Case {
        name: "processes of its own, not asked for",
        layer: "namespaces",
        promises: "P16",
        probe: r#"{"do":"process"}"#,
        held: Says("ok"),
        wasi: Some(Verdict::Denied("ENOSYS", "ENOSYS")),
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "exact counting, where nothing counts exactly",
        layer: "cgroup",
        promises: "P16 P29",
        policy: "require = [\"cgroup\"]\n[files]\nread = [{ path = \"./**\", why = \"t\" }]\n",
        held: Verdict::WhereCounted("ok", "CapabilityError", "exact accounting"),
        ..REQUESTED
    },
    unloaded(
        "a misspelt grant",
        "P5",
        r#"{"securityContext":{"fileAccess":{"allowRaed":["./**"]}}}"#,
        "/securityContext/fileAccess/allowRaed",
    ),
    unloaded(
        "a grant that leads out",
        "P2 P5",
        files!(Read "../other/**"),
        "/securityContext/fileAccess/allowRead/0",
    ),
    unloaded(
        "a field of one engine in securityContext",
        "P5",
        r#"{"securityContext":{"wasi":{"preopens":["/"]}}}"#,
        "/securityContext/wasi",
    ),
    Case {
        layer: "environment",
        ..unloaded(
            "a variable that steers an interpreter",
            "P5 P12",
            r#"{"execution":{"env":{"PYTHONPATH":"/tmp"}}}"#,
            "/execution/env/PYTHONPATH",
        )
    },
];
