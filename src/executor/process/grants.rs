//! Grants: resolves the grants of a confinement to the files that exist now (host side of the layer
//! `view`).
//!
//! Done for every call. A path is opened without following any link; its device and inode go to the
//! launcher, which refuses anything else at that path. A grant that cannot be enforced exactly
//! refuses the call and names the fix.
//!
//! Under root a pattern opens what the owner of its folder may read. A file of another user that
//! only that user may read must be named exactly.

use super::inspect::{
    check_writable, explain, look, no_sockets, outside_repositories, refuse, specials, specials_at,
};
use crate::base::files::{self, Stamp, without_links};
use crate::base::mask::Hidden;
use crate::base::place::Mounts;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::{
    self, Access, ApprovedCode, Area, Grant, Opening, ReadFile, Script, Shape, literal,
    name_matches,
};
use crate::quantity::{MAX_SCRIPT_BYTES, MAX_SNAPSHOT_FILES, MAX_WRITABLE_ENTRIES};
use crate::sandbox::{Mount, StagedFolder, Totals, identity, is_late};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All grants of one call, resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedGrants {
    pub mounts: Vec<Mount>,
    pub stages: Vec<StagedFolder>,
    /// Covered for this call: files by an empty file, folders by an empty folder.
    pub masks: Vec<PathBuf>,
    /// The size of the folders that are written live, before the call.
    pub before: Totals,
    /// Certificates of the shape's authorities. Read for each call, so that one that was removed
    /// loses its trust.
    pub authorities: String,
}

/// Resolves every grant of `shape` on this machine. `script`: the shape's script is a file here,
/// and is shown whatever is granted. Missing folders are made last, when nothing can refuse the
/// call any more.
pub fn resolve(shape: &Shape, script: bool) -> Result<ResolvedGrants, Fault> {
    let (resolved, missing) = resolve_existing(shape, script)?;
    if missing.is_empty() {
        return Ok(resolved);
    }
    missing
        .iter()
        .try_for_each(|path| make(path, &shape.folder))?;
    let (resolved, missing) = resolve_existing(shape, script)?;
    match missing.first() {
        None => Ok(resolved),
        Some(path) => Err(explain(path, Errno::ENOENT)),
    }
}

/// The grants of a shape, as far as they are resolved.
#[derive(Default)]
struct GrantPlan {
    points: Option<Arc<Mounts>>,
    mounts: BTreeMap<PathBuf, Mount>,
    stages: BTreeMap<PathBuf, StagedFolder>,
    masks: Vec<PathBuf>,
    /// What lies in folders that are shown for many matching files, and matches nothing.
    others: Vec<PathBuf>,
    before: BTreeMap<PathBuf, Totals>,
    /// Folders that must be made first.
    missing: Vec<PathBuf>,
}

impl GrantPlan {
    /// Adds a grant. What a person approved of its area is shown from the copy.
    fn at(&mut self, grant: &Grant, shape: &Shape) -> Result<(), Fault> {
        let copy = shape
            .approved
            .as_ref()
            .filter(|_| grant.access == Access::Read);
        let path = grant.area.path();
        let Some((code, place)) = copy.and_then(|code| Some((code, code.copy_of(path)?))) else {
            return self.add(grant, shape);
        };
        let mut copied = GrantPlan::default();
        let area = grant.area.moved(path, &place);
        let grant = Grant {
            area: area.unwrap_or_else(|| grant.area.clone()),
            ..grant.clone()
        };
        copied.add(&grant, shape)?;
        for mount in copied.mounts.into_values() {
            insert(&mut self.mounts, of_copy(mount, code));
        }
        let others = copied.others.iter().map(|path| code.shown(path));
        self.others.extend(others);
        Ok(())
    }

    fn add(&mut self, grant: &Grant, shape: &Shape) -> Result<(), Fault> {
        if grant.access == Access::Write {
            outside_repositories(grant.area.folder())?;
        }
        match &grant.opening() {
            Opening::Live { path } => {
                if grant.access == Access::Write {
                    check_mounts(path, self.points.as_deref())?;
                }
                self.leave_out_mounts(path)?;
                let Some((folder, stat)) = folder_now(path, grant, shape)? else {
                    self.missing.push(path.clone());
                    return Ok(());
                };
                if shape.local_sockets {
                    no_sockets(&folder, path)?;
                }
                if grant.access == Access::Write {
                    let (kept, totals) = check_writable(&folder, path)?;
                    // A kept entry is opened with the rights of the grant's owner, even if another
                    // user owns the entry.
                    for (place, access, facts) in &kept {
                        let kept = Mount::from_stat(place, *access, facts);
                        insert(
                            &mut self.mounts,
                            Mount {
                                uid: stat.st_uid,
                                gid: stat.st_gid,
                                ..kept
                            },
                        );
                    }
                    self.before.insert(path.clone(), totals);
                }
                if is_late(path) {
                    self.masks.extend(specials(&folder, path)?);
                }
                insert(
                    &mut self.mounts,
                    Mount::from_stat(path, grant.access, &stat),
                );
            }
            Opening::Snapshot { folder, names } => {
                // Each file is bound alone, so mounts beside it are not shown.
                let Some(found) = matching(folder, names, &grant.asked)? else {
                    return Ok(());
                };
                let files = found.files;
                files
                    .iter()
                    .try_for_each(|(path, _)| check_not_mounted(path, self.points.as_deref()))?;
                if files.len() > MAX_SNAPSHOT_FILES {
                    self.leave_out_mounts(folder)?;
                    self.others.extend(found.others);
                    insert(
                        &mut self.mounts,
                        Mount::from_stat(folder, Access::Read, &found.folder),
                    );
                    return Ok(());
                }
                for (path, stat) in files {
                    insert(
                        &mut self.mounts,
                        Mount::from_stat(&path, Access::Read, &stat),
                    );
                }
            }
            Opening::Staged { folder, names } => {
                check_mounts(folder, self.points.as_deref())?;
                let stat = folder_now(folder, grant, shape)?;
                if stat.is_none() {
                    self.missing.push(folder.clone());
                }
                let (device, inode) = stat.map_or((0, 0), |(_, stat)| (stat.st_dev, stat.st_ino));
                let none = Vec::new();
                let shown = Vec::new();
                let stage = self
                    .stages
                    .entry(folder.clone())
                    .or_insert_with(|| StagedFolder {
                        folder: folder.clone(),
                        names: none,
                        device,
                        inode,
                        show_rest: false,
                        shown,
                    });
                stage.names.push(names.clone());
            }
        }
        Ok(())
    }
}

impl GrantPlan {
    /// Shows in the copies what tools write there.
    fn show_live(&mut self, code: &ApprovedCode) {
        for tree in &code.live {
            let is_copied = self.nearest(tree).is_some_and(|it| it.source.is_some());
            let stat = look(tree).ok().filter(|stat| is(stat, SFlag::S_IFDIR));
            if let Some(stat) = stat.filter(|_| is_copied) {
                let no_exec = true;
                let mount = Mount::from_stat(tree, Access::Read, &stat);
                insert(&mut self.mounts, Mount { no_exec, ..mount });
            }
        }
    }

    /// The mount that shows a path.
    fn nearest(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|above| self.mounts.get(above))
    }

    /// Covers what is mounted below a folder that is shown: the folder is bound without it, and
    /// would show what lies underneath.
    fn leave_out_mounts(&mut self, path: &Path) -> Result<(), Fault> {
        let points = mounted_below(path, self.points.as_deref());
        // One that lies behind another mount may have no place to cover.
        let there = points.filter(|point| point.symlink_metadata().is_ok());
        self.masks.extend(there.map(Path::to_path_buf));
        if self.masks.len() <= 2 * MAX_SNAPSHOT_FILES {
            return Ok(());
        }
        let person = format!(
            "{}: more than {MAX_SNAPSHOT_FILES} mounts or other files; grant a smaller folder",
            path.display()
        );
        Err(refuse(
            "a granted folder holds too much to leave out",
            person,
        ))
    }
}

/// Resolves the grants as the files are now. The second value: the folders that must be made first.
fn resolve_existing(shape: &Shape, script: bool) -> Result<(ResolvedGrants, Vec<PathBuf>), Fault> {
    let mut looked = GrantPlan {
        points: mount_points(shape)?,
        ..GrantPlan::default()
    };
    shape
        .grants
        .iter()
        .try_for_each(|grant| looked.at(grant, shape))?;
    let approved = shape.approved.as_ref();
    approved.into_iter().for_each(|code| looked.show_live(code));
    let GrantPlan {
        mut mounts,
        stages,
        mut masks,
        others,
        before,
        missing,
        ..
    } = looked;
    check_stage_count(stages.len())?;
    // A worker needs no module in its view: the host reads it.
    let shown = script && shape.runtime.language != Language::Wasm;
    if let Some(path) = shape.script.as_ref().filter(|_| shown) {
        let place = shape.script_place();
        let stat = look(&place).map_err(|errno| explain(path, errno))?;
        let mount = Mount::from_stat(&place, Access::Read, &stat);
        let of_code = approved.map(|code| of_copy(mount.clone(), code));
        insert(&mut mounts, of_code.unwrap_or(mount));
    }
    if let Some(built) = &shape.built {
        let stat = look(&built.path).map_err(|errno| explain(&built.path, errno))?;
        insert(
            &mut mounts,
            Mount::from_stat(&built.path, Access::Read, &stat),
        );
    }
    forbid_execution(&mut mounts, &shape.written)?;
    masks.extend(others.into_iter().filter(|path| {
        // Only files are copied: a folder of such a name is shown as it lies, unless it is covered.
        let is_file = path.symlink_metadata().is_ok_and(|facts| facts.is_file());
        let is_staged = is_file && stages.values().any(|stage| stage.copies_at(path));
        !is_staged && !mounts.contains_key(path)
    }));
    let authorities = shape.authorities.iter().map(|file| {
        policy::certificates(file).map_err(|problem| {
            let message = "the certificates for a host cannot be used, so nothing was run";
            Fault::new(Kind::CapabilityError, message).person(problem.to_string())
        })
    });
    let shown: BTreeSet<PathBuf> = mounts.keys().chain(stages.keys()).cloned().collect();
    check_masks(&masks, &shown)?;
    let mounts = uncovered(mounts, &masks);
    masks.retain(|mask| !shown.contains(mask));
    let mut resolved = ResolvedGrants {
        mounts,
        stages: stages.into_values().collect(),
        masks,
        authorities: authorities.collect::<Result<_, _>>()?,
        ..ResolvedGrants::default()
    };
    resolved
        .mounts
        .iter()
        .filter_map(|mount| before.get(&mount.path))
        .for_each(|totals| resolved.before.join(*totals));
    Ok((settled(resolved)?, missing))
}

/// Refuses what could not be shown below a cover. (What a grant of its own shows is not covered.)
fn check_masks(masks: &[PathBuf], shown: &BTreeSet<PathBuf>) -> Result<(), Fault> {
    let mut covered = masks.iter().filter(|mask| !shown.contains(*mask));
    let below = covered.find_map(|mask| {
        let next = shown.range(mask.clone()..).next()?;
        next.starts_with(mask).then_some((mask, next))
    });
    below.map_or(Ok(()), |(mask, path)| {
        let person = format!(
            "{} is granted, but not {}, in which it lies and which is left out of a granted \
             folder; grant the folders one by one",
            path.display(),
            mask.display()
        );
        Err(refuse("a granted path lies in what is left out", person))
    })
}

/// What is mounted in folders that are only read, and left out of them.
pub fn left_out(shape: &Shape) -> Vec<PathBuf> {
    let points = mount_points(shape).ok().flatten();
    let mut found: Vec<PathBuf> = Vec::new();
    for grant in &shape.grants {
        if let (Access::Read, Area::Tree(tree)) = (grant.access, &grant.area) {
            let below = mounted_below(tree, points.as_deref());
            let hidden =
                below.filter(|point| shape.grants.iter().all(|it| it.area.path() != *point));
            found.extend(hidden.map(Path::to_path_buf));
        }
    }
    found
}

/// Reads a script for one call. It is never read again: what follows works on these bytes.
pub fn read_script(path: &Path) -> Result<Script, Fault> {
    fn failed(message: &str, why: &str, path: &Path) -> Fault {
        Fault::new(Kind::DependencyError, message)
            .person(printable(&format!("{}: {why}", path.display())))
    }
    let opened = match without_links(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY) {
        Err(Errno::ENOENT) => {
            let why = "does not exist; restore it, or remove the manifest";
            return Err(failed("the tool's script no longer exists", why, path));
        }
        opened => File::from(opened.map_err(|errno| explain(path, errno))?),
    };
    let facts = opened
        .metadata()
        .map_err(|e| failed("the tool's script cannot be read", &e.to_string(), path))?;
    let message = if facts.is_file() {
        "the tool's script cannot be read"
    } else {
        "the tool's script is not a regular file any more"
    };
    let bytes = files::checked(Ok(opened), MAX_SCRIPT_BYTES, |_| None)
        .map_err(|why| failed(message, &why, path))?;
    let digest = crate::base::sha256_hex(&bytes);
    // What the host can read the tool can, whoever owns the copy.
    let mode = facts.mode() & 0o777 | 0o400;
    let file = ReadFile {
        path: path.to_owned(),
        digest,
        mode,
        stamp: Stamp::from(&facts),
    };
    Ok(Script {
        file,
        bytes: Hidden(bytes),
    })
}

fn check_stage_count(stages: usize) -> Result<(), Fault> {
    let most = crate::base::messages::MAX_DESCRIPTORS;
    if stages <= most {
        return Ok(());
    }
    let message =
        format!("the tool requests {stages} staged folders, but at most {most} are possible");
    let person = "securityContext.fileAccess.allowWrite names files in too many folders; put them \
                  into fewer, or request a folder above them with `/**`";
    Err(refuse(&message, person.to_owned()))
}

/// The fault that `resolve` would return now, and the grant that causes it. Makes no folder.
pub fn foresee(shape: &Shape) -> Option<(Fault, &Grant)> {
    let first = shape.grants.first()?;
    let mut looked = match mount_points(shape) {
        Ok(points) => GrantPlan {
            points,
            ..GrantPlan::default()
        },
        Err(fault) => return Some((fault, first)),
    };
    shape
        .grants
        .iter()
        .find_map(|grant| Some((looked.at(grant, shape).err()?, grant)))
}

/// Sets what stays visible of staged folders beside their copies, and covers special files around
/// and below them.
fn settled(mut resolved: ResolvedGrants) -> Result<ResolvedGrants, Fault> {
    for stage in &mut resolved.stages {
        stage.show_rest = resolved
            .mounts
            .iter()
            .any(|m| m.folder && stage.folder.starts_with(&m.path));
        if stage.show_rest {
            resolved.masks.extend(specials_at(&stage.folder)?);
        } else {
            let paths = resolved.mounts.iter().map(|mount| mount.path.clone());
            stage.shown = paths
                .filter(|path| path.starts_with(&stage.folder))
                .collect();
            // Mounts are in order of path: what lies in a folder that is shown comes with it.
            stage.shown.dedup_by(|below, path| below.starts_with(path));
        }
        for mount in resolved.mounts.iter().filter(|m: &&Mount| {
            m.folder && m.access == Access::Read && m.path.starts_with(&stage.folder)
        }) {
            resolved.masks.extend(specials_at(&mount.path)?);
        }
    }
    resolved.masks.sort();
    resolved.masks.dedup();
    Ok(resolved)
}

/// A mount of the copy of approved code, at the path where it is shown.
fn of_copy(mount: Mount, code: &ApprovedCode) -> Mount {
    let path = code.shown(&mount.path);
    let source = (path != mount.path).then_some(mount.path);
    Mount {
        path,
        source,
        ..mount
    }
}

/// The wider right wins where two grants name one path.
fn insert(mounts: &mut BTreeMap<PathBuf, Mount>, new: Mount) {
    match mounts.get(&new.path) {
        Some(old) if old.access >= new.access => {}
        _ => {
            mounts.insert(new.path.clone(), new);
        }
    }
}

/// No file that a tool wrote is executed, or mapped as a library: what is shown of such a place is
/// a mount of its own. (Nothing in a folder that this call may write is executed.)
fn forbid_execution(mounts: &mut BTreeMap<PathBuf, Mount>, written: &[Area]) -> Result<(), Fault> {
    for area in written {
        mounts
            .values_mut()
            .filter(|mount| area.holds(&mount.path))
            .for_each(|mount| mount.no_exec = true);
        let Area::Tree(tree) = area else { continue };
        let above = tree
            .ancestors()
            .find_map(|above| mounts.get(above))
            .filter(|mount| mount.path != *tree);
        let Some(above) = above.filter(|mount| mount.access == Access::Read) else {
            continue;
        };
        let place = above.place_of(tree);
        match look(&place) {
            Ok(stat) => {
                let device = stat.st_dev;
                let inode = stat.st_ino;
                let folder = is(&stat, SFlag::S_IFDIR);
                let own = Mount {
                    path: tree.clone(),
                    folder,
                    device,
                    inode,
                    no_exec: true,
                    source: above.source.is_some().then_some(place),
                    ..above.clone()
                };
                mounts.insert(tree.clone(), own);
            }
            // Gone, or a link by now: nothing of that place is shown there.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(errno) => return Err(explain(tree, errno)),
        }
    }
    Ok(())
}

/// Leaves out what an equal grant above shows already, except a folder below which something is
/// shown read-only, and what is left out of the grant above (`masks`).
fn uncovered(mounts: BTreeMap<PathBuf, Mount>, masks: &[PathBuf]) -> Vec<Mount> {
    let covered = |m: &Mount| {
        // The nearest one above decides what shows there without this mount.
        let above = m
            .path
            .ancestors()
            .skip(1)
            .find_map(|above| mounts.get(above).filter(|other| other.folder));
        let mut below = mounts
            .range(m.path.clone()..)
            .take_while(|(path, _)| path.starts_with(&m.path));
        above.is_some_and(|other: &Mount| (other.access, other.no_exec) == (m.access, m.no_exec))
            && above.is_some_and(|other| other.place_of(&m.path) == m.place_of(&m.path))
            && !below.any(|(_, other)| other.access < m.access)
            && !masks.contains(&m.path)
    };
    mounts.values().filter(|m| !covered(m)).cloned().collect()
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    files::is(stat.st_mode, kind)
}

/// The folder as it is now; `None` where it is missing and the call may make it.
fn folder_now(
    path: &Path,
    grant: &Grant,
    shape: &Shape,
) -> Result<Option<(OwnedFd, FileStat)>, Fault> {
    let made = grant.access == Access::Write && path.starts_with(&shape.folder);
    let looked = without_links(path, OFlag::O_PATH).and_then(|file| Ok((fstat(&file)?, file)));
    let (stat, file) = match looked {
        Err(Errno::ENOENT) if made => return Ok(None),
        other => other.map_err(|errno| explain(path, errno))?,
    };
    if is(&stat, SFlag::S_IFDIR) {
        return Ok(Some((file, stat)));
    }
    if is(&stat, SFlag::S_IFLNK) {
        let person = format!(
            "{}: is a symbolic link; name the real path in manifest and policy",
            path.display()
        );
        return Err(refuse("a granted folder is a symbolic link", person));
    }
    let person = format!(
        "{}: is not a folder; grant a single file by its name without `/**`",
        path.display()
    );
    Err(refuse("a granted folder is not a folder", person))
}

/// Whether a folder for results is missing, and this host cannot make it below the tool's folder.
pub fn cannot_be_made(grant: &Grant, shape: &Shape) -> bool {
    let path = grant.area.folder();
    let missing = path
        .symlink_metadata()
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    let there = path.ancestors().skip(1).find(|above| above.is_dir());
    grant.access == Access::Write
        && path.starts_with(&shape.folder)
        && missing
        && !there.is_some_and(|folder| {
            nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK).is_ok()
        })
}

/// Makes missing folders beneath the tool's own, with the rights of that folder's owner.
fn make(path: &Path, own: &Path) -> Result<(), Fault> {
    let failed = |errno| explain(path, errno);
    let mut at = without_links(own, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
    let owner = fstat(&at).map_err(failed)?;
    let parts: Vec<_> = path
        .strip_prefix(own)
        .unwrap_or(Path::new(""))
        .components()
        .collect();
    // Checked before anything is made, so that a name that is too long leaves no folders behind.
    if parts
        .iter()
        .any(|part| part.as_os_str().len() > nix::libc::NAME_MAX.unsigned_abs() as usize)
    {
        return Err(failed(Errno::ENAMETOOLONG));
    }
    let made = files::as_owner((owner.st_uid, owner.st_gid), || {
        for part in parts {
            match mkdirat(&at, part.as_os_str(), Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let how = OpenHow::new()
                .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
            at = openat2(&at, part.as_os_str(), how)?;
        }
        Ok(())
    });
    made.map_err(|e| {
        let why = format!("{}: cannot be made: {e}; create it", path.display());
        refuse("a granted folder does not exist and cannot be made", why)
    })
}

/// Whether a grant opens a file of this owner and mode. Root could read every file, so under root a
/// pattern opens only files of the folder's owner and files that all may read; a file named exactly
/// is the person's own choice.
pub fn opens(folder: &Path, names: &str, uid: u32, mode: u32) -> bool {
    mode & 0o4 != 0
        || literal(names).is_some()
        || !identity::real_root()
        || look(folder).is_ok_and(|folder| folder.st_uid == uid)
}

/// What one folder holds for a pattern.
struct Matching {
    /// The folder that was read.
    folder: FileStat,
    /// Regular files whose names match, in order.
    files: Vec<(PathBuf, FileStat)>,
    /// What else lies there, but for links: covered where the whole folder is shown.
    others: Vec<PathBuf>,
}

/// The files of one folder whose names match. A missing folder or name matches nothing.
fn matching(folder: &Path, names: &str, asked: &str) -> Result<Option<Matching>, Fault> {
    let failed = |errno| explain(folder, errno);
    let opened = match without_links(folder, OFlag::O_PATH | OFlag::O_DIRECTORY) {
        Err(Errno::ENOENT) => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut found = Matching {
        folder: fstat(&opened).map_err(failed)?,
        files: Vec::new(),
        others: Vec::new(),
    };
    let one = literal(names);
    // One by one, because a tool can make as many as it likes.
    let named: Box<dyn Iterator<Item = nix::Result<CString>>> = match &one {
        Some(name) => Box::new(std::iter::once(
            CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL),
        )),
        None => Box::new(files::names_in(&opened).map_err(failed)?),
    };
    for name in named {
        let name = name.map_err(failed)?;
        let path = folder.join(OsStr::from_bytes(name.to_bytes()));
        let stat = match fstatat(&opened, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::ENOENT) if one.is_some() => continue,
            // Gone for a moment, perhaps.
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(explain(&path, errno)),
        };
        match stat {
            Some(stat) if is(&stat, SFlag::S_IFLNK) && one.is_some() => {
                return Err(explain(&path, Errno::ELOOP));
            }
            // In a list it is passed over: it could lead anywhere.
            Some(stat) if is(&stat, SFlag::S_IFLNK) => {}
            Some(stat) if is(&stat, SFlag::S_IFDIR) && one.is_some() => {
                let person = format!(
                    "{}: is a folder; for the folder and all below write `{asked}/`",
                    path.display()
                );
                return Err(refuse("a granted file is a folder", person));
            }
            Some(stat)
                if name.to_str().is_ok_and(|name| name_matches(names, name))
                    && is(&stat, SFlag::S_IFREG)
                    && opens(folder, names, stat.st_uid, stat.st_mode) =>
            {
                found.files.push((path, stat));
            }
            _ if found.others.len() <= MAX_SNAPSHOT_FILES => found.others.push(path),
            _ => {}
        }
        found.check(folder, names)?;
    }
    found.files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Some(found))
}

impl Matching {
    fn check(&self, folder: &Path, names: &str) -> Result<(), Fault> {
        let Matching { files, others, .. } = self;
        // What has no name in UTF-8 cannot be covered.
        let can_cover = others.len() <= MAX_SNAPSHOT_FILES
            && others.iter().all(|other| other.to_str().is_some());
        if files.len() <= MAX_SNAPSHOT_FILES || can_cover && files.len() <= MAX_WRITABLE_ENTRIES {
            return Ok(());
        }
        let at = folder.display();
        let person = format!(
            "{at}/{names}: more than {MAX_SNAPSHOT_FILES} files match, and as many others lie \
             there, or one whose name is not UTF-8; request the folder with `/**`"
        );
        Err(refuse("a file pattern matches too many files", person))
    }
}

/// The mounts of this machine. An unreadable list is an error: it could hold any mount point. (Read
/// only for a grant.)
fn mount_points(shape: &Shape) -> Result<Option<Arc<Mounts>>, Fault> {
    (!shape.grants.is_empty())
        .then(Mounts::read)
        .transpose()
        .map_err(|e: std::io::Error| {
            refuse(
                "the list of mounts of this machine cannot be read",
                format!("/proc/self/mountinfo: {e}; is /proc mounted?"),
            )
        })
}

/// What is mounted below a folder.
fn mounted_below<'m>(path: &'m Path, mounts: Option<&'m Mounts>) -> impl Iterator<Item = &'m Path> {
    let points = mounts.into_iter().flat_map(|mounts| mounts.points());
    points.filter(move |point| *point != path && point.starts_with(path))
}

fn check_mounts(path: &Path, mounts: Option<&Mounts>) -> Result<(), Fault> {
    match mounted_below(path, mounts).next() {
        None => Ok(()),
        Some(point) => Err(refuse(
            "a granted folder contains a mount point",
            format!(
                "{} is mounted inside the granted {}; grant the two folders one by one",
                point.display(),
                path.display()
            ),
        )),
    }
}

/// Refuses a file that is a mount point: any file of this machine may be mounted over it.
fn check_not_mounted(path: &Path, mounts: Option<&Mounts>) -> Result<(), Fault> {
    if !mounts
        .iter()
        .flat_map(|mounts| mounts.points())
        .any(|point| point == path)
    {
        return Ok(());
    }
    let person = format!(
        "{}: something is mounted over it; name the file that is meant",
        path.display()
    );
    Err(refuse("a granted file is a mount point", person))
}
