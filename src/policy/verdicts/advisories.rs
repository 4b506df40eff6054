//! What an export of OSV records says of the packages of a lock. The export is as trusted as a
//! policy, and what of it cannot be read is reported.

use crate::base::text::{self, printable};
use crate::policy::grammar::osv::{Advisories, Hit, Records};
use crate::policy::grammar::{Ecosystem, Package, disk};
use std::path::Path;
use walkdir::{DirEntry, WalkDir};

/// The largest file of an export, bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Most bytes of an export, all files together.
const MAX_BYTES: u64 = 1 << 30;
/// Most hits of one tool that are named.
const SHOWN: usize = 20;

fn records(advisories: &Advisories) -> &Records {
    advisories.records.get_or_init(|| read(&advisories.path))
}

/// What is known of these packages.
pub fn hits<'a>(
    advisories: &'a Advisories,
    ecosystem: Ecosystem,
    packages: &'a [Package],
) -> impl Iterator<Item = Hit<'a>> {
    let records = packages.iter().map(|it| (it, records(advisories)));
    records.flat_map(move |(package, records)| {
        records.hits(ecosystem, &package.name, &package.version)
    })
}

/// What is known of these packages, a sentence each.
pub fn findings(
    advisories: &Advisories,
    ecosystem: Ecosystem,
    packages: &[Package],
) -> Vec<String> {
    let hits = hits(advisories, ecosystem, packages);
    let mut found: Vec<String> = hits.map(|hit| printable(&hit.to_string())).collect();
    let more = found.len().saturating_sub(SHOWN);
    found.truncate(SHOWN);
    found.extend((more > 0).then(|| format!("{more} more are known (`toolhost deps audit`)")));
    found
}

/// What could not be read, in one sentence for the operator.
pub fn fault(advisories: &Advisories) -> Option<String> {
    let Records { faults, unread, .. } = records(advisories);
    let message = format!(
        "{unread} of the advisories in {} cannot be read, so they are not known: {}",
        text::path(&advisories.path),
        printable(&faults.join("; "))
    );
    (*unread > 0).then_some(message)
}

/// Every file of the export is read: what is not a record is a fault of it.
fn read(path: &Path) -> Records {
    let mut found = Records::default();
    let mut left = MAX_BYTES;
    let entries = WalkDir::new(path)
        .follow_root_links(false)
        .sort_by_file_name();
    for entry in entries {
        let read = match &entry {
            Err(error) => Err(error.to_string()),
            Ok(entry) => disk::trusted_text(entry.path(), left.min(MAX_FILE_BYTES)),
        };
        let place = text::path(entry.as_ref().map_or(path, DirEntry::path));
        match read {
            Err(why) => found.add_fault(&place, &why),
            Ok(None) => {}
            Ok(Some(text)) => {
                left = left.saturating_sub(text.len() as u64);
                add(&mut found, &place, &text);
            }
        }
    }
    if found.is_empty() {
        found.add_fault(&text::path(path), "it holds no records of PyPI or npm");
    }
    found
}

/// Adds the record of a file, or those of its lines.
fn add(found: &mut Records, place: &str, text: &str) {
    if !place.ends_with(".jsonl") {
        return found.add(place, text);
    }
    let lines = text.lines().enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        found.add(&format!("{place}:{}", index + 1), line);
    }
}
