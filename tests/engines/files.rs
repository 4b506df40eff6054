//! Files: what is read, written and published, and what is not there.

use super::{CASE, Case, Control, Verdict};
use crate::prelude::*;
use Verdict::{Denied, Ends, Says};

const READ_ALL: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["./**"]}}}"#;
const READ_NONE: &str = r#"{"securityContext":{"fileAccess":{"allowRead":[]}}}"#;
const READ_SELF: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["self"]}}}"#;
const READ_DATA: &str = r#"{"securityContext":{"fileAccess":{"allowRead":["self","data/**"]}}}"#;
const WRITE_OUT: &str =
    r#"{"securityContext":{"fileAccess":{"allowRead":["./**"],"allowWrite":["out/**"]}}}"#;
const STAGE_CSV: &str =
    r#"{"securityContext":{"fileAccess":{"allowRead":["self"],"allowWrite":["out/*.csv"]}}}"#;
const READ_SECRET: &str =
    r#"{"securityContext":{"fileAccess":{"allowRead":["self","{base}/secret/**"]}}}"#;
/// Allows the folder of the secret as well, which the other policies do not.
const SECRET_TOO: &str = "[files]\nread = [{ path = \"./**\", why = \"t\" }, { path = \
    \"{base}/secret/**\", why = \"t\" }]\n";
const LESS: &str = "mode = \"narrow\"\n[files]\nread = [{ path = \"./**\", why = \"t\" }]\n";
const NOTHING: &str = "[limits]\ntimeout_ms = 30000\n[files]\nread = []\n";

/// The control: the same probe under a policy that allows it.
const fn if_granted(manifest: &'static str, changes: &'static [&'static str]) -> Control {
    Control::Granted {
        manifest,
        policy: "",
        ends: Says("ok"),
        changes,
    }
}

/// A folder of the tool becomes a link to the folder of the secret, or a file to the secret.
fn link_to_folder(playground: &Playground, own: &Path) -> bool {
    fs::remove_dir_all(own.join("data/up")).unwrap();
    symlink(playground.path("secret"), own.join("data/up")).is_ok()
}

fn link_above(_: &Playground, own: &Path) -> bool {
    fs::remove_file(own.join("data/secret.txt")).unwrap();
    symlink("../../../secret/secret.txt", own.join("data/secret.txt")).is_ok()
}

/// An operation on a path of a read grant, and what it changes if the path may be written.
macro_rules! in_read_grant {
    ($name:literal, $deed:literal $(to $to:literal)?, $path:literal, [$($changed:literal),+]) => {
        Case {
            name: $name,
            promises: "P4",
            manifest: READ_ALL,
            probe: concat!("{\"do\":\"", $deed, "\",", $("\"to\":\"", $to, "\",",)? "\"path\":\"", $path, "\"}"),
            held: Denied("EROFS", "EPERM"),
            denials: ("", concat!("write ", $path, ": wasm: read-only; manifest")),
            control: if_granted(WRITE_OUT, &[$($changed),+]),
            ..CASE
        }
    };
}

/// The denial of a path in a granted folder. `$what`: an operation and a path.
macro_rules! forbidden {
    ($what:literal) => {
        concat!(
            $what,
            ": wasm: in a granted folder: a link or `..` leads out of it, the file's own rights \
             forbid it, or it would make a link; built-in"
        )
    };
}

pub const FILES: &[Case] = &[
    // Asking for less.
    Case {
        name: "nothing asked for",
        promises: "P1 P5",
        manifest: READ_NONE,
        ..CASE
    },
    Case {
        name: "only itself asked for",
        promises: "P1 P5",
        manifest: READ_SELF,
        ..CASE
    },
    Case {
        name: "scratch, with nothing asked for",
        promises: "P1 P18",
        manifest: READ_NONE,
        probe: r#"{"do":"write","path":"/tmp/new"}"#,
        ..CASE
    },
    Case {
        name: "a file beside the script, with nothing asked for",
        promises: "P1 P5",
        manifest: READ_NONE,
        probe: r#"{"do":"read","path":"private.txt"}"#,
        held: Denied("ENOENT", "ENOENT"),
        control: if_granted(READ_ALL, &[]),
        ..CASE
    },
    // Reading.
    Case {
        name: "a file outside of every grant",
        promises: "P1",
        probe: r#"{"do":"read","path":"{base}/secret/secret.txt"}"#,
        held: Denied("ENOENT", "{outside}"),
        denials: (
            "",
            "read {base}/secret/secret.txt: wasm: not granted; manifest",
        ),
        control: Control::Granted {
            manifest: READ_SECRET,
            policy: SECRET_TOO,
            ends: Says("ok"),
            changes: &[],
        },
        ..CASE
    },
    Case {
        name: "a folder outside of every grant",
        promises: "P1",
        probe: r#"{"do":"list","path":"{base}/secret"}"#,
        held: Denied("ENOENT", "{outside}"),
        denials: ("", "read {base}/secret: wasm: not granted; manifest"),
        control: Control::Granted {
            manifest: READ_SECRET,
            policy: SECRET_TOO,
            ends: Says("ok"),
            changes: &[],
        },
        ..CASE
    },
    Case {
        name: "a file beside the granted folder",
        promises: "P1 P2",
        manifest: READ_DATA,
        probe: r#"{"do":"read","path":"private.txt"}"#,
        held: Denied("ENOENT", "ENOENT"),
        denials: ("", "read private.txt: wasm: not granted; manifest"),
        control: if_granted(READ_ALL, &[]),
        ..CASE
    },
    Case {
        name: "no file at all, beside the granted folder",
        promises: "P1 P2",
        manifest: READ_DATA,
        probe: r#"{"do":"read","path":"nowhere.txt"}"#,
        held: Denied("ENOENT", "ENOENT"),
        denials: ("", "read nowhere.txt: wasm: not granted; manifest"),
        control: Control::None("nothing is there: the answer is that of the row above"),
        ..CASE
    },
    Case {
        name: "dot-dot out of the granted folder",
        promises: "P2",
        manifest: READ_DATA,
        probe: r#"{"do":"read","path":"data/../private.txt"}"#,
        held: Denied("ENOENT", "EPERM"),
        denials: ("", "read data/../private.txt: wasm: not granted; manifest"),
        control: if_granted(READ_ALL, &[]),
        ..CASE
    },
    Case {
        name: "a link to a folder outside",
        promises: "P2",
        manifest: READ_DATA,
        spoil: link_to_folder,
        probe: r#"{"do":"read","path":"data/up/secret.txt"}"#,
        held: Denied("ENOENT", "EPERM"),
        denials: ("", forbidden!("read data/up/secret.txt")),
        control: Control::Unspoilt,
        ..CASE
    },
    Case {
        name: "a link to a file outside",
        promises: "P2",
        manifest: READ_DATA,
        spoil: link_above,
        probe: r#"{"do":"read","path":"data/secret.txt"}"#,
        held: Denied("ENOENT", "EPERM"),
        denials: ("", forbidden!("read data/secret.txt")),
        control: Control::Unspoilt,
        ..CASE
    },
    Case {
        name: "a link that stays inside",
        promises: "P2",
        manifest: READ_DATA,
        probe: r#"{"do":"read","path":"data/near"}"#,
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "a file whose name was not asked for",
        promises: "P2",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["self","data/*.csv"]}}}"#,
        probe: r#"{"do":"read","path":"data/other.txt"}"#,
        held: Denied("ENOENT", "ENOENT"),
        denials: ("", "read data/other.txt: wasm: not granted; manifest"),
        control: if_granted(READ_DATA, &[]),
        ..CASE
    },
    Case {
        name: "a policy that narrows",
        promises: "P5",
        manifest: READ_SECRET,
        policy: LESS,
        probe: r#"{"do":"read","path":"{base}/secret/secret.txt"}"#,
        held: Denied("ENOENT", "{outside}"),
        denials: (
            "",
            "read {base}/secret/secret.txt: wasm: not granted; policy",
        ),
        control: Control::Granted {
            manifest: READ_SECRET,
            policy: SECRET_TOO,
            ends: Says("ok"),
            changes: &[],
        },
        ..CASE
    },
    Case {
        name: "a policy that allows nothing, and a tool that asks for nothing",
        promises: "P5",
        policy: NOTHING,
        probe: r#"{"do":"read","path":"private.txt"}"#,
        held: Denied("ENOENT", "ENOENT"),
        denials: ("", "read private.txt: wasm: not granted; manifest"),
        control: if_granted("{}", &[]),
        ..CASE
    },
    // Writing.
    in_read_grant!(
        "a file of a read grant rewritten",
        "write",
        "out/kept.txt",
        ["out/kept.txt"]
    ),
    in_read_grant!(
        "a file made in a read grant",
        "write",
        "out/new.txt",
        ["out", "out/new.txt"]
    ),
    in_read_grant!(
        "a file of a read grant removed",
        "unlink",
        "out/kept.txt",
        ["out", "out/kept.txt"]
    ),
    in_read_grant!(
        "a file of a read grant renamed",
        "rename" to "out/moved.txt",
        "out/kept.txt",
        ["out", "out/kept.txt", "out/moved.txt"]
    ),
    in_read_grant!(
        "a file of a read grant re-timed",
        "touch",
        "out/kept.txt",
        ["out/kept.txt"]
    ),
    in_read_grant!(
        "a folder made in a read grant",
        "mkdir",
        "out/folder",
        ["out", "out/folder"]
    ),
    Case {
        name: "dot-dot out of the write grant",
        promises: "P2 P3",
        manifest: WRITE_OUT,
        probe: r#"{"do":"write","path":"out/../data/new.txt"}"#,
        held: Denied("EROFS", "EPERM"),
        denials: ("", "write out/../data/new.txt: wasm: read-only; manifest"),
        control: Control::None("no policy here grants data/ to write; the row above writes out/"),
        ..CASE
    },
    Case {
        name: "the tool's own script rewritten",
        promises: "P3",
        manifest: WRITE_OUT,
        probe: r#"{"do":"write","path":"{file}"}"#,
        held: Denied("EROFS", "EPERM"),
        denials: ("", "write main.wat: wasm: read-only; built-in"),
        control: Control::None("no policy can grant it"),
        ..CASE
    },
    Case {
        name: "a read grant inside a write grant takes nothing away",
        promises: "P5",
        manifest: r#"{"securityContext":{"fileAccess":{"allowRead":["self","out/deep/**"],"allowWrite":["out/**"]}}}"#,
        probe: r#"{"do":"write","path":"out/deep/kept.txt"}"#,
        changes: &["out/deep/kept.txt"],
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "a symbolic link made in a write grant",
        layer: "landlock",
        promises: "P3",
        manifest: WRITE_OUT,
        probe: r#"{"do":"symlink","path":"out/link","to":"kept.txt"}"#,
        held: Denied("EACCES", "EACCES"),
        denials: ("", forbidden!("write out/link")),
        control: Control::None("no policy can grant it; escapes::files has the control"),
        ..CASE
    },
    Case {
        name: "a hard link made in a write grant",
        layer: "seccomp",
        promises: "P3",
        manifest: WRITE_OUT,
        probe: r#"{"do":"link","path":"out/kept.txt","to":"out/second.txt"}"#,
        held: Denied("EPERM", "EPERM"),
        denials: ("", forbidden!("write out/second.txt")),
        control: Control::None("no policy can grant it; escapes::files has the control"),
        ..CASE
    },
    // Staged: published after success, what matches, and nothing else.
    Case {
        name: "a staged file is published",
        promises: "P3",
        manifest: STAGE_CSV,
        probe: r#"{"do":"write","path":"out/new.csv"}"#,
        changes: &["out", "out/new.csv"],
        artifacts: "out/new.csv published",
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "a staged file replaces the one that was there",
        promises: "P3",
        manifest: STAGE_CSV,
        probe: r#"{"do":"write","path":"out/old.csv"}"#,
        changes: &["out", "out/old.csv"],
        artifacts: "out/old.csv published",
        control: Control::None("it is allowed"),
        ..CASE
    },
    Case {
        name: "a staged file of another name is dropped",
        promises: "P3",
        manifest: STAGE_CSV,
        probe: r#"{"do":"write","path":"out/new.txt"}"#,
        artifacts: "out/new.txt dropped",
        control: if_granted(WRITE_OUT, &["out", "out/new.txt"]),
        ..CASE
    },
    Case {
        name: "a staged file of a failed call",
        promises: "P3",
        manifest: STAGE_CSV,
        probe: r#"{"do":"write","path":"out/new.csv","exit":3}"#,
        held: Ends("ScriptError", "code 3", "code 3"),
        control: Control::Granted {
            manifest: WRITE_OUT,
            policy: "",
            ends: Ends("ScriptError", "code 3", "code 3"),
            changes: &["out", "out/new.csv"],
        },
        ..CASE
    },
    // Scratch.
    Case {
        name: "scratch is there, and reaches nobody",
        layer: "scratch",
        promises: "P18",
        probe: r#"{"do":"write","path":"/tmp/toolhost-engines"}"#,
        control: Control::None("it is allowed"),
        ..CASE
    },
];
