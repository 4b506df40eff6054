//! Hints: for a wall that was refused, the command that lets it stand.
//!
//! For: `doctor`. In: facts of this machine, the wall that was refused. Out: mends, the likeliest first.
//! Never: a command that weakens the machine for other programs too, where a narrower one exists.

use super::facts::Facts;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    pub why: String,
    pub command: String,
}

fn hint(why: &str, command: &str) -> Hint {
    Hint { why: why.to_owned(), command: command.to_owned() }
}

const APPARMOR: &str = "sudo install -o root -g root -m 0644 docs/setup/apparmor-toolhost /etc/apparmor.d/toolhost && \
                        sudo apparmor_parser -r /etc/apparmor.d/toolhost";
const DOCKER: &str = "docker run --security-opt seccomp=docs/setup/docker-seccomp.json \
                      --security-opt apparmor=unconfined --security-opt systempaths=unconfined …";
const DELEGATE: &str = "systemd-run --user --scope -p Delegate=yes toolhost …";

/// No command of ours: which one fits depends on the container's own manager.
const CONTAINER_GROUP: &str =
    "run toolhost outside of the container, or give the container a writable cgroup v2 of its own (docs/SETUP.md)";
const UNIFIED: &str = "add `systemd.unified_cgroup_hierarchy=1` to the kernel's command line, start the machine anew, then \
                       systemd-run --user --scope -p Delegate=yes toolhost …";
const MOUNT: &str =
    "sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup (and run toolhost as root, or in a group that is its user's)";

/// `refused`: the wall that could not be raised.
pub fn of(facts: &Facts, refused: Option<&str>) -> Vec<Hint> {
    let mut mends = match refused {
        Some("namespaces" | "identity" | "network" | "view" | "scratch") => namespaces(facts),
        Some("landlock") => landlock(facts),
        Some("seccomp") if facts.architecture != "x86_64" => {
            vec![hint("the filter is made for x86_64", "run toolhost on an x86_64 machine")]
        }
        Some("seccomp") => {
            vec![hint("this kernel has no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER=y")]
        }
        None | Some(_) => Vec::new(),
    };
    if !facts.counted {
        mends.push(exact(facts));
    }
    mends
}

/// How to have memory and CPU counted exactly where they are sampled.
fn exact(facts: &Facts) -> Hint {
    match (facts.container, facts.cgroup_v1, facts.cgroup_v2) {
        _ if facts.delegable && facts.container.is_none() => {
            hint("limits are sampled; a delegated control group makes them exact", DELEGATE)
        }
        (Some(name), ..) => {
            hint(&format!("limits are sampled; {name} gives this process no control group to use"), CONTAINER_GROUP)
        }
        (None, true, _) if !facts.real_root => hint(
            "limits are sampled; control groups of version 1 are root's alone, cgroup v2 can be delegated",
            UNIFIED,
        ),
        (None, true, _) => hint(
            "limits are sampled; toolhost may not make groups where memory, pids and cpuacct are mounted",
            "mount them writable for root, or use cgroup v2 (docs/SETUP.md)",
        ),
        (None, false, true) => hint(
            "limits are sampled; toolhost may not make groups below its own",
            "sudo systemd-run --scope -p Delegate=yes toolhost …",
        ),
        (None, false, false) => hint("limits are sampled; no control groups are mounted", MOUNT),
    }
}

/// The mend for policies that do not load.
pub fn of_policies() -> Hint {
    hint("the policies do not load, so nothing runs (they are told below)", "toolhost check")
}

/// The mend for an audit log in which no call could be recorded.
pub fn of_audit_log() -> Hint {
    hint("the audit log cannot be opened, so every call is refused (it is told below)", "toolhost --audit-log FILE …")
}

fn namespaces(facts: &Facts) -> Vec<Hint> {
    let mut mends = Vec::new();
    if facts.max_user_namespaces == Some(0) {
        mends.push(hint("user.max_user_namespaces is 0", "sudo sysctl -w user.max_user_namespaces=15000"));
    }
    if facts.unprivileged_userns_off && !facts.real_root {
        let command = "sudo sysctl -w kernel.unprivileged_userns_clone=1";
        mends.push(hint("kernel.unprivileged_userns_clone is 0", command));
    }
    if facts.apparmor_restricts_userns && !facts.real_root {
        let why = "AppArmor lets only programs with a profile make user namespaces \
                   (kernel.apparmor_restrict_unprivileged_userns is 1); ours names /usr/local/bin/toolhost";
        mends.push(hint(why, APPARMOR));
    }
    if facts.already_filtered || (facts.container.is_some() && mends.is_empty()) {
        let name = facts.container.unwrap_or("a container or service manager");
        mends.push(hint(&format!("{name} filters the system calls that raise walls, or masks /proc"), DOCKER));
    }
    if mends.is_empty() {
        let why = "the kernel refused, and nothing this program can read says why";
        mends.push(hint(why, "see docs/SETUP.md; Linux 5.13 or later with user, mount, pid and network namespaces"));
    }
    mends
}

fn landlock(facts: &Facts) -> Vec<Hint> {
    let listed = facts.security_modules.as_deref();
    let why = match listed {
        Some(list) if !list.split(',').any(|name| name == "landlock") => "Landlock is not among the security modules",
        _ => "Landlock is off, missing (Linux < 5.13), or filtered by a container",
    };
    let order = listed.filter(|list| !list.is_empty()).unwrap_or("capability");
    let command = format!("add `lsm=landlock,{order}` to the kernel's command line and start the machine anew");
    vec![Hint { why: why.to_owned(), command }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_command() {
        let facts = |change: fn(&mut Facts)| {
            let mut facts = Facts { counted: true, architecture: "x86_64", ..Facts::default() };
            change(&mut facts);
            facts
        };
        let sampled = |change: fn(&mut Facts)| Facts { counted: false, ..facts(change) };
        let cases: [(Facts, Option<&str>, &str); 12] = [
            (facts(|f| f.apparmor_restricts_userns = true), Some("namespaces"), "apparmor_parser"),
            (facts(|f| f.unprivileged_userns_off = true), Some("namespaces"), "unprivileged_userns_clone=1"),
            (facts(|f| f.max_user_namespaces = Some(0)), Some("namespaces"), "max_user_namespaces=15000"),
            (facts(|f| f.container = Some("Docker")), Some("view"), "docker-seccomp.json"),
            (facts(|f| f.already_filtered = true), Some("identity"), "docker-seccomp.json"),
            (
                facts(|f| f.security_modules = Some("capability,yama".into())),
                Some("landlock"),
                "lsm=landlock,capability,yama",
            ),
            (sampled(|f| f.delegable = true), None, "Delegate=yes"),
            (sampled(|f| f.cgroup_v1 = true), None, "systemd.unified_cgroup_hierarchy=1"),
            (sampled(|f| (f.cgroup_v1, f.real_root) = (true, true)), None, "cgroup v2"),
            (sampled(|f| (f.cgroup_v2, f.real_root) = (true, true)), None, "systemd-run --scope"),
            (sampled(|f| (f.container, f.cgroup_v1) = (Some("Docker"), true)), None, "outside of the container"),
            (sampled(|_| ()), None, "mount -t cgroup2"),
        ];
        for (facts, wall, command) in cases {
            let mends = of(&facts, wall);
            assert_eq!(mends.len(), 1, "{mends:?}");
            assert!(mends[0].command.contains(command), "{mends:?}");
        }
        assert_eq!(of(&facts(|_| ()), None), []);
        // AppArmor's restriction is not for real root.
        let root = facts(|f| (f.real_root, f.apparmor_restricts_userns) = (true, true));
        assert!(!of(&root, Some("namespaces"))[0].command.contains("apparmor"));
    }
}
