//! Answers the listener of a call's filter, where nobody records its refusals.
//!
//! Listening in /dev/shm, by which the C library makes named semaphores (sem_open(3)), of a call that
//! writes a folder live: its filter refuses link(2), and we make the link ourselves, of two names
//! that we read once. Every other link stays refused. And connect(2) of a call that has sockets: it
//! goes on to the other layers, and we note the ports that they refuse, so that the outcome names
//! them.
//!
//! Names and addresses lie in the tool's memory, which may be a file on a file system that does not
//! answer. So a thread of its own reads them, and a launcher whose thread still waits ends with the
//! call.

use crate::account::walk::Walker;
use crate::layers::network::Reach;
use crate::recorder::{MAX_ADDRESSES, answer, listener};
use crate::sys;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toolhost_base::{files, lock};

/// Where the listener of a call's filter arrives.
pub struct Listener {
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// The listener of one call, which a thread answers.
pub struct Listening {
    refused: Arc<Mutex<BTreeSet<SocketAddr>>>,
    /// Closed when no process has the filter any more.
    served: Receiver<()>,
}

/// How long the thread may take to notice that the call is over.
const END: Duration = Duration::from_millis(100);

impl Listener {
    pub fn new() -> Result<Listener, Errno> {
        let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
        let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)?;
        Ok(Listener { ours, theirs })
    }

    /// The socket to which the filter's listener is sent.
    pub fn socket(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// Once the call has its filter.
    pub fn begin(self, walker: &Walker, reach: Reach) -> Result<Listening, Errno> {
        let Listener { ours, theirs } = self;
        // Otherwise we would wait for a call that died before it had its filter.
        drop(theirs);
        let listener = listener(&ours)?;
        let proc = files::handle(Path::new("/proc"))?;
        let (serving, served) = channel();
        let refused = Arc::default();
        let noted = Arc::clone(&refused);
        walker.run(Box::new(move || {
            serve(&listener, &proc, &reach, &noted);
            drop(serving);
        }));
        Ok(Listening { refused, served })
    }
}

impl Listening {
    /// The addresses that the call was refused.
    pub fn refused(&self) -> Vec<SocketAddr> {
        lock(&self.refused).iter().copied().collect()
    }

    /// Whether the thread is free, once the call is over.
    pub fn has_ended(&self) -> bool {
        self.served.recv_timeout(END) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Answers each call that waits, until no process has the filter any more.
fn serve(listener: &OwnedFd, proc: &OwnedFd, reach: &Reach, refused: &Mutex<BTreeSet<SocketAddr>>) {
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
                let errno = answer(proc, &asked, reach, |address| {
                    let refused = &mut *lock(refused);
                    if refused.len() < MAX_ADDRESSES {
                        refused.insert(address);
                    }
                });
                let _ = sys::respond(listener.as_fd(), asked.id, errno);
            }
        } else if !shown.is_empty() {
            return;
        }
    }
}
