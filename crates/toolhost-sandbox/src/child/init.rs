//! Init: pid 1 of a call is ours, so that the tool is an ordinary process (part of the layer
//! `namespaces`). The kernel drops signals to a pid 1 that has no handler for them, those that it
//! sends itself included (pid_namespaces(7)).
//!
//! A fresh image of a few instructions, because a forked process would hold the launcher's memory
//! and descriptors, readable by a child of the same uid. The image is a file without a right to
//! read, so the kernel makes the process undumpable (proc(5): its memory, descriptors and
//! environment are root's) from its first instruction on. The init holds the pipe on which it
//! reports the tool's end, waits for every process of the call and has the same layers.

use crate::plan::{Plan, Step};
use crate::protocol::Problem;
use crate::sys;
use nix::sys::stat::{Mode, fchmod};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use toolhost_base::files;

fn failed<E: Into<std::io::Error>>() -> impl FnOnce(E) -> Problem {
    Problem::from_layer("namespaces", "a memory file")
}

/// Makes the executable file of the init.
pub fn image() -> Result<OwnedFd, Problem> {
    let file = nix::sys::memfd::memfd_create(c"init", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .map_err(failed())?;
    let mut file = std::fs::File::from(file);
    file.write_all(&elf(sys::init_code())).map_err(failed())?;
    // A file open for writing cannot be executed (execve(2), ETXTBSY), so a second descriptor,
    // O_PATH, is kept instead.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let image = files::handle(path.as_ref()).map_err(failed())?;
    fchmod(&file, Mode::S_IXUSR | Mode::S_IXGRP | Mode::S_IXOTH).map_err(failed())?;
    Ok(image)
}

/// An ELF file (elf(5)) with one segment: the code, at a fixed address, readable and executable.
fn elf(code: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut out = b"\x7fELF\x02\x01\x01".to_vec(); // 64 bits, little-endian, version 1
    out.resize(16, 0);
    fn put(value: u64, bytes: usize, out: &mut Vec<u8>) {
        out.extend(&value.to_le_bytes()[..bytes])
    }
    for (value, bytes) in [(2, 2), (62, 2), (1, 4)] {
        put(value, bytes, &mut out); // ET_EXEC, EM_X86_64, version
    }
    for value in [ADDRESS + HEADERS, 64, 0] {
        put(value, 8, &mut out); // entry, program headers, no section headers
    }
    for (value, bytes) in [(0, 4), (64, 2), (56, 2), (1, 2), (0, 2), (0, 2), (0, 2)] {
        put(value, bytes, &mut out); // flags, sizes and numbers of headers
    }
    put(1, 4, &mut out); // PT_LOAD
    put(5, 4, &mut out); // PF_R | PF_X
    for value in [0, ADDRESS, ADDRESS, size, size, 0x1000] {
        put(value, 8, &mut out); // offset, addresses, sizes, alignment
    }
    out.extend(code);
    out
}

/// Until its execve(2), pid 1 shares the launcher's memory, which the tool must not be able to
/// read.
pub fn hide(plan: &mut Plan) {
    plan.add("namespaces", Step::Undumpable);
}

/// Makes the tool's process, which waits, and makes pid 1 the init, which lets it execute the tool.
/// Layers raised before this step hold both.
pub fn raise(plan: &mut Plan, image: &OwnedFd, status: RawFd) {
    plan.add("namespaces", Step::Start);
    plan.add(
        "namespaces",
        Step::Duplicate {
            from: status,
            to: 0,
        },
    );
    plan.add("namespaces", Step::CloseOnExecFrom(1));
    plan.add("namespaces", Step::Become(image.as_raw_fd()));
}

/// The tool's wait status; `None` where the init was killed first.
pub fn wait_status(status: &OwnedFd) -> Option<i32> {
    let mut bytes = [0; 4];
    (nix::unistd::read(status, &mut bytes) == Ok(4)).then(|| i32::from_le_bytes(bytes))
}
