//! Package table: `[packages]` of a policy: which index, whether a lock is required, whether packages may build, and what
//! is never installed.
//!
//! For: `policy/file.rs`, which reads policies, and `package_use`. In: a TOML table. Out: a `PackageTable`. Never: an
//! address: an index is a name here.

use super::packages::{Denied, Ecosystem, PackageRules};
use super::source::{At, Reader, Table};
use super::versions;
use crate::base::text;
use std::collections::BTreeMap;

/// Most entries of `deny`, and most days.
pub(super) const MOST_DENIED: usize = 1000;
pub(super) const MOST_DAYS: u32 = 3650;

/// `[packages]` as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageTable {
    pub entries: BTreeMap<Ecosystem, PackageEntry>,
    pub deny: Vec<Denied>,
    pub min_age_days: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageEntry {
    pub index: String,
    pub lock_required: bool,
    pub builds: bool,
    pub why: String,
    pub at: At,
}

impl PackageTable {
    /// What an entry and the rest of the table say together.
    pub(super) fn rules(&self, ecosystem: Ecosystem) -> Option<PackageRules> {
        let PackageEntry { index, lock_required, builds, why, at: _ } = self.entries.get(&ecosystem)?.clone();
        let (deny, min_age_days) = (self.deny.clone(), self.min_age_days);
        Some(PackageRules { index, lock_required, builds, deny, min_age_days, why })
    }
}

pub(super) fn read(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> PackageTable {
    let mut found = PackageTable::default();
    let Some(table) = reader.table(top, "packages") else { return found };
    reader.only(&table, &["python", "node", "deny", "min_age_days"]);
    for ecosystem in Ecosystem::ALL {
        let Some(entry) = reader.table(&table, ecosystem.name()) else { continue };
        found.entries.extend(one(reader, &entry).map(|entry| (ecosystem, entry)));
    }
    found.deny = deny(reader, &table);
    if let Some(days) = reader.number(&table, "min_age_days") {
        match u32::try_from(days.value).ok().filter(|days| (1..=MOST_DAYS).contains(days)) {
            Some(days) => found.min_age_days = Some(days),
            None => {
                let message =
                    format!("`min_age_days` is between 1 and {MOST_DAYS}; leave it out where any age will do");
                reader.schema(table.pointer_to("min_age_days"), days.at, message);
            }
        }
    }
    found
}

fn one(reader: &mut Reader<'_>, entry: &Table<'_, '_>) -> Option<PackageEntry> {
    let mends = [
        "name an index of the host's configuration, or \"default\"",
        "say why packages may be installed; a grant without a reason is not loaded",
    ];
    let (index, why) = reader.reasoned_with(entry, "index", &["lock", "builds"], mends)?;
    if let Err(message) = index_name(&index.value) {
        reader.schema(entry.pointer_to("index"), index.at, message);
        return None;
    }
    // What is not written is not allowed: neither an unlocked package nor a build.
    let lock_required = !reader.choice(entry, "lock", ["required", "relaxed"]);
    let builds = reader.flag(entry, "builds")?;
    Some(PackageEntry { index: index.value, lock_required, builds, why, at: index.at })
}

/// The name of an index, in a policy and in the host's configuration.
pub fn index_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) && !name.starts_with('-') {
        return Ok(());
    }
    let shown = text::printable(&text::head(name, 60));
    Err(format!(
        "`{shown}` is no name of an index: letters, digits, `-` and `_`; its address stands in the host's configuration ([indexes.NAME])"
    ))
}

fn deny(reader: &mut Reader<'_>, table: &Table<'_, '_>) -> Vec<Denied> {
    let mut found: Vec<Denied> = Vec::new();
    let entries = reader.tables(table, "deny", "{ name = \"left-pad\", versions = \"<2\", why = \"…\" }");
    if entries.len() > MOST_DENIED {
        reader.schema(table.pointer_to("deny"), table.at, format!("more than {MOST_DENIED} entries"));
    }
    for entry in entries.into_iter().take(MOST_DENIED) {
        let mends = ["name the package", "say why it is never installed"];
        let named = reader.reasoned_with(&entry, "name", &["versions"], mends);
        let versions = reader.text(&entry, "versions");
        let Some((name, why)) = named else { continue };
        let shown = text::printable(&text::head(&name.value, 60));
        if !Ecosystem::ALL.iter().any(|e| versions::name(*e, &name.value).is_some()) {
            reader.schema(entry.pointer_to("name"), name.at, format!("`{shown}` is no name of a package"));
            continue;
        }
        if let Some(versions) = &versions
            && !Ecosystem::ALL.iter().any(|e| versions::is_range(*e, &versions.value))
        {
            let range = text::printable(&text::head(&versions.value, 60));
            let message = format!(
                "`{range}` is no range of versions, neither for Python (`>=1,<2`) nor for Node (`>=1 <2`); leave it out where no version is wanted"
            );
            reader.schema(entry.pointer_to("versions"), versions.at, message);
            continue;
        }
        found.push(Denied { name: name.value, versions: versions.map(|versions| versions.value), why });
    }
    found
}
