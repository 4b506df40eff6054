//! Finds secrets in the readings of a text, which may come in pieces.

use super::decode::{Decoder, Unit, decoded};
use super::{HIDDEN, SHORTEST};
use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of all patterns: the automaton takes some forty times as much while it is made.
const MOST_BYTES: usize = 1 << 20;

/// All patterns of some secrets.
pub struct Finder {
    patterns: NFA,
    start: StateID,
    /// The length of the longest pattern.
    pub longest: usize,
}

/// What stands in place of a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hide {
    /// `HIDDEN`, where it begins.
    Word,
    /// As many bytes.
    Length,
}

impl Finder {
    /// `None`: they are too long together.
    pub fn new(secrets: &BTreeSet<String>) -> Option<Finder> {
        let (mut all, mut bytes) = (BTreeSet::new(), 0);
        for pattern in secrets.iter().flat_map(|secret| patterns(secret)) {
            bytes += pattern.len();
            if bytes > MOST_BYTES {
                return None;
            }
            all.insert(pattern);
        }
        let longest = all.iter().map(Vec::len).max().unwrap_or(1);
        let patterns = NFA::builder().prefilter(false).build(&all).ok()?;
        let start = patterns.start_state(Anchored::No).ok()?;
        Some(Finder { patterns, start, longest })
    }

    /// Where secrets stand in a whole text: in order, those that overlap as one.
    pub fn all(self: &Arc<Finder>, text: &[u8]) -> Vec<Range<usize>> {
        let mut search = Search::new(Arc::clone(self), Hide::Length);
        search.read(text);
        search.close();
        search.found
    }
}

/// What a secret is searched as: itself, decoded as a reading of a text is, and what its bytes alone decide of its
/// base64 at each place in a group of three.
fn patterns(secret: &str) -> Vec<Vec<u8>> {
    let once = decoded(secret.as_bytes());
    let twice = decoded(&once.0);
    let mut found = vec![secret.as_bytes().to_vec()];
    for (text, sure) in [once, twice] {
        found.push(text[..sure].to_vec());
        found.push(text);
    }
    let latin: Option<Vec<u8>> = secret.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    found.extend(latin);
    for before in 0..3 {
        let mut bytes = vec![0; before];
        bytes.extend(secret.as_bytes());
        let decided = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        found.push(STANDARD_NO_PAD.encode(bytes).as_bytes()[decided].to_vec());
    }
    found.retain(|pattern| pattern.len() >= SHORTEST);
    found.iter_mut().flatten().for_each(|byte| *byte = folded(*byte));
    found
}

/// Letters of either case, both alphabets of base64, and the blank of a form are one.
fn folded(byte: u8) -> u8 {
    match byte {
        b' ' | b'-' => b'+',
        b'_' => b'/',
        other => other.to_ascii_lowercase(),
    }
}

/// One search through a text that comes in pieces, and gives out what no secret can begin in any more.
pub struct Search {
    finder: Arc<Finder>,
    hide: Hide,
    /// As it is, decoded once and twice.
    readings: [Reading; 3],
    decoders: [Decoder; 2],
    found: Vec<Range<usize>>,
    /// How much has come, bytes.
    came: usize,
    /// What was not given out yet, and where in the text it begins.
    text: Vec<u8>,
    from: usize,
    /// Something was hidden.
    pub hid: bool,
}

struct Reading {
    state: StateID,
    /// Where the last bytes of the reading stand in the text, as many as the longest pattern has.
    places: VecDeque<usize>,
}

impl Search {
    pub fn new(finder: Arc<Finder>, hide: Hide) -> Search {
        let readings = [(); 3].map(|()| Reading { state: finder.start, places: VecDeque::new() });
        let decoders = Default::default();
        Search { readings, decoders, found: Vec::new(), came: 0, text: Vec::new(), from: 0, hid: false, finder, hide }
    }

    /// Takes bytes in, and gives out what is settled.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.read(bytes);
        self.text.extend_from_slice(bytes);
        let is_inside = |byte: &u8| byte & 0xC0 == 0x80;
        let mut to = self.settled();
        // Characters stay whole.
        while to > self.from && self.text.get(to - self.from).is_some_and(is_inside) {
            to -= 1;
        }
        self.release(to)
    }

    /// The rest: nothing more comes.
    pub fn finish(&mut self) -> Vec<u8> {
        self.close();
        self.release(self.from + self.text.len())
    }

    /// How many bytes are not given out yet.
    pub fn held(&self) -> usize {
        self.text.len()
    }

    fn release(&mut self, to: usize) -> Vec<u8> {
        let shown = shown(&self.text, self.from, &self.found, self.from..to, self.hide);
        self.hid |= self.found.iter().any(|secret| secret.start < to);
        self.found.retain(|secret| secret.end > to);
        self.text.drain(..to - self.from);
        self.from = to;
        shown
    }

    fn read(&mut self, bytes: &[u8]) {
        let Search { finder, readings: [plain, once, twice], decoders: [first, second], found, came, .. } = self;
        for byte in bytes.iter().copied() {
            let unit = Unit { byte, from: *came, to: *came + 1 };
            *came += 1;
            plain.read(finder, unit, found);
            first.push(unit, &mut |unit| {
                once.read(finder, unit, found);
                second.push(unit, &mut |unit| twice.read(finder, unit, found));
            });
        }
    }

    fn close(&mut self) {
        let Search { finder, readings: [_, once, twice], decoders: [first, second], found, .. } = self;
        first.finish(&mut |unit| {
            once.read(finder, unit, found);
            second.push(unit, &mut |unit| twice.read(finder, unit, found));
        });
        second.finish(&mut |unit| twice.read(finder, unit, found));
    }

    /// No secret begins before this byte that was not found yet.
    pub fn settled(&self) -> usize {
        let places = &self.readings[2].places;
        let first = places.len().checked_sub(self.finder.longest - 1);
        first.and_then(|first| places.get(first).copied()).unwrap_or(self.from)
    }
}

impl Reading {
    fn read(&mut self, finder: &Finder, unit: Unit, found: &mut Vec<Range<usize>>) {
        if self.places.len() == finder.longest {
            self.places.pop_front();
        }
        self.places.push_back(unit.from);
        self.state = finder.patterns.next_state(Anchored::No, self.state, folded(unit.byte));
        if finder.patterns.is_match(self.state) {
            // The first is the longest: the others are ends of it.
            let length = finder.patterns.pattern_len(finder.patterns.match_pattern(self.state, 0));
            add(found, self.places[self.places.len() - length]..unit.to);
        }
    }
}

/// Places in order, in which those that overlap are one.
pub fn joined(mut places: Vec<Range<usize>>) -> Vec<Range<usize>> {
    places.sort_by_key(|place| place.start);
    let mut found = Vec::new();
    places.into_iter().for_each(|place| add(&mut found, place));
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

/// A piece of a text that begins at `from`, with the secrets hidden.
pub fn shown(text: &[u8], from: usize, found: &[Range<usize>], piece: Range<usize>, hide: Hide) -> Vec<u8> {
    let (mut shown, mut done) = (Vec::with_capacity(piece.len()), piece.start);
    let first = found.partition_point(|secret| secret.end <= piece.start);
    for secret in found[first..].iter().take_while(|secret| secret.start < piece.end) {
        let (start, end) = (secret.start.max(piece.start), secret.end.min(piece.end));
        shown.extend_from_slice(&text[done - from..start - from]);
        match hide {
            Hide::Length => shown.resize(shown.len() + end - start, b'*'),
            Hide::Word if secret.start >= piece.start => shown.extend_from_slice(HIDDEN.as_bytes()),
            Hide::Word => {}
        }
        done = end;
    }
    shown.extend_from_slice(&text[done - from..piece.end - from]);
    shown
}
