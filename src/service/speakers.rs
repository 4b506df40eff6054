//! Several calls at once, shown to one reader one after the other.
//!
//! The call that has output first is shown to its end, then the next one that had some. Every event comes once. A call that
//! waits to be shown keeps a bounded number of events in its sink; then its tool waits, too.

use super::Report;
use super::request::{CallRequest, Event, Sink};
use crate::fault::{Fault, Kind};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Calls of one reader that run at once, unless it says otherwise.
pub const AT_ONCE: usize = 8;
/// Events of a call that wait until it speaks, and as many notes about its preparation.
const WAITING: usize = 256;

/// What a call tells in one moment.
#[derive(Debug)]
pub struct StageEvent {
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
    /// Ids and tools of the calls, in their order.
    calls: Vec<(Arc<str>, String)>,
    waiting: VecDeque<(CallRequest, Show)>,
    run: Run,
    /// Calls that have begun and were not shown to their end, and how many those may be.
    begun: usize,
    at_once: usize,
    /// Calls with something to say, each once, in that order.
    ready: mpsc::Receiver<Speaker>,
    tell_ready: mpsc::Sender<Speaker>,
    speaker: Option<Speaker>,
    tasks: JoinSet<()>,
}

/// A call that has begun, as its reader has it.
struct Speaker {
    call: Arc<str>,
    tool: String,
    show: Show,
    /// What came before the first output.
    early: VecDeque<Event>,
    events: mpsc::Receiver<Event>,
    report: oneshot::Receiver<Report>,
}

impl Speakers {
    /// `run`: runs one call. A call without an id is given one.
    pub fn new<R: Future<Output = Report> + Send + 'static>(
        calls: Vec<(CallRequest, Show)>,
        at_once: usize,
        run: impl Fn(CallRequest, Sink) -> R + Send + 'static,
    ) -> Speakers {
        let (tell_ready, ready) = mpsc::channel(calls.len().max(1));
        let mut waiting: VecDeque<_> = calls.into();
        let named = |(request, _): &mut (CallRequest, Show)| {
            (request.id.get_or_insert_with(super::new_id).as_str().into(), request.tool.clone())
        };
        let mut speakers = Speakers {
            calls: waiting.iter_mut().map(named).collect(),
            waiting,
            run: Box::new(move |request, sink| Box::pin(run(request, sink))),
            begun: 0,
            at_once: at_once.max(1),
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
        self.calls.iter().map(|(id, tool)| (&**id, tool.as_str()))
    }

    /// Begins calls in their order, as many as may run.
    fn begin(&mut self) {
        while self.begun < self.at_once
            && let Some((request, show)) = self.waiting.pop_front()
        {
            self.begun += 1;
            let (call, tool) = (request.id.as_deref().unwrap_or_default().into(), request.tool.clone());
            let (sink, events) = match show {
                Show::All => Sink::patient(WAITING),
                Show::Result => (Sink::none(), mpsc::channel(1).1),
            };
            let (ended, report) = oneshot::channel();
            let speaker = Speaker { call, tool, show, early: VecDeque::new(), events, report };
            let mut candidate = Candidate { speaker: Some(speaker), ready: self.tell_ready.clone() };
            let call = (self.run)(request, sink);
            self.tasks.spawn(async move {
                let (report, ()) = tokio::join!(call, candidate.listen());
                // A reader that is gone misses nothing.
                let _ = ended.send(report);
                drop(candidate);
            });
        }
    }

    /// What is told next; `None`: all calls were shown to their end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<StageEvent> {
        if self.begun == 0 {
            return None;
        }
        if self.speaker.is_none() {
            let speaker = self.ready.recv().await?;
            let (call, show) = (speaker.call.clone(), speaker.show);
            self.speaker = Some(speaker);
            if show == Show::All {
                return Some(StageEvent { call, stage: Stage::Prepare });
            }
        }
        let speaker = self.speaker.as_mut()?;
        let call = speaker.call.clone();
        let event = match speaker.early.pop_front() {
            None => speaker.events.recv().await,
            early => early,
        };
        let report = match event {
            Some(Event::Part(text)) => return Some(StageEvent { call, stage: Stage::Output(text) }),
            Some(event) => return Some(StageEvent { call, stage: Stage::Processing(event) }),
            None => (&mut speaker.report).await.unwrap_or_else(|_| {
                let fault = Fault::new(Kind::InternalError, "The host failed while it handled this call.");
                Report::of_fault(call.to_string(), &speaker.tool, fault)
            }),
        };
        self.speaker = None;
        self.begun -= 1;
        self.begin();
        Some(StageEvent { call, stage: Stage::Completed(Box::new(report)) })
    }
}

/// A running call that has said nothing yet. However it ends, dropping this hands its speaker on.
struct Candidate {
    speaker: Option<Speaker>,
    ready: mpsc::Sender<Speaker>,
}

impl Candidate {
    /// Waits for the first output. A note about the preparation is none: a call that still waits, perhaps for a person,
    /// would keep the others from speaking.
    async fn listen(&mut self) {
        while let Some(speaker) = &mut self.speaker {
            let Some(event) = speaker.events.recv().await else { return };
            let is_note = matches!(event, Event::Preparing(_)) && speaker.early.len() < WAITING;
            speaker.early.push_back(event);
            if !is_note {
                self.hand_on();
            }
        }
    }

    fn hand_on(&mut self) {
        // There is room for each call once.
        self.speaker.take().map(|speaker| self.ready.try_send(speaker));
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.hand_on();
    }
}

#[cfg(test)]
mod tests;
