//! Masks secrets in what leaves this host: answers of hosts, output, logs, records and reports.
//!
//! A text is searched in readings of code points: as it is, decoded character by character, and
//! decoded a second time. Encoded bytes are read as UTF-8, and again as Latin-1. Both sides are
//! case-folded. Each reading is searched for the secrets and their base64, and a match is mapped
//! back to bytes of the text. A streaming search holds back a constant number of bytes, and masks
//! as many beside a cut. That number depends only on the length of the longest secret: if it
//! depended on the text, it would confirm a guess.

use super::json;
use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// Stands where a secret stood.
pub const HIDDEN: &str = "***";
/// A shorter text is not searched for within others: it would be found in ordinary words.
pub const MIN_SECRET_BYTES: usize = 8;
/// Stands where a text was cut: `…` at its start or end, `[…]` within it, and in a log a line `[…
/// so many bytes …]`.
pub const CUT: &str = "[…]";
/// Most bytes of all secrets together; beyond it, whole texts are hidden. The search takes up to
/// ten times as much.
const MAX_SECRETS_BYTES: usize = 100 * 1024;
/// Most secrets that are hidden one by one in a document; with more, the whole document is hidden.
const MAX_PLACES: usize = 100_000;
/// Longest encoded character, bytes: two halves as `\ud83d\ude00`.
const MAX_CODE_BYTES: usize = 12;
/// Most bytes of a text that one byte of a secret becomes when it is encoded twice.
const SPREAD: usize = 2 * MAX_CODE_BYTES;
/// Bytes that are decoded at a time.
const CHUNK_BYTES: usize = 4096;
/// Stands between the texts of a document. It is not a character.
const BETWEEN: char = '\u{ffff}';
const NAMED: [(&[u8], char); 5] = [
    (b"&amp;", '&'),
    (b"&lt;", '<'),
    (b"&gt;", '>'),
    (b"&quot;", '"'),
    (b"&apos;", '\''),
];

/// A set of secrets, and the automaton that finds them.
#[derive(Clone, Default)]
pub struct Mask {
    /// Each with what stands in its place.
    secrets: BTreeMap<String, String>,
    /// Those that are too short to be searched for, folded: a whole value that is one of them is
    /// hidden.
    short: BTreeSet<String>,
    /// The length of `secrets` together; they are not kept once it is over `MAX_SECRETS_BYTES`.
    bytes: usize,
    finder: OnceLock<Option<Arc<Finder>>>,
}

impl Mask {
    /// Hides this text, and each of its lines, as a log shows them.
    pub fn add(&mut self, secret: &str) {
        self.add_as(secret, HIDDEN);
    }

    /// As `add`. A text that is too short to be searched for is hidden where it is a whole value.
    pub fn add_value(&mut self, secret: &str) {
        self.add(secret);
        if (1..MIN_SECRET_BYTES).contains(&secret.len()) {
            self.short.insert(fold_all(secret));
        }
    }

    /// As `add`; `shown` stands in its place.
    pub fn add_as(&mut self, secret: &str, shown: &str) {
        let parts = std::iter::once(secret).chain(secret.lines().map(str::trim));
        parts
            .filter(|part| part.len() >= MIN_SECRET_BYTES)
            .for_each(|part| self.insert(part, shown));
    }

    pub fn join(&mut self, other: Mask) {
        self.finder.take();
        self.bytes = if other.is_over() {
            other.bytes
        } else {
            self.bytes
        };
        other
            .secrets
            .iter()
            .for_each(|(secret, shown)| self.insert(secret, shown));
        self.short.extend(other.short);
    }

    fn insert(&mut self, secret: &str, shown: &str) {
        self.finder.take();
        if self.is_over() || self.secrets.contains_key(secret) {
            return;
        }
        self.bytes += secret.len();
        if self.is_over() {
            self.secrets.clear();
        } else {
            self.secrets.insert(secret.to_owned(), shown.to_owned());
        }
    }

    fn is_over(&self) -> bool {
        self.bytes > MAX_SECRETS_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.short.is_empty()
    }

    /// Whether a whole value is a secret that is too short to be searched for.
    fn is_short(&self, text: &str) -> bool {
        text.len() < SPREAD * MIN_SECRET_BYTES && self.short.contains(&fold_all(text))
    }

    /// `None`: the secrets are too long together.
    pub fn finder(&self) -> Option<Arc<Finder>> {
        self.finder
            .get_or_init(|| {
                Finder::new(&self.secrets)
                    .filter(|_| !self.is_over())
                    .map(Arc::new)
            })
            .clone()
    }

    /// The text with every secret hidden, and also the bytes beside a cut, which may be a part of
    /// one.
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

    /// Texts that follow one another, with `between` between them. `***` stands in the text where a
    /// secret begins.
    fn pieces<T: AsRef<str>>(&self, texts: &[T], between: &str, cut: bool) -> Vec<String> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        if self.is_empty() || texts.iter().all(|text| text.is_empty()) {
            return texts.into_iter().map(str::to_owned).collect();
        }
        let Some(finder) = self.finder() else {
            return vec![HIDDEN.to_owned(); texts.len()];
        };
        let whole = texts.join(between);
        let mut places = finder.places(whole.as_bytes());
        if cut && self.bytes > 0 {
            places.extend(beside_cuts(&whole, finder.reach()).map(|range| Place {
                range,
                pattern: None,
            }));
            places.sort_by_key(|place| place.range.start);
        }
        let mut found = Vec::new();
        places.into_iter().for_each(|place| add(&mut found, place));
        let mut next = 0;
        texts
            .into_iter()
            .map(|text: &str| {
                let from = next;
                next += text.len() + between.len();
                if self.is_short(text) {
                    HIDDEN.to_owned()
                } else {
                    text_of(&mask(text.as_bytes(), from, &found, Shown::Named(&finder)))
                }
            })
            .collect()
    }

    /// A tool's JSON answer with the secrets in its strings and numbers hidden; in member names
    /// only those of `host`. `joins`: texts that follow one another in a list may hold a secret
    /// together. `None`: nothing was hidden. The result is still one JSON document.
    pub fn answer(&self, json: &str, host: &Mask, joins: bool) -> Option<String> {
        self.document(json, host, Strings::Values { joined: joins }, false)
            .unwrap_or_else(|| Some(format!("\"{HIDDEN}\"")))
    }

    /// A text that may be a JSON document, with every secret hidden that is complete in it, also in
    /// names of members.
    pub fn text_or_document(&self, text: &str) -> String {
        let may_be = text.starts_with(['{', '[']);
        if may_be && serde_json::from_str::<IgnoredAny>(text).is_ok() {
            let hidden = self.answer(text, self, false);
            return hidden.unwrap_or_else(|| text.to_owned());
        }
        self.whole(text)
    }

    /// A JSON text for a person, with the name of each secret in its place.
    pub fn record(&self, json: &str) -> Option<String> {
        self.document(json, self, Strings::Values { joined: false }, true)
            .unwrap_or_else(|| Some(format!("\"{HIDDEN}\"")))
    }

    /// The outer `None`: the document cannot be searched, or holds too many secrets.
    fn document(
        &self,
        json: &str,
        host: &Mask,
        strings: Strings,
        is_named: bool,
    ) -> Option<Option<String>> {
        let values = self.in_document(json, strings)?;
        let names = host.in_document(json, Strings::Names)?;
        if values.is_empty() && names.is_empty() && self.short.is_empty() {
            return Some(None);
        }
        let finder = self.finder()?;
        let mut all = String::new();
        let mut done = 0;
        let mut changed = 0;
        for (at, token) in json::tokens(json).filter(|(_, token)| is_text_or_number(token)) {
            let is_name = is_member_name(json, at, token);
            let places = if is_name { &names } else { &values };
            let (inside, from) = inside(token, at);
            let show = if is_named {
                Shown::Named(&finder)
            } else {
                Shown::Hidden
            };
            let first = places.partition_point(|place| place.range.end <= from);
            let hidden = if places
                .get(first)
                .is_some_and(|place| place.range.start < from + inside.len())
            {
                text_of(&mask(inside.as_bytes(), from, places, show))
            } else if !is_name && self.is_short(&characters(token, at)) {
                HIDDEN.to_owned()
            } else {
                continue;
            };
            all += &json[done..at];
            done = at + token.len();
            // A number keeps changed names distinct.
            changed += usize::from(is_name);
            let count = if is_name && changed > 1 {
                format!(" ({changed})")
            } else {
                String::new()
            };
            all += &format!("\"{hidden}{count}\"");
        }
        Some((done > 0).then(|| all + &json[done..]))
    }

    /// Where secrets stand in these strings of a document.
    fn in_document(&self, json: &str, strings: Strings) -> Option<Vec<Place>> {
        if self.bytes == 0 {
            return Some(Vec::new());
        }
        let mut search = Search::new(self.finder()?, true);
        let mut units = Vec::new();
        let mut done = 0;
        for (at, token) in json::tokens(json) {
            let is_name = strings == Strings::Names;
            if !is_text_or_number(token) || is_member_name(json, at, token) != is_name {
                continue;
            }
            let is_joined = strings == Strings::Values { joined: true };
            if !(is_joined && &json[done..at] == ",") {
                units.push(Unit {
                    code: BETWEEN,
                    from: done,
                    to: at,
                });
            }
            done = at + token.len();
            for unit in units_of(token, at) {
                units.push(unit);
                if units.len() >= CHUNK_BYTES {
                    search.take(std::mem::take(&mut units), false);
                }
            }
            if search.found.len() > MAX_PLACES {
                return None;
            }
        }
        search.take(units, true);
        Some(search.found)
    }

    /// Takes the next piece of a text, and returns what can be shown of the text by now. `None`:
    /// the text is complete.
    pub fn piece(&self, stream: &mut TextStream, piece: Option<&str>) -> String {
        let text = piece.unwrap_or_default();
        if self.is_short(text) {
            let before = self.piece(stream, None);
            stream.hid = true;
            return before + HIDDEN;
        }
        if self.bytes == 0 {
            return text.to_owned();
        }
        let Some(finder) = self.finder() else {
            stream.hid |= piece.is_some();
            return piece.map_or("", |_| HIDDEN).to_owned();
        };
        let mut search = stream
            .search
            .take()
            .unwrap_or_else(|| Search::new(finder, false));
        let shown = if piece.is_some() {
            search.push(text.as_bytes())
        } else {
            search.finish()
        };
        stream.hid |= search.hid;
        stream.search = piece.map(|_| search);
        text_of(&shown)
    }
}

/// Which strings of a document are searched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strings {
    /// The names of members.
    Names,
    /// Texts and numbers. `joined`: those that follow one another in a list may hold a secret
    /// together.
    Values { joined: bool },
}

fn is_text_or_number(token: &str) -> bool {
    token.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

/// Whether this token of a compact document is the name of a member.
fn is_member_name(json: &str, at: usize, token: &str) -> bool {
    json.as_bytes().get(at + token.len()) == Some(&b':')
}

/// What is between the quotes of a text, or a number, and where it begins.
fn inside(token: &str, at: usize) -> (&str, usize) {
    let inside = token
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inside.map_or((token, at), |text| (text, at + 1))
}

/// The code points of a text or number in a document.
fn units_of(token: &str, at: usize) -> impl Iterator<Item = Unit> {
    let (mut rest, mut from) = inside(token, at);
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let escaped = if first == '\\' {
            character(rest.as_bytes())
        } else {
            None
        };
        let (length, code) = escaped.map_or((first.len_utf8(), first), |(length, code)| {
            (length, code.character())
        });
        let unit = Unit {
            code,
            from,
            to: from + length,
        };
        (rest, from) = (&rest[length..], unit.to);
        Some(unit)
    })
}

fn characters(token: &str, at: usize) -> String {
    units_of(token, at)
        .take(SPREAD * MIN_SECRET_BYTES)
        .map(|unit| unit.code)
        .collect()
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
    if text.len() <= most {
        text.to_owned()
    } else {
        text[..text.floor_char_boundary(most)].to_owned() + CUT
    }
}

/// The ranges of `reach` bytes beside cuts, which may be parts of a secret.
fn beside_cuts(text: &str, reach: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = text
        .match_indices("[…")
        .map(|(at, _)| at)
        .chain(text.ends_with('…').then(|| text.len() - '…'.len_utf8()));
    let ends = text.match_indices("…]\n").map(|(at, mark)| at + mark.len());
    let ends = ends.chain(text.starts_with('…').then_some('…'.len_utf8()));
    let before = starts.map(move |at| at.saturating_sub(reach)..at);
    before
        .chain(ends.map(move |at| at..text.len().min(at + reach)))
        .filter(|place| !place.is_empty())
}

/// Bytes as text. Lossy, because a piece can begin or end within a character.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All patterns of some secrets.
pub struct Finder {
    automaton: NFA,
    start: StateID,
    /// Of each pattern the number of its characters, and what stands in the place of its secret.
    patterns: Vec<(usize, String)>,
    /// The length of the longest pattern, bytes.
    longest: usize,
}

impl Finder {
    fn new(secrets: &BTreeMap<String, String>) -> Option<Finder> {
        let all: BTreeMap<_, _> = secrets
            .iter()
            .flat_map(|(secret, shown): (&String, &String)| {
                patterns(secret)
                    .into_iter()
                    .map(|pattern| (pattern, shown.clone()))
                    .collect::<Vec<_>>()
            })
            .collect();
        let longest = all.keys().map(String::len).max().unwrap_or(1);
        let automaton = NFA::builder().prefilter(false).build(all.keys()).ok()?;
        let start = automaton.start_state(Anchored::No).ok()?;
        let patterns = all
            .into_iter()
            .map(|(pattern, shown)| (pattern.chars().count(), shown))
            .collect();
        Some(Finder {
            automaton,
            start,
            patterns,
            longest,
        })
    }

    /// How many bytes of a text may belong to a secret that is not whole yet.
    pub fn reach(&self) -> usize {
        SPREAD * (self.longest + MAX_CODE_BYTES)
    }

    /// Where secrets stand in a whole text: in order, those that overlap as one.
    pub fn all(self: &Arc<Finder>, text: &[u8]) -> Vec<Range<usize>> {
        self.places(text)
            .into_iter()
            .map(|place| place.range)
            .collect()
    }

    fn places(self: &Arc<Finder>, text: &[u8]) -> Vec<Place> {
        let mut search = Search::new(Arc::clone(self), true);
        search.read(text);
        search.end();
        search.found
    }
}

/// Where a secret stands, and the pattern that found it. `None`: it may be a part of one.
#[derive(Clone)]
struct Place {
    range: Range<usize>,
    pattern: Option<usize>,
}

/// The patterns by which a secret is found: itself, its decoded forms, and, for each of the three
/// alignments of base64, the characters that its bytes alone determine.
fn patterns(secret: &str) -> Vec<String> {
    let mut found = vec![secret.to_owned()];
    for is_latin in [false, true] {
        // The text after a secret may change how its last characters are decoded.
        let once = decode(secret, Decoder::new(is_latin), true);
        found.extend([
            decode(secret, Decoder::new(is_latin), false),
            decode(&once, Decoder::new(is_latin), false),
            decode(&once, Decoder::new(is_latin), true),
        ]);
        found.push(once);
    }
    for before in 0..3 {
        let bytes = [&[0; 2][..before], secret.as_bytes()].concat();
        let decided = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        found.push(STANDARD_NO_PAD.encode(bytes)[decided].to_owned());
    }
    found.retain(|pattern| pattern.len() >= MIN_SECRET_BYTES);
    found.iter().map(|pattern| fold_all(pattern)).collect()
}

fn fold_all(text: &str) -> String {
    text.chars().map(fold).collect()
}

/// Makes letters of either case equal (Unicode's simple folding), both alphabets of base64, and the
/// space of a form and `+`.
fn fold(c: char) -> char {
    match c {
        ' ' | '-' => '+',
        '_' => '/',
        c if c.is_ascii() => c.to_ascii_lowercase(),
        c => {
            let upper = only(c, c.to_uppercase());
            only(upper, upper.to_lowercase())
        }
    }
}

/// The one character that `c` becomes, or itself where it becomes several.
fn only(c: char, mut changed: impl Iterator<Item = char>) -> char {
    match (changed.next(), changed.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

/// A search through a text that comes in pieces. Returns the bytes in which no secret can begin any
/// more.
pub struct Search {
    finder: Arc<Finder>,
    /// True: a secret is overwritten with as many `*`. False: `HIDDEN` replaces it.
    equal_length: bool,
    /// The text as it is.
    bytes: Utf8,
    reading: Reading,
    /// Decoded once, and decoded twice: encoded bytes as UTF-8, and as Latin-1.
    decoded: [[(Decoder, Reading); 2]; 2],
    /// How many code points in a row can be no part of an encoding: the decoded readings are then
    /// as the first one.
    plain: usize,
    found: Vec<Place>,
    /// Bytes that were read.
    read: usize,
    /// The last bytes read, which are held back: a secret may begin in them.
    text: VecDeque<u8>,
    /// Something was hidden.
    pub hid: bool,
}

impl Search {
    pub fn new(finder: Arc<Finder>, equal_length: bool) -> Search {
        let reading = Reading {
            state: finder.start,
            places: VecDeque::new(),
        };
        let decoded = [false, true]
            .map(|is_latin| [(); 2].map(|()| (Decoder::new(is_latin), reading.clone())));
        let (bytes, found, text) = Default::default();
        let plain = usize::MAX / 2;
        Search {
            finder,
            equal_length,
            bytes,
            reading,
            decoded,
            plain,
            found,
            read: 0,
            text,
            hid: false,
        }
    }

    /// Takes bytes, and returns those that can be shown by now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.read(bytes);
        self.text.extend(bytes);
        let mut length = self.text.len().saturating_sub(self.finder.reach());
        // Do not split a character.
        for _ in 0..3 {
            length -= usize::from(
                length > 0
                    && self
                        .text
                        .get(length)
                        .is_some_and(|byte| byte & 0xC0 == 0x80),
            );
        }
        self.release(length)
    }

    /// The text is complete: returns the bytes held back.
    pub fn finish(&mut self) -> Vec<u8> {
        self.end();
        self.release(self.text.len())
    }

    fn release(&mut self, length: usize) -> Vec<u8> {
        let from = self.read - self.text.len();
        let piece: Vec<u8> = self.text.drain(..length).collect();
        let shown = mask(
            &piece,
            from,
            &self.found,
            if self.equal_length {
                Shown::Stars
            } else {
                Shown::Hidden
            },
        );
        self.hid |= self
            .found
            .first()
            .is_some_and(|secret| secret.range.start < from + length);
        self.found.retain(|secret| secret.range.end > from + length);
        shown
    }

    fn read(&mut self, bytes: &[u8]) {
        for step in bytes.chunks(CHUNK_BYTES) {
            let mut units = Vec::with_capacity(step.len());
            for byte in step {
                self.bytes.push(
                    Unit {
                        code: char::from(*byte),
                        from: self.read,
                        to: self.read + 1,
                    },
                    &mut units,
                );
                self.read += 1;
            }
            self.take(units, false);
        }
    }

    fn end(&mut self) {
        let mut units = Vec::new();
        self.bytes.finish(&mut units);
        self.take(units, true);
    }

    /// Searches the next code points for secrets; `last`: no more follow.
    fn take(&mut self, units: Vec<Unit>, last: bool) {
        let is_same = self.plain >= self.finder.longest + SPREAD;
        let after = units
            .iter()
            .rev()
            .take_while(|unit| !matches!(unit.code, '%' | '\\' | '&' | '\r' | '\n'))
            .count();
        if is_same && after < units.len() {
            for (is_latin, chain) in [false, true].into_iter().zip(&mut self.decoded) {
                *chain = [(); 2].map(|()| (Decoder::new(is_latin), self.reading.clone()));
            }
        }
        self.reading.read(&self.finder, &units, &mut self.found);
        let is_plain = after == units.len();
        self.plain = if is_plain { self.plain + after } else { after };
        if is_same && is_plain {
            return;
        }
        for chain in &mut self.decoded {
            let mut read = Cow::Borrowed(&units);
            for (decoder, reading) in chain {
                read = Cow::Owned(decoder.decode(&read, last));
                reading.read(&self.finder, &read, &mut self.found);
            }
        }
    }
}

/// A code point of a reading, and the bytes of the text that it stands for.
#[derive(Clone, Copy)]
struct Unit {
    code: char,
    from: usize,
    to: usize,
}

/// Joins bytes to characters. A byte that is not UTF-8 is read as Latin-1.
#[derive(Default)]
struct Utf8 {
    /// The bytes of a character that is not complete.
    waiting: Vec<Unit>,
}

impl Utf8 {
    fn push(&mut self, byte: Unit, to: &mut Vec<Unit>) {
        if self.waiting.is_empty() && byte.code.is_ascii() {
            return to.push(byte);
        }
        self.waiting.push(byte);
        while let Some(first) = self.waiting.first().copied() {
            let bytes: Vec<u8> = self
                .waiting
                .iter()
                .filter_map(|unit| u8::try_from(unit.code).ok())
                .collect();
            match std::str::from_utf8(&bytes).map(|text| text.chars().next()) {
                Ok(code) => {
                    to.push(Unit {
                        code: code.unwrap_or(first.code),
                        to: byte.to,
                        ..first
                    });
                    self.waiting.clear();
                }
                Err(error) if error.error_len().is_none() => return,
                Err(_) => to.push(self.waiting.remove(0)),
            }
        }
    }

    /// No more bytes follow.
    fn finish(&mut self, to: &mut Vec<Unit>) {
        to.append(&mut self.waiting);
    }
}

/// A reading of the text, and how far it matches.
#[derive(Clone)]
struct Reading {
    state: StateID,
    /// Where its last code points begin, as many as the longest pattern may have.
    places: VecDeque<usize>,
}

impl Reading {
    fn read(&mut self, finder: &Finder, units: &[Unit], found: &mut Vec<Place>) {
        for unit in units {
            if self.places.len() == finder.longest {
                self.places.pop_front();
            }
            self.places.push_back(unit.from);
            for byte in fold(unit.code).encode_utf8(&mut [0; 4]).bytes() {
                self.state = finder.automaton.next_state(Anchored::No, self.state, byte);
            }
            if finder.automaton.is_match(self.state) {
                // The first match is the longest: the others are suffixes of it.
                let pattern = finder.automaton.match_pattern(self.state, 0).as_usize();
                let range = self.places[self.places.len() - finder.patterns[pattern].0]..unit.to;
                add(
                    found,
                    Place {
                        range,
                        pattern: Some(pattern),
                    },
                );
            }
        }
    }
}

/// Adds a place to places in order; those that overlap become one.
fn add(found: &mut Vec<Place>, mut place: Place) {
    let first = found.partition_point(|other| other.range.end <= place.range.start);
    let after = found.partition_point(|other| other.range.start < place.range.end);
    if let [start, ..] = &found[first..after]
        && start.range.start <= place.range.start
    {
        (place.range.start, place.pattern) = (start.range.start, start.pattern.or(place.pattern));
    }
    place.range.end = found[first..after].last().map_or(place.range.end, |other| {
        other.range.end.max(place.range.end)
    });
    found.splice(first..after, std::iter::once(place));
}

/// What stands in the place of a secret: as many `*`, `HIDDEN`, or what was said when it was added.
#[derive(Clone, Copy)]
enum Shown<'f> {
    Stars,
    Hidden,
    Named(&'f Finder),
}

/// A piece of a text, which begins at `from`, with the secrets hidden.
fn mask(piece: &[u8], from: usize, found: &[Place], show: Shown<'_>) -> Vec<u8> {
    let mut shown = Vec::with_capacity(piece.len());
    let mut done = 0;
    let first = found.partition_point(|secret| secret.range.end <= from);
    for Place { range, pattern } in found[first..]
        .iter()
        .take_while(|secret| secret.range.start < from + piece.len())
    {
        let start = range.start.saturating_sub(from);
        let end = piece.len().min(range.end - from);
        shown.extend_from_slice(&piece[done..start]);
        match (show, pattern) {
            (Shown::Stars, _) => shown.resize(shown.len() + end - start, b'*'),
            _ if range.start < from => {}
            (Shown::Named(finder), Some(pattern)) => {
                shown.extend_from_slice(finder.patterns[*pattern].1.as_bytes())
            }
            _ => shown.extend_from_slice(HIDDEN.as_bytes()),
        }
        done = end;
    }
    shown.extend_from_slice(&piece[done..]);
    shown
}

/// Decodes `%XX`, `\uXXXX`, `\x`, `&#n;`, `&lt;` and their like, in any mixture. What is not an
/// encoding stands for itself, and so does a longer one than `MAX_CODE_BYTES`. A line break and
/// blanks after it are skipped: base64 is broken into lines.
struct Decoder {
    /// Code points that are not decoded yet. The first may begin an encoded character.
    waiting: VecDeque<Unit>,
    bytes: Utf8,
    /// Encoded bytes are read as Latin-1 only.
    is_latin: bool,
    /// Characters of a line break and its blanks that were skipped.
    skipped: usize,
}

impl Decoder {
    fn new(is_latin: bool) -> Decoder {
        Decoder {
            waiting: VecDeque::new(),
            bytes: Utf8::default(),
            is_latin,
            skipped: 0,
        }
    }

    /// `last`: nothing more comes.
    fn decode(&mut self, units: &[Unit], last: bool) -> Vec<Unit> {
        self.waiting.extend(units);
        let mut decoded = Vec::with_capacity(self.waiting.len());
        while let Some(Unit { code, from, .. }) = self.waiting.front().copied() {
            let mut encoded = None;
            if matches!(code, '%' | '\\' | '&') {
                let ahead = self.waiting.iter().take(MAX_CODE_BYTES);
                let ahead: Vec<u8> = ahead
                    .map(|unit| u8::try_from(unit.code).unwrap_or_default())
                    .collect();
                encoded = character(&ahead);
                if encoded.is_none() && !last && ahead.len() < MAX_CODE_BYTES {
                    break;
                }
            }
            let (length, code) = encoded.unwrap_or((1, Code::Character(code)));
            let unit = Unit {
                code: code.character(),
                from,
                to: self.waiting[length - 1].to,
            };
            self.waiting.drain(..length);
            match code {
                Code::Byte(_) if !self.is_latin => self.bytes.push(unit, &mut decoded),
                _ => {
                    self.bytes.finish(&mut decoded);
                    decoded.push(unit);
                }
            }
        }
        if last {
            self.bytes.finish(&mut decoded);
        }
        decoded.retain(|unit| {
            let is_break = matches!(unit.code, '\r' | '\n')
                || self.skipped > 0 && matches!(unit.code, ' ' | '\t');
            self.skipped = if is_break && self.skipped < MAX_CODE_BYTES {
                self.skipped + 1
            } else {
                0
            };
            self.skipped == 0
        });
        decoded
    }
}

/// A text decoded once; without `last` as far as that does not depend on what follows it.
fn decode(text: &str, mut decoder: Decoder, last: bool) -> String {
    let units: Vec<Unit> = text
        .chars()
        .map(|code| Unit {
            code,
            from: 0,
            to: 0,
        })
        .collect();
    decoder
        .decode(&units, last)
        .iter()
        .map(|unit| unit.code)
        .collect()
}

/// What an encoded character stands for.
#[derive(Clone, Copy)]
enum Code {
    Byte(u8),
    Character(char),
}

impl Code {
    fn character(self) -> char {
        match self {
            Code::Byte(byte) => char::from(byte),
            Code::Character(c) => c,
        }
    }
}

/// How many of these bytes are the encoded character that they begin with, and that character.
fn character(bytes: &[u8]) -> Option<(usize, Code)> {
    let hex = |digits: Range<usize>| number(bytes.get(digits)?, 16);
    fn byte(length: usize, value: u32) -> Option<(usize, Code)> {
        Some((length, Code::Byte(u8::try_from(value).ok()?)))
    }
    fn char(length: usize, value: u32) -> Option<(usize, Code)> {
        Some((length, Code::Character(char::from_u32(value)?)))
    }
    // A number of any length up to this sign.
    let until = |from: usize, end: u8, radix: u32| {
        let digits = bytes[from..].iter().position(|b| *b == end)?;
        char(
            from + digits + 1,
            number(&bytes[from..from + digits], radix).filter(|value| *value > 0)?,
        )
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
        [b'\\', b'n', ..] => char(2, 10),
        [b'\\', b'r', ..] => char(2, 13),
        [b'\\', b't', ..] => char(2, 9),
        [b'\\', b'b', ..] => char(2, 8),
        [b'\\', b'f', ..] => char(2, 12),
        // A sign stands for itself behind a backslash, unless it may begin another encoded
        // character.
        [b'\\', sign, ..] if sign.is_ascii_punctuation() && !b"%&".contains(&sign) => {
            char(2, sign.into())
        }
        [b'&', b'#', b'x' | b'X', ..] => until(3, b';', 16),
        [b'&', b'#', ..] => until(2, b';', 10),
        [b'&', ..] => NAMED
            .iter()
            .find(|(name, _)| {
                bytes
                    .get(..name.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(name))
            })
            .map(|(name, c)| (name.len(), Code::Character(*c))),
        _ => None,
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    digits.iter().try_fold(0, |value: u32, b: &u8| {
        Some(
            value
                .saturating_mul(radix)
                .saturating_add(char::from(*b).to_digit(radix)?),
        )
    })
}

/// A value that may hold a secret (a variable, an argument): `Debug` shows nothing of it. Serde
/// does: messages between our own processes carry it.
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
