//! Trusted code: taking over an inherited descriptor, and turning stored bytes into machine code.
//!
//! For: the worker. In: a descriptor number; bytes of a cache entry. Out: a file; a component.
//! Never: anything else; these two are the only `unsafe` of this room.
#![allow(unsafe_code, reason = "loading compiled code cannot be checked by the compiler; the argument is below")]

use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use wasmtime::component::Component;

/// Takes over a descriptor that was inherited under a known number.
pub fn inherited(number: RawFd) -> io::Result<File> {
    if number < 3 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a standard stream is no inherited file"));
    }
    // SAFETY: borrowed for this one call, which only asks whether the number is open; it is not -1.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_GETFD)?;
    // SAFETY: it is open (just asked), and nobody else owns it: the starter of this process put it
    // there for us, and this is the first thing a worker opens or takes, while it has one thread.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(number) }))
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
