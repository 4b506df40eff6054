//! Lines of JSON on standard input and output: MCP's stdio transport, read strictly and written visibly.
//!
//! For: the MCP face. In: bytes of a client. Out: messages, one a line. Never: a line longer than the
//! bound in memory, two readings of one message (a duplicate key is an error, P22), two requests under one
//! id at a time, or a raw bidi, tag or control character on the wire (P24).

use super::results::{Answer, Whole};
use crate::manifest::json::{Dialect, parse};
use crate::manifest::text::VisibleJson;
use crate::quantity::LARGE_TEXT_BYTES;
use rmcp::model::{ClientNotification, ErrorCode, ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Serialize;
use serde_json::{Serializer, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// Longest line that is read, bytes.
const LONGEST: usize = 8 * 1024 * 1024;
/// Messages that wait to be handled.
const AHEAD: usize = 4;
/// How long calls may still finish after the client closed its end: enough for `printf … | toolhost serve`.
const GRACE: Duration = Duration::from_millis(500);

/// Requests that were handed on and are not answered yet, each with the content of its answer once there is one.
#[derive(Clone, Default)]
pub struct Open(Arc<std::sync::Mutex<HashMap<RequestId, Option<Answer>>>>);
type Output = Arc<Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

/// Both directions of one connection.
pub struct Frames {
    messages: mpsc::Receiver<RxJsonRpcMessage<RoleServer>>,
    output: Output,
    open: Open,
}

impl Open {
    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Option<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the content of an answer until the answer is sent; one that was cancelled meanwhile is not sent.
    pub fn answered(&self, id: &RequestId, answer: Answer) {
        if let Some(open) = self.requests().get_mut(id) {
            *open = Some(answer);
        }
    }

    fn close(&self, id: Option<&RequestId>) -> Option<Answer> {
        self.requests().remove(id?)?
    }
}

impl Frames {
    /// Starts reading. `closing` is cancelled shortly after the client's end was closed.
    pub fn new<R, W>(input: R, output: W, closing: CancellationToken) -> Frames
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let output: Output = Arc::new(Mutex::new(Some(Box::new(output))));
        let (sender, messages) = mpsc::channel(AHEAD);
        let open = Open::default();
        let (errors, ids) = (output.clone(), open.clone());
        tokio::spawn(async move {
            read(BufReader::new(input), &sender, &errors, &ids).await;
            drop(sender);
            tokio::time::sleep(GRACE).await;
            closing.cancel();
        });
        Frames { messages, output, open }
    }

    /// Where the content of answers is put.
    pub fn open(&self) -> Open {
        self.open.clone()
    }
}

impl Transport<RoleServer> for Frames {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let answer = match &item {
            JsonRpcMessage::Response(response) => self.open.close(Some(&response.id)),
            JsonRpcMessage::Error(error) => self.open.close(error.id.as_ref()),
            _ => None,
        };
        let output = self.output.clone();
        async move {
            match (answer, serde_json::to_value(&item)?) {
                (Some(answer), Value::Object(message)) if answer.is_large() => {
                    write_in_pieces(&output, Whole { message, answer }).await
                }
                (Some(answer), Value::Object(message)) => write(&output, &Whole { message, answer }).await,
                (_, message) => write(&output, &message).await,
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.output.lock().await.take();
        Ok(())
    }
}

/// rmcp takes a second request under one id for the first: its answer, or its cancelling, would be lost.
fn once(open: &Open, message: RxJsonRpcMessage<RoleServer>) -> Result<RxJsonRpcMessage<RoleServer>, Refusal> {
    match &message {
        JsonRpcMessage::Request(request) => {
            if let Entry::Vacant(free) = open.requests().entry(request.id.clone()) {
                free.insert(None);
            } else {
                let words = "A request with this id is not answered yet.";
                return Err(refusal(ErrorCode::INVALID_REQUEST, words, Some(request.id.clone())));
            }
        }
        // What was cancelled is not answered.
        JsonRpcMessage::Notification(notification) => {
            if let ClientNotification::CancelledNotification(cancelled) = &notification.notification {
                open.close(cancelled.params.request_id.as_ref());
            }
        }
        _ => {}
    }
    Ok(message)
}

/// One message, one line.
fn line(message: &impl Serialize, mut to: impl io::Write) -> io::Result<()> {
    message.serialize(&mut Serializer::with_formatter(&mut to, VisibleJson))?;
    to.write_all(b"\n")
}

/// In one write.
async fn write(output: &Output, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = Vec::new();
    line(message, &mut bytes)?;
    let mut output = output.lock().await;
    let Some(output) = output.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
    output.write_all(&bytes).await?;
    output.flush().await
}

/// The same, without the whole of it ever being in memory: written out it is several times as large as what it says.
async fn write_in_pieces(output: &Output, message: Whole) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel(1);
    let mut output = output.lock().await;
    let Some(output) = output.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
    let written = tokio::task::spawn_blocking(move || {
        let mut to = io::BufWriter::with_capacity(LARGE_TEXT_BYTES, Pieces(sender));
        line(&message, &mut to).and_then(|()| io::Write::flush(&mut to))
    });
    while let Some(piece) = pieces.recv().await {
        output.write_all(&piece).await?;
    }
    written.await??;
    output.flush().await
}

struct Pieces(mpsc::Sender<Vec<u8>>);

impl io::Write for Pieces {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(piece.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn read<R: AsyncRead + Unpin>(
    mut input: BufReader<R>,
    messages: &mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    output: &Output,
    open: &Open,
) {
    let mut line = Vec::new();
    loop {
        let answer = match next_line(&mut input, &mut line).await {
            Ok(Some(true)) => message(&line).and_then(|message| message.map(|m| once(open, m)).transpose()),
            Ok(Some(false)) => Err(refusal(ErrorCode::INVALID_REQUEST, "The message is too long.", None)),
            Ok(None) | Err(_) => return,
        };
        match answer {
            Ok(Some(message)) => {
                if messages.send(message).await.is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(refusal) => {
                if write(output, &*refusal).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads one line into `line`. `Some(false)`: it was too long and is gone. `None`: the end.
async fn next_line<R: AsyncRead + Unpin>(input: &mut BufReader<R>, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let mut fits = true;
    loop {
        let (taken, ended) = {
            let bytes = input.fill_buf().await?;
            if bytes.is_empty() {
                // A last line without its newline is a whole message, if it is one at all.
                return Ok((!line.is_empty()).then_some(fits));
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |at| at + 1);
            fits = fits && line.len() + taken <= LONGEST;
            if fits {
                line.extend_from_slice(&bytes[..taken]);
            } else {
                line.clear();
            }
            (taken, end.is_some())
        };
        input.consume(taken);
        if ended {
            return Ok(Some(fits));
        }
    }
}

/// One line as a message; nothing for what needs no answer; an error to send back.
fn message(line: &[u8]) -> Result<Option<RxJsonRpcMessage<RoleServer>>, Refusal> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let value = match parse(line, Dialect::Strict) {
        Ok(document) => document.value,
        Err(problem) => {
            // Where a lenient reader can still tell whose message it was, that one gets the answer.
            let id = serde_json::from_slice::<Value>(line).ok().and_then(|value| id_of(&value));
            return Err(refusal(ErrorCode::PARSE_ERROR, &format!("Not one JSON document: {}", problem.message), id));
        }
    };
    let (id, is_request) = (id_of(&value), value.get("method").is_some());
    match serde_json::from_value(value) {
        Ok(message) => Ok(Some(message)),
        // A notification we do not know needs no answer.
        Err(_) if id.is_none() && is_request => Ok(None),
        Err(_) => Err(refusal(ErrorCode::INVALID_REQUEST, "Not a message of this protocol.", id)),
    }
}

fn id_of(value: &Value) -> Option<RequestId> {
    serde_json::from_value(value.get("id")?.clone()).ok()
}

type Refusal = Box<TxJsonRpcMessage<RoleServer>>;

fn refusal(code: ErrorCode, words: &str, id: Option<RequestId>) -> Refusal {
    Box::new(JsonRpcMessage::error(ErrorData::new(code, words.to_owned(), None), id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        serde_json::to_string(&message(line.as_bytes()).expect_err(line)).unwrap()
    }

    #[test]
    fn a_message_has_one_reading() {
        let good = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__b","arguments":{"x":1}}}"#;
        assert!(matches!(message(good.as_bytes()), Ok(Some(_))));
        let twice = good.replace(r#"{"x":1}"#, r#"{"x":1,"x":2}"#);
        let answer = refused(&twice);
        assert!(answer.contains("-32700") && answer.contains("\"id\":1"), "{answer}");
        assert!(refused("hello").contains("-32700"));
        assert!(refused(r#"{"id":7}"#).contains("-32600"));
        assert!(message(br#"{"jsonrpc":"2.0","method":"$/whatever"}"#).is_ok());
        assert!(matches!(message(b"  \r\n"), Ok(None)));
    }

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
