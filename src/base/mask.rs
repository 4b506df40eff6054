//! Masks secrets in what leaves this host: answers of hosts, output, logs, records and reports.
//!
//! A text has three readings: as it is, decoded character by character, and decoded so once more. Each is searched for
//! the secrets and their base64, and a match is mapped back to the bytes of the text that it was read from. The search
//! streams: only the last characters, as many as the longest pattern has, may still belong to a match. As much is
//! hidden beside a cut. How much that is depends on the lengths of the secrets and never on how a text compares with
//! them, which would confirm a guess.

mod decode;
mod find;

pub use find::{Finder, Hide, Search};

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Stands where a secret stood.
pub const HIDDEN: &str = "***";
/// A shorter text is not searched for: it would be found in ordinary words.
pub const SHORTEST: usize = 8;
/// Most secrets that are searched for: with more, whole texts are hidden.
const MOST: usize = 256;
/// What stands where a text was cut: `…` at its start or end, `[…]` within it, and in a log a line `[… so many bytes …]`.
pub const CUT: &str = "[…]";
const ELLIPSIS: char = '…';

/// Some secrets, and what finds them.
#[derive(Clone, Default)]
pub struct Mask {
    secrets: BTreeSet<String>,
    /// `None`: there are more secrets than can be searched for, so that whole texts are hidden.
    finder: OnceLock<Option<Arc<Finder>>>,
}

impl Mask {
    /// Hides this text, and each of its lines, as a log shows them.
    pub fn add(&mut self, secret: &str) {
        let parts = std::iter::once(secret).chain(secret.lines().map(str::trim));
        self.secrets.extend(parts.filter(|part| part.len() >= SHORTEST).map(str::to_owned));
        self.finder.take();
    }

    pub fn join(&mut self, other: Mask) {
        self.secrets.extend(other.secrets);
        self.finder.take();
    }

    /// `None`: there are more secrets than can be searched for.
    pub fn finder(&self) -> Option<Arc<Finder>> {
        let few = self.secrets.len() <= MOST;
        self.finder.get_or_init(|| few.then(|| Finder::new(&self.secrets)).flatten().map(Arc::new)).clone()
    }

    /// The text with every secret hidden, and what a cut may have left of one.
    pub fn text(&self, text: &str) -> String {
        self.pieces(&[text], "", true).remove(0)
    }

    /// The text with each secret hidden that stands whole in it.
    pub fn whole(&self, text: &str) -> String {
        self.pieces(&[text], "", false).remove(0)
    }

    /// Lines of a log, also with a secret hidden that is broken over several of them, and what a cut may have left of one.
    pub fn lines(&self, lines: &[String]) -> Vec<String> {
        self.pieces(lines, "\n", true)
    }

    /// A list of texts with each secret hidden that stands in them one after the other; `None` where there is none, or
    /// it is another list.
    pub fn list(&self, json: &str) -> Option<String> {
        let texts: Vec<String> = serde_json::from_str(json).ok()?;
        let shown = self.pieces(&texts, "", false);
        if shown == texts { None } else { serde_json::to_string(&shown).ok() }
    }

    /// Texts that follow each other with this between them: what is hidden stands where it begins.
    fn pieces<T: AsRef<str>>(&self, texts: &[T], between: &str, cut: bool) -> Vec<String> {
        if self.secrets.is_empty() || texts.iter().all(|text| text.as_ref().is_empty()) {
            return texts.iter().map(|text| text.as_ref().to_owned()).collect();
        }
        let Some(finder) = self.finder() else { return vec![HIDDEN.to_owned(); texts.len()] };
        let whole = texts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(between);
        let mut found = finder.all(whole.as_bytes());
        if cut {
            found.extend(beside_cuts(&whole, finder.longest));
            found = find::joined(found);
        }
        let mut next = 0;
        let shown = texts.iter().map(|text| {
            let piece = next..next + text.as_ref().len();
            next = piece.end + between.len();
            text_of(find::shown(whole.as_bytes(), 0, &found, piece, Hide::Word))
        });
        shown.collect()
    }

    /// The answer of a tool with the secrets hidden that stand in its texts and numbers; of the names of members those
    /// of `names` alone. `None`: there is none. It stays one JSON document.
    pub fn answer(&self, json: &str, names: &Mask) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        let shown = self.tokens(json, names).unwrap_or_else(|| format!("\"{HIDDEN}\""));
        (shown != json).then_some(shown)
    }

    fn tokens(&self, json: &str, names: &Mask) -> Option<String> {
        let (mut shown, mut rest, mut changed) = (String::with_capacity(json.len()), json, 0);
        while let Some(c) = rest.chars().next() {
            let (length, text) = match c {
                '"' => {
                    let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                    let text = texts.next()?.ok()?;
                    (texts.byte_offset(), text)
                }
                '-' | '0'..='9' => {
                    let after = |c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E');
                    let length = rest.find(after).unwrap_or(rest.len());
                    (length, rest[..length].to_owned())
                }
                _ => (c.len_utf8(), String::new()),
            };
            let (token, after) = rest.split_at(length);
            rest = after;
            let name = rest.starts_with(':');
            let mut hidden = if name { names.whole(&text) } else { self.whole(&text) };
            if hidden == text {
                shown.push_str(token);
                continue;
            }
            if name {
                // The number of changed names keeps them apart.
                changed += 1;
                hidden += &if changed > 1 { format!(" ({changed})") } else { String::new() };
            }
            shown.push_str(&serde_json::to_string(&hidden).ok()?);
        }
        Some(shown)
    }

    /// What can be shown of a text once this piece of it has come; `None`: nothing more comes.
    pub fn piece(&self, held: &mut TextStream, piece: Option<&str>) -> String {
        match (held.search.take(), piece) {
            (None, Some(piece)) if self.secrets.is_empty() => piece.to_owned(),
            (None, None) => String::new(),
            (search, piece) => {
                let Some(finder) = self.finder() else {
                    held.hid = true;
                    return HIDDEN.to_owned();
                };
                let mut search = search.unwrap_or_else(|| Search::new(finder, Hide::Word));
                let shown = match piece {
                    Some(piece) => search.push(piece.as_bytes()),
                    None => search.finish(),
                };
                held.hid |= search.hid;
                held.search = piece.map(|_| search);
                text_of(shown)
            }
        }
    }
}

/// The first `most` bytes of a text, and a mark where something was cut.
pub fn head(text: &str, most: usize) -> String {
    if text.len() <= most { text.to_owned() } else { text[..text.floor_char_boundary(most)].to_owned() + CUT }
}

/// What of a text was not shown yet.
#[derive(Default)]
pub struct TextStream {
    search: Option<Search>,
    /// Something was hidden.
    pub hid: bool,
}

/// The places beside cuts that may be parts of a secret of this length.
fn beside_cuts(text: &str, longest: usize) -> Vec<Range<usize>> {
    let before = |at: usize| at.saturating_sub(longest)..at;
    let after = |at: usize| at..text.len().min(at + longest);
    let mut edges: Vec<_> = text.match_indices("[…").map(|(at, _)| before(at)).collect();
    edges.extend(text.match_indices("…]\n").map(|(at, mark)| after(at + mark.len())));
    edges.extend(text.starts_with(ELLIPSIS).then(|| after(ELLIPSIS.len_utf8())));
    edges.extend(text.ends_with(ELLIPSIS).then(|| before(text.len() - ELLIPSIS.len_utf8())));
    edges.retain(|edge| !edge.is_empty());
    edges
}

fn text_of(bytes: Vec<u8>) -> String {
    // A match can begin or end within a character.
    String::from_utf8(bytes).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned())
}
