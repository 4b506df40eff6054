//! Reads one XML element, strictly and within the bounds of `quantity`; a document's own entities
//! are refused.

use crate::quantity::{Limit, MAX_ACTION_DEPTH, MAX_ACTION_ELEMENTS, MAX_ACTION_TAG_BYTES};
use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// XML white space.
const BLANK: [char; 4] = [' ', '\t', '\r', '\n'];

pub struct Element<'t> {
    pub name: &'t str,
    /// Offset of its tag.
    pub at: usize,
    pub attributes: Vec<(String, String)>,
    /// Its own text, trimmed except where it was in CDATA.
    pub text: String,
    pub children: Vec<Element<'t>>,
}

pub struct SyntaxError {
    pub offset: usize,
    pub message: String,
}

/// Reads the element that begins at `start`. Also returns its end.
pub fn read(text: &str, start: usize) -> Result<(Element<'_>, usize), SyntaxError> {
    let mut reader = Reader::from_str(&text[start..]);
    fn place(position: u64, start: usize) -> usize {
        start + usize::try_from(position).unwrap_or_default()
    }
    let mut open = Vec::<OpenElement>::new();
    let mut elements = 0;
    loop {
        let at = place(reader.buffer_position(), start);
        let event = reader.read_event();
        let event = event.map_err(|e| SyntaxError {
            offset: place(reader.error_position(), start),
            message: message(&e),
        })?;
        let end = place(reader.buffer_position(), start);
        check_bounds(end - start, open.len(), elements).map_err(|message| SyntaxError {
            offset: at,
            message,
        })?;
        let mut begun = |tag: &BytesStart| {
            elements += 1;
            OpenElement::new(&text[at + 1..at + 1 + tag.name().as_ref().len()], at, tag)
        };
        let done = match event {
            Event::Start(tag) => {
                open.push(begun(&tag)?);
                None
            }
            Event::Empty(tag) => Some(begun(&tag)?.done()),
            Event::End(_) => open.pop().map(OpenElement::done),
            Event::Eof => {
                let (name, at) = open
                    .last()
                    .map_or(("", at), |open| (open.element.name, open.element.at));
                return Err(SyntaxError {
                    offset: at,
                    message: format!("<{name}> is not closed"),
                });
            }
            inside => {
                let taken = open.last_mut().map_or(Ok(()), |open| open.take(&inside));
                taken.map_err(|message| SyntaxError {
                    offset: at,
                    message,
                })?;
                None
            }
        };
        let Some(done) = done else { continue };
        match open.last_mut() {
            Some(parent) => parent.element.children.push(done),
            None => {
                return check_characters(&text[start..end])
                    .map(|()| (done, end))
                    .map_err(|bad| bad.below(start));
            }
        }
    }
}

impl SyntaxError {
    fn below(self, start: usize) -> SyntaxError {
        SyntaxError {
            offset: start + self.offset,
            ..self
        }
    }
}

fn check_bounds(bytes: usize, depth: usize, elements: usize) -> Result<(), String> {
    let most = Limit::InputBytes.built_in_default();
    if bytes as u64 > most {
        return Err(format!("the block is longer than {most} bytes"));
    }
    if depth > MAX_ACTION_DEPTH {
        return Err(format!(
            "elements are nested deeper than {MAX_ACTION_DEPTH} levels"
        ));
    }
    if elements > MAX_ACTION_ELEMENTS {
        return Err(format!(
            "the block has more than {MAX_ACTION_ELEMENTS} elements"
        ));
    }
    Ok(())
}

/// An element that is not closed yet.
struct OpenElement<'t> {
    element: Element<'t>,
    /// Text since the last CDATA section.
    run: String,
    /// The run holds a character reference, so it does not count as blank.
    referred: bool,
    /// A CDATA section came before the run.
    split: bool,
}

impl<'t> OpenElement<'t> {
    fn new(name: &'t str, at: usize, tag: &BytesStart) -> Result<OpenElement<'t>, SyntaxError> {
        fn broken(message: String, at: usize) -> SyntaxError {
            SyntaxError {
                offset: at,
                message,
            }
        }
        if !is_name(name) {
            return Err(broken(
                "this < is not a tag: write &lt;, or put the value in CDATA".to_owned(),
                at,
            ));
        }
        // Each attribute is compared with all before it.
        if tag.len() > MAX_ACTION_TAG_BYTES {
            return Err(broken(
                format!("a tag of more than {MAX_ACTION_TAG_BYTES} bytes"),
                at,
            ));
        }
        let mut attributes = Vec::new();
        for attribute in tag.attributes() {
            let attribute = attribute
                .map_err(|error| broken(format!("an attribute of <{name}>: {error}"), at))?;
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|error| broken(message(&error), at))?;
            if attribute.value.contains('<') || check_characters(&value).is_err() {
                return Err(broken(
                    format!("an attribute of <{name}> holds a character that XML does not allow"),
                    at,
                ));
            }
            attributes.push((attribute.key.as_ref().to_owned(), value.into_owned()));
        }
        let element = Element {
            name,
            at,
            attributes,
            text: String::new(),
            children: Vec::new(),
        };
        Ok(OpenElement {
            element,
            run: String::new(),
            referred: false,
            split: false,
        })
    }

    /// Takes the content of the element, except child elements.
    fn take(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Text(part) if part.contains("]]>") => {
                return Err(
                    "]]> outside of CDATA: inside it, split it as ]]]]><![CDATA[>".to_owned(),
                );
            }
            Event::Text(part) => self.run.push_str(part),
            Event::CData(part) => {
                self.flush(false);
                self.element.text.push_str(part);
                self.split = true;
            }
            Event::GeneralRef(reference) => {
                self.run.push(character(reference)?);
                self.referred = true;
            }
            Event::DocType(_) => return Err("a DOCTYPE is not allowed".to_owned()),
            Event::PI(_) | Event::Decl(_) => {
                return Err("a processing instruction is not allowed".to_owned());
            }
            Event::Comment(_) | Event::Start(_) | Event::Empty(_) | Event::End(_) | Event::Eof => {}
        }
        Ok(())
    }

    /// Appends the run to the text, unless it is blank. Trims only the ends of the whole value.
    fn flush(&mut self, last: bool) {
        let run = std::mem::take(&mut self.run);
        let blank = !std::mem::take(&mut self.referred) && run.trim_matches(BLANK).is_empty();
        let run = if self.split {
            &run
        } else {
            run.trim_start_matches(BLANK)
        };
        let run = if last {
            run.trim_end_matches(BLANK)
        } else {
            run
        };
        self.element.text.push_str(if blank { "" } else { run });
    }

    fn done(mut self) -> Element<'t> {
        self.flush(true);
        self.element
    }
}

fn is_name(name: &str) -> bool {
    let mut rest = name.chars();
    rest.next()
        .is_some_and(|c: char| c.is_alphabetic() || matches!(c, '_' | ':'))
        && rest.all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'))
}

/// The character of a reference.
fn character(reference: &BytesRef) -> Result<char, String> {
    let c = match &**reference {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        name => match reference.resolve_char_ref() {
            Ok(Some(c)) if is_char(c) => c,
            Ok(None) => {
                return Err(format!(
                    "&{name}; is not known: write &amp; for &, or put the value in CDATA"
                ));
            }
            _ => return Err(format!("&{name}; is not a character of XML")),
        },
    };
    Ok(c)
}

/// The characters that a document of XML 1.0 may hold.
fn is_char(c: char) -> bool {
    !(c.is_ascii_control() && !BLANK.contains(&c) && c != '\u{7f}'
        || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

fn check_characters(text: &str) -> Result<(), SyntaxError> {
    let bad = text.char_indices().find(|(_, c)| !is_char(*c));
    fn message(c: char) -> String {
        format!("the character U+{:04X} is not allowed in XML", u32::from(c))
    }
    bad.map_or(Ok(()), |(at, c)| {
        Err(SyntaxError {
            offset: at,
            message: message(c),
        })
    })
}

/// The tokenizer's message, without its heading.
fn message(error: &Error) -> String {
    if matches!(error, Error::IllFormed(IllFormedError::UnclosedReference)) {
        return "this & is not a reference: write &amp;, or put the value in CDATA".to_owned();
    }
    let text = error.to_string();
    text.split_once(": ")
        .map_or(text.as_str(), |(_, rest)| rest)
        .to_owned()
}
