//! Tool services: `[[tool_services]]` of a config file: over which broker the services of descriptors are called.
//!
//! For: `settings`. In: the config file. Out: which services are reached how. Never: a service on two brokers; a credential
//! that stands in the file itself.

use super::guarded_text;
use crate::broker::{Secret, Terms};
use crate::executor::remote::Reached;
use crate::policy::{SecretSource, secret_source};
use crate::service;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    services: Vec<String>,
    url: String,
    user: Option<String>,
    credentials: Option<String>,
    ca: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
}

/// Services of one broker, and the files that its entry names: no tool may write them.
#[derive(Clone, Debug)]
pub struct Called {
    pub reached: Reached,
    pub files: Vec<PathBuf>,
}

/// `folder`: of the config file, where its relative paths start.
pub(super) fn all(written: Vec<Written>, folder: &Path) -> Result<Vec<Called>, String> {
    let mut found: Vec<Called> = Vec::new();
    for (number, entry) in written.into_iter().enumerate() {
        let at = |why: String| format!("[[tool_services]] {}: {why}", number + 1);
        if entry.services.is_empty() {
            return Err(at("`services` names none: write ids of descriptors, or [\"*\"] for all others".to_owned()));
        }
        let named = |id: &&String| found.iter().any(|other| other.reached.services.contains(id));
        if let Some(twice) = entry.services.iter().find(named) {
            return Err(at(format!("the service '{}' is called over another broker already", twice.escape_debug())));
        }
        let mut files = Vec::new();
        let secret = entry.credentials.as_deref().map(|from| match secret_source(from, folder)? {
            SecretSource::CallerFile(_) => Err("a broker has one credential, the same for every caller".to_owned()),
            from => {
                files.extend(from.file().map(Path::to_path_buf));
                Ok(Secret::new(move || Box::pin(service::credential(from.clone()))))
            }
        });
        let secret = secret.transpose().map_err(|why| at(format!("credentials: {why}")))?;
        let mut terms =
            Terms::new(&entry.url, entry.user, secret, entry.insecure).map_err(|why| at(format!("url: {why}")))?;
        let certificates = entry.ca.map(|path| {
            let path = folder.join(path);
            files.push(path.clone());
            guarded_text(&path).map_err(|why| at(format!("ca {}: {why}", path.display())))
        });
        terms.ca = certificates.transpose()?;
        found.push(Called { reached: Reached { services: entry.services, terms }, files });
    }
    Ok(found)
}
