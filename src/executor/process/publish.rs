//! Staged files: published after success, only what matches, by temporary file and rename beneath the real folder.

use crate::executor::Artifact;
use crate::fault::{Fault, Kind};
use crate::policy::{self, Shape};
use crate::quantity::Limit;
use crate::sandbox::grants;
use crate::sandbox::protocol::Stage;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Publishes from each staged copy to its folder.
pub async fn all(stages: &[Stage], copies: &[OwnedFd], shape: &Shape) -> Result<Vec<Artifact>, Fault> {
    let pairs: Vec<(Stage, OwnedFd)> = stages
        .iter()
        .zip(copies)
        .map(|(stage, copy)| Ok((stage.clone(), copy.try_clone()?)))
        .collect::<std::io::Result<_>>()
        .map_err(|e| failed("descriptors", &e.to_string()))?;
    let (folder, most) = (shape.folder.clone(), shape.limits.get(Limit::FileBytes));
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

fn one(stage: &Stage, copy: &OwnedFd, own: &Path, most: u64, out: &mut Vec<Artifact>) -> Result<(), Fault> {
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
    let mut names: Vec<CString> = listing.iter().flatten().map(|e| e.file_name().to_owned()).collect();
    names.retain(|n| !matches!(n.to_bytes(), b"." | b".."));
    names.sort();
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
    let mut content = Vec::new();
    std::fs::File::from(source).take(most).read_to_end(&mut content).map_err(|e| e.to_string())?;
    if same(to, name, &content) {
        return Ok(None);
    }
    write(to, name, &content, stat.st_mode & 0o666, owner).map_err(|e| e.to_string())?;
    Ok(Some(content.len() as u64))
}

fn same(to: &OwnedFd, name: &CStr, content: &[u8]) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let Ok(old) = openat(to, name, flags, Mode::empty()) else { return false };
    let old = std::fs::File::from(old);
    let size = old.metadata().map(|m| if m.is_file() { m.len() } else { u64::MAX });
    let mut text = Vec::new();
    size.is_ok_and(|size| size == content.len() as u64)
        && old.take(content.len() as u64 + 1).read_to_end(&mut text).is_ok()
        && text == content
}

fn write(to: &OwnedFd, name: &CStr, content: &[u8], mode: u32, owner: (u32, u32)) -> std::io::Result<()> {
    let temporary = CString::new(format!(".toolhost-{}", uuid::Uuid::now_v7()))?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = std::fs::File::from(openat(to, temporary.as_c_str(), flags, Mode::from_bits_truncate(0o600))?);
    let written = (|| {
        file.write_all(content)?;
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
