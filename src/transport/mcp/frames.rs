//! Lines of JSON on standard input and output: MCP's stdio transport, read strictly and written visibly.
//!
//! For: the MCP face. In: bytes of a client. Out: messages, one a line. Never: a line longer than the
//! bound in memory, two readings of one message (a duplicate key is an error), two requests under one
//! id at a time, or a raw bidi, tag or control character on the wire.

use super::message::{self, Received, Refusal, id_of, message_of, refusal};
use super::open::{Exchange, Open};
use super::results::Whole;
use crate::base::text::VisibleJson;
use crate::quantity::LARGE_TEXT_BYTES;
use crate::transport::pieces::{PIECE, Pieces};
use rmcp::model::{ClientNotification, ErrorCode, JsonRpcMessage};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Serialize;
use serde_json::Serializer;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// Longest line that is read, bytes.
const LONGEST: usize = 8 * 1024 * 1024;
/// Messages that wait to be handled.
const AHEAD: usize = 4;
/// How long calls may still finish after the client closed its end: enough for `printf … | toolhost serve`.
pub const GRACE: Duration = Duration::from_millis(500);

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

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
    open: Open,
    standing: Arc<AtomicBool>,
}

impl Frames {
    /// Starts reading. `closing` is cancelled shortly after the client's end was closed, or cannot be written to.
    pub fn new<R, W>(input: R, output: W, closing: CancellationToken) -> Frames
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let to: Writer = Box::new(output);
        let output = Output { to: Arc::new(Mutex::new(Some(to))), written: Arc::default(), closing };
        let (sender, messages) = mpsc::channel(AHEAD);
        let frames = Frames { messages, output: output.clone(), open: Open::default(), standing: Arc::default() };
        let (open, standing) = (frames.open(), frames.standing());
        tokio::spawn(async move {
            tokio::select! {
                () = read(BufReader::new(input), &sender, &output, &open, &standing) => {}
                () = output.closing.cancelled() => return,
            }
            drop(sender);
            tokio::time::sleep(GRACE).await;
            output.closing.cancel();
        });
        frames
    }

    /// The requests that are open.
    pub fn open(&self) -> Open {
        self.open.clone()
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
        async move {
            let Some(exchange) = exchange else { return output.write(&message_of(&item)?).await };
            // What was cancelled is not answered.
            let Some(Exchange { client, answer, place, .. }) = exchange else { return Ok(()) };
            let mut message = message_of(&item)?;
            message.insert("id".into(), serde_json::to_value(client)?);
            let written = match answer.map(Arc::new) {
                Some(answer) if answer.is_large() => output.put(Line::ToMake(Whole { message, answer })).await,
                Some(answer) => output.write(&Whole { message, answer }).await,
                None => output.write(&message).await,
            };
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
pub fn line(message: &impl Serialize, mut to: impl io::Write) -> io::Result<()> {
    message.serialize(&mut Serializer::with_formatter(&mut to, VisibleJson))?;
    to.write_all(b"\n")
}

/// A line, or the message to write piece by piece: the finished line is several times as large as the answer in it.
enum Line {
    Made(Vec<u8>),
    ToMake(Whole),
}

impl Output {
    async fn write(&self, message: &impl Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        line(message, &mut bytes)?;
        self.put(Line::Made(bytes)).await
    }

    /// One line, and nothing of another between its parts.
    async fn put(&self, line: Line) -> io::Result<()> {
        let mut to = self.to.lock().await;
        let Some(to) = to.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        // After a failed write nobody reads the answers of the calls that still run.
        self.parts(line, to).await.inspect_err(|_| self.closing.cancel())
    }

    async fn parts(&self, line: Line, to: &mut Writer) -> io::Result<()> {
        match line {
            Line::Made(bytes) => self.bytes(&bytes, to).await?,
            Line::ToMake(message) => {
                let (sender, mut pieces) = mpsc::channel(1);
                let made = tokio::task::spawn_blocking(move || {
                    let mut to = io::BufWriter::with_capacity(PIECE, Pieces(sender));
                    self::line(&message, &mut to).and_then(|()| io::Write::flush(&mut to))
                });
                while let Some(piece) = pieces.recv().await {
                    self.bytes(&piece, to).await?;
                }
                made.await??;
            }
        }
        to.flush().await
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
    messages: &mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    output: &Output,
    open: &Open,
    standing: &AtomicBool,
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
            Ok(Some(received)) => opened(open, received).await,
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
                if output.write(&words).await.is_err() {
                    return;
                }
            }
        }
        standing.store(false, Ordering::Relaxed);
    }
}

/// The message as rmcp gets it: a request under an id of ours. `None`: it cancels a request that is not open.
async fn opened(open: &Open, received: Received) -> Result<Option<RxJsonRpcMessage<RoleServer>>, Refusal> {
    let Received { mut message, arguments, .. } = received;
    match &mut message {
        JsonRpcMessage::Request(request) => {
            let call = request.request.method() == "tools/call";
            let Some(place) = open.place(call).await else { return Ok(None) };
            let Some(ours) = open.begin(&request.id, arguments, place) else {
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
