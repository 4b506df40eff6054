//! Artifacts of a call, written into a folder of the person at the command line.

use super::{host, words};
use crate::executor::StoredFile;
use crate::policy;
use crate::service::{Caller, Report, Service};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes the artifacts of a call as new files, and names each on standard error.
pub fn write(service: &Service, report: &Report, folder: &Path) -> io::Result<()> {
    let caller = Caller::operator(host::login());
    let artifacts = report.observed.artifacts.iter();
    for file in artifacts.filter_map(|artifact| artifact.stored.as_ref()) {
        // What a tool may not publish, it does not get by way of a person either.
        let name = &file.name;
        if name.starts_with('.') || policy::is_definition(name) || policy::leads_modules(name) {
            words::note(&format!(
                "{name} is left out: other programs obey files of this name"
            ));
            continue;
        }
        let open = service.artifact(&caller, report.user.as_deref(), &file.id);
        let content = open.and_then(|open| open.content.read());
        let content = content.ok_or(io::ErrorKind::NotFound)?;
        let path = write_new(folder, file, &content)?;
        words::note(&format!(
            "{} {}  {}",
            file.media_type,
            words::size(content.len() as u64),
            path.display()
        ));
    }
    Ok(())
}

/// A name that exists is never opened, also if it is a link: the next free number is added.
fn write_new(folder: &Path, file: &StoredFile, content: &[u8]) -> io::Result<PathBuf> {
    let (stem, extension) = match file.name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (file.name.as_str(), String::new()),
    };
    let mut path = folder.join(&file.name);
    for number in 1.. {
        match File::create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                path = folder.join(format!("{stem}-{number}{extension}"));
            }
            made => {
                made?.write_all(content)?;
                break;
            }
        }
    }
    Ok(path)
}
