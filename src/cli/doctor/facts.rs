//! Plain facts of this machine, read and never guessed.
//!
//! For: `doctor`. In: /proc, /sys, uname. Out: `Facts`. Never: a variable's value, an account's secret.

use crate::sandbox::{self, identity};
use serde::Serialize;
use std::path::Path;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    pub kernel: String,
    pub architecture: &'static str,
    /// Less than 1: none.
    pub landlock_abi: i32,
    /// The kernel's list of security modules, where it can be read.
    pub security_modules: Option<String>,
    pub seccomp_filters: bool,
    /// This process was started under a seccomp filter.
    pub already_filtered: bool,
    /// Docker, Podman, Kubernetes …, by the marks they leave.
    pub container: Option<&'static str>,
    pub apparmor_restricts_userns: bool,
    pub unprivileged_userns_off: bool,
    pub max_user_namespaces: Option<u64>,
    pub real_root: bool,
    /// Whom tools run as.
    pub identity: String,
    /// Counted by a control group, else sampled.
    pub counted: bool,
    /// systemd could delegate a group: an ordinary user, and cgroup v2 alone.
    pub delegable: bool,
    /// Which control groups are mounted.
    pub cgroup_v1: bool,
    pub cgroup_v2: bool,
    /// Why limits are counted, or why not.
    pub counting: String,
}

impl Facts {
    pub fn of_this_machine(counted: bool, pool: std::ops::Range<u32>) -> Facts {
        let names = nix::sys::utsname::uname();
        let kernel = names.as_ref().map(|n| n.release().to_string_lossy().into_owned()).unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim().to_owned();
        let real_root = identity::real_root();
        let groups = field("Groups:").split_whitespace().count();
        Facts {
            kernel,
            architecture: std::env::consts::ARCH,
            landlock_abi: sandbox::landlock_abi(),
            security_modules: text("/sys/kernel/security/lsm"),
            seccomp_filters: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
            already_filtered: field("Seccomp:") == "2",
            container: container(),
            apparmor_restricts_userns: text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref()
                == Some("1"),
            unprivileged_userns_off: text("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0"),
            max_user_namespaces: text("/proc/sys/user/max_user_namespaces").and_then(|n| n.parse().ok()),
            real_root,
            identity: whom(real_root, groups, pool),
            counted,
            delegable: !real_root && mounted("cgroup2") && !mounted("cgroup"),
            cgroup_v1: mounted("cgroup"),
            cgroup_v2: mounted("cgroup2"),
            counting: if counted { "counted exactly by a control group".to_owned() } else { why_sampled() },
        }
    }
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn container() -> Option<&'static str> {
    let marks =
        [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/run/secrets/kubernetes.io", "Kubernetes")];
    marks.into_iter().find_map(|(mark, name)| Path::new(mark).exists().then_some(name))
}

fn whom(real_root: bool, groups: usize, pool: std::ops::Range<u32>) -> String {
    if real_root {
        return format!("real root: each tool gets one id of {}-{}, no supplementary groups", pool.start, pool.end - 1);
    }
    let id = nix::unistd::geteuid();
    let mapped = if id.is_root() { "root of a user namespace (not of the machine)" } else { "an ordinary user" };
    let rest = match groups {
        0 => String::new(),
        n => format!("; {n} supplementary group(s) remain with tools, since only real root may drop them"),
    };
    format!("{mapped}: tools run as this same user, uid {id} here, the one id there is{rest}")
}

fn mounted(kind: &str) -> bool {
    text("/proc/self/mounts").is_some_and(|all| all.lines().any(|line| line.split(' ').nth(2) == Some(kind)))
}

/// The first thing that keeps a control group from being made.
fn why_sampled() -> String {
    let why = match (mounted("cgroup2"), mounted("cgroup")) {
        (false, false) => "no control groups are mounted",
        (true, false) => {
            "this process may not make a group with memory and pids below its own (it is not delegated, or other processes are in it)"
        }
        (_, true) => "this process may not make groups in the memory, pids and cpuacct hierarchies",
    };
    format!("{why}: memory and CPU are summed every {} ms", crate::quantity::SAMPLE_MS)
}
