//! Sys: one small function for each system call that no crate wraps as needed, and the code of the
//! init.
#![allow(
    unsafe_code,
    reason = "raw system calls; each block says why it is sound"
)]

use nix::errno::Errno;
use nix::libc;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use toolhost_base::messages::adopt;

/// The attribute that holds a file's access control list.
pub const ACCESS_LIST: &CStr = c"system.posix_acl_access";
/// The largest value of an extended attribute (xattr(7)).
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;

pub(super) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}

/// The number of an error; EIO where it has none.
pub fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// fork(2) in a process with one thread.
pub fn fork() -> Result<Option<i32>, Errno> {
    // SAFETY: the launcher has a single thread, so the child may use all of its memory.
    match check(unsafe { libc::fork() }.into())? {
        0 => Ok(None),
        pid => Ok(Some(pid as i32)),
    }
}

/// close_range(2), or marking the range close-on-exec.
pub fn close_range(first: u32, on_exec_only: bool) -> Result<(), Errno> {
    let flags: libc::c_uint = if on_exec_only {
        libc::CLOSE_RANGE_CLOEXEC as _
    } else {
        0
    };
    // SAFETY: numbers only. Callers hold no owned descriptor in the range they close.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) })
        .map(drop)
}

/// Gives a file a list (`name`) of another as its access control list (acl(5)), or takes its own
/// away where that one has none. `from` may be opened by `O_PATH`. Returns whether there is one.
pub fn copy_access_list(from: BorrowedFd, name: &CStr, to: BorrowedFd) -> Result<bool, Errno> {
    let from =
        CString::new(format!("/proc/self/fd/{}", from.as_raw_fd())).map_err(|_| Errno::EINVAL)?;
    let mut list = vec![0u8; MAX_ATTRIBUTE_BYTES];
    let to = to.as_raw_fd();
    let own = ACCESS_LIST.as_ptr();
    // SAFETY: each text ends with a zero byte, and the buffer has the length that is given.
    let length = unsafe {
        libc::getxattr(
            from.as_ptr(),
            name.as_ptr(),
            list.as_mut_ptr().cast(),
            list.len(),
        )
    };
    let (has_list, done) = match Errno::result(length) {
        // SAFETY: as above; the kernel wrote that many bytes.
        Ok(length) => (true, unsafe {
            libc::fsetxattr(to, own, list.as_ptr().cast(), length.unsigned_abs(), 0)
        }),
        // SAFETY: as above.
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => (false, unsafe { libc::fremovexattr(to, own) }),
        Err(errno) => return Err(errno),
    };
    match Errno::result(done) {
        Err(errno) if has_list || !matches!(errno, Errno::ENODATA | Errno::EOPNOTSUPP) => {
            Err(errno)
        }
        _ => Ok(has_list),
    }
}

/// pidfd_open(2)
pub fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers only; the result is a fresh descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    Ok(adopt(fd as RawFd))
}

/// pidfd_getfd(2): a copy of a descriptor of another process.
pub fn descriptor_of(process: BorrowedFd, number: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers only; the result is a fresh descriptor.
    let fd =
        check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })?;
    Ok(adopt(fd as RawFd))
}

/// What kcmp(2) compares: descriptors, or the memory or the tables of descriptors of two processes.
#[derive(Clone, Copy, Debug)]
pub enum Compared {
    Files = 0,
    Memory = 1,
    Tables = 2,
}

/// A process and a descriptor of it.
#[derive(Clone, Copy, Debug)]
pub struct KernelObject {
    pub pid: u32,
    pub descriptor: u32,
}

/// kcmp(2): an order of kernel objects that says which are the same. Where it fails, none are.
pub fn kcmp(kind: Compared, one: &KernelObject, other: &KernelObject) -> std::cmp::Ordering {
    // SAFETY: numbers only.
    match unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.pid,
            other.pid,
            kind as libc::c_int,
            one.descriptor,
            other.descriptor,
        )
    } {
        0 => std::cmp::Ordering::Equal,
        2 => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Less,
    }
}

/// How many bytes that were written here the other end has not taken yet: of a socket TIOCOUTQ, of
/// a pipe FIONREAD.
pub fn untaken_bytes(fd: BorrowedFd, request: libc::Ioctl) -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut bytes) };
    if done < 0 { 0 } else { bytes }
}

/// The columns of a terminal. None: it is something else, or does not say.
pub fn terminal_columns(fd: BorrowedFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request writes one winsize.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}

/// What wait4(2) reports of a child.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitReport {
    pub status: i32,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
}

/// wait4(2); `None` while the child lives and `block` is false.
pub fn wait4(pid: i32, block: bool) -> Result<Option<ExitReport>, Errno> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value; both pointers are to
    // locals.
    let (result, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let flags = if block { 0 } else { libc::WNOHANG };
        (libc::wait4(pid, &mut status, flags, &mut usage), usage)
    };
    if check(result.into())? == 0 {
        return Ok(None);
    }
    fn ms(t: libc::timeval) -> u64 {
        (t.tv_sec as u64) * 1000 + (t.tv_usec as u64) / 1000
    }
    let cpu_ms = ms(usage.ru_utime) + ms(usage.ru_stime);
    Ok(Some(ExitReport {
        status,
        cpu_ms,
        peak_bytes: usage.ru_maxrss as u64 * 1024,
    }))
}

/// A detached mount of `path` (below `dir` when relative, `dir` itself when empty): open_tree(2).
pub fn open_tree(dir: BorrowedFd, path: &CStr, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    // SAFETY: a live descriptor and a NUL-terminated string; the result is a fresh descriptor.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags)
    })?;
    Ok(adopt(fd as RawFd))
}

/// Attaches a detached mount: move_mount(2).
pub fn move_mount(mount: BorrowedFd, to: &CStr) -> Result<(), Errno> {
    const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
    // SAFETY: a live descriptor and two NUL-terminated strings.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// Sets mount attributes (and, with `users`, an id mapping): mount_setattr(2).
pub fn mount_setattr(
    mount: BorrowedFd,
    recursive: bool,
    set: u64,
    clear: u64,
    users: Option<BorrowedFd>,
) -> Result<(), Errno> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let attr: [u64; 4] = [
        set | if users.is_some() { MOUNT_ATTR_IDMAP } else { 0 },
        clear,
        0,
        users.map_or(0, |fd| fd.as_raw_fd() as u64),
    ];
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` has the layout of struct mount_attr (four __u64) and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            attr.as_ptr(),
            std::mem::size_of_val(&attr),
        )
    })
    .map(drop)
}

/// A detached tmpfs with these options: fsopen(2), fsconfig(2), fsmount(2).
pub fn tmpfs(options: &[(&str, String)], attributes: u64) -> Result<OwnedFd, Errno> {
    const FSCONFIG_SET_STRING: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    fn text(s: &str) -> Result<CString, Errno> {
        CString::new(s).map_err(|_| Errno::EINVAL)
    }
    // SAFETY: constant strings and numbers; fresh descriptors.
    let fs =
        adopt(check(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1) })? as RawFd);
    for (key, value) in options {
        let key = text(key)?;
        let value = text(value)?;
        // SAFETY: a live descriptor and NUL-terminated strings that outlive the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                fs.as_raw_fd(),
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            )
        })?;
    }
    // SAFETY: as above; null key and value are what this command takes.
    check(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            fs.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            std::ptr::null::<u8>(),
            std::ptr::null::<u8>(),
            0,
        )
    })?;
    // SAFETY: numbers only.
    let mount = check(unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            fs.as_raw_fd(),
            1,
            attributes as libc::c_uint,
        )
    })?;
    Ok(adopt(mount as RawFd))
}

/// The last capability this kernel knows: PR_CAPBSET_READ fails for later ones.
pub fn last_capability() -> u32 {
    // SAFETY: numbers only.
    (0..64).take_while(|number: &u32| unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(*number), 0, 0, 0) } >= 0).last().unwrap_or(63)
}

/// Resets all signals, so that none is ignored or blocked: the tool inherits both. (By system
/// calls, since the C library reserves two signals.)
pub fn reset_signals() {
    let usual = [0u64; 4];
    let none = 0u64;
    for signal in 1..=64 {
        // SAFETY: `usual` has the layout of the kernel's struct sigaction (handler, flags,
        // restorer, mask), and zeroes are SIG_DFL. SIGKILL and SIGSTOP answer EINVAL, which changes
        // nothing.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                usual.as_ptr(),
                std::ptr::null::<u64>(),
                8,
            )
        };
    }
    // SAFETY: a set of signals is eight bytes, whose size is passed.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null::<u64>(),
            8,
        )
    };
}

/// First step of a program that starts launchers. Its caller may have left SIGCHLD ignored, and
/// then the kernel forgets children before they can be waited for.
pub fn reset_sigchld() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Makes a write beyond the file size limit return an error, not end this process (setrlimit(2),
/// RLIMIT_FSIZE).
pub fn ignore_sigxfsz() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether standard output was closed when this process began.
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`: after that, Rust's runtime has opened /dev/null in place of each closed
/// standard stream.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK_STDOUT: extern "C" fn() = check_stdout;

extern "C" fn check_stdout() {
    // SAFETY: it asks for the flags of a descriptor, open or not.
    let closed = unsafe { libc::fcntl(1, libc::F_GETFD) } < 0;
    OUTPUT_CLOSED.store(closed, Ordering::Relaxed);
}

pub fn output_was_closed() -> bool {
    OUTPUT_CLOSED.load(Ordering::Relaxed)
}

/// The Landlock ABI of this kernel; less than 1: none, or it is off. landlock_create_ruleset(2)
/// with the version flag.
pub fn landlock_abi() -> i32 {
    // SAFETY: a null attribute with size 0 and flag 1 asks for the version.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            1,
        )
    };
    i32::try_from(abi).unwrap_or(0)
}

/// A system call that waits for an answer (seccomp_unotify(2)).
#[derive(Clone, Copy, Debug)]
pub struct SeccompNotification {
    pub id: u64,
    /// The thread, in our pid namespace.
    pub thread: u32,
    pub number: u32,
    pub args: [u64; 6],
}

/// Takes the next notification of a seccomp listener.
pub fn receive_notification(listener: BorrowedFd) -> Result<SeccompNotification, Errno> {
    // SAFETY: plain numbers, for which all zeroes is a value, as the call asks for; its size is
    // part of the request.
    let notif = unsafe {
        let mut notif: libc::seccomp_notif = std::mem::zeroed();
        check(
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &raw mut notif,
            )
            .into(),
        )?;
        notif
    };
    Ok(SeccompNotification {
        id: notif.id,
        thread: notif.pid,
        number: notif.data.nr as u32,
        args: notif.data.args,
    })
}

/// Answers a notification: the call fails with this error, or (`None`) goes on to the kernel and
/// the other layers.
pub fn respond(listener: BorrowedFd, id: u64, errno: Option<i32>) -> Result<(), Errno> {
    let flags = if errno.is_none() {
        libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32
    } else {
        0
    };
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: -errno.unwrap_or(0),
        flags,
    };
    // SAFETY: a live descriptor and a local of the size that is part of the request.
    check(
        unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const response,
            )
        }
        .into(),
    )
    .map(drop)
}

/// Whether a notification still waits for its answer. If so, its thread id still belongs to the
/// thread that called.
pub fn is_valid(listener: BorrowedFd, id: u64) -> bool {
    // SAFETY: a live descriptor and a local of the size that is part of the request.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        ) == 0
    }
}

/// Needed to read the memory of a process and enter its root.
pub const CAP_SYS_PTRACE: u32 = 1 << 19;
/// The next two are needed to enter user and mount namespaces (setns(2)).
pub const CAP_SYS_CHROOT: u32 = 1 << 18;
pub const CAP_SYS_ADMIN: u32 = 1 << 21;

/// Drops all capabilities but these, and sets no_new_privs, so that no program gives others back.
pub fn keep_capabilities(kept: u32) -> Result<(), Errno> {
    nix::sys::prctl::set_no_new_privs()?;
    let header: [u32; 2] = [0x2008_0522, 0]; // _LINUX_CAPABILITY_VERSION_3, ourselves
    let sets: [u32; 6] = [kept, kept, 0, 0, 0, 0];
    // SAFETY: both have the layout that this version asks for: two sets of effective, permitted and
    // inheritable bits.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }).map(drop)
}

/// The metadata of a file, without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    pub device: (u32, u32),
    pub inode: u64,
    pub mode: u32,
    pub owner: u32,
    pub size: u64,
    /// Number of hard links; 0: the file was removed.
    pub links: u32,
}

/// statx(2) of `path`, without following a link. Does not read times: that makes the file's next
/// change store new ones, which is slow for frequent small writes (multigrain timestamps, Linux
/// 6.13).
pub fn lstat(path: &CStr) -> Result<FileStatus, Errno> {
    statx(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// As `lstat`, for an open file.
pub fn fstat(file: BorrowedFd) -> Result<FileStatus, Errno> {
    statx(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

fn statx(folder: RawFd, path: &CStr, flags: i32) -> Result<FileStatus, Errno> {
    let wanted = libc::STATX_TYPE
        | libc::STATX_MODE
        | libc::STATX_UID
        | libc::STATX_INO
        | libc::STATX_SIZE
        | libc::STATX_NLINK;
    // SAFETY: statx is plain numbers, for which all zeroes is a value; the path ends in NUL; the
    // result is a local.
    let (result, facts) = unsafe {
        let mut facts: libc::statx = std::mem::zeroed();
        (
            libc::statx(folder, path.as_ptr(), flags, wanted, &mut facts),
            facts,
        )
    };
    check(result.into())?;
    Ok(FileStatus {
        device: (facts.stx_dev_major, facts.stx_dev_minor),
        inode: facts.stx_ino,
        mode: facts.stx_mode.into(),
        owner: facts.stx_uid,
        size: facts.stx_size,
        links: facts.stx_nlink,
    })
}

/// The machine code of the init (`init`). It runs at any address.
pub fn init_code() -> &'static [u8] {
    unsafe extern "C" {
        static toolhost_init_code: [u8; 0];
        static toolhost_init_end: [u8; 0];
    }
    // SAFETY: both are labels of one block of constants, the second behind the first.
    unsafe {
        let start = (&raw const toolhost_init_code).cast::<u8>();
        let end = (&raw const toolhost_init_end).cast::<u8>();
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    }
}

// Writes a byte to descriptor 1, for which the tool's process waits, then waits for every child.
// When the tool ends (pid 2, the first process that pid 1 made), it writes the wait status to
// descriptor 0 and kills the rest. It waits for the rest too, so that their CPU time is counted,
// and exits.
std::arch::global_asm!(
    ".pushsection .rodata.toolhost_init, \"a\"",
    ".globl toolhost_init_code",
    "toolhost_init_code:",
    "    sub rsp, 16",
    "    mov eax, 1", // write(1, &status, 1)
    "    mov edi, 1",
    "    mov rsi, rsp",
    "    mov edx, 1",
    "    syscall",
    "2:  mov eax, 61", // wait4(-1, &status, 0, NULL)
    "    mov rdi, -1",
    "    mov rsi, rsp",
    "    xor edx, edx",
    "    xor r10d, r10d",
    "    syscall",
    "    cmp rax, -10", // ECHILD: no child is left
    "    je 3f",
    "    cmp rax, 2",
    "    jne 2b",
    "    mov eax, 1", // write(0, &status, 4)
    "    xor edi, edi",
    "    mov rsi, rsp",
    "    mov edx, 4",
    "    syscall",
    "    mov eax, 62", // kill(-1, SIGKILL)
    "    mov rdi, -1",
    "    mov esi, 9",
    "    syscall",
    "    jmp 2b",
    "3:  mov eax, 231", // exit_group(0)
    "    xor edi, edi",
    "    syscall",
    ".globl toolhost_init_end",
    "toolhost_init_end:",
    ".popsection",
);
