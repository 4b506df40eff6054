//! Recorded: the filter of a call whose refusals are recorded (part of the layer `seccomp`).
//!
//! The same rules, but the kernel notifies a listener of each call that they refuse and each call
//! that names a file. The listener always answers the first with the rule's error, and lets the
//! second go on to the other layers. Without a listener the kernel refuses both with ENOSYS
//! (seccomp_unotify(2)).

use super::Variant;
use super::bpf::{self, DenyAction, Insn, Rule};
use nix::libc;
use std::collections::BTreeMap;

/// What a system call would do with a file that it names. `…Itself`: with a link itself, not with
/// its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    Read,
    ReadItself,
    Write,
    WriteItself,
    /// Makes the file; fails if it exists.
    Make,
    MakeFolder,
    Run,
    /// As the flags of open(2) in this argument say.
    Flags(usize),
}

/// One path of a system call: the argument with the folder that it starts in, if there is one, and
/// its own.
#[derive(Clone, Copy, Debug)]
pub struct PathArgument {
    pub folder: Option<usize>,
    pub path: usize,
    pub usage: FileUse,
}

const fn at(path: usize, usage: FileUse) -> PathArgument {
    PathArgument {
        folder: None,
        path,
        usage,
    }
}

const fn below(folder: usize, usage: FileUse) -> PathArgument {
    PathArgument {
        folder: Some(folder),
        path: folder + 1,
        usage,
    }
}

/// System calls that name files. Not in the list: those that only ask about a file (stat(2),
/// access(2)), which are most of all and change and read nothing.
const FILES: &[(i64, &[PathArgument])] = &[
    (libc::SYS_open, &[at(0, FileUse::Flags(1))]),
    (libc::SYS_openat, &[below(0, FileUse::Flags(2))]),
    (libc::SYS_creat, &[at(0, FileUse::Write)]),
    (libc::SYS_execve, &[at(0, FileUse::Run)]),
    (libc::SYS_execveat, &[below(0, FileUse::Run)]),
    (libc::SYS_mkdir, &[at(0, FileUse::MakeFolder)]),
    (libc::SYS_mkdirat, &[below(0, FileUse::MakeFolder)]),
    (libc::SYS_mknod, &[at(0, FileUse::Make)]),
    (libc::SYS_mknodat, &[below(0, FileUse::Make)]),
    (libc::SYS_rmdir, &[at(0, FileUse::WriteItself)]),
    (libc::SYS_unlink, &[at(0, FileUse::WriteItself)]),
    (libc::SYS_unlinkat, &[below(0, FileUse::WriteItself)]),
    (
        libc::SYS_rename,
        &[at(0, FileUse::WriteItself), at(1, FileUse::WriteItself)],
    ),
    (
        libc::SYS_renameat,
        &[
            below(0, FileUse::WriteItself),
            below(2, FileUse::WriteItself),
        ],
    ),
    (
        libc::SYS_renameat2,
        &[
            below(0, FileUse::WriteItself),
            below(2, FileUse::WriteItself),
        ],
    ),
    (
        libc::SYS_link,
        &[at(0, FileUse::ReadItself), at(1, FileUse::Make)],
    ),
    (
        libc::SYS_linkat,
        &[below(0, FileUse::ReadItself), below(2, FileUse::Make)],
    ),
    (libc::SYS_symlink, &[at(1, FileUse::Make)]),
    (libc::SYS_symlinkat, &[below(1, FileUse::Make)]),
    (libc::SYS_truncate, &[at(0, FileUse::Write)]),
    (libc::SYS_chmod, &[at(0, FileUse::Write)]),
    (libc::SYS_fchmodat, &[below(0, FileUse::Write)]),
    (452, &[below(0, FileUse::Write)]), // fchmodat2
    (libc::SYS_chown, &[at(0, FileUse::Write)]),
    (libc::SYS_lchown, &[at(0, FileUse::WriteItself)]),
    (libc::SYS_fchownat, &[below(0, FileUse::Write)]),
    (libc::SYS_utime, &[at(0, FileUse::Write)]),
    (libc::SYS_utimes, &[at(0, FileUse::Write)]),
    (libc::SYS_futimesat, &[below(0, FileUse::Write)]),
    (libc::SYS_utimensat, &[below(0, FileUse::Write)]),
    (libc::SYS_chdir, &[at(0, FileUse::Read)]),
];

/// The paths that a system call names.
pub fn named(number: u32) -> &'static [PathArgument] {
    FILES
        .iter()
        .find(|(file, _)| *file == i64::from(number))
        .map_or(&[], |(_, named)| named)
}

/// The name of a system call.
pub fn name(number: u32) -> String {
    let known = syscalls::Sysno::new(number as usize);
    known.map_or_else(
        || format!("number {number}"),
        |known| known.name().to_owned(),
    )
}

/// The rules of one shape, for the kernel and for the listener.
pub struct Recorded(BTreeMap<i64, Rule>);

impl Recorded {
    pub fn new(variant: Variant) -> Recorded {
        Recorded(super::rules(variant))
    }

    pub fn program(&self) -> Vec<Insn> {
        let mut rules = self.0.clone();
        rules.extend(FILES.iter().map(|(number, _)| (*number, Rule::Notify)));
        bpf::compile(&super::runs(&rules), DenyAction::Notify)
    }

    /// Whether the listener does what the call asks for, in a filter that is not recorded, too.
    pub fn notifies(&self, number: u32) -> bool {
        super::rule_of(&self.0, number) == Rule::Notify
    }

    /// The error with which a call is refused; `None`: the rules let it through.
    pub fn refuses(&self, number: u32, args: &[u64; 6]) -> Option<u32> {
        super::rule_of(&self.0, number).refuses(args)
    }
}
