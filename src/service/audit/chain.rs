//! The chain of the log: the last member of each line holds the number of its record and the digest
//! of the record before. Who changes, removes or moves a record breaks the chain, unless all
//! later records are made again: that only shows where a head, the digest of the last record, is
//! known elsewhere.

use crate::base::sha256_hex;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Begins the last member of a line. In a text the quotes would be escaped.
const MEMBER: &str = ",\"chain\":";
/// Begins the record of a file that was removed.
const REMOVED: &[u8] = b"{\"removed\":\"";
/// Length of a digest.
const DIGEST: usize = 64;
/// Most breaches, and most notes, that are listed.
const LISTED: usize = 100;

/// A record, by its number and the digest of its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub n: u64,
    pub digest: String,
    /// When it was written: a call's `time` is that of its beginning.
    pub at: Timestamp,
}

/// The member `chain` of a line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Link {
    n: u64,
    at: Timestamp,
    /// The digest of the record before. `None`: the chain begins here.
    previous: Option<String>,
    /// The digest of the lines between the two, whose writers were cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    torn: Option<String>,
}

/// The place of a line in the chain. `None`: it is not a record of the chain.
pub(super) fn link(line: &[u8]) -> Option<Link> {
    let text = str::from_utf8(line).ok()?.strip_suffix('}')?;
    serde_json::from_str(text.rsplit_once(MEMBER)?.1).ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Breach {
    Missing,
    Changed,
    OutOfOrder,
    Repeated,
    /// A whole line that no writer of the chain made.
    Foreign,
    /// The lines before the first record are not those that lay there when it was written.
    Before,
    /// No breach: a line was cut off, as where its writer was killed.
    Torn,
    /// No breach: the clock was set back.
    ClockSetBack,
}

/// What is wrong with these records, and where that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub what: Breach,
    pub from: u64,
    pub to: u64,
    pub place: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Breach::Missing => "missing",
            Breach::Changed => "changed, or what follows it",
            Breach::OutOfOrder => "out of order",
            Breach::Repeated => "repeated",
            Breach::Foreign => "a line that is not of the chain follows it",
            Breach::Before => "the lines before it were changed, added or removed",
            Breach::Torn => "a line that was cut off follows it",
            Breach::ClockSetBack => "the clock was set back before it",
        };
        let Finding {
            from, to, place, ..
        } = self;
        match from {
            _ if from == to => write!(f, "record {from}: {what} (seen at {place})"),
            _ => write!(f, "records {from} to {to}: {what} (seen at {place})"),
        }
    }
}

/// A walk along the chain, line by line.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// The first and the last record.
    pub from: Option<Head>,
    pub to: Option<Head>,
    /// Lines from before the chain began, which it does not cover.
    pub lines_before: u64,
    /// What is wrong, and what is unusual: of each the first.
    pub breaches: Vec<Finding>,
    pub notes: Vec<Finding>,
    /// The heads that were compared.
    pub heads: Option<Heads>,
    /// The file and the number of the line that was read last.
    #[serde(skip)]
    pub(super) file: String,
    #[serde(skip)]
    pub(super) line: u64,
    #[serde(skip)]
    pub(super) digests: BTreeMap<u64, String>,
    /// Where the first record was read, and those with a gap before them.
    #[serde(skip)]
    gaps: BTreeMap<u64, String>,
    /// The digest of the lines of this file since the last record that are not records.
    #[serde(skip)]
    pub(super) torn: Option<String>,
    /// The digest that the first record names.
    #[serde(skip)]
    previous: Option<String>,
    /// The digests of the last records of files that were removed.
    #[serde(skip)]
    removed: Vec<String>,
}

/// The heads of a file.
#[derive(Debug, Serialize)]
pub struct Heads {
    pub file: PathBuf,
    /// How many name a record of the log as it is there.
    pub same: u64,
    pub newest: Option<Head>,
}

impl Walk {
    /// Goes on behind this record.
    pub(super) fn behind(last: Option<Head>) -> Walk {
        let digests = last.iter().map(|last| (last.n, last.digest.clone()));
        Walk {
            digests: digests.collect(),
            to: last,
            ..Walk::default()
        }
    }

    /// The line of the next record, and the record.
    pub(super) fn next(&self, record: &str) -> (String, Head) {
        let last = self.to.as_ref();
        let n = last.map_or(1, |last| last.n.saturating_add(1));
        let at = Timestamp::now();
        let link = Link {
            n,
            at,
            previous: last.map(|last| last.digest.clone()),
            torn: self.torn.clone(),
        };
        let link = serde_json::to_string(&link).unwrap_or_default();
        let members = record.strip_suffix('}').unwrap_or(record);
        let line = format!("{members}{MEMBER}{link}}}");
        let digest = sha256_hex(line.as_bytes());
        (line, Head { n, digest, at })
    }

    /// Where the chain must not end before this record: it goes on behind it.
    pub(super) fn expect(&mut self, known: Option<Head>) {
        let Some(known) = known else { return };
        let n = self.to.as_ref().map_or(0, |last| last.n);
        if n < known.n || (n == known.n && self.digests.get(&n) != Some(&known.digest)) {
            self.found(Breach::Missing, (n + 1).min(known.n), known.n);
            self.to = Some(known);
        }
    }

    pub(super) fn found(&mut self, what: Breach, from: u64, to: u64) {
        self.found_at(self.place(), what, from, to);
    }

    fn place(&self) -> String {
        format!("{} line {}", self.file, self.line)
    }

    fn found_at(&mut self, place: String, what: Breach, from: u64, to: u64) {
        let is_note = matches!(what, Breach::Torn | Breach::ClockSetBack);
        let list = if is_note {
            &mut self.notes
        } else {
            &mut self.breaches
        };
        if list.len() < LISTED {
            list.push(Finding {
                what,
                from,
                to,
                place,
            });
        }
    }

    /// Takes a line without its end.
    pub(super) fn take(&mut self, line: &[u8]) {
        let Some(link) = link(line) else {
            return self.other_line(line);
        };
        let torn = self.torn.take();
        let head = Head {
            n: link.n,
            digest: sha256_hex(line),
            at: link.at,
        };
        let Some(last) = self.to.clone() else {
            self.from = Some(head.clone());
            self.previous = link.previous;
            // Those before a later record can lie in a file that was removed.
            if link.torn != torn && (link.n == 1 || torn.is_some()) {
                self.found(Breach::Before, link.n, link.n);
            }
            self.gaps.insert(head.n, self.place());
            return self.accept(head, line);
        };
        let follows = link.previous.as_ref() == Some(&last.digest);
        let next = last.n.saturating_add(1);
        let n = if follows { next } else { link.n };
        if n < next {
            return self.earlier(n, head.digest);
        } else if n == next && (!follows || link.torn != torn) {
            self.found(Breach::Changed, last.n, last.n);
        } else if link.n != n {
            self.found(Breach::Changed, n, n);
        }
        if head.at.as_second() < last.at.as_second() {
            self.found(Breach::ClockSetBack, n, n);
        }
        if n > next {
            self.gaps.insert(n, self.place());
        }
        self.accept(Head { n, ..head }, line);
    }

    fn accept(&mut self, head: Head, line: &[u8]) {
        let removed = line.strip_prefix(REMOVED);
        if let Some(digest) = removed.and_then(|rest| rest.get(..DIGEST)) {
            let digest = String::from_utf8_lossy(digest).into_owned();
            self.removed.push(digest);
        }
        self.digests.insert(head.n, head.digest.clone());
        self.to = Some(head);
    }

    /// A record that should stand before the last one.
    fn earlier(&mut self, n: u64, digest: String) {
        let what = match self.digests.get(&n) {
            Some(known) if *known == digest => Breach::Repeated,
            _ => Breach::OutOfOrder,
        };
        self.found(what, n, n);
        self.digests.entry(n).or_insert(digest);
    }

    /// A line that is not a record: from before the chain, cut off, or of another writer.
    fn other_line(&mut self, line: &[u8]) {
        // What is written behind a line that was cut off begins with a line break.
        if line.is_empty() {
            return;
        }
        let before = self.torn.take().unwrap_or_default();
        self.torn = Some(sha256_hex(&[before.as_bytes(), line].concat()));
        let Some(last) = self.to.as_ref().map(|last| last.n) else {
            self.lines_before += 1;
            return;
        };
        let is_whole = serde_json::from_slice::<&RawValue>(line).is_ok();
        let what = if is_whole {
            Breach::Foreign
        } else {
            Breach::Torn
        };
        self.found(what, last, last);
    }

    /// Ends the walk: numbers that were left out are missing, and those before the first record
    /// unless their file was removed.
    pub(super) fn end(&mut self) {
        let numbers: Vec<u64> = self.digests.keys().copied().collect();
        for pair in numbers.windows(2).filter(|pair| pair[0] + 1 < pair[1]) {
            // One that stands elsewhere may be in the middle of the gap.
            let place = self.gaps.range(pair[1]..).next();
            let place = place.map_or_else(|| self.place(), |(_, place)| place.clone());
            self.found_at(place, Breach::Missing, pair[0] + 1, pair[1] - 1);
        }
        if let (Some(first), Some(previous)) = (&self.from, &self.previous)
            && !self.removed.contains(previous)
        {
            let place = self.gaps.get(&first.n).cloned().unwrap_or_default();
            let last = first.n.saturating_sub(1);
            self.found_at(place, Breach::Missing, 1, last);
        }
    }
}
