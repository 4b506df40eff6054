//! The values of the secrets that a call may use, read again for each call, so that a change takes
//! effect at once. No error shows a value, and a file that others may read is refused.

use super::redaction::Redaction;
use crate::base::mask::MIN_SECRET_BYTES;
use crate::base::{files, text};
use crate::fault::{Fault, Kind};
use crate::policy::{Confinement, SecretGrant, SecretSource};
use futures_util::future::try_join_all;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Longest value, bytes.
const MAX_SECRET_BYTES: u64 = 32 * 1024;
pub const TOO_SHORT: &str =
    "it has fewer than 8 bytes, too few to be masked in what a tool prints: use a longer one";
const NOT_SET: &str = "it is not set where toolhost was started, or is not UTF-8: set it there (an \
                       MCP client passes it in `env`)";
/// Longest value that is added to requests, bytes.
const MAX_HEADER_BYTES: usize = 4 * 1024;
/// Longest run of a command.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
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

/// Reads these secrets for this caller, in the same order. `left`: the rest of the call's time.
pub(super) async fn read_all(
    secrets: &[SecretGrant],
    caller: &str,
    left: Duration,
) -> Result<Vec<String>, Fault> {
    let within = left.min(READ_TIMEOUT);
    try_join_all(secrets.iter().map(async |secret| {
        let value = tokio::time::timeout(within, read(secret, caller)).await;
        let value = value
            .unwrap_or_else(|_| {
                Err(format!(
                    "it could not be read within {:.1} s",
                    within.as_secs_f64()
                ))
            })
            .and_then(|value| match value.len() {
                ..MIN_SECRET_BYTES => Err(TOO_SHORT.to_owned()),
                _ => Ok(value),
            });
        value.map_err(|why| fault(secret, &why))
    }))
    .await
}

/// Gives a call its secrets: to the relay, or as variables.
pub(super) async fn provide(
    call: &mut Confinement,
    caller: &str,
    left: Duration,
    redaction: &mut Redaction,
) -> Result<(), Fault> {
    let values = read_all(&call.shape.secrets, caller, left).await?;
    for (grant, value) in call.shape.secrets.iter().zip(values) {
        redaction.hide(&grant.name, &value);
        let to = if grant.header.is_some() {
            &mut call.per_call.secrets
        } else {
            &mut call.per_call.env
        };
        to.0.insert(grant.name.clone(), value);
    }
    Ok(())
}

/// Reads a credential of this host.
pub async fn credential(from: SecretSource) -> Result<String, String> {
    let words = String::new;
    let secret = SecretGrant {
        name: words(),
        from,
        header: None,
        rule: words(),
        why: words(),
    };
    let read = tokio::time::timeout(READ_TIMEOUT, read(&secret, "")).await;
    let read = read.unwrap_or_else(|_| {
        Err(format!(
            "it could not be read within {} s",
            READ_TIMEOUT.as_secs()
        ))
    });
    read.map_err(|why| format!("{}: {}", describe(&secret.from), text::printable(&why)))
}

fn fault(secret: &SecretGrant, why: &str) -> Fault {
    let whose = if matches!(secret.from, SecretSource::CallerFile(_)) {
        " for you"
    } else {
        ""
    };
    let message = format!(
        "the secret {} cannot be read{whose} on this host, so nothing was run",
        secret.name
    );
    let person = format!(
        "{}: {} (policy {})",
        describe(&secret.from),
        text::printable(why),
        text::printable(&secret.rule)
    );
    Fault::new(Kind::CapabilityError, message).person(person)
}

fn describe(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("the host's variable {}", text::printable(name)),
        SecretSource::File(path) | SecretSource::CallerFile(path) => text::path(path),
        SecretSource::Command(words) => format!("`{}`", text::printable(&words.join(" "))),
    }
}

async fn read(secret: &SecretGrant, caller: &str) -> Result<String, String> {
    let bytes = match &secret.from {
        SecretSource::Env(name) => std::env::var(name)
            .map_err(|_| NOT_SET.to_owned())?
            .into_bytes(),
        SecretSource::File(_) | SecretSource::CallerFile(_) => {
            let from = secret.from.clone();
            let caller = caller.to_owned();
            tokio::task::spawn_blocking(move || read_file(&from, &caller))
                .await
                .map_err(|e| e.to_string())??
        }
        SecretSource::Command(words) => run_command(words).await?,
    };
    let value = text::decode(&bytes)?;
    let value = value
        .strip_suffix('\n')
        .map_or(value, |value| value.strip_suffix('\r').unwrap_or(value));
    // A header's value begins and ends without blanks (RFC 9110, section 5.5).
    let value = if secret.header.is_some() {
        value.trim()
    } else {
        value
    };
    if value.is_empty() {
        return Err("it is empty".to_owned());
    }
    if secret.header.is_some() && value.len() > MAX_HEADER_BYTES {
        return Err(format!(
            "it is longer than {MAX_HEADER_BYTES} bytes, too long for a header"
        ));
    }
    if !value.chars().all(|c: char| match secret.header {
        Some(_) => (' '..='\u{7e}').contains(&c),
        None => c != '\0',
    }) {
        return Err(
            "it holds a character that is not allowed there (such as a line break)".to_owned(),
        );
    }
    Ok(value.to_owned())
}

/// Reads a regular file that only this user or root may read. A caller's file is opened in its
/// folder only.
fn read_file(from: &SecretSource, caller: &str) -> Result<Vec<u8>, String> {
    let Some((folder, name)) = from.own_file(caller) else {
        let path = from.file().ok_or("it is not a file")?;
        return files::checked(
            files::open(path, OFlag::O_NOFOLLOW),
            MAX_SECRET_BYTES,
            files::not_private,
        );
    };
    let name = name?;
    let folder = files::Folder::open(folder).map_err(|e| e.to_string())?;
    let read = files::checked(
        folder.file(&name, OFlag::O_NOFOLLOW),
        MAX_SECRET_BYTES,
        files::not_private,
    );
    read.map_err(|why| format!("{name}: {why}"))
}

/// Runs a program and returns its output. Refuses a program or argument file that other users can
/// change.
async fn run_command(words: &[String]) -> Result<Vec<u8>, String> {
    let (program, rest) = words.split_first().ok_or("it names no program")?;
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
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let mut group = Group(child.id());
    let mut printed = Vec::new();
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let status = {
        let mut limited = stdout.take(MAX_SECRET_BYTES + 1);
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
    if printed.len() as u64 > MAX_SECRET_BYTES {
        return Err(format!("it prints more than {MAX_SECRET_BYTES} bytes"));
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
