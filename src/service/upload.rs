//! Scripts that an operator uploads: new files in the folder of scripts, whole or not at all.

use super::entry::Service;
use crate::base::files::{self, Folder};
use crate::base::{sha256_hex, text};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::registry::{Filter, scripts};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::Path;

/// Writes a new script below `base`, and returns its `path`, `bytes` and `sha256`. It replaces no
/// file, and goes into no folder of a tool: what runs already stays as it is. `path` follows the
/// rules of scripts that calls name.
pub fn upload(
    service: &Service,
    base: &Path,
    operator: &str,
    path: &str,
    content: &[u8],
) -> Result<Value, Fault> {
    let relative = scripts::plain(path)?;
    let base = files::resolved(base);
    let target = base.join(&relative);
    let shown = text::path(&relative);
    let name = relative.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| !Language::of_file_name(name).is_empty());
    let name = name.ok_or_else(|| refused(&shown, "its name does not end as that of a script"))?;
    if files::resolved(&target) != target {
        let why = "it leads through a link, or its folders have another spelling";
        return Err(refused(&shown, why));
    }
    let snapshot = service.catalog.registry.snapshot();
    if snapshot.written.by(&target).is_some() {
        return Err(refused(
            &shown,
            "a tool may write there, so nothing there runs",
        ));
    }
    if snapshot
        .owners(&target, &base)
        .map_or(true, |owners| !owners.is_empty())
    {
        let why =
            "it would lie in the folder of a tool, or a manifest names it: put it there by hand";
        return Err(refused(&shown, why));
    }
    if let Some(reader) = reader_of(service, &target)? {
        let why = format!("{reader} reads what lies there: put it there by hand");
        return Err(refused(&shown, &why));
    }
    let permit = service.audit.open()?;
    let folder = Folder::open(target.parent().unwrap_or(&base));
    let written = folder.and_then(|folder| folder.put_new(name, content));
    written.map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => refused(&shown, "a file of this name is there"),
        ErrorKind::NotFound => refused(&shown, "its folder is not there"),
        _ => refused(&shown, "it cannot be written").person(format!("{shown}: {why}")),
    })?;
    let digest = sha256_hex(content);
    let uploaded = json!({"path": shown, "bytes": content.len(), "sha256": digest});
    permit.write(&json!({"time": Timestamp::now(), "uploaded": uploaded, "user": operator}));
    Ok(uploaded)
}

/// A tool that reads this place: a new file there could be its code.
fn reader_of(service: &Service, place: &Path) -> Result<Option<String>, Fault> {
    let decisions = service.catalog.decisions()?;
    let tools = decisions.snapshot.list(&Filter::default());
    let mut tools = tools.iter();
    let reader = tools.find(|tool| {
        let decided = decisions.decided(tool);
        let mut grants = decided.decision.grants.files.iter();
        grants.any(|grant| grant.area.holds(place))
    });
    Ok(reader.map(|tool| tool.reference()))
}

fn refused(path: &str, why: &str) -> Fault {
    let message = format!("The script '{path}' was not uploaded: {why}.");
    Fault::new(Kind::SecurityError, message)
}
