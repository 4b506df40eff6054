//! Masks secrets in what leaves this host: answers of hosts, output, logs, records and reports.
//!
//! A text is searched in three readings: as it is, decoded character by character, and decoded a second time. Each is
//! searched for the secrets and their base64, and a match is mapped back to bytes of the text. A streaming search holds
//! back a constant number of bytes, and masks as many beside a cut. That number depends only on the length of the
//! longest secret: if it depended on the text, it would confirm a guess.

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// Stands where a secret stood.
pub const HIDDEN: &str = "***";
/// A shorter text is not searched for: it would be found in ordinary words.
pub const MIN_SECRET_BYTES: usize = 8;
/// Stands where a text was cut: `…` at its start or end, `[…]` within it, and in a log a line `[… so many bytes …]`.
pub const CUT: &str = "[…]";
/// Most bytes of all secrets together; beyond it, whole texts are hidden. The search takes up to ten times as much.
const MAX_SECRETS_BYTES: usize = 100 * 1024;
/// Longest encoded character, bytes: two halves as `\ud83d\ude00`.
const MAX_CODE_BYTES: usize = 12;
/// Most bytes of a text that one character of a secret becomes when it is encoded twice.
const SPREAD: usize = 2 * MAX_CODE_BYTES;
/// Bytes that are decoded at a time.
const CHUNK_BYTES: usize = 4096;
const NAMED: [(&[u8], u8); 5] =
    [(b"&amp;", b'&'), (b"&lt;", b'<'), (b"&gt;", b'>'), (b"&quot;", b'"'), (b"&apos;", b'\'')];

/// A set of secrets, and the automaton that finds them.
#[derive(Clone, Default)]
pub struct Mask {
    secrets: BTreeSet<String>,
    /// Their length together; they are not kept once it is over `MAX_SECRETS_BYTES`.
    bytes: usize,
    finder: OnceLock<Option<Arc<Finder>>>,
}

impl Mask {
    /// Hides this text, and each of its lines, as a log shows them.
    pub fn add(&mut self, secret: &str) {
        let parts = std::iter::once(secret).chain(secret.lines().map(str::trim));
        parts.filter(|part| part.len() >= MIN_SECRET_BYTES).for_each(|part| self.insert(part));
    }

    pub fn join(&mut self, other: Mask) {
        self.finder.take();
        self.bytes = if other.is_over() { other.bytes } else { self.bytes };
        other.secrets.iter().for_each(|secret| self.insert(secret));
    }

    fn insert(&mut self, secret: &str) {
        self.finder.take();
        if self.is_over() || self.secrets.contains(secret) {
            return;
        }
        self.bytes += secret.len();
        if self.is_over() {
            self.secrets.clear();
        } else {
            self.secrets.insert(secret.to_owned());
        }
    }

    fn is_over(&self) -> bool {
        self.bytes > MAX_SECRETS_BYTES
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// `None`: the secrets are too long together.
    pub fn finder(&self) -> Option<Arc<Finder>> {
        let find = || Finder::new(&self.secrets).filter(|_| !self.is_over()).map(Arc::new);
        self.finder.get_or_init(find).clone()
    }

    /// The text with every secret hidden, and also the bytes beside a cut, which may be a part of one.
    pub fn text(&self, text: &str) -> String {
        self.pieces(&[text], "", true).remove(0)
    }

    /// The text with every secret hidden that is complete in it.
    pub fn whole(&self, text: &str) -> String {
        self.pieces(&[text], "", false).remove(0)
    }

    /// Lines of a log: a secret may be broken over several of them, or cut.
    pub fn lines(&self, lines: &[String]) -> Vec<String> {
        self.pieces(lines, "\n", true)
    }

    /// A JSON list of strings with the secrets hidden, also one that spans several strings. `None`: nothing was hidden,
    /// or the list holds other values.
    pub fn list(&self, json: &str) -> Option<String> {
        let texts: Vec<String> = serde_json::from_str(json).ok()?;
        let shown = self.pieces(&texts, "", false);
        if shown == texts { None } else { serde_json::to_string(&shown).ok() }
    }

    /// Texts that follow one another, with `between` between them. `***` stands in the text where a secret begins.
    fn pieces<T: AsRef<str>>(&self, texts: &[T], between: &str, cut: bool) -> Vec<String> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        if self.is_empty() || texts.iter().all(|text| text.is_empty()) {
            return texts.into_iter().map(str::to_owned).collect();
        }
        let Some(finder) = self.finder() else { return vec![HIDDEN.to_owned(); texts.len()] };
        let whole = texts.join(between);
        let mut places = finder.all(whole.as_bytes());
        if cut {
            places.extend(beside_cuts(&whole, finder.reach()));
            places.sort_by_key(|place| place.start);
        }
        let mut found = Vec::new();
        places.into_iter().for_each(|place| add(&mut found, place));
        let mut next = 0;
        let shown = |text: &str| {
            let from = next;
            next += text.len() + between.len();
            text_of(&mask(text.as_bytes(), from, &found, false))
        };
        texts.into_iter().map(shown).collect()
    }

    /// A tool's JSON answer with the secrets in its strings and numbers hidden; in member names only those of `names`.
    /// `None`: nothing was hidden. The result is still one JSON document.
    pub fn answer(&self, json: &str, names: &Mask) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let shown = self.tokens(json, names).unwrap_or_else(|| format!("\"{HIDDEN}\""));
        (shown != json).then_some(shown)
    }

    fn tokens(&self, json: &str, names: &Mask) -> Option<String> {
        let (mut shown, mut rest, mut changed) = (String::with_capacity(json.len()), json, 0);
        while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
            let (before, after) = rest.split_at(start);
            let mut tokens = serde_json::Deserializer::from_str(after).into_iter::<&RawValue>();
            let token = tokens.next()?.ok()?.get();
            rest = &after[token.len()..];
            let text = if token.starts_with('"') { serde_json::from_str(token).ok()? } else { token.to_owned() };
            let is_name = rest.starts_with(':');
            let mut hidden = if is_name { names } else { self }.whole(&text);
            shown.push_str(before);
            if hidden == text {
                shown.push_str(token);
                continue;
            }
            if is_name {
                // A number keeps changed names distinct.
                changed += 1;
                hidden += &if changed > 1 { format!(" ({changed})") } else { String::new() };
            }
            shown.push_str(&serde_json::to_string(&hidden).ok()?);
        }
        Some(shown + rest)
    }

    /// Takes the next piece of a text, and returns what can be shown of the text by now. `None`: the text is complete.
    pub fn piece(&self, stream: &mut TextStream, piece: Option<&str>) -> String {
        let text = piece.unwrap_or_default();
        if self.is_empty() {
            return text.to_owned();
        }
        let Some(finder) = self.finder() else {
            stream.hid |= piece.is_some();
            return piece.map_or("", |_| HIDDEN).to_owned();
        };
        let mut search = stream.search.take().unwrap_or_else(|| Search::new(finder, false));
        let shown = if piece.is_some() { search.push(text.as_bytes()) } else { search.finish() };
        stream.hid |= search.hid;
        stream.search = piece.map(|_| search);
        text_of(&shown)
    }
}

/// A text that comes in pieces.
#[derive(Default)]
pub struct TextStream {
    search: Option<Search>,
    /// Something was hidden.
    pub hid: bool,
}

/// The first `most` bytes of a text, and a mark where something was cut.
pub fn head(text: &str, most: usize) -> String {
    if text.len() <= most { text.to_owned() } else { text[..text.floor_char_boundary(most)].to_owned() + CUT }
}

/// The ranges of `reach` bytes beside cuts, which may be parts of a secret.
fn beside_cuts(text: &str, reach: usize) -> impl Iterator<Item = Range<usize>> {
    let starts =
        text.match_indices("[…").map(|(at, _)| at).chain(text.ends_with('…').then(|| text.len() - '…'.len_utf8()));
    let ends = text.match_indices("…]\n").map(|(at, mark)| at + mark.len());
    let ends = ends.chain(text.starts_with('…').then_some('…'.len_utf8()));
    let before = starts.map(move |at| at.saturating_sub(reach)..at);
    before.chain(ends.map(move |at| at..text.len().min(at + reach))).filter(|place| !place.is_empty())
}

/// Bytes as text. Lossy, because a match can begin or end within a character.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All patterns of some secrets.
pub struct Finder {
    patterns: NFA,
    start: StateID,
    /// The length of the longest pattern.
    longest: usize,
}

impl Finder {
    fn new(secrets: &BTreeSet<String>) -> Option<Finder> {
        let all: BTreeSet<_> = secrets.iter().flat_map(|secret| patterns(secret)).collect();
        let longest = all.iter().map(Vec::len).max().unwrap_or(1);
        let patterns = NFA::builder().prefilter(false).build(&all).ok()?;
        let start = patterns.start_state(Anchored::No).ok()?;
        Some(Finder { patterns, start, longest })
    }

    /// How many bytes of a text may belong to a secret that is not whole yet.
    pub fn reach(&self) -> usize {
        SPREAD * (self.longest + MAX_CODE_BYTES)
    }

    /// Where secrets stand in a whole text: in order, those that overlap as one.
    pub fn all(self: &Arc<Finder>, text: &[u8]) -> Vec<Range<usize>> {
        let mut search = Search::new(Arc::clone(self), true);
        search.read(text);
        search.take(Vec::new(), true);
        search.found
    }
}

/// The patterns by which a secret is found: itself, its decoded forms, and, for each of the three alignments of base64,
/// the characters that its bytes alone determine.
fn patterns(secret: &str) -> Vec<Vec<u8>> {
    let once = decode(secret.as_bytes(), true);
    // The text after a secret may change how its last characters are decoded.
    let readings = [decode(secret.as_bytes(), false), decode(&once, false), decode(&once, true)];
    let latin: Option<Vec<u8>> = secret.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let mut found: Vec<Vec<u8>> = [secret.into(), once].into_iter().chain(readings).chain(latin).collect();
    for before in 0..3 {
        let bytes = [&[0; 2][..before], secret.as_bytes()].concat();
        let decided = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        found.push(STANDARD_NO_PAD.encode(bytes).as_bytes()[decided].to_vec());
    }
    found.retain(|pattern| pattern.len() >= MIN_SECRET_BYTES);
    found.iter_mut().flatten().for_each(|byte| *byte = fold(*byte));
    found
}

/// Makes letters of either case equal, both alphabets of base64, and the space of a form and `+`.
fn fold(byte: u8) -> u8 {
    match byte {
        b' ' | b'-' => b'+',
        b'_' => b'/',
        other => other.to_ascii_lowercase(),
    }
}

/// A search through a text that comes in pieces. Returns the bytes in which no secret can begin any more.
pub struct Search {
    finder: Arc<Finder>,
    /// True: a secret is overwritten with as many `*`. False: `HIDDEN` replaces it.
    equal_length: bool,
    /// The text as it is, decoded once, and decoded twice.
    readings: [Reading; 3],
    decoders: [Decoder; 2],
    found: Vec<Range<usize>>,
    /// Bytes that were read.
    read: usize,
    /// The last bytes read, which are held back: a secret may begin in them.
    text: VecDeque<u8>,
    /// Something was hidden.
    pub hid: bool,
}

impl Search {
    pub fn new(finder: Arc<Finder>, equal_length: bool) -> Search {
        let readings = [(); 3].map(|()| Reading { state: finder.start, places: VecDeque::new() });
        let (decoders, found, text) = Default::default();
        Search { finder, equal_length, readings, decoders, found, read: 0, text, hid: false }
    }

    /// Takes bytes, and returns those that can be shown by now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.read(bytes);
        self.text.extend(bytes);
        let mut length = self.text.len().saturating_sub(self.finder.reach());
        // Do not split a character.
        for _ in 0..3 {
            length -= usize::from(length > 0 && self.text.get(length).is_some_and(|byte| byte & 0xC0 == 0x80));
        }
        self.release(length)
    }

    /// The text is complete: returns the bytes held back.
    pub fn finish(&mut self) -> Vec<u8> {
        self.take(Vec::new(), true);
        self.release(self.text.len())
    }

    fn release(&mut self, length: usize) -> Vec<u8> {
        let from = self.read - self.text.len();
        let piece: Vec<u8> = self.text.drain(..length).collect();
        let shown = mask(&piece, from, &self.found, self.equal_length);
        self.hid |= self.found.first().is_some_and(|secret| secret.start < from + length);
        self.found.retain(|secret| secret.end > from + length);
        shown
    }

    fn read(&mut self, bytes: &[u8]) {
        for step in bytes.chunks(CHUNK_BYTES) {
            let units = units(step, self.read);
            self.read += step.len();
            self.take(units, false);
        }
    }

    /// Searches the next units for secrets; `last`: no more follow.
    fn take(&mut self, mut units: Vec<Unit>, last: bool) {
        for (number, reading) in self.readings.iter_mut().enumerate() {
            units.iter().for_each(|unit| reading.read(&self.finder, *unit, &mut self.found));
            if let Some(decoder) = self.decoders.get_mut(number) {
                units = decoder.decode(units, last);
            }
        }
    }
}

/// A byte of a reading, and the bytes of the text that it stands for.
#[derive(Clone, Copy)]
struct Unit {
    byte: u8,
    from: usize,
    to: usize,
}

fn units(text: &[u8], at: usize) -> Vec<Unit> {
    text.iter().zip(at..).map(|(byte, from)| Unit { byte: *byte, from, to: from + 1 }).collect()
}

struct Reading {
    state: StateID,
    /// Where the last bytes of the reading stand in the text, as many as the longest pattern has.
    places: VecDeque<usize>,
}

impl Reading {
    fn read(&mut self, finder: &Finder, unit: Unit, found: &mut Vec<Range<usize>>) {
        if self.places.len() == finder.longest {
            self.places.pop_front();
        }
        self.places.push_back(unit.from);
        self.state = finder.patterns.next_state(Anchored::No, self.state, fold(unit.byte));
        if finder.patterns.is_match(self.state) {
            // The first match is the longest: the others are suffixes of it.
            let length = finder.patterns.pattern_len(finder.patterns.match_pattern(self.state, 0));
            add(found, self.places[self.places.len() - length]..unit.to);
        }
    }
}

/// Adds a place to places in order; those that overlap become one.
fn add(found: &mut Vec<Range<usize>>, place: Range<usize>) {
    let first = found.partition_point(|other| other.end <= place.start);
    let after = found.partition_point(|other| other.start < place.end);
    let start = found[first..after].first().map_or(place.start, |other| other.start.min(place.start));
    let end = found[first..after].last().map_or(place.end, |other| other.end.max(place.end));
    found.splice(first..after, std::iter::once(start..end));
}

/// A piece of a text, which begins at `from`, with the secrets hidden.
fn mask(piece: &[u8], from: usize, found: &[Range<usize>], equal_length: bool) -> Vec<u8> {
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

/// Decodes `%XX`, `\uXXXX`, `\x`, `&#n;`, `&lt;` and their like, in any mixture. What is not an encoding stands for
/// itself, and so does a longer one than `MAX_CODE_BYTES`. A line break and blanks after it are skipped: base64 is
/// broken into lines.
#[derive(Default)]
struct Decoder {
    /// Bytes that are not decoded yet. The first may begin an encoded character.
    waiting: VecDeque<Unit>,
    /// Bytes of a line break and its blanks that were skipped.
    skipped: usize,
}

impl Decoder {
    /// `last`: nothing more comes.
    fn decode(&mut self, units: Vec<Unit>, last: bool) -> Vec<Unit> {
        self.waiting.extend(units);
        let mut decoded = Vec::with_capacity(self.waiting.len());
        while let Some(Unit { byte, from, .. }) = self.waiting.front().copied() {
            let mut code = None;
            if matches!(byte, b'%' | b'\\' | b'&') {
                let ahead: Vec<u8> = self.waiting.iter().take(MAX_CODE_BYTES).map(|unit| unit.byte).collect();
                code = character(&ahead);
                if code.is_none() && !last && ahead.len() < MAX_CODE_BYTES {
                    break;
                }
            }
            let (length, bytes) = code.unwrap_or_else(|| (1, vec![byte]));
            let to = self.waiting[length - 1].to;
            self.waiting.drain(..length);
            for byte in bytes {
                let blank = matches!(byte, b'\r' | b'\n') || self.skipped > 0 && matches!(byte, b' ' | b'\t');
                self.skipped = if blank && self.skipped < MAX_CODE_BYTES { self.skipped + 1 } else { 0 };
                if self.skipped == 0 {
                    decoded.push(Unit { byte, from, to });
                }
            }
        }
        decoded
    }
}

/// A text decoded once; without `last` as far as that does not depend on what follows it.
fn decode(text: &[u8], last: bool) -> Vec<u8> {
    Decoder::default().decode(units(text, 0), last).iter().map(|unit| unit.byte).collect()
}

/// How many of these bytes stand for the encoded character that they begin with, and its bytes.
fn character(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let hex = |digits: Range<usize>| number(bytes.get(digits)?, 16);
    let byte = |length: usize, value: u32| Some((length, vec![u8::try_from(value).ok()?]));
    let char = |length: usize, value: u32| Some((length, char::from_u32(value)?.to_string().into_bytes()));
    // A number of any length up to this sign.
    let until = |from: usize, end: u8, radix: u32| {
        let digits = bytes[from..].iter().position(|b| *b == end)?;
        char(from + digits + 1, number(&bytes[from..from + digits], radix).filter(|value| *value > 0)?)
    };
    match *bytes {
        [b'%' | b'\\', b'u', b'{', ..] => until(3, b'}', 16),
        [mark @ (b'%' | b'\\'), b'u', ..] => match hex(2..6)? {
            high @ 0xD800..=0xDBFF if bytes.get(6..8) == Some(&[mark, b'u']) => {
                let low = hex(8..12).filter(|low| (0xDC00..=0xDFFF).contains(low))?;
                char(12, 0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)
            }
            unit => char(6, unit),
        },
        [b'%', ..] => byte(3, hex(1..3)?),
        [b'\\', b'x', ..] => byte(4, hex(2..4)?),
        [b'\\', b'U', ..] => char(10, hex(2..10)?),
        [b'\\', b'n', ..] => byte(2, 10),
        [b'\\', b'r', ..] => byte(2, 13),
        [b'\\', b't', ..] => byte(2, 9),
        [b'\\', b'b', ..] => byte(2, 8),
        [b'\\', b'f', ..] => byte(2, 12),
        // A sign stands for itself behind a backslash, unless it may begin another encoded character.
        [b'\\', sign, ..] if sign.is_ascii_punctuation() && !b"%&".contains(&sign) => byte(2, sign.into()),
        [b'&', b'#', b'x' | b'X', ..] => until(3, b';', 16),
        [b'&', b'#', ..] => until(2, b';', 10),
        [b'&', ..] => {
            let is = |name: &[u8]| bytes.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
            NAMED.iter().find(|(name, _)| is(name)).map(|(name, byte)| (name.len(), vec![*byte]))
        }
        _ => None,
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let digit = |value: u32, b: &u8| Some(value.saturating_mul(radix).saturating_add(char::from(*b).to_digit(radix)?));
    digits.iter().try_fold(0, digit)
}

/// A value that may hold a secret (a variable, an argument): `Debug` shows nothing of it. Serde does: messages between
/// our own processes carry it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden<T>(pub T);

impl<T> Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
