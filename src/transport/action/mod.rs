//! `<ACTION>` and `<OBSERVATION>`: one call that a model writes into its text, and the answer that
//! it reads.
//!
//! Nothing that a tool says can be read as protocol text.

mod read;
#[cfg(test)]
mod tests;
mod xml;

pub use read::{Action, ActionError, Context, Dialect, ParsedText, read};

use crate::base::json::Text;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::Handler;
use crate::quantity::Limit;
use crate::registry::Tool;
use crate::service::background::Receipt;
use crate::service::output::OutputKind;
use crate::service::{
    Arguments, CallRequest, CallResult, Report, Reporting, Service, Sink, output,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What an action without a readable tool is called.
const UNKNOWN: &str = "unknown";
/// Longest id that an observation gives back, characters.
const MAX_ID_CHARS: usize = 200;

/// Resolves ids that the registry does not know (nodes of a platform, tools under other names) to
/// tools of the registry, which are called as usual.
pub trait Resolver: Send + Sync {
    /// `None`: this resolver does not know the id either.
    fn resolve(&self, id: &str, inputs: &Map<String, Value>) -> Option<ActionTarget>;
}

/// A tool of the registry (`id` or `id@range`), and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionTarget {
    pub tool: String,
    pub arguments: Arguments,
}

/// What a text of a model led to.
#[derive(Debug, Serialize)]
pub struct ActionResult {
    /// The text before the action, which is for the person; all of the text where it holds no
    /// action.
    pub lead: String,
    pub dialect: Option<Dialect>,
    /// For the model. `None`: the text holds no action, and nothing was called.
    pub observation: Option<String>,
    pub warnings: Vec<String>,
    /// Set if the call runs in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// The whole outcome of the call.
    pub outcome: Option<Report>,
}

/// Makes the call that a text asks for, as the caller and with the label, key and approver of
/// `from`. Ids that the registry does not know are asked of the resolvers, in this order. Dropping
/// the future cancels the call.
pub async fn act(
    service: &Service,
    resolvers: &[&dyn Resolver],
    from: CallRequest,
    mut reading: ParsedText,
) -> ActionResult {
    let Some(request) = request(service, resolvers, from, &mut reading) else {
        return reading.without_action();
    };
    let report = service.call(request, Sink::none()).await;
    reading.answered(report).await
}

/// The request that a reading leads to; `None`: it has no action.
pub fn request(
    service: &Service,
    resolvers: &[&dyn Resolver],
    from: CallRequest,
    reading: &mut ParsedText,
) -> Option<CallRequest> {
    let ParsedText {
        action, warnings, ..
    } = reading;
    let action = match action.as_mut()? {
        Ok(action) => action,
        Err(unread) => {
            let tool = unread.tool.as_deref().unwrap_or(UNKNOWN);
            return Some(CallRequest {
                tool: tool.to_owned(),
                refused: Some(unread.fault.clone()),
                ..from
            });
        }
    };
    let mut tool = action.tool.clone();
    // A tool that this caller may not call does not exist for it.
    let find = |tool: &str| {
        service.catalog.find(
            &service.catalog.who(&from.caller, from.label.as_deref()),
            tool,
        )
    };
    let mut found = find(&tool);
    let unknown = found
        .as_ref()
        .is_err_and(|fault| fault.kind == Kind::ToolNotFoundError);
    let resolved = resolvers
        .iter()
        .filter(|_| unknown)
        .find_map(|other| other.resolve(&tool, &action.inputs));
    let arguments = match resolved {
        Some(resolved) => {
            tool = resolved.tool;
            found = find(&tool);
            resolved.arguments
        }
        None => {
            let texts = Value::Object(std::mem::take(&mut action.inputs.0));
            Arguments::Inputs {
                texts,
                duplicates: std::mem::take(&mut action.duplicates),
            }
        }
    };
    let asked_ms = action.context.timeout_ms;
    let timeout_ms =
        asked_ms.and_then(|asked| shorten_timeout(found.ok()?.as_ref(), asked, warnings));
    let reporting = Reporting {
        transaction: action.context.transaction.clone(),
        ..from.reporting.clone()
    };
    Some(CallRequest {
        tool,
        arguments,
        timeout_ms,
        reporting,
        ..from
    })
}

/// A time limit of the context, where it is shorter than what the tool gets without it.
fn shorten_timeout(tool: &Tool, asked_ms: u64, warnings: &mut Vec<String>) -> Option<u64> {
    if matches!(tool.manifest.handler, Handler::ServiceMethod { .. }) {
        warnings.push(
            "the timeoutMs of <context> was ignored: this tool takes it as an input".to_owned(),
        );
        return None;
    }
    let usual = tool
        .manifest
        .execution
        .timeout_ms
        .unwrap_or(Limit::TimeoutMs.built_in_default());
    if asked_ms > usual {
        warnings.push(
            "the timeoutMs of <context> was ignored: it can only shorten the tool's own".to_owned(),
        );
    }
    (asked_ms <= usual).then_some(asked_ms)
}

impl ParsedText {
    /// The answer to a text that holds no action.
    pub fn without_action(self) -> ActionResult {
        ActionResult {
            lead: self.lead,
            dialect: None,
            observation: None,
            warnings: self.warnings,
            receipt: None,
            outcome: None,
        }
    }

    /// The answer to an action whose call runs in the background.
    pub fn accepted(self, receipt: Receipt) -> ActionResult {
        let call = &receipt.call.id;
        let asked = text::head(&text::printable(self.tool()), MAX_ID_CHARS);
        let attributes = [("call_id", call.clone()), ("status", "accepted".to_owned())];
        let sentence = output::accepted(&asked, call);
        let observation = render(&attributes, &asked, &sentence, &self.warnings);
        ActionResult {
            observation: Some(observation),
            receipt: Some(receipt),
            ..self.without_action()
        }
    }

    /// The name by which the action calls its tool.
    pub fn tool(&self) -> &str {
        let tool = match &self.action {
            Some(Ok(action)) => Some(action.tool.as_str()),
            Some(Err(unread)) => unread.tool.as_deref(),
            None => None,
        };
        tool.unwrap_or(UNKNOWN)
    }

    /// The answer to an action, made of the report of its call.
    pub async fn answered(self, report: Report) -> ActionResult {
        let dialect = match &self.action {
            Some(Ok(action)) => Some(action.dialect),
            Some(Err(unread)) => unread.dialect,
            None => return self.without_action(),
        };
        let asked = text::head(&text::printable(self.tool()), MAX_ID_CHARS);
        // The name of a tool that a resolver chose is unknown to the agent.
        let id = asked.split('@').next().unwrap_or_default();
        let status = if report.outcome.is_success() {
            "success"
        } else {
            "failed"
        };
        let mut attributes = vec![
            ("call_id", report.id.clone()),
            ("status", status.to_owned()),
        ];
        attributes.extend(report.version.clone().map(|version| ("version", version)));
        let name = dialect.map(|dialect| {
            if dialect == Dialect::Legacy {
                "legacy"
            } else {
                "canonical"
            }
        });
        attributes.extend(name.map(|name| ("dialect", name.to_owned())));
        let mut notes = self.warnings.clone();
        notes.extend(report.notes.iter().cloned());
        let advice = report.outcome.fault().and_then(output::advice);
        notes.extend(advice.map(|advice| format!("What to do: {advice}")));
        let id = id.trim().to_owned();
        let observation = match &report.outcome {
            CallResult::Output(answer) => {
                let content = answer.content.clone();
                let render = move |text: &Text| {
                    let sentence = output::succeeded(&id, text.as_str(), content.as_ref());
                    render(&attributes, &asked, &sentence, &notes)
                };
                answer
                    .read(false, render)
                    .await
                    .unwrap_or_else(|late| late.to_string())
            }
            other => {
                let sentence = match other.fault() {
                    Some(fault) => output::failed(&id, &output::for_model(fault)),
                    None => output::succeeded(&id, "null", None),
                };
                render(
                    &attributes,
                    &asked,
                    &output::cut_observation(sentence, &[]),
                    &notes,
                )
            }
        };
        let observation = Some(observation);
        ActionResult {
            lead: self.lead,
            dialect,
            observation,
            warnings: self.warnings,
            receipt: None,
            outcome: Some(report),
        }
    }
}

/// The outcome of a call that ended in the background, as its receipt has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndedCall<'a> {
    id: String,
    tool: String,
    version: Option<String>,
    #[serde(borrow)]
    output_data: Option<&'a RawValue>,
    error: Option<EndedError>,
    #[serde(default)]
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct EndedError {
    r#type: Kind,
    message: String,
    details: Option<String>,
    retryable: bool,
}

/// The observation of a call that ended in the background, from its outcome as JSON.
pub fn ended(outcome: &str) -> String {
    let ended: EndedCall = match serde_json::from_str(outcome) {
        Ok(ended) => ended,
        Err(_) => return String::new(),
    };
    let mut notes = ended.notes;
    let mut status = "success";
    let sentence = match ended.error {
        Some(error) => {
            let fault = Fault {
                details: error.details,
                retryable: error.retryable,
                ..Fault::new(error.r#type, error.message)
            };
            let advice = output::advice(&fault);
            notes.extend(advice.map(|advice| format!("What to do: {advice}")));
            status = "failed";
            let sentence = output::failed(&ended.tool, &output::for_model(&fault));
            output::cut_observation(sentence, &[])
        }
        None => {
            let answer = ended.output_data.map_or("null", RawValue::get);
            let kind = OutputKind::read(answer, false).ok();
            let content = kind.and_then(|kind| kind.places(answer));
            output::succeeded(&ended.tool, answer, content.as_ref())
        }
    };
    let mut attributes = vec![("call_id", ended.id), ("status", status.to_owned())];
    attributes.extend(ended.version.map(|version| ("version", version)));
    render(&attributes, &ended.tool, &sentence, &notes)
}

/// The observation as text. Markup of a tool or a caller is written as entities, and invisible
/// characters as escapes.
fn render(attributes: &[(&str, String)], tool: &str, sentence: &str, notes: &[String]) -> String {
    let attribute = |(name, value): &(&str, String)| {
        format!(" {name}=\"{}\"", inert(value).replace('"', "&quot;"))
    };
    let attributes = attributes.iter().map(attribute);
    let notes = notes
        .iter()
        .map(|note| format!("  <note>{}</note>\n", inert(note)));
    format!(
        "<OBSERVATION{}>\n  <tool_id>{}</tool_id>\n  <content>{}</content>\n{}</OBSERVATION>",
        attributes.collect::<String>(),
        inert(tool),
        inert(sentence),
        notes.collect::<String>()
    )
}

/// A text in which nothing is markup.
fn inert(text: &str) -> String {
    // Control characters become \uXXXX, but for line breaks and tabs.
    let visible = text
        .split('\t')
        .map(text::escaped_json)
        .collect::<Vec<_>>()
        .join("\t");
    visible
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
