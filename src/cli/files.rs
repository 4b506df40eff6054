//! Artifacts of a call, written into a folder of the person at the command line: at its end, or later
//! by `toolhost artifact ID…`.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::text;
use crate::executor::{SCHEME, StoredFile};
use crate::policy;
use crate::service::{self, Caller, Report, Service};
use anyhow::Context;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The id of an artifact, as `toolhost call` prints it
    #[arg(required = true)]
    pub id: Vec<String>,
    /// Write the files into this folder, as new files
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub output_dir: PathBuf,
    /// The user for whom the call was made
    #[arg(long, value_name = "NAME", value_parser = service::user_name)]
    pub user: Option<String>,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let folder = &args.output_dir;
    std::fs::create_dir_all(folder).with_context(|| text::path(folder))?;
    let fetched = host::with_service(settings, None, async |service: &Arc<Service>| {
        let ids = args.id.iter().map(String::as_str);
        for id in ids {
            let id = id.strip_prefix(SCHEME).unwrap_or(id);
            if !write_one(service, args.user.as_deref(), id, folder)? {
                let words = format!("you have no artifact {}", text::printable(id));
                return Err(Refusal::new(Exit::Caller, words).into());
            }
        }
        anyhow::Ok(())
    })?;
    match fetched {
        Ok(written) => written.map(|()| Exit::Ok.into()),
        Err(signal) => Ok(signal),
    }
}

/// Writes the artifacts of a call as new files, and names each on standard error.
pub fn write(service: &Service, report: &Report, folder: &Path) -> io::Result<()> {
    for (file, _) in report.stored() {
        if !write_one(service, report.user.as_deref(), &file.id, folder)? {
            return Err(io::ErrorKind::NotFound.into());
        }
    }
    Ok(())
}

/// Names the artifacts of a call on standard error, and how to have them.
pub fn list(report: &Report) {
    let mut ids = Vec::new();
    for (file, bytes) in report.stored() {
        let size = words::size(bytes);
        let name = text::printable(&file.name);
        words::note(&format!("{} {size}  {name}  {}", file.media_type, file.id));
        ids.push(file.id.as_str());
    }
    if !ids.is_empty() {
        let user = report.user.iter();
        let user: String = user
            .map(|user| format!(" --user {}", words::quote(user)))
            .collect();
        let command = words::command(&format!(
            "artifact {}{user} --output-dir DIR",
            ids.join(" ")
        ));
        words::note(&format!("`{command}` writes them"));
    }
}

/// Writes an artifact as a new file. False: the user has none of this id.
fn write_one(service: &Service, user: Option<&str>, id: &str, folder: &Path) -> io::Result<bool> {
    let caller = Caller::operator(host::login());
    let Some(open) = service.artifact(&caller, user, id) else {
        return Ok(false);
    };
    // What a tool may not publish, it does not get by way of a person either.
    let name = &open.file.name;
    if name.starts_with('.') || policy::is_definition(name) || policy::leads_modules(name) {
        words::note(&format!(
            "{name} is left out: other programs obey files of this name"
        ));
        return Ok(true);
    }
    let content = open.content.read().ok_or(io::ErrorKind::NotFound)?;
    let path = write_new(folder, &open.file, &content)?;
    words::note(&format!(
        "{} {}  {}",
        open.file.media_type,
        words::size(content.len() as u64),
        path.display()
    ));
    Ok(true)
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
