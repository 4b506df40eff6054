//! Secrets: the values of the secrets that a call may use, read anew for each call, so that a changed one counts at once.
//!
//! For: the road. In: the secrets of a shape. Out: their values, by name. Never: keeps a value; shows one in an error; reads
//! a file that others may read.

use crate::base::files;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::policy::{SecretGrant, SecretSource};
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Longest value, bytes, and shortest: a shorter one could not be hidden in what a tool says.
const LONGEST: u64 = 32 * 1024;
const SHORTEST: usize = 4;
/// Longest run of a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// The values of these secrets.
pub(super) async fn values(secrets: &[SecretGrant]) -> Result<BTreeMap<String, String>, Fault> {
    let mut values = BTreeMap::new();
    for secret in secrets {
        let value = value(secret).await.map_err(|why| {
            let message = format!("the secret {} cannot be had on this host, so nothing was run", secret.name);
            Fault::new(Kind::CapabilityError, message).person(format!(
                "{}: {}",
                described(&secret.from),
                text::printable(&why)
            ))
        })?;
        values.insert(secret.name.clone(), value);
    }
    Ok(values)
}

fn described(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("the host's variable {}", text::printable(name)),
        SecretSource::File(path) => text::path(path),
        SecretSource::Command(words) => format!("`{}`", text::printable(&words.join(" "))),
    }
}

async fn value(secret: &SecretGrant) -> Result<String, String> {
    let bytes = match &secret.from {
        SecretSource::Env(name) => {
            std::env::var(name).map_err(|_| "it is not set, or is not UTF-8".to_owned())?.into_bytes()
        }
        SecretSource::File(path) => file(path)?,
        SecretSource::Command(words) => command(words).await?,
    };
    let value = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let value = value.strip_suffix('\n').map_or(value.as_str(), |value| value.strip_suffix('\r').unwrap_or(value));
    if value.len() < SHORTEST {
        return Err(format!("it has fewer than {SHORTEST} characters, which could not be hidden"));
    }
    let good = |c: char| match secret.header {
        Some(_) => (' '..='\u{7e}').contains(&c),
        None => c != '\0',
    };
    if !value.chars().all(good) {
        return Err("it holds a character that cannot stand there (a line break, say)".to_owned());
    }
    Ok(value.to_owned())
}

/// A regular file that only this user or root may read.
fn file(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |e: io::Error| e.to_string();
    let file = files::open(path, OFlag::O_NOFOLLOW).map_err(failed)?;
    if let Some(why) = files::not_private(&file.metadata().map_err(failed)?) {
        return Err(why);
    }
    files::whole(file, LONGEST).map_err(failed)?.ok_or_else(|| format!("it is longer than {LONGEST} bytes"))
}

/// What a program prints.
async fn command(words: &[String]) -> Result<Vec<u8>, String> {
    let (program, rest) = words.split_first().ok_or("it names no program")?;
    let mut command = tokio::process::Command::new(program);
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let mut printed = Vec::new();
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let run = async {
        stdout.take(LONGEST + 1).read_to_end(&mut printed).await?;
        child.wait().await
    };
    match tokio::time::timeout(PATIENCE, run).await {
        Ok(Ok(status)) if status.success() && printed.len() as u64 <= LONGEST => Ok(printed),
        Ok(Ok(status)) if status.success() => Err(format!("it prints more than {LONGEST} bytes")),
        Ok(Ok(status)) => Err(format!("it ended with {status}")),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("it did not end within {} s", PATIENCE.as_secs())),
    }
}
