//! Policy files on disk: only regular files that no other user can change; no link is followed and
//! no FIFO waited on.

use super::document::FileProblem;
use super::file::{is_policy_file, is_rules_file};
use super::packages::is_lock_name;
use crate::base::{files, text};
use crate::manifest::{Code, Problem, Severity};
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Default)]
pub struct PolicyTexts {
    pub texts: Vec<(PathBuf, String)>,
    pub notes: Vec<FileProblem>,
    pub problems: Vec<FileProblem>,
}

fn unreadable(what: impl Into<String>) -> Problem {
    Problem::new(Severity::Error, Code::Unreadable, "", what)
}

fn insecure(what: impl Into<String>) -> Problem {
    Problem::new(Severity::Error, Code::Security, "", what)
}

impl PolicyTexts {
    fn take(&mut self, path: &Path, text: Result<String, Problem>) {
        let path = path.to_path_buf();
        match text {
            Ok(text) => self.texts.push((path, text)),
            Err(problem) => self.problems.push(FileProblem { path, problem }),
        }
    }
}

pub fn read(path: &Path) -> PolicyTexts {
    let mut found = PolicyTexts::default();
    match open(AT_FDCWD, path) {
        Ok((opened, about)) if about.is_dir() => {
            if let Err(problem) = folder(path, &opened, &about, &mut found) {
                found.take(path, Err(problem));
            }
        }
        opened => found.take(
            path,
            opened.and_then(|(opened, about)| whole(opened, &about, path)),
        ),
    }
    found
}

/// Reads a lock of packages that a policy names. The file must be as safe as a policy file.
pub fn lock_file(path: &Path) -> Result<String, FileProblem> {
    read_beside(path, |_| None).map_err(|mut bad| {
        bad.problem.code = Code::Dependency;
        let fix = if path.exists() {
            ""
        } else {
            "; `toolhost deps lock core:run-code NAME` (or `--preset data-python`) writes it"
        };
        bad.problem.message.push_str(fix);
        bad
    })
}

/// Reads certificates in PEM that a policy names, with the same checks.
pub fn certificates(path: &Path) -> Result<String, FileProblem> {
    read_beside(path, |text| {
        (!text.contains("-----BEGIN CERTIFICATE-----")).then_some("holds no certificate in PEM")
    })
}

/// Reads a file that is as safe as a policy file. `None`: it is a folder that is.
pub fn trusted_text(path: &Path, most: u64) -> Result<Option<String>, String> {
    let read = open(AT_FDCWD, path).and_then(|(opened, about)| match about.is_dir() {
        true => check_unshared(&about, path).map(|()| None),
        false => whole_up_to(opened, &about, path, most).map(Some),
    });
    read.map_err(|problem| problem.message)
}

fn read_beside(
    path: &Path,
    check: impl Fn(&str) -> Option<&'static str>,
) -> Result<String, FileProblem> {
    let text = open(AT_FDCWD, path).and_then(|(opened, about)| whole(opened, &about, path));
    let text = text.and_then(|text| match check(&text) {
        Some(why) => Err(unreadable(why)),
        None => Ok(text),
    });
    text.map_err(|problem| FileProblem {
        path: path.to_path_buf(),
        problem,
    })
}

fn folder(
    path: &Path,
    opened: &File,
    about: &Metadata,
    found: &mut PolicyTexts,
) -> Result<(), Problem> {
    check_unshared(about, path)?;
    let listed = std::fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let names = listed.and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<Vec<_>, _>>()
    });
    let mut names: Vec<OsString> =
        names.map_err(|error| unreadable(format!("cannot be listed: {error}")))?;
    names.sort();
    // Hidden files are skipped, as among manifests: editors keep copies and locks beside an open
    // file.
    for name in names
        .iter()
        .filter(|name| !name.as_encoded_bytes().starts_with(b"."))
    {
        let file = path.join(name);
        if name.to_str().is_some_and(is_rules_file) {
            let text = open(opened, Path::new(name))
                .and_then(|(opened, about)| whole(opened, &about, &file));
            found.take(&file, text);
        } else if !name.to_str().is_some_and(is_lock_name) && !is_folder_without_policies(&file) {
            let why = "ignored: a policy file ends in `.policy.toml`";
            // Such a name looks like a policy: its author may believe that it is in force.
            let like = name.to_string_lossy().to_lowercase();
            let like = like.ends_with(".toml") || like.ends_with(".policy");
            let severity = if like {
                Severity::Warning
            } else {
                Severity::Note
            };
            let problem = Problem::new(severity, Code::Unreadable, "", why);
            found.notes.push(FileProblem {
                path: file,
                problem,
            });
        }
    }
    Ok(())
}

/// A folder is not read. Only one with policies in it is reported.
fn is_folder_without_policies(path: &Path) -> bool {
    let is_folder = path.symlink_metadata().is_ok_and(|facts| facts.is_dir());
    let has_policies = || {
        let names = std::fs::read_dir(path).into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name())
            .any(|name| name.to_str().is_some_and(is_policy_file))
    };
    is_folder && !has_policies()
}

/// Opens without following a link at the last component and without waiting.
fn open(folder: impl AsFd, path: &Path) -> Result<(File, Metadata), Problem> {
    let opened = files::open_at(folder, path, OFlag::O_RDONLY).map_err(|errno| match errno {
        Errno::ELOOP => insecure("is a symbolic link; policies are read only from the real file"),
        Errno::ENOENT => unreadable("does not exist"),
        Errno::EACCES => unreadable("may not be read by this user"),
        Errno::ENXIO => unreadable("is not a regular file"),
        other => unreadable(format!("cannot be opened: {}", other.desc())),
    })?;
    let file = File::from(opened);
    let about = file
        .metadata()
        .map_err(|e| unreadable(format!("cannot be examined: {e}")))?;
    Ok((file, about))
}

fn whole(opened: File, about: &Metadata, path: &Path) -> Result<String, Problem> {
    whole_up_to(opened, about, path, MAX_DEFINITION_BYTES)
}

fn whole_up_to(opened: File, about: &Metadata, path: &Path, most: u64) -> Result<String, Problem> {
    if !about.is_file() {
        return Err(unreadable("is not a regular file"));
    }
    check_unshared(about, path)?;
    let bytes =
        files::whole(opened, most).map_err(|e| unreadable(format!("cannot be read: {e}")))?;
    let bytes = bytes.ok_or_else(|| unreadable(format!("is larger than {most} bytes")))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let good = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let before = good.rsplit('\n').next().unwrap_or_default();
        let line = good.matches('\n').count() + 1;
        let column = before.chars().count() + 1;
        Problem {
            line,
            column,
            ..Problem::new(Severity::Error, Code::Encoding, "", "is not UTF-8 text")
        }
    })?;
    Ok(text.to_owned())
}

fn check_unshared(about: &Metadata, path: &Path) -> Result<(), Problem> {
    let shown = text::path(path);
    if files::others_may_write(about.mode(), about.uid(), about.gid()) {
        let mode = about.mode() & 0o7777;
        return Err(insecure(format!(
            "can be written by others (mode {mode:04o}); run: chmod go-w '{shown}'"
        )));
    }
    if !files::is_trusted(about.uid()) {
        let me = nix::unistd::geteuid();
        let why = files::foreign(about.uid()).split_off("it ".len());
        return Err(insecure(format!(
            "{why}; run toolhost as that user, or: chown {me} '{shown}'"
        )));
    }
    Ok(())
}
