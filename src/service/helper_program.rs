//! Programs of the operator's that this host runs for itself: no shell, few variables. One that runs
//! too long is killed with its process group.

use crate::base::files;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    let mut group = Group(child.id());
    if let Some(mut stdin) = child.stdin.take() {
        // The program may not read.
        let _ = stdin.write_all(input).await;
    }
    let mut printed = Vec::new();
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let status = {
        let mut limited = stdout.take(most + 1);
        let reading = limited.read_to_end(&mut printed);
        tokio::pin!(reading);
        tokio::select! {
            read = &mut reading => read.map(|_| None),
            // Its child processes may hold the output open.
            ended = child.wait() => match ended {
                Ok(status) => tokio::time::timeout(OUTPUT_GRACE, reading).await.unwrap_or(Ok(0)).map(|_| Some(status)),
                Err(e) => Err(e),
            },
        }
    };
    let status = status.map_err(|e| e.to_string())?;
    if status.is_some() {
        // Its process id may be reused from here on.
        group.0 = None;
    }
    if printed.len() as u64 > most {
        return Err(format!("it prints more than {most} bytes"));
    }
    let status = match status {
        Some(status) => status,
        None => child.wait().await.map_err(|e| e.to_string())?,
    };
    group.0 = None;
    if status.success() {
        Ok(printed)
    } else {
        Err(format!(
            "it ended with {status}: run it yourself to see why"
        ))
    }
}

/// The process group of a running command. Dropping it kills the group.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let leader = self.0.and_then(|id| i32::try_from(id).ok());
        if let Some(leader) = leader {
            let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
        }
    }
}
