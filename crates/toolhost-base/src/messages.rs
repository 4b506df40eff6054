//! Messages between processes of toolhost: each is one JSON text on a socket that keeps messages
//! whole (SOCK_SEQPACKET), with descriptors beside it (SCM_RIGHTS, unix(7)).
//!
//! Both ends are the same binary, so messages have no version.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Longest message, bytes; what may be longer travels in a memory file beside it.
const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = 32;

/// Takes over a descriptor that the kernel just made for us.
#[allow(
    unsafe_code,
    reason = "a number from the kernel becomes an owned descriptor"
)]
pub fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass a number fresh from a system call or SCM_RIGHTS; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn send<T: Serialize>(
    socket: BorrowedFd,
    message: &T,
    descriptors: &[BorrowedFd],
) -> std::io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&text)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// The most descriptors that the kernel passes in one message (unix(7)).
const SCM_MAX_FD: usize = 253;

/// Receives one message; `None` when the other end is gone.
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd,
) -> std::io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let (length, descriptors) = receive_bytes(socket, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((
        serde_json::from_slice(&buffer[..length])?,
        descriptors,
    )))
}

/// Receives the bytes of one message, and how many they are, with its descriptors.
pub fn receive_bytes(
    socket: BorrowedFd,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = cmsg_space!([RawFd; SCM_MAX_FD]);
    let mut slices = [IoSliceMut::new(buffer)];
    let got = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for control in got.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            descriptors.extend(raw.into_iter().map(adopt));
        }
    }
    if got
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
    {
        return Err(Errno::EMSGSIZE);
    }
    Ok((got.bytes, descriptors))
}

/// A memory file with this content, to be sent beside a message.
pub fn memory_file(content: &[u8]) -> std::io::Result<OwnedFd> {
    let fd = nix::sys::memfd::memfd_create(c"toolhost", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads such a file, at most `limit` bytes.
pub fn read_memory_file(fd: OwnedFd, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::from(fd)
        .take(limit)
        .read_to_end(&mut content)?;
    Ok(content)
}
