//! Reads an action in either dialect: the text before it, the action or everything that is wrong
//! with it, and warnings. An action with two possible readings is refused. No warning shows a
//! value, since that may be a secret.

use super::xml::{self, Element, SyntaxError};
use crate::base::json::line_and_column;
use crate::base::mask::Hidden;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::quantity::{MAX_ACTION_INPUTS, MAX_ACTION_TEXT_BYTES, MAX_FAULTS_TOLD};
use serde::Serialize;
use serde_json::{Map, Value};
use std::ops::Range;

/// The tag that begins a block.
const NAME: &str = "ACTION";

/// The forms in which models write actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// `<tool_id>` and `<inputs>`.
    Canonical,
    /// The tag names the tool, its children the parameters.
    Legacy,
}

/// A text of a model, and the action in it.
#[derive(Debug, Default)]
pub struct ParsedText {
    /// The text before the action; all of it where there is none.
    pub lead: String,
    /// `None`: the text holds no action.
    pub action: Option<Result<Action, Box<ActionError>>>,
    pub warnings: Vec<String>,
}

/// One requested call.
#[derive(Debug)]
pub struct Action {
    /// `id` or `id@range`.
    pub tool: String,
    /// Texts; in the legacy dialect also lists and objects of texts.
    pub inputs: Hidden<Map<String, Value>>,
    /// Names of inputs that were given more than once.
    pub duplicates: Vec<String>,
    pub context: Context,
    pub dialect: Dialect,
}

/// What comes with a call beside its inputs. It gives a call no right.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// What the caller groups calls by.
    pub transaction: Option<String>,
    /// A shorter time limit.
    pub timeout_ms: Option<u64>,
}

/// An action that cannot be read.
#[derive(Debug)]
pub struct ActionError {
    /// The text where the tool's id should be, if known.
    pub tool: Option<String>,
    pub dialect: Option<Dialect>,
    pub fault: Fault,
}

/// Reads a text.
pub fn read(text: &str) -> ParsedText {
    if text.len() > MAX_ACTION_TEXT_BYTES {
        let words = format!(
            "The text is longer than {MAX_ACTION_TEXT_BYTES} bytes, so no action was looked for."
        );
        return ParsedText {
            action: Some(Err(unread(Fault::new(Kind::ActionParseError, words)))),
            ..ParsedText::default()
        };
    }
    let (start, passed) = first_block(text);
    let mut warnings = Vec::new();
    if passed {
        warnings
            .push("an <ACTION> in a code span was taken as a name, not as an action".to_owned());
    }
    let Some(start) = start else {
        return ParsedText {
            lead: text.to_owned(),
            action: None,
            warnings,
        };
    };
    let lead = lead(&text[..start]).to_owned();
    let block = if is_closed(&text[start..]) {
        xml::read(text, start)
    } else {
        Err(SyntaxError {
            offset: start,
            message: "no </ACTION> follows this <ACTION>".to_owned(),
        })
    };
    let action = match block {
        Err(SyntaxError {
            offset: at,
            message,
        }) => {
            let (line, column) = line_and_column(text, at);
            let what = text::head(&message, 300);
            let words =
                format!("Malformed XML in ACTION block at line {line}, column {column}: {what}.");
            Err(unread(Fault::new(Kind::ActionParseError, words)))
        }
        Ok((root, end)) => {
            let (further, said) = after_block(&text[end..]);
            if further > 0 {
                let blocks = if further == 1 { "block" } else { "blocks" };
                warnings.push(format!(
                    "{further} further ACTION {blocks} ignored: a text makes one call"
                ));
            } else if said {
                warnings.push("the text after the ACTION block was ignored".to_owned());
            }
            let mut block = Block {
                text,
                flaws: Vec::new(),
                more: 0,
                warnings: &mut warnings,
            };
            block.action(&root)
        }
    };
    ParsedText {
        lead,
        action: Some(action),
        warnings,
    }
}

fn unread(fault: Fault) -> Box<ActionError> {
    Box::new(ActionError {
        tool: None,
        dialect: None,
        fault,
    })
}

/// The reading of one block whose XML is good.
struct Block<'t> {
    text: &'t str,
    flaws: Vec<String>,
    /// Flaws that are only counted: finding their places would take long.
    more: usize,
    warnings: &'t mut Vec<String>,
}

impl Block<'_> {
    fn action(&mut self, root: &Element) -> Result<Action, Box<ActionError>> {
        self.is(root, "ACTION");
        self.has_no(root, "attributes");
        if !root.text.is_empty() {
            self.flaw(
                root,
                "there is text between the elements of the ACTION block",
            );
        }
        let canonical = ["tool_id", "inputs", "input", "context"];
        let legacy = root.children.first().is_some_and(|first| {
            !canonical
                .iter()
                .any(|name| first.name.eq_ignore_ascii_case(name))
        });
        let action = if legacy {
            self.legacy(root)
        } else {
            self.canonical(root)
        };
        if self.flaws.is_empty() {
            return Ok(action);
        }
        self.flaws
            .extend((self.more > 0).then(|| format!("And {} more.", self.more)));
        let fault = Fault::of_flaws(Kind::ActionParseError, std::mem::take(&mut self.flaws));
        let tool = Some(action.tool).filter(|tool| !tool.is_empty());
        Err(Box::new(ActionError {
            tool,
            dialect: Some(action.dialect),
            fault,
        }))
    }

    /// `<tool_id>`, `<inputs>`, and further elements.
    fn canonical(&mut self, root: &Element) -> Action {
        let mut action = Action::new(Dialect::Canonical);
        let mut tool = false;
        let mut inputs = false;
        let mut context = false;
        for (at, child) in root.children.iter().enumerate() {
            if self.is(child, "tool_id") {
                self.once(child, &mut tool);
                if at > 0 {
                    self.flaw(
                        child,
                        "<tool_id> must be the first element of the ACTION block",
                    );
                }
                action.tool = self.words(child);
            } else if self.is(child, "inputs") {
                self.once(child, &mut inputs);
                self.inputs(child, &mut action);
            } else if self.is(child, "input") {
                self.flaw(child, "<input> belongs in <inputs>");
            } else {
                self.further(child, &mut context, &mut action.context);
            }
        }
        if action.tool.is_empty() {
            self.flaw(
                root,
                "The ACTION block names no tool: <tool_id> is empty or missing",
            );
        }
        action
    }

    fn inputs(&mut self, inputs: &Element, action: &mut Action) {
        self.has_no(inputs, "attributes");
        if !inputs.text.is_empty() {
            self.flaw(inputs, "there is text between the inputs");
        }
        if inputs.children.len() > MAX_ACTION_INPUTS {
            return self.flaw(
                inputs,
                &format!("there are more than {MAX_ACTION_INPUTS} inputs"),
            );
        }
        for (at, input) in inputs.children.iter().enumerate() {
            if !self.is(input, "input") {
                let words = format!(
                    "<{}> is not an input: write <input name=\"…\">",
                    shown(input.name)
                );
                self.flaw(input, &words);
                continue;
            }
            let named =
                |fits: &dyn Fn(&str) -> bool| input.attributes.iter().find(|(word, _)| fits(word));
            let name = named(&|word| word == "name")
                .or_else(|| named(&|word| word.eq_ignore_ascii_case("name")));
            if let Some((word, _)) = name.filter(|(word, _)| word != "name") {
                self.warn(input, &format!("has {word}, which was read as name"));
            }
            let name = name.map(|(_, name)| name);
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                self.flaw(
                    input,
                    &format!("input {} has no name: write <input name=\"…\">", at + 1),
                );
                continue;
            };
            if input.attributes.len() > 1 {
                self.warn(input, "has attributes beside name, which were ignored");
            }
            if !input.children.is_empty() {
                let words = format!(
                    "input '{}' holds elements: put its value in CDATA, or write JSON",
                    shown(name)
                );
                self.flaw(input, &words);
            }
            if action.inputs.contains_key(name) {
                action
                    .duplicates
                    .extend((!action.duplicates.contains(name)).then(|| name.clone()));
            } else {
                action
                    .inputs
                    .0
                    .insert(name.clone(), Value::String(input.text.clone()));
            }
        }
    }

    /// The tag names the tool, its children the parameters.
    fn legacy(&mut self, root: &Element) -> Action {
        let mut action = Action::new(Dialect::Legacy);
        let words =
            "this is the legacy form, in which a tag names the tool; write <tool_id> and <inputs>";
        self.warnings.push(words.to_owned());
        let mut context = false;
        for (at, child) in root.children.iter().enumerate() {
            if at > 0 && self.is(child, "context") {
                self.further(child, &mut context, &mut action.context);
            } else if at > 0 {
                self.flaw(
                    child,
                    &format!(
                        "<{}> is a second call: an ACTION block makes one",
                        shown(child.name)
                    ),
                );
            } else {
                action.tool = child.name.to_owned();
                self.has_no(child, "attributes");
                if !child.text.is_empty() {
                    self.flaw(
                        child,
                        &format!(
                            "<{}> must hold an element for each parameter",
                            shown(child.name)
                        ),
                    );
                }
                action.inputs = Hidden(self.members(child));
            }
        }
        action
    }

    /// Child elements as an object; of those that repeat, a list.
    fn members(&mut self, holder: &Element) -> Map<String, Value> {
        let mut members = Map::new();
        for child in &holder.children {
            self.has_no(child, "attributes");
            if !child.text.is_empty() && !child.children.is_empty() {
                self.flaw(
                    child,
                    &format!("<{}> holds text beside elements", shown(child.name)),
                );
            }
            let value = if child.children.is_empty() {
                Value::String(child.text.clone())
            } else {
                Value::Object(self.members(child))
            };
            match members.get_mut(child.name) {
                None => drop(members.insert(child.name.to_owned(), value)),
                Some(Value::Array(values)) => values.push(value),
                Some(one) => *one = Value::Array(vec![one.take(), value]),
            }
        }
        members
    }

    /// An element beside the tool's id and its inputs.
    fn further(&mut self, child: &Element, seen: &mut bool, context: &mut Context) {
        if !self.is(child, "context") {
            return self.warn(child, "is not known and was ignored");
        }
        self.once(child, seen);
        let mut transaction = false;
        let mut timeout = false;
        for part in &child.children {
            if self.is(part, "transaction_id") {
                self.once(part, &mut transaction);
                context.transaction = Some(self.words(part)).filter(|words| !words.is_empty());
            } else if self.is(part, "timeoutMs") {
                self.once(part, &mut timeout);
                context.timeout_ms = self.words(part).parse().ok();
                if context.timeout_ms.is_none() {
                    self.flaw(part, "the timeoutMs of <context> must be a whole number");
                }
            } else {
                self.warn(part, "in <context> is not known and was ignored");
            }
        }
    }

    /// The text of an element that holds nothing else.
    fn words(&mut self, element: &Element) -> String {
        self.has_no(element, "attributes");
        if !element.children.is_empty() {
            self.flaw(element, &format!("<{}> must hold text only", element.name));
        }
        element.text.trim().to_owned()
    }

    /// Whether an element has this name; another case of it is reported.
    fn is(&mut self, element: &Element, name: &str) -> bool {
        let is = element.name.eq_ignore_ascii_case(name);
        if is && element.name != name {
            self.warn(element, &format!("was read as <{name}>"));
        }
        is
    }

    fn once(&mut self, element: &Element, seen: &mut bool) {
        if std::mem::replace(seen, true) {
            self.flaw(element, &format!("<{}> occurs twice", element.name));
        }
    }

    fn has_no(&mut self, element: &Element, what: &str) {
        if !element.attributes.is_empty() {
            self.warn(element, &format!("has {what}, which were ignored"));
        }
    }

    /// Adds a flaw, with its place.
    fn flaw(&mut self, element: &Element, what: &str) {
        if self.flaws.len() == MAX_FAULTS_TOLD {
            self.more += 1;
            return;
        }
        let (line, column) = line_and_column(self.text, element.at);
        self.flaws
            .push(format!("{what} (line {line}, column {column})."));
    }

    fn warn(&mut self, element: &Element, what: &str) {
        if self.warnings.len() < MAX_FAULTS_TOLD {
            self.warnings
                .push(format!("<{}> {what}", shown(element.name)));
        }
    }
}

impl Action {
    fn new(dialect: Dialect) -> Action {
        let inputs = Hidden::default();
        let duplicates = Vec::new();
        Action {
            tool: String::new(),
            inputs,
            duplicates,
            context: Context::default(),
            dialect,
        }
    }
}

fn shown(name: &str) -> String {
    text::head(name, 80)
}

/// Where the first block begins, and whether a tag in a code span was passed over.
fn first_block(text: &str) -> (Option<usize>, bool) {
    let mut above = 0;
    let mut passed = false;
    for line in text.split_inclusive('\n') {
        let mut spans = code_spans(line).into_iter().peekable();
        let mut skip = 0;
        for (at, _) in line
            .match_indices('<')
            .filter(|(at, _)| begins(&line[*at..]))
        {
            if at < skip {
                continue;
            }
            while spans.next_if(|span| span.end <= at).is_some() {}
            match spans
                .peek()
                .filter(|span| span.start <= at && only_named(&line[at..span.end]))
            {
                Some(span) => (skip, passed) = (span.end, true),
                None => return (Some(above + at), passed),
            }
        }
        above += line.len();
    }
    (None, passed)
}

/// The text before a block, without the mark of a fence that is opened for it.
fn lead(before: &str) -> &str {
    let shown = before.trim_end();
    fn is_fence(line: &str) -> bool {
        ["```", "~~~"]
            .iter()
            .any(|mark| line.trim_start().starts_with(mark))
    }
    let last = shown.lines().last().unwrap_or_default();
    let opened = is_fence(last) && shown.lines().filter(|line| is_fence(line)).count() % 2 == 1;
    if opened {
        shown[..shown.len() - last.len()].trim_end()
    } else {
        shown
    }
}

/// How many blocks end in what follows the first one, and whether it holds anything but the mark
/// that closes a fence.
fn after_block(tail: &str) -> (usize, bool) {
    let said = tail.trim().trim_matches(['`', '~']).trim();
    (ends(tail).count(), !said.is_empty())
}

/// Whether a block ends anywhere in this text.
fn is_closed(text: &str) -> bool {
    ends(text).next().is_some()
}

fn ends(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices("</")
        .map(|(at, _)| at)
        .filter(|at: &usize| {
            named(&text[at + 2..]).is_some_and(|rest| rest.trim_start().starts_with('>'))
        })
}

/// What follows the tag's name, in any case.
fn named(text: &str) -> Option<&str> {
    let (name, rest) = text.split_at_checked(NAME.len())?;
    name.eq_ignore_ascii_case(NAME).then_some(rest)
}

/// Whether this is the first tag of a block. In another case than the protocol's it must be bare,
/// since other languages have an `<action …>` too.
fn begins(text: &str) -> bool {
    let Some(rest) = named(&text[1..]) else {
        return false;
    };
    fn bare(rest: &str) -> bool {
        rest.is_empty() || rest.starts_with(['>', '/'])
    }
    bare(rest.trim_start())
        || text[1..].starts_with(NAME) && rest.starts_with([' ', '\t', '\n', '\r'])
}

/// Whether a code span, from the tag to its end, only speaks of a block: a span that ends amid one
/// is a stray backtick.
fn only_named(span: &str) -> bool {
    let inside = span
        .split_once('>')
        .map_or("", |(_, inside)| inside.trim_start());
    !inside.starts_with('<') || inside.starts_with("</") || is_closed(inside)
}

/// The code spans of one line: from a run of one or two backticks to the next run of that length.
/// Longer runs are the marks of fences.
fn code_spans(line: &str) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in line.match_indices('`') {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += 1,
            None => runs.push(at..at + 1),
        }
    }
    runs.retain(|run| run.len() <= 2);
    let mut spans = Vec::new();
    let mut next = 0;
    while let Some(open) = runs.get(next) {
        next += 1;
        // Of each length at most one run is left without its end.
        if let Some(n) = runs[next..].iter().position(|run| run.len() == open.len()) {
            spans.push(open.end..runs[next + n].start);
            next += n + 1;
        }
    }
    spans
}
