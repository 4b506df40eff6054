//! Scratch: bytes and files.

use super::Call;

pub const SCRATCH: &[Call] = &[
    call!(
        "scratch and /dev/shm are one",
        "scratch",
        "P16",
        r#"{"limits":{"scratchBytes":4194304}}"#,
        0,
        "ResourceLimitError: scratchBytes",
        "",
        r#"{"mib":6}"#,
        "for folder in ('/tmp', '/dev/shm'):\n    f = open('%s/fill-%d' % (folder, os.getpid()), 'wb', 0)\n    globals()[folder] = f\n    for _ in range(3):\n        f.write(b'x' * (1 << 20))\nfor folder in ('/tmp', '/dev/shm'):\n    os.unlink(globals()[folder].name)\nsay({'mib': 6})\n"
    ),
    call!(
        "empty files for ever",
        "scratch",
        "P16",
        r#"{"limits":{"scratchBytes":1048576}}"#,
        0,
        "ResourceLimitError: scratchBytes",
        "",
        r#"{"files":20000}"#,
        "import shutil, tempfile\nd = tempfile.mkdtemp()\nfor n in range(20000):\n    os.close(os.open('%s/%d' % (d, n), os.O_CREAT | os.O_WRONLY))\nshutil.rmtree(d)\nsay({'files': 20000})\n"
    ),
];
