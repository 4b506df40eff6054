//! Links in /dev/shm, by which the C library makes named semaphores (sem_open(3)), of a call that
//! writes a folder live. Its filter refuses link(2), and tells us: we make the link ourselves, of
//! two names that we read once. Every other link stays refused.

use crate::recorder::{link, listener};
use crate::sys;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use toolhost_base::files;

/// Where the listener of a call's filter arrives.
pub struct LinkServer {
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// The listener of a call's filter.
pub struct Links {
    listener: OwnedFd,
    proc: OwnedFd,
}

impl LinkServer {
    pub fn new() -> Result<LinkServer, Errno> {
        let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
        let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)?;
        Ok(LinkServer { ours, theirs })
    }

    /// The socket to which the filter's listener is sent.
    pub fn socket(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// Once the call has its filter.
    pub fn begin(self) -> Result<Links, Errno> {
        Ok(Links {
            listener: listener(&self.ours)?,
            proc: files::handle(Path::new("/proc"))?,
        })
    }
}

impl Links {
    /// Answers one link(2) that waits.
    pub fn answer(&self) {
        // Fails if the process was killed meanwhile.
        if let Ok(asked) = sys::receive_notification(self.as_fd()) {
            let errno = link(&self.proc, &asked).map_or_else(|errno| errno as i32, |()| 0);
            let _ = sys::respond(self.as_fd(), asked.id, Some(errno));
        }
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
