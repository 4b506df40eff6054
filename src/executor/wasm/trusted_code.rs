//! Reads a file that was inherited, and turns stored bytes into machine code: the only `unsafe` of this module.
#![allow(unsafe_code, reason = "loading compiled code cannot be checked by the compiler; the argument is below")]

use super::frame::FilePart;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use wasmtime::component::Component;

/// Reads what lies in a file that this process inherited, at most `most` bytes, and closes the file.
pub fn read(handed: &FilePart, most: u64) -> io::Result<Vec<u8>> {
    if handed.descriptor < 3 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a standard stream is no inherited file"));
    }
    // SAFETY: borrowed for this one call, which only asks whether the number is open; it is not -1.
    let borrowed = unsafe { BorrowedFd::borrow_raw(handed.descriptor) };
    fcntl(borrowed, FcntlArg::F_GETFD)?;
    // SAFETY: it is open (just asked), and nobody else owns it: the starter of this process put it
    // there for us, and this is the first thing that a worker or compiler opens or takes, while it has one thread.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(handed.descriptor) });
    let mut bytes = vec![0; usize::try_from(handed.bytes.min(most)).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, handed.offset)?;
    Ok(bytes)
}

/// Loads what our own compiler child wrote.
pub fn load(engine: &wasmtime::Engine, compiled: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `compiled` must be what `Component::serialize` of this wasmtime returned. It comes from
    // the private cache: a folder and file that only our user may enter or write, keyed by the module's
    // content and the compiler's settings, checked against its own SHA-256 when it was opened, and
    // handed over as a read-only descriptor. wasmtime checks version and settings again. The bytes are
    // copied first, so a later change of the file cannot reach them. Were the compiler itself
    // subverted by a module, its code would run where that module runs: behind the walls.
    unsafe { Component::deserialize(engine, compiled) }
}
