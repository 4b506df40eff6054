//! Links in /dev/shm, by which the C library makes named semaphores (sem_open(3)), of a call that
//! writes a folder live. Its filter refuses link(2), and tells us: we make the link ourselves, of
//! two names that we read once. Every other link stays refused.
//!
//! The names lie in the tool's memory, which may be a file on a file system that does not answer. So
//! a thread of its own reads them, and a launcher whose thread still waits ends with the call.

use crate::account::walk::Walker;
use crate::recorder::{link, listener};
use crate::sys;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use toolhost_base::files;

/// Where the listener of a call's filter arrives.
pub struct LinkServer {
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// The links of one call, which a thread makes.
pub struct Links {
    /// Closed when no process has the filter any more.
    served: Receiver<()>,
}

/// How long the thread may take to notice that the call is over.
const END: Duration = Duration::from_millis(100);

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
    pub fn begin(self, walker: &Walker) -> Result<Links, Errno> {
        let LinkServer { ours, theirs } = self;
        // Otherwise we would wait for a call that died before it had its filter.
        drop(theirs);
        let listener = listener(&ours)?;
        let proc = files::handle(Path::new("/proc"))?;
        let (serving, served) = channel();
        walker.run(Box::new(move || {
            serve(&listener, &proc);
            drop(serving);
        }));
        Ok(Links { served })
    }
}

impl Links {
    /// Whether the thread is free, once the call is over.
    pub fn have_ended(&self) -> bool {
        self.served.recv_timeout(END) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Answers each link(2) that waits, until no process has the filter any more.
fn serve(listener: &OwnedFd, proc: &OwnedFd) {
    loop {
        let mut wait = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let shown = wait[0].revents().unwrap_or(PollFlags::empty());
        if shown.contains(PollFlags::POLLIN) {
            // Fails if the process was killed meanwhile.
            if let Ok(asked) = sys::receive_notification(listener.as_fd()) {
                let errno = link(proc, &asked).map_or_else(|errno| errno as i32, |()| 0);
                let _ = sys::respond(listener.as_fd(), asked.id, Some(errno));
            }
        } else if !shown.is_empty() {
            return;
        }
    }
}
