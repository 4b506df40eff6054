//! A tool's questions to its client, with whose answers the call is made again: by a result that asks, with a sealed state,
//! or at once, where the client is of the older era. A question to a person says which tool asks it.

use crate::base::{sha256_hex, text};
use crate::policy::Ask;
use crate::service::shapes::{Client, Questions};
use ring::rand::{SecureRandom, SystemRandom};
use rmcp::model::{
    CancelledNotificationParam, ClientCapabilities, ClientResult, ErrorData, GetExtensions, InputRequest,
    InputRequests, InputRequiredResult, InputResponses, RequestId, RequestStateCodec, SealOptions, ServerRequest,
};
use rmcp::service::{OriginatingRequestId, Peer, PeerRequestOptions, RequestContext, RoleServer, ServiceError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// How long a client may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a tool may ask before it answers, where the client is asked at once.
pub const ROUNDS: usize = 8;
/// The key of the question whether a call may run, which no tool's question has.
pub const PERSON: &str = "toolhost.confirm";

/// The seal of this server: a key that lives as long as it does. `None`: there is none, and nothing is asked.
pub struct Seal(Option<RequestStateCodec>);

/// What is sealed into a state, and what comes back with it.
#[derive(Default, Serialize, Deserialize)]
pub struct State {
    /// The tool's.
    pub state: Value,
    /// By the tool's keys.
    pub answers: Map<String, Value>,
    /// To the question whether the call may run.
    pub person: Option<PersonAnswer>,
}

/// An answer, and which question it is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct PersonAnswer {
    /// The call that was asked about, whose question counts once.
    pub call: String,
    pub digest: String,
    #[serde(default)]
    pub answer: Value,
}

/// What a state is sealed to.
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
        self.0.as_ref().ok_or_else(|| ErrorData::internal_error("This host gives no random bytes.", None))
    }

    /// What the client brings back; its answers count only with a state of ours.
    pub fn open(&self, bound: &[u8], state: Option<&str>, answers: Option<InputResponses>) -> Result<State, ErrorData> {
        let Some(state) = state else { return Ok(State::default()) };
        let words = "This requestState was not given for this call, or is too old.";
        let opened = self.codec()?.open_with(state, bound).map_err(|_| ErrorData::invalid_params(words, None))?;
        let mut opened: State = serde_json::from_slice(&opened).unwrap_or_default();
        let mut answers: Map<String, Value> = answers.unwrap_or_default().into_iter().collect();
        match &mut opened.person {
            Some(person) => person.answer = answers.remove(PERSON).unwrap_or_default(),
            None => opened.answers = answers,
        }
        Ok(opened)
    }

    /// The result that asks.
    pub fn ask(&self, bound: &[u8], state: &State, requests: InputRequests) -> Result<InputRequiredResult, ErrorData> {
        let options = SealOptions::new().associated_data(bound).ttl(PATIENCE);
        let state = self.codec()?.seal_with(json!(state).to_string().as_bytes(), &options);
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }
}

/// What this client can be asked.
pub fn abilities(context: &RequestContext<RoleServer>) -> Vec<Ask> {
    let Some(client) = context.client_capabilities() else { return Vec::new() };
    let has = |ask: &Ask| match ask {
        // Who names kinds can show only these; all of ours are forms.
        Ask::Elicitation => client.elicitation.as_ref().is_some_and(|kind| kind.form.is_some() || kind.url.is_none()),
        Ask::Sampling => client.sampling.is_some(),
        Ask::Roots => client.roots.is_some(),
    };
    Ask::ALL.into_iter().filter(has).collect()
}

/// The error for a client that lacks what a tool asks.
pub fn missing(questions: &Questions, client: &Client) -> ErrorData {
    let missing = questions.asks().unwrap_or_default().into_iter().filter(|ask| !client.can.contains(ask));
    let named: Map<String, Value> = missing.map(|ask| (ask.word().to_owned(), json!({}))).collect();
    let needed: ClientCapabilities = serde_json::from_value(Value::Object(named)).unwrap_or_default();
    ErrorData::missing_required_client_capability(needed)
}

/// What the schema of a form is made of (MCP, "Elicitation"), beside `properties`.
const FORM_MEMBERS: &str = "type title description required enum enumNames oneOf anyOf const items minItems maxItems \
                            minLength maxLength minimum maximum format pattern default";

/// A form made of the members that are known, with texts in which nothing is hidden.
fn form(asked: &Value) -> Value {
    match asked {
        Value::String(words) => json!(text::printable(words)),
        Value::Array(items) => items.iter().map(form).collect(),
        Value::Object(members) => {
            let known = |(name, member): (&String, &Value)| match (name.as_str(), member) {
                ("properties", Value::Object(fields)) => {
                    let fields = fields.iter().map(|(name, field)| (text::printable(name), form(field)));
                    Some((name.clone(), fields.collect()))
                }
                (known, member) => {
                    FORM_MEMBERS.split(' ').any(|other| other == known).then(|| (name.clone(), form(member)))
                }
            };
            members.iter().filter_map(known).collect()
        }
        plain => plain.clone(),
    }
}

/// The questions as MCP has them. A person reads which tool asks.
pub fn requests(tool: &str, asked: Map<String, Value>) -> Result<InputRequests, ErrorData> {
    let request = |(key, mut request): (String, Value)| {
        if request["method"] == Ask::Elicitation.method() {
            let asked = &request["params"];
            let message = text::printable_block(asked["message"].as_str().unwrap_or_default());
            let schema = form(&asked["requestedSchema"]);
            request["params"] = json!({"message": format!("{tool} asks: {message}"), "requestedSchema": schema});
        }
        serde_json::from_value(request).map(|request| (key, request))
    };
    let requests: Result<InputRequests, serde_json::Error> = asked.into_iter().map(request).collect();
    requests.map_err(|e| ErrorData::internal_error(format!("The tool's question cannot be read: {e}"), None))
}

/// A question that is withdrawn where its answer is not waited for.
struct SentQuestion(Peer<RoleServer>, Option<RequestId>);

impl Drop for SentQuestion {
    fn drop(&mut self) {
        let Some(id) = self.1.take() else { return };
        let peer = self.0.clone();
        let reason = Some("The answer is not waited for any more.".to_owned());
        tokio::spawn(async move {
            let _ = peer.notify_cancelled(CancelledNotificationParam::new(Some(id), reason)).await;
        });
    }
}

/// Asks an older client, on the stream of the request that leads to the question.
pub async fn elicit(peer: &Peer<RoleServer>, origin: &RequestId, request: InputRequest) -> Result<Value, ServiceError> {
    let mut request = match request {
        InputRequest::Elicitation(ask) => ServerRequest::ElicitRequest(ask),
        InputRequest::CreateMessage(ask) => ServerRequest::CreateMessageRequest(ask),
        InputRequest::ListRoots(ask) => ServerRequest::ListRootsRequest(ask),
        _ => return Ok(Value::Null),
    };
    request.extensions_mut().insert(OriginatingRequestId(origin.clone()));
    let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let mut question = SentQuestion(peer.clone(), Some(sent.id.clone()));
    let answer = sent.await_response().await;
    question.1 = None;
    Ok(match answer? {
        ClientResult::ElicitResult(answer) => json!(answer),
        ClientResult::CreateMessageResult(answer) => json!(answer),
        ClientResult::ListRootsResult(answer) => json!(answer),
        other => json!(other),
    })
}

/// Asks a client that is asked with requests of their own; the answers by the tool's keys.
pub async fn ask_all(
    context: &RequestContext<RoleServer>,
    tool: &str,
    questions: Questions,
) -> Result<(Map<String, Value>, Value), ErrorData> {
    let mut answers = Map::new();
    for (key, request) in requests(tool, questions.requests)? {
        let failed = |why: String| ErrorData::internal_error(format!("The client did not answer {tool}: {why}"), None);
        let answered = tokio::time::timeout(PATIENCE, elicit(&context.peer, &context.id, request)).await;
        answers.insert(key, answered.map_err(|_| failed("in time".into()))?.map_err(|e| failed(e.to_string()))?);
    }
    Ok((answers, questions.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_known_members_alone() {
        let asked = json!({
            "type": "object", "title": "a\u{202e}b", "$ref": "https://x", "required": ["n"],
            "properties": {"n": {"type": "string", "enum": ["x", "\u{1b}[2J"], "onclick": "x", "default": "x"}},
        });
        let made = form(&asked);
        assert_eq!(made["properties"]["n"]["enum"][0], "x");
        assert_eq!((&made["required"], &made["properties"]["n"]["default"]), (&json!(["n"]), &json!("x")));
        assert!(made.get("$ref").is_none() && made["properties"]["n"].get("onclick").is_none());
        assert!(text::is_printable(&made.to_string()), "{made}");
    }
}
