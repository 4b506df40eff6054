//! MCP over standard input and output, until the client leaves: one message a line, read strictly
//! and written visibly.
//!
//! rmcp's own transport parses messages less strictly, with the arguments as a tree, and does not
//! track which requests are open.

use super::frontend::{Frontend, Mcp};
use super::message::{self, ErrorReply, Received, id_of, message_of, refusal};
use super::request::McpRequest;
use super::results::ResultContent;
use crate::base::lock;
use crate::executor::Part;
use crate::fault::{Fault, Kind};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::{self, Caller, Service};
use crate::transport::answers::visible;
use crate::transport::patience::WriteTimeout;
use rmcp::ServiceExt;
use rmcp::model::{ClientNotification, ErrorCode, GetExtensions, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Bytes written at a time: few enough that a slow reader's progress is seen.
const PIECE: usize = 16 * 1024;
/// Longest line that is read, bytes.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;
/// Messages that wait to be handled.
const MESSAGE_QUEUE: usize = 4;
/// Most open requests: calls that run or wait, and some others. Further ones are refused, because a
/// reader that waited would not see a cancellation.
const MAX_OPEN_REQUESTS: usize = service::MAX_RUNNING + service::MAX_QUEUED + 16;
/// How long calls may still finish after the client closed its end: enough for `printf … | toolhost
/// serve`.
const END_OF_INPUT_GRACE: Duration = Duration::from_millis(500);
/// How long the protocol may take to end after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often we look whether the client is still there.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The client of this connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub caller: Caller,
    /// The user to call for, if a request itself names none.
    pub label: Option<String>,
}

/// Serves until the client closes its end or `stop` is cancelled. Calls that still run are killed.
/// `is_gone` is polled, and says whether the client can no longer be answered.
pub async fn serve<R, W>(
    mcp: Arc<Mcp>,
    client: Client,
    input: R,
    output: W,
    stop: CancellationToken,
    is_gone: impl Fn() -> bool + Send + 'static,
) -> Result<(), String>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let connection = Arc::new(StdioConnection {
        output: tokio::sync::Mutex::new(BufWriter::with_capacity(
            PIECE,
            WriteTimeout::new(Box::new(output)),
        )),
        open: Mutex::default(),
        closed: Notify::new(),
        places: Arc::new(Semaphore::new(MAX_OPEN_REQUESTS)),
        closing: stop.child_token(),
        service: mcp.service.clone(),
        client,
    });
    let closing = connection.closing.clone();
    let _ends = closing.clone().drop_guard();
    let (sender, messages) = mpsc::channel(MESSAGE_QUEUE);
    tokio::spawn(connection.clone().read_all(BufReader::new(input), sender));
    let watched = closing.clone();
    tokio::spawn(async move {
        while !is_gone()
            && tokio::time::timeout(CLIENT_CHECK_INTERVAL, watched.cancelled())
                .await
                .is_err()
        {}
        watched.cancel();
    });
    let frontend = Frontend::new(mcp, &closing);
    let running = tokio::select! {
        started = frontend.serve(Lines { messages, connection: connection.clone() }) => match started {
            Ok(running) => running,
            // A client that closes before its first message is not an error.
            Err(_) if closing.is_cancelled() => return Ok(()),
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        },
        // `stop` cancels this too. A client that leaves during the handshake has asked for nothing
        // yet.
        () = closing.cancelled() => return Ok(()),
    };
    tokio::select! {
        // rmcp gives answers a few seconds after the end of the input.
        ended = running.waiting() => {
            ended.map_err(|error| error.to_string())?;
            if lock(&connection.open).is_empty() { Ok(()) } else { Err("the client left an answer unread".to_owned()) }
        }
        // The calls see `closing` and are dropped, which kills them.
        () = async { stop.cancelled().await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => Ok(()),
    }
}

/// Fails where the client does not read for a while.
type Writer = BufWriter<WriteTimeout<Box<dyn AsyncWrite + Send + Unpin>>>;

/// What both directions of a connection share.
struct StdioConnection {
    output: tokio::sync::Mutex<Writer>,
    open: Mutex<HashMap<RequestId, OpenRequest>>,
    /// A request was closed.
    closed: Notify,
    places: Arc<Semaphore>,
    service: Arc<Service>,
    closing: CancellationToken,
    client: Client,
}

/// A request that has no answer yet. Its id stays taken until the answer is written or, if the
/// request was cancelled, its call has ended.
struct OpenRequest {
    request: Arc<McpRequest>,
    _place: OwnedSemaphorePermit,
}

impl StdioConnection {
    /// Reads until the end of the input, then lets calls finish for a moment.
    async fn read_all<R>(
        self: Arc<Self>,
        input: BufReader<R>,
        messages: mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    ) where
        R: AsyncRead + Unpin,
    {
        tokio::select! {
            () = self.read(input, &messages) => {}
            () = self.closing.cancelled() => return,
        }
        drop(messages);
        tokio::time::sleep(END_OF_INPUT_GRACE).await;
        self.closing.cancel();
    }

    async fn read<R: AsyncRead + Unpin>(
        &self,
        mut input: BufReader<R>,
        messages: &mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    ) {
        let mut line = Vec::new();
        let mut begun = false;
        loop {
            let received = match next_line(&mut input, &mut line).await {
                Ok(Some(true)) => message::read(&line),
                Ok(Some(false)) => {
                    let words = format!(
                        "The message is too long: at most {MAX_LINE_BYTES} bytes are read."
                    );
                    Err(refusal(ErrorCode::INVALID_REQUEST, &words, id_of(&line)))
                }
                Ok(None) | Err(_) => return,
            };
            let message = match received {
                Ok(Some(received)) => self.open(received).await,
                Ok(None) => Ok(None),
                Err(refusal) => Err(refusal),
            };
            let goes_on = match message {
                // A notification or response before the first request is dropped: rmcp would end
                // the connection.
                Ok(Some(message)) if begun || matches!(message, JsonRpcMessage::Request(_)) => {
                    begun = true;
                    messages.send(message).await.is_ok()
                }
                Ok(_) => true,
                Err(refusal) => match message_of(&refusal) {
                    Ok(refusal) => self.write(&refusal, None).await.is_ok(),
                    Err(_) => false,
                },
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The message for rmcp. Cancellations are not passed on: rmcp would forget the id while the
    /// call is still ending, and send the answer of one request to the next one with that id.
    async fn open(
        &self,
        received: Received,
    ) -> Result<Option<RxJsonRpcMessage<RoleServer>>, ErrorReply> {
        let Received {
            mut message,
            arguments,
            ..
        } = received;
        match &mut message {
            JsonRpcMessage::Request(request) => {
                let Ok(place) = self.places.clone().try_acquire_owned() else {
                    let words = "Too many requests of this connection are open.";
                    let fault = Fault::new(Kind::RateLimitError, words);
                    let _ = self.service.refusals.record(&self.client.caller, "", fault);
                    // Another request with this id may be open, and gets its own answer.
                    let id =
                        Some(request.id.clone()).filter(|id| !lock(&self.open).contains_key(id));
                    return Err(refusal(ErrorCode::INTERNAL_ERROR, words, id));
                };
                let Client { caller, label } = self.client.clone();
                let own = McpRequest {
                    label,
                    arguments: arguments.map(|text| (text, None)).into(),
                    ..McpRequest::new(caller, &self.service.limiter)
                };
                let own = Arc::new(own);
                request.request.extensions_mut().insert(own.clone());
                let opened = OpenRequest {
                    request: own,
                    _place: place,
                };
                loop {
                    match lock(&self.open).entry(request.id.clone()) {
                        Entry::Vacant(entry) => {
                            entry.insert(opened);
                            break;
                        }
                        // The request of this id is cancelled and ends soon.
                        Entry::Occupied(other) if other.get().request.left.is_cancelled() => {}
                        Entry::Occupied(_) => {
                            return Err(refusal(
                                ErrorCode::INVALID_REQUEST,
                                message::DUPLICATE_ID,
                                Some(request.id.clone()),
                            ));
                        }
                    }
                    self.closed.notified().await;
                }
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                {
                    let open = lock(&self.open);
                    let request = cancelled
                        .params
                        .request_id
                        .as_ref()
                        .and_then(|id| open.get(id));
                    request
                        .into_iter()
                        .for_each(|open| open.request.left.cancel());
                    return Ok(None);
                }
            }
            _ => {}
        }
        Ok(Some(message))
    }

    /// Writes one message with its content in it, and nothing of another between its parts.
    async fn write(
        &self,
        message: &impl Serialize,
        content: Option<Arc<ResultContent>>,
    ) -> io::Result<()> {
        let mut line = Vec::new();
        visible(message, &mut line)?;
        line.push(b'\n');
        let mut output = self.output.lock().await;
        let parts = content
            .and_then(|content| content.put_into(&line))
            .unwrap_or_else(|| vec![line.into()]);
        let written = async {
            for piece in parts.into_iter().flat_map(Part::pieces) {
                output.write_all(&piece).await?;
            }
            output.flush().await
        };
        // After a failed write no answer arrives any more: the calls that still run are ended.
        written.await.inspect_err(|_| self.closing.cancel())
    }
}

/// The connection, for rmcp.
struct Lines {
    messages: mpsc::Receiver<RxJsonRpcMessage<RoleServer>>,
    connection: Arc<StdioConnection>,
}

impl Transport<RoleServer> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let connection = self.connection.clone();
        async move {
            let id = match &item {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                _ => None,
            };
            let request = id
                .as_ref()
                .and_then(|id| Some(lock(&connection.open).get(id)?.request.clone()));
            let written = match &request {
                // The client has cancelled the request.
                Some(request) if request.left.is_cancelled() => Ok(()),
                _ => {
                    connection
                        .write(
                            &message_of(&item)?,
                            request.and_then(|request| request.answer()),
                        )
                        .await
                }
            };
            if let Some(id) = id {
                lock(&connection.open).remove(&id);
                connection.closed.notify_one();
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads one line into `line`. `Some(false)`: it was too long, and only its start is kept. `None`:
/// the end.
async fn next_line<R: AsyncRead + Unpin>(
    input: &mut BufReader<R>,
    line: &mut Vec<u8>,
) -> io::Result<Option<bool>> {
    line.clear();
    // Gives back the memory of an earlier long line.
    line.shrink_to(LARGE_TEXT_BYTES);
    let mut fits = true;
    loop {
        let bytes = input.fill_buf().await?;
        if bytes.is_empty() {
            // The last line may come without its newline.
            return Ok((!line.is_empty()).then_some(fits));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |at| at + 1);
        fits = fits && line.len() + taken <= MAX_LINE_BYTES;
        if fits {
            line.extend_from_slice(&bytes[..taken]);
        } else {
            line.truncate(LARGE_TEXT_BYTES);
            line.shrink_to_fit();
        }
        input.consume(taken);
        if end.is_some() {
            return Ok(Some(fits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_refused_and_the_next_one_read() {
        let mut bytes = vec![b'x'; MAX_LINE_BYTES + 10];
        bytes.extend_from_slice(b"\nshort\nlast");
        let mut input = BufReader::new(bytes.as_slice());
        let mut line = Vec::new();
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), Some(false));
        for expected in [&b"short\n"[..], b"last"] {
            assert_eq!(next_line(&mut input, &mut line).await.unwrap(), Some(true));
            assert_eq!(line, expected);
        }
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), None);
    }
}
