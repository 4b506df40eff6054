//! Speakers: several calls at once, shown to one reader one after the other.
//!
//! For: faces where one reader sees several tools; programs that embed this library. In: calls, and how one is run. Out: what
//! they tell, in stages, never mixed: whoever has something to say first speaks until its end, and then the next one that
//! had. Never: loses or doubles an event; waits for a call that died; keeps more than so many events of a call that waits
//! to speak: then its tool waits, too.

use super::request::{CallRequest, Event, Sink};
use super::{Report, Service};
use crate::fault::{Fault, Kind};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Calls of one reader that run at once, unless it says otherwise.
pub const AT_ONCE: usize = 8;
/// Events of a call that wait until it speaks.
const WAITING: usize = 256;

/// What a call tells in one moment.
#[derive(Debug)]
pub struct Told {
    /// The id of the call.
    pub call: Arc<str>,
    pub stage: Stage,
}

/// Where a call that speaks is: first `Prepare`, last `Completed`, each once.
#[derive(Debug)]
pub enum Stage {
    /// It has the word.
    Prepare,
    /// Something about the work.
    Processing(Event),
    /// A part of the answer.
    Output(String),
    /// How it ended. Whatever became of it, this comes.
    Completed(Box<Report>),
}

/// What is shown of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    All,
    /// No event, only `Completed`.
    Result,
}

type Run = Box<dyn Fn(CallRequest, Sink) -> Pin<Box<dyn Future<Output = Report> + Send>> + Send>;

/// The calls, as their reader meets them. Dropping it cancels those that run.
pub struct Speakers {
    queues: Vec<Queue>,
    run: Run,
    /// How many have begun: a call begins in its order, once few enough are before it that have not been shown to their end.
    begun: usize,
    at_once: usize,
    shown: usize,
    /// Which have something to say, each once, in that order.
    ready: mpsc::Receiver<usize>,
    tell_ready: mpsc::Sender<usize>,
    speaker: Option<usize>,
    tasks: JoinSet<()>,
}

struct Queue {
    id: Arc<str>,
    tool: String,
    show: Show,
    state: State,
}

enum State {
    Waiting(Box<CallRequest>),
    Begun(mpsc::Receiver<Event>, oneshot::Receiver<Box<Report>>),
    /// Shown, or about to be begun.
    Done,
}

impl Service {
    /// Runs calls at once, at most so many, for one reader.
    pub fn together(self: &Arc<Self>, calls: Vec<(CallRequest, Show)>, at_once: usize) -> Speakers {
        let service = self.clone();
        Speakers::new(calls, at_once, move |request, sink| {
            let service = service.clone();
            async move { service.call(request, sink).await }
        })
    }
}

impl Speakers {
    /// `run`: runs one call. A call without an id is given one.
    pub fn new<R: Future<Output = Report> + Send + 'static>(
        calls: Vec<(CallRequest, Show)>,
        at_once: usize,
        run: impl Fn(CallRequest, Sink) -> R + Send + 'static,
    ) -> Speakers {
        let (tell_ready, ready) = mpsc::channel(calls.len().max(1));
        let queue = |(mut request, show): (CallRequest, Show)| {
            let id = request.id.get_or_insert_with(super::new_id).as_str().into();
            Queue { id, tool: request.tool.clone(), show, state: State::Waiting(Box::new(request)) }
        };
        let mut speakers = Speakers {
            queues: calls.into_iter().map(queue).collect(),
            run: Box::new(move |request, sink| Box::pin(run(request, sink))),
            begun: 0,
            at_once: at_once.max(1),
            shown: 0,
            ready,
            tell_ready,
            speaker: None,
            tasks: JoinSet::new(),
        };
        speakers.begin();
        speakers
    }

    /// Ids and tools of the calls, in their order.
    pub fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.queues.iter().map(|queue| (&*queue.id, queue.tool.as_str()))
    }

    fn begin(&mut self) {
        while self.begun < self.queues.len().min(self.shown + self.at_once) {
            let at = self.begun;
            self.begun += 1;
            let queue = &mut self.queues[at];
            let State::Waiting(request) = std::mem::replace(&mut queue.state, State::Done) else { continue };
            let (to, events) = mpsc::channel(WAITING);
            let (end, report) = oneshot::channel();
            queue.state = State::Begun(events, report);
            let mut voice = Voice { at, ready: Some(self.tell_ready.clone()), to, end: Some(end) };
            if queue.show == Show::Result {
                let call = (self.run)(*request, Sink::none());
                self.tasks.spawn(async move { voice.end(call.await) });
                continue;
            }
            let (sink, mut heard) = Sink::patient();
            let call = (self.run)(*request, sink);
            self.tasks.spawn(async move {
                let telling = async {
                    while let Some(event) = heard.recv().await {
                        voice.tell(event).await;
                    }
                };
                let (report, ()) = tokio::join!(call, telling);
                voice.end(report);
            });
        }
    }

    /// What is told next; `None`: all calls were shown to their end.
    pub async fn next(&mut self) -> Option<Told> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        if self.shown == self.queues.len() {
            return Poll::Ready(None);
        }
        let at = match self.speaker {
            Some(at) => at,
            None => {
                // A sender of it is ours, so that it never closes.
                let Some(at) = ready!(self.ready.poll_recv(cx)) else { return Poll::Ready(None) };
                self.speaker = Some(at);
                if self.queues[at].show == Show::All {
                    return Poll::Ready(Some(Told { call: self.queues[at].id.clone(), stage: Stage::Prepare }));
                }
                at
            }
        };
        let queue = &mut self.queues[at];
        let call = queue.id.clone();
        let report = match &mut queue.state {
            State::Begun(events, report) => match ready!(events.poll_recv(cx)) {
                Some(Event::Part(text)) => return Poll::Ready(Some(Told { call, stage: Stage::Output(text) })),
                Some(event) => return Poll::Ready(Some(Told { call, stage: Stage::Processing(event) })),
                // Nothing more comes: it has ended, or its task is gone.
                None => ready!(Pin::new(report).poll(cx)).ok(),
            },
            State::Waiting(_) | State::Done => None,
        };
        let report = report.unwrap_or_else(|| {
            let fault = Fault::new(Kind::InternalError, "The host failed while it handled this call.");
            Box::new(Report::of_fault(call.to_string(), &queue.tool, fault))
        });
        queue.state = State::Done;
        self.speaker = None;
        self.shown += 1;
        self.begin();
        Poll::Ready(Some(Told { call, stage: Stage::Completed(report) }))
    }
}

/// What a running call tells with. However it ends, dropping this says that there is something to show.
struct Voice {
    at: usize,
    ready: Option<mpsc::Sender<usize>>,
    to: mpsc::Sender<Event>,
    end: Option<oneshot::Sender<Box<Report>>>,
}

impl Voice {
    fn speaks(&mut self) {
        // There is room for each call once.
        self.ready.take().map(|ready| ready.try_send(self.at));
    }

    async fn tell(&mut self, mut event: Event) {
        // One that still waits, perhaps for a person, would keep the others from speaking.
        if matches!(event, Event::Preparing(_)) {
            event = match self.to.try_send(event) {
                Ok(()) => return,
                Err(unsent) => unsent.into_inner(),
            };
        }
        self.speaks();
        let _ = self.to.send(event).await;
    }

    fn end(mut self, report: Report) {
        // A reader that is gone misses nothing.
        let _ = self.end.take().map(|end| end.send(Box::new(report)));
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        self.speaks();
    }
}

#[cfg(test)]
mod tests;
