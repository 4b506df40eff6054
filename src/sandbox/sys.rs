//! The only file with `unsafe`: one small function per system call that no crate wraps, and `spawn`,
//! which performs a plan between clone(2) and execve(2).
#![allow(unsafe_code, reason = "raw system calls; each block says why it is sound")]

use super::plan::{Plan, Program, Step};
use nix::errno::Errno;
use nix::libc;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Takes over a descriptor that recvmsg(2) just made for us.
pub fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel handed this number to us in SCM_RIGHTS; nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
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
    let flags: libc::c_uint = if on_exec_only { libc::CLOSE_RANGE_CLOEXEC as _ } else { 0 };
    // SAFETY: numbers only. Callers hold no owned descriptor in the range they close.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) }).map(drop)
}

/// pidfd_open(2)
pub fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers only; the result is a fresh descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    Ok(adopt(fd as RawFd))
}

/// What wait4(2) says of a dead child.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    pub status: i32,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
}

/// wait4(2); `None` while it lives.
pub fn wait4(pid: i32, block: bool) -> Result<Option<Waited>, Errno> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value; both pointers are to locals.
    let (result, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let flags = if block { 0 } else { libc::WNOHANG };
        (libc::wait4(pid, &mut status, flags, &mut usage), usage)
    };
    if check(result.into())? == 0 {
        return Ok(None);
    }
    let ms = |t: libc::timeval| (t.tv_sec as u64) * 1000 + (t.tv_usec as u64) / 1000;
    let cpu_ms = ms(usage.ru_utime) + ms(usage.ru_stime);
    Ok(Some(Waited { status, cpu_ms, peak_bytes: usage.ru_maxrss as u64 * 1024 }))
}

/// A detached mount of `path` (below `dir` when relative, `dir` itself when empty): open_tree(2).
pub fn open_tree(dir: BorrowedFd, path: &CStr, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    // SAFETY: a live descriptor and a NUL-terminated string; the result is a fresh descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags) })?;
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
    let text = |s: &str| CString::new(s).map_err(|_| Errno::EINVAL);
    // SAFETY: constant strings and numbers; fresh descriptors.
    let fs = adopt(check(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1) })? as RawFd);
    for (key, value) in options {
        let (key, value) = (text(key)?, text(value)?);
        // SAFETY: a live descriptor and NUL-terminated strings that outlive the call.
        check(unsafe {
            libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr(), 0)
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
    let mount = check(unsafe { libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), 1, attributes as libc::c_uint) })?;
    Ok(adopt(mount as RawFd))
}

/// No transparent huge pages in this process and all it starts: PR_SET_THP_DISABLE.
pub fn no_huge_pages() -> Result<(), Errno> {
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }.into()).map(drop)
}

/// The last capability this kernel knows: it says nothing of a later one (PR_CAPBSET_READ).
pub fn last_capability() -> u32 {
    // SAFETY: numbers only.
    let known =
        |number: &u32| unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(*number), 0, 0, 0) } >= 0;
    (0..64).take_while(known).last().unwrap_or(63)
}

/// All signals as a program expects them that was started by nobody in particular: none ignored, none blocked. What is
/// ignored or blocked here, the tool would inherit. (By system calls, since the C library keeps two signals to itself.)
pub fn usual_signals() {
    let (usual, none) = ([0u64; 4], 0u64);
    for signal in 1..=64 {
        // SAFETY: `usual` has the layout of the kernel's struct sigaction (handler, flags, restorer, mask), and zeroes
        // are SIG_DFL. SIGKILL and SIGSTOP answer EINVAL, which changes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, usual.as_ptr(), std::ptr::null::<u64>(), 8) };
    }
    // SAFETY: a set of signals is eight bytes, whose size is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, std::ptr::null::<u64>(), 8) };
}

/// Whoever ignores SIGCHLD cannot wait for children: the kernel forgets them. And a file that is too large is an error of
/// this host, not its end (setrlimit(2), RLIMIT_FSIZE).
pub fn children_are_told() {
    // SAFETY: SIG_DFL and SIG_IGN are valid dispositions.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: the same.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether standard output was closed when this process began.
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Before `main`: from then on Rust's runtime has /dev/null in the place of a standard stream that was closed.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: it asks for the flags of a descriptor, open or not.
    let closed = unsafe { libc::fcntl(1, libc::F_GETFD) } < 0;
    OUTPUT_CLOSED.store(closed, Ordering::Relaxed);
}

pub fn output_was_closed() -> bool {
    OUTPUT_CLOSED.load(Ordering::Relaxed)
}

/// A plan that failed: which step, and why.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    pub wall: &'static str,
    pub step: &'static str,
    pub errno: Errno,
    /// The tool had been started.
    pub late: bool,
}

struct Child<'a> {
    plan: &'a Plan,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// Where the tool's process runs until it executes.
    stack: *mut libc::c_void,
    started: std::cell::Cell<bool>,
    failed: std::cell::Cell<Option<Failed>>,
}

/// A stack for a child that shares our memory, and its top, which is 16-byte aligned.
fn stack() -> (Vec<u8>, *mut libc::c_void) {
    let mut stack = vec![0u8; 128 * 1024];
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top as usize % 16);
    (stack, top.cast())
}

/// Clones with new namespaces and performs the plan in the child, which becomes the tool or starts it.
///
/// A child shares our memory and we are suspended until it executes or exits (CLONE_VM | CLONE_VFORK),
/// which is four times cheaper than copying. So a child only makes system calls on data made before.
pub fn spawn(plan: &Plan) -> Result<(i32, OwnedFd), Failed> {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let ((_own, own_top), (_tool, tool_top)) = (stack(), stack());
    let child = Child {
        plan,
        argv: pointers(&plan.arguments),
        envp: pointers(&plan.environment),
        stack: tool_top,
        started: std::cell::Cell::new(false),
        failed: std::cell::Cell::new(None),
    };
    let mut pidfd: RawFd = -1;
    let flags = plan.namespaces | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the stacks are ours and large enough; `child` and they outlive the use of our memory by our child and its
    // child, because CLONE_VFORK suspends each parent until execve or _exit; the process has one thread.
    let pid = unsafe { libc::clone(run_child, own_top, flags, (&raw const child).cast_mut().cast(), &raw mut pidfd) };
    let cloning = |errno| Failed { wall: "namespaces", step: "clone(2)", errno, late: false };
    let pid = check(pid.into()).map_err(cloning)? as i32;
    let pidfd = adopt(pidfd);
    if let Some(failed) = child.failed.get() {
        let _ = wait4(pid, true);
        return Err(Failed { late: child.started.get(), ..failed });
    }
    Ok((pid, pidfd))
}

extern "C" fn run_child(data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a pointer to its own `Child`, which lives until we execute or exit.
    let child = unsafe { &*(data as *const Child) };
    perform_all(child, &child.plan.steps)
}

extern "C" fn run_tool(data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: as above; our parent waits.
    let child = unsafe { &*(data as *const Child) };
    perform_all(child, &child.plan.tool)
}

/// Returns only by the end of the process, when a step failed.
fn perform_all(child: &Child, steps: &[(&'static str, Step)]) -> ! {
    for (wall, step) in steps {
        if perform(child, step) < 0 {
            let failed = Failed { wall, step: step.name(), errno: Errno::last(), late: false };
            child.failed.set(child.failed.get().or(Some(failed)));
            break;
        }
    }
    // SAFETY: ends this process only.
    unsafe { libc::_exit(127) }
}

/// One step. Only system calls: no allocation, no panic, no lock.
fn perform(child: &Child, step: &Step) -> libc::c_long {
    // SAFETY: all strings are NUL-terminated and all buffers live in the plan, which outlives this child.
    unsafe {
        match step {
            Step::Write { fd, data } => libc::write(*fd, data.as_ptr().cast(), data.len()) as libc::c_long,
            Step::WriteFile { path, data, .. } => {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd < 0 {
                    return -1;
                }
                let wrote = libc::write(fd, data.as_ptr().cast(), data.len());
                let wrote_errno = Errno::last_raw();
                libc::close(fd);
                if wrote < 0 {
                    Errno::set_raw(wrote_errno);
                }
                wrote as libc::c_long
            }
            Step::SetIds { id } => {
                if libc::syscall(libc::SYS_setresgid, *id, *id, *id) < 0 {
                    return -1;
                }
                libc::syscall(libc::SYS_setresuid, *id, *id, *id)
            }
            Step::OwnCgroup => libc::unshare(libc::CLONE_NEWCGROUP).into(),
            Step::MountProc => libc::mount(
                c"proc".as_ptr(),
                c"/proc".as_ptr(),
                c"proc".as_ptr(),
                libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
                std::ptr::null(),
            )
            .into(),
            Step::Chdir(path) => libc::chdir(path.as_ptr()).into(),
            Step::Duplicate { from, to } => libc::dup2(*from, *to).into(),
            Step::CloseOnExecFrom(first) => libc::syscall(
                libc::SYS_close_range,
                *first,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC as libc::c_uint,
            ),
            Step::Setsid => libc::setsid().into(),
            Step::Nice(nice) => libc::setpriority(libc::PRIO_PROCESS, 0, *nice).into(),
            Step::Limit { resource, value } => {
                let limit = libc::rlimit { rlim_cur: *value, rlim_max: *value };
                libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, 0)
            }
            Step::NoNewPrivileges => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into(),
            Step::DropBounding { last } => {
                for capability in 0..=*last {
                    if libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) < 0 {
                        return -1;
                    }
                }
                0
            }
            Step::DropCapabilities => {
                #[repr(C)]
                struct Header(u32, libc::c_int);
                let header = Header(0x2008_0522, 0); // _LINUX_CAPABILITY_VERSION_3, ourselves
                let none = [0u32; 6];
                libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr())
            }
            Step::LandlockPath { ruleset, path, access } => {
                #[repr(C, packed)]
                struct PathBeneath {
                    access: u64,
                    parent: i32,
                }
                let fd = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
                if fd < 0 {
                    return -1;
                }
                let rule = PathBeneath { access: *access, parent: fd };
                libc::syscall(libc::SYS_landlock_add_rule, *ruleset, 1, &raw const rule, 0)
            }
            Step::LandlockRestrict { ruleset } => libc::syscall(libc::SYS_landlock_restrict_self, *ruleset, 0),
            Step::Seccomp { program } => {
                let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const fprog)
            }
            Step::Undumpable => libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into(),
            Step::Start => {
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                let data = (&raw const *child).cast_mut().cast();
                let pid = libc::clone(run_tool, child.stack, flags, data);
                if pid > 0 && child.failed.get().is_some() {
                    return -1;
                }
                child.started.set(pid > 0);
                pid.into()
            }
            Step::Become(fd) => {
                let nothing = [std::ptr::null::<libc::c_char>()];
                let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
                libc::syscall(libc::SYS_execveat, *fd, path, nothing.as_ptr(), nothing.as_ptr(), flags)
            }
            Step::Execute(Program::Path(path)) => {
                libc::execve(path.as_ptr(), child.argv.as_ptr(), child.envp.as_ptr()).into()
            }
            Step::Execute(Program::Descriptor(fd)) => libc::syscall(
                libc::SYS_execveat,
                *fd,
                c"".as_ptr(),
                child.argv.as_ptr(),
                child.envp.as_ptr(),
                libc::AT_EMPTY_PATH,
            ),
        }
    }
}

/// The access mask of the filesystem rights that this kernel's Landlock handles: landlock_create_ruleset(2)
/// with the version flag.
pub fn landlock_abi() -> i32 {
    // SAFETY: a null attribute with size 0 and flag 1 asks for the version.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) };
    i32::try_from(abi).unwrap_or(0)
}

/// What a path names, without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lstat {
    pub device: (u32, u32),
    pub inode: u64,
    pub mode: u32,
    pub owner: u32,
    pub size: u64,
    /// Names it has; 0 = it was removed.
    pub links: u32,
}

/// statx(2) of what `path` itself names. A file whose times were asked for gets new ones written at its next change,
/// which who writes a little very often pays for (multigrain timestamps, Linux 6.13); so they are not asked for.
pub fn lstat(path: &CStr) -> Result<Lstat, Errno> {
    statx(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// The same of an open file.
pub fn fstat(file: BorrowedFd) -> Result<Lstat, Errno> {
    statx(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

fn statx(folder: RawFd, path: &CStr, flags: i32) -> Result<Lstat, Errno> {
    let wanted =
        libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_NLINK;
    // SAFETY: statx is plain numbers, for which all zeroes is a value; the path ends in NUL; the result is a local.
    let (result, facts) = unsafe {
        let mut facts: libc::statx = std::mem::zeroed();
        (libc::statx(folder, path.as_ptr(), flags, wanted, &mut facts), facts)
    };
    check(result.into())?;
    Ok(Lstat {
        device: (facts.stx_dev_major, facts.stx_dev_minor),
        inode: facts.stx_ino,
        mode: facts.stx_mode.into(),
        owner: facts.stx_uid,
        size: facts.stx_size,
        links: facts.stx_nlink,
    })
}

/// The instructions of the init (`init`), which need no address of their own.
pub fn init_code() -> &'static [u8] {
    unsafe extern "C" {
        static toolhost_init_code: [u8; 0];
        static toolhost_init_end: [u8; 0];
    }
    // SAFETY: both are labels of one block of constants, the second behind the first.
    unsafe {
        let (start, end) = ((&raw const toolhost_init_code).cast::<u8>(), (&raw const toolhost_init_end).cast::<u8>());
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    }
}

// Waits for every child. When that was the tool, which is the first process that pid 1 made and so pid 2, writes its wait
// status to descriptor 0, kills what is left, waits for that too, so that its CPU time is counted, and exits.
std::arch::global_asm!(
    ".pushsection .rodata.toolhost_init, \"a\"",
    ".globl toolhost_init_code",
    "toolhost_init_code:",
    "    sub rsp, 16",
    "2:  mov eax, 61", // wait4(-1, &status, 0, NULL)
    "    mov rdi, -1",
    "    mov rsi, rsp",
    "    xor edx, edx",
    "    xor r10d, r10d",
    "    syscall",
    "    cmp rax, -10", // ECHILD: everybody has been waited for
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
