//! Policy files as they lie on disk: only regular files that nobody else can change, no links.
//!
//! For: `policy/load.rs`. In: a folder or a file. Out: texts in the order of their names.
//! Never: follows a link, waits on a FIFO, reads more than the house allows, or trusts a file others can write.

use super::load::{FileProblem, is_policy_file};
use super::source::At;
use crate::manifest::{Code, Problem, Severity};
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Default)]
pub(super) struct Found {
    pub texts: Vec<(PathBuf, String)>,
    pub notes: Vec<FileProblem>,
    pub problems: Vec<FileProblem>,
}

/// A fault of one file: its code, its place (line 0 = the whole file), and what to do.
struct Bad(Code, At, String);

impl Bad {
    fn whole(code: Code, what: impl Into<String>) -> Bad {
        Bad(code, At::default(), what.into())
    }
}

pub(super) fn read(path: &Path) -> Found {
    let mut found = Found::default();
    match open(None, path) {
        Err(bad) => found.problems.push(told(path, Severity::Error, bad)),
        Ok((opened, about)) if about.is_dir() => folder(path, opened, &about, &mut found),
        Ok((opened, about)) => match text(opened, &about, path) {
            Ok(text) => found.texts.push((path.to_path_buf(), text)),
            Err(bad) => found.problems.push(told(path, Severity::Error, bad)),
        },
    }
    found
}

fn folder(path: &Path, opened: File, about: &Metadata, found: &mut Found) {
    if let Err(bad) = unshared(about, path) {
        found.problems.push(told(path, Severity::Error, bad));
        return;
    }
    let names = match names(&opened) {
        Ok(names) => names,
        Err(error) => {
            found.problems.push(told(
                path,
                Severity::Error,
                Bad::whole(Code::Unreadable, format!("cannot be listed: {error}")),
            ));
            return;
        }
    };
    for name in names {
        let file = path.join(&name);
        // Hidden files are skipped, as among manifests: editors keep copies and locks beside an open file.
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if !name.to_str().is_some_and(is_policy_file) {
            let why = "ignored: a policy file ends in `.policy.toml`".to_string();
            found.notes.push(told(&file, Severity::Note, Bad::whole(Code::Unreadable, why)));
            continue;
        }
        let read = open(Some(&opened), Path::new(&name)).and_then(|(opened, about)| text(opened, &about, &file));
        match read {
            Ok(text) => found.texts.push((file, text)),
            Err(bad) => found.problems.push(told(&file, Severity::Error, bad)),
        }
    }
}

fn names(folder: &File) -> nix::Result<Vec<std::ffi::OsString>> {
    let again =
        nix::fcntl::openat(folder, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut found = Vec::new();
    for entry in nix::dir::Dir::from_fd(again)?.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            use std::os::unix::ffi::OsStringExt;
            found.push(std::ffi::OsString::from_vec(name.into_bytes()));
        }
    }
    found.sort();
    Ok(found)
}

/// Opens without following a link at the last component and without waiting.
fn open(folder: Option<&File>, path: &Path) -> Result<(File, Metadata), Bad> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let opened = match folder {
        Some(folder) => nix::fcntl::openat(folder, path, flags, Mode::empty()),
        None => nix::fcntl::openat(nix::fcntl::AT_FDCWD, path, flags, Mode::empty()),
    };
    let file = File::from(opened.map_err(|errno| unopened(errno, folder, path))?);
    let about = file.metadata().map_err(|e| Bad::whole(Code::Unreadable, format!("cannot be looked at: {e}")))?;
    Ok((file, about))
}

fn unopened(errno: nix::errno::Errno, folder: Option<&File>, path: &Path) -> Bad {
    use nix::errno::Errno;
    let is_link = match folder {
        Some(folder) => nix::sys::stat::fstatat(folder, path, AtFlags::AT_SYMLINK_NOFOLLOW),
        None => nix::sys::stat::lstat(path),
    }
    .is_ok_and(|s| s.st_mode & nix::libc::S_IFMT == nix::libc::S_IFLNK);
    match errno {
        _ if is_link => Bad::whole(Code::Security, "is a symbolic link; policies are read only from the real file"),
        Errno::ENOENT => Bad::whole(Code::Unreadable, "does not exist"),
        Errno::EACCES => Bad::whole(Code::Unreadable, "may not be read by this user"),
        Errno::ENXIO => Bad::whole(Code::Unreadable, "is not a regular file"),
        other => Bad::whole(Code::Unreadable, format!("cannot be opened: {}", other.desc())),
    }
}

fn text(opened: File, about: &Metadata, path: &Path) -> Result<String, Bad> {
    if !about.is_file() {
        return Err(Bad::whole(Code::Unreadable, "is not a regular file"));
    }
    unshared(about, path)?;
    let mut bytes = Vec::new();
    let read = opened.take(MAX_DEFINITION_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| Bad::whole(Code::Unreadable, format!("cannot be read: {e}")))?;
    if bytes.len() as u64 > MAX_DEFINITION_BYTES {
        return Err(Bad::whole(Code::Unreadable, format!("is larger than {MAX_DEFINITION_BYTES} bytes")));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(bytes);
    String::from_utf8(bytes).map_err(|e| {
        let good = String::from_utf8_lossy(&e.as_bytes()[..e.utf8_error().valid_up_to()]);
        let before = good.rsplit('\n').next().unwrap_or_default();
        let at = At { line: good.matches('\n').count() + 1, column: before.chars().count() + 1 };
        Bad(Code::Encoding, at, "is not UTF-8 text".into())
    })
}

/// Refuses a policy that somebody else can change.
fn unshared(about: &Metadata, path: &Path) -> Result<(), Bad> {
    let shown = crate::manifest::text::printable(&path.display().to_string());
    if about.mode() & 0o022 != 0 {
        let (mode, mend) = (about.mode() & 0o7777, format!("chmod go-w '{shown}'"));
        return Err(Bad::whole(Code::Security, format!("can be written by others (mode {mode:04o}); run: {mend}")));
    }
    let me = nix::unistd::geteuid().as_raw();
    // In a user namespace all unmapped owners look alike, the machine's root included.
    if !crate::base::files::owners().contains(&about.uid()) {
        let mend = format!("chown {me} '{shown}'");
        return Err(Bad::whole(Code::Security, format!("belongs to another user ({}); run: {mend}", about.uid())));
    }
    Ok(())
}

fn told(path: &Path, severity: Severity, bad: Bad) -> FileProblem {
    let Bad(code, At { line, column }, message) = bad;
    FileProblem {
        path: path.to_path_buf(),
        problem: Problem { severity, code, pointer: String::new(), line, column, message },
    }
}
