//! The two pipes by which the code of a script calls other tools: its descriptors 3 and 4. What
//! comes is parsed as hostile; each call goes up to the pipeline, which decides about it.
//!
//! Heads and payloads are bounded, and nothing is allocated before it arrives. The calls are the
//! same caller's, within the grants of their parent.

use crate::executor::frame::{self, FrameLimits};
use crate::executor::{Ending, ToolSender};
use crate::fault::Fault;
use crate::quantity::KIB;
use crate::sandbox;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;

/// Calls of one script that run or wait at once. No further frame is read meanwhile, so the script
/// waits at a full pipe.
const AT_ONCE: usize = 8;
/// Longest head of a frame: a number and the name of a tool.
const MAX_HEAD_BYTES: u64 = 4 * KIB;

/// The first frame to a script: what its code may call.
#[derive(Serialize)]
struct Offer<'t> {
    tools: &'t [String],
}

/// A frame of a script. Payload: the arguments, JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    id: u64,
    tool: String,
}

/// The answer. Payload: the value, JSON.
#[derive(Serialize)]
struct Reply<'f> {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'f Fault>,
}

/// A frame to a script, and what is charged for it.
pub type Delivery = (Vec<u8>, Option<Box<dyn Any + Send>>);

/// The host's ends of the two pipes.
pub struct ToolPipes {
    to: Sender,
    from: Receiver,
}

impl ToolPipes {
    /// Our ends, and the script's.
    pub fn new() -> io::Result<(ToolPipes, Vec<OwnedFd>)> {
        let (their_answers, to) = sandbox::pipe()?;
        let (from, their_calls) = sandbox::pipe()?;
        let pipes = ToolPipes {
            to: Sender::from_owned_fd(to)?,
            from: Receiver::from_owned_fd(from)?,
        };
        Ok((pipes, vec![their_answers, their_calls]))
    }

    /// Answers the calls of a script. Returns only if the script sent something else: how its call
    /// then ends. `most`: longest arguments, bytes.
    pub async fn serve(self, tools: &[String], most: u64, events: &ToolSender) -> Ending {
        match self.answer_calls(tools, most, events).await {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ending::Raised {
                message: format!("its call of a tool cannot be read: {e}"),
            },
            // It closed a pipe, or ended: its call goes on, or ends by itself.
            _ => std::future::pending().await,
        }
    }

    async fn answer_calls(
        self,
        tools: &[String],
        payload: u64,
        events: &ToolSender,
    ) -> io::Result<()> {
        let ToolPipes { mut to, from } = self;
        let limits = FrameLimits {
            head: MAX_HEAD_BYTES,
            payload,
        };
        to.write_all(&frame::encode(&Offer { tools }, &[])?).await?;
        let requests = stream::try_unfold(BufReader::new(from), |mut from| async move {
            let next = frame::read_async::<Request>(&mut from, limits).await?;
            Ok(next.map(|next| (next, from)))
        });
        let mut answers = requests
            .and_then(async |(request, payload)| Ok((request, text(payload)?)))
            .map_ok(|(request, arguments)| answer(request, arguments, events))
            .try_buffer_unordered(AT_ONCE)
            .boxed();
        while let Some((frame, _charged)) = answers.try_next().await? {
            to.write_all(&frame).await?;
        }
        Ok(())
    }
}

pub fn text(payload: Vec<u8>) -> io::Result<String> {
    String::from_utf8(payload).map_err(|_| frame::invalid("arguments that are not text"))
}

/// Answers the calls of a cell, which come here one by one. Never returns.
pub async fn answer_all(
    mut asked: mpsc::Receiver<(Request, String)>,
    events: &ToolSender,
    to: &mpsc::Sender<Delivery>,
) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(delivery) = running.next() => {
                // Where nobody answers any more, its call is over.
                if let Ok(delivery) = delivery {
                    let _ = to.send(delivery).await;
                }
            }
            Some((request, arguments)) = asked.recv(), if running.len() < AT_ONCE => {
                running.push(answer(request, arguments, events));
            }
            else => std::future::pending().await,
        }
    }
}

async fn answer(
    Request { id, tool }: Request,
    arguments: String,
    events: &ToolSender,
) -> io::Result<Delivery> {
    let Some(answered) = events.call_tool(tool, arguments).await else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let error = answered.result.as_ref().err();
    let payload = answered
        .result
        .as_ref()
        .map(|answer| answer.part_of(0..answer.bytes()));
    let payload = payload.map_or_else(|_| Default::default(), |part| part.bytes);
    let frame = frame::encode(&Reply { id, error }, &payload)?;
    Ok((frame, answered.charged))
}
