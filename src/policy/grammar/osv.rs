//! Records of known vulnerabilities in the OSV format (ossf.github.io/osv-schema), and the versions
//! that they affect, by the comparison of `deny`. What a record leaves open counts as affected.

use super::versions::{self, Ecosystem};
use crate::base::text;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Most faults of an export that are named.
const SHOWN_FAULTS: usize = 10;
/// Most characters of a record in a message.
const SHOWN_TEXT: usize = 200;

/// An export of records that a policy or a person names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advisories {
    /// A file, or a folder of files.
    pub path: PathBuf,
    /// What they affect is never installed.
    pub refuse: bool,
    /// Read once, when a lock is first compared with them.
    #[serde(skip)]
    pub records: Arc<OnceLock<Records>>,
}

/// The records of an export, by the packages that they are about.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Records {
    by_package: BTreeMap<PackageKey, Vec<Arc<Record>>>,
    /// What could not be read: the first of them, and how many there are.
    pub faults: Vec<String>,
    pub unread: usize,
}

type PackageKey = (Ecosystem, String);

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Record {
    id: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    summary: String,
    withdrawn: Option<String>,
    #[serde(default)]
    affected: Vec<Affected>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Affected {
    package: Option<AffectedPackage>,
    #[serde(default)]
    ranges: Vec<Range>,
    #[serde(default)]
    versions: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct AffectedPackage {
    ecosystem: String,
    name: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Range {
    #[serde(rename = "type")]
    kind: String,
    /// In any order.
    events: Vec<BTreeMap<EventKind, String>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventKind {
    Introduced,
    Fixed,
    LastAffected,
    Limit,
}

/// A record that affects a version.
#[derive(Serialize)]
pub struct Hit<'a> {
    pub package: &'a str,
    pub version: &'a str,
    pub id: &'a String,
    pub aliases: &'a [String],
    pub summary: &'a str,
    /// A later version that is not affected, as far as the record says.
    pub fixed: Option<&'a str>,
}

/// Names as an index compares them, and without regard to case.
fn key(ecosystem: Ecosystem, name: &str) -> Option<PackageKey> {
    let name = versions::name(ecosystem, name)?;
    Some((ecosystem, name.to_ascii_lowercase()))
}

impl Records {
    /// Adds a record.
    pub fn add(&mut self, place: &str, text: &str) {
        let record: Record = match serde_json::from_str(text) {
            Ok(record) => record,
            Err(error) => return self.add_fault(place, &error.to_string()),
        };
        if record.withdrawn.is_some() {
            return;
        }
        let record = Arc::new(record);
        let keys: BTreeSet<_> = record.affected.iter().filter_map(Affected::key).collect();
        for key in keys {
            let of_package = self.by_package.entry(key).or_default();
            of_package.push(Arc::clone(&record));
        }
    }

    /// Whether nothing of it is about packages that toolhost installs.
    pub fn is_empty(&self) -> bool {
        self.by_package.is_empty()
    }

    pub fn add_fault(&mut self, place: &str, why: &str) {
        self.unread += 1;
        if self.faults.len() < SHOWN_FAULTS {
            self.faults.push(format!("{place}: {why}"));
        }
    }

    /// The records that affect this version of a package.
    pub fn hits<'a>(
        &'a self,
        ecosystem: Ecosystem,
        package: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = Hit<'a>> {
        let key = key(ecosystem, package);
        let records = key.as_ref().and_then(|key| self.by_package.get(key));
        records.into_iter().flatten().filter_map(move |record| {
            let mut affected = record.affected.iter();
            let affected = affected.find(|it| it.key() == key && it.holds(ecosystem, version))?;
            Some(Hit {
                fixed: affected.fixed(ecosystem, version),
                package,
                version,
                id: &record.id,
                aliases: &record.aliases,
                summary: &record.summary,
            })
        })
    }
}

impl Affected {
    fn key(&self) -> Option<PackageKey> {
        let package = self.package.as_ref()?;
        let ecosystem = match &*package.ecosystem {
            "PyPI" => Ecosystem::Python,
            "npm" => Ecosystem::Node,
            _ => return None,
        };
        key(ecosystem, &package.name)
    }

    /// The ranges of versions. A lock does not name commits.
    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().filter(|range| range.kind != "GIT")
    }

    fn holds(&self, ecosystem: Ecosystem, version: &str) -> bool {
        let mut listed = self.versions.iter();
        self.versions.is_empty() && self.ranges().next().is_none()
            || listed.any(|listed| versions::are_same(ecosystem, listed, version))
            || self.ranges().any(|range| range.holds(ecosystem, version))
    }

    fn fixed(&self, ecosystem: Ecosystem, version: &str) -> Option<&str> {
        let events = self
            .ranges()
            .flat_map(|range| range.events.iter().flatten());
        let mut fixed = events.filter(|(kind, _)| **kind == EventKind::Fixed);
        let later = fixed.find(|(_, bound)| lies(version, "<", bound, ecosystem))?;
        Some(later.1)
    }
}

/// True also for what is not a version.
fn lies(version: &str, sign: &str, bound: &str, ecosystem: Ecosystem) -> bool {
    versions::may_hold(ecosystem, &format!("{sign}{bound}"), version)
}

impl Range {
    fn holds(&self, ecosystem: Ecosystem, version: &str) -> bool {
        let mut events = self.events.iter().flatten();
        events.any(|(kind, start)| {
            *kind == EventKind::Introduced
                && lies(version, ">=", start, ecosystem)
                && !self.ends_between(start, version, ecosystem)
        })
    }

    /// Whether what began with one version ended before another.
    fn ends_between(&self, start: &str, version: &str, ecosystem: Ecosystem) -> bool {
        self.events.iter().flatten().any(|(kind, bound)| {
            let until = match kind {
                EventKind::Fixed => "<",
                EventKind::LastAffected => "<=",
                EventKind::Introduced | EventKind::Limit => return false,
            };
            lies(start, until, bound, ecosystem) && !lies(version, until, bound, ecosystem)
        })
    }
}

impl fmt::Display for Hit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [std::slice::from_ref(self.id), self.aliases];
        let names = names.concat().join(", ");
        let fixed = |fixed| format!("fixed in {fixed}");
        let fix = self.fixed.map_or("no fix is named".to_owned(), fixed);
        let about = format!("({names}), {fix}: {}", self.summary);
        let about = text::head(about.trim_end_matches([':', ' ']), SHOWN_TEXT);
        write!(f, "{} {} is vulnerable {about}", self.package, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecosystem::{Node, Python};

    fn records(ecosystem: &str, name: &str, affected: &str) -> Records {
        let mut found = Records::default();
        let package = format!(r#"{{"ecosystem": "{ecosystem}", "name": "{name}"}}"#);
        let record =
            format!(r#"{{"id": "X-1", "affected": [{{"package": {package}, {affected}}}]}}"#);
        found.add("x.json", &record);
        assert!(!found.is_empty() && found.unread == 0, "{:?}", found.faults);
        found
    }

    fn range(events: &str) -> String {
        format!(r#""ranges": [{{"type": "ECOSYSTEM", "events": [{events}]}}]"#)
    }

    #[test]
    fn a_version_is_affected_from_introduced_up_to_fixed() {
        let until = r#"{"introduced": "1.0"}, {"fixed": "1.5"}"#;
        let twice = r#"{"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "3"}"#;
        let any = r#"{"introduced": "2"}, {"fixed": "3"}, {"introduced": "0"}, {"fixed": "1"}"#;
        let last = r#"{"introduced": "0"}, {"last_affected": "2.0.0"}"#;
        for (events, affected, other) in [
            (until, "1.0", "0.9"),
            (until, "1.4.99", "1.5"),
            (until, "1.5rc1", "1.5.post1"),
            (until, "1.0+local", "1.5+local"),
            (twice, "0.9", "1.0"),
            (twice, "2.9", "3.0.0"),
            (any, "2.5", "1.5"),
            (any, "0.9", "3.1"),
            (last, "2", "2.0.1"),
            (last, "2.0.0+cpu", "2.0.0.post1"),
            (r#"{"introduced": "0", "fixed": "1.5"}"#, "1", "1.5"),
            // What is not a version begins and does not end.
            (r#"{"introduced": "old"}, {"fixed": "2"}"#, "1", "2"),
            (r#"{"introduced": "1"}, {"fixed": "soon"}"#, "99", "0.9"),
        ] {
            let found = records("PyPI", "A_b.C", &range(events));
            let hits = |version| found.hits(Python, "a-b-c", version).count();
            assert_eq!((hits(affected), hits(other)), (1, 0), "{events}");
        }
    }

    #[test]
    fn a_pre_release_of_node_comes_before_its_release() {
        let found = records(
            "npm",
            "@s/a",
            &range(r#"{"introduced": "0"}, {"fixed": "1.2.0"}"#),
        );
        let hits = |version| found.hits(Node, "@s/a", version).count();
        assert_eq!(
            ["1.1.9", "1.2.0-rc.1", "1.2.0", "1.2.0+b"].map(hits),
            [1, 1, 0, 0]
        );
        assert!(found.hits(Python, "a", "1.0").next().is_none());
        assert_eq!(
            found.hits(Node, "@s/a", "1.0.0").next().unwrap().fixed,
            Some("1.2.0")
        );
    }

    #[test]
    fn versions_are_listed_and_a_record_that_names_none_affects_all() {
        let git = r#""ranges": [{"type": "GIT", "events": [{"introduced": "abc"}]}]"#;
        let listed = records(
            "PyPI",
            "a",
            &format!(r#""versions": ["1.0", "old"], {git}"#),
        );
        let hits = |version| listed.hits(Python, "a", version).count();
        assert_eq!(["1.0.0", "1.1"].map(hits), [1, 0]);
        assert_eq!(records("PyPI", "a", git).hits(Python, "a", "7").count(), 1);
    }
}
