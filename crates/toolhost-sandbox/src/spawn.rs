//! Spawn: performs a plan between clone(2) and execve(2).
#![allow(
    unsafe_code,
    reason = "a child that shares our memory; each block says why it is sound"
)]

use super::plan::{Plan, Program, Step};
use super::sys::{check, wait4};
use crate::protocol::Problem;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use toolhost_base::messages::adopt;

struct Child<'a> {
    plan: &'a Plan,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// The stack of the tool's process until it executes.
    stack: *mut libc::c_void,
    /// The ends of a pipe: the tool's process reads, and the init writes once it runs.
    gate: [RawFd; 2],
    /// The step that failed. A child can allocate nothing, so this becomes a `Problem` in its
    /// parent.
    failed: std::cell::Cell<Option<(&'a (&'static str, Step), Errno)>>,
}

/// A stack for a child that shares our memory, and its 16-byte aligned top.
fn stack() -> (Vec<u8>, *mut libc::c_void) {
    let mut stack = vec![0u8; 128 * 1024];
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top as usize % 16);
    (stack, top.cast())
}

/// Clones with new namespaces and performs the plan in the child, which becomes the tool or starts
/// it.
///
/// A child shares our memory and we are suspended until it executes or exits (CLONE_VM |
/// CLONE_VFORK), which is four times cheaper than copying. So a child only makes system calls on
/// data made before.
///
/// The tool executes after pid 1 has become the init, so its process waits at a gate and outlives
/// pid 1's use of our memory. Only that process keeps the gate's reading end until it executes or
/// exits, and we wait for that.
pub fn spawn(plan: &Plan) -> Result<(i32, OwnedFd), Problem> {
    fn pointers(list: &[CString]) -> Vec<*const i8> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect()
    }
    let (_own, own_top) = stack();
    let (_tool, tool_top) = stack();
    let (reading, writing) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
        .map_err(Problem::from_layer("namespaces", "pipe2(2)"))?;
    let child = Child {
        plan,
        argv: pointers(&plan.arguments),
        envp: pointers(&plan.environment),
        stack: tool_top,
        gate: [reading.as_raw_fd(), writing.as_raw_fd()],
        failed: std::cell::Cell::new(None),
    };
    let mut pidfd: RawFd = -1;
    let flags =
        plan.namespaces | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the stacks are ours and large enough; `child` and they outlive the use of our memory
    // by our child, because CLONE_VFORK suspends us until its execve or _exit, and by its child,
    // for which we wait below; our other threads wait for their next walk.
    let pid = unsafe {
        libc::clone(
            run_child,
            own_top,
            flags,
            (&raw const child).cast_mut().cast(),
            &raw mut pidfd,
        )
    };
    let pid = check(pid.into()).map_err(Problem::from_layer("namespaces", "clone(2)"))? as i32;
    let pidfd = adopt(pidfd);
    drop(reading);
    // A pipe that nobody reads is ready, with POLLERR (poll(2)).
    while poll(
        &mut [PollFd::new(writing.as_fd(), PollFlags::empty())],
        PollTimeout::NONE,
    ) != Ok(1)
    {}
    if let Some(((layer, step), errno)) = child.failed.get() {
        let _ = wait4(pid, true);
        return Err(Problem::from_layer(layer, step.name())(errno));
    }
    Ok((pid, pidfd))
}

extern "C" fn run_child(data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a pointer to its own `Child`, which lives until we execute or exit.
    let child = unsafe { &*(data as *const Child) };
    perform_all(child, &child.plan.steps)
}

extern "C" fn run_tool(data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: as above.
    let child = unsafe { &*(data as *const Child) };
    let mut byte = 0u8;
    // If pid 1 fails instead, the kernel kills this process with it. SAFETY: a local of that size.
    while unsafe { libc::read(child.gate[0], (&raw mut byte).cast(), 1) } != 1 {}
    perform_all(child, &child.plan.tool)
}

/// Performs the steps, of which the last one executes. If a step fails, notes it and ends the
/// process.
fn perform_all<'a>(child: &Child<'a>, steps: &'a [(&'static str, Step)]) -> ! {
    for named in steps {
        if perform(child, &named.1) < 0 {
            child
                .failed
                .set(child.failed.get().or(Some((named, Errno::last()))));
            break;
        }
    }
    // SAFETY: ends this process only.
    unsafe { libc::_exit(127) }
}

/// One step. Only system calls here and below: no allocation, no panic, no lock.
fn perform(child: &Child, step: &Step) -> libc::c_long {
    // SAFETY: all strings are NUL-terminated and all buffers live in the plan, which outlives this
    // child.
    unsafe {
        match step {
            Step::Write { fd, data } => {
                libc::write(*fd, data.as_ptr().cast(), data.len()) as libc::c_long
            }
            Step::WriteFile { path, data } => write_file(path, data),
            Step::SetIds(id) => {
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
            Step::Nicer(by) => {
                // The system call returns 20 minus the nice value (getpriority(2)), so that no
                // result is negative.
                let now =
                    20 - libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) as libc::c_int;
                libc::setpriority(libc::PRIO_PROCESS, 0, now.max(0) + *by).into()
            }
            Step::Limit { resource, value } => {
                let limit = libc::rlimit {
                    rlim_cur: *value,
                    rlim_max: *value,
                };
                libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, 0)
            }
            Step::NoNewPrivileges => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into(),
            Step::DropBounding(last) => drop_bounding(*last),
            Step::DropCapabilities => drop_capabilities(),
            Step::LandlockPath {
                ruleset,
                path,
                access,
            } => allow_path(*ruleset, path, *access),
            Step::LandlockRestrict(ruleset) => {
                libc::syscall(libc::SYS_landlock_restrict_self, *ruleset, 0)
            }
            Step::Seccomp {
                program,
                listener,
                flags,
            } => filter(program, *listener, *flags),
            Step::Undumpable => libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into(),
            Step::Start => {
                let data = (&raw const *child).cast_mut().cast();
                libc::clone(run_tool, child.stack, libc::CLONE_VM | libc::SIGCHLD, data).into()
            }
            Step::Become(fd) => become_init(*fd, child.gate[1]),
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

fn write_file(path: &CStr, data: &[u8]) -> libc::c_long {
    // SAFETY: the string is NUL-terminated, and `data` has this length.
    unsafe {
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
}

fn drop_bounding(last: u32) -> libc::c_long {
    for capability in 0..=last {
        // SAFETY: takes numbers alone.
        let dropped =
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) };
        if dropped < 0 {
            return -1;
        }
    }
    0
}

fn drop_capabilities() -> libc::c_long {
    #[repr(C)]
    struct Header(u32, libc::c_int);
    let header = Header(0x2008_0522, 0); // _LINUX_CAPABILITY_VERSION_3, ourselves
    let none = [0u32; 6];
    // SAFETY: locals of the layout that capset(2) reads.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) }
}

fn allow_path(ruleset: RawFd, path: &CStr, access: u64) -> libc::c_long {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    // SAFETY: the string is NUL-terminated, and `rule` a local of the layout that the call reads.
    unsafe {
        let parent = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        if parent < 0 {
            return -1;
        }
        let rule = PathBeneath { access, parent };
        libc::syscall(libc::SYS_landlock_add_rule, ruleset, 1, &raw const rule, 0)
    }
}

fn filter(
    program: &[libc::sock_filter],
    listener: Option<RawFd>,
    flags: libc::c_ulong,
) -> libc::c_long {
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = if listener.is_some() { flags } else { 0 };
    // SAFETY: `fprog` is a local that points to a program of this length.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const fprog,
        )
    };
    match listener {
        Some(socket) if made >= 0 => hand_over(socket, made as RawFd),
        _ => made,
    }
}

fn become_init(init: RawFd, gate: RawFd) -> libc::c_long {
    let nothing = [std::ptr::null::<libc::c_char>()];
    // SAFETY: the empty string and the empty lists are constants.
    unsafe {
        if libc::dup2(gate, 1) < 0 {
            return -1;
        }
        libc::syscall(
            libc::SYS_execveat,
            init,
            c"".as_ptr(),
            nothing.as_ptr(),
            nothing.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    }
}

/// Sends a descriptor beside one byte (SCM_RIGHTS, unix(7)). Uses only local variables: nothing may
/// be allocated.
fn hand_over(socket: RawFd, descriptor: RawFd) -> libc::c_long {
    #[repr(C)]
    struct Rights {
        header: libc::cmsghdr,
        descriptor: RawFd,
    }
    // SAFETY: both are plain numbers and pointers, for which all zeroes is a value; what they point
    // to are locals.
    unsafe {
        let mut rights: Rights = std::mem::zeroed();
        let mut message: libc::msghdr = std::mem::zeroed();
        rights.header.cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) as usize;
        rights.header.cmsg_level = libc::SOL_SOCKET;
        rights.header.cmsg_type = libc::SCM_RIGHTS;
        rights.descriptor = descriptor;
        let mut bytes = libc::iovec {
            iov_base: (&raw const BYTE).cast_mut().cast(),
            iov_len: 1,
        };
        message.msg_iov = &raw mut bytes;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of::<Rights>();
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) as libc::c_long
    }
}

static BYTE: u8 = 0;
