//! Pieces: an answer that comes in several texts, told so that no secret shows which was cut into two of them.
//!
//! For: streams. In: texts as they come, or a list of all of them. Out: what can be told of them now. Never: keeps back by
//! its content a text that its reader may only guess: how long it stays away would tell whether the guess is right so far.
//!
//! Of more secrets than one searcher is made of (`MOST_BYTES`) those alone are found that stand in one piece.

use super::{HIDDEN, LONGEST_PART, Mask};
use std::collections::BTreeSet;

/// What of a text was not told yet.
#[derive(Default)]
pub struct Held {
    text: String,
    /// So many bytes at its start belong to a secret that was told as hidden.
    told: usize,
    /// Something was hidden.
    pub hid: bool,
}

impl Mask {
    /// What can be told of a text once this piece of it has come. The end stays back where a secret may have begun there.
    pub fn piece(&self, held: &mut Held, piece: &str) -> String {
        if self.secrets.is_empty() {
            return piece.to_owned();
        }
        if self.searcher().is_none() {
            let shown = self.whole(piece).unwrap_or_else(|| HIDDEN.to_owned());
            held.hid |= shown != piece;
            return shown;
        }
        held.text.push_str(piece);
        let keep = self.keeps(&held.text);
        self.tell(held, keep)
    }

    /// What stayed back, once nothing more comes.
    pub fn rest(&self, held: &mut Held) -> String {
        self.tell(held, 0)
    }

    /// Tells all but the last `keep` bytes.
    fn tell(&self, held: &mut Held, keep: usize) -> String {
        if held.text.is_empty() {
            return String::new();
        }
        let Some(found) = self.found(&held.text) else {
            *held = Held { hid: true, ..Held::default() };
            return HIDDEN.to_owned();
        };
        let end = held.text.len() - keep;
        let (mut shown, mut done) = (String::new(), held.told);
        for secret in found.into_iter().filter(|secret| secret.start < end) {
            // One that overlaps with what was told as hidden is told with it.
            if secret.start >= done {
                shown.push_str(&held.text[done..secret.start]);
                shown.push_str(HIDDEN);
                held.hid = true;
            }
            done = done.max(secret.end);
        }
        shown.push_str(held.text.get(done..end).unwrap_or_default());
        held.text.drain(..end);
        held.told = done.saturating_sub(end);
        shown
    }

    /// How many bytes at the end of a text may be the start of a secret. Of those that the reader may only guess that is
    /// a matter of their length alone.
    fn keeps(&self, text: &str) -> usize {
        let from = |most: usize| text.ceil_char_boundary(text.len() - most.min(LONGEST_PART).min(text.len()));
        let starts = self.starts.get_or_init(|| self.secrets.iter().cloned().collect::<BTreeSet<_>>());
        let longest = self.secrets.first().map_or(0, |secret| secret.len() - 1);
        let begins = |tail: &str| {
            let mut after = starts.range::<str, _>((std::ops::Bound::Excluded(tail), std::ops::Bound::Unbounded));
            after.next().is_some_and(|secret| secret.starts_with(tail))
        };
        let at = from(longest);
        let begun =
            text[at..].char_indices().find(|(n, _)| begins(&text[at + n..])).map_or(text.len(), |(n, _)| at + n);
        // Rounded down, so that all of these bytes stay back.
        let guessed = text.len() - self.guessed.saturating_sub(1).min(LONGEST_PART).min(text.len());
        text.len() - begun.min(text.floor_char_boundary(guessed))
    }

    /// A list of texts with each secret hidden that stands in them one after the other; `None` where there is none, or
    /// it is another list.
    pub fn list(&self, json: &str) -> Option<String> {
        self.searcher()?;
        let texts: Vec<String> = serde_json::from_str(json).ok()?;
        let Some(found) = self.found(&texts.concat()) else { return Some(format!("\"{HIDDEN}\"")) };
        if found.is_empty() {
            return None;
        }
        let mut start = 0;
        let shown = texts.iter().map(|text| {
            let (end, mut shown, mut done) = (start + text.len(), String::new(), start);
            for secret in found.iter().filter(|secret| secret.start < end && secret.end > start) {
                if secret.start >= start {
                    shown.push_str(&text[done - start..secret.start - start]);
                    shown.push_str(HIDDEN);
                }
                done = secret.end.min(end);
            }
            shown.push_str(&text[done - start..]);
            start = end;
            shown
        });
        serde_json::to_string(&shown.collect::<Vec<_>>()).ok()
    }
}
