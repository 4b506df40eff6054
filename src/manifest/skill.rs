//! Agent Skills: folders with a `SKILL.md`. Each becomes a tool `skill:NAME`, whose calls name a
//! script of the folder. What the file says is hostile, requests nothing and allows nothing.

use super::file;
use super::types::{Handler, Manifest, Skill};
use crate::base::problem::{Code, Problem, Severity};
use crate::base::{sha256_hex, text};
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// The file that makes a folder a skill.
pub const SKILL_FILE: &str = "SKILL.md";
/// The namespace of their tools.
pub const NAMESPACE: &str = "skill";
/// The tool that is another way to write their calls.
pub const RUN_SCRIPT: &str = "core:run-skill-script";
/// Where a script finds its folder of results, below the folder of the skill.
pub const OUTPUT: &str = "output";
/// Most bytes between the two lines `---`, values in them, and levels of these.
const MAX_FRONT_BYTES: usize = 16 << 10;
const MAX_VALUES: usize = 1_000;
const MAX_DEPTH: usize = 8;
const MAX_NAME: usize = 64;
/// Longest description by the format of skills, characters.
const MAX_DESCRIPTION_CHARS: usize = 1024;

static BARE: LazyLock<Manifest> = LazyLock::new(|| {
    let read = file::read(include_bytes!("skill.tool.json"));
    read.expect("the manifest of skills is one").0
});

/// Reads a `SKILL.md`, of a folder with this name that has these files. The manifest comes with what
/// is doubtful; the error says why it is not a skill.
pub fn read(
    bytes: &[u8],
    folder: &str,
    files: BTreeMap<String, u64>,
) -> Result<(Manifest, Vec<Problem>), Problem> {
    let refuse = |why: String| Problem::new(Severity::Error, Code::Schema, "", why);
    let (mut front, mut flaws) = front_matter(bytes).map_err(refuse)?;
    let written = front.get("name").and_then(Value::as_str).unwrap_or("");
    let name = [written, folder].into_iter().find(|name| is_name(name));
    let name = name.map(str::to_owned).ok_or_else(|| {
        refuse("neither `name` nor its folder is 1 to 64 of a-z, 0-9 and single '-'".to_owned())
    })?;
    if written != folder {
        flaws.push(format!(
            "its `name` is not that of its folder: it is known as {name}"
        ));
    }
    let description = match front.get("description") {
        Some(Value::String(text)) => text.trim().to_owned(),
        None | Some(Value::Null) => String::new(),
        Some(_) => {
            let why = "its `description` is not a text: put it in quotes";
            return Err(refuse(why.to_owned()));
        }
    };
    if description.is_empty() {
        return Err(refuse("it has no `description`".to_owned()));
    }
    if description.chars().count() > MAX_DESCRIPTION_CHARS {
        flaws.push(format!(
            "its `description` has more than {MAX_DESCRIPTION_CHARS} characters, which other \
            clients do not take: shorten it"
        ));
    }
    front.insert("name".to_owned(), name.clone().into());
    front.insert("description".to_owned(), description.clone().into());
    let skill = Skill {
        name: name.clone(),
        front: front.clone(),
        files,
        digests: Arc::default(),
    };
    let manifest = Manifest {
        id: format!("{NAMESPACE}:{name}"),
        display_name: name,
        description,
        raw: serde_json::json!({ "skill": front }),
        digest: sha256_hex(bytes),
        handler: Handler::Skill(skill),
        ..BARE.clone()
    };
    let flaws = flaws.into_iter();
    let flaws = flaws.map(|it| Problem::new(Severity::Warning, Code::Schema, "", it));
    Ok((manifest, flaws.collect()))
}

/// Lower-case letters, digits and single hyphens between them.
fn is_name(name: &str) -> bool {
    fn part(part: &str) -> bool {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit())
    }
    name.len() <= MAX_NAME && name.split('-').all(part)
}

/// What stands between the first two lines `---`, and what is doubtful about it.
fn front_matter(bytes: &[u8]) -> Result<(Map<String, Value>, Vec<String>), String> {
    let whole = text::decode(bytes)?;
    let whole = whole.strip_prefix('\u{feff}').unwrap_or(whole);
    let mut lines = whole.lines().map(str::trim_end);
    if lines.next() != Some("---") {
        return Err("its first line is not `---`".to_owned());
    }
    let lines: Vec<&str> = lines.collect();
    let end = lines.iter().position(|line| *line == "---");
    let lines = lines.get(..end.unwrap_or(lines.len())).unwrap_or_default();
    let front = lines.join("\n");
    if front.len() > MAX_FRONT_BYTES {
        return Err(format!(
            "more than {MAX_FRONT_BYTES} bytes stand before the second line `---`"
        ));
    }
    let unended = "a second line `---` is missing, so that the whole file is read as YAML: add it";
    let mut flaws = Vec::new();
    if end.is_none() {
        flaws.push(unended.to_owned());
    }
    let read = values(&front).or_else(|why| {
        let repaired: Vec<String> = lines.iter().map(|line| quoted(line)).collect();
        let flaw = "a value with a colon is read as if it stood in quotes: quote it";
        flaws.push(flaw.to_owned());
        values(&repaired.join("\n")).map_err(|_| end.map_or(unended.to_owned(), |_| why))
    });
    Ok((read?, flaws))
}

/// A line `name: text with a colon: in it` as it was most likely meant.
fn quoted(line: &str) -> String {
    match line.split_once(": ") {
        Some((name, value))
            if value.contains(": ") && !value.starts_with(['"', '\'', '[', '{']) =>
        {
            format!("{name}: {}", Value::from(value.trim()))
        }
        _ => line.to_owned(),
    }
}

/// YAML as JSON.
fn values(yaml: &str) -> Result<Map<String, Value>, String> {
    let mut reader = YamlReader {
        events: Parser::new_from_str(yaml),
        left: MAX_VALUES,
    };
    let first = reader.next()?;
    match reader.value(first, MAX_DEPTH)? {
        Value::Object(front) => Ok(front),
        _ => Err("what stands between the lines `---` is not `name: value`".to_owned()),
    }
}

struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// How many more events are read.
    left: usize,
}

impl<'a> YamlReader<'a> {
    /// The next event that is not about the document as a whole.
    fn next(&mut self) -> Result<Event<'a>, String> {
        loop {
            self.left = self.left.checked_sub(1).ok_or("too many values")?;
            let event = self.events.next().ok_or("it ends too early")?;
            match event.map_err(|why| text::printable(&why.to_string()))?.0 {
                Event::StreamStart | Event::DocumentStart(_) => {}
                event => return Ok(event),
            }
        }
    }

    /// The value that begins with this event. Anchors and aliases, by which a small text becomes a
    /// large value, are refused.
    fn value(&mut self, event: Event<'_>, levels: usize) -> Result<Value, String> {
        match event {
            Event::Scalar(text, style, 0, _) => Ok(scalar(&text, style)),
            Event::SequenceStart(0, _) if levels > 0 => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(list.into()),
                        event => list.push(self.value(event, levels - 1)?),
                    }
                }
            }
            Event::MappingStart(0, _) if levels > 0 => {
                let mut fields = Map::new();
                loop {
                    let name = match self.next()? {
                        Event::MappingEnd => return Ok(fields.into()),
                        Event::Scalar(name, _, 0, _) => text::printable(&name),
                        _ => return Err("a name is not a text".to_owned()),
                    };
                    let event = self.next()?;
                    let value = self.value(event, levels - 1)?;
                    if fields.insert(name.clone(), value).is_some() {
                        return Err(format!("'{name}' is there twice"));
                    }
                }
            }
            _ => Err("more than 8 levels, an anchor (&) or an alias (*) is not read".to_owned()),
        }
    }
}

fn scalar(written: &str, style: ScalarStyle) -> Value {
    let shown = || Value::from(text::printable_block(written));
    if style != ScalarStyle::Plain {
        return shown();
    }
    match serde_json::from_str(written) {
        Ok(value @ (Value::Bool(_) | Value::Number(_) | Value::Null)) => value,
        _ if written.is_empty() || written == "~" => Value::Null,
        _ => shown(),
    }
}
