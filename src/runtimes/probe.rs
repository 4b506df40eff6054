//! Asks a launcher (pyenv, asdf, volta, snap) where its interpreter is, and an interpreter its
//! version if no file states it.
//!
//! A program is run only if no other user can change it and no tool can write what it may read. It
//! runs without the host's environment, outside of the current folder, without a shell, for at most
//! 5 seconds. The answer is kept in a private cache.

use super::trust::{self, OffLimits};
use crate::base::files::{self, Folder};
use crate::manifest::Language;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer is kept: a launcher chooses its interpreter by files that we do not know.
const CACHE_SECONDS: u64 = 3600;
const MAX_CACHE_BYTES: u64 = 64 * 1024;
const MAX_ANSWERS: usize = 64;
const MAX_ANSWER_BYTES: u64 = 4096;

/// What a launcher said about its interpreter.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CachedAnswer {
    text: String,
    /// Seconds since 1970.
    asked: u64,
}

pub(super) struct InterpreterProbe<'a> {
    /// Folders of the search path that may be trusted: a launcher finds its own programs there.
    search_path: OsString,
    home: OsString,
    off_limits: &'a OffLimits,
    /// `None`: the machine has no cache folder, or a tool could write it.
    cache: Option<PathBuf>,
}

impl<'a> InterpreterProbe<'a> {
    /// `folders`: the folders of the search path that were accepted.
    pub(super) fn new(folders: &[PathBuf], off_limits: &'a OffLimits) -> InterpreterProbe<'a> {
        let folder = files::cache_folder(|name| std::env::var_os(name));
        let cache = folder
            .map(|folder| folder.join("runtimes.json"))
            .filter(|path| off_limits.check(path).is_ok());
        let trusted = folders.iter().filter(|folder| trust::path(folder).is_ok());
        // Launchers obey files in the home: that of somebody else (which sudo can leave in HOME) is
        // not used.
        InterpreterProbe {
            search_path: std::env::join_paths(trusted).unwrap_or_default(),
            home: std::env::var_os("HOME")
                .filter(|home: &OsString| {
                    Path::new(home).is_absolute() && trust::path(Path::new(home)).is_ok()
                })
                .unwrap_or_else(|| "/".into()),
            off_limits,
            cache,
        }
    }

    /// The interpreter that a launcher starts. The caller has checked owner and mode of the
    /// launcher.
    pub(super) fn executable(
        &self,
        language: Language,
        launcher: &Path,
    ) -> Result<PathBuf, String> {
        let question: &[&str] = match language {
            Language::Python => &["-c", "import sys; print(sys.executable)"],
            Language::Nodejs => &["-p", "process.execPath"],
            Language::Bun => &["-e", "console.log(process.execPath)"],
            Language::Bash => &["-c", "echo \"$BASH\""],
            Language::Wasm => return Err("wasm has no interpreter".to_owned()),
        };
        self.off_limits.check_launcher(launcher, &self.home)?;
        let path =
            PathBuf::from(self.ask(launcher, question, |answer| Path::new(answer).is_file())?);
        if path.is_absolute() {
            Ok(path)
        } else {
            Err("it did not print the path of its interpreter".to_owned())
        }
    }

    /// What `--version` prints.
    pub(super) fn version(&self, interpreter: &Path) -> Result<String, String> {
        self.ask(interpreter, &["--version"], |_| true)
    }

    /// `still_good`: whether a cached answer may be used.
    fn ask(
        &self,
        program: &Path,
        question: &[&str],
        still_good: impl Fn(&str) -> bool,
    ) -> Result<String, String> {
        let facts = program
            .metadata()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let stamp = (
            facts.dev(),
            facts.ino(),
            facts.size(),
            facts.mtime(),
            facts.mtime_nsec(),
        );
        let key = format!("{} {stamp:?} {}", program.display(), question.join(" "));
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let mut cached = self
            .cache
            .as_deref()
            .and_then(read_cache)
            .unwrap_or_default();
        cached.retain(|_, answer| {
            now.saturating_sub(answer.asked) < CACHE_SECONDS && answer.asked <= now
        });
        if let Some(answer) = cached.get(&key).filter(|answer| still_good(&answer.text)) {
            return Ok(answer.text.clone());
        }
        let text = self.run(program, question)?;
        if let Some(cache) = &self.cache {
            while cached.len() >= MAX_ANSWERS {
                cached.pop_first();
            }
            cached.insert(
                key,
                CachedAnswer {
                    text: text.clone(),
                    asked: now,
                },
            );
            // Losing the cache costs only time.
            let _ = write_cache(cache, &cached);
        }
        Ok(text)
    }

    /// Runs `program` with no variables but PATH and HOME; returns its first line of output, if it
    /// succeeds in time.
    fn run(&self, program: &Path, question: &[&str]) -> Result<String, String> {
        fn failed(e: io::Error) -> String {
            format!("it could not be run: {e}")
        }
        // A file, not a pipe: a process that is left running cannot keep us waiting for the end of
        // it.
        let mut output = tempfile::tempfile().map_err(failed)?;
        let mut child = Command::new(program)
            .args(question)
            .env_clear()
            .env("PATH", &self.search_path)
            .env("HOME", &self.home)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let began = Instant::now();
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if began.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(2)),
                None => {
                    // The child is not reaped yet, so its pid still names its own process group.
                    let _ = killpg(
                        Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
                        Signal::SIGKILL,
                    );
                    let _ = child.wait();
                    return Err("it did not answer within 5 s".to_owned());
                }
            }
        };
        if !status.success() {
            return Err("it failed when asked for its path or version".to_owned());
        }
        output.rewind().map_err(failed)?;
        let mut text = String::new();
        output
            .take(MAX_ANSWER_BYTES)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let line = text
            .lines()
            .next()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        line.map(str::to_owned)
            .ok_or_else(|| "it printed nothing".to_owned())
    }
}

/// The cache, if the file is ours alone.
fn read_cache(path: &Path) -> Option<BTreeMap<String, CachedAnswer>> {
    let file = Folder::open(path.parent()?)
        .ok()?
        .trusted(path.file_name()?.to_str()?, OFlag::O_RDONLY)
        .ok()?;
    if files::not_private(&file.metadata().ok()?).is_some() {
        return None;
    }
    serde_json::from_slice(&files::whole(file, MAX_CACHE_BYTES).ok()??).ok()
}

fn write_cache(path: &Path, answers: &BTreeMap<String, CachedAnswer>) -> io::Result<()> {
    let (folder, name) = path
        .parent()
        .zip(path.file_name())
        .ok_or(io::ErrorKind::InvalidInput)?;
    Folder::make(folder)?.put(&name.to_string_lossy(), &serde_json::to_vec(answers)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, read_to_string, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_launcher_sees_nothing_of_our_environment_and_its_answer_is_kept_in_a_private_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = folder.path().join("cache/toolhost/runtimes.json");
        let (off_limits, search_path, home) =
            (OffLimits::default(), "/usr/bin:/bin".into(), "/".into());
        let probe = InterpreterProbe {
            search_path,
            home,
            off_limits: &off_limits,
            cache: Some(cache.clone()),
        };
        let (launcher, count) = (folder.path().join("launcher"), folder.path().join("count"));
        let script = |text: &str| {
            write(
                &launcher,
                format!("#!/bin/sh\necho x >> {}\n{text}\n", count.display()),
            )
            .expect("launcher");
            set_permissions(&launcher, Permissions::from_mode(0o755)).expect("mode");
        };
        let asked = || {
            (
                probe.version(&launcher),
                read_to_string(&count).expect("count").lines().count(),
            )
        };
        script("echo \"${CARGO_MANIFEST_DIR-none} $PWD\"");
        assert_eq!(asked(), (Ok("none /".to_owned()), 1));
        assert_eq!(asked().1, 1, "asked once");
        set_permissions(&cache, Permissions::from_mode(0o644)).expect("mode");
        assert_eq!(asked().1, 2, "a readable cache is not used");
        script("echo v2");
        assert_eq!(asked(), (Ok("v2".to_owned()), 3), "another file");
        script("exit 3");
        assert!(asked().0.is_err());
    }
}
