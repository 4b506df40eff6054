//! The newest records of the log, and the latest denials of one tool in them.

use super::log::Log;
use super::segments::{self, MAX_LINE_BYTES};
use crate::quantity::{KIB, MIB};
use crate::service::call_ended::{MORE, manifest};
use crate::service::denials::LIMIT;
use crate::{policy, registry};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most denials that are reported.
const KINDS: usize = 10;
/// How much of the log is read at most, and how much at once, bytes.
const MAX_READ_BYTES: u64 = 32 * MIB;
const PIECE: u64 = 256 * KIB;

/// The latest denials of one tool.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastDenials {
    /// Calls of the tool among the records that were looked at.
    pub calls: u64,
    /// Newest first.
    pub denials: Vec<LatestDenial>,
    /// Denials of other kinds in older calls, and those that a record had no room for.
    pub more: u64,
    /// What was not looked at, and why.
    pub not_looked_at: Vec<String>,
}

/// One kind of denial, by the newest call that had it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LatestDenial {
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
    /// The arguments of that call, as the record has them.
    #[serde(skip)]
    pub arguments: String,
}

impl Log {
    /// The denials in this tool's last calls. Calls of another tool, version or manifest file do
    /// not count. `Err`: why the log cannot be read.
    pub fn last_denials(
        &self,
        tool: &registry::Tool,
        decision: &policy::Decision,
    ) -> Result<LastDenials, String> {
        let same = json!([
            tool.manifest.id,
            tool.manifest.version.to_string(),
            manifest(&tool.site)
        ]);
        // A script that a builtin tool runs has other policies too, so the policy digests cannot be
        // compared.
        let policy = (!decision.identity.in_process).then_some(decision.governing.digest.as_str());
        let named = format!("\"tool\":{}", same[0]);
        let mut found = LastDenials::default();
        let mut damaged = 0_u64;
        let unread = self.newest_lines(|text| {
            let about = !text.is_empty() && (!text.ends_with('}') || text.contains(&named));
            match about.then(|| serde_json::from_str::<Value>(text)) {
                Some(Ok(record))
                    if json!([record["tool"], record["version"], record["manifest"]]) == same =>
                {
                    fn changed(name: &str, now: &str, record: &Value) -> bool {
                        record["digests"][name] != now
                    }
                    let other =
                        changed("manifest", &tool.manifest.digest, &record).then_some("manifest");
                    let policy = policy
                        .filter(|now| changed("policy", now, &record))
                        .map(|_| "policy");
                    found.take(&record, other.into_iter().chain(policy).collect());
                }
                Some(Err(_)) => damaged += 1,
                Some(Ok(_)) | None => {}
            }
        })?;
        found.not_looked_at = unread;
        if damaged > 0 {
            found
                .not_looked_at
                .push(format!("damaged lines: {damaged}"));
        }
        Ok(found)
    }

    /// Passes the newest lines of the log to `take`, the last one first. Returns what was not looked
    /// at, and why.
    pub(super) fn newest_lines(&self, mut take: impl FnMut(&str)) -> Result<Vec<String>, String> {
        let failed = |e: io::Error| format!("{}: {e}", self.path().display());
        let (files, mut unread) = match segments::open_all(self.path()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.map_err(failed)?,
        };
        let mut left = MAX_READ_BYTES;
        let mut oldest = String::new();
        let mut all = true;
        for opened in files {
            all &= backwards(&opened.file, &mut left, |line: &[u8]| {
                let text = String::from_utf8_lossy(line);
                take(&text);
                if let Some((time, _)) = text
                    .strip_prefix("{\"time\":\"")
                    .and_then(|rest| rest.split_once('"'))
                {
                    time.clone_into(&mut oldest);
                }
            })
            .map_err(failed)?;
        }
        if !all {
            unread.push(format!(
                "records before {oldest}: the newest {} MiB are looked at",
                MAX_READ_BYTES / MIB
            ));
        }
        Ok(unread)
    }
}

impl LastDenials {
    fn take(&mut self, record: &Value, changed: Vec<&'static str>) {
        self.calls += 1;
        let violations = record["violations"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        fn text(of: &Value) -> String {
            of.as_str().unwrap_or_default().to_owned()
        }
        // Reaching a limit is listed as a denial.
        let limit = violations
            .iter()
            .any(|violation| violation["operation"] == LIMIT);
        for violation in violations {
            if violation["kind"] == MORE {
                self.more = self
                    .more
                    .saturating_add(violation["count"].as_u64().unwrap_or_default());
                continue;
            }
            let (operation, target, rule) = match violation["operation"].as_str() {
                Some(operation) => (
                    operation.to_owned(),
                    text(&violation["target"]),
                    text(&violation["rule"]),
                ),
                None if limit => continue,
                // A call that was refused as a whole, or ended by a limit, has only a message.
                None => (
                    "call".to_owned(),
                    text(&violation["kind"]),
                    text(&violation["what"]),
                ),
            };
            let narrower = violation["narrower"].as_str().map(str::to_owned);
            if let Some(known) = self.denials.iter_mut().find(|known: &&mut LatestDenial| {
                (
                    &known.operation,
                    &known.target,
                    &known.rule,
                    &known.narrower,
                ) == (&operation, &target, &rule, &narrower)
            }) {
                known.calls += 1;
            } else if self.denials.len() < KINDS {
                let time = text(&record["time"]);
                let call = text(&record["call"]);
                let changed = changed.clone();
                self.denials.push(LatestDenial {
                    time,
                    call,
                    operation,
                    target,
                    rule,
                    narrower,
                    calls: 1,
                    changed,
                    arguments: text(&record["arguments"]),
                });
            } else {
                self.more += 1;
            }
        }
    }
}

/// Passes the lines of a file to `take`, the last one first, until `left` bytes were read. False:
/// there are more.
fn backwards(file: &File, left: &mut u64, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    let mut before = file.metadata()?.len();
    let mut tail = Vec::new();
    while before > 0 {
        if *left == 0 {
            return Ok(false);
        }
        let count = before.min(PIECE);
        (before, *left) = (before - count, left.saturating_sub(count));
        let mut piece = vec![0; usize::try_from(count).unwrap_or_default()];
        file.read_exact_at(&mut piece, before)?;
        piece.append(&mut tail);
        let first = if before == 0 {
            Some(0)
        } else {
            piece
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|at| at + 1)
        };
        if let Some(first) = first {
            piece[first..]
                .rsplit(|byte| *byte == b'\n')
                .for_each(&mut take);
            piece.truncate(first.saturating_sub(1));
        }
        tail = piece;
        // A line that is longer than any record is cut to one byte, so that it counts as damaged.
        if tail.len() as u64 > MAX_LINE_BYTES {
            tail = b"?".to_vec();
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], mut left: u64) -> (Vec<String>, bool) {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, text).expect("written");
        let mut found = Vec::new();
        let all = backwards(&file, &mut left, |line| {
            found.push(String::from_utf8_lossy(line).into_owned())
        });
        (found, all.expect("read"))
    }

    #[test]
    fn lines_come_from_the_end_whatever_their_length() {
        let (long, endless) = (
            "x".repeat(PIECE as usize + 3),
            "y".repeat((MAX_LINE_BYTES + 3 * PIECE) as usize),
        );
        assert_eq!(
            lines(b"a\n\nb", MAX_READ_BYTES),
            (vec!["b".to_owned(), String::new(), "a".to_owned()], true)
        );
        let (found, _) = lines(format!("a\n{long}\nb\n").as_bytes(), MAX_READ_BYTES);
        assert_eq!(found, ["", "b", &long, "a"]);
        let (found, all) = lines(format!("a\n{endless}\nb").as_bytes(), MAX_READ_BYTES);
        assert!(
            all && found[0] == "b"
                && found[1].ends_with('?')
                && found[1].len() as u64 <= MAX_LINE_BYTES + PIECE,
            "not kept"
        );
        assert_eq!(found[2], "a");
        assert_eq!(
            lines(format!("{long}\nb").as_bytes(), PIECE),
            (vec!["b".to_owned()], false),
            "no more than that"
        );
    }
}
