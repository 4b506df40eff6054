//! The values of the secrets that a call may use, read again for each call, so that a change takes
//! effect at once. No error shows a value, and a file that others may read is refused.
//!
//! No report, digest or record contains the text of a granted variable or secret.

use super::helper_program;
use super::redaction::Redaction;
use crate::base::mask::MIN_SECRET_BYTES;
use crate::base::{files, text};
use crate::fault::{Fault, Kind};
use crate::policy::{Confinement, SecretGrant, SecretSource};
use futures_util::future::try_join_all;
use nix::fcntl::OFlag;
use std::time::Duration;

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
        SecretSource::Command(words) => helper_program::run(words, &[], MAX_SECRET_BYTES).await?,
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
