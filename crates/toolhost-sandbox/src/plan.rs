//! Plan: what the child does between clone(2) and execve(2), as plain data.
//!
//! Each layer adds its steps; `spawn` performs them in order and stops at the first that fails,
//! so a layer that cannot be raised refuses the call. Data only, so it can be read and tested.
//!
//! Pid 1 of the call performs `steps`. `Step::Start` makes its child, which performs `tool` and
//! inherits the layers that were raised before, and waits; then pid 1 goes on and becomes the init,
//! which lets it go on.

use nix::libc;
use std::ffi::CString;
use std::os::fd::RawFd;
use toolhost_base::mask::Hidden;

/// What is executed at the end.
#[derive(Clone, Debug)]
pub enum Program {
    Path(CString),
    Descriptor(RawFd),
}

#[derive(Clone, Debug)]
pub enum Step {
    /// write(2) to a descriptor that is already open.
    Write {
        fd: RawFd,
        data: &'static [u8],
    },
    /// open(2), write(2), close(2).
    WriteFile {
        path: CString,
        data: Vec<u8>,
    },
    /// setresgid(2) and setresuid(2), all three ids.
    SetIds(u32),
    /// A cgroup namespace of its own.
    OwnCgroup,
    /// The call's own /proc, read-only.
    MountProc,
    Chdir(CString),
    Duplicate {
        from: RawFd,
        to: RawFd,
    },
    /// All descriptors from this number on are closed by execve(2).
    CloseOnExecFrom(u32),
    Setsid,
    /// setpriority(2): adds this to the nice value of the parent, or to 0 if the parent's is
    /// negative.
    Nicer(i32),
    /// prlimit(2), soft and hard.
    Limit {
        resource: u32,
        value: u64,
    },
    NoNewPrivileges,
    /// Empties the bounding set, up to this capability.
    DropBounding(u32),
    /// Empties the permitted, effective and inheritable sets.
    DropCapabilities,
    /// Adds a rule for the file that the path leads to now.
    LandlockPath {
        ruleset: RawFd,
        path: CString,
        access: u64,
    },
    LandlockRestrict(RawFd),
    /// `listener`: where the filter's listener is sent, if it has one, made with these flags.
    Seccomp {
        program: Vec<libc::sock_filter>,
        listener: Option<RawFd>,
        flags: libc::c_ulong,
    },
    /// Closes memory and descriptors to other processes of the same uid: prctl(PR_SET_DUMPABLE).
    Undumpable,
    /// Makes a child, which performs the plan's `tool` once the init runs.
    Start,
    Execute(Program),
    /// execveat(2) of an open file, the init, without arguments and environment. As descriptor 1 it
    /// gets the gate at which the tool's process waits.
    Become(RawFd),
}

/// All steps, each under the name of the layer it belongs to.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub namespaces: libc::c_int,
    pub steps: Vec<(&'static str, Step)>,
    /// Steps of the child that `Step::Start` makes.
    pub tool: Vec<(&'static str, Step)>,
    pub arguments: Vec<CString>,
    pub environment: Hidden<Vec<CString>>,
}

impl Plan {
    pub fn add(&mut self, layer: &'static str, step: Step) {
        self.steps.push((layer, step));
    }

    pub fn add_tool(&mut self, layer: &'static str, step: Step) {
        self.tool.push((layer, step));
    }

    /// The tool's last step: execute, with these arguments and this environment and no other.
    pub fn execute(&mut self, program: Program, arguments: &[String], environment: &[String]) {
        fn strings(list: &[String]) -> Vec<CString> {
            list.iter()
                .map(|s| CString::new(s.as_str()).unwrap_or_default())
                .collect()
        }
        self.arguments = strings(arguments);
        self.environment = Hidden(strings(environment));
        self.add_tool("view", Step::Execute(program));
    }
}

impl Step {
    /// The name of the step in a refusal, for example `MountProc`.
    pub fn name(&self) -> String {
        match self {
            Step::WriteFile { path, .. } => format!("WriteFile {}", path.to_string_lossy()),
            step => format!("{step:?}")
                .split([' ', '('])
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}
