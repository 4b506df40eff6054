//! Tool services: `[[tool_services]]` of a config file: over which broker the services of descriptors are called.
//!
//! For: `settings`. In: the config file. Out: which services are reached how. Never: a service on two brokers; a credential
//! that stands in the file itself.

use super::guarded_text;
use crate::broker::{Secret, Terms, Topic};
use crate::executor::remote::Reached;
use crate::policy::{SecretSource, secret_source};
use crate::service;
use crate::transport::announced::{self, Announcer, Entry};
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    #[serde(default)]
    services: Vec<String>,
    announced: Option<Announced>,
    url: String,
    user: Option<String>,
    credentials: Option<String>,
    ca: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
}

/// What other hosts may announce there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    topic: Option<String>,
    from: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    announcer: String,
    namespace: String,
    key: String,
}

/// Services of one broker, and the files that its entry names: no tool may write them.
#[derive(Clone, Debug)]
pub struct Called {
    pub reached: Reached,
    pub announced: Option<Entry>,
    pub files: Vec<PathBuf>,
}

/// `folder`: of the config file, where its relative paths start.
pub(super) fn all(written: Vec<Written>, folder: &Path) -> Result<Vec<Called>, String> {
    let mut found: Vec<Called> = Vec::new();
    for (number, mut entry) in written.into_iter().enumerate() {
        let at = |why: String| format!("[[tool_services]] {}: {why}", number + 1);
        let from = entry.announced.as_ref().map_or_else(Default::default, |announced| announced.from.as_slice());
        // They are called over the broker that they are announced on.
        entry.services.extend(from.iter().map(|from| format!("{}.*", from.namespace)));
        if entry.services.is_empty() {
            return Err(at("`services` names none: write ids of descriptors, or [\"*\"] for all others".to_owned()));
        }
        let named = |id: &&String| found.iter().any(|other| other.reached.services.contains(id));
        if let Some(twice) = entry.services.iter().find(named) {
            return Err(at(format!("the service '{}' is called over another broker already", twice.escape_debug())));
        }
        let mut files = Vec::new();
        let from = entry.credentials.as_deref().map(|from| one_for_all(from, folder, "a broker has one credential"));
        let from = from.transpose().map_err(|why| at(format!("credentials: {why}")))?;
        files.extend(from.as_ref().and_then(|from| from.file().map(Path::to_path_buf)));
        let secret = from.map(secret);
        let mut terms =
            Terms::new(&entry.url, entry.user, secret, entry.insecure).map_err(|why| at(format!("url: {why}")))?;
        let certificates = entry.ca.map(|path| {
            let path = folder.join(path);
            files.push(path.clone());
            guarded_text(&path).map_err(|why| at(format!("ca {}: {why}", path.display())))
        });
        terms.ca = certificates.transpose()?;
        let announced = entry.announced.map(|announced| heard(announced, &terms, folder, &mut files));
        let announced = announced.transpose().map_err(|why| at(format!("announced: {why}")))?;
        let names = |entry: &Entry| entry.from.iter().map(|from| from.name.clone()).collect::<Vec<_>>();
        let mut earlier = found.iter().filter_map(|called| called.announced.as_ref()).flat_map(names);
        if let Some(twice) = earlier.find(|name| announced.iter().any(|entry| names(entry).contains(name))) {
            return Err(at(format!("announced: the announcer '{twice}' is listed already: one host has one entry")));
        }
        found.push(Called { reached: Reached { services: entry.services, terms }, announced, files });
    }
    Ok(found)
}

fn heard(announced: Announced, terms: &Terms, folder: &Path, files: &mut Vec<PathBuf>) -> Result<Entry, String> {
    let topic = announced.topic.as_deref().unwrap_or(announced::TOPIC);
    let topic = Topic::parse(topic).map_err(|why| format!("topic: {why}"))?;
    let mut from: Vec<Announcer> = Vec::new();
    for Listed { announcer, namespace, key } in announced.from {
        if !plain(&announcer) || !plain(&namespace) {
            let words = "an announcer and its namespace have small letters, digits and `-`, at most 32";
            return Err(format!("'{}': {words}", announcer.escape_debug()));
        }
        if from.iter().any(|other| other.name == announcer || other.namespace == namespace) {
            return Err(format!("'{announcer}': another one has this name or this namespace"));
        }
        let (key, file) = announcer_key(&key, folder)?;
        files.extend(file);
        from.push(Announcer { name: announcer, namespace, key });
    }
    if from.is_empty() {
        return Err("`from` lists no announcer: { announcer, namespace, key }".to_owned());
    }
    Ok(Entry { terms: terms.clone(), topic, from })
}

/// As an announcer or a namespace may be called: without a dot, which ends a namespace.
pub(super) fn plain(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(good) && !name.starts_with('-')
}

/// A source of what is the same for every caller; `what`: the words that say so.
pub(super) fn one_for_all(written: &str, folder: &Path, what: &str) -> Result<SecretSource, String> {
    match secret_source(written, folder)? {
        SecretSource::CallerFile(_) => Err(format!("{what}, the same for every caller")),
        from => Ok(from),
    }
}

/// What is read there, anew each time.
pub(super) fn secret(from: SecretSource) -> Secret {
    Secret::new(move || Box::pin(service::credential(from.clone())))
}

/// Where a key is read, and its file.
pub(super) fn announcer_key(from: &str, folder: &Path) -> Result<(Secret, Option<PathBuf>), String> {
    let from = one_for_all(from, folder, "an announcer has one key").map_err(|why| format!("key: {why}"))?;
    let file = from.file().map(Path::to_path_buf);
    Ok((secret(from), file))
}
