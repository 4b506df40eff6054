//! Questions to a client: a tool's questions (its call is repeated with the answers), and whether a
//! person lets a call run. A newer client gets them as a result with a sealed state; an older one
//! is asked while its request waits.
//!
//! A tool asks a client, its model or its person only where its manifest requires it and a policy
//! grants it. The person reads which tool asks, and is never sent to a URL. The state between two
//! runs is signed, not hidden, and sealed to tool, arguments and caller; it holds no secret.
//! Answers of older clients hold no seal.

use crate::base::semaphore::Permit;
use crate::base::{lock, sha256_hex, text};
use crate::fault::{Fault, Kind};
use crate::service::output::Questions;
use crate::service::{self, Limiter, Question};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};
use rmcp::model::{
    CancelledNotificationParam, ClientCapabilities, ClientResult, ErrorData, GetExtensions,
    InputRequest, InputRequests, InputRequiredResult, InputResponses, RequestId, RequestStateCodec,
    SealOptions, ServerRequest,
};
use rmcp::service::{
    OriginatingRequestId, Peer, PeerRequestOptions, RequestContext, RoleServer, ServiceError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a client may take to answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Most rounds of questions in one call, if the client is asked while its request waits.
pub const ROUNDS: usize = 8;
/// The key of the question whether a call may run, which no tool's question has.
pub const PERSON: &str = "toolhost.confirm";

/// The key with which this server seals states. `None`: no key could be made, and nothing can be
/// asked.
pub struct Seal(Option<RequestStateCodec>);

/// What is sealed into a state, and what comes back with it.
#[derive(Default, Serialize, Deserialize)]
pub struct SealedState {
    /// The state of the tool.
    pub state: Value,
    /// The answers to the tool's questions, by its keys.
    pub answers: Map<String, Value>,
    /// The answer to the question whether the call may run.
    pub person: Option<PersonAnswer>,
}

/// An answer, and which question it is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct PersonAnswer {
    /// The call in question. Its question is answered once.
    pub call: String,
    pub digest: String,
    #[serde(default)]
    pub answer: Value,
}

/// The data that a state is bound to.
pub fn bind(caller: &str, tool: &str, arguments: &str) -> Vec<u8> {
    sha256_hex(json!([caller, tool, arguments]).to_string().as_bytes()).into_bytes()
}

impl Seal {
    pub fn new() -> Seal {
        let mut key = [0; 32];
        let random = SystemRandom::new().fill(&mut key).ok();
        Seal(random.and_then(|()| RequestStateCodec::try_new(key).ok()))
    }

    fn codec(&self) -> Result<&RequestStateCodec, ErrorData> {
        self.0
            .as_ref()
            .ok_or_else(|| ErrorData::internal_error("This host gives no random bytes.", None))
    }

    /// Opens the state that a client sends back. Its answers count only with a state of this
    /// server.
    pub fn open(
        &self,
        bound: &[u8],
        state: Option<&str>,
        answers: Option<InputResponses>,
    ) -> Result<SealedState, ErrorData> {
        let Some(state) = state else {
            return Ok(SealedState::default());
        };
        let words = "This requestState is for another call, or is too old.";
        let opened = self
            .codec()?
            .open_with(state, bound)
            .map_err(|_| ErrorData::invalid_params(words, None))?;
        let mut opened: SealedState = serde_json::from_slice(&opened).unwrap_or_default();
        let mut answers: Map<String, Value> = answers.unwrap_or_default().into_iter().collect();
        match &mut opened.person {
            Some(person) => person.answer = answers.remove(PERSON).unwrap_or_default(),
            None => opened.answers = answers,
        }
        Ok(opened)
    }

    /// Makes the result that asks the client.
    pub fn ask(
        &self,
        bound: &[u8],
        state: &SealedState,
        requests: InputRequests,
    ) -> Result<InputRequiredResult, ErrorData> {
        let options = SealOptions::new()
            .associated_data(bound)
            .ttl(ANSWER_TIMEOUT);
        let state = self
            .codec()?
            .seal_with(json!(state).to_string().as_bytes(), &options);
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }
}

/// Whether this client can show a form. One that names kinds supports only these.
pub fn is_askable(context: &RequestContext<RoleServer>) -> bool {
    let client = context.client_capabilities();
    client
        .and_then(|client| client.elicitation)
        .is_some_and(|kind| kind.form.is_some() || kind.url.is_none())
}

/// The error for a client that cannot be asked.
pub fn missing_capability() -> ErrorData {
    let needed: ClientCapabilities =
        serde_json::from_value(json!({"elicitation": {}})).unwrap_or_default();
    ErrorData::missing_required_client_capability(needed)
}

/// The keywords of a form's schema (MCP, "Elicitation"), beside `properties`.
const FORM_MEMBERS: &str = "type title description required enum enumNames oneOf anyOf const items \
                            minItems maxItems minLength maxLength minimum maximum format pattern \
                            default";

/// A form made of the members that are known, with printable texts.
fn form(asked: &Value) -> Value {
    match asked {
        Value::String(words) => json!(text::printable(words)),
        Value::Array(items) => items.iter().map(form).collect(),
        Value::Object(members) => members
            .iter()
            .filter_map(
                |(name, member): (&String, &Value)| match (name.as_str(), member) {
                    ("properties", Value::Object(fields)) => {
                        let fields = fields
                            .iter()
                            .map(|(name, field)| (text::printable(name), form(field)));
                        Some((name.clone(), fields.collect()))
                    }
                    (known, member) => FORM_MEMBERS
                        .split(' ')
                        .any(|other| other == known)
                        .then(|| (name.clone(), form(member))),
                },
            )
            .collect(),
        plain => plain.clone(),
    }
}

/// The questions as MCP requests. A form says which tool asks.
pub fn requests(tool: &str, asked: Map<String, Value>) -> Result<InputRequests, ErrorData> {
    let requests: Result<InputRequests, serde_json::Error> = asked
        .into_iter()
        .map(|(key, mut request): (String, Value)| {
            let asked = &request["params"];
            let message = text::printable_block(asked["message"].as_str().unwrap_or_default());
            let schema = form(&asked["requestedSchema"]);
            request["params"] =
                json!({"message": format!("{tool} asks: {message}"), "requestedSchema": schema});
            serde_json::from_value(request).map(|request| (key, request))
        })
        .collect();
    requests.map_err(|e| {
        ErrorData::internal_error(format!("The tool's question cannot be read: {e}"), None)
    })
}

/// A question that was sent. Dropping it before the answer withdraws the question.
struct SentQuestion(Peer<RoleServer>, Option<RequestId>);

impl Drop for SentQuestion {
    fn drop(&mut self) {
        let Some(id) = self.1.take() else { return };
        let peer = self.0.clone();
        let reason = Some("No call waits for this answer any more.".to_owned());
        tokio::spawn(async move {
            let _ = peer
                .notify_cancelled(CancelledNotificationParam::new(Some(id), reason))
                .await;
        });
    }
}

/// Asks an older client, on the stream of the request that leads to the question.
pub async fn elicit(
    peer: &Peer<RoleServer>,
    origin: &RequestId,
    request: InputRequest,
) -> Result<Value, ServiceError> {
    let mut request = match request {
        InputRequest::Elicitation(ask) => ServerRequest::ElicitRequest(ask),
        _ => return Ok(Value::Null),
    };
    request
        .extensions_mut()
        .insert(OriginatingRequestId(origin.clone()));
    let sent = peer
        .send_cancellable_request(request, PeerRequestOptions::no_options())
        .await?;
    let mut question = SentQuestion(peer.clone(), Some(sent.id.clone()));
    let answer = sent.await_response().await;
    question.1 = None;
    Ok(match answer? {
        ClientResult::ElicitResult(answer) => json!(answer),
        other => json!(other),
    })
}

/// Asks an older client, with one request for each question. Returns the answers by the tool's
/// keys.
pub async fn ask_all(
    context: &RequestContext<RoleServer>,
    tool: &str,
    questions: Questions,
) -> Result<(Map<String, Value>, Value), ErrorData> {
    let mut answers = Map::new();
    for (key, request) in requests(tool, questions.requests)? {
        fn failed(why: String, tool: &str) -> ErrorData {
            ErrorData::internal_error(format!("The client did not answer {tool}: {why}"), None)
        }
        let answered =
            tokio::time::timeout(ANSWER_TIMEOUT, elicit(&context.peer, &context.id, request)).await;
        answers.insert(
            key,
            answered
                .map_err(|_| failed("in time".into(), tool))?
                .map_err(|e| failed(e.to_string(), tool))?,
        );
    }
    Ok((answers, questions.state))
}

/// The open questions to persons, by the id of the call, each with the time at which it ends.
pub struct OpenQuestions {
    known: Mutex<HashMap<String, (Timestamp, Permit)>>,
    limiter: Arc<Limiter>,
}

impl OpenQuestions {
    pub fn new(limiter: Arc<Limiter>) -> OpenQuestions {
        OpenQuestions {
            known: Mutex::default(),
            limiter,
        }
    }

    fn begin(&self, question: &Question) -> bool {
        let mut known = lock(&self.known);
        let now = Timestamp::now();
        known.retain(|_, (until, _)| *until > now);
        let principal = question.through.as_ref().unwrap_or(&question.caller);
        let kept = self.limiter.questions.try_enter(principal, 1);
        let Some((kept, until)) = kept.zip(question.until.parse().ok()) else {
            return false;
        };
        known.insert(question.call.clone(), (until, kept));
        true
    }

    /// Ends a question. True only once, and only before its deadline.
    fn end(&self, call: &str) -> bool {
        lock(&self.known)
            .remove(call)
            .is_some_and(|(until, _)| until > Timestamp::now())
    }
}

/// The person at the client of this request, who says whether its call may run
/// (docs/reference/APPROVAL.md). An answer counts once, for one caller, tool and set of
/// arguments.
pub struct Person {
    /// Whether the caller is an operator.
    pub operator: bool,
    /// An older client, which is asked while this request waits.
    pub waiting_client: Option<(Peer<RoleServer>, RequestId)>,
    pub open: Arc<OpenQuestions>,
    /// A newer client's answer to an earlier question.
    pub answer: Mutex<Option<PersonAnswer>>,
    /// The question for a newer client, which makes the call again with the answer.
    pub question: Mutex<Option<Question>>,
}

impl Person {
    /// The question for a newer client: the call it is about, its digest, and the form.
    pub fn take_question(&self) -> Option<(PersonAnswer, InputRequests)> {
        let question = lock(&self.question).take()?;
        let form = confirmation(&question, self.operator)?;
        let answer = PersonAnswer {
            call: question.call,
            digest: question.digest,
            answer: Value::Null,
        };
        Some((answer, [(PERSON.to_owned(), form)].into_iter().collect()))
    }

    fn ask_newer(&self, question: &Question, by: String) -> service::Answer {
        let Some(PersonAnswer {
            call,
            digest,
            answer,
        }) = lock(&self.answer).take()
        else {
            if !self.open.begin(question) {
                return refuse(
                    Kind::RateLimitError,
                    "Too many calls wait for a person's answer.",
                );
            }
            *lock(&self.question) = Some(question.clone());
            return service::Answer::InputRequired;
        };
        if !self.open.end(&call) {
            let message = "A person's answer counts once, and until its deadline: make the call \
                again without it.";
            return refuse(Kind::AuthorizationError, message);
        }
        if digest != question.digest {
            return service::Answer::Refused(service::changed_meanwhile());
        }
        parse_answer(&answer, by)
    }
}

impl service::Ask for Person {
    fn waits(&self) -> bool {
        self.waiting_client.is_some()
    }

    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, service::Answer> {
        let by = format!("{} (as the MCP client says)", question.caller);
        Box::pin(async move {
            let Some((peer, origin)) = &self.waiting_client else {
                return self.ask_newer(question, by);
            };
            let answer = match confirmation(question, self.operator) {
                Some(form) => elicit(peer, origin, form).await.unwrap_or_default(),
                None => Value::Null,
            };
            parse_answer(&answer, by)
        })
    }
}

fn refuse(kind: Kind, message: &str) -> service::Answer {
    service::Answer::Refused(Fault::new(kind, message).retryable())
}

/// Parses the form that a client sends back. Only a ticked box is a yes.
fn parse_answer(answer: &Value, by: String) -> service::Answer {
    match answer["action"].as_str() {
        Some("accept") if answer["content"]["approve"] == true => service::Answer::Approved { by },
        Some("accept" | "decline") => service::Answer::Denied { by },
        Some("cancel") => service::Answer::Dismissed { by },
        _ => {
            let message = "The client should have asked its person about this call, and did not.";
            service::Answer::Refused(Fault::new(Kind::AuthorizationError, message))
        }
    }
}

/// The question as a form. What a call may touch names paths of this host, which are for operators.
fn confirmation(question: &Question, operator: bool) -> Option<InputRequest> {
    let tick = json!({"type": "boolean", "title": "Let this call run"});
    let schema =
        json!({"type": "object", "properties": {"approve": tick}, "required": ["approve"]});
    let params = json!({"message": question.text(operator), "requestedSchema": schema});
    serde_json::from_value(json!({"method": "elicitation/create", "params": params})).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(call: usize, caller: &str, seconds: i64) -> Question {
        let (now, text) = (Timestamp::now(), String::new);
        Question {
            call: call.to_string(),
            tool: text(),
            caller: caller.to_owned(),
            through: None,
            label: None,
            why: Vec::new(),
            code: None,
            arguments: text(),
            not_shown: 0,
            touches: Vec::new(),
            digest: text(),
            asked: now.to_string(),
            until: (now + jiff::SignedDuration::from_secs(seconds)).to_string(),
        }
    }

    #[test]
    fn a_question_is_open_for_its_time_and_answered_once() {
        let open = OpenQuestions::new(Arc::new(Limiter::new(1, 1)));
        assert!(open.begin(&question(1, "a", 60)) && open.end("1") && !open.end("1"));
        assert!(
            open.begin(&question(2, "a", -1)) && !open.end("2"),
            "too late"
        );
        assert_eq!(
            (3..50)
                .filter(|call| open.begin(&question(*call, "a", 60)))
                .count(),
            32
        );
        assert!(open.begin(&question(50, "b", 60)), "others have room");
        assert!(open.end("3") && open.begin(&question(51, "a", 60)));
    }

    #[test]
    fn a_form_has_known_members_alone() {
        let asked = json!({
            "type": "object", "title": "a\u{202e}b", "$ref": "https://x", "required": ["n"],
            "properties": {"n": {"type": "string", "enum": ["x", "\u{1b}[2J"], "onclick": "x", "default": "x"}},
        });
        let made = form(&asked);
        assert_eq!(made["properties"]["n"]["enum"][0], "x");
        assert_eq!(
            (&made["required"], &made["properties"]["n"]["default"]),
            (&json!(["n"]), &json!("x"))
        );
        assert!(made.get("$ref").is_none() && made["properties"]["n"].get("onclick").is_none());
        assert!(text::is_printable(&made.to_string()), "{made}");
    }
}
