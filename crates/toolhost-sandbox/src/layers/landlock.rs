//! Layer: Landlock. A second check of file access, behind the view: what may be written, made and
//! executed.
//!
//! It also stops reopening a descriptor with more rights, TCP, signals to outside and abstract
//! sockets, as far as this kernel's Landlock can.
//!
//! With the read-only view and the filter it keeps what is granted for reading as it is: a tool
//! cannot write or truncate such a file, or change its owner, times, labels or the properties in
//! its file system (encryption keys, flags, hints), and cannot requeue a program that waits on a
//! futex in it. It can wait on such a futex and take advisory locks: files that other programs use
//! as locks (LMDB's `lock.mdb`) are not to be granted.
//!
//! Landlock has no rule for a port that a call's own server got. So a call with sockets is left to
//! its network namespace, which holds only the call and its relay, and to the relay, which checks
//! each connection.

use crate::plan::{Plan, Step};
use ::landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use nix::errno::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What a path opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Read files, list folders, run programs.
    ReadRun,
    /// Read and list.
    Read,
    /// List only.
    List,
    /// Read, write, make and remove plain files and folders.
    Write,
    /// As `Write`, and symbolic links and pipes, and sockets where a tool may have some: for the
    /// call's own scratch, where no grant is shown below it.
    Scratch,
    /// Devices: read and write the file, no more.
    Device,
}

/// A ruleset that is being filled.
pub struct RuleBuilder {
    abi: ABI,
    local: bool,
    created: RulesetCreated,
}

/// What this kernel's Landlock cannot do, for the outcome.
pub fn missing_features(abi: i32) -> Vec<&'static str> {
    [
        (2, "moving between folders"),
        (3, "truncation"),
        (4, "TCP"),
        (5, "device ioctls"),
        (6, "signals and abstract sockets"),
    ]
    .into_iter()
    .filter_map(|(since, what)| (abi < since).then_some(what))
    .collect()
}

fn rights(right: Right, local: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
        | AccessFs::Truncate;
    let sockets = if local {
        AccessFs::MakeSock.into()
    } else {
        BitFlags::empty()
    };
    match right {
        Right::ReadRun => read | AccessFs::Execute,
        Right::Read => read,
        Right::List => AccessFs::ReadDir.into(),
        Right::Write => write,
        Right::Scratch => write | AccessFs::MakeSym | AccessFs::MakeFifo | sockets,
        Right::Device => {
            AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
        }
    }
}

impl RuleBuilder {
    /// A ruleset that handles everything this kernel's Landlock knows, and allows nothing yet.
    /// `local`: the tool may have sockets of its own. Landlock has no rule for a port that the
    /// tool's own server got, so TCP is left to the network namespace and the relay.
    pub fn new(abi: i32, local: bool) -> Result<RuleBuilder, String> {
        let abi = ABI::from(abi);
        fn text(e: ::landlock::RulesetError) -> String {
            e.to_string()
        }
        // The version was asked just before, so the kernel must support all that this version has.
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(text)?;
        if abi >= ABI::V4 && !local {
            ruleset = ruleset
                .handle_access(AccessNet::from_all(abi))
                .map_err(text)?;
        }
        if abi >= ABI::V6 {
            ruleset = ruleset.scope(Scope::from_all(abi)).map_err(text)?;
        }
        Ok(RuleBuilder {
            abi,
            local,
            created: ruleset.create().map_err(text)?,
        })
    }

    pub fn allow(self, file: &OwnedFd, folder: bool, right: Right) -> Result<RuleBuilder, String> {
        let possible = if folder {
            AccessFs::from_all(self.abi)
        } else {
            AccessFs::from_file(self.abi)
        };
        let access = rights(right, self.local) & possible;
        let rule = PathBeneath::new(file.as_fd(), access);
        let created = self.created.add_rule(rule).map_err(|e| e.to_string())?;
        Ok(RuleBuilder { created, ..self })
    }

    /// TCP connections to these ports and the stub's. Nothing is allowed to bind.
    pub fn connect(self, ports: &[u16]) -> Result<RuleBuilder, String> {
        let RuleBuilder {
            abi,
            local,
            mut created,
        } = self;
        for port in ports
            .iter()
            .chain(&[super::network::DNS])
            .filter(|_| abi >= ABI::V4 && !local)
        {
            created = created
                .add_rule(NetPort::new(*port, AccessNet::ConnectTcp))
                .map_err(|e| e.to_string())?;
        }
        Ok(RuleBuilder {
            abi,
            local,
            created,
        })
    }

    pub fn done(self) -> Result<OwnedFd, String> {
        Option::<OwnedFd>::from(self.created).ok_or_else(|| Errno::ENOSYS.to_string())
    }
}

/// The call's own /proc was mounted after the ruleset was made, so its rule is added here.
pub fn raise(plan: &mut Plan, ruleset: &OwnedFd) {
    let access = (AccessFs::ReadFile | AccessFs::ReadDir).bits();
    let path = CString::new("/proc").expect("no NUL");
    plan.add(
        "landlock",
        Step::LandlockPath {
            ruleset: ruleset.as_raw_fd(),
            path,
            access,
        },
    );
    plan.add("landlock", Step::LandlockRestrict(ruleset.as_raw_fd()));
}
