//! Asks a launcher (asdf, volta, snap) where its interpreter is, and an interpreter its version if no file
//! tells.
//!
//! It runs without the host's environment, outside of the current folder, without a shell, for at most 5 seconds, and
//! only where no tool could write what it may read. The answer is kept in a private cache.

use super::trust::{self, OffLimits};
use crate::base::files::{self, Folder};
use crate::manifest::Language;
use nix::fcntl::OFlag;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const PATIENCE: Duration = Duration::from_secs(5);
/// An answer is kept for a day: a launcher chooses its interpreter by files that we do not know.
const KEPT_SECONDS: u64 = 24 * 3600;
const MOST_CACHE_BYTES: u64 = 64 * 1024;
const MOST_ANSWERS: usize = 64;
const MOST_ANSWER_BYTES: u64 = 4096;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answer {
    text: String,
    /// Seconds since 1970.
    asked: u64,
}

pub(super) struct Asker<'a> {
    /// Folders of the search path that may be trusted: a launcher finds its own programs there.
    search_path: OsString,
    home: OsString,
    off_limits: &'a OffLimits,
    /// `None`: no place for it outside the tool folders, so nothing is kept.
    cache: Option<PathBuf>,
}

impl<'a> Asker<'a> {
    /// `folders`: of the search path, those that were not passed over.
    pub(super) fn new(folders: &[PathBuf], off_limits: &'a OffLimits) -> Asker<'a> {
        let folder = files::cache_folder(|name| std::env::var_os(name));
        let cache = folder.map(|folder| folder.join("runtimes.json")).filter(|path| off_limits.passes(path).is_ok());
        let trusted = folders.iter().filter(|folder| trust::path(folder).is_ok());
        Asker {
            search_path: std::env::join_paths(trusted).unwrap_or_default(),
            // Launchers obey files in the home: that of somebody else (which sudo can leave in HOME) is not used.
            home: std::env::var_os("HOME")
                .filter(|home| Path::new(home).is_absolute() && trust::path(Path::new(home)).is_ok())
                .unwrap_or_else(|| "/".into()),
            off_limits,
            cache,
        }
    }

    /// The interpreter that a launcher starts.
    pub(super) fn executable(&self, language: Language, launcher: &Path) -> Result<PathBuf, String> {
        let question: &[&str] = match language {
            Language::Python => &["-c", "import sys; print(sys.executable)"],
            Language::Nodejs => &["-p", "process.execPath"],
            Language::Bun => &["-e", "console.log(process.execPath)"],
            Language::Wasm => return Err("wasm has no interpreter".to_owned()),
        };
        self.off_limits.near_a_launcher(launcher, &self.home)?;
        let path = PathBuf::from(self.line(launcher, question)?);
        if path.is_absolute() { Ok(path) } else { Err("it did not say where its interpreter is".to_owned()) }
    }

    /// What `--version` prints.
    pub(super) fn version(&self, interpreter: &Path) -> Result<String, String> {
        self.line(interpreter, &["--version"])
    }

    fn line(&self, program: &Path, question: &[&str]) -> Result<String, String> {
        let key = key(program, question)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut kept = self.cache.as_deref().and_then(read_cache).unwrap_or_default();
        kept.retain(|_, answer| now.saturating_sub(answer.asked) < KEPT_SECONDS && answer.asked <= now);
        if let Some(answer) = kept.get(&key) {
            return Ok(answer.text.clone());
        }
        let text = run(program, question, &self.search_path, &self.home)?;
        if let Some(cache) = &self.cache {
            while kept.len() >= MOST_ANSWERS {
                kept.pop_first();
            }
            kept.insert(key, Answer { text: text.clone(), asked: now });
            // Losing the cache costs only time.
            let _ = write_cache(cache, &kept);
        }
        Ok(text)
    }
}

/// The key of an answer: the file as it is now, and the question.
fn key(program: &Path, question: &[&str]) -> Result<String, String> {
    let facts = program.metadata().map_err(|e| format!("{}: {e}", program.display()))?;
    let stamp = (facts.dev(), facts.ino(), facts.size(), facts.mtime(), facts.mtime_nsec());
    Ok(format!("{} {stamp:?} {}", program.display(), question.join(" ")))
}

/// Runs `program` with no variables but PATH and HOME; returns its first line of output, if it succeeds in time.
fn run(program: &Path, question: &[&str], search_path: &OsStr, home: &OsStr) -> Result<String, String> {
    let say = |e: std::io::Error| format!("it could not be asked where it leads: {e}");
    // A file, not a pipe: a process that is left running cannot keep us waiting for the end of it.
    let mut output = tempfile::tempfile().map_err(say)?;
    let mut child = Command::new(program)
        .args(question)
        .env_clear()
        .env("PATH", search_path)
        .env("HOME", home)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(say)?)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(say)?;
    let asked = Instant::now();
    let status = loop {
        match child.try_wait().map_err(say)? {
            Some(status) => break Some(status),
            None if asked.elapsed() >= PATIENCE => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    if status.is_none() {
        // The child is not reaped yet, so its pid still names its own process group.
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = child.wait();
        return Err("it did not say within 5 s where it leads".to_owned());
    }
    if !status.is_some_and(|s| s.success()) {
        return Err("it is a launcher that has no interpreter to start".to_owned());
    }
    output.rewind().map_err(say)?;
    let mut text = String::new();
    output.take(MOST_ANSWER_BYTES).read_to_string(&mut text).map_err(say)?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err("it printed nothing when asked where it leads".to_owned()),
    }
}

/// The cache, if the file is ours alone.
fn read_cache(path: &Path) -> Option<BTreeMap<String, Answer>> {
    let file = Folder::open(path.parent()?).ok()?.trusted(path.file_name()?.to_str()?, OFlag::O_RDONLY).ok()?;
    let facts = file.metadata().ok()?;
    if facts.mode() & 0o077 != 0 || facts.len() > MOST_CACHE_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(MOST_CACHE_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write_cache(path: &Path, answers: &BTreeMap<String, Answer>) -> std::io::Result<()> {
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(std::io::ErrorKind::InvalidInput)?;
    Folder::make(folder)?.put(&name.to_string_lossy(), &serde_json::to_vec(answers)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("launcher");
        std::fs::write(&path, text).expect("launcher");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        path
    }

    fn asker(off_limits: &OffLimits, cache: Option<PathBuf>) -> Asker<'_> {
        Asker { search_path: "/usr/bin:/bin".into(), home: "/".into(), off_limits, cache }
    }

    #[test]
    fn an_answer_is_kept_until_the_file_changes_and_only_in_a_private_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = folder.path().join("cache/toolhost/runtimes.json");
        let off_limits = OffLimits::default();
        let asker = asker(&off_limits, Some(cache.clone()));
        let count = folder.path().join("count");
        let launcher = script(folder.path(), &format!("#!/bin/sh\necho x >> {}\necho v1\n", count.display()));
        assert_eq!(asker.version(&launcher).as_deref(), Ok("v1"));
        assert_eq!(asker.version(&launcher).as_deref(), Ok("v1"));
        assert_eq!(std::fs::read_to_string(&count).expect("count").lines().count(), 1, "asked once");
        std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o644)).expect("mode");
        assert_eq!(asker.version(&launcher).as_deref(), Ok("v1"));
        assert_eq!(std::fs::read_to_string(&count).expect("count").lines().count(), 2, "a readable cache is not used");
        std::fs::write(&launcher, "#!/bin/sh\necho v2\n").expect("launcher");
        assert_eq!(asker.version(&launcher).as_deref(), Ok("v2"));
    }

    #[test]
    fn a_launcher_sees_nothing_of_our_environment_and_may_fail() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let off_limits = OffLimits::default();
        let asker = asker(&off_limits, None);
        let launcher = script(folder.path(), "#!/bin/sh\necho \"${CARGO_MANIFEST_DIR-none} $PWD\"\n");
        assert_eq!(asker.version(&launcher).as_deref(), Ok("none /"));
        script(folder.path(), "#!/bin/sh\nexit 3\n");
        assert!(asker.version(&launcher).is_err());
    }
}
