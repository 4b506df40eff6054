//! MCP over HTTP: one request, one answer or stream of events; for older clients sessions between them.
//!
//! For: `/mcp`. In: a caller that the gate has let in, a request. Out: rmcp's answer, in which nothing is hidden, with the
//! content of results written while it is sent. Never: a call that runs on for long once nobody reads its answer.

use super::asked::Asked;
use super::face::Face;
use super::frames;
use super::message::{self, Received, message_of};
use super::open::Open;
use super::results::Whole;
use super::resume::Reader;
use super::sessions::{Busy, Own, Sessions, Use};
use super::{Client, Mcp};
use crate::base::places::Place;
use crate::base::{lock, text};
use crate::service::{Approver, Caller, Service};
use crate::transport::pieces::{PIECE, Pieces};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use rmcp::model::{ClientRequest, ErrorCode, JsonRpcMessage, RequestId};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Map, Value};
use std::any::Any;
use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const SESSION: &str = "mcp-session-id";
/// A stream that a client holds open to be told of changes.
const LISTENS: &str = "subscriptions/listen";
/// More than a message has once its arguments are out of it.
const LARGEST: usize = 8 * 1024 * 1024;

/// The MCP server over HTTP.
pub struct Streamable {
    mcp: Arc<Mcp>,
    sessions: Arc<Sessions>,
    closing: CancellationToken,
}

impl Streamable {
    /// `closing`: everything ends.
    pub fn new(service: Arc<Service>, closing: CancellationToken) -> Streamable {
        Streamable { mcp: Mcp::new(service), sessions: Sessions::new(), closing }
    }

    /// `POST`. `begun` is held until the answer is delivered.
    pub async fn post(
        &self,
        (caller, approver): (Caller, Approver),
        parts: Parts,
        text: &str,
        begun: mpsc::Sender<()>,
    ) -> Response<Replies> {
        let received = match message::read(text.as_bytes()) {
            Ok(Some(received)) => received,
            Ok(None) => return Replies::empty(StatusCode::ACCEPTED),
            Err(refusal) => return refused(StatusCode::BAD_REQUEST, &refusal),
        };
        let request = match &received.message {
            JsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        let id = request.map(|request| request.id.clone());
        let begins = request.is_some_and(|request| matches!(request.request, ClientRequest::InitializeRequest(_)));
        let listens = request.is_some_and(|request| request.request.method() == LISTENS);
        let mut place = None;
        if begins {
            place = self.sessions.place(&caller.user).await;
            if place.is_none() {
                return busy("Too many sessions are open.", id);
            }
        }
        let used = match self.uses(&parts, &caller, id.clone()) {
            Ok(used) => used,
            Err(Busy::Taken) => {
                let words = "A request with this id is not answered yet.";
                return refused(StatusCode::BAD_REQUEST, &message::refusal(ErrorCode::INVALID_REQUEST, words, id));
            }
            Err(Busy::Full) => return busy("Too many requests of this session are open.", id),
        };
        let Received { arguments, small, .. } = received;
        let kept = (used, Some(begun).filter(|_| !listens));
        self.answered(caller, parts, Brought { approver, arguments, place, body: small.as_str().to_owned() }, kept)
            .await
    }

    /// `GET` and `DELETE`, which older clients send: the stream of a session, and its end.
    pub async fn other(&self, caller: Caller, parts: Parts) -> Response<Replies> {
        let ends = parts.method == Method::DELETE;
        match self.uses(&parts, &caller, None) {
            Ok(used) => {
                let mut answer = self.answered(caller, parts, Brought::default(), (used, None)).await;
                // Some clients take nothing else for done.
                if ends && answer.status() == StatusCode::ACCEPTED {
                    *answer.status_mut() = StatusCode::NO_CONTENT;
                }
                answer
            }
            Err(_) => busy("Too many streams of this session are open.", None),
        }
    }

    fn uses(&self, parts: &Parts, caller: &Caller, request: Option<RequestId>) -> Result<Option<Use>, Busy> {
        let session = parts.headers.get(SESSION).and_then(|session| session.to_str().ok());
        session.map_or(Ok(None), |session| self.sessions.uses(session, &caller.user, request))
    }

    async fn answered(&self, caller: Caller, mut parts: Parts, brought: Brought, kept: Kept) -> Response<Replies> {
        let Brought { approver, arguments, place, body } = brought;
        let asked = Asked::new(caller.clone(), approver, arguments);
        // From here on, whoever drops this request ends its call.
        let left = asked.left().drop_guard();
        parts.extensions.insert(asked.clone());
        parts.headers.remove(header::CONTENT_LENGTH);
        let closing = self.closing.child_token();
        let own = Arc::new(Own {
            sessions: self.sessions.clone(),
            user: caller.user.clone(),
            closing: closing.clone(),
            place: Mutex::new(place),
            begun: Mutex::default(),
            resumed: Mutex::default(),
        });
        let mut config = StreamableHttpServerConfig::default()
            .with_sse_retry(None)
            // An answer before which nothing was told is one document.
            .with_json_response(true)
            .with_cancellation_token(self.closing.clone())
            // The gate has looked at Host and Origin.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        config.max_request_body_bytes = LARGEST;
        let mcp = self.mcp.clone();
        let face = move || {
            let client = Client { caller: caller.clone(), label: None };
            Ok(Face::new(mcp.clone(), client, closing.clone(), Open::default()))
        };
        let rmcp = StreamableHttpService::new(face, own.clone(), config);
        let request = http::Request::from_parts(parts, Full::new(Bytes::from(body)));
        let (head, inner) = rmcp.handle(request).await.into_parts();
        let (begun, resumed) = (lock(&own.begun).take(), lock(&own.resumed).take());
        let replies = match (begun, resumed) {
            (Some(key), _) => {
                // Both last as long as the stream, whoever reads it.
                let reader = self.sessions.told.begin((key, &own.user), asked, inner, (left, kept));
                Replies::of(Source::Resumable(reader), ())
            }
            (_, Some(reader)) => Replies::of(Source::Resumable(reader), kept),
            _ => Replies { asked: Some(asked), ..Replies::of(Source::Once(inner), (left, kept)) },
        };
        Response::from_parts(head, replies)
    }
}

/// What a request brings beside its head.
#[derive(Default)]
struct Brought {
    /// Who else than its client can be asked about its call.
    approver: Approver,
    arguments: Option<String>,
    /// For the session that it begins.
    place: Option<Place>,
    body: String,
}

type Kept = (Option<Use>, Option<mpsc::Sender<()>>);

fn busy(words: &str, id: Option<RequestId>) -> Response<Replies> {
    let refusal = message::refusal(ErrorCode::INTERNAL_ERROR, words, id);
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, &refusal);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn refused(status: StatusCode, refusal: &message::Refusal) -> Response<Replies> {
    let mut bytes = Vec::new();
    let _ = message_of(refusal).and_then(|message| frames::line(&message, &mut bytes));
    let mut response = Replies::with(status, bytes.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Where the events of an answer come from.
enum Source {
    /// Rmcp, while the client reads.
    Once(BoxBody<Bytes, Infallible>),
    /// A stream that its client can come back to.
    Resumable(Reader),
}

/// The body of an answer. Dropping it ends the call, now or where its client does not come back.
pub struct Replies {
    source: Source,
    asked: Option<Arc<Asked>>,
    /// A result that is being written.
    pieces: Option<mpsc::Receiver<Vec<u8>>>,
    _held: Box<dyn Any + Send>,
}

impl Replies {
    /// `held`: as long as this is read.
    fn of(source: Source, held: impl Send + 'static) -> Replies {
        let asked = match &source {
            Source::Once(_) => None,
            Source::Resumable(reader) => Some(reader.asked()),
        };
        Replies { source, asked, pieces: None, _held: Box::new(held) }
    }

    fn empty(status: StatusCode) -> Response<Replies> {
        Replies::with(status, Bytes::new())
    }

    fn with(status: StatusCode, bytes: Bytes) -> Response<Replies> {
        let mut response = Response::new(Replies::of(Source::Once(Full::new(bytes).boxed()), ()));
        *response.status_mut() = status;
        response
    }

    /// An event as it is sent; `None`: its content is written in pieces.
    fn event(&mut self, event: &[u8]) -> Option<Bytes> {
        let Ok(event) = std::str::from_utf8(event) else { return Some(Bytes::new()) };
        if let Some((head, message, tail)) = self.result(event)
            && let Some(answer) = self.asked.as_ref().and_then(|asked| asked.answer())
        {
            let large = answer.is_large();
            let whole = Whole { message, answer };
            let (head, tail) = (head.to_owned(), tail.to_owned());
            let write = move |to: &mut dyn Write| {
                to.write_all(head.as_bytes())?;
                frames::line(&whole, &mut *to)?;
                to.write_all(tail.as_bytes())
            };
            if !large {
                let mut bytes = Vec::new();
                let _ = write(&mut bytes);
                return Some(bytes.into());
            }
            let (sender, pieces) = mpsc::channel(1);
            tokio::task::spawn_blocking(move || {
                let mut to = io::BufWriter::with_capacity(PIECE, Pieces(sender));
                // A reader that is gone is seen where it reads.
                let _ = write(&mut to).and_then(|()| to.flush());
            });
            self.pieces = Some(pieces);
            return None;
        }
        Some(text::escaped_json(event).into())
    }

    /// A message that holds a result, and what stands before and after its line, where the content of one is waiting.
    fn result<'e>(&self, event: &'e str) -> Option<(&'e str, Map<String, Value>, &'e str)> {
        self.asked.as_ref().filter(|asked| asked.has_answer())?;
        let at = event.find('{')?;
        let (line, tail) = event[at..].split_once('\n').unwrap_or((&event[at..], ""));
        let message: Map<String, Value> = serde_json::from_str(line).ok()?;
        message.contains_key("result").then(|| (&event[..at], message, tail))
    }
}

impl Body for Replies {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(pieces) = &mut self.pieces {
                match ready!(pieces.poll_recv(cx)) {
                    Some(piece) => return Poll::Ready(Some(Ok(Frame::data(piece.into())))),
                    None => self.pieces = None,
                }
            }
            let data = match &mut self.source {
                Source::Resumable(reader) => ready!(reader.poll(cx)),
                Source::Once(body) => {
                    let frame = ready!(Pin::new(body).poll_frame(cx));
                    frame.map(|Ok(frame)| frame.into_data().unwrap_or_default())
                }
            };
            let Some(data) = data else { return Poll::Ready(None) };
            if let Some(bytes) = self.event(&data) {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }
}
