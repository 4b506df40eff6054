//! Markers: the environment markers of a requirement (PEP 508), parsed and written anew.
//!
//! For: requirements and locks of Python. In: text. Out: a `Marker`, its canonical text, whether it can hold on Linux.
//! Never: a name or operator that PEP 508 does not have; evaluates what only the interpreter knows.

use std::fmt;

/// Most parts within parts, and longest text.
const DEEPEST: usize = 16;
const LONGEST: usize = 4000;
#[rustfmt::skip]
const NAMES: [&str; 11] = [
    "python_version", "python_full_version", "os_name", "sys_platform", "platform_release", "platform_system",
    "platform_version", "platform_machine", "platform_python_implementation", "implementation_name",
    "implementation_version",
];
/// Longer ones before those that they begin with.
const OPERATORS: [&str; 8] = ["===", "==", "!=", "<=", ">=", "~=", "<", ">"];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Marker {
    Compare { left: Value, operator: &'static str, right: Value },
    And(Vec<Marker>),
    Or(Vec<Marker>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Name(&'static str),
    Text(String),
}

pub(super) fn parse(text: &str) -> Result<Marker, String> {
    if text.len() > LONGEST {
        return Err("the marker is too long".to_owned());
    }
    let mut reader = Reader { rest: text.trim_start() };
    let marker = reader.any(0)?;
    match reader.rest.is_empty() {
        true => Ok(marker),
        false => Err(format!("the marker is not understood at `{}`", super::files::shown(reader.rest))),
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn any(&mut self, depth: usize) -> Result<Marker, String> {
        if depth > DEEPEST {
            return Err("the marker has too many parentheses".to_owned());
        }
        let mut parts = vec![self.all(depth)?];
        while self.word("or") {
            parts.push(self.all(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Marker::Or(parts) })
    }

    fn all(&mut self, depth: usize) -> Result<Marker, String> {
        let mut parts = vec![self.one(depth)?];
        while self.word("and") {
            parts.push(self.one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Marker::And(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Marker, String> {
        if self.taken("(") {
            let inner = self.any(depth + 1)?;
            return if self.taken(")") { Ok(inner) } else { Err("a `)` is missing in the marker".to_owned()) };
        }
        let left = self.value()?;
        let operator = self.operator()?;
        let right = self.value()?;
        if !matches!((&left, &right), (Value::Name(_), Value::Text(_)) | (Value::Text(_), Value::Name(_))) {
            return Err("a marker compares a name with a text".to_owned());
        }
        Ok(Marker::Compare { left, operator, right })
    }

    fn operator(&mut self) -> Result<&'static str, String> {
        if let Some(operator) = OPERATORS.into_iter().find(|operator| self.taken(operator)) {
            return Ok(operator);
        }
        match () {
            () if self.word("in") => Ok("in"),
            () if self.word("not") && self.word("in") => Ok("not in"),
            () => Err(format!("the marker has no operator at `{}`", super::files::shown(self.rest))),
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        if let Some(quote) = quote {
            let (text, rest) = self.rest[1..].split_once(quote).ok_or("a text in the marker is not closed")?;
            if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b" ._*+!,-".contains(&b)) {
                return Err(format!("`{}` is no text for a marker", super::files::shown(text)));
            }
            self.rest = rest.trim_start();
            return Ok(Value::Text(text.to_owned()));
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        let known = NAMES.into_iter().find(|known| *known == name);
        let known =
            known.ok_or_else(|| format!("`{}` is no name that a marker can have here", super::files::shown(name)))?;
        self.rest = rest.trim_start();
        Ok(Value::Name(known))
    }

    fn taken(&mut self, sign: &str) -> bool {
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }

    /// A word that ends there.
    fn word(&mut self, word: &str) -> bool {
        let ends = |rest: &&str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let rest = self.rest.strip_prefix(word).filter(ends);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }
}

impl Marker {
    /// False where it holds on no Linux of this architecture.
    pub fn may_hold(&self) -> bool {
        match self {
            Marker::And(parts) => parts.iter().all(Marker::may_hold),
            Marker::Or(parts) => parts.iter().any(Marker::may_hold),
            Marker::Compare { left, operator, right } => {
                let (Some(left), Some(right)) = (left.here(), right.here()) else { return true };
                match *operator {
                    "==" | "===" => left == right,
                    "!=" => left != right,
                    "in" => right.contains(left),
                    "not in" => !right.contains(left),
                    _ => true,
                }
            }
        }
    }
}

impl Value {
    /// What it is on this machine; `None`: the interpreter knows.
    fn here(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            Value::Name("os_name") => Some("posix"),
            Value::Name("sys_platform") => Some("linux"),
            Value::Name("platform_system") => Some("Linux"),
            Value::Name("platform_machine") => Some(std::env::consts::ARCH),
            Value::Name(_) => None,
        }
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |f: &mut fmt::Formatter<'_>, parts: &[Marker], word: &str| {
            for (number, part) in parts.iter().enumerate() {
                if number > 0 {
                    write!(f, " {word} ")?;
                }
                match part {
                    Marker::Compare { .. } => write!(f, "{part}")?,
                    _ => write!(f, "({part})")?,
                }
            }
            Ok(())
        };
        match self {
            Marker::Compare { left, operator, right } => write!(f, "{left} {operator} {right}"),
            Marker::And(parts) => join(f, parts, "and"),
            Marker::Or(parts) => join(f, parts, "or"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Name(name) => f.write_str(name),
            Value::Text(text) => write!(f, "'{text}'"),
        }
    }
}
