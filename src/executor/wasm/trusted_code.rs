//! Reads a file that was inherited, and turns stored bytes into machine code: the only `unsafe` of
//! this module.
#![allow(
    unsafe_code,
    reason = "loading compiled code cannot be checked by the compiler; the argument is below"
)]

use super::frame::FilePart;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use wasmtime::component::Component;

/// The number of the file that a worker or compiler inherits (`RoleNeeds::inherited`).
const INHERITED_FD: RawFd = 3;

/// Reads a part of the inherited file, at most `most` bytes, and closes the file. An error if that
/// was done before.
pub fn read(handed: &FilePart, most: u64) -> io::Result<Vec<u8>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the inherited file was read before",
        ));
    }
    // SAFETY: borrowed for this one call, which only asks whether the number is open; it is not -1.
    let borrowed = unsafe { BorrowedFd::borrow_raw(INHERITED_FD) };
    fcntl(borrowed, FcntlArg::F_GETFD)?;
    // SAFETY: it is open (just asked), and nothing else owns it: the starter of this process put it
    // there for us, this is the first thing that a worker or compiler opens or takes, while it has
    // one thread, and it is done once.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(INHERITED_FD) });
    let mut bytes = vec![0; usize::try_from(handed.bytes.min(most)).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, handed.offset)?;
    Ok(bytes)
}

/// Loads what our own compiler child wrote.
pub fn load(engine: &wasmtime::Engine, compiled: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `compiled` must be what `Component::serialize` of this wasmtime returned. It comes
    // from the private cache: a folder and file that only our user may enter or write, keyed by the
    // module's content and the compiler's settings, checked against its own SHA-256 when it was
    // opened, and handed over as a read-only descriptor. wasmtime checks version and settings
    // again. The bytes are copied first, so a later change of the file cannot reach them. Were the
    // compiler itself subverted by a module, its code would run where that module runs: behind the
    // layers.
    unsafe { Component::deserialize(engine, compiled) }
}
