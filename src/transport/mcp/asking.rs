//! A tool's questions to its client, with whose answers the call is made again: by a result that asks, with a sealed state,
//! or at once, where the client is of the older era. A question to a person says which tool asks it.

use super::person::{self, PersonAnswer};
use crate::base::text;
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

/// What a state is sealed to.
#[derive(Default)]
pub struct Bound(Vec<u8>);

impl Bound {
    pub fn to(caller: &str, tool: &str, arguments: &str) -> Bound {
        Bound(crate::base::sha256_hex(json!([caller, tool, arguments]).to_string().as_bytes()).into_bytes())
    }
}

/// The seal of this server: a key that lives as long as it does. `None`: there is none, and nothing is asked.
pub struct Seal(Option<RequestStateCodec>);

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
    pub fn opened(
        &self,
        bound: &Bound,
        state: Option<&str>,
        answers: Option<InputResponses>,
    ) -> Result<Back, ErrorData> {
        let Some(state) = state else { return Ok(Back::default()) };
        let refused =
            |_| ErrorData::invalid_params("This requestState was not given for this call, or is too old.", None);
        let opened = self.codec()?.open_with(state, &bound.0).map_err(refused)?;
        let mut back: Back = serde_json::from_slice(&opened).unwrap_or_default();
        let mut answers: Map<String, Value> = answers.unwrap_or_default().into_iter().collect();
        match &mut back.given {
            Some(given) => given.answer = answers.remove(person::KEY).unwrap_or_default(),
            None => back.answers = answers,
        }
        Ok(back)
    }

    fn sealed(&self, bound: &Bound, back: &Back, requests: InputRequests) -> Result<InputRequiredResult, ErrorData> {
        let options = SealOptions::new().associated_data(&bound.0).ttl(PATIENCE);
        let state = self.codec()?.seal_with(json!(back).to_string().as_bytes(), &options);
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// The result that asks.
    pub fn asks(&self, bound: &Bound, tool: &str, questions: Questions) -> Result<InputRequiredResult, ErrorData> {
        let back = Back { state: questions.state, ..Back::default() };
        self.sealed(bound, &back, requests(tool, questions.requests)?)
    }

    /// The result that asks a person whether the call may run; `client`: what the tool was answered before.
    pub fn confirms(
        &self,
        bound: &Bound,
        (given, form): (PersonAnswer, InputRequests),
        client: Client,
    ) -> Result<InputRequiredResult, ErrorData> {
        let back = Back { state: client.state, answers: client.answers, given: Some(given) };
        self.sealed(bound, &back, form)
    }
}

/// What is sealed into a state, and what comes back with it.
#[derive(Default, Serialize, Deserialize)]
pub struct Back {
    /// The tool's.
    pub state: Value,
    /// By the tool's keys.
    pub answers: Map<String, Value>,
    /// To the question whether the call may run.
    pub given: Option<PersonAnswer>,
}

/// What this client can be asked.
pub fn can(context: &RequestContext<RoleServer>) -> Vec<Ask> {
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
pub fn lacking(questions: &Questions, client: &Client) -> ErrorData {
    let lacks = questions.asks().unwrap_or_default().into_iter().filter(|ask| !client.can.contains(ask));
    let named: Map<String, Value> = lacks.map(|ask| (ask.word().to_owned(), json!({}))).collect();
    let needed: ClientCapabilities = serde_json::from_value(Value::Object(named)).unwrap_or_default();
    ErrorData::missing_required_client_capability(needed)
}

/// What the schema of a form is made of (MCP, "Elicitation"), beside `properties`.
const FORM_MEMBERS: [&str; 19] = [
    "type",
    "title",
    "description",
    "required",
    "enum",
    "enumNames",
    "oneOf",
    "anyOf",
    "const",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "format",
    "pattern",
    "default",
];

/// A form made of the members that are known, with texts in which nothing is hidden.
fn form(asked: &Value) -> Value {
    let text = |text: &str| text::printable(text);
    match asked {
        Value::String(words) => json!(text(words)),
        Value::Array(items) => items.iter().map(form).collect(),
        Value::Object(members) => {
            let of = |(name, member): (&String, &Value)| match (name.as_str(), member) {
                ("properties", Value::Object(fields)) => {
                    let fields: Map<String, Value> = fields.iter().map(|(name, of)| (text(name), form(of))).collect();
                    Some((name.clone(), Value::Object(fields)))
                }
                (known, member) => FORM_MEMBERS.contains(&known).then(|| (name.clone(), form(member))),
            };
            Value::Object(members.iter().filter_map(of).collect())
        }
        plain => plain.clone(),
    }
}

/// The questions as MCP has them. A person reads which tool asks.
pub fn requests(tool: &str, asked: Map<String, Value>) -> Result<InputRequests, ErrorData> {
    let of = |(key, mut request): (String, Value)| {
        if request["method"] == Ask::Elicitation.method() {
            let asked = &request["params"];
            let message = text::printable_block(asked["message"].as_str().unwrap_or_default());
            let schema = form(&asked["requestedSchema"]);
            request["params"] = json!({"message": format!("{tool} asks: {message}"), "requestedSchema": schema});
        }
        let read: Result<InputRequest, _> = serde_json::from_value(request);
        read.map(|request| (key, request))
    };
    let read: Result<InputRequests, serde_json::Error> = asked.into_iter().map(of).collect();
    read.map_err(|e| ErrorData::internal_error(format!("The tool's question cannot be read: {e}"), None))
}

/// A question that is withdrawn where its answer is not waited for.
struct Withdrawn(Peer<RoleServer>, Option<RequestId>);

impl Drop for Withdrawn {
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
pub async fn asked(
    peer: &Peer<RoleServer>,
    origin: &RequestId,
    mut request: ServerRequest,
) -> Result<ClientResult, ServiceError> {
    request.extensions_mut().insert(OriginatingRequestId(origin.clone()));
    let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let mut withdrawn = Withdrawn(peer.clone(), Some(sent.id.clone()));
    let answer = sent.await_response().await;
    withdrawn.1 = None;
    answer
}

/// Asks a client that is asked with requests of their own; the answers by the tool's keys.
pub async fn at_once(
    context: &RequestContext<RoleServer>,
    tool: &str,
    questions: Questions,
) -> Result<(Map<String, Value>, Value), ErrorData> {
    let mut answers = Map::new();
    for (key, request) in requests(tool, questions.requests)? {
        let request = match request {
            InputRequest::Elicitation(ask) => ServerRequest::ElicitRequest(ask),
            InputRequest::CreateMessage(ask) => ServerRequest::CreateMessageRequest(ask),
            InputRequest::ListRoots(ask) => ServerRequest::ListRootsRequest(ask),
            _ => continue,
        };
        let failed = |why: String| ErrorData::internal_error(format!("The client did not answer {tool}: {why}"), None);
        let answered = tokio::time::timeout(PATIENCE, asked(&context.peer, &context.id, request)).await;
        let answer = answered.map_err(|_| failed("in time".into()))?.map_err(|e| failed(e.to_string()))?;
        let answer = match answer {
            ClientResult::ElicitResult(answer) => json!(answer),
            ClientResult::CreateMessageResult(answer) => json!(answer),
            ClientResult::ListRootsResult(answer) => json!(answer),
            other => json!(other),
        };
        answers.insert(key, answer);
    }
    Ok((answers, questions.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_made_anew_of_what_is_known() {
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
