//! Redact: hides parameters marked `writeOnly` or `x-secret`, and texts that repeat them.
//!
//! For: the audit record, the run log, what of a failure is shown, and the answer. In: a schema, arguments, text.
//! Out: the same with `***`. Never: changes what the tool is given; makes an answer other than one JSON document.
//!
//! A secret is found as it is and as JSON escapes it; a secret of this host also in base64 and in a URL. In any other
//! encoding it is not found.

mod pieces;

pub use pieces::Held;

use crate::base::encodings;
use crate::manifest::applies::{SAME_VALUE, of_field, of_item, parts};
use crate::manifest::arguments::declares;
use crate::manifest::{Handler, Manifest};
use crate::policy;
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use serde_json::Value;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::ops::Range;

/// What a secret is shown as.
pub const HIDDEN: &str = "***";
/// Shorter texts are hidden where they are a parameter, but not searched for elsewhere: replacing
/// every `1` in a log would hide the log and reveal the secret.
const SHORTEST: usize = 4;
/// Stands where a text was cut.
const CUT: &str = "…";
/// Longest part of a cut secret that is looked for, bytes.
const LONGEST_PART: usize = 4096;
/// Deepest value that is followed; arguments are bounded below it.
const DEEPEST: usize = 128;
/// Most looks in one walk, each at one value under one schema: a schema can refer to itself in any number of ways.
const LOOKS: u32 = 20_000;
/// Bytes of a schema that are searched in one look.
const BYTES_A_LOOK: usize = 512;
/// Most bytes of secrets that one searcher is made of, which takes tens of times as much; more of them are looked for
/// one by one.
const MOST_BYTES: usize = 256 << 10;
/// Most secrets that are hidden in one text: they may overlap.
const MOST_FOUND: usize = 1 << 20;
/// Most work of one call on secrets one by one, in steps of some 50 ns.
const MOST_WORK: usize = 2 << 20;
/// Bytes that are compared in one step.
const BYTES_A_STEP: usize = 64;

/// The secrets among arguments, and the arguments with the secrets hidden.
pub type Masked = (Mask, Shown);

/// Arguments as a record shows them. With nothing to hide they are text: a tree can be forty times as large.
#[derive(Clone, PartialEq)]
pub enum Shown {
    Text(String),
    Tree(Value),
}

impl Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Text(text) => out.write_str(text),
            Shown::Tree(tree) => write!(out, "{tree}"),
        }
    }
}

/// Arguments, masked as the parameters of their tool say.
pub fn of_arguments(manifest: &Manifest, arguments: &Value) -> Masked {
    let schema = manifest.parameters.as_ref().filter(|schema| schema.may_hide);
    // Input for a script is masked again, by the schemas of that script: it must be a tree.
    let script =
        matches!(&manifest.handler, Handler::ServiceMethod { service, .. } if service == policy::SCRIPT_SERVICE);
    if schema.is_none() && !script {
        return (Mask::default(), Shown::Text(arguments.to_string()));
    }
    let (mut mask, mut shown) = Mask::of(schema.map(|schema| &schema.raw), arguments);
    if let (Some(schema), Value::Object(given)) = (schema, &mut shown) {
        // A name that the schema does not know may be a secret's, misspelt.
        for (name, value) in given.iter_mut().filter(|(name, _)| !declares(&schema.raw, name)) {
            collect(&arguments[name.as_str()], &mut mask.secrets);
            *value = Value::String(HIDDEN.into());
        }
    }
    (mask, Shown::Tree(shown))
}

/// The secret texts of one call.
#[derive(Clone, Default)]
pub struct Mask {
    secrets: Vec<String>,
    /// Those of which neither the caller nor the tool may know a part: a part that is hidden would tell who guesses that the
    /// guess is right so far. They are hidden as a whole.
    unknown: BTreeSet<String>,
    /// The length of the longest that whoever reads may only guess, bytes.
    guessed: usize,
    /// The secrets in order, made when a text comes in pieces.
    starts: OnceCell<BTreeSet<String>>,
    /// Made when a text is first looked at. `None`: there are more secrets than can be looked for.
    searcher: OnceCell<Option<AhoCorasick>>,
    /// Spent so far on what cuts left.
    work: Cell<usize>,
}

impl Mask {
    /// The secrets among these arguments, and the arguments with the secrets hidden. Where following the schema takes
    /// too many looks, all arguments are secret.
    pub fn of(schema: Option<&Value>, arguments: &Value) -> (Mask, Value) {
        let Some(schema) = schema else { return (Mask::default(), arguments.clone()) };
        let mut walk = Walk { root: schema, looks: LOOKS, secrets: Vec::new() };
        let mut shown = arguments.clone();
        walk.hide(vec![schema], &mut shown, 0);
        if walk.looks == 0 {
            walk.secrets.clear();
            collect(arguments, &mut walk.secrets);
            shown = Value::String(HIDDEN.into());
        }
        let mut mask = Mask::default();
        mask.add(walk.secrets);
        (mask, shown)
    }

    fn add(&mut self, secrets: impl IntoIterator<Item = String>) {
        let known = self.secrets.len();
        self.secrets.extend(secrets);
        if self.secrets.len() > known {
            // Longest first: a secret may be a part of another.
            self.secrets.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
            self.secrets.dedup();
            self.searcher.take();
            self.starts.take();
        }
    }

    /// Hides every text of a value, and the value's parts.
    pub fn hide(&mut self, value: &mut Value) {
        let mut secrets = Vec::new();
        collect(value, &mut secrets);
        self.add(secrets);
        let hidden = || Value::String(HIDDEN.into());
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|field| *field = hidden()),
            other => *other = hidden(),
        }
    }

    /// Hides what another mask hides, too.
    pub fn join(&mut self, other: Mask) {
        self.unknown.extend(other.unknown);
        self.guessed = self.guessed.max(other.guessed);
        self.add(other.secrets);
    }

    /// Hides these texts too, in base64 and as parts of a URL as well.
    pub fn also<'t>(&mut self, texts: impl Iterator<Item = &'t str>) {
        let mut secrets = Vec::new();
        for text in texts {
            collect_text(text, &mut secrets);
            // Names of hosts are told in lower case.
            collect_text(&text.to_ascii_lowercase(), &mut secrets);
            secrets.extend(encodings::of(text).into_iter().filter(|form| form.len() >= SHORTEST));
        }
        self.guessed = secrets.iter().map(String::len).max().unwrap_or_default().max(self.guessed);
        self.add(secrets);
    }

    /// Hides these texts too, as a whole: whoever reads may only guess them.
    pub fn also_unknown<'t>(&mut self, texts: impl Iterator<Item = &'t str>) {
        let known: BTreeSet<String> = self.secrets.iter().cloned().collect();
        self.also(texts);
        self.unknown.extend(self.secrets.iter().filter(|secret| !known.contains(*secret)).cloned());
    }

    /// The text with every secret hidden, also what a cut left of one. Where looking for all of them would take too
    /// long, all of the text is hidden.
    pub fn text(&self, text: &str) -> String {
        if self.secrets.is_empty() {
            return text.to_owned();
        }
        let hidden = self.whole(text).and_then(|shown| {
            let pieces: Option<Vec<String>> = shown.split(CUT).map(|piece| self.edges(piece)).collect();
            Some(pieces?.join(CUT))
        });
        hidden.unwrap_or_else(|| HIDDEN.to_owned())
    }

    /// The text with each secret hidden that stands whole in it; `None` where that would take too long.
    fn whole(&self, text: &str) -> Option<String> {
        if self.searcher().is_none() {
            return self.one_by_one(text);
        }
        let (mut shown, mut done) = (String::with_capacity(text.len()), 0);
        for secret in self.found(text)? {
            shown.push_str(&text[done..secret.start]);
            shown.push_str(HIDDEN);
            done = secret.end;
        }
        shown.push_str(&text[done..]);
        Some(shown)
    }

    fn searcher(&self) -> Option<&AhoCorasick> {
        let made = self.searcher.get_or_init(|| {
            let few = self.secrets.iter().map(String::len).sum::<usize>() <= MOST_BYTES;
            // The other kinds take a table of all characters for each character of a secret.
            let searcher = || AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(&self.secrets);
            few.then(searcher)?.ok()
        });
        made.as_ref()
    }

    /// Where secrets stand, those that overlap as one; `None` where there are too many, of them or in the text.
    fn found(&self, text: &str) -> Option<Vec<Range<usize>>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (count, secret) in self.searcher()?.find_overlapping_iter(text).enumerate() {
            if count == MOST_FOUND {
                return None;
            }
            let Range { mut start, end } = secret.range();
            // They come by their ends: all that begin behind this one's start overlap with it.
            while let Some(overlapping) = found.pop_if(|last| last.end > start) {
                start = start.min(overlapping.start);
            }
            found.push(start..end);
        }
        Some(found)
    }

    /// As `whole`, for more secrets than one searcher is made of.
    fn one_by_one(&self, text: &str) -> Option<String> {
        let mut shown = text.to_owned();
        for secret in self.secrets.iter().filter(|secret| secret.len() <= text.len()) {
            if self.exhausted(1 + shown.len() / BYTES_A_STEP) {
                return None;
            }
            if shown.contains(secret.as_str()) {
                shown = shown.replace(secret.as_str(), HIDDEN);
            }
        }
        Some(shown)
    }

    /// Counts work; true once the bound is passed.
    fn exhausted(&self, steps: usize) -> bool {
        self.work.set(self.work.get().saturating_add(steps));
        self.work.get() > MOST_WORK
    }

    /// Hides the start of a secret at the end of a piece, and the end of a secret at its start: there the text was cut.
    fn edges(&self, piece: &str) -> Option<String> {
        let (mut start, mut end) = (0, piece.len());
        for secret in &self.secrets {
            let longest = secret.len().saturating_sub(1).min(piece.len()).min(LONGEST_PART);
            if self.exhausted(1) {
                return None;
            }
            if longest < SHORTEST || self.unknown.contains(secret) || !may_be_cut(piece, secret) {
                continue;
            }
            if self.exhausted(longest * longest / BYTES_A_STEP) {
                return None;
            }
            let lengths = || (SHORTEST..=longest).rev();
            let begun = lengths().find(|&n| secret.get(..n).is_some_and(|part| piece.ends_with(part)));
            let ended = lengths().find(|&n| secret.get(secret.len() - n..).is_some_and(|part| piece.starts_with(part)));
            end = end.min(piece.len() - begun.unwrap_or(0));
            start = start.max(ended.unwrap_or(0));
        }
        let mark = |hidden: bool| if hidden { HIDDEN } else { "" };
        let between = piece.get(start..end).unwrap_or_default();
        Some(format!("{}{between}{}", mark(start > 0), mark(end < piece.len())))
    }

    /// The answer of a tool with every secret hidden that stands whole in one of its texts or is one of its numbers;
    /// `None` where there is none. It stays one JSON document: a text with a secret is decoded and encoded anew.
    pub fn answer(&self, json: &str) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        let shown = self.tokens(json).unwrap_or_else(|| format!("\"{HIDDEN}\""));
        (shown != json).then_some(shown)
    }

    fn tokens(&self, json: &str) -> Option<String> {
        let (mut shown, mut rest, mut names) = (String::with_capacity(json.len()), json, 0);
        while let Some(c) = rest.chars().next() {
            let (length, text) = match c {
                '"' => {
                    let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                    let text = texts.next()?.ok()?;
                    (texts.byte_offset(), Some(text))
                }
                '-' | '0'..='9' => {
                    let after = |c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E');
                    (rest.find(after).unwrap_or(rest.len()), None)
                }
                _ => (c.len_utf8(), None),
            };
            let (token, after) = rest.split_at(length);
            rest = after;
            let hidden = if length > 1 { self.whole(text.as_deref().unwrap_or(token))? } else { token.to_owned() };
            match &text {
                None if hidden == HIDDEN => shown.push_str(&format!("\"{HIDDEN}\"")),
                Some(text) if hidden != *text => {
                    // The number of changed names keeps them apart.
                    names += usize::from(rest.starts_with(':'));
                    let apart = Some(format!(" ({names})")).filter(|_| rest.starts_with(':') && names > 1);
                    shown.push_str(&serde_json::to_string(&(hidden + &apart.unwrap_or_default())).ok()?);
                }
                _ => shown.push_str(token),
            }
        }
        Some(shown)
    }
}

struct Walk<'s> {
    root: &'s Value,
    /// Counts down; at 0 nothing more is looked at.
    looks: u32,
    secrets: Vec<String>,
}

impl<'s> Walk<'s> {
    /// Walks the value under every schema that may hold for it. Where one of them says secret, all below is hidden.
    fn hide(&mut self, mut schemas: Vec<&'s Value>, value: &mut Value, depth: usize) {
        self.gather(&mut schemas);
        let secret = |schema: &&Value| schema["writeOnly"] == true || schema["x-secret"] == true;
        if depth > DEEPEST || schemas.iter().any(secret) {
            collect(value, &mut self.secrets);
            *value = Value::String(HIDDEN.into());
            return;
        }
        match value {
            // JSON text that is not read yet: which part of it is a secret cannot be told.
            Value::String(_) if schemas.iter().any(|schema| self.has_secret_parts(schema)) => {
                collect(value, &mut self.secrets);
                *value = Value::String(HIDDEN.into());
            }
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    self.hide(schemas.iter().flat_map(|schema| of_field(schema, name)).collect(), field, depth + 1);
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.hide(schemas.iter().flat_map(|schema| of_item(schema, at)).collect(), item, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Whether a part of such a value may be marked secret, as far as can be told without following references.
    fn has_secret_parts(&mut self, schema: &Value) -> bool {
        if self.looks == 0 {
            return true;
        }
        let parts = ["properties", "patternProperties", "additionalProperties", "items", "prefixItems"];
        let written: String = parts.iter().filter_map(|part| schema.get(part)).map(Value::to_string).collect();
        self.looks = self.looks.saturating_sub(u32::try_from(written.len() / BYTES_A_LOOK).unwrap_or(LOOKS));
        ["writeOnly", "x-secret", "$ref"].iter().any(|word| written.contains(word))
    }

    /// Adds the schemas that these lead to for the same value, each once.
    fn gather(&mut self, schemas: &mut Vec<&'s Value>) {
        let mut next = 0;
        while let Some(schema) = schemas.get(next).copied() {
            next += 1;
            let Some(left) = self.looks.checked_sub(1) else { return };
            self.looks = left;
            let target = schema["$ref"].as_str().and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
            for other in target.into_iter().chain(SAME_VALUE.iter().flat_map(|word| parts(&schema[*word]))) {
                if !schemas.iter().any(|known| std::ptr::eq(*known, other)) {
                    schemas.push(other);
                }
            }
        }
    }
}

/// Every text below a secret value.
fn collect(value: &Value, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) => collect_text(text, secrets),
        Value::Number(number) if number.to_string().len() >= SHORTEST => secrets.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secrets)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, secrets)),
        _ => {}
    }
}

/// A text, and a text of several lines also line by line, as a log shows it; each also as it stands inside JSON: with
/// quotes and newlines escaped, and with everything but ASCII escaped as well.
fn collect_text(text: &str, secrets: &mut Vec<String>) {
    let lines = text.lines().filter(|line| *line != text);
    for part in std::iter::once(text).chain(lines).filter(|part| part.len() >= SHORTEST && *part != HIDDEN) {
        secrets.push(part.to_owned());
        for quoted in [serde_json::to_string(part).ok(), super::audit::ascii(&part).ok()].into_iter().flatten() {
            let inside = &quoted[1..quoted.len() - 1];
            if inside != part && secrets.last().is_none_or(|last| last != inside) {
                secrets.push(inside.to_owned());
            }
        }
    }
}

/// Whether the start of a secret is near the end of a piece, or its end near the start.
fn may_be_cut(piece: &str, secret: &str) -> bool {
    let (piece, secret) = (piece.as_bytes(), secret.as_bytes());
    let near = piece.len().min(LONGEST_PART);
    let holds = |place: &[u8], part: &[u8]| place.windows(SHORTEST).any(|window| window == part);
    let (start, end) = (&secret[..SHORTEST.min(secret.len())], &secret[secret.len().saturating_sub(SHORTEST)..]);
    holds(&piece[piece.len() - near..], start) || holds(&piece[..near], end)
}

#[cfg(test)]
mod tests;
