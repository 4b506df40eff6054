//! Layer: identity. The tool never runs as kernel uid 0.
//!
//! Real root (the whole range of ids mapped) lends each launcher one id of a pool, locked across
//! toolhost processes. Any other user, mapped root included, has one id, and the tool gets that
//! one. The tool always sees itself as uid 1000 of its own user namespace.
//!
//! In a user namespace ids that are not mapped all look like one overflow id (65534). It is never
//! taken for this user or for root: neither at the other end of a connection, nor as the owner of a
//! policy, a token, a secret, a configuration or a state file. The folders above those files,
//! interpreters and other programs of the machine may belong to it, unless they lie in a folder
//! where everybody may create files (/tmp).

use crate::plan::{Plan, Step};
use crate::protocol::{Identity, Problem};
use nix::fcntl::OFlag;
use nix::sys::statfs::PROC_SUPER_MAGIC;
use std::ffi::CString;
use std::fs::File;
use std::path::Path;
use toolhost_base::files::{self, Folder};

/// The tool's own uid and gid, as it sees them.
pub const GUEST: u32 = 1000;
/// The default pool of ids for tools, where the host is real root.
pub const POOL: std::ops::Range<u32> = 1_879_048_192..1_879_052_288;
/// Smaller ids belong to people and services (login.defs(5), systemd's UIDs-GIDs) or are the
/// overflow id (65534).
const MIN_POOL_ID: u32 = 65_536;
pub const LOCKS: &str = "/run/toolhost/ids";

/// Whether this process is real root: by its id map (user_namespaces(7)), never by its euid alone.
pub fn real_root() -> bool {
    files::every_id_is_mapped() == Some(true) && nix::unistd::geteuid().is_root()
}

/// A pool as a configuration names it. Files owned by its ids and processes that run as one are not
/// protected from tools, so accounts and their subordinate ids (subuid(5)) must lie elsewhere.
pub fn pool(first: u32, count: u32) -> Result<std::ops::Range<u32>, String> {
    let end = first
        .checked_add(count)
        .filter(|end| *end <= i32::MAX.unsigned_abs());
    match end {
        _ if count == 0 => Err("count must be at least 1".to_owned()),
        _ if first < MIN_POOL_ID => Err(format!(
            "first must be at least {MIN_POOL_ID}: ids below are people's and services'"
        )),
        None => Err(format!("first + count must be at most {}", i32::MAX)),
        Some(end) => Ok(first..end),
    }
}

/// An id for one launcher. A pooled id stays locked until this is dropped *and* the launcher and
/// its keeper are gone, which hold the same lock.
#[derive(Debug)]
pub struct Lease {
    pub identity: Identity,
    pub lock: Option<File>,
}

/// Why a tool may not run as this id: it is uid 0 of the machine, or may be.
fn kernel_root_refusal(id: u32) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    const ROOT: &str = "this user namespace maps our id to uid 0 of the machine, and a tool never \
                        runs as that; start toolhost as root outside of it, or as an ordinary user";
    const UNKNOWN: &str = "whether our id is uid 0 of the machine is not known: not every id is \
                           mapped here, and /proc/sys, whose owner would show it, is missing or \
                           not a procfs; mount a whole /proc";
    if files::every_id_is_mapped() == Some(true) {
        return (id == 0).then_some(ROOT);
    }
    // /proc/sys belongs to the machine's uid 0, whatever number that is mapped to here.
    let place = Path::new("/proc/sys");
    let procfs =
        nix::sys::statfs::statfs(place).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC);
    match std::fs::metadata(place) {
        Ok(meta) if procfs => (meta.uid() == id).then_some(ROOT),
        _ => Some(UNKNOWN),
    }
}

/// Takes an id; `None` = all of the pool are in use.
pub fn lease(pool: std::ops::Range<u32>) -> std::io::Result<Option<Lease>> {
    if !real_root() {
        let id = nix::unistd::geteuid().as_raw();
        if let Some(why) = kernel_root_refusal(id) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                why,
            ));
        }
        return Ok(Some(Lease {
            identity: Identity { id, pooled: false },
            lock: None,
        }));
    }
    let folder = Folder::make(Path::new(LOCKS))?;
    // Each process starts at another offset, so that not all try the first ids first.
    let length = pool.end - pool.start;
    let start = std::process::id() % length.max(1);
    for offset in 0..length {
        let id = pool.start + (start + offset) % length;
        let file = folder.trusted(&id.to_string(), OFlag::O_WRONLY | OFlag::O_CREAT)?;
        // A flock(2) lock belongs to the open file description: the keeper still holds it when we
        // close ours. (A guard that unlocks when dropped would take it from the keeper too.)
        if file.try_lock().is_ok() {
            return Ok(Some(Lease {
                identity: Identity { id, pooled: true },
                lock: Some(file),
            }));
        }
    }
    Ok(None)
}

/// Maps guest id 1000 to `id`, then becomes it.
pub fn raise(plan: &mut Plan, id: u32) {
    let map = format!("{GUEST} {id} 1\n").into_bytes();
    fn write(name: &str, data: Vec<u8>, plan: &mut Plan) {
        plan.add(
            "identity",
            Step::WriteFile {
                path: CString::new(format!("/proc/self/{name}")).expect("no NUL"),
                data,
            },
        );
    }
    write("setgroups", b"deny".to_vec(), plan);
    write("uid_map", map.clone(), plan);
    write("gid_map", map, plan);
    plan.add("identity", Step::SetIds(GUEST));
}

/// Real root leaves its supplementary groups; other users may not (their groups stay, as
/// docs/SECURITY.md says).
pub fn drop_groups(identity: Identity) -> Result<(), Problem> {
    if !identity.pooled {
        return Ok(());
    }
    nix::unistd::setgroups(&[]).map_err(Problem::from_layer("identity", "setgroups(2)"))
}

/// Runs `clone` with the pool id as effective ids, so that the user namespace and all in it belong
/// to that id.
pub fn with_pool_id<T>(identity: Identity, clone: impl FnOnce() -> T) -> Result<T, Problem> {
    fn failed(what: &str) -> impl FnOnce(nix::errno::Errno) -> Problem {
        Problem::from_layer("identity", what)
    }
    let id = identity.id;
    if !identity.pooled {
        let done = clone();
        let _ = nix::sys::prctl::set_dumpable(true);
        return Ok(done);
    }
    nix::unistd::setegid(id.into()).map_err(failed("setegid(2)"))?;
    nix::unistd::seteuid(id.into()).map_err(failed("seteuid(2)"))?;
    // Changing ids made us undumpable, and then our child may not write its own id map.
    let _ = nix::sys::prctl::set_dumpable(true);
    let done = clone();
    nix::unistd::seteuid(0.into()).map_err(failed("seteuid(2) back"))?;
    nix::unistd::setegid(0.into()).map_err(failed("setegid(2) back"))?;
    // The child shares our memory and made it undumpable (`init::hide`); the next child must write
    // its id map.
    let _ = nix::sys::prctl::set_dumpable(true);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_nobody_elses_ids() {
        assert_eq!(pool(POOL.start, POOL.end - POOL.start), Ok(POOL));
        for (first, count) in [
            (0, 1),
            (1000, 10),
            (65_534, 10),
            (100_000, 0),
            (2_147_483_647, 1),
            (u32::MAX, 2),
        ] {
            assert!(pool(first, count).is_err(), "{first} {count}");
        }
    }
}
