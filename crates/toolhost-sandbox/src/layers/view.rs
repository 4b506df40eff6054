//! Layer: view. What is not granted does not exist: a small read-only tree in memory, with the
//! interpreter, the system libraries and the granted paths bound at their own paths.
//!
//! Built once for each launcher, in its own mount namespace. Each granted path is opened once,
//! compared with what the host resolved, and bound from the open descriptor.
//!
//! Paths are opened component by component (openat2(2)), and granted trees are inspected before the
//! call: no link, `..` or mount leads out of a grant, and nothing is written through a hard link.
//! Of a folder that is read, what is mounted below it is covered, and so is what lies underneath.
//!
//! Where a pattern matches more than 200 files their folder is shown, and everything else in it but
//! links is covered when the call starts. A file that somebody puts there during the call is seen,
//! whatever its name, and so is one that is renamed over a covered file.
//!
//! Of a grant below /tmp, /dev/shm or a staged folder a tool sees no pipes, sockets and devices: an
//! empty file covers each that exists when the call starts. With a write grant below /tmp or
//! /dev/shm a tool makes no links, pipes or sockets in its scratch (`check` says so). A pipe that
//! is made there during a call can be written. The folders above a grant are read-only there, as
//! elsewhere. Mount information shows the host's paths of what was granted.

use crate::base_view::{
    DEVICE_LINKS, EMPTY_FOLDERS, HOST_NAME, MADE_ETC, PROC, SCRATCH, SYSTEM_ETC, SYSTEM_FOLDERS,
    devices,
};
use crate::child::idmap::Users;
use crate::layers::landlock::Right;
use crate::plan::{Plan, Step};
use crate::protocol::{Identity, Problem, ProblemKind, Setup};
use crate::spec::{Access, Mount};
use crate::sys;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fstat};
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use toolhost_base::files;
use toolhost_base::place::Mounts;
use toolhost_base::quantity::MIB;

pub const RDONLY: u64 = 1;
pub const NOSUID: u64 = 2;
pub const NODEV: u64 = 4;
pub const NOEXEC: u64 = 8;

/// Our own folder in the view: shims, and the launcher's mounts.
pub use crate::base_view::OWN_FOLDER;
/// Empty file that covers masked files.
pub const EMPTY_FILE_PATH: &str = "/.toolhost/empty";
/// Empty folder that covers masked folders and `KEPT_MOUNTS`.
pub const EMPTY_FOLDER_PATH: &str = "/.toolhost/nothing";
/// The launcher's own folder: mounts to be bound below /tmp, and the whole scratch. Covered before
/// each call, because masks cover only final paths: here masked files could still be reached.
pub const KEPT_MOUNTS: &str = "/.toolhost/kept";
const WAITING_MOUNTS: &str = "/.toolhost/kept/aside";
/// Where the whole tmpfs of a call's scratch is mounted, for the launcher alone.
pub const KEPT_SCRATCH: &str = "/.toolhost/kept/scratch";
/// Where the view is assembled. /tmp exists everywhere, and the view mounted there hides its
/// content.
const ASSEMBLY_ROOT: &str = "/tmp";

/// Whether a path is in every view, whatever was granted: system libraries and programs, CA bundle,
/// local time.
pub fn is_system(path: &Path) -> bool {
    system().any(|shown| path.starts_with(shown))
}

/// System libraries and programs, CA bundle, local time.
pub fn system() -> impl Iterator<Item = &'static str> {
    SYSTEM_FOLDERS.into_iter().chain(SYSTEM_ETC)
}

/// One entry of the view.
enum Piece {
    Link(PathBuf),
    Bound { mount: OwnedFd, folder: bool },
}

struct Planned {
    at: PathBuf,
    piece: Piece,
    right: Right,
    /// A grant with what is mounted below it.
    with_mounts: bool,
}

/// A mount below /tmp or /dev/shm: kept aside, and bound into the scratch of each call.
pub struct LateMount {
    pub at: PathBuf,
    pub aside: Option<CString>,
    pub link: Option<PathBuf>,
    pub folder: bool,
    pub is_written: bool,
}

/// The finished view.
pub struct View {
    pub late: Vec<LateMount>,
    /// Open descriptors (and whether each is a folder) with what Landlock allows there.
    pub allowed: Vec<(OwnedFd, bool, Right)>,
}

/// Makes `folder` the working folder of the call.
pub fn enter(plan: &mut Plan, folder: &Path) {
    plan.add("view", Step::Chdir(text(folder)));
}

pub fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes())
        .expect("paths come from the kernel or were checked for NUL")
}

fn problem<E: Into<std::io::Error>>(what: impl ToString) -> impl FnOnce(E) -> Problem {
    Problem::from_layer("view", what)
}

/// Opens our own program through a separate read-only mount: /proc/self/exe of a process behind the
/// layers leads there. Called before the view is raised, while the program can be reached by its
/// path. If another file lies at that path by now, the mount holds a copy of the opened file.
pub fn own_program(executable: OwnedFd) -> Result<OwnedFd, Problem> {
    let what = "toolhost's own program through a read-only mount";
    let identity = |file: &OwnedFd| {
        fstat(file)
            .map(|stat| (stat.st_dev, stat.st_ino))
            .map_err(problem(what))
    };
    let named = fs::read_link(format!("/proc/self/fd/{}", executable.as_raw_fd()))
        .map_err(problem(what))?;
    match bind(&named, false, NOSUID | NODEV | RDONLY) {
        Ok(mount) if identity(&mount)? == identity(&executable)? => Ok(mount),
        _ => copy_executable(executable).map_err(problem(what)),
    }
}

fn copy_executable(executable: OwnedFd) -> std::io::Result<OwnedFd> {
    let mut original = fs::File::from(executable);
    let size = original.metadata()?.len().next_multiple_of(MIB) + MIB;
    let root = sys::tmpfs(
        &[("size", size.to_string()), ("mode", "0755".into())],
        NOSUID | NODEV,
    )?;
    let open = |flags| {
        nix::fcntl::openat(
            &root,
            "toolhost",
            flags | OFlag::O_CLOEXEC,
            Mode::from_bits_truncate(0o755),
        )
    };
    let mut copy = fs::File::from(open(OFlag::O_CREAT | OFlag::O_WRONLY)?);
    std::io::Seek::rewind(&mut original)?;
    std::io::copy(&mut original, &mut copy)?;
    drop(copy);
    sys::mount_setattr(root.as_fd(), false, RDONLY, 0, None)?;
    Ok(open(OFlag::O_RDONLY)?)
}

/// What every view has, whatever is granted.
pub struct Base {
    planned: Vec<Planned>,
    users: Users,
}

/// Begins a view: binds the system's folders. `owner`: see `ToLauncher::Enter`.
pub fn begin(identity: Identity, owner: Option<(u32, u32)>) -> Result<Base, Problem> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .map_err(problem("making mounts private"))?;
    let mut planned = Vec::new();
    for path in SYSTEM_FOLDERS.iter().chain(&SYSTEM_ETC) {
        plan_root(&mut planned, Path::new(path))?;
    }
    Ok(Base {
        planned,
        users: Users::new(identity, owner),
    })
}

/// Builds the tree and makes it the root of this process.
pub fn raise(base: Base, setup: &Setup) -> Result<View, Problem> {
    let Base {
        mut planned,
        mut users,
    } = base;
    let mut roots = setup.spec.roots.clone();
    roots.sort();
    for root in &roots {
        plan_root(&mut planned, root)?;
    }
    // Read-only: the device can still be written, but its mode and times cannot be changed.
    for at in devices(setup.sampled()).map(PathBuf::from) {
        let bound = bind(&at, false, NOSUID | NOEXEC | RDONLY)?;
        planned.push(Planned {
            at,
            piece: Piece::Bound {
                mount: bound,
                folder: false,
            },
            right: Right::Device,
            with_mounts: false,
        });
    }
    for wanted in &setup.spec.mounts {
        planned.push(plan_grant(wanted, &mut users)?);
    }
    planned.extend(
        setup
            .spec
            .links
            .iter()
            .map(|(at, target): &(PathBuf, PathBuf)| Planned {
                at: at.clone(),
                piece: Piece::Link(target.clone()),
                right: Right::List,
                with_mounts: false,
            }),
    );
    // Parents before what lies below them.
    planned.sort_by(|a, b| a.at.cmp(&b.at));
    let root = sys::tmpfs(
        &[("size", "1M".into()), ("mode", "0755".into())],
        NOSUID | NODEV,
    )
    .map_err(problem("the view's own tmpfs"))?;
    sys::move_mount(root.as_fd(), &text(Path::new(ASSEMBLY_ROOT)))
        .map_err(problem("attaching the view"))?;
    let view = assemble(setup, planned)?;
    sys::mount_setattr(
        root.as_fd(),
        false,
        RDONLY | NOSUID | NODEV | NOEXEC,
        0,
        None,
    )
    .map_err(problem("making the view read-only"))?;
    nix::unistd::chdir(ASSEMBLY_ROOT).map_err(problem("entering the view"))?;
    nix::unistd::pivot_root(".", ".").map_err(problem("pivot_root(2)"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(problem("leaving the host's root behind"))?;
    nix::unistd::chdir("/").map_err(problem("entering the view"))?;
    Ok(view)
}

/// Plans a system folder or a runtime's root: bound read-only with all below it; a symlink is
/// recreated.
fn plan_root(planned: &mut Vec<Planned>, path: &Path) -> Result<(), Problem> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    // A folder above that is already planned shows this path too.
    if planned.iter().any(|p: &Planned| {
        matches!(p.piece, Piece::Bound { folder: true, .. }) && path.starts_with(&p.at)
    }) {
        return Ok(());
    }
    let piece = if meta.is_symlink() && path != Path::new("/etc/localtime") {
        Piece::Link(fs::read_link(path).map_err(problem(path.display()))?)
    } else {
        let folder = fs::metadata(path)
            .map_err(problem(path.display()))?
            .is_dir();
        Piece::Bound {
            mount: bind(path, folder, NOSUID | NODEV | RDONLY)?,
            folder,
        }
    };
    planned.push(Planned {
        at: path.to_owned(),
        piece,
        right: Right::ReadRun,
        with_mounts: false,
    });
    Ok(())
}

fn bind(path: &Path, recursive: bool, attributes: u64) -> Result<OwnedFd, Problem> {
    let here = files::handle(Path::new("/")).map_err(problem("/"))?;
    let mount = sys::open_tree(here.as_fd(), &text(path), recursive)
        .map_err(problem(format!("binding {}", path.display())))?;
    sys::mount_setattr(mount.as_fd(), recursive, attributes, 0, None)
        .map_err(problem(format!("attributes of {}", path.display())))?;
    Ok(mount)
}

/// A granted file or folder: opened without following any link, compared, bound alone (no mount
/// below it).
fn plan_grant(wanted: &Mount, users: &mut Users) -> Result<Planned, Problem> {
    let name = wanted.path.display();
    let place = wanted.place_of(&wanted.path);
    let opened = files::without_links(&place, OFlag::O_PATH);
    let file = opened.map_err(Problem::of_path("view", format!("opening {name}")))?;
    let stat = fstat(&file).map_err(problem(format!("looking at {name}")))?;
    if (stat.st_dev, stat.st_ino) != (wanted.device, wanted.inode) {
        let what = format!("{name} changed since it was checked");
        return Err(Problem::new(
            ProblemKind::Changed,
            "view",
            what,
            Errno::ESTALE,
        ));
    }
    let alone = sys::open_tree(file.as_fd(), c"", false);
    // In a user namespace no mount can be left out of a copy: it is covered before each call.
    let with_mounts = matches!(alone, Err(Errno::EINVAL)) && wanted.folder;
    let bound = if with_mounts {
        sys::open_tree(file.as_fd(), c"", true)
    } else {
        alone
    };
    let bound = bound.map_err(problem(format!("binding {name}")))?;
    let mut attributes = NOSUID | NODEV;
    if wanted.access == Access::Read {
        attributes |= RDONLY;
    }
    if wanted.access == Access::Write || wanted.no_exec {
        attributes |= NOEXEC;
    }
    let users = users.for_files_of((wanted.uid, wanted.gid))?;
    let users = users.map(AsFd::as_fd);
    let mapped = sys::mount_setattr(bound.as_fd(), with_mounts, attributes, 0, users);
    match mapped {
        // This file system cannot map ids: reads follow the mode bits, writes are refused.
        Err(Errno::EINVAL | Errno::EPERM) if users.is_some() && wanted.access == Access::Read => {
            sys::mount_setattr(bound.as_fd(), with_mounts, attributes, 0, None)
                .map_err(problem(format!("attributes of {name}")))?;
        }
        other => other.map_err(problem(format!(
            "attributes of {name} (its file system may lack id-mapped mounts)"
        )))?,
    }
    let right = if wanted.access == Access::Read {
        Right::ReadRun
    } else {
        Right::Write
    };
    Ok(Planned {
        at: wanted.path.clone(),
        piece: Piece::Bound {
            mount: bound,
            folder: wanted.folder,
        },
        right,
        with_mounts,
    })
}

/// Whether a path lies in a folder that each call gets fresh.
pub fn is_late(at: &Path) -> bool {
    at.starts_with("/tmp") || at.starts_with("/dev/shm")
}

/// Puts everything planned in its place below `ASSEMBLY_ROOT`.
fn assemble(setup: &Setup, planned: Vec<Planned>) -> Result<View, Problem> {
    fn inside(at: &Path) -> PathBuf {
        Path::new(ASSEMBLY_ROOT).join(at.strip_prefix("/").unwrap_or(at))
    }
    let folders = SCRATCH.into_iter().chain(EMPTY_FOLDERS).chain([
        PROC,
        "/etc",
        OWN_FOLDER,
        EMPTY_FOLDER_PATH,
        WAITING_MOUNTS,
        KEPT_SCRATCH,
    ]);
    for folder in folders {
        make_folder(&inside(Path::new(folder)))?;
    }
    let mut view = View {
        late: Vec::new(),
        allowed: Vec::new(),
    };
    for (number, planned) in planned.into_iter().enumerate() {
        let Planned {
            at,
            piece,
            right,
            with_mounts,
        } = planned;
        let late = is_late(&at);
        match piece {
            Piece::Link(target) if late => {
                view.late.push(LateMount {
                    at,
                    aside: None,
                    link: Some(target),
                    folder: false,
                    is_written: false,
                });
            }
            Piece::Link(target) => {
                make_link(&target, &inside(&at), &at)?;
            }
            Piece::Bound { mount, folder } => {
                let aside = Path::new(WAITING_MOUNTS).join(number.to_string());
                let place = inside(if late { &aside } else { &at });
                make_point(&place, folder).map_err(|p| Problem {
                    what: format!("a place for {}", at.display()),
                    ..p
                })?;
                sys::move_mount(mount.as_fd(), &text(&place))
                    .map_err(problem(format!("placing {}", at.display())))?;
                if with_mounts {
                    check_covered(setup, &at, &place)?;
                }
                if late {
                    view.late.push(LateMount {
                        at,
                        aside: Some(text(&aside)),
                        link: None,
                        folder,
                        is_written: right == Right::Write,
                    });
                }
                view.allowed.push((mount, folder, right));
            }
        }
    }
    // Mount points for staged copies; below a shown folder they exist already.
    for stage in setup
        .spec
        .staged_folders()
        .filter(|stage| !stage.show_rest && !is_late(&stage.folder))
    {
        make_folder(&inside(&stage.folder))?;
    }
    write_files(setup, &inside)?;
    let proc_flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("proc"),
        &inside(Path::new("/proc")),
        Some("proc"),
        proc_flags,
        None::<&str>,
    )
    .map_err(problem(
        "the launcher's /proc (is something mounted over /proc on this machine?)",
    ))?;
    // Landlock also needs what lies directly in the tree: its root, /etc, our shims.
    for (path, right) in [
        ("/", Right::List),
        ("/etc", Right::Read),
        (OWN_FOLDER, Right::Read),
    ] {
        let place = inside(Path::new(path));
        view.allowed
            .push((files::handle(&place).map_err(problem(path))?, true, right));
    }
    Ok(view)
}

/// Checks that each mount that came with a grant is covered before a call, or is a grant itself.
fn check_covered(setup: &Setup, at: &Path, place: &Path) -> Result<(), Problem> {
    let mounts = Mounts::read().map_err(problem("the list of mounts"))?;
    let came = mounts
        .points()
        .filter_map(|point| Some(at.join(point.strip_prefix(place).ok()?)));
    let grants: Vec<&Path> = setup.spec.mounts.iter().map(|mount| &*mount.path).collect();
    let mut open =
        came.filter(|point| !setup.spec.masks.contains(point) && !grants.contains(&&**point));
    let Some(open) = open.next() else {
        return Ok(());
    };
    let what = format!("{} was mounted since the grant was checked", open.display());
    Err(Problem::new(
        ProblemKind::Changed,
        "view",
        what,
        Errno::ESTALE,
    ))
}

/// A synthetic /etc (which shows no account or host of this machine), /dev links, and our shims.
fn write_files(setup: &Setup, inside: &dyn Fn(&Path) -> PathBuf) -> Result<(), Problem> {
    let id = crate::layers::identity::GUEST;
    // In the order of `MADE_ETC`.
    let texts = [
        format!("tool:x:{id}:{id}:tool:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        format!("tool:x:{id}:\nnogroup:x:65534:\n"),
        "passwd: files\ngroup: files\nhosts: files dns\n".to_owned(),
        format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost {HOST_NAME}\n"),
        name_server(setup),
    ];
    for (path, text) in MADE_ETC.into_iter().zip(&texts) {
        fs::write(inside(Path::new(path)), text).map_err(problem(path))?;
    }
    fs::write(inside(Path::new(EMPTY_FILE_PATH)), "").map_err(problem(EMPTY_FILE_PATH))?;
    for (name, text) in &setup.spec.files {
        let path = Path::new(OWN_FOLDER).join(name);
        make_parents(&inside(&path))?;
        fs::write(inside(&path), text).map_err(problem(path.display()))?;
    }
    for (path, target) in DEVICE_LINKS {
        symlink(target, inside(Path::new(path))).map_err(problem(path))?;
    }
    Ok(())
}

/// The stub, without a search list: the tool asks for the names it was given, and no others.
fn name_server(setup: &Setup) -> String {
    let stub = crate::layers::network::STUB;
    setup.spec.network.as_ref().map_or_else(String::new, |_| {
        format!("nameserver {stub}\noptions ndots:1 timeout:2 attempts:2\n")
    })
}

pub fn make_folder(path: &Path) -> Result<(), Problem> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(problem(format!("making {}", path.display())))
}

fn make_parents(path: &Path) -> Result<(), Problem> {
    path.parent().map_or(Ok(()), make_folder)
}

/// Makes the link `at` of the view, unless a grant above shows the same link already.
pub fn make_link(target: &Path, place: &Path, at: &Path) -> Result<(), Problem> {
    if fs::read_link(place).is_ok_and(|there| there == target) {
        return Ok(());
    }
    make_parents(place)?;
    symlink(target, place).map_err(problem(format!("linking {}", at.display())))
}

/// Makes a mount point. Below a grant it must exist already.
pub fn make_point(path: &Path, folder: bool) -> Result<(), Problem> {
    if folder {
        return make_folder(path);
    }
    make_parents(path)?;
    match fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
    {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(problem(format!("making {}", path.display()))(e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_grant_that_was_replaced_is_no_missing_layer() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a path").join("file");
        fs::write(&path, "old").expect("made");
        let facts = fs::metadata(&path).expect("there");
        let (device, inode, uid, gid) = (facts.dev(), facts.ino(), facts.uid(), facts.gid());
        let wanted = Mount {
            path: path.clone(),
            access: Access::Read,
            folder: false,
            device,
            inode,
            uid,
            gid,
            no_exec: false,
            source: None,
        };
        let mut users = Users::new(
            Identity {
                id: uid,
                pooled: false,
            },
            None,
        );
        let mut about = || {
            plan_grant(&wanted, &mut users)
                .err()
                .map(|problem| problem.kind)
        };
        fs::rename(&path, folder.path().join("old")).expect("moved");
        assert_eq!(about(), Some(ProblemKind::Changed), "gone");
        fs::write(&path, "new").expect("made");
        assert_eq!(about(), Some(ProblemKind::Changed), "another file");
        fs::remove_file(&path).expect("removed");
        symlink(folder.path().join("old"), &path).expect("linked");
        assert_eq!(about(), Some(ProblemKind::Changed), "a link");
    }
}
