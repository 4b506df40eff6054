//! Verifies the chain of a log, in all its files, and with heads that were kept elsewhere.

use super::chain::{Breach, Head, Heads, Walk};
use super::log::Log;
use super::segments::{self, MAX_LINE_BYTES};
use crate::base::files;
use nix::fcntl::OFlag;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

impl Log {
    /// Reads the whole log. `heads`: a file of heads of its chain.
    pub fn verify(&self, heads: Option<&Path>) -> Result<Walk, String> {
        let at = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
        let read = segments::open_all(self.path()).map_err(|e| at(self.path(), e));
        let (files, skipped) = read?;
        if let Some(why) = skipped.first() {
            return Err(why.clone());
        }
        let mut walk = Walk::default();
        for opened in files.iter().rev() {
            if walk.to.is_none() {
                walk.torn = None;
            }
            let read = segments::walk(&opened.file, &opened.name, 0, &mut walk);
            read.map_err(|e| at(Path::new(&opened.name), e))?;
        }
        walk.end();
        if walk.to.is_none() && heads.is_none() {
            let path = self.path().display();
            return Err(format!(
                "{path}: it has no record, so there is nothing to verify"
            ));
        }
        let heads = heads.map(|path| compare(path, &mut walk).map_err(|e| at(path, e)));
        walk.heads = heads.transpose()?;
        Ok(walk)
    }
}

/// Compares the heads of a file with the records that they name.
fn compare(path: &Path, walk: &mut Walk) -> io::Result<Heads> {
    let mut same = 0;
    let mut newest: Option<Head> = None;
    (walk.file, walk.line) = (path.display().to_string(), 0);
    let file = files::open(path, OFlag::empty())?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines
        .by_ref()
        .take(MAX_LINE_BYTES)
        .read_until(b'\n', &mut line)?
        > 0
    {
        walk.line += 1;
        let head = serde_json::from_slice::<Head>(&line);
        line.clear();
        // A line may have been cut off; those of removed files have no record.
        let Ok(head) = head else { continue };
        match walk.digests.get(&head.n) {
            Some(digest) if *digest == head.digest => same += 1,
            Some(_) => walk.found(Breach::Changed, head.n, head.n),
            None => {}
        }
        if newest.as_ref().is_none_or(|known| known.n < head.n) {
            newest = Some(head);
        }
    }
    let Some(known) = &newest else {
        return Err(io::Error::other("no line of it is a head"));
    };
    // What only older heads name lay in files that were removed. Without the newest one nothing
    // shows that this log is the one of which the heads are.
    if !walk.digests.contains_key(&known.n) {
        let last = walk.to.as_ref().map_or(0, |last| last.n);
        walk.found(Breach::Missing, known.n.min(last + 1), known.n);
    }
    Ok(Heads {
        file: path.to_owned(),
        same,
        newest,
    })
}
