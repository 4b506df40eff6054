//! What hides the secrets of one call, wherever its texts are shown. It grows while the call is
//! decided and confined: what was hidden once stays hidden.
//!
//! Secret are values of `[secrets]` (8 bytes or more), host variables granted as `env:NAME`, and
//! arguments marked `writeOnly` or `x-secret`.
//!
//! - A secret argument is hidden where it stands in questions and records, whatever its length, and
//!   searched for only in what the tool says: so no caller hides other text from an operator.
//!   Questions and records are searched for secrets of this host alone, which stand there as
//!   `[secret NAME]`. Where more is hidden than a schema marks (a member that it does not declare),
//!   no person is asked and the call is refused.
//! - Shorter variables are not searched for. A shorter argument is hidden where a tool gives it
//!   back alone, as a whole value.
//! - Names of members are searched for values of `[secrets]` and host variables, not for arguments.
//! - What a call's `env` brings is not secret: records hold the names of those variables, never
//!   their values.
//! - Of a script that a call names, the parameters of every manifest that it belongs to say what of
//!   its input is secret. Where none is found, its input is not shown. The source text of
//!   `core:run-code` is.
//!
//! The masker (`base::mask`) finds a secret
//!
//! - in letters of either case (Unicode's simple folding), with each character as it is or as
//!   `%XX`, `\uXXXX`, `\xXX`, `\` and a sign, `&#n;`, `&#xh;`, or one of the five named entities
//!   with its semicolon, in any mixture;
//! - in base64 of both alphabets, also within longer data and broken into lines (one line break and
//!   its blanks, up to 12 bytes, between two characters), and then encoded as above;
//! - through two such decodings, one in another.
//!
//! Not found: a third decoding; base64 in base64, or of an encoded secret; an encoded character of
//! more than 12 bytes; a secret whose first character is read with a `%`, `\` or `&` before it
//! where others of its characters are encoded; hex, quoted-printable, octal, compression,
//! encryption, or any other transformation. Of base64 the one character at either end that
//! neighbours share can stay. A secret that a tool breaks over several lines of its log is found in
//! the report and the record, not in the lines that are shown while it runs.
//!
//! A streamed text is delayed by 24 bytes for each character of the longest secret or its base64,
//! and 288 more: room for a secret that was encoded twice. In an answer of a host an empty line
//! (two line breaks) ends a text: everything before it is passed on at once, and a secret with an
//! empty line inside, for instance in base64, is not found. Beside a cut (`…`, `[…]`) of a log,
//! record or report the same number of bytes is hidden. If the secrets of a call and their lines
//! are longer than 100 KiB together, whole texts are hidden (`***`).

use super::redact::{self, Masked, RecordArguments};
use crate::base::mask::Mask;
use crate::base::text;
use crate::executor::{Denial, Ending, Outcome};
use crate::fault::Fault;
use crate::policy;
use serde_json::Value;
use std::sync::Arc;

/// Longest target of a denial, and longest line that would request it, characters.
const TARGET: usize = 200;
const ASK: usize = 2000;
/// Longest beginning of a bad output, characters.
const BAD_OUTPUT: usize = 200;

/// An argument that is hidden until the script that it is for is found.
pub(super) type Withheld = Option<(String, Value)>;

#[derive(Clone, Default)]
pub(super) struct Redaction {
    pub mask: Mask,
    /// Only the secrets that this host gives: names of members, and what operators read, are
    /// searched for these.
    pub host: Mask,
    arguments: Arc<RecordArguments>,
    /// More of the arguments is hidden than what a schema marks as secret.
    pub hides_unmarked: bool,
}

impl Redaction {
    /// Takes in the arguments, which are read before they are checked, and again with defaults
    /// filled in.
    pub fn take(&mut self, arguments: Masked) -> Withheld {
        self.mask.join(arguments.mask);
        self.arguments = Arc::new(arguments.shown);
        self.hides_unmarked = arguments.hides_unmarked;
        arguments.withheld
    }

    /// What hides the secrets of a call whose code makes another one, for that one.
    pub fn for_nested(&self) -> Redaction {
        Redaction {
            mask: self.mask.clone(),
            host: self.host.clone(),
            ..Redaction::default()
        }
    }

    /// The script that a call names is found: the schemas of all its manifests say what of its
    /// input is secret.
    pub fn show_input<'s>(
        &mut self,
        withheld: Withheld,
        schemas: impl Iterator<Item = &'s Value>,
        input: &Value,
    ) {
        let (name, mut shown) = withheld.unwrap_or_else(|| (String::new(), input.clone()));
        for schema in schemas {
            let redacted = redact::hide(schema, &shown);
            self.mask.join(redacted.mask);
            shown = redacted.shown;
            self.hides_unmarked |= redacted.hides_unmarked;
        }
        if let RecordArguments::Tree(arguments) = Arc::make_mut(&mut self.arguments)
            && let Some(argument) = arguments.get_mut(&name)
        {
            *argument = shown;
        }
    }

    /// Hides a text of this host.
    pub fn hide(&mut self, name: &str, secret: &str) {
        self.mask.add(secret);
        self.host.add_as(secret, &format!("[secret {name}]"));
    }

    /// Hides the host's own variables. What the call brings is not a secret of this host.
    pub fn hide_variables(&mut self, shape: &policy::Shape) {
        for (name, variable) in &shape.env {
            variable
                .host()
                .into_iter()
                .for_each(|value| self.hide(name, value));
        }
    }

    /// The arguments as an operator reads them. What a caller brings as secret is hidden where it
    /// stands, and nowhere else: otherwise a caller could decide what an operator does not see.
    pub fn arguments(&self) -> String {
        let shown = self.arguments.to_string();
        self.host.record(&shown).unwrap_or(shown)
    }

    /// A text of the tool as a reader may see it, on one line.
    pub fn line(&self, words: &str) -> String {
        line(&self.mask, words)
    }

    /// A JSON text with the secrets hidden. `None`: there is nothing to hide. `joins`: it is a list
    /// of texts, which are one text.
    pub fn answer(&self, json: &str, joins: bool) -> Option<String> {
        self.mask.answer(json, &self.host, joins)
    }

    /// Hides secrets in the texts of a run.
    pub fn apply(&self, outcome: &mut Outcome) {
        outcome.logs = self.mask.lines(&outcome.logs);
        outcome.printed = self.mask.lines(&outcome.printed);
        for artifact in &mut outcome.artifacts {
            artifact.path = self.line(&artifact.path);
        }
        if let Ending::BadOutput { head, .. } = &mut outcome.ending {
            // Without a sign that it was cut: beside one, masking the fault hides more.
            *head = self.mask.text(head).chars().take(BAD_OUTPUT).collect();
        }
    }

    /// Denials as the caller gets them.
    pub fn denials(&self, denials: &[Denial]) -> Vec<Denial> {
        shown_denials(&self.mask, denials)
    }

    /// Hides secrets and control characters in a fault.
    pub fn fault(&self, mut fault: Fault) -> Fault {
        let block = |text: String| text::printable_block(&self.mask.text(&text));
        fault.message = self.line(&fault.message);
        fault
            .flaws
            .iter_mut()
            .for_each(|flaw| *flaw = self.line(flaw));
        fault.details = fault.details.map(block);
        fault.person = fault.person.map(block);
        fault
    }
}

/// A text on one line, these secrets hidden.
pub(super) fn line(mask: &Mask, words: &str) -> String {
    text::printable(&mask.text(words))
}

/// Denials with these secrets and control characters hidden, and long texts cut.
pub(super) fn shown_denials(mask: &Mask, denials: &[Denial]) -> Vec<Denial> {
    let sanitize = |text: &str, most| text::head(&line(mask, text), most);
    let denials = denials.iter().map(|denial| Denial {
        target: sanitize(&denial.target, TARGET),
        rule: sanitize(&denial.rule, TARGET),
        // Lines of a policy stay lines.
        ask: (denial.ask.as_ref())
            .map(|ask| text::head(&text::printable_block(&mask.text(ask)), ASK)),
        ..denial.clone()
    });
    denials.collect()
}
