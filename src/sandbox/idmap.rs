//! Idmap: a user namespace that maps a folder's owner to the tool's id (part of the wall `view`, for real root), so
//! that 0600 files of a granted folder stay readable and new files belong to the folder's owner.

use super::problem::Problem;
use super::protocol::{Identity, Mount};
use super::sys;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe, read, write};
use std::os::fd::OwnedFd;

/// The user namespace that mount_setattr(2) takes. It maps the on-disk id (inside) to the tool's kernel id (outside).
pub fn users(of: &Mount, identity: Identity) -> Result<OwnedFd, Problem> {
    let failed = |errno| Problem { wall: "view", what: "a user namespace for id-mapped mounts".into(), errno };
    let (ready, say) = pipe().map_err(failed)?;
    let Some(pid) = sys::fork().map_err(failed)? else {
        // The child only holds the namespace open until we have its descriptor.
        if unshare(CloneFlags::CLONE_NEWUSER).is_ok() {
            // The view is not built yet: /proc is still the host's, where this process has another pid.
            let number = std::fs::read_link("/proc/self").unwrap_or_default();
            let _ = write(&say, number.as_os_str().as_encoded_bytes());
            loop {
                nix::unistd::pause();
            }
        }
        std::process::exit(1);
    };
    drop(say);
    let mut number = [0u8; 16];
    let length = read(&ready, &mut number).unwrap_or(0);
    let opened = match std::str::from_utf8(&number[..length]).ok().and_then(|n| n.parse().ok()) {
        Some(number) => map(number, of, identity),
        None => Err(Errno::EPERM),
    };
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    let _ = sys::wait4(pid, true);
    opened.map_err(failed)
}

fn map(pid: i32, of: &Mount, identity: Identity) -> Result<OwnedFd, Errno> {
    std::fs::write(format!("/proc/{pid}/uid_map"), format!("{} {} 1\n", of.uid, identity.id))
        .map_err(|e| sys::errno(&e))?;
    std::fs::write(format!("/proc/{pid}/gid_map"), format!("{} {} 1\n", of.gid, identity.id))
        .map_err(|e| sys::errno(&e))?;
    Ok(std::fs::File::open(format!("/proc/{pid}/ns/user")).map_err(|e| sys::errno(&e))?.into())
}
