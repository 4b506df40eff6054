//! MCP's stdio transport: one message a line, read strictly and written visibly. rmcp's own reads a message in its own way,
//! with the arguments as a tree, passes over what it cannot read, and knows no requests that are open.

use super::asked::McpRequest;
use super::ids::{Exchange, Ids};
use super::message::{self, Received, Refusal, id_of, message_of, refusal};
use super::results::Content;
use super::{Client, Mcp};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::transport::answers::{Payer, visible};
use crate::transport::patience::Patient;
use rmcp::model::{ClientNotification, ErrorCode, GetExtensions, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Serialize;
use serde_json::{Map, Value};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// So much is written at a time, bytes: few enough that the count of written bytes shows a slow reader's progress.
const PIECE: usize = 16 * 1024;
/// Longest line that is read, bytes.
const LONGEST: usize = 8 * 1024 * 1024;
/// Messages that wait to be handled.
const AHEAD: usize = 4;
/// How long calls may still finish after the client closed its end: enough for `printf … | toolhost serve`.
pub const GRACE: Duration = Duration::from_millis(500);

/// Fails where the client does not read for a while.
type Writer = Patient<Box<dyn AsyncWrite + Send + Unpin>>;

/// Where messages go. A write that fails ends the connection.
#[derive(Clone)]
struct Output {
    to: Arc<Mutex<Option<Writer>>>,
    /// Bytes written so far.
    written: Arc<AtomicUsize>,
    closing: CancellationToken,
}

/// Both directions of one connection.
pub struct Frames {
    messages: mpsc::Receiver<RxJsonRpcMessage<RoleServer>>,
    output: Output,
    open: Ids,
    standing: Arc<AtomicBool>,
}

impl Frames {
    /// Starts reading. `closing` is cancelled shortly after the client's end was closed, or cannot be written to.
    pub fn new<R, W>(mcp: &Mcp, client: Client, input: R, output: W, closing: CancellationToken) -> Frames
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let to: Writer = Patient::new(Box::new(output));
        let output = Output { to: Arc::new(Mutex::new(Some(to))), written: Arc::default(), closing };
        let (sender, messages) = mpsc::channel(AHEAD);
        let frames = Frames { messages, output: output.clone(), open: Ids::default(), standing: Arc::default() };
        let (open, standing) = (frames.open.clone(), frames.standing());
        let payer = Payer::new(mcp.service.limiter(), &client.caller.user);
        let asks = move |arguments| McpRequest {
            label: client.label.clone(),
            arguments,
            ..McpRequest::new(client.caller.clone(), payer.clone())
        };
        tokio::spawn(async move {
            tokio::select! {
                () = read(BufReader::new(input), (&sender, &output, &standing), &open, asks) => {}
                () = output.closing.cancelled() => return,
            }
            drop(sender);
            tokio::time::sleep(GRACE).await;
            output.closing.cancel();
        });
        frames
    }

    /// True while reading waits because too many requests are open: the end of the input is not seen then.
    pub fn standing(&self) -> Arc<AtomicBool> {
        self.standing.clone()
    }

    /// Bytes written so far: grows as long as the client reads.
    pub fn written(&self) -> Arc<AtomicUsize> {
        self.output.written.clone()
    }
}

/// The id of the `subscriptions/listen` request that a message belongs to.
fn subscription(message: &mut Map<String, Value>) -> Option<&mut Value> {
    let body = if message.contains_key("params") { "params" } else { "result" };
    message.get_mut(body)?.get_mut("_meta")?.get_mut("io.modelcontextprotocol/subscriptionId")
}

impl Frames {
    /// A notification with the client's id of the request that it belongs to, in place of ours. `None`: that request is over.
    fn for_listener(&self, mut message: Map<String, Value>) -> Option<Map<String, Value>> {
        if let Some(id) = subscription(&mut message) {
            let ours: RequestId = serde_json::from_value(id.clone()).ok()?;
            *id = serde_json::to_value(self.open.client(&ours)?).ok()?;
        }
        Some(message)
    }
}

impl Transport<RoleServer> for Frames {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let ours = match &item {
            JsonRpcMessage::Response(response) => Some(response.id.clone()),
            JsonRpcMessage::Error(error) => error.id.clone(),
            _ => None,
        };
        let exchange = ours.as_ref().map(|ours| self.open.end(ours));
        let output = self.output.clone();
        let message = message_of(&item).map(|message| match exchange {
            Some(_) => Some(message),
            None => self.for_listener(message),
        });
        async move {
            // What belongs to a request that the client cancelled is not sent.
            let Some(mut message) = message? else { return Ok(()) };
            let Some(exchange) = exchange else { return output.put(&message, None).await };
            let Some(Exchange { client, asked, place }) = exchange else { return Ok(()) };
            let client = serde_json::to_value(client)?;
            if let Some(id) = subscription(&mut message) {
                id.clone_from(&client);
            }
            message.insert("id".into(), client);
            let written = output.put(&message, asked.answer()).await;
            drop(place);
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.output.to.lock().await.take();
        Ok(())
    }
}

/// One message, one line.
pub fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    visible(message, &mut line)?;
    line.push(b'\n');
    Ok(line)
}

impl Output {
    /// One message with its content in it, and nothing of another between its parts.
    async fn put(&self, message: &impl Serialize, content: Option<Arc<Content>>) -> io::Result<()> {
        let line = line(message)?;
        let mut to = self.to.lock().await;
        let Some(to) = to.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let parts = async {
            let around = content.as_ref().and_then(|content| Some((content, content.around(&line)?)));
            let Some((content, (head, tail))) = around else { return self.bytes(&line, to).await };
            self.bytes(head, to).await?;
            self.bytes(&content.text, to).await?;
            self.bytes(tail, to).await
        };
        // After a failed write nobody reads the answers of the calls that still run.
        parts.await.inspect_err(|_| self.closing.cancel())
    }

    async fn bytes(&self, bytes: &[u8], to: &mut Writer) -> io::Result<()> {
        for part in bytes.chunks(PIECE) {
            to.write_all(part).await?;
            to.flush().await?;
            self.written.fetch_add(part.len(), Ordering::Relaxed);
        }
        Ok(())
    }
}

async fn read<R: AsyncRead + Unpin>(
    mut input: BufReader<R>,
    (messages, output, standing): (&mpsc::Sender<RxJsonRpcMessage<RoleServer>>, &Output, &AtomicBool),
    open: &Ids,
    asks: impl Fn(std::sync::Mutex<Option<String>>) -> McpRequest,
) {
    let mut line = Vec::new();
    let mut begun = false;
    loop {
        let received = match next_line(&mut input, &mut line).await {
            Ok(Some(true)) => message::read(&line),
            Ok(Some(false)) => {
                let words = format!("The message is too long: at most {LONGEST} bytes are read.");
                Err(refusal(ErrorCode::INVALID_REQUEST, &words, id_of(&line)))
            }
            Ok(None) | Err(_) => return,
        };
        standing.store(true, Ordering::Relaxed);
        let message = match received {
            Ok(Some(received)) => opened(open, received, &asks).await,
            Ok(None) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        match message {
            // A notification or response before the first request is dropped: rmcp would end the connection.
            Ok(Some(message)) if !begun && !matches!(message, JsonRpcMessage::Request(_)) => {}
            Ok(Some(message)) => {
                begun = true;
                if messages.send(message).await.is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(refusal) => {
                let Ok(words) = message_of(&refusal) else { return };
                if output.put(&words, None).await.is_err() {
                    return;
                }
            }
        }
        standing.store(false, Ordering::Relaxed);
    }
}

/// The message as rmcp gets it: a request under an id of ours. `None`: it cancels a request that is not open.
async fn opened(
    open: &Ids,
    received: Received,
    asks: impl Fn(std::sync::Mutex<Option<String>>) -> McpRequest,
) -> Result<Option<RxJsonRpcMessage<RoleServer>>, Refusal> {
    let Received { mut message, arguments, .. } = received;
    match &mut message {
        JsonRpcMessage::Request(request) => {
            let call = request.request.method() == "tools/call";
            let Some(place) = open.place(call).await else { return Ok(None) };
            let asked = Arc::new(asks(arguments.into()));
            request.request.extensions_mut().insert(asked.clone());
            let Some(ours) = open.begin(Exchange { client: request.id.clone(), asked, place }) else {
                let words = "A request with this id is not answered yet.";
                return Err(refusal(ErrorCode::INVALID_REQUEST, words, Some(request.id.clone())));
            };
            request.id = ours;
        }
        JsonRpcMessage::Notification(notification) => {
            if let ClientNotification::CancelledNotification(cancelled) = &mut notification.notification {
                let Some(ours) = cancelled.params.request_id.as_ref().and_then(|id| open.cancel(id)) else {
                    return Ok(None);
                };
                cancelled.params.request_id = Some(ours);
            }
        }
        _ => {}
    }
    Ok(Some(message))
}

/// Reads one line into `line`. `Some(false)`: it was too long, and only its start is kept. `None`: the end.
async fn next_line<R: AsyncRead + Unpin>(input: &mut BufReader<R>, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    // Gives back the memory of an earlier long line.
    line.shrink_to(LARGE_TEXT_BYTES);
    let mut fits = true;
    loop {
        let (taken, ended) = {
            let bytes = input.fill_buf().await?;
            if bytes.is_empty() {
                // The last line may come without its newline.
                return Ok((!line.is_empty()).then_some(fits));
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |at| at + 1);
            fits = fits && line.len() + taken <= LONGEST;
            if fits {
                line.extend_from_slice(&bytes[..taken]);
            } else {
                line.truncate(LARGE_TEXT_BYTES);
                line.shrink_to_fit();
            }
            (taken, end.is_some())
        };
        input.consume(taken);
        if ended {
            return Ok(Some(fits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_refused_and_the_next_one_read() {
        let mut bytes = vec![b'x'; LONGEST + 10];
        bytes.extend_from_slice(b"\nshort\nlast");
        let mut input = BufReader::new(bytes.as_slice());
        let mut line = Vec::new();
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), Some(false));
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), Some(true));
        assert_eq!(line, b"short\n");
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), Some(true));
        assert_eq!(line, b"last");
        assert_eq!(next_line(&mut input, &mut line).await.unwrap(), None);
    }
}
