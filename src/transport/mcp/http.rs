//! MCP over HTTP: one request, one answer or stream of events; for older clients sessions between them. rmcp answers;
//! this file says whose a request is, how many are open, and builds the content of results.

use super::Mcp;
use super::asked::{CURRENT, Current, McpRequest};
use super::events::Reading;
use super::face::Face;
use super::frames;
use super::message::{self, Message, Received, message_of};
use super::sessions::{Busy, SessionLease, Sessions};
use crate::base::{lock, text};
use crate::fault::{Fault, Kind};
use crate::service::{Approver, CallRequest, Caller, Reservation, Service, Sink};
use crate::transport::answers::Payer;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use rmcp::model::{ClientRequest, ErrorCode, JsonRpcMessage, RequestId};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const SESSION: &str = "mcp-session-id";
/// A stream that a client holds open to be told of changes.
const LISTENS: &str = "subscriptions/listen";
/// So much of an answer is handed on at a time, bytes.
const PIECE: usize = 64 * 1024;
/// More than a message has once its arguments are out of it.
const LARGEST: usize = 8 * 1024 * 1024;

/// The MCP server over HTTP.
pub struct Streamable {
    mcp: Arc<Mcp>,
    sessions: Arc<Sessions>,
    rmcp: StreamableHttpService<Face, Sessions>,
}

impl Streamable {
    /// `closing`: everything ends.
    pub fn new(service: Arc<Service>, closing: CancellationToken) -> Streamable {
        let sessions = Sessions::new(service.limiter().clone());
        let mut config = StreamableHttpServerConfig::default()
            .with_sse_retry(None)
            // An answer before which nothing was told is one document.
            .with_json_response(true)
            .with_cancellation_token(closing.clone())
            // The gate has looked at Host and Origin.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        config.max_request_body_bytes = LARGEST;
        let mcp = Mcp::new(service);
        // One for each session; for a newer client one for each request.
        let face = {
            let mcp = mcp.clone();
            move || Ok(Face::new(mcp.clone(), &closing))
        };
        let rmcp = StreamableHttpService::new(face, sessions.clone(), config);
        Streamable { mcp, sessions, rmcp }
    }

    /// `POST`. `begun` is held until the answer is delivered.
    pub async fn post(
        &self,
        (caller, approver, counted): (Caller, Approver, usize),
        parts: Parts,
        Message(received): Message,
        begun: mpsc::Sender<()>,
    ) -> Response<Replies> {
        let Received { message, arguments, small } = match received {
            Ok(Some(received)) => received,
            Ok(None) => return Replies::empty(StatusCode::ACCEPTED),
            Err(refusal) => {
                let fault = Fault::new(Kind::ParameterValidationError, "The body is not a message of MCP.");
                let request = CallRequest { counted: usize::MAX, ..CallRequest::refused(caller, "", fault) };
                drop(self.mcp.service.call(request, Sink::none()).await);
                return refused(StatusCode::BAD_REQUEST, &refusal);
            }
        };
        let request = match &message {
            JsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        let id = request.map(|request| request.id.clone());
        let used = match self.uses(&parts, &caller, id.clone()) {
            Ok(used) => used,
            Err(Busy::Taken) => {
                let words = "A request with this id is not answered yet.";
                return refused(StatusCode::BAD_REQUEST, &message::refusal(ErrorCode::INVALID_REQUEST, words, id));
            }
            Err(Busy::Full) => return busy("Too many requests of this session are open.", id),
        };
        let mut place = None;
        if request.is_some_and(|request| matches!(request.request, ClientRequest::InitializeRequest(_))) {
            place = self.sessions.place(&caller.user).await;
            if place.is_none() {
                return busy("Too many sessions are open.", id);
            }
        }
        let listens = request.is_some_and(|request| request.request.method() == LISTENS);
        let asked = McpRequest { approver, arguments: arguments.into(), counted, ..self.asked(caller) };
        let body = Bytes::copy_from_slice(small.as_str().as_bytes());
        self.answered((asked, place), parts, body, (used, Some(begun).filter(|_| !listens))).await
    }

    /// `GET` and `DELETE`, which older clients send: the stream of a session, and its end.
    pub async fn other(&self, caller: Caller, parts: Parts) -> Response<Replies> {
        let ends = parts.method == Method::DELETE;
        match self.uses(&parts, &caller, None) {
            Ok(None) if ends && parts.headers.contains_key(SESSION) => Replies::empty(StatusCode::NOT_FOUND),
            Ok(used) => {
                let mut answer = self.answered((self.asked(caller), None), parts, Bytes::new(), (used, None)).await;
                // Some clients take nothing else for done.
                if ends && answer.status() == StatusCode::ACCEPTED {
                    *answer.status_mut() = StatusCode::NO_CONTENT;
                }
                answer
            }
            Err(_) => busy("Too many streams of this session are open.", None),
        }
    }

    fn uses(&self, parts: &Parts, caller: &Caller, request: Option<RequestId>) -> Result<Option<SessionLease>, Busy> {
        let session = parts.headers.get(SESSION).and_then(|session| session.to_str().ok());
        session.map_or(Ok(None), |session| self.sessions.uses(session, &caller.user, request))
    }

    fn asked(&self, caller: Caller) -> McpRequest {
        let payer = Payer::new(self.mcp.service.limiter(), &caller.user);
        McpRequest::new(caller, payer)
    }

    async fn answered(
        &self,
        (asked, place): (McpRequest, Option<Reservation>),
        mut parts: Parts,
        body: Bytes,
        (used, begun): (Option<SessionLease>, Option<mpsc::Sender<()>>),
    ) -> Response<Replies> {
        let asked = Arc::new(asked);
        // From here on, whoever drops this request ends its call.
        let left = asked.left.clone().drop_guard();
        let resumes = parts.method == Method::GET;
        parts.extensions.insert(asked.clone());
        parts.headers.remove(header::CONTENT_LENGTH);
        let current = Arc::new(Current { asked: asked.clone(), place: place.into(), log: Mutex::default() });
        let request = http::Request::from_parts(parts, Full::new(body));
        let (head, body) = CURRENT.scope(current.clone(), self.rmcp.handle(request)).await.into_parts();
        let log = lock(&current.log).take();
        let replies = match log {
            Some(log) if resumes => {
                let reading = Reading::new(&self.sessions.events, log, true, None);
                Replies { reading: Some(reading), ..Replies::of(body, None, (left, used)) }
            }
            Some(log) => {
                left.disarm();
                let reading = Reading::new(&self.sessions.events, log, false, Some(Box::new((used, begun.clone()))));
                Replies { reading: Some(reading), ..Replies::of(body, Some(asked), begun) }
            }
            None => Replies::of(body, Some(asked), (left, used, begun)),
        };
        Response::from_parts(head, replies)
    }
}

fn busy(words: &str, id: Option<RequestId>) -> Response<Replies> {
    let refusal = message::refusal(ErrorCode::INTERNAL_ERROR, words, id);
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, &refusal);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn refused(status: StatusCode, refusal: &message::Refusal) -> Response<Replies> {
    let bytes = message_of(refusal).and_then(|message| frames::line(&message)).unwrap_or_default();
    let mut response = Replies::with(status, bytes.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The body of an answer. Dropping it ends the call, now or where its client does not come back.
pub struct Replies {
    body: BoxBody<Bytes, Infallible>,
    asked: Option<Arc<McpRequest>>,
    /// Of a stream that its client can come back to.
    reading: Option<Reading>,
    /// What is sent next.
    next: VecDeque<Bytes>,
    _held: Box<dyn Any + Send>,
}

impl Replies {
    /// `held`: as long as this is read.
    fn of(body: BoxBody<Bytes, Infallible>, asked: Option<Arc<McpRequest>>, held: impl Send + 'static) -> Replies {
        Replies { body, asked, reading: None, next: VecDeque::new(), _held: Box::new(held) }
    }

    fn empty(status: StatusCode) -> Response<Replies> {
        Replies::with(status, Bytes::new())
    }

    fn with(status: StatusCode, bytes: Bytes) -> Response<Replies> {
        let mut response = Response::new(Replies::of(Full::new(bytes).boxed(), None, ()));
        *response.status_mut() = status;
        response
    }

    /// Sends an event, and where it is the result its content with it.
    fn event(&mut self, event: &[u8]) {
        let Some(event) = std::str::from_utf8(event).ok().filter(|event| !event.is_empty()) else { return };
        let event = text::escaped_json(event).into_bytes();
        let content = self.asked.as_ref().or_else(|| self.reading.as_ref()?.asked()).and_then(|asked| asked.answer());
        let Some((content, (head, tail))) =
            content.as_ref().and_then(|content| Some((content, content.around(&event)?)))
        else {
            return self.next.push_back(event.into());
        };
        let parts = [Bytes::copy_from_slice(head), content.text.clone(), Bytes::copy_from_slice(tail)];
        self.next.extend(parts.into_iter().filter(|part| !part.is_empty()));
    }
}

impl Body for Replies {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(next) = self.next.front_mut() {
                let piece = next.split_to(next.len().min(PIECE));
                if next.is_empty() {
                    self.next.pop_front();
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let data = frame.map(|Ok(frame)| frame.into_data().unwrap_or_default());
            if self.reading.as_mut().is_some_and(|reading| !reading.goes_on(data.as_deref())) {
                return Poll::Ready(None);
            }
            match data {
                Some(data) => self.event(&data),
                None => return Poll::Ready(None),
            }
        }
    }
}
