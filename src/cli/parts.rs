//! An answer of content on the command line: its texts, and a line for each picture, sound and
//! file, which `--save` also writes.

use super::words;
use crate::service::output::{self, Block};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where parts are written: `DIR/STEM-N.EXT`, under the first numbers that are free.
pub struct Files<'a> {
    pub folder: &'a Path,
    pub stem: String,
}

impl Files<'_> {
    /// `tool`: its id, of which the last word begins the names.
    pub fn new<'a>(folder: &'a Path, tool: &str) -> io::Result<Files<'a>> {
        std::fs::create_dir_all(folder)?;
        let name = tool.rsplit(':').next().unwrap_or_default();
        let stem = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        Ok(Files { folder, stem })
    }

    /// A new file. A name that exists is never opened, also if it is a link.
    fn write(&self, extension: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let mut number = 1;
        loop {
            let name = format!("{}-{number}.{extension}", self.stem);
            let path = self.folder.join(name);
            match File::create_new(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                file => return file?.write_all(bytes).map(|()| path),
            }
        }
    }
}

/// A block as lines.
pub fn line(Block { mut json, media }: Block, files: Option<&Files>) -> io::Result<String> {
    let is_file = json["type"] == "resource";
    let holder = output::holder(&mut json);
    let text = holder["text"].as_str().unwrap_or_default();
    let bytes = match &media {
        Some(media) => media,
        None if is_file => text.as_bytes(),
        None if text.is_empty() => {
            return Ok([&holder["name"], &holder["uri"]]
                .map(words::flat)
                .join("  "));
        }
        None => return Ok(text.to_owned()),
    };
    let mime = holder["mimeType"].as_str().unwrap_or("text/plain");
    let mut line = format!("{mime} {}", words::size(bytes.len() as u64));
    if let Some(files) = files {
        let path = files.write(extension(mime, &holder["uri"]), bytes)?;
        line.push_str(&format!("  {}", path.display()));
    }
    Ok(line)
}

/// That of a file's address, else the first word of its media type: `svg` of `image/svg+xml`.
fn extension<'t>(mime: &'t str, uri: &'t Value) -> &'t str {
    fn is_word(text: &&str) -> bool {
        (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
    }
    let by_name = uri
        .as_str()
        .and_then(|uri| uri.rsplit('/').next()?.rsplit_once('.'));
    let mut by_type = mime.split(|c: char| !c.is_ascii_alphanumeric()).skip(1);
    let by_name = by_name.map(|(_, end)| end).filter(is_word);
    by_name.or_else(|| by_type.find(is_word)).unwrap_or("bin")
}
