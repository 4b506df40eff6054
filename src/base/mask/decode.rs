//! Decodes a text character by character: `%XX`, `\uXXXX`, `\x`, `&#n;`, `&lt;` and their like, in any mixture.
//!
//! What is not an encoding stands for itself, and so does one longer than `LONGEST` bytes. A line break and the blanks
//! after it are skipped, since base64 is broken into lines.

use std::collections::VecDeque;
use std::ops::Range;

/// Longest encoded character, bytes: two halves as `\ud83d\ude00`.
const LONGEST: usize = 12;
const NAMED: [(&[u8], u8); 5] =
    [(b"&amp;", b'&'), (b"&lt;", b'<'), (b"&gt;", b'>'), (b"&quot;", b'"'), (b"&apos;", b'\'')];

/// A byte of a reading, and the bytes of the text that it stands for.
#[derive(Clone, Copy)]
pub struct Unit {
    pub byte: u8,
    pub from: usize,
    pub to: usize,
}

#[derive(Default)]
pub struct Decoder {
    /// From the first byte on that may begin an encoded character.
    waiting: VecDeque<Unit>,
    /// How many bytes of a line break and its blanks were skipped.
    skipped: usize,
    emitted: usize,
    /// How much was emitted before an end of the text that more of it could make an encoded character.
    open: Option<usize>,
}

impl Decoder {
    pub fn push(&mut self, unit: Unit, emit: &mut impl FnMut(Unit)) {
        self.waiting.push_back(unit);
        self.decode(LONGEST, emit);
    }

    /// Nothing more comes.
    pub fn finish(&mut self, emit: &mut impl FnMut(Unit)) {
        self.decode(1, emit);
    }

    /// Decodes where at least so many bytes are there.
    fn decode(&mut self, least: usize, emit: &mut impl FnMut(Unit)) {
        while let Some(Unit { byte, from, to }) = self.waiting.front().copied() {
            let coded = match byte {
                b'%' | b'\\' | b'&' if self.waiting.len() < least => return,
                b'%' | b'\\' | b'&' => {
                    let bytes: Vec<u8> = self.waiting.iter().take(LONGEST).map(|unit| unit.byte).collect();
                    let coded = character(&bytes);
                    if coded.is_none() && bytes.len() < LONGEST {
                        self.open.get_or_insert(self.emitted);
                    }
                    coded
                }
                _ => None,
            };
            let (length, coded) = coded.unwrap_or((1, Coded::Byte(byte)));
            let to = self.waiting.get(length - 1).map_or(to, |last| last.to);
            self.waiting.drain(..length);
            match coded {
                Coded::Byte(byte) => self.emit(Unit { byte, from, to }, emit),
                Coded::Char(c) => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| self.emit(Unit { byte, from, to }, emit));
                }
            }
        }
    }

    fn emit(&mut self, unit: Unit, emit: &mut impl FnMut(Unit)) {
        let blank = matches!(unit.byte, b'\r' | b'\n') || self.skipped > 0 && matches!(unit.byte, b' ' | b'\t');
        self.skipped = if blank && self.skipped < LONGEST { self.skipped + 1 } else { 0 };
        if self.skipped == 0 {
            self.emitted += 1;
            emit(unit);
        }
    }
}

/// A text decoded once, and how much of that does not depend on what follows the text.
pub fn decoded(text: &[u8]) -> (Vec<u8>, usize) {
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for (from, byte) in text.iter().copied().enumerate() {
        decoder.push(Unit { byte, from, to: from + 1 }, &mut |unit| found.push(unit.byte));
    }
    decoder.finish(&mut |unit| found.push(unit.byte));
    let sure = decoder.open.unwrap_or(found.len());
    (found, sure)
}

enum Coded {
    Byte(u8),
    Char(char),
}

/// The encoded character that these bytes begin with, and how many of them stand for it.
fn character(bytes: &[u8]) -> Option<(usize, Coded)> {
    let hex = |digits: Range<usize>| number(bytes.get(digits)?, 16);
    let byte = |length: usize, value: u32| Some((length, Coded::Byte(u8::try_from(value).ok()?)));
    let char = |length: usize, value: u32| Some((length, Coded::Char(char::from_u32(value)?)));
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
            NAMED.iter().find(|(name, _)| is(name)).map(|(name, byte)| (name.len(), Coded::Byte(*byte)))
        }
        _ => None,
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let digit = |value: u32, b: &u8| Some(value.saturating_mul(radix).saturating_add(char::from(*b).to_digit(radix)?));
    digits.iter().try_fold(0, digit)
}
