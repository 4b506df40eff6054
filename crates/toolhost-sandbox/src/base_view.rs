//! Base view: what every tool sees besides its grants and its interpreter. The layer `view` makes
//! exactly this, and `audit` prints it: neither has any other path.

/// Kernel trees. No policy opens them for reading or writing, nor `/`, which contains them: each
/// call has its own.
pub const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Folders that every tool sees, read-only, where they exist: system programs and libraries.
pub const SYSTEM_FOLDERS: [&str; 14] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib32",
    "/usr/libx32",
    "/usr/libexec",
    "/usr/share",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/lib32",
    "/libx32",
];
/// All of the host's /etc that every tool sees: the CA bundle, local time, names of ports, which
/// program of /usr stands for a name, types of files, fonts, and the name of the system. What a program
/// does not find there it answers otherwise, without a word.
pub const SYSTEM_ETC: [&str; 13] = [
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/timezone",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates",
    "/etc/localtime",
    "/etc/services",
    "/etc/protocols",
];
/// The name of the machine in every call; it resolves to loopback.
pub const HOST_NAME: &str = "tool";
/// The rest of the tool's /etc: files made for the call, which show no account or host of this
/// machine.
pub const MADE_ETC: [&str; 5] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
];
/// Scratch folders: private to each call, writable, deleted after it.
pub const SCRATCH: [&str; 2] = ["/tmp", "/dev/shm"];
/// Empty folders that programs look for; nothing can be put there.
pub const EMPTY_FOLDERS: [&str; 2] = ["/run", "/var/tmp"];
/// The tool's own processes, and some of what the kernel says of the machine.
pub const PROC: &str = "/proc";
/// The call's own folder in its scratch, the files that it brought, and where it leaves results.
pub const CALL_FOLDER: &str = "/tmp/call";
pub const CALL_INPUT: &str = "/tmp/call/input";
pub const CALL_OUTPUT: &str = "/tmp/call/output";
/// toolhost's own folder: shims, and what is mounted over files that the tool must not see.
pub const OWN_FOLDER: &str = "/.toolhost";
/// Links to the tool's own descriptors, and where they lead.
pub const DEVICE_LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Device nodes. Without /dev/zero where memory is sampled: a mapping of it is memory that no
/// process shows.
pub fn devices(sampled: bool) -> impl Iterator<Item = &'static str> {
    let all = [
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
    ];
    all.into_iter()
        .filter(move |device| !(sampled && *device == "/dev/zero"))
}
