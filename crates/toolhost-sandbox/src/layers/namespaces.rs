//! Layer: namespaces. The call sees no process, mount, IPC object, host name or cgroup but its own.

use crate::plan::{Plan, Step};
use crate::protocol::Problem;
use nix::libc;
use nix::sched::{CloneFlags, unshare};

/// The launcher's own namespaces, around those of its calls: when the launcher, their pid 1, ends,
/// all calls end. Without real root they belong to a new user namespace, which gives the right to
/// make them.
pub fn enter(real_root: bool) -> Result<(), Problem> {
    let own = nix::unistd::geteuid().as_raw();
    let group = nix::unistd::getegid().as_raw();
    if !real_root {
        unshare(CloneFlags::CLONE_NEWUSER)
            .map_err(Problem::from_layer("namespaces", "unshare(CLONE_NEWUSER)"))?;
        fn write(file: &str, text: String) -> Result<(), Problem> {
            let path = format!("/proc/self/{file}");
            std::fs::write(&path, text)
                .map_err(Problem::from_layer("namespaces", format!("writing {path}")))
        }
        write("setgroups", "deny".into())?;
        write("uid_map", format!("{own} {own} 1\n"))?;
        write("gid_map", format!("{group} {group} 1\n"))?;
    }
    let flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(flags).map_err(Problem::from_layer(
        "namespaces",
        "unshare(2) of the launcher's namespaces",
    ))
}

/// Makes the call's own namespaces, inside the launcher's. The cloned child is pid 1 there: when it
/// ends, all end.
pub fn raise(plan: &mut Plan) {
    plan.namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
}

/// After joining the group, so that the call sees that group as the root, without its name.
pub fn own_cgroup(plan: &mut Plan) {
    plan.add("namespaces", Step::OwnCgroup);
}

/// /proc of the new pid namespace. After the identity: mounting needs the mapped user namespace.
pub fn mount_proc(plan: &mut Plan) {
    plan.add("namespaces", Step::MountProc);
}
