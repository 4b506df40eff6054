//! Several calls at once, shown to one reader one after the other.
//!
//! The call that has output first is shown to its end, then the next that had output. Each event is
//! shown once. A call that waits to be shown keeps a bounded number of events in its sink; then its
//! tool waits, too.

use super::report::Report;
use super::request::{CallRequest, Event, Sink, new_id};
use crate::fault::{Fault, Kind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Calls of one reader that run at once, unless it says otherwise.
pub const CONCURRENCY: usize = 8;
/// Events of a call that may wait until it is shown, and as many notes about its preparation.
const EVENT_QUEUE: usize = 256;

/// One step of a call, as its reader gets it.
#[derive(Debug)]
pub struct StageEvent {
    /// The id of the call.
    pub call: Arc<str>,
    pub stage: Stage,
}

/// The stages of a call that is shown: first `Prepare`, last `Completed`, each once.
#[derive(Debug)]
pub enum Stage {
    /// From here on the reader gets the events of this call.
    Prepare,
    /// Something about the work.
    Processing(Event),
    /// A part of the answer.
    Output(String),
    /// How the call ended. Always sent.
    Completed(Box<Report>),
}

/// What is shown of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    All,
    /// No event, only `Completed`.
    Result,
}

type Run = Box<dyn Fn(CallRequest, Sink) -> BoxFuture<'static, Report> + Send>;

/// A batch of calls for one reader. Dropping it cancels those that run.
pub struct Speakers {
    /// Ids and tools of the calls, in their order.
    calls: Vec<(Arc<str>, String)>,
    waiting: VecDeque<(CallRequest, Show)>,
    run: Run,
    /// Calls that have begun and were not shown to their end, and how many those may be.
    begun: usize,
    at_once: usize,
    /// Calls that have output, each once, in the order of their first output.
    ready: mpsc::Receiver<Speaker>,
    tell_ready: mpsc::Sender<Speaker>,
    speaker: Option<Speaker>,
    tasks: JoinSet<()>,
}

/// A call that has begun, for its reader.
struct Speaker {
    call: Arc<str>,
    tool: String,
    show: Show,
    /// The events up to the first output.
    early: VecDeque<Event>,
    events: mpsc::Receiver<Event>,
    /// The report of the call; an error if the call panicked.
    report: MaybeDone<oneshot::Receiver<Report>>,
}

impl Speaker {
    /// Waits for the first output, or the end. Notes about the preparation do not count: a call
    /// that waits, perhaps for a person, would keep the others from being shown.
    async fn with_output(mut self) -> Speaker {
        while let Some(event) = self.events.recv().await {
            let is_note = matches!(event, Event::Preparing(_)) && self.early.len() < EVENT_QUEUE;
            self.early.push_back(event);
            if !is_note {
                return self;
            }
        }
        (&mut self.report).await;
        self
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
        let mut waiting: VecDeque<_> = calls.into();
        let mut speakers = Speakers {
            calls: waiting
                .iter_mut()
                .map(|(request, _): &mut (CallRequest, Show)| {
                    (
                        request.id.get_or_insert_with(new_id).as_str().into(),
                        request.tool.clone(),
                    )
                })
                .collect(),
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

    /// Whether this call has not begun.
    pub fn is_waiting(&self, call: &str) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|(request, _)| request.id.as_deref() == Some(call))
    }

    /// How a call ended that was not shown yet, if one has: what is left to tell once nobody waits
    /// any more.
    pub fn ended_unheard(&mut self) -> Option<(Arc<str>, Report)> {
        while let Ok(mut speaker) = self.ready.try_recv() {
            let _ = (&mut speaker.report).now_or_never();
            let report = Pin::new(&mut speaker.report).take_output();
            if let Some(Ok(report)) = report {
                return Some((speaker.call, report));
            }
        }
        None
    }

    /// Begins calls in their order, as many as may run.
    fn begin(&mut self) {
        while self.begun < self.at_once
            && let Some((request, show)) = self.waiting.pop_front()
        {
            self.begun += 1;
            let call = request.id.as_deref().unwrap_or_default().into();
            let tool = request.tool.clone();
            let (sink, events) = match show {
                Show::All => Sink::patient(EVENT_QUEUE),
                Show::Result => (Sink::none(), mpsc::channel(1).1),
            };
            let (ended, report) = oneshot::channel();
            let speaker = Speaker {
                call,
                tool,
                show,
                early: VecDeque::new(),
                events,
                report: maybe_done(report),
            };
            let call = (self.run)(request, sink);
            let ready = self.tell_ready.clone();
            self.tasks.spawn(async move { _ = ended.send(call.await) });
            self.tasks
                .spawn(async move { _ = ready.send(speaker.with_output().await).await });
        }
    }

    /// The next step. `None`: all calls were shown to their end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<StageEvent> {
        if self.begun == 0 {
            return None;
        }
        if self.speaker.is_none() {
            let speaker = self.ready.recv().await?;
            let call = speaker.call.clone();
            let show = speaker.show;
            self.speaker = Some(speaker);
            if show == Show::All {
                return Some(StageEvent {
                    call,
                    stage: Stage::Prepare,
                });
            }
        }
        let speaker = self.speaker.as_mut()?;
        let call = speaker.call.clone();
        let event = match speaker.early.pop_front() {
            None => speaker.events.recv().await,
            early => early,
        };
        let report = match event {
            Some(Event::Part(text)) => {
                return Some(StageEvent {
                    call,
                    stage: Stage::Output(text),
                });
            }
            Some(event) => {
                return Some(StageEvent {
                    call,
                    stage: Stage::Processing(event),
                });
            }
            None => {
                (&mut speaker.report).await;
                Pin::new(&mut speaker.report)
                    .take_output()
                    .and_then(Result::ok)
                    .unwrap_or_else(|| {
                        let fault = Fault::new(
                            Kind::InternalError,
                            "The host failed while it handled this call.",
                        );
                        Report::of_fault(call.to_string(), &speaker.tool, fault)
                    })
            }
        };
        self.speaker = None;
        self.begun -= 1;
        self.begin();
        Some(StageEvent {
            call,
            stage: Stage::Completed(Box::new(report)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arguments, Caller};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// What a call does: one step after another, then its end.
    #[derive(Clone, Debug)]
    struct Act {
        steps: Vec<Step>,
        end: End,
        show: Show,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Part,
        Line,
        Preparing,
        /// So many turns of the others.
        Pause(u64),
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        Success,
        Failure,
        Panic,
        /// It lets go of its sink, and ends later.
        Mute,
    }

    fn request(at: usize) -> CallRequest {
        let arguments = Arguments::Text(String::new());
        CallRequest {
            id: Some(at.to_string()),
            ..CallRequest::new(Caller::named("u"), "t:x", arguments)
        }
    }

    fn report(id: &str, end: End) -> Report {
        let report = Report::of_fault(
            id.to_owned(),
            "t:x",
            Fault::new(Kind::ScriptError, "failed"),
        );
        if end == End::Failure {
            report
        } else {
            Report {
                outcome: crate::service::CallResult::Output(crate::executor::ToolAnswer::mark()),
                ..report
            }
        }
    }

    /// Through the very queue of a call. One thread, and no clock: the same acts give the same
    /// trace.
    async fn play(act: Act, id: String, sink: Sink) -> Report {
        let mut stream = super::super::request::EventStream::to(sink);
        for (number, step) in act.steps.iter().enumerate() {
            let text = format!("{id}.{number}");
            match step {
                Step::Part => stream.push(Event::Part(text)),
                Step::Line => stream.push(Event::Log(text)),
                Step::Preparing => stream.push(Event::Preparing(text)),
                Step::Pause(turns) => {
                    for _ in 0..*turns {
                        tokio::select! {
                            biased;
                            () = tokio::task::yield_now() => {}
                            () = stream.hand_on() => tokio::task::yield_now().await,
                        }
                    }
                }
            }
            while stream.is_behind() {
                stream.hand_on().await;
            }
        }
        assert!(act.end != End::Panic, "a call that panics");
        stream.finish().await;
        if act.end == End::Mute {
            turns(3).await;
        }
        report(&id, act.end)
    }

    async fn turns(many: u64) {
        for _ in 0..many {
            tokio::task::yield_now().await;
        }
    }

    fn run(acts: &[Act], at_once: usize, slow: bool) -> Vec<(usize, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let calls = acts
                .iter()
                .enumerate()
                .map(|(at, act)| (request(at), act.show))
                .collect();
            let own = acts.to_vec();
            let mut speakers = Speakers::new(calls, at_once, move |request, sink| {
                let id = request.id.unwrap_or_default();
                play(own[id.parse::<usize>().unwrap()].clone(), id, sink)
            });
            let mut trace = Vec::new();
            let all = async {
                while let Some(StageEvent { call, stage }) = speakers.next().await {
                    let words = match stage {
                        Stage::Prepare => "prepare".to_owned(),
                        Stage::Output(text)
                        | Stage::Processing(Event::Log(text) | Event::Preparing(text)) => text,
                        Stage::Processing(other) => panic!("{other:?}"),
                        Stage::Completed(report) => {
                            assert_eq!(report.id, &*call);
                            format!("completed {}", report.outcome.word())
                        }
                    };
                    trace.push((call.parse().unwrap(), words));
                    if slow {
                        turns(7).await;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(60), all)
                .await
                .expect("no hang");
            assert!(speakers.next().await.is_none());
            trace
        })
    }

    /// The invariants.
    fn check(acts: &[Act], trace: &[(usize, String)]) {
        let mut order: Vec<usize> = trace.iter().map(|(call, _)| *call).collect();
        order.dedup();
        let mut once = order.clone();
        once.sort_unstable();
        assert_eq!(
            once,
            (0..acts.len()).collect::<Vec<_>>(),
            "each in one piece: {order:?}"
        );
        for (at, act) in acts.iter().enumerate() {
            let seen: Vec<&str> = trace
                .iter()
                .filter(|(call, _)| *call == at)
                .map(|(_, words)| words.as_str())
                .collect();
            let told = act
                .steps
                .iter()
                .enumerate()
                .filter(|(_, step)| !matches!(step, Step::Pause(_)));
            let told: Vec<String> = told.map(|(number, _)| format!("{at}.{number}")).collect();
            let end = match act.end {
                End::Success | End::Mute => "completed success",
                End::Failure => "completed ScriptError",
                End::Panic => "completed InternalError",
            };
            let (last, rest) = seen.split_last().expect("an end");
            assert_eq!(*last, end);
            if act.show == Show::Result {
                assert!(rest.is_empty(), "{rest:?}");
                continue;
            }
            assert_eq!(rest[0], "prepare");
            // What a call that panics had not handed on is gone with it.
            let is_whole = act.end != End::Panic;
            let rest: Vec<String> = rest[1..].iter().map(|s| (*s).to_owned()).collect();
            assert!(
                if is_whole {
                    rest == told
                } else {
                    told.starts_with(&rest)
                },
                "{seen:?}"
            );
        }
    }

    fn acts() -> impl Strategy<Value = (Vec<Act>, usize, bool)> {
        let step = prop_oneof![
            4 => Just(Step::Part),
            2 => Just(Step::Line),
            1 => Just(Step::Preparing),
            3 => (0u64..9).prop_map(Step::Pause),
        ];
        let end = prop_oneof![4 => Just(End::Success), 1 => Just(End::Failure), 1 => Just(End::Panic), 1 => Just(End::Mute)];
        let show = prop_oneof![5 => Just(Show::All), 1 => Just(Show::Result)];
        // Sometimes more than a queue holds.
        let steps = prop_oneof![5 => prop::collection::vec(step, 0..20), 1 => Just(vec![Step::Part; 2 * EVENT_QUEUE])];
        let act = (steps, end, show).prop_map(|(steps, end, show)| Act { steps, end, show });
        (prop::collection::vec(act, 1..9), 1usize..6, any::<bool>())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn one_speaks_at_a_time_and_everything_is_heard((acts, at_once, slow) in acts()) {
            let trace = run(&acts, at_once, slow);
            check(&acts, &trace);
            prop_assert_eq!(trace, run(&acts, at_once, slow), "the same again");
        }
    }

    fn act(steps: &[Step], end: End) -> Act {
        Act {
            steps: steps.to_vec(),
            end,
            show: Show::All,
        }
    }

    #[test]
    fn whoever_has_output_first_speaks_and_those_that_waited_follow_in_that_order() {
        let late = act(&[Step::Pause(90), Step::Part], End::Success);
        let dies = act(&[Step::Pause(10), Step::Part, Step::Pause(40)], End::Panic);
        let person = act(
            &[Step::Preparing, Step::Pause(200), Step::Part],
            End::Success,
        );
        let soon = act(&[Step::Pause(20), Step::Part], End::Success);
        let trace = run(&[late, dies, person, soon], 4, false);
        let mut order: Vec<usize> = trace.iter().map(|(call, _)| *call).collect();
        order.dedup();
        assert_eq!(order, [1, 3, 0, 2], "{trace:?}");
        let ties = vec![act(&[Step::Part], End::Success); 5];
        let mut order: Vec<usize> = run(&ties, 5, false).iter().map(|(call, _)| *call).collect();
        order.dedup();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
