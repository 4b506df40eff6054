//! Scratch: bytes and files.

use super::Ending::Fails;
use super::{CALL, Call};

pub const SCRATCH: &[Call] = &[
    Call {
        name: "scratch and /dev/shm are one",
        wall: "scratch",
        promises: "P16",
        more: r#"{"limits":{"scratchBytes":4194304}}"#,
        ends: Fails("ResourceLimitError", "scratchBytes"),
        control: Some(r#"{"mib":6}"#),
        script: "for folder in ('/tmp', '/dev/shm'):\n    f = open('%s/fill-%d' % (folder, os.getpid()), 'wb', 0)\n    globals()[folder] = f\n    for _ in range(3):\n        f.write(b'x' * (1 << 20))\nfor folder in ('/tmp', '/dev/shm'):\n    os.unlink(globals()[folder].name)\nsay({'mib': 6})\n",
        ..CALL
    },
    Call {
        name: "empty files for ever",
        wall: "scratch",
        promises: "P16",
        more: r#"{"limits":{"scratchBytes":1048576}}"#,
        ends: Fails("ResourceLimitError", "scratchBytes"),
        control: Some(r#"{"files":5000}"#),
        script: "import shutil, tempfile\nd = tempfile.mkdtemp()\nfor n in range(5000):\n    os.close(os.open('%s/%d' % (d, n), os.O_CREAT | os.O_WRONLY))\nshutil.rmtree(d)\nsay({'files': 5000})\n",
        ..CALL
    },
];
