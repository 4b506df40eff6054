//! Last: what one tool was refused in its last calls, by the newest records of the log.
//!
//! For: `audit TOOL`. In: which tool. Out: its last denials, newest first, each kind once with how many calls had it;
//! what was not looked at, in words. Never: reads more than the newest part of a large log, or for long; holds more than
//! a few lines of it; counts a call of another tool, of another version, or of a manifest that lies elsewhere.

use super::{LONGEST_LINE, Log, segments};
use crate::quantity::{KIB, MIB};
use crate::service::LIMIT;
use crate::service::call_ended::{MORE, manifest};
use crate::{policy, registry};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Most denials that are told.
const KINDS: usize = 10;
/// Most that is read of the log, bytes.
const MOST: u64 = 32 * MIB;
/// Longest look.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is read at once, bytes.
const PIECE: u64 = 256 * KIB;

/// Whose denials: a record names all of these.
struct Whose<'a> {
    tool: &'a str,
    version: String,
    manifest: Option<String>,
    /// The digests of manifest and policies as they are now.
    manifest_digest: &'a str,
    policy_digest: Option<&'a str>,
}

/// What one tool was refused.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastDenials {
    /// Calls of the tool among the records that were looked at.
    pub calls: u64,
    pub denials: Vec<Denied>,
    /// Denials of other kinds in older calls, and those that a record had no room for.
    pub more: u64,
    /// What was not looked at, and why.
    pub not_looked_at: Vec<String>,
}

/// One kind of denial, by the newest call that had it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Denied {
    pub time: String,
    pub call: String,
    pub operation: String,
    pub target: String,
    pub rule: String,
    pub narrower: Option<String>,
    /// How many calls had it.
    pub calls: u64,
    /// What changed since that call: `manifest`, `policy`.
    pub changed: Vec<&'static str>,
}

/// The parts of a record that are looked at. Records of other versions of this program may lack some.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line {
    time: String,
    call: String,
    tool: String,
    version: Option<String>,
    manifest: Option<String>,
    digests: Digests,
    violations: Vec<Violation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Digests {
    manifest: Option<String>,
    policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Violation {
    kind: String,
    operation: String,
    target: String,
    rule: String,
    narrower: Option<String>,
    what: String,
    count: u64,
}

impl Log {
    /// What this tool was refused in its last calls. The error says why the log cannot be read.
    pub fn last_denials(&self, tool: &registry::Tool, decision: &policy::Decision) -> Result<LastDenials, String> {
        let whose = Whose {
            tool: &tool.manifest.id,
            version: tool.manifest.version.to_string(),
            manifest: manifest(&tool.site),
            manifest_digest: &tool.manifest.digest,
            // A script that a builtin tool runs answers to more policies than the tool.
            policy_digest: (!decision.in_process).then_some(decision.digest.as_str()),
        };
        self.denials_of(&whose)
    }

    fn denials_of(&self, whose: &Whose<'_>) -> Result<LastDenials, String> {
        let said = |e: io::Error| format!("{}: {e}", self.path.display());
        let (files, passed_over) = match segments::all(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(LastDenials::default()),
            found => found.map_err(said)?,
        };
        let mut found = LastDenials { not_looked_at: passed_over, ..LastDenials::default() };
        let (until, mut left, mut damaged) = (Instant::now() + PATIENCE, MOST, 0_u64);
        let named = format!("\"tool\":{}", serde_json::Value::from(whose.tool));
        let (mut unread, mut oldest) = (files.len(), String::new());
        for file in files {
            let mut lines = Backwards::of(file).map_err(said)?;
            while let Some(line) = lines.next(&mut left).map_err(said)? {
                let text = String::from_utf8_lossy(&line);
                if !text.is_empty() && !text.ends_with('}') {
                    damaged += 1;
                } else if text.contains(&named) {
                    match serde_json::from_str(&text) {
                        Ok(line) => found.take(line, whose),
                        Err(_) => damaged += 1,
                    }
                }
                if let Some((time, _)) = text.strip_prefix("{\"time\":\"").and_then(|rest| rest.split_once('"')) {
                    time.clone_into(&mut oldest);
                }
                if Instant::now() > until {
                    left = 0;
                }
            }
            damaged += lines.too_long;
            if lines.before > 0 || !lines.tail.is_empty() {
                break;
            }
            unread -= 1;
        }
        if unread > 0 {
            let most = MOST >> 20;
            let words =
                format!("records before {oldest}: the newest {most} MiB are looked at, for {PATIENCE:?} at most");
            found.not_looked_at.push(words);
        }
        if damaged > 0 {
            found.not_looked_at.push(format!("lines that are no records: {damaged}"));
        }
        Ok(found)
    }
}

impl Denied {
    fn is_like(&self, other: &Denied) -> bool {
        let Denied { operation, target, rule, narrower, .. } = self;
        (operation, target, rule, narrower) == (&other.operation, &other.target, &other.rule, &other.narrower)
    }
}

impl LastDenials {
    fn take(&mut self, line: Line, whose: &Whose<'_>) {
        let same =
            line.tool == whose.tool && line.version.as_ref() == Some(&whose.version) && line.manifest == whose.manifest;
        if !same {
            return;
        }
        self.calls += 1;
        let mut changed = Vec::new();
        if line.digests.manifest.as_deref() != Some(whose.manifest_digest) {
            changed.push("manifest");
        }
        if whose.policy_digest.is_some_and(|digest| line.digests.policy.as_deref() != Some(digest)) {
            changed.push("policy");
        }
        // Told as a denial too.
        let limit = line.violations.iter().any(|violation| violation.operation == LIMIT);
        for violation in line.violations {
            if limit && violation.operation.is_empty() && violation.kind != MORE {
                continue;
            }
            if violation.kind == MORE {
                self.more = self.more.saturating_add(violation.count);
                continue;
            }
            let Violation { kind, operation, target, rule, narrower, what, .. } = violation;
            // A call that was refused as a whole, or ended by a limit, has a message alone.
            let (operation, target, rule) = match operation.is_empty() {
                true => ("call".to_owned(), kind, what),
                false => (operation, target, rule),
            };
            let (time, call) = (line.time.clone(), line.call.clone());
            let new = Denied { time, call, operation, target, rule, narrower, calls: 1, changed: changed.clone() };
            match self.denials.iter().position(|known| known.is_like(&new)) {
                Some(known) => self.denials[known].calls += 1,
                None if self.denials.len() < KINDS => self.denials.push(new),
                None => self.more += 1,
            }
        }
    }
}

/// The lines of a file, the last one first.
struct Backwards {
    file: File,
    /// What lies before this place is not read yet.
    before: u64,
    /// What was read and not given out.
    tail: Vec<u8>,
    /// The line that is being read is longer than any record, and is passed over.
    passing: bool,
    too_long: u64,
}

impl Backwards {
    fn of(file: File) -> io::Result<Backwards> {
        let before = file.metadata()?.len();
        Ok(Backwards { file, before, tail: Vec::new(), passing: false, too_long: 0 })
    }

    /// The next line, without its line break; `None` at the beginning of the file, or when no more may be read.
    fn next(&mut self, left: &mut u64) -> io::Result<Option<Vec<u8>>> {
        loop {
            let found = self.tail.iter().rposition(|byte| *byte == b'\n');
            if found.is_some() || self.before == 0 {
                if found.is_none() && self.tail.is_empty() && !self.passing {
                    return Ok(None);
                }
                let line = self.tail.split_off(found.map_or(0, |at| at + 1));
                self.tail.truncate(found.unwrap_or(0));
                match std::mem::take(&mut self.passing) {
                    true => self.too_long += 1,
                    false => return Ok(Some(line)),
                }
                continue;
            }
            if *left == 0 {
                return Ok(None);
            }
            if self.tail.len() as u64 > LONGEST_LINE {
                self.tail.clear();
                self.passing = true;
            }
            let count = self.before.min(PIECE);
            *left = left.saturating_sub(count);
            self.before -= count;
            let mut piece = vec![0; usize::try_from(count).unwrap_or_default()];
            self.file.read_exact_at(&mut piece, self.before)?;
            piece.append(&mut self.tail);
            self.tail = piece;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], mut left: u64) -> (Vec<String>, u64, u64) {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, text).expect("written");
        let mut lines = Backwards::of(file).expect("open");
        let mut found = Vec::new();
        while let Some(line) = lines.next(&mut left).expect("read") {
            found.push(String::from_utf8_lossy(&line).into_owned());
        }
        (found, lines.too_long, left)
    }

    #[test]
    fn lines_come_from_the_end_whatever_their_length() {
        let plain = |text: &[u8]| lines(text, MOST).0;
        assert_eq!(plain(b""), [""; 0]);
        assert_eq!(plain(b"a\n"), ["", "a"]);
        assert_eq!(plain(b"a\n\nb"), ["b", "", "a"]);
        let long = "x".repeat(PIECE as usize + 3);
        assert_eq!(plain(format!("a\n{long}\nb\n").as_bytes()), ["", "b", &long, "a"]);
        let endless = "y".repeat((LONGEST_LINE + 3 * PIECE) as usize);
        let (found, too_long, _) = lines(format!("a\n{endless}\nb\n").as_bytes(), MOST);
        assert_eq!((found, too_long), (vec![String::new(), "b".to_owned(), "a".to_owned()], 1));
        let (found, too_long, _) = lines(format!("{endless}\nb").as_bytes(), MOST);
        assert_eq!((found, too_long), (vec!["b".to_owned()], 1));
        let (found, _, left) = lines(format!("a\n{endless}\nb").as_bytes(), PIECE);
        assert_eq!((found, left), (vec!["b".to_owned()], 0), "no more than may be read");
    }
}
