//! Masks secrets in what leaves this host: answers of hosts, output, logs, records and reports.
//!
//! A text is searched for the secrets and their base64 in three readings: as it is, decoded character by character, and
//! decoded so once more. How much of a stream is held back, and hidden beside a cut, depends on the longest secret and
//! never on how a text compares with one: that would confirm a guess.

use aho_corasick::Anchored;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Stands where a secret stood.
pub const HIDDEN: &str = "***";
/// A shorter text is not searched for: it would be found in ordinary words.
pub const SHORTEST: usize = 8;
/// Stands where a text was cut: `…` at its start or end, `[…]` within it, and in a log a line `[… so many bytes …]`.
pub const CUT: &str = "[…]";
/// Most bytes of all secrets: beyond it, whole texts are hidden.
const MOST_BYTES: usize = 64 << 10;
/// Longest encoded character, bytes: two halves as `\ud83d\ude00`.
const LONGEST_CODE: usize = 12;
/// Encoded characters of one spelling.
#[rustfmt::skip]
const NAMED: [(&str, u8); 10] = [
    ("&amp;", b'&'), ("&lt;", b'<'), ("&gt;", b'>'), ("&quot;", b'"'), ("&apos;", b'\''),
    ("\\n", b'\n'), ("\\r", b'\r'), ("\\t", b'\t'), ("\\b", 8), ("\\f", 12),
];

/// Some secrets, and what finds them.
#[derive(Clone, Default)]
pub struct Mask {
    secrets: BTreeSet<String>,
    finder: OnceLock<Option<Arc<Finder>>>,
}

impl Mask {
    /// Hides this text, and each of its lines, as a log shows them.
    pub fn add(&mut self, secret: &str) {
        let parts = std::iter::once(secret).chain(secret.lines().map(str::trim));
        self.secrets.extend(parts.filter(|part| part.len() >= SHORTEST).map(str::to_owned));
        self.finder.take();
    }

    /// `None`: the secrets are too long together.
    pub fn finder(&self) -> Option<Arc<Finder>> {
        let build = || {
            if self.secrets.iter().map(String::len).sum::<usize>() > MOST_BYTES {
                return None;
            }
            let all: BTreeSet<Vec<u8>> = self.secrets.iter().flat_map(|secret| patterns(secret)).collect();
            Finder::builder().prefilter(false).build(&all).ok().map(Arc::new)
        };
        self.finder.get_or_init(build).clone()
    }

    /// The text with every secret hidden, and what a cut may have left of one.
    pub fn text(&self, text: &str) -> String {
        self.lines(&[text]).concat()
    }

    /// Lines of a log: a secret may be broken over several of them, or cut.
    pub fn lines<T: Borrow<str>>(&self, lines: &[T]) -> Vec<String> {
        self.pieces(lines, "\n", true)
    }

    /// A list of texts, of which several may hold one secret together; `None`: nothing is hidden, or it is another list.
    pub fn list(&self, json: &str) -> Option<String> {
        let texts: Vec<String> = serde_json::from_str(json).ok()?;
        let shown = self.pieces(&texts, "", false);
        if shown == texts { None } else { serde_json::to_string(&shown).ok() }
    }

    /// Texts that follow each other with this between them: what is hidden stands where it begins.
    fn pieces<T: Borrow<str>>(&self, texts: &[T], between: &str, cut: bool) -> Vec<String> {
        if self.secrets.is_empty() {
            return texts.iter().map(|text| text.borrow().to_owned()).collect();
        }
        let Some(finder) = self.finder() else { return vec![HIDDEN.to_owned(); texts.len()] };
        let (whole, mut from) = (texts.join(between), 0);
        let mut found = find(&finder, whole.as_bytes());
        if cut {
            beside_cuts(&whole, reach(&finder)).for_each(|place| add(&mut found, place));
        }
        let shown = |text: &T| {
            let shown = hide(text.borrow().as_bytes(), from, &found, false);
            from += text.borrow().len() + between.len();
            String::from_utf8_lossy(&shown).into_owned()
        };
        texts.iter().map(shown).collect()
    }

    /// The answer of a tool with the secrets hidden that stand in its texts and numbers; of the names of members those
    /// of `names` alone. `None`: there is none. It stays one JSON document.
    pub fn answer(&self, json: &str, names: &Mask) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        let (mut shown, mut rest, mut changed) = (String::new(), json, 0);
        while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
            let (before, after) = rest.split_at(start);
            let mut tokens = serde_json::Deserializer::from_str(after).into_iter::<&RawValue>();
            let Some(Ok(token)) = tokens.next() else { return Some(format!("\"{HIDDEN}\"")) };
            rest = &after[token.get().len()..];
            shown.push_str(before);
            // A number is its own text.
            let text = serde_json::from_str(token.get()).unwrap_or_else(|_| token.get().to_owned());
            let is_name = rest.starts_with(':');
            let mut hidden = if is_name { names } else { self }.pieces(&[text.as_str()], "", false).concat();
            if hidden == text {
                shown.push_str(token.get());
                continue;
            }
            // Names that become equal stay apart.
            changed += usize::from(is_name);
            hidden += &if is_name && changed > 1 { format!(" ({changed})") } else { String::new() };
            shown += &Value::String(hidden).to_string();
        }
        shown += rest;
        (shown != json).then_some(shown)
    }

    /// What can be shown of a text once this piece of it has come; `None`: nothing more comes.
    pub fn piece(&self, begun: &mut Option<Search>, piece: Option<&str>) -> String {
        if self.secrets.is_empty() {
            return piece.unwrap_or_default().to_owned();
        }
        let Some(finder) = self.finder() else { return piece.map_or("", |_| HIDDEN).to_owned() };
        let mut search = begun.take().unwrap_or_else(|| Search::new(finder, false));
        let shown = search.push(piece.map(str::as_bytes));
        *begun = piece.map(|_| search);
        String::from_utf8_lossy(&shown).into_owned()
    }
}

/// The first `most` bytes of a text, and a mark where something was cut.
pub fn head(text: &str, most: usize) -> String {
    if text.len() <= most { text.to_owned() } else { text[..text.floor_char_boundary(most)].to_owned() + CUT }
}

/// All patterns of some secrets.
pub type Finder = NFA;

/// How many bytes of a text may belong to a secret that is not whole yet: each of its characters can be encoded twice.
fn reach(finder: &Finder) -> usize {
    2 * LONGEST_CODE * (finder.max_pattern_len() + LONGEST_CODE)
}

/// What a secret is searched as: itself, decoded as a reading of a text is, and what its bytes alone decide of its
/// base64 at each place in a group of three.
fn patterns(secret: &str) -> Vec<Vec<u8>> {
    let decoded = |text: &[u8], whole: bool| -> Vec<u8> {
        let reading: Vec<Unit> = text.iter().map(|byte| (*byte, 0..0)).collect();
        decode(&reading, whole).into_iter().map(|(byte, _)| byte).collect()
    };
    let once = decoded(secret.as_bytes(), true);
    // What follows the secret in a text may be read with its last signs.
    let ends = [decoded(secret.as_bytes(), false), decoded(&once, false)];
    let mut found: Vec<Vec<u8>> = [secret.into(), decoded(&once, true), once].into_iter().chain(ends).collect();
    for before in 0..3 {
        let bytes = [&[0; 2][..before], secret.as_bytes()].concat();
        let decided = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        found.push(STANDARD_NO_PAD.encode(bytes).as_bytes()[decided].to_vec());
    }
    found.retain(|pattern| pattern.len() >= SHORTEST);
    found.iter_mut().flatten().for_each(|byte| *byte = fold(*byte));
    found
}

/// Letters of either case, both alphabets of base64, and the blank of a form are one.
fn fold(byte: u8) -> u8 {
    match byte {
        b' ' | b'-' => b'+',
        b'_' => b'/',
        other => other.to_ascii_lowercase(),
    }
}

/// One search through a text that comes in pieces, and gives out what no secret can begin in any more.
pub struct Search {
    finder: Arc<Finder>,
    /// Secrets are overwritten. Otherwise `HIDDEN` stands where they begin.
    equal_length: bool,
    /// The end of the text, which was not given out: a secret may begin in it.
    held: Vec<u8>,
}

impl Search {
    pub fn new(finder: Arc<Finder>, equal_length: bool) -> Search {
        Search { finder, equal_length, held: Vec::new() }
    }

    /// Takes the next piece in, and gives out what is settled; `None`: nothing more comes.
    pub fn push(&mut self, piece: Option<&[u8]>) -> Vec<u8> {
        self.held.extend_from_slice(piece.unwrap_or_default());
        let (reach, mut end) = (reach(&self.finder), self.held.len());
        if piece.is_some() {
            // What is held back is searched again: not for each byte that comes.
            if end < reach + reach / 8 {
                return Vec::new();
            }
            // Characters stay whole.
            let begins = |at: &usize| self.held[*at] & 0xC0 != 0x80;
            end = (end - reach - 3..=end - reach).rev().find(begins).unwrap_or(end - reach);
        }
        let found = find(&self.finder, &self.held);
        // A secret that begins before the end is whole.
        end = found.iter().rfind(|secret| secret.start < end).map_or(end, |secret| secret.end.max(end));
        let settled: Vec<u8> = self.held.drain(..end).collect();
        hide(&settled, 0, &found, self.equal_length)
    }
}

/// Where secrets stand in a text: in order, those that overlap as one.
fn find(finder: &Finder, text: &[u8]) -> Vec<Range<usize>> {
    let (reach, mut found) = (reach(finder), Vec::new());
    // In blocks: a reading takes more memory than its text.
    let length = reach.max(1 << 16);
    for from in (0..text.len()).step_by(length) {
        let block = from.saturating_sub(reach)..text.len().min(from + length);
        let mut reading: Vec<Unit> = block.map(|at| (text[at], at..at + 1)).collect();
        for decodings in 0..3 {
            if decodings > 0 {
                reading = decode(&reading, true);
            }
            let mut state = finder.start_state(Anchored::No).unwrap_or_default();
            for (at, (byte, place)) in reading.iter().enumerate() {
                state = finder.next_state(Anchored::No, state, fold(*byte));
                if finder.is_match(state) {
                    // The first is the longest: the others are ends of it.
                    let length = finder.pattern_len(finder.match_pattern(state, 0));
                    add(&mut found, reading[at + 1 - length].1.start..place.end);
                }
            }
        }
    }
    found
}

/// Adds a place to places in order; those that overlap become one.
fn add(found: &mut Vec<Range<usize>>, place: Range<usize>) {
    let first = found.partition_point(|other| other.end <= place.start);
    let after = found.partition_point(|other| other.start < place.end);
    let start = found[first..after].first().map_or(place.start, |other| other.start.min(place.start));
    let end = found[first..after].last().map_or(place.end, |other| other.end.max(place.end));
    found.splice(first..after, std::iter::once(start..end));
}

/// The places beside cuts: what stands there may be a part of a secret.
fn beside_cuts(text: &str, reach: usize) -> impl Iterator<Item = Range<usize>> {
    let mark = '…'.len_utf8();
    let ends = text.match_indices("[…").map(|(at, _)| at).chain(text.ends_with('…').then(|| text.len() - mark));
    let starts = text.match_indices("…]\n").map(|(at, mark)| at + mark.len());
    let starts = starts.chain(text.starts_with('…').then_some(mark));
    let places = ends.map(move |at| at.saturating_sub(reach)..at);
    places.chain(starts.map(move |at| at..text.len().min(at + reach))).filter(|place| !place.is_empty())
}

/// A piece of a text, which begins at `from`, with the secrets hidden.
fn hide(piece: &[u8], from: usize, found: &[Range<usize>], equal_length: bool) -> Vec<u8> {
    let (mut shown, mut done) = (Vec::with_capacity(piece.len()), 0);
    let first = found.partition_point(|secret| secret.end <= from);
    for secret in found[first..].iter().take_while(|secret| secret.start < from + piece.len()) {
        let (start, end) = (secret.start.saturating_sub(from), piece.len().min(secret.end - from));
        shown.extend_from_slice(&piece[done..start]);
        if equal_length {
            shown.resize(shown.len() + end - start, b'*');
        } else if secret.start >= from {
            shown.extend_from_slice(HIDDEN.as_bytes());
        }
        done = end;
    }
    shown.extend_from_slice(&piece[done..]);
    shown
}

/// A byte of a reading, and the place in the text that it stands for.
type Unit = (u8, Range<usize>);

/// Decodes `%XX`, `\uXXXX`, `\x`, `&#n;`, `&lt;` and their like, in any mixture; what is none stands for itself. A line
/// break and its blanks are skipped: base64 has lines. Without `whole` as far as that does not depend on what follows.
fn decode(reading: &[Unit], whole: bool) -> Vec<Unit> {
    let bytes: Vec<u8> = reading.iter().map(|(byte, _)| *byte).collect();
    let (mut decoded, mut at, mut skipped) = (Vec::with_capacity(bytes.len()), 0, 0);
    while at < bytes.len() {
        let ahead = &bytes[at..bytes.len().min(at + LONGEST_CODE)];
        let (length, character) = match character(ahead) {
            Some(code) => code,
            None if !whole && ahead.len() < LONGEST_CODE && b"%\\&".contains(&ahead[0]) => break,
            None => (1, vec![ahead[0]]),
        };
        let place = reading[at].1.start..reading[at + length - 1].1.end;
        at += length;
        for byte in character {
            let blank = matches!(byte, b'\r' | b'\n') || skipped > 0 && matches!(byte, b' ' | b'\t');
            skipped = if blank && skipped < LONGEST_CODE { skipped + 1 } else { 0 };
            if skipped == 0 {
                decoded.push((byte, place.clone()));
            }
        }
    }
    decoded
}

/// How many of these bytes stand for the encoded character that they begin with, and its bytes.
fn character(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let number = |at: Range<usize>, radix| u32::from_str_radix(str::from_utf8(bytes.get(at)?).ok()?, radix).ok();
    let byte = |length: usize, value: u32| Some((length, vec![u8::try_from(value).ok()?]));
    let char = |length: usize, value: u32| Some((length, char::from_u32(value)?.to_string().into_bytes()));
    // A number of any length up to this sign.
    let until = |from: usize, end: u8, radix: u32| {
        let digits = bytes[from..].iter().position(|b| *b == end)?;
        char(from + digits + 1, number(from..from + digits, radix).filter(|value| *value > 0)?)
    };
    match *bytes {
        [b'%', ..] => byte(3, number(1..3, 16)?),
        [b'\\', b'x', ..] => byte(4, number(2..4, 16)?),
        [b'\\', b'u', b'{', ..] => until(3, b'}', 16),
        [b'\\', b'u', ..] => match number(2..6, 16)? {
            high @ 0xD800..=0xDBFF if bytes.get(6..8) == Some(b"\\u") => {
                let low = number(8..12, 16)?.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
                char(12, 0x10000 + ((high - 0xD800) << 10) + low)
            }
            unit => char(6, unit),
        },
        // A sign stands for itself behind a backslash, unless it may begin another encoded character.
        [b'\\', sign, ..] if sign.is_ascii_punctuation() && !b"%&".contains(&sign) => byte(2, sign.into()),
        [b'&', b'#', b'x' | b'X', ..] => until(3, b';', 16),
        [b'&', b'#', ..] => until(2, b';', 10),
        [b'&' | b'\\', ..] => {
            let is = |name: &str| bytes.get(..name.len()).is_some_and(|b| b.eq_ignore_ascii_case(name.as_bytes()));
            NAMED.iter().find(|(name, _)| is(name)).map(|(name, byte)| (name.len(), vec![*byte]))
        }
        _ => None,
    }
}

/// A value that may hold a secret (a variable, an argument): `Debug` shows nothing of it. Serde does: messages between
/// our own processes carry it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
