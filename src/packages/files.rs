//! The files beside a script, opened and read in bounded memory: never a link, a pipe, or what a
//! tool can write.

use crate::base::{files, text};
use crate::manifest::{Code, Language, Severity};
use crate::policy::packages::{Ecosystem, Package, SourceFile};
use crate::policy::{At, FileProblem, versions};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The largest file that is read, bytes: several times the lock of a large application.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 20;
/// The largest package.json or pyproject.toml that is read, bytes: a person writes them.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// The most packages of one lock, and the most requirements of one file.
pub(super) const MAX_PACKAGES: usize = 5000;

/// Where a script lies.
pub struct ScriptLocation<'a> {
    pub script: &'a Path,
    /// The tool's own folder, with the script in it or below.
    pub own: &'a Path,
    pub language: Language,
    /// The version of the interpreter; empty where it is not known.
    pub version: Option<&'a str>,
    /// Only the script itself can require packages: it lies directly in a base folder, or in a
    /// folder of other tools.
    pub alone: bool,
    /// Ignore the lock that toolhost writes.
    pub ignore_lock: bool,
    /// Who may write a file, or could in an earlier call: such a file is refused.
    pub writer: &'a dyn Fn(&Path) -> Option<String>,
}

/// The folder of a script, held open.
pub(super) struct ScriptFolder<'a> {
    at: OwnedFd,
    path: &'a Path,
    writer: &'a dyn Fn(&Path) -> Option<String>,
}

/// A file that was read whole.
pub(super) struct TextFile {
    pub path: PathBuf,
    pub text: String,
    sha256: String,
    /// Where each line starts: a long file is not counted through for every entry.
    lines: OnceLock<Vec<usize>>,
}

impl<'a> ScriptFolder<'a> {
    pub fn open(
        location: &ScriptLocation<'a>,
        path: &'a Path,
    ) -> Result<ScriptFolder<'a>, FileProblem> {
        let opened = files::without_links(path, OFlag::O_PATH | OFlag::O_DIRECTORY);
        let at = opened.map_err(|errno| closed(path, "opened", errno))?;
        Ok(ScriptFolder {
            at,
            path,
            writer: location.writer,
        })
    }

    pub fn has(&self, name: &str) -> bool {
        fstatat(&self.at, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// The file of this name; `None`: there is none.
    pub fn read(&self, name: &str) -> Result<Option<TextFile>, FileProblem> {
        let path = self.path.join(name);
        fn bad(why: String, path: &Path) -> FileProblem {
            problem(path, 0, why)
        }
        let facts = match fstatat(&self.at, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(facts) => facts,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(closed(&path, "examined", errno)),
        };
        if files::is(facts.st_mode, SFlag::S_IFLNK) {
            return Err(bad(
                "it is a symbolic link, and links are not followed: put the file itself here"
                    .to_owned(),
                &path,
            ));
        }
        if !files::is(facts.st_mode, SFlag::S_IFREG) {
            return Err(bad("it is not a regular file".to_owned(), &path));
        }
        if let Some(who) = (self.writer)(&path) {
            let fix = "if you know who made it, move it and its script elsewhere";
            return Err(bad(
                format!("{who} here, and a tool cannot choose packages: {fix}"),
                &path,
            ));
        }
        let file = files::open_at(&self.at, name, OFlag::O_RDONLY)
            .map_err(|errno| bad(format!("it cannot be read: {}", errno.desc()), &path))?;
        let most = if ["package.json", "pyproject.toml"].contains(&name) {
            MAX_MANIFEST_BYTES
        } else {
            MAX_FILE_BYTES
        };
        let bytes = files::whole(File::from(file), most)
            .map_err(|error| bad(format!("it cannot be read: {error}"), &path))?;
        let bytes = bytes.ok_or_else(|| bad(format!("it is larger than {most} bytes"), &path))?;
        text::decode(&bytes).map_err(|why| bad(why, &path))?;
        Ok(Some(TextFile::new(path.clone(), &bytes)))
    }

    /// The script, if it lies in this folder. `None` also where it is larger than a file that is
    /// read here: then no block in it counts.
    pub fn script(&self, script: &Path) -> Option<TextFile> {
        let name = script.strip_prefix(self.path).ok()?;
        name.parent().filter(|below| below.as_os_str().is_empty())?;
        let file = files::open_at(&self.at, name, OFlag::O_RDONLY).ok()?;
        let bytes = files::whole(File::from(file), MAX_FILE_BYTES).ok()??;
        Some(TextFile::new(script.to_owned(), &bytes))
    }

    /// Refuses settings files of installers: the policy names the index, and this host's
    /// configuration its address.
    pub fn without_settings(&self, names: &[&str]) -> Result<(), FileProblem> {
        let why = "the settings of an installer beside a script are not obeyed: the policy and \
                   this host's configuration say where packages come from; remove the file";
        self.without(names, why)
    }

    /// Refuses locks that are not read, where no other one says which versions are meant.
    pub fn without_locks(&self, names: &[&str]) -> Result<(), FileProblem> {
        let why = "this kind of lock is not read, so other versions would be installed than it \
                   holds: remove it, or lock with uv or npm";
        self.without(names, why)
    }

    fn without(&self, names: &[&str], why: &str) -> Result<(), FileProblem> {
        let found = names.iter().find(|name| self.has(name));
        found.map_or(Ok(()), |name| Err(problem(&self.path.join(name), 0, why)))
    }
}

impl TextFile {
    pub fn new(path: PathBuf, bytes: &[u8]) -> TextFile {
        let text = text::decode(bytes).map_or_else(
            |_| String::from_utf8_lossy(bytes).into_owned(),
            str::to_owned,
        );
        let sha256 = crate::base::sha256_hex(bytes);
        TextFile {
            path,
            text,
            sha256,
            lines: OnceLock::new(),
        }
    }

    pub fn source(&self) -> SourceFile {
        SourceFile {
            path: self.path.clone(),
            sha256: self.sha256.clone(),
        }
    }

    pub fn name(&self) -> String {
        text::printable(&self.path.file_name().unwrap_or_default().to_string_lossy())
    }

    /// The line of a byte.
    pub fn line(&self, offset: usize) -> usize {
        self.lines
            .get_or_init(|| {
                std::iter::once(0)
                    .chain(self.text.match_indices('\n').map(|(at, _)| at + 1))
                    .collect()
            })
            .partition_point(|start: &usize| *start <= offset)
    }

    pub fn problem(&self, line: usize, message: impl AsRef<str>) -> FileProblem {
        problem(&self.path, line, message)
    }

    /// TOML of this file, read into plain data; `above`: the lines of the file before it.
    pub fn toml<T: serde::de::DeserializeOwned>(
        &self,
        text: &str,
        above: usize,
    ) -> Result<T, FileProblem> {
        toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(0, |t| t.matches('\n').count() + 1);
            self.problem(
                above + line,
                format!("it cannot be read: {}", error.message()),
            )
        })
    }
}

fn problem(path: &Path, line: usize, message: impl AsRef<str>) -> FileProblem {
    let at = At {
        line,
        column: usize::from(line > 0),
    };
    FileProblem::new(
        path,
        Severity::Error,
        Code::Dependency,
        "",
        at,
        text::printable(message.as_ref()),
    )
}

/// A problem of the folder or the file itself, not of the file's content.
fn closed(path: &Path, what: &str, errno: Errno) -> FileProblem {
    let mut found = problem(path, 0, format!("it cannot be {what}: {}", errno.desc()));
    found.problem.code = Code::Unreadable;
    found
}

/// A part of a file in a message: printable, and not long.
pub(super) fn shown(part: &str) -> String {
    text::printable(&text::head(part, 80))
}

/// Why the interpreter may not run a script whose files ask for these versions of it. A pre-release
/// of Node fits, as in npm.
pub(super) fn unfit(ecosystem: Ecosystem, range: &str, version: &str) -> Option<String> {
    let fits = match ecosystem {
        // Without a header file the last number of an interpreter is not known: any may be it.
        Ecosystem::Python if version.matches('.').count() == 1 => {
            [".0", ".999"].iter().any(|last| {
                versions::holds(ecosystem, range, &format!("{version}{last}")) == Some(true)
            })
        }
        Ecosystem::Python => versions::holds(ecosystem, range, version) == Some(true),
        Ecosystem::Node => {
            versions::is_range(ecosystem, range) && versions::may_hold(ecosystem, range, version)
        }
    };
    let fix = "a policy can name another interpreter ([runtimes])";
    (!fits && !version.is_empty()).then(|| {
        format!(
            "`{}` is required, and its interpreter is {version}: {fix}",
            shown(range)
        )
    })
}

/// Why the locked package does not fit a requirement. `None`: it fits.
pub(super) fn misfit(ecosystem: Ecosystem, range: &str, held: Option<&Package>) -> Option<String> {
    let Some(Package { version, .. }) = held else {
        return Some("does not hold it".to_owned());
    };
    (versions::holds(ecosystem, range, version) != Some(true)).then(|| format!("holds {version}"))
}
