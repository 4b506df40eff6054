//! Mask: hides parameters marked `writeOnly` or `x-secret`, and texts that repeat them.
//!
//! For: the audit record, the run log, what of a failure is shown, and the answer. In: a schema, arguments, text.
//! Out: the same with `***`. Never: changes what the tool is given; makes an answer other than one JSON document.
//!
//! A secret is found as it is and as JSON escapes it; in base64, a URL or any other encoding it is not found.

use crate::manifest::applies::{of_field, of_item, parts};
use crate::manifest::arguments::declares;
use crate::manifest::{Handler, Manifest};
use crate::policy;
use serde_json::Value;
use std::cell::Cell;
use std::fmt::{self, Display};

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
/// Most work on all texts of one call, bytes times secrets: some 0.1 s. `EACH`: the fixed cost of a look, in bytes.
const MOST_WORK: usize = 128 << 20;
const EACH: usize = 64;
/// Keywords whose subschemas hold for the same value.
const SAME_VALUE: [&str; 7] = ["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"];

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
        mask.in_order();
    }
    (mask, Shown::Tree(shown))
}

/// The secret texts of one call, longest first.
#[derive(Clone, Default)]
pub struct Mask {
    secrets: Vec<String>,
    /// Spent so far on looking for them.
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
        let mut mask = Mask { secrets: walk.secrets, work: Cell::default() };
        if walk.looks == 0 {
            mask.secrets.clear();
            collect(arguments, &mut mask.secrets);
            shown = Value::String(HIDDEN.into());
        }
        mask.in_order();
        (mask, shown)
    }

    fn in_order(&mut self) {
        self.secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.secrets.dedup();
    }

    /// Hides every text of a value, and the value's parts.
    pub fn hide(&mut self, value: &mut Value) {
        collect(value, &mut self.secrets);
        self.in_order();
        let hidden = || Value::String(HIDDEN.into());
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|field| *field = hidden()),
            other => *other = hidden(),
        }
    }

    /// Hides what another mask hides, too.
    pub fn join(&mut self, other: Mask) {
        self.secrets.extend(other.secrets);
        self.in_order();
    }

    /// Hides these texts too.
    pub fn also<'t>(&mut self, secrets: impl Iterator<Item = &'t str>) {
        let known = self.secrets.len();
        secrets.for_each(|secret| collect(&Value::String(secret.to_owned()), &mut self.secrets));
        if self.secrets.len() > known {
            self.in_order();
        }
    }

    /// Counts work; true once the bound is passed.
    fn exhausted(&self, work: usize) -> bool {
        self.work.set(self.work.get().saturating_add(work));
        work > 0 && self.work.get() > MOST_WORK
    }

    /// The text with every secret hidden, also what a cut left of one. Where looking for all of them would take too
    /// long, all of the text is hidden.
    pub fn text(&self, text: &str) -> String {
        if self.exhausted(self.secrets.len().saturating_mul(text.len() + EACH)) {
            return HIDDEN.to_owned();
        }
        let mut shown = text.to_owned();
        for secret in &self.secrets {
            if shown.contains(secret.as_str()) {
                shown = shown.replace(secret.as_str(), HIDDEN);
            }
        }
        for secret in self.secrets.iter().filter(|secret| secret.len() > SHORTEST) {
            if !may_be_cut(&shown, secret) {
                continue;
            }
            if self.exhausted(secret.len().min(LONGEST_PART).saturating_mul(shown.len()) / EACH) {
                return HIDDEN.to_owned();
            }
            let pieces: Vec<_> = shown.split(CUT).map(|piece| edges(piece, secret)).collect();
            shown = pieces.join(CUT);
        }
        shown
    }
}

impl Mask {
    /// The answer of a tool with every secret hidden that stands whole in one of its texts or is one of its numbers;
    /// `None` where there is none. It stays one JSON document: a text with a secret is decoded and encoded anew.
    pub fn answer(&self, json: &str) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        if self.exhausted(self.secrets.len().saturating_mul(json.len() + EACH)) {
            return Some(format!("\"{HIDDEN}\""));
        }
        let (mut out, mut rest, mut names, mut hidden) = (String::with_capacity(json.len()), json, 0, false);
        while let Some(c) = rest.chars().next() {
            let length = match c {
                '"' => string_length(rest),
                '-' | '0'..='9' => {
                    rest.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(rest.len())
                }
                _ => c.len_utf8(),
            };
            let (token, after) = rest.split_at(length);
            match self.token(token, after.starts_with(':').then_some(&mut names)) {
                Some(shown) => {
                    hidden = true;
                    out.push_str(&shown);
                }
                None => out.push_str(token),
            }
            rest = after;
        }
        hidden.then_some(out)
    }

    /// A text or number with its secrets hidden. `names`: the token is a member's name; the number of changed names
    /// keeps them apart.
    fn token(&self, token: &str, names: Option<&mut usize>) -> Option<String> {
        if !token.starts_with('"') {
            return self.secrets.iter().any(|secret| secret == token).then(|| format!("\"{HIDDEN}\""));
        }
        let text: String = serde_json::from_str(token).ok()?;
        let shown = self.secrets.iter().fold(text.clone(), |text, secret| text.replace(secret.as_str(), HIDDEN));
        if shown == text {
            return None;
        }
        let apart = names.map_or_else(String::new, |count| {
            *count += 1;
            if *count > 1 { format!(" ({count})") } else { String::new() }
        });
        serde_json::to_string(&format!("{shown}{apart}")).ok()
    }
}

/// The bytes of a JSON text, its quotes included. `json` begins with one.
fn string_length(json: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    json.len()
}

/// Whether the shortest start or end of a secret that is looked for stands anywhere in the text.
fn may_be_cut(text: &str, secret: &str) -> bool {
    let start = &secret[..secret.floor_char_boundary(SHORTEST)];
    let end = &secret[secret.ceil_char_boundary(secret.len() - SHORTEST)..];
    text.contains(start) || text.contains(end)
}

/// Hides the start of a secret at the end of a piece, and the end of a secret at its start: there the text was cut.
fn edges(piece: &str, secret: &str) -> String {
    let longest = secret.len().saturating_sub(1).min(piece.len()).min(LONGEST_PART);
    let lengths = || (SHORTEST..=longest).rev();
    let start = lengths().filter_map(|n| secret.get(..n)).find(|start| piece.ends_with(start));
    let piece = start.map_or_else(|| piece.to_owned(), |s| format!("{}{HIDDEN}", &piece[..piece.len() - s.len()]));
    let end = lengths().filter_map(|n| secret.get(secret.len() - n..)).find(|end| piece.starts_with(end));
    match end {
        Some(end) => format!("{HIDDEN}{}", &piece[end.len()..]),
        None => piece,
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

    /// Adds the schemas that these lead to for the same value, each once.
    fn gather(&mut self, schemas: &mut Vec<&'s Value>) {
        let mut next = 0;
        while let Some(schema) = schemas.get(next).copied() {
            next += 1;
            let Some(left) = self.looks.checked_sub(1) else { return };
            self.looks = left;
            let target = ["$ref", "$dynamicRef"].into_iter().filter_map(|word| schema[word].as_str());
            let targets = target.filter_map(|r| r.strip_prefix('#')).filter_map(|pointer| self.root.pointer(pointer));
            for other in targets.chain(SAME_VALUE.iter().flat_map(|word| parts(&schema[*word]))) {
                if !schemas.iter().any(|known| std::ptr::eq(*known, other)) {
                    schemas.push(other);
                }
            }
        }
    }
}

/// Every text below a secret value; a text of several lines also line by line, as a log shows it.
fn collect(value: &Value, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            for part in std::iter::once(text.as_str()).chain(text.lines()) {
                if part.len() >= SHORTEST && part != HIDDEN {
                    secrets.push(part.to_owned());
                    secrets.extend(as_json(part));
                }
            }
        }
        Value::Number(number) if number.to_string().len() >= SHORTEST => secrets.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secrets)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, secrets)),
        _ => {}
    }
}

/// The text as it stands inside JSON, where that differs: with quotes and newlines escaped, and with everything but
/// ASCII escaped as well.
fn as_json(text: &str) -> impl Iterator<Item = String> + use<> {
    let plain = serde_json::to_string(text).ok();
    let ascii = super::audit::ascii(&text).ok();
    let inside = |quoted: String| quoted.get(1..quoted.len().saturating_sub(1)).map(str::to_owned);
    let text = text.to_owned();
    plain.into_iter().chain(ascii).filter_map(inside).filter(move |form| *form != text)
}

#[cfg(test)]
mod tests;
