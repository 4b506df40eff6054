//! Staged files: published after success, only what matches, by temporary file and rename beneath the real folder.

use crate::executor::Artifact;
use crate::fault::{Fault, Kind};
use crate::manifest;
use crate::policy::{self, Shape};
use crate::quantity::Limit;
use crate::sandbox::grants;
use crate::sandbox::protocol::Stage;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most files in one staged folder.
const MOST_FILES: usize = 1000;
const PIECE: usize = 64 * 1024;

/// Publishes from each staged copy to its folder.
pub async fn all(stages: &[Stage], copies: &[OwnedFd], shape: &Shape) -> Result<Vec<Artifact>, Fault> {
    let pairs: Vec<(Stage, OwnedFd)> = stages
        .iter()
        .zip(copies)
        .map(|(stage, copy)| Ok((stage.clone(), copy.try_clone()?)))
        .collect::<std::io::Result<_>>()
        .map_err(|e| failed("descriptors", &e.to_string()))?;
    let folder = shape.folder.clone();
    let most = (shape.limits.get(Limit::FileBytes), shape.limits.get(Limit::ScratchBytes));
    // File work: not on the threads that other calls wait on.
    let done = tokio::task::spawn_blocking(move || {
        let mut artifacts = Vec::new();
        for (stage, copy) in &pairs {
            one(stage, copy, &folder, most, &mut artifacts)?;
        }
        Ok(artifacts)
    });
    done.await.map_err(|e| failed("publishing", &e.to_string()))?
}

fn failed(what: &str, why: &str) -> Fault {
    Fault::new(Kind::InternalError, "the files of this call could not be published").person(format!("{what}: {why}"))
}

/// Why nothing of a folder is published. Holes count as bytes: outside they may not stay holes.
fn too_much(copy: &OwnedFd, names: &[CString], most: u64) -> Option<String> {
    if names.len() > MOST_FILES {
        return Some(format!("it holds more than {MOST_FILES} files"));
    }
    let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
    let sizes = names.iter().flat_map(|name| nix::sys::stat::fstatat(copy, name.as_c_str(), flags));
    let bytes = sizes.fold(0u64, |sum, stat| sum.saturating_add(u64::try_from(stat.st_size).unwrap_or(0)));
    (bytes > most).then(|| format!("its files have {bytes} bytes, scratchBytes allows {most}"))
}

fn one(
    stage: &Stage,
    copy: &OwnedFd,
    own: &Path,
    (most, most_bytes): (u64, u64),
    out: &mut Vec<Artifact>,
) -> Result<(), Fault> {
    let place = stage.folder.display().to_string();
    let wrong = |e: Errno| failed(&place, e.desc());
    let to = grants::open(&stage.folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(wrong)?;
    let stat = fstat(&to).map_err(wrong)?;
    if (stat.st_dev, stat.st_ino) != (stage.device, stage.inode) {
        return Err(failed(&place, "the folder was replaced during the call"));
    }
    let shown = stage.folder.strip_prefix(own).unwrap_or(&stage.folder);
    let listing = copy.try_clone().map_err(|e| failed(&place, &e.to_string()))?;
    let mut listing = nix::dir::Dir::from_fd(listing).map_err(wrong)?;
    let entries = listing.iter().flatten().map(|e| e.file_name().to_owned());
    let mut names: Vec<CString> =
        entries.filter(|n| !matches!(n.to_bytes(), b"." | b"..")).take(MOST_FILES + 1).collect();
    names.sort();
    if let Some(why) = too_much(copy, &names, most_bytes) {
        // All or nothing: half a result would look like a whole one.
        let path = shown.display().to_string();
        out.push(Artifact { path, bytes: 0, published: false, dropped_because: Some(why) });
        return Ok(());
    }
    for name in names {
        let path = shown.join(name.to_string_lossy().as_ref()).display().to_string();
        let mut artifact = Artifact { path, bytes: 0, published: false, dropped_because: None };
        match file(copy, &to, &name, &stage.names, most, (stat.st_uid, stat.st_gid)) {
            Ok(Some(bytes)) => (artifact.bytes, artifact.published) = (bytes, true),
            Ok(None) => continue,
            Err(why) => artifact.dropped_because = Some(why),
        }
        out.push(artifact);
    }
    Ok(())
}

/// One entry: published (its size), unchanged (`None`), or dropped (why).
fn file(
    copy: &OwnedFd,
    to: &OwnedFd,
    name: &CStr,
    globs: &[String],
    most: u64,
    owner: (u32, u32),
) -> Result<Option<u64>, String> {
    let text = name.to_str().map_err(|_| "its name is not UTF-8".to_owned())?;
    if !manifest::text::is_printable(text) {
        return Err("its name holds characters that do not print".to_owned());
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let source = openat(copy, name, flags, Mode::empty()).map_err(|e| match e {
        Errno::ELOOP => "it is a symbolic link".to_owned(),
        e => e.desc().to_owned(),
    })?;
    let stat = fstat(&source).map_err(|e| e.desc().to_owned())?;
    if stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        // Places where what lies beside the staged files is shown.
        let point = openat(to, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
        return if point.is_ok() { Ok(None) } else { Err("it is not a regular file".to_owned()) };
    }
    if !globs.iter().any(|glob| policy::name_matches(glob, text)) {
        let beside = openat(to, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).is_ok();
        return if beside && stat.st_size == 0 {
            Ok(None)
        } else {
            Err(format!("its name matches none of {}", globs.join(", ")))
        };
    }
    if grants::is_definition(text) {
        return Err("a tool may not make tools or policies".to_owned());
    }
    if stat.st_nlink != 1 {
        return Err("it has more than one hard link".to_owned());
    }
    if stat.st_size as u64 > most {
        return Err(format!("it is larger than fileBytes ({most} bytes)"));
    }
    let size = stat.st_size as u64;
    let source = std::fs::File::from(source);
    if same(to, name, &source, size) {
        return Ok(None);
    }
    // Never writable by others, whatever the tool set.
    write(to, name, &source, size, stat.st_mode & 0o644, owner).map_err(|e| e.to_string())?;
    Ok(Some(size))
}

/// Unchanged since it was copied in. Read in pieces, since files may be large and the host's memory is not theirs.
fn same(to: &OwnedFd, name: &CStr, source: &std::fs::File, size: u64) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let Ok(old) = openat(to, name, flags, Mode::empty()) else { return false };
    let old = std::fs::File::from(old);
    if !old.metadata().is_ok_and(|m| m.is_file() && m.len() == size) {
        return false;
    }
    let (mut ours, mut theirs) = (vec![0u8; PIECE], vec![0u8; PIECE]);
    let mut at = 0;
    while at < size {
        let length = PIECE.min(usize::try_from(size - at).unwrap_or(PIECE));
        let read = old.read_exact_at(&mut ours[..length], at).and(source.read_exact_at(&mut theirs[..length], at));
        if read.is_err() || ours[..length] != theirs[..length] {
            return false;
        }
        at += length as u64;
    }
    true
}

fn write(
    to: &OwnedFd,
    name: &CStr,
    source: &std::fs::File,
    size: u64,
    mode: u32,
    owner: (u32, u32),
) -> std::io::Result<()> {
    let temporary = CString::new(format!(".toolhost-{}", uuid::Uuid::now_v7()))?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = std::fs::File::from(openat(to, temporary.as_c_str(), flags, Mode::from_bits_truncate(0o600))?);
    let written = (|| {
        let mut piece = vec![0u8; PIECE];
        let mut at = 0;
        while at < size {
            let length = PIECE.min(usize::try_from(size - at).unwrap_or(PIECE));
            source.read_exact_at(&mut piece[..length], at)?;
            file.write_all(&piece[..length])?;
            at += length as u64;
        }
        if nix::unistd::geteuid().is_root() {
            nix::unistd::fchown(&file, Some(owner.0.into()), Some(owner.1.into()))?;
        }
        nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(mode))?;
        renameat(to, temporary.as_c_str(), to, name)?;
        Ok(())
    })();
    if written.is_err() {
        let _ = unlinkat(to, temporary.as_c_str(), UnlinkatFlags::NoRemoveDir);
    }
    written
}
