//! Programs of the operator's that this host runs for itself: no shell, few variables. When one has
//! ended, or runs too long, its process group is killed.

use crate::base::files;
use futures_util::FutureExt;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Longest wait for more output of a command after it ended.
const OUTPUT_GRACE: Duration = Duration::from_millis(200);
/// The only host variables that a command gets; it may need them to find its user's files.
const VARIABLES: [&str; 7] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Refuses a program or argument file that is not there, or that other users can change.
pub fn check(words: &[String]) -> Result<(), String> {
    let program = words.first().ok_or("it names no program")?;
    for path in words.iter().filter(|word| word.starts_with('/')) {
        let facts = std::fs::metadata(path).map(|facts| (facts.mode(), facts.uid()));
        match facts {
            Ok((_, owner)) if !files::is_of_system(owner, std::path::Path::new(path)) => {
                return Err(format!("{path}: {}", files::foreign(owner)));
            }
            Ok((mode, _)) => files::unwritable(mode).map_err(|why| format!("{path}: {why}"))?,
            Err(e) if path == program => return Err(format!("{path}: {e}")),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Runs a program and returns its output, of at most `most` bytes. `input`: what a pipe holds at
/// most.
pub async fn run(words: &[String], input: &[u8], most: u64) -> Result<Vec<u8>, String> {
    check(words)?;
    let (program, rest) = words.split_first().ok_or("it names no program")?;
    let mut command = tokio::process::Command::new(program);
    let variables = VARIABLES
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    command
        .env_clear()
        .envs(variables)
        .current_dir("/")
        .process_group(0)
        .kill_on_drop(true);
    command
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let leader = Pid::from_raw(child.id().ok_or("it has no process")?.cast_signed());
    let group = Group(leader);
    // Its end is seen before it is reaped: until then the number of its group is nobody else's.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    let end = spawn_blocking(
        move || {
            while waitid(Id::Pid(leader), look) == Err(Errno::EINTR) {}
        },
    );
    let end = end.map(drop).shared();
    if let Some(mut stdin) = child.stdin.take() {
        // The program may not read.
        let _ = stdin.write_all(input).await;
    }
    let mut printed = Vec::new();
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let read = {
        let mut limited = stdout.take(most + 1);
        let reading = limited.read_to_end(&mut printed);
        tokio::pin!(reading);
        tokio::select! {
            read = &mut reading => read,
            // Its child processes may hold the output open.
            () = end.clone() => timeout(OUTPUT_GRACE, reading).await.unwrap_or(Ok(0)),
        }
    };
    read.map_err(|e| e.to_string())?;
    if printed.len() as u64 > most {
        return Err(format!("it prints more than {most} bytes"));
    }
    end.await;
    drop(group);
    let status = child.wait().await.map_err(|e| e.to_string())?;
    if status.success() {
        Ok(printed)
    } else {
        Err(format!(
            "it ended with {status}: run it yourself to see why"
        ))
    }
}

/// The process group of a command. Dropping it kills the group.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}
