//! Idmap: a user namespace that maps a folder's owner to the tool's id (part of the layer `view`,
//! for real root), so that 0600 files of a granted folder stay readable and new files belong to the
//! folder's owner.

use crate::protocol::{Identity, Problem};
use crate::sys;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe, read, write};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;

/// The user namespaces that mount_setattr(2) takes, one for each owner of granted files.
pub struct Users {
    identity: Identity,
    made: BTreeMap<Owner, OwnedFd>,
}

/// Uid and gid on the disk.
type Owner = (u32, u32);

impl Users {
    /// `owner`: the probable owner of the granted files. The namespace for this owner is made now;
    /// if that fails, the error is reported when the namespace is needed.
    pub fn new(identity: Identity, owner: Option<Owner>) -> Users {
        let mut users = Users {
            identity,
            made: BTreeMap::new(),
        };
        owner
            .into_iter()
            .for_each(|owner| drop(users.for_files_of(owner)));
        users
    }

    /// The namespace for files of this owner. `None`: the tool has the host's own id, which needs
    /// no mapping.
    pub fn for_files_of(&mut self, owner: Owner) -> Result<Option<&OwnedFd>, Problem> {
        if !self.identity.pooled {
            return Ok(None);
        }
        Ok(Some(match self.made.entry(owner) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(none) => none.insert(namespace(owner, self.identity)?),
        }))
    }
}

/// Maps the on-disk id (inside) to the tool's kernel id (outside).
fn namespace(of: Owner, identity: Identity) -> Result<OwnedFd, Problem> {
    fn failed(errno: Errno) -> Problem {
        Problem::from_layer("view", "a user namespace for id-mapped mounts")(errno)
    }
    let (ready, say) = pipe().map_err(failed)?;
    let Some(pid) = sys::fork().map_err(failed)? else {
        // The child only holds the namespace open until we have its descriptor.
        if unshare(CloneFlags::CLONE_NEWUSER).is_ok() {
            // The view is not built yet: /proc is still the host's, where this process has another
            // pid.
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
    let opened = match std::str::from_utf8(&number[..length])
        .ok()
        .and_then(|n| n.parse().ok())
    {
        Some(number) => map(number, of, identity),
        None => Err(Errno::EPERM),
    };
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    let _ = sys::wait4(pid, true);
    opened.map_err(failed)
}

fn map(pid: i32, owner: Owner, identity: Identity) -> Result<OwnedFd, Errno> {
    std::fs::write(
        format!("/proc/{pid}/uid_map"),
        format!("{} {} 1\n", owner.0, identity.id),
    )
    .map_err(|e| sys::errno(&e))?;
    std::fs::write(
        format!("/proc/{pid}/gid_map"),
        format!("{} {} 1\n", owner.1, identity.id),
    )
    .map_err(|e| sys::errno(&e))?;
    Ok(std::fs::File::open(format!("/proc/{pid}/ns/user"))
        .map_err(|e| sys::errno(&e))?
        .into())
}
