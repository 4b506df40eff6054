//! Reads the answer of a tool once, within the time of its call: checks it, hides secrets in it,
//! and makes it the text that is sent.

use super::output::{self, OutputKind};
use super::redaction::Redaction;
use super::report::CallResult;
use crate::base::json::{self, Text};
use crate::base::mask::HIDDEN;
use crate::base::text;
use crate::executor::{CallDeadline, ToolAnswer};
use crate::fault::{Fault, Kind};
use crate::manifest::Manifest;
use crate::quantity::{Limit, MAX_TREE_BYTES};
use serde_json::{Value, json};
use std::sync::Arc;

/// The member of an envelope that holds the output.
const OUTPUT_DATA: &str = "outputData";

/// What an answer is held to.
pub(super) struct AnswerRules {
    pub manifest: Arc<Manifest>,
    /// The envelope without its output, if the tool uses one.
    pub envelope: Option<Value>,
    pub redaction: Arc<Redaction>,
    /// The answer is made of the parts of a stream: they may hold a secret together.
    pub is_streamed: bool,
    /// The answer is a list of texts, which are one text.
    pub joins_texts: bool,
    pub max_bytes: u64,
}

/// An answer as it is sent, or what the tool asks its client. It holds no secret.
pub(super) struct ReadAnswer {
    pub result: CallResult,
    pub hid_secrets: bool,
}

impl AnswerRules {
    pub async fn read(
        self,
        output: ToolAnswer,
        deadline: CallDeadline,
    ) -> Result<ReadAnswer, Fault> {
        let schema = self.manifest.output.as_ref();
        let small = output.small().filter(|_| schema.is_some());
        let is_long = schema.is_some_and(|schema| {
            let value = small.and_then(|text| serde_json::from_str(text).ok());
            value.is_some_and(|value: Value| schema.takes_long(&value))
        });
        let output = output.within(&deadline);
        let sent = deadline.clone();
        output
            .read(is_long, move |text| self.read_text(text, &sent))
            .await?
    }

    fn read_text(self, output: &Text, deadline: &CallDeadline) -> Result<ReadAnswer, Fault> {
        let joined = if self.joins_texts {
            serde_json::from_str::<Vec<String>>(output.as_str()).ok()
        } else {
            None
        };
        let joined = joined.map(|texts| Text::from(&Value::String(texts.concat())));
        let output = joined.as_ref().unwrap_or(output);
        let asked = self.number_asked_for(output);
        let output = asked.as_ref().unwrap_or(output);
        match self.kind(output)? {
            OutputKind::Plain => self.check(output)?,
            OutputKind::Content(content) if self.manifest.output.is_some() => {
                let structured = content
                    .structured
                    .and_then(|part| json::compact(part.get().as_bytes()).ok());
                self.check(&structured.unwrap_or_else(|| Text::from(&Value::Null)))?;
            }
            _ => {}
        }
        let shown = self.redaction.answer(output.as_str(), self.is_streamed);
        let hid_secrets = shown.is_some();
        let shown = shown.as_deref().unwrap_or(output.as_str());
        let escaped = if text::is_printable(shown) {
            None
        } else {
            Some(text::escaped_json(shown))
        };
        let shown = escaped.as_deref().unwrap_or(shown);
        if shown.len() as u64 > self.max_bytes {
            return Err(output::over_limit(Limit::OutputBytes, self.max_bytes));
        }
        let text = if hid_secrets || escaped.is_some() {
            Text::checked(shown).unwrap_or_else(|| Text::from(&json!(HIDDEN)))
        } else {
            output.clone()
        };
        let kind = self.kind(&text)?;
        let content = kind.places(text.as_str());
        if let OutputKind::Asks(questions) = kind {
            let result = CallResult::Questions(questions);
            return Ok(ReadAnswer {
                result,
                hid_secrets,
            });
        }
        let mut answer = ToolAnswer::new(text, deadline);
        answer.content = content;
        Ok(ReadAnswer {
            result: CallResult::Output(answer),
            hid_secrets,
        })
    }

    /// A number or `null` that text output kept as it was printed, where the output schema takes that
    /// and no text.
    fn number_asked_for(&self, output: &Text) -> Option<Text> {
        if !self.manifest.execution.text_output || self.check(output).is_ok() {
            return None;
        }
        let word: String = serde_json::from_str(output.as_str()).ok()?;
        let word = word.trim();
        let number = json::compact(word.as_bytes()).ok()?;
        let is_number = word == "null" || word.parse::<f64>().is_ok();
        (is_number && self.check(&number).is_ok()).then_some(number)
    }

    /// What an answer is. One in an envelope may be content, and asks nothing.
    fn kind<'t>(&self, answer: &'t Text) -> Result<OutputKind<'t>, Fault> {
        OutputKind::read(answer.as_str(), self.envelope.is_none())
    }

    /// Checks an answer against the output schema; an envelope is checked as a whole.
    fn check(&self, output: &Text) -> Result<(), Fault> {
        let Some(schema) = &self.manifest.output else {
            let is_null = self.envelope.is_none() && output.as_str() == "null";
            return if is_null {
                self.manifest.check_output(&Value::Null)
            } else {
                Ok(())
            };
        };
        let takes_any = self.envelope.is_some() && schema.takes_any(OUTPUT_DATA);
        let value = if takes_any {
            Ok(Value::Null)
        } else {
            output.tree(MAX_TREE_BYTES)
        };
        let value = value.map_err(|_| {
            let most = MAX_TREE_BYTES >> 20;
            let words = format!(
                "Output must hold fewer values: checking them would take more than {most} MiB."
            );
            Fault::new(Kind::OutputValidationError, words)
        })?;
        let Some(mut envelope) = self.envelope.clone() else {
            return self.manifest.check_output(&value);
        };
        envelope[OUTPUT_DATA] = value;
        self.manifest.check_output(&envelope)
    }
}
