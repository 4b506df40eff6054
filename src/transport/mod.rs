//! Transports translate the messages of a protocol into requests to `service`, and reports into the
//! protocol. A transport holds no logic.

pub mod action;
pub mod announced;
mod answers;
pub mod broker;
pub mod export;
pub mod http;
pub mod mcp;
mod names;
mod patience;
pub mod responses;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;

/// Whether the other end is closed, or will send no more; found out without reading, even if unread
/// bytes wait.
pub fn sends_no_more(end: BorrowedFd) -> bool {
    // nix has no flag POLLRDHUP: `revents` is `None` where the kernel sets it.
    is_gone(end, PollFlags::from_bits_retain(nix::libc::POLLRDHUP))
}

/// Whether the other end is closed: nothing that is written arrives.
pub fn takes_no_more(end: BorrowedFd) -> bool {
    is_gone(end, PollFlags::empty())
}

fn is_gone(end: BorrowedFd, also: PollFlags) -> bool {
    let mut ends = [PollFd::new(end, also)];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    poll(&mut ends, PollTimeout::ZERO).is_ok()
        && ends[0].revents().is_none_or(|seen| seen.intersects(gone))
}
