//! MCP over HTTP: each request gets one answer or a stream of events. Older clients also have
//! sessions. The crate rmcp answers; this file determines the caller of each request, and limits
//! how many are open.

use super::frontend::{CALLER, Frontend, Mcp};
use super::listed::ListStyle;
use super::message::{self, Message, Received, message_of};
use super::request::McpRequest;
use super::sessions::{LeaseError, SessionLease, Sessions};
use crate::executor::Part;
use crate::fault::{Fault, Kind};
use crate::service::background::Background;
use crate::service::{Approver, CallRequest, Caller, Charged, RateCharge, Sink};
use crate::transport::answers::visible;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use rmcp::model::{ClientRequest, ErrorCode, JsonRpcMessage, ProtocolVersion, RequestId};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::convert::Infallible;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
const LAST_EVENT: &str = "last-event-id";
/// The method by which a client opens a stream of change notifications.
const LISTENS: &str = "subscriptions/listen";
/// Body limit of rmcp, bytes. A message without its arguments is always shorter.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// The body of an answer. Dropping it ends the call: at once, or when its client may no longer
/// reconnect.
pub type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
type Rmcp = StreamableHttpService<Frontend, LocalSessionManager>;

/// Who posts a message, and what it was charged.
pub struct Sender {
    pub caller: Caller,
    pub approver: Approver,
    pub charged: Charged,
}

/// The MCP server over HTTP.
pub struct StreamableHttp {
    mcp: Arc<Mcp>,
    sessions: Arc<Sessions>,
    rmcp: Rmcp,
}

impl StreamableHttp {
    /// `is_alone`: only one user can connect. `closing` is cancelled when the server ends.
    pub fn new(
        background: Arc<Background>,
        style: ListStyle,
        is_alone: bool,
        closing: CancellationToken,
    ) -> StreamableHttp {
        let service = background.service.clone();
        let sessions = Sessions::new(service.limiter.clone(), is_alone);
        let mut config = StreamableHttpServerConfig::default()
            .with_sse_retry(None)
            // An answer without earlier events is one JSON document.
            .with_json_response(true)
            .with_cancellation_token(closing.clone())
            // The gate has checked Host and Origin.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        config.max_request_body_bytes = MAX_MESSAGE_BYTES;
        let mcp = Mcp::new(service, Some(background), style);
        // rmcp makes a frontend for each session, and for each request of a newer client.
        let frontend = {
            let mcp = mcp.clone();
            move || Ok(Frontend::new(mcp.clone(), &closing))
        };
        let rmcp = StreamableHttpService::new(frontend, sessions.local.clone(), config);
        StreamableHttp {
            mcp,
            sessions,
            rmcp,
        }
    }

    /// `POST`. `begun` is held until the answer is delivered.
    pub async fn post(
        &self,
        sender: Sender,
        mut parts: Parts,
        Message(received): Message,
        begun: Arc<()>,
    ) -> Response<ReplyBody> {
        let Sender {
            caller,
            approver,
            charged,
        } = sender;
        let Received {
            message,
            arguments,
            small,
        } = match received {
            Ok(Some(received)) => received,
            Ok(None) => return reply(StatusCode::ACCEPTED, Bytes::new()),
            Err(refusal) => {
                let fault = Fault::new(
                    Kind::ParameterValidationError,
                    "The body is not an MCP message.",
                );
                let request = CallRequest {
                    charged: RateCharge::Free.into(),
                    ..CallRequest::refused(caller, "", fault)
                };
                drop(self.mcp.service.call(request, Sink::none()).await);
                return refused(StatusCode::BAD_REQUEST, &refusal);
            }
        };
        let request = match &message {
            JsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        let id = request.map(|request| request.id.clone());
        let lease = match self.lease(&mut parts, &caller, id.clone()) {
            Ok(lease) => lease,
            Err(LeaseError::Taken) => {
                let refusal =
                    message::refusal(ErrorCode::INVALID_REQUEST, message::DUPLICATE_ID, id);
                return refused(StatusCode::BAD_REQUEST, &refusal);
            }
            Err(_) => return busy("Too many requests of this session are open.", id),
        };
        let begun = request
            .is_none_or(|request| request.request.method() != LISTENS)
            .then_some(begun);
        let begins = request
            .is_some_and(|request| matches!(request.request, ClientRequest::InitializeRequest(_)));
        let user = caller.user.clone();
        // A message without arguments gives its memory quota back here.
        let arguments = arguments.map(|text| (text, charged.body)).into();
        let own = McpRequest {
            approver,
            arguments,
            rate: charged.rate,
            ..self.request(caller)
        };
        let body = Bytes::copy_from_slice(small.as_str().as_bytes());
        if !begins {
            return self.answer(own, parts, body, lease, begun).await;
        }
        let Some(kept) = self.sessions.reserve(&user).await else {
            return busy("Too many sessions are open.", id);
        };
        // In a task of its own, so that a new session is recorded even if its client leaves.
        let own = Arc::new(own);
        let sessions = self.sessions.clone();
        let answer = handle(self.rmcp.clone(), own.clone(), parts, body);
        let answered = tokio::spawn(async move {
            let answer = answer.await;
            if let Some(id) = answer
                .headers()
                .get(SESSION)
                .and_then(|id| id.to_str().ok())
            {
                sessions.add(id, &user, kept);
            }
            answer
        });
        match answered.await {
            Ok(answer) => answer.map(|body| direct(own, body, (lease, begun))),
            Err(_) => reply(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new()),
        }
    }

    /// `GET` and `DELETE`, which older clients send: the stream of a session, and its end.
    pub async fn get_or_delete(&self, caller: Caller, mut parts: Parts) -> Response<ReplyBody> {
        let ends = parts.method == Method::DELETE;
        let names_session = parts.headers.contains_key(SESSION);
        let lease = match self.lease(&mut parts, &caller, None) {
            Ok(lease) => lease,
            Err(_) => return busy("Too many streams of this session are open.", None),
        };
        let event = parts
            .headers
            .get(LAST_EVENT)
            .and_then(|event| event.to_str().ok());
        match (&lease, event.filter(|_| !ends)) {
            (None, _) if ends && names_session => {
                return reply(StatusCode::NOT_FOUND, Bytes::new());
            }
            (Some(lease), _) if ends => {
                self.sessions.close(&lease.id).await;
                return reply(StatusCode::NO_CONTENT, Bytes::new());
            }
            (Some(session), Some(event)) => {
                if let Some(events) = session.resume(event) {
                    let mut answer = Response::new(stream_replies(events, lease));
                    let kind = HeaderValue::from_static("text/event-stream");
                    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                    answer
                        .headers_mut()
                        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                    return answer;
                }
            }
            _ => {}
        }
        self.answer(self.request(caller), parts, Bytes::new(), lease, None)
            .await
    }

    /// Opens the session that a request names, if the caller began it. Otherwise the header is
    /// changed to a session that rmcp does not know. Newer clients have no sessions.
    fn lease(
        &self,
        parts: &mut Parts,
        caller: &Caller,
        id: Option<RequestId>,
    ) -> Result<Option<SessionLease>, LeaseError> {
        if version(parts) >= ProtocolVersion::V_2026_07_28.as_str() {
            // rmcp would accept the session from any caller.
            parts.headers.remove(SESSION);
        }
        let Some(session) = parts.headers.get_mut(SESSION) else {
            return Ok(None);
        };
        match self
            .sessions
            .open(session.to_str().unwrap_or_default(), &caller.user, id)
        {
            Ok(lease) => Ok(Some(lease)),
            Err(LeaseError::Unknown) => {
                *session = HeaderValue::from_static("unknown");
                Ok(None)
            }
            Err(full) => Err(full),
        }
    }

    fn request(&self, caller: Caller) -> McpRequest {
        McpRequest::new(caller, &self.mcp.service.limiter)
    }

    async fn answer(
        &self,
        request: McpRequest,
        parts: Parts,
        body: Bytes,
        lease: Option<SessionLease>,
        begun: Option<Arc<()>>,
    ) -> Response<ReplyBody> {
        let request = Arc::new(request);
        // From here on, dropping this request ends its call.
        let left = request.left.clone().drop_guard();
        let is_post = parts.method == Method::POST;
        let knows = version(&parts) >= ProtocolVersion::V_2025_11_25.as_str();
        let (head, mut body) = handle(self.rmcp.clone(), request.clone(), parts, body)
            .await
            .into_parts();
        let is_stream = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind == "text/event-stream");
        let replies = match lease {
            Some(lease) if is_post && is_stream => {
                let first = body
                    .frame()
                    .await
                    .and_then(|Ok(frame)| frame.into_data().ok())
                    .unwrap_or_default();
                match lease.record(request, first, body, knows, begun) {
                    Some(events) => {
                        left.disarm();
                        stream_replies(events, ())
                    }
                    None => Full::new(Bytes::new()).boxed_unsync(),
                }
            }
            lease => direct(request, body, (left, lease, begun)),
        };
        Response::from_parts(head, replies)
    }
}

/// The protocol version of a request.
fn version(parts: &Parts) -> &str {
    parts
        .headers
        .get(VERSION)
        .and_then(|version| version.to_str().ok())
        .unwrap_or_default()
}

fn handle(
    rmcp: Rmcp,
    request: Arc<McpRequest>,
    mut parts: Parts,
    body: Bytes,
) -> impl Future<Output = Response<BoxBody<Bytes, Infallible>>> {
    let caller = request.caller.clone();
    parts.extensions.insert(request);
    parts.headers.remove(header::CONTENT_LENGTH);
    let request = http::Request::from_parts(parts, Full::new(body));
    CALLER.scope(caller, async move { rmcp.handle(request).await })
}

/// The body that rmcp sends, with the content of the result put in. `guard` is dropped with the
/// body.
fn direct(
    request: Arc<McpRequest>,
    body: BoxBody<Bytes, Infallible>,
    guard: impl Send + 'static,
) -> ReplyBody {
    let parts = body.into_data_stream().flat_map(move |data| {
        let Ok(data) = data;
        stream::iter(request.parts_of(&data).into_iter().flat_map(Part::pieces))
    });
    stream_replies(parts, guard)
}

fn stream_replies(
    parts: impl Stream<Item = Bytes> + Send + 'static,
    guard: impl Send + 'static,
) -> ReplyBody {
    let frames = parts.map(move |part| {
        let _guard = &guard;
        Ok(Frame::data(part))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn reply(status: StatusCode, bytes: Bytes) -> Response<ReplyBody> {
    let mut response = Response::new(Full::new(bytes).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn busy(words: &str, id: Option<RequestId>) -> Response<ReplyBody> {
    let refusal = message::refusal(ErrorCode::INTERNAL_ERROR, words, id);
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, &refusal);
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn refused(status: StatusCode, refusal: &message::ErrorReply) -> Response<ReplyBody> {
    let mut bytes = Vec::new();
    let written = message_of(refusal).and_then(|message| visible(&message, &mut bytes));
    let mut response = reply(status, written.map(|()| bytes).unwrap_or_default().into());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
